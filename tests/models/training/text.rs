//! Text: reading, splitting, windows, tokens and back.

use hecate_models::{
    Error, Vocabulary,
    text::{Corpus, IN_MEMORY, Identity, JsonLines, Text, Windows, read_text, split},
};
use proptest::prelude::*;
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

fn why(result: hecate_models::Result<impl std::fmt::Debug>) -> String {
    match result {
        Err(error @ Error::Text { .. }) => error.to_string(),
        other => panic!("{other:?} is not about a text"),
    }
}

#[test]
fn unusable_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("text.txt");
    assert!(why(read_text(&path)).contains("no such file"));
    assert!(matches!(read_text(folder.path()), Err(Error::Io { .. })));
    fs::write(&path, "").unwrap();
    assert!(why(read_text(&path)).contains("empty"));
    fs::write(&path, b"caf\xc3\xa9 caf\xe9 latin").unwrap();
    let message = why(read_text(&path));
    assert!(message.contains("byte 9") && message.contains("text.txt"), "{message}");
    fs::write(&path, "caf\u{e9}").unwrap();
    assert_eq!(read_text(&path).unwrap(), "caf\u{e9}");
}

#[test]
fn a_corpus_needs_a_sequence_to_learn_and_something_to_measure() {
    let corpus =
        |text: &str, fraction, length| Corpus::new(Path::new("a.txt"), text, &Vocabulary::Bytes, fraction, length);
    let message = why(corpus(&"x".repeat(50), 0.1, 45));
    assert!(message.contains("45 tokens") && message.contains("46"), "{message}");
    assert!(why(corpus("0123456789", 0.1, 4)).contains("held-out"));
    for fraction in [0.0, 1.0, -1.0, f32::NAN] {
        assert!(matches!(corpus("0123456789", fraction, 2), Err(Error::Config { .. })));
    }
    assert!(why(corpus("0123456789", 0.1, usize::MAX)).contains("too short"));
    let corpus = corpus(&"x".repeat(50), 0.1, 44).unwrap();
    assert_eq!((corpus.train.tokens.len(), corpus.held_out.tokens.len()), (45, 5));
}

/// A folder with texts, and what [`Text::open`] makes of it.
fn folder() -> (tempfile::TempDir, &'static str) {
    let folder = tempfile::tempdir().unwrap();
    let files: [(&str, &[u8]); 8] = [
        ("b.txt", "b \u{20ac}\n".as_bytes()),
        ("a/z.txt", b"last of a"),
        ("a/deep/x.md", b"deep"),
        ("a/.git/config", b"hidden"),
        (".hidden", b"hidden"),
        ("c.bin", b"text\0and more"),
        ("d.latin", b"caf\xe9"),
        ("e.txt", b""),
    ];
    for (name, content) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    (folder, "deep\nlast of a\nb \u{20ac}\n")
}

/// All of a folder by name, in memory and on the disk.
fn both(paths: &[PathBuf]) -> [Text; 2] {
    [IN_MEMORY, 0].map(|limit| Text::open(paths, limit).unwrap())
}

#[test]
fn a_folder_is_the_text_of_its_files() {
    let (folder, expected) = folder();
    for text in both(&[folder.path().to_owned()]) {
        assert_eq!(text.whole().unwrap(), expected);
        assert_eq!((text.bytes(), text.files(), text.identity()), (expected.len(), 3, &Identity::of(expected)));
        let skipped: Vec<_> = text.skipped().iter().map(|path| path.file_name().unwrap()).collect();
        assert_eq!(skipped, ["c.bin", "d.latin", "e.txt"]);
        text.save(&folder.path().join(".saved")).unwrap();
        assert_eq!(fs::read_to_string(folder.path().join(".saved")).unwrap(), expected);
    }
    // In the order in which they are named; a file that is named is taken, or refused, as it is.
    let named = |name: &str| folder.path().join(name);
    for text in both(&[named("c.bin"), named("a/z.txt")]) {
        assert_eq!(text.whole().unwrap(), "text\0and more\nlast of a");
    }
    for limit in [IN_MEMORY, 0] {
        assert!(why(Text::open(&[named("b.txt"), named("d.latin")], limit)).contains("byte 3"));
        assert!(why(Text::open(&[named("e.txt")], limit)).contains("empty"));
        assert!(why(Text::open(&[named("none")], limit)).contains("no such file"));
        assert!(why(Text::open(&[named("a/.git/none"), named("b.txt")], limit)).contains("no such file"));
    }
    fs::create_dir(named("nothing")).unwrap();
    assert!(why(Text::open(&[named("nothing")], IN_MEMORY)).contains("no text in it"));
}

