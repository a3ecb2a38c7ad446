//! Nothing of others is removed, and nothing of theirs is opened.

use super::*;
use crate::checkpoint::disk::write;

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
