//! Stops anywhere, and damage.

use super::{disk::write, unfinished::UNFINISHED, *};

fn files(content: &'static str) -> Files<'static> {
    ["model.safetensors", "training.json"].map(|name| (name.to_owned(), content.as_bytes().into())).into()
}

const PUBLISHED: [&str; 1] = ["model.safetensors"];

/// Names in the run's folder, in order.
fn sorted(run: &Run) -> Vec<String> {
    let mut found = names(run.folder()).unwrap();
    found.sort();
    found
}

/// A third checkpoint, stopped before its `stop`-th change of the disk; whether it got through.
fn stopped_at(run: &Run, keep: usize, stop: usize) -> bool {
    let mut changes = 0;
    let mut reached = || {
        changes += 1;
        if changes > stop { Err(Error::checkpoint("", "stopped")) } else { Ok(()) }
    };
    run.commit_watched(3, &files("third"), &PUBLISHED, keep, &mut reached).is_ok()
}

#[test]
fn stopping_anywhere_leaves_one_whole_checkpoint() {
    for (keep, left) in [(1, &["00000003"][..]), (2, &["00000002", "00000003"])] {
        for stop in 0.. {
            let folder = tempfile::tempdir().unwrap();
            let run = Run::new(folder.path());
            run.commit(1, &files("first"), &PUBLISHED, keep).unwrap();
            run.commit(2, &files("second"), &PUBLISHED, keep).unwrap();
            let through = stopped_at(&run, keep, stop);
            let before = fs::read(run.file("model.safetensors")).unwrap();
            assert!(before == b"second" || before == b"third", "stopped at change {stop}");
            let (step, found) = run.open(&PUBLISHED).unwrap();
            assert_eq!(found, files(if step == 2 { "second" } else { "third" }), "stopped at change {stop}");
            assert_eq!(fs::read(run.file("model.safetensors")).unwrap(), *found["model.safetensors"]);
            assert!(sorted(&run).iter().all(|name| !name.starts_with('.')), "leftovers after change {stop}");
            // Whoever saves next has as many as are to be kept.
            run.commit(3, &files("third"), &PUBLISHED, keep).unwrap();
            let names = left.iter().map(|step| format!("checkpoint-{step}")).chain(["model.safetensors".to_owned()]);
            assert_eq!(sorted(&run), names.collect::<Vec<_>>(), "stopped at change {stop}");
            if through {
                assert!(stop > 6 && step == 3);
                break;
            }
        }
    }
}

/// The disk refuses one change, as one that is full does until something goes, or all of them.
#[test]
fn a_refused_checkpoint_leaves_the_newest_and_no_rest() {
    for forever in [false, true] {
        for refused in 0.. {
            let folder = tempfile::tempdir().unwrap();
            let run = Run::new(folder.path());
            run.commit(1, &files("first"), &PUBLISHED, 2).unwrap();
            run.commit(2, &files("second"), &PUBLISHED, 2).unwrap();
            let mut changes = 0;
            let mut reached = || {
                changes += 1;
                let refuses = changes - 1 == refused || forever && changes > refused;
                if refuses {
                    Err(Error::io("write", Path::new("full"))(io::ErrorKind::StorageFull.into()))
                } else {
                    Ok(())
                }
            };
            let result = run.commit_watched(3, &files("third"), &PUBLISHED, 2, &mut reached);
            let rest = names(&run.file(UNFINISHED)).unwrap();
            assert!(
                !rest.iter().any(|name| name.ends_with(".new")),
                "a rest after refusing change {refused}: {rest:?}"
            );
            let (step, found) = run.open(&PUBLISHED).unwrap();
            assert_eq!(found, files(if step == 2 { "second" } else { "third" }), "refused change {refused}");
            // The third's folder, two files and checksums: the first gave way, and then there was room.
            assert!(forever || refused > 3 || result.is_ok(), "refused change {refused}");
            run.commit(3, &files("third"), &PUBLISHED, 2).unwrap();
            assert_eq!(run.open(&PUBLISHED).unwrap(), (3, files("third")));
            if result.is_ok() && changes <= refused {
                break;
            }
        }
    }
}

/// A checkpoint of the same step with other files, such as a measurement that was made later, takes the old one's place. A
/// stop or a full disk at any change leaves one of them, also where only one is kept.
#[test]
fn a_step_that_is_written_again_is_never_lost() {
    for full in [false, true] {
        for stop in 0.. {
            let folder = tempfile::tempdir().unwrap();
            let run = Run::new(folder.path());
            run.commit(5, &files("before"), &PUBLISHED, 1).unwrap();
            let mut changes = 0;
            let mut reached = || {
                changes += 1;
                match full {
                    _ if changes <= stop => Ok(()),
                    true => Err(Error::io("write", Path::new("full"))(io::ErrorKind::StorageFull.into())),
                    false => Err(Error::checkpoint("", "stopped")),
                }
            };
            let through = run.commit_watched(5, &files("after"), &PUBLISHED, 1, &mut reached).is_ok();
            let (step, found) = run.open(&PUBLISHED).unwrap();
            assert!(step == 5 && (found == files("before") || found == files("after")), "stopped at change {stop}");
            assert!(!through || found == files("after"));
            assert_eq!(sorted(&run), ["checkpoint-00000005", "model.safetensors"], "stopped at change {stop}");
            if through {
                assert!(stop > 6);
                break;
            }
        }
    }
}

/// The last checkpoint is never given up for one that cannot be written.
#[test]
fn the_only_checkpoint_does_not_give_way() {
    let folder = tempfile::tempdir().unwrap();
    let run = Run::new(folder.path());
    for keep in [1, 2] {
        run.commit(1, &files("first"), &PUBLISHED, keep).unwrap();
        let mut full = || Err(Error::io("write", Path::new("full"))(io::ErrorKind::StorageFull.into()));
        let told = run.commit_watched(2, &files("second"), &PUBLISHED, keep, &mut full).unwrap_err();
        assert!(matches!(told, Error::Io { .. }));
        assert_eq!(run.open(&PUBLISHED).unwrap(), (1, files("first")));
        assert_eq!(sorted(&run), ["checkpoint-00000001", "model.safetensors"]);
    }
}

#[cfg(unix)]
#[test]
fn what_did_not_change_takes_room_once() {
    use std::os::unix::fs::MetadataExt;
    let folder = tempfile::tempdir().unwrap();
    let run = Run::new(folder.path());
    let inode = |path: PathBuf| fs::metadata(path).unwrap().ino();
    let with = |model: &str| {
        Files::from(
            [("a.json", "same"), ("text.txt", "long"), ("model.safetensors", model)]
                .map(|(name, content)| (name.to_owned(), content.repeat(if name == "a.json" { 1 } else { 1 << 19 })))
                .map(|(name, content)| (name, content.into_bytes().into())),
        )
    };
    run.commit(1, &with("one"), &PUBLISHED, 2).unwrap();
    run.commit(2, &with("two"), &PUBLISHED, 2).unwrap();
    assert_eq!(inode(run.checkpoint(1).join("text.txt")), inode(run.checkpoint(2).join("text.txt")));
    // What people may edit is a file of its own everywhere.
    assert_ne!(inode(run.checkpoint(1).join("a.json")), inode(run.checkpoint(2).join("a.json")));
    assert_ne!(inode(run.checkpoint(1).join(PUBLISHED[0])), inode(run.checkpoint(2).join(PUBLISHED[0])));
    assert_eq!(inode(run.checkpoint(2).join(PUBLISHED[0])), inode(run.file(PUBLISHED[0])));
    // Damage is not handed on: what is not as its checksum says is written again.
    fs::write(run.checkpoint(2).join("a.json"), "damn").unwrap();
    run.commit(3, &with("three"), &PUBLISHED, 2).unwrap();
    assert_eq!(run.open(&PUBLISHED).unwrap(), (3, with("three")));
}

#[test]
fn a_damaged_checkpoint_tells_of_the_one_before() {
    let folder = tempfile::tempdir().unwrap();
    let run = Run::new(folder.path());
    run.commit(1, &files("first"), &[], 2).unwrap();
    run.commit(2, &files("second"), &[], 2).unwrap();
    fs::write(run.checkpoint(2).join("training.json"), "x").unwrap();
    let told = run.open(&[]).unwrap_err().to_string();
    assert!(
        ["training.json", "damaged", "checkpoint-00000002", "from step 1"].iter().all(|part| told.contains(part)),
        "{told}"
    );
    fs::remove_dir_all(run.checkpoint(2)).unwrap();
    assert_eq!(run.open(&[]).unwrap(), (1, files("first")));
}

#[test]
fn a_new_run_is_written_before_the_old_one_goes() {
    for stop in 0.. {
        let folder = tempfile::tempdir().unwrap();
        let run = Run::new(folder.path());
        run.commit(7, &files("old"), &PUBLISHED, 2).unwrap();
        let mut left = stop;
        let mut reached = || {
            left -= 1;
            if left < 0 { Err(Error::checkpoint("", "stopped")) } else { Ok(()) }
        };
        let result = run.replace_watched(7, &files("new"), &PUBLISHED, &[], &mut reached);
        if result.is_ok() {
            assert_eq!(run.open(&PUBLISHED).unwrap(), (7, files("new")));
            assert_eq!(names(run.folder()).unwrap().len(), 2, "leftovers");
            return;
        }
        // The folder, two files and their checksums; with the fifth change the new checkpoint exists.
        match stop {
            0..4 => assert_eq!(run.open(&PUBLISHED).unwrap().1, files("old"), "stopped at change {stop}"),
            4 => assert_eq!(run.latest().unwrap(), None),
            _ => assert_eq!(run.open(&PUBLISHED).unwrap().1, files("new"), "stopped at change {stop}"),
        }
    }
}

#[test]
fn damage_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let run = Run::new(folder.path());
    assert!(matches!(run.open(&[]), Err(Error::Checkpoint { .. })));
    run.commit(7, &files("content"), &[], 2).unwrap();
    for name in ["model.safetensors", "training.json", CHECKSUMS] {
        let path = run.checkpoint(7).join(name);
        let whole = fs::read(&path).unwrap();
        for damaged in [whole[..whole.len() / 2].to_vec(), Vec::new(), [&whole[..], b"x"].concat()] {
            fs::write(&path, damaged).unwrap();
            assert!(matches!(run.open(&[]), Err(Error::Checkpoint { .. })), "{name}");
        }
        fs::remove_file(&path).unwrap();
        assert!(matches!(run.open(&[]), Err(Error::Checkpoint { .. })), "{name}");
        fs::write(&path, whole).unwrap();
    }
    assert_eq!(run.open(&[]).unwrap().0, 7);
}