#[test]
fn a_text_on_the_disk_gives_the_windows_that_it_gives_in_memory() {
    let (folder, _) = folder();
    // Some 60 KB, cut inside of a character.
    fs::write(folder.path().join("f.txt"), "\u{20ac}uro ".repeat(9_000)).unwrap();
    let corpora = both(&[folder.path().to_owned()]).map(|text| Corpus::of(&text, &Vocabulary::Bytes, 0.1, 16).unwrap());
    let [memory, disk] = &corpora;
    assert_eq!(memory.identity, disk.identity);
    assert_eq!(memory.held_out.tokens.to_vec().unwrap(), disk.held_out.tokens.to_vec().unwrap());
    assert_eq!(memory.train.tokens.to_vec().unwrap(), disk.train.tokens.to_vec().unwrap());
    let drawn = corpora.each_ref().map(|corpus| Windows::new(3).draw(&corpus.train.tokens, 50, 40).unwrap());
    assert_eq!(drawn[0], drawn[1]);
    // Tokens of a tokenizer are the same too.
    let [memory, disk] = both(&[folder.path().to_owned()]).map(|text| text.tail(&tokenizer(), 0.01).unwrap());
    assert_eq!((memory.tokens.to_vec().unwrap(), memory.bytes), (disk.tokens.to_vec().unwrap(), disk.bytes));
}

#[test]
fn characters_between_two_blocks_are_whole_and_flaws_are_found_there() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("long.txt");
    // The euro sign lies across the end of the first block of a megabyte.
    let text = "x".repeat((1 << 20) - 1) + "\u{20ac}" + &"y".repeat(100);
    fs::write(&path, &text).unwrap();
    let disk = Text::open(std::slice::from_ref(&path), 0).unwrap();
    assert_eq!((disk.identity(), disk.whole().unwrap() == text), (&Identity::of(&text), true));
    let mut bytes = text.into_bytes();
    bytes[(1 << 20) + 1] = b'x';
    fs::write(&path, &bytes).unwrap();
    assert!(why(Text::open(std::slice::from_ref(&path), 0)).contains("byte 1048575"));
    // Cut off inside of a character.
    fs::write(&path, &bytes[..1 << 20]).unwrap();
    assert!(why(Text::open(&[path], 0)).contains("byte 1048575"));
}

#[test]
fn a_text_that_changes_on_the_disk_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("text.txt");
    fs::write(&path, "a text that will change").unwrap();
    let stream = Text::open(std::slice::from_ref(&path), 0).unwrap().tail(&Vocabulary::Bytes, 1.0).unwrap();
    assert_eq!(stream.tokens.read(2..6).unwrap(), b"text".map(u32::from));
    fs::write(&path, "a text that has changed").unwrap();
    // Of the same length: only the time tells.
    let later = std::time::SystemTime::now() + std::time::Duration::from_secs(9);
    fs::File::options().append(true).open(&path).unwrap().set_modified(later).unwrap();
    assert!(why(stream.tokens.read(2..6)).contains("changed"));
    fs::remove_file(&path).unwrap();
    assert!(matches!(stream.tokens.read(2..6), Err(Error::Io { .. })));
    assert!(matches!(stream.tokens.read(2..99), Err(Error::Config { .. })));
}

/// Documents of JSON lines, of a file, of a folder and of a text, with borders between all.
#[test]
fn lines_of_json_are_documents() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, content: &str| {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    };
    let first = write("b.jsonl", "\u{feff}{\"text\": \"one\\ntwo\", \"id\": 3}\n\n{\"text\": \"three\"}\r\n");
    write("a/c.ndjson", "{\"text\": \"zero\"}");
    write("a/readme.md", "no JSON");
    let lines = |field: &str| JsonLines { field: field.to_owned(), border: "<|>".to_owned() };
    let text = |paths: &[PathBuf]| lines("text").open(paths, IN_MEMORY).unwrap();
    assert_eq!(text(std::slice::from_ref(&first)).whole().unwrap(), "one\ntwo<|>three");
    let both = text(&[folder.path().to_owned()]);
    assert_eq!((both.whole().unwrap().as_str(), both.files()), ("zero<|>one\ntwo<|>three", 2));
    let chat = "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}, {\"role\": \"bot\", \"content\": \"ho\"}]}";
    let read = lines("messages").text(Path::new("standard input"), chat).unwrap();
    assert_eq!(read.whole().unwrap(), "user: hi\nbot: ho");
    for (field, content, expected) in [
        ("text", "{\"text\": \"a\"}\n{\"body\": \"b\"}", "line 2: no field `text`; there are body"),
        ("text", "{\"text\": 3}", "line 1: `text` is neither"),
        ("text", "{\"text\": [{\"role\": \"user\"}]}", "line 1: `text` is neither"),
        ("text", "[1]", "line 1: no object"),
        ("text", "{\"text\": \"a\"", "line 1: no JSON"),
        ("text", "\n", "no document in it"),
    ] {
        let path = write("bad.jsonl", content);
        let told = why(lines(field).open(&[path], IN_MEMORY));
        assert!(told.contains(expected) && told.contains("bad.jsonl"), "{told}");
    }
    assert!(why(lines("text").open(&[folder.path().join("none")], IN_MEMORY)).contains("no such file"));
    fs::create_dir(folder.path().join("empty")).unwrap();
    assert!(why(lines("text").open(&[folder.path().join("empty")], IN_MEMORY)).contains(".jsonl"));
    assert!(why(lines("text").open(&[first], 3)).contains("held in memory"));
}

