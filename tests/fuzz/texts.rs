//! Texts of random bytes, alone and in folders, in memory and on the disk.

use crate::{
    damage::{changes, damaged},
    hold, sound,
};
use hecate_models::{
    Vocabulary,
    text::{Corpus, Text, TokenSource, Tokens, read_text},
};
use proptest::{collection::vec, prelude::*};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Content of a file: text, text that was damaged, any bytes.
fn content() -> impl Strategy<Value = Vec<u8>> {
    const WHOLE: &str = "a \u{e9} \u{20ac} \u{1f600}\n\0 b";
    prop_oneof![
        2 => ".{0,12}".prop_map(String::into_bytes),
        2 => changes().prop_map(|changes| damaged(WHOLE.as_bytes(), &changes)),
        1 => vec(any::<u8>(), 0..12),
        1 => Just(Vec::new()),
    ]
}

/// A share that need not be one.
fn fraction() -> impl Strategy<Value = f32> {
    prop_oneof![2 => 0.0..1.0f32, 1 => any::<f32>()]
}

#[test]
fn files_are_read_or_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("text");
    hold(150, &content(), |bytes| {
        fs::write(&path, &bytes).expect("room");
        let text = String::from_utf8(bytes.clone()).ok().filter(|text| !text.is_empty());
        prop_assert_eq!(sound("read_text", || read_text(&path))?.ok(), text.clone());
        let opened = sound("Text::open", || Text::open(std::slice::from_ref(&path), bytes.len()))?;
        prop_assert_eq!(opened.and_then(|text| text.whole()).ok(), text);
        Ok(())
    });
    for path in [folder.path(), Path::new("\0"), &folder.path().join("none")] {
        assert!(read_text(path).is_err(), "{}", path.display());
    }
    assert!(Text::open(&[], 0).is_err() && Text::open(&[folder.path().join("none")], 0).is_err());
}

/// In memory or on the disk, it is the same text or the same error.
#[test]
fn folders_are_read_or_refused() {
    let names = vec!["a", "b", "deep/a", "deep/deeper/c", ".hidden", "step-1/training.json", "latest"];
    let files = vec((prop::sample::select(names), content()), 0..5);
    let named = vec(prop::sample::select(vec!["", "a", "deep", "none"]), 0..3);
    hold(100, &(files, named, fraction(), (any::<usize>(), any::<usize>())), |(files, named, fraction, (from, to))| {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, content) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().expect("a folder")).expect("room");
            fs::write(path, content).expect("room");
        }
        let paths: Vec<PathBuf> = named.iter().map(|name| folder.path().join(name)).collect();
        let open = |in_memory| sound("Text::open", || Text::open(&paths, in_memory));
        match (open(usize::MAX)?, open(0)?) {
            (Ok(held), Ok(left)) => {
                prop_assert_eq!(held.identity(), left.identity());
                prop_assert_eq!(held.skipped(), left.skipped());
                let both = [&held, &left].map(|text| measured(text, fraction, from, to));
                let [held, left] = both;
                prop_assert_eq!(held?, left?);
            }
            (Err(held), Err(left)) => prop_assert_eq!(held.to_string(), left.to_string()),
            (held, left) => prop_assert!(false, "{held:?} but {left:?}"),
        }
        Ok(())
    });
}

/// What calls of a text give; errors are told by what they say.
fn measured(text: &Text, fraction: f32, from: usize, to: usize) -> Result<Vec<String>, TestCaseError> {
    let whole = sound("Text::whole", || text.whole())?.expect("a text");
    assert_eq!(whole.len(), text.bytes());
    let end = text.bytes() + 2;
    let range = from % end..to % end;
    let tail = sound("Text::tail", || text.tail(&Vocabulary::Bytes, fraction))?.expect("a part");
    let corpus = sound("Corpus::of", || Corpus::of(text, &Vocabulary::Bytes, fraction, 2))?;
    let parts = corpus.map(|corpus| (corpus.train.tokens.len(), corpus.held_out.tokens.len()));
    let read = sound("Tokens::read", || tail.tokens.read(range.clone()))?;
    Ok(vec![whole, format!("{:?}", tail.tokens.to_vec()), format!("{parts:?}"), format!("{read:?}")])
}

#[test]
fn tokens_are_read_or_refused() {
    hold(200, &(vec(any::<u32>(), 0..6), 0..9usize, 0..9usize, any::<usize>()), |(ids, from, to, far)| {
        let tokens = Tokens::from(ids.clone());
        for range in [from..to, from..far, far..to] {
            let expected = ids.get(range.clone()).map(<[u32]>::to_vec);
            prop_assert_eq!(sound("Tokens::read", || tokens.read(range.clone()))?.ok(), expected.clone());
            prop_assert_eq!(sound("TokenSource::read", || TokenSource::from(&ids).read(range))?.ok(), expected);
        }
        Ok(())
    });
}

#[test]
fn texts_in_memory_are_split_or_refused() {
    let path = Path::new("a text");
    hold(200, &(".{0,12}", fraction(), any::<usize>()), |(text, fraction, length)| {
        let (first, last) = sound("split", || hecate_models::text::split(&text, fraction))?;
        prop_assert_eq!(format!("{first}{last}"), text.clone());
        let of = |length| sound("Corpus::new", || Corpus::new(path, &text, &Vocabulary::Bytes, fraction, length));
        let (short, _) = (of(length % 4)?, of(length)?);
        if let Ok(corpus) = short {
            prop_assert_eq!(corpus.train.bytes + corpus.held_out.bytes, text.len());
        }
        Ok(())
    });
}