/// Names and contents of everything below a folder.
fn everything(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    for name in names(folder).unwrap() {
        let path = folder.join(name);
        if path.is_dir() {
            all.extend(everything(&path));
        } else {
            all.insert(path.clone(), fs::read(&path).unwrap());
        }
    }
    all
}

/// Files of somebody else's, some under names that look like Hecate's, beside a run or in it.
const OTHERS: [&str; 9] = [
    ".film.mkv.partial",
    ".checkpoint-00000001.partial/film.mkv",
    ".hecate-notes.partial",
    "checkpoint-1/notes.txt",
    "notes.txt",
    ".hecate-unfinished/film.mkv",
    ".hecate-unfinished/film.mkv.new",
    ".hecate-unfinished/checkpoint-00000009.new/film.mkv",
    ".hecate-unfinished/checkpoint-00000008.old/notes.txt",
];

fn place(run: &Run, name: &str) {
    let path = run.file(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, name).unwrap();
}

#[test]
fn nothing_of_others_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let run = Run::new(folder.path());
    run.commit(1, &files("first"), &PUBLISHED, 1).unwrap();
    OTHERS.iter().for_each(|name| place(&run, name));
    run.commit(2, &files("second"), &PUBLISHED, 1).unwrap();
    run.open(&PUBLISHED).unwrap();
    run.write("loss.svg", b"a picture").unwrap();
    for name in OTHERS {
        assert_eq!(fs::read(run.file(name)).unwrap(), name.as_bytes());
    }
    assert!(!run.checkpoint(1).exists() && run.checkpoint(2).exists());
    // A checkpoint that somebody added to or changed is theirs.
    fs::write(run.checkpoint(2).join("notes.txt"), "mine").unwrap();
    run.commit(3, &files("third"), &PUBLISHED, 1).unwrap();
    assert!(run.checkpoint(2).join("model.safetensors").exists());
    fs::write(run.checkpoint(3).join("model.safetensors"), "mine").unwrap();
    run.commit(4, &files("fourth"), &PUBLISHED, 1).unwrap();
    assert_eq!(fs::read(run.checkpoint(3).join("model.safetensors")).unwrap(), b"mine");
}