/// A mark in front and lines of another system are there to be told of.
#[test]
fn oddities_of_a_text_are_found() {
    let of = |text: &str| Text::new("a text", text.to_owned()).oddities().unwrap();
    assert_eq!(of("plain\ntext\rhere"), (false, 0));
    assert_eq!(of("\u{feff}one\r\ntwo\r\n"), (true, 2));
}

#[test]
fn identity_tells_texts_apart() {
    let text = "the quick brown fox jumps";
    for at in 0..text.len() {
        let mut other = text.as_bytes().to_vec();
        other[at] ^= 1;
        assert_ne!(Identity::of(text), Identity::of(std::str::from_utf8(&other).unwrap()));
    }
    assert_eq!(Identity::of(text), Identity::of(text));
    assert_ne!(Identity::of("a\0"), Identity::of("a"));
}

#[test]
fn windows_are_followed_by_their_targets_and_go_on_after_saving() {
    let text: Vec<u32> = (0..100).collect();
    let mut windows = Windows::new(1);
    let mut starts = std::collections::BTreeSet::new();
    for _ in 0..200 {
        let (inputs, targets) = windows.draw(&text, 3, 10).unwrap();
        assert!(inputs.iter().zip(&targets).all(|(input, target)| input + 1 == *target));
        starts.extend(inputs.chunks(10).map(|window| window[0]));
    }
    assert_eq!((starts.first(), starts.last()), (Some(&0), Some(&89)), "both ends of the text are learned");
    let mut loaded: Windows = serde_json::from_str(&serde_json::to_string(&windows).unwrap()).unwrap();
    assert_eq!(loaded.draw(&text, 5, 7).unwrap(), windows.draw(&text, 5, 7).unwrap());
    assert!(matches!(windows.draw(&text[..10], 1, 10), Err(Error::Config { .. })));
    assert!(matches!(windows.draw(&text, usize::MAX, 10), Err(Error::Config { .. })));
}

proptest! {
    #[test]
    fn splitting_keeps_every_character(text in "\\PC{1,40}", fraction in 0.0_f32..1.0) {
        let (head, tail) = split(&text, fraction);
        prop_assert_eq!(format!("{head}{tail}"), text.clone());
        prop_assert!(tail.len() as f32 >= (text.len() as f32 * fraction).floor());
    }

    #[test]
    fn bytes_decode_as_text_does(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
        let tokens: Vec<u32> = bytes.iter().map(|&byte| byte.into()).collect();
        let decoded = Vocabulary::Bytes.decode(&tokens).unwrap();
        prop_assert_eq!(decoded, String::from_utf8_lossy(&bytes).into_owned());
    }

    #[test]
    fn tokens_come_back_as_their_text(text in "\\PC{0,40}") {
        for vocabulary in [Vocabulary::Bytes, tokenizer()] {
            let tokens = vocabulary.encode(&text).unwrap();
            prop_assert_eq!(vocabulary.decode(&tokens).unwrap(), text.clone());
        }
    }
}

#[test]
fn text_may_end_with_what_stands_for_lost_characters() {
    for vocabulary in [Vocabulary::Bytes, tokenizer()] {
        let text = "a\u{fffd}\u{fffd}";
        assert_eq!(vocabulary.decode(&vocabulary.encode(text).unwrap()).unwrap(), text);
    }
}

#[test]
fn half_a_character_waits_for_the_rest() {
    for vocabulary in [Vocabulary::Bytes, tokenizer()] {
        let mut decoder = vocabulary.decoder();
        let tokens = vocabulary.encode("a\u{20ac}b").unwrap();
        let pieces: Vec<String> = tokens.iter().map(|&token| decoder.push(token).unwrap()).collect();
        assert_eq!(pieces, ["a", "", "", "\u{20ac}", "b"]);
        decoder.push(tokens[1]).unwrap();
        assert_eq!(decoder.finish().unwrap(), "\u{fffd}");
        assert!(matches!(decoder.push(100_000), Err(Error::Config { .. })));
    }
}

