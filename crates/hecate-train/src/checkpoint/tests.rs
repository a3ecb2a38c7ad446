//! Stops anywhere, and damage.

mod others;

use super::{unfinished::UNFINISHED, *};

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