/// What stops leave is removed by whoever goes on, whatever was written of it.
#[test]
fn rests_of_a_stop_are_removed() {
    let folder = tempfile::tempdir().unwrap();
    let run = Run::new(folder.path());
    run.commit(1, &files("first"), &PUBLISHED, 1).unwrap();
    let partial = run.unfinished().unwrap().join(".hecate-aB3dE6.partial");
    for (list, torn) in
        [("", None), ("{\n  \"model", None), (r#"{"model.safetensors":"0123456789abcdef"}"#, Some("mod"))]
    {
        fs::create_dir_all(run.coming(3)).unwrap();
        write(&run.coming(3).join(CHECKSUMS), list.as_bytes()).unwrap();
        torn.iter().for_each(|torn| fs::write(run.coming(3).join("model.safetensors"), torn).unwrap());
        run.unfinished().unwrap();
        fs::write(&partial, "half a mod").unwrap();
        run.open(&PUBLISHED).unwrap();
        assert_eq!(sorted(&run), ["checkpoint-00000001", "model.safetensors"], "{list}");
    }
}

/// A new run begins in an empty folder, or takes the place of a run. All else is left as it is, and named.
#[test]
fn a_folder_of_others_is_refused() {
    let known: [Companion; 1] = [("metrics.jsonl", |content| content == b"a record")];
    let others =
        OTHERS.iter().chain(&["checkpoint-00099999/film.mkv", "checkpoint-00099999", "model.safetensors", ".lock"]);
    for name in others.chain(&["metrics.jsonl", "sources.txt", UNFINISHED]) {
        for with_run in [false, true] {
            let folder = tempfile::tempdir().unwrap();
            let run = Run::new(folder.path());
            if with_run {
                run.commit(1, &files("first"), &[], 1).unwrap();
                fs::write(run.file("metrics.jsonl"), "a record").unwrap();
            }
            place(&run, name);
            let published = ["model.safetensors", "sources.txt"];
            let before = everything(folder.path());
            let contents = run.contents(&published, &known).unwrap();
            // Beside a run, what is not in its way stays.
            let aside = with_run && !name.starts_with(UNFINISHED) && OTHERS.contains(name);
            assert_eq!(contents == Contents::Ours, aside, "{name}: {contents:?}");
            let replaced = run.replace(1, &files("new"), &published, &known);
            if aside {
                replaced.unwrap();
                assert_eq!(fs::read(run.file(name)).unwrap(), name.as_bytes());
                continue;
            }
            let told = replaced.unwrap_err().to_string();
            let first = name.split('/').next().unwrap();
            assert!(told.contains(first) && told.contains("not what Hecate wrote"), "{name}: {told}");
            assert!(run.clear(&published, &known).is_err(), "{name}");
            assert_eq!(everything(folder.path()), before, "{name}");
        }
    }
    // Nothing but what a refused attempt left is nothing.
    let folder = tempfile::tempdir().unwrap();
    let run = Run::new(folder.path());
    drop(run.lock().unwrap());
    run.unfinished().unwrap();
    assert_eq!(run.contents(&PUBLISHED, &known).unwrap(), Contents::Nothing);
    assert_eq!(Run::new(run.file("nowhere")).contents(&PUBLISHED, &known).unwrap(), Contents::Nothing);
}

#[test]
fn a_list_names_plain_files_alone() {
    let outside = tempfile::NamedTempFile::new().unwrap();
    let whole = outside.path().to_str().unwrap();
    for name in
        [whole, "../victim", "a/b", "a\\b", "C:x", "", ".", "..", ".lock", "checksums.json", "/dev/zero", "a\0b"]
    {
        let folder = tempfile::tempdir().unwrap();
        let run = Run::new(folder.path());
        run.commit(1, &files("content"), &PUBLISHED, 1).unwrap();
        let list = serde_json::to_vec(&BTreeMap::from([(name, checksum(b""))])).unwrap();
        fs::write(run.checkpoint(1).join(CHECKSUMS), list).unwrap();
        let told = run.open(&PUBLISHED).unwrap_err().to_string();
        assert!(told.contains("checksums.json") && told.contains("no file of a checkpoint"), "{name}: {told}");
        // Nor is anything removed by such a list.
        run.commit(2, &files("content"), &[], 1).unwrap();
        assert!(run.checkpoint(1).exists() && outside.path().exists());
    }
}

#[cfg(unix)]
#[test]
fn links_of_a_run_are_not_followed() {
    use std::os::unix::fs::symlink;
    let outside = tempfile::tempdir().unwrap();
    let victim = outside.path().join("victim");
    let fresh = || {
        let folder = tempfile::tempdir().unwrap();
        let run = Run::new(folder.path().join("run"));
        run.commit(1, &files("content"), &PUBLISHED, 1).unwrap();
        fs::write(&victim, "content").unwrap();
        (folder, run)
    };
    let link = |path: &Path| {
        let _ = fs::remove_file(path);
        symlink(&victim, path).unwrap();
    };
    let refused = |told: Error| assert!(told.to_string().contains("link"), "{told}");
    let (_folder, run) = fresh();
    link(&run.file(LOCK));
    refused(run.lock().unwrap_err());
    // The right content, and yet another file.
    let (_folder, run) = fresh();
    link(&run.checkpoint(1).join("model.safetensors"));
    refused(run.open(&PUBLISHED).unwrap_err());
    let (_folder, run) = fresh();
    link(&run.file("model.safetensors"));
    let told = run.open(&PUBLISHED).unwrap_err().to_string();
    assert!(told.contains("not what Hecate wrote"), "{told}");
    // A whole checkpoint, elsewhere.
    let (_folder, run) = fresh();
    fs::rename(run.checkpoint(1), outside.path().join("checkpoint")).unwrap();
    symlink(outside.path().join("checkpoint"), run.checkpoint(1)).unwrap();
    let told = run.open(&PUBLISHED).unwrap_err().to_string();
    assert!(told.contains("no folder itself"), "{told}");
    // What is not finished is not written elsewhere.
    let (_folder, run) = fresh();
    symlink(outside.path(), run.file(UNFINISHED)).unwrap();
    let told = run.commit(2, &files("more"), &PUBLISHED, 1).unwrap_err().to_string();
    assert!(told.contains("not what Hecate wrote"), "{told}");
    assert_eq!(fs::read(&victim).unwrap(), b"content");
    assert_eq!(names(outside.path()).unwrap().len(), 2);
}