#[test]
fn a_file_that_is_no_tokenizer_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer.json");
    assert!(matches!(Vocabulary::from_file(&path), Err(Error::Io { .. })));
    fs::write(&path, "{\"version\": 3}").unwrap();
    assert!(matches!(Vocabulary::from_file(&path), Err(Error::Tokenizer { .. })));
}

/// Whatever is done to a tokenizer's file, it is read or refused; texts are then tokens or an error. Nothing panics.
#[test]
fn a_damaged_tokenizer_is_refused() {
    let whole = tokenizer_json();
    let text = String::from_utf8(whole.clone()).unwrap();
    let (mut refused, mut taken, mut panics) = (0, 0, 0);
    let mut read = |content: &[u8]| match Vocabulary::from_json(Path::new("tokenizer.json"), content) {
        Err(error) => {
            refused += 1;
            assert!(matches!(error, Error::Tokenizer { .. }), "{error:?}");
            panics += usize::from(error.to_string().contains("gave up"));
        }
        Ok(vocabulary) => {
            taken += 1;
            let _ = vocabulary.encode("a\u{20ac}b").map(|tokens| vocabulary.decode(&tokens));
        }
    };
    for at in (0..whole.len()).step_by(3) {
        for bits in [0x01, 0x10, 0x02] {
            let mut damaged = whole.clone();
            damaged[at] ^= bits;
            read(&damaged);
        }
        read(&whole[..at]);
    }
    // Types that the library does not expect where it unwraps.
    for (from, to) in [
        ("\"ByteLevel\"", "\"Sequence\""),
        ("\"BPE\"", "\"WordPiece\""),
        ("\"BPE\"", "\"Unigram\""),
        ("\"merges\":[]", "\"merges\":[[\"a\"]]"),
        ("\"merges\":[]", "\"merges\":[\"a b\"]"),
        ("\"added_tokens\":[]", "\"added_tokens\":[{}]"),
        // A merge of a token that is shorter than the prefix that it should begin with.
        ("\"merges\":[]", "\"merges\":[[\"a\",\"a\"]],\"continuing_subword_prefix\":\"xx\""),
    ] {
        assert!(text.contains(from), "{from}");
        read(text.replace(from, to).as_bytes());
    }
    for whole in ["[]", "null", "3", "{\"model\":{}}", "{\"model\":{\"vocab\":3}}"] {
        read(whole.as_bytes());
    }
    // The library panics on some of them, which is what is caught.
    assert!(refused > 1000 && taken > 10 && panics > 0, "{refused} refused, {taken} taken, {panics} panics");
}

/// Tokenizers for classifiers cut texts after so many tokens, or fill them up to as many.
#[test]
fn a_tokenizer_neither_cuts_nor_fills_up() {
    let text = String::from_utf8(tokenizer_json()).unwrap();
    let cut = "{\"direction\":\"Right\",\"max_length\":4,\"strategy\":\"LongestFirst\",\"stride\":0}";
    let fill = "{\"strategy\":{\"Fixed\":99},\"direction\":\"Right\",\"pad_to_multiple_of\":null,\"pad_id\":0,\
                \"pad_type_id\":0,\"pad_token\":\"!\"}";
    let text = text.replace("\"truncation\":null", &format!("\"truncation\":{cut}"));
    let text = text.replace("\"padding\":null", &format!("\"padding\":{fill}"));
    assert!(text.contains("max_length") && text.contains("Fixed"));
    let vocabulary = Vocabulary::from_json(Path::new("tokenizer.json"), text.as_bytes()).unwrap();
    assert_eq!(vocabulary.encode("longer than four").unwrap().len(), 16);
}

/// A byte-level tokenizer in the form of GPT-2's, without merges.
fn tokenizer() -> Vocabulary {
    Vocabulary::from_json(Path::new("tokenizer.json"), &tokenizer_json()).unwrap()
}

/// Its file.
pub(super) fn tokenizer_json() -> Vec<u8> {
    let printable = |byte: u32| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut spare = 256..;
    let symbol = |byte: u32| if printable(byte) { byte } else { spare.next().unwrap() };
    let symbols = (0..256).map(symbol).map(|code| char::from_u32(code).unwrap().to_string());
    let vocabulary: BTreeMap<String, u32> = symbols.zip(0..).collect();
    let bytes = serde_json::json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false
    });
    let json = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": bytes, "post_processor": null, "decoder": bytes,
        "model": { "type": "BPE", "vocab": vocabulary, "merges": [] }
    });
    json.to_string().into_bytes()
}
