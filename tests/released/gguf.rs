//! GGUF files: what is read of them, and what is refused. `make_gguf.py` made those in `gguf`.

use crate::scores::{Case, SCORES, TOKENS};
use hecate_cpu::Cpu;
use hecate_models::{Error, LanguageModel, Message, Opened};
use safetensors::SafeTensors;
use std::{fs, path::PathBuf};

/// Models of folders, as llama.cpp's converter writes them.
const CONVERTED: [&str; 2] = ["llama", "qwen3_5_text"];

/// A file beside this test.
pub(crate) fn file(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "released/gguf", name].iter().collect()
}

fn open(path: &std::path::Path) -> Result<Opened<Cpu>, Error> {
    Opened::open(&Cpu::new(), path)
}

/// What was converted computes what the folder's model does: names, turned rows, norms and decays are undone.
#[test]
fn converted_models_have_the_scores_and_gradients_of_the_familys_own_code() {
    for name in CONVERTED {
        let model = open(&file(&format!("{name}.gguf"))).and_then(|opened| opened.model()).expect(name);
        let case = Case::with(name, model);
        for ends in [&[TOKENS][..], &[1, 2, 5, 64, 70]] {
            let apart = case.apart(ends);
            assert!(apart <= SCORES, "{name}: {apart:.1e}");
        }
        case.check_gradients();
    }
}

/// Every format, bit for bit as llama.cpp's package `gguf` reads it.
#[test]
fn values_of_all_formats_are_those_of_gguf() {
    let opened = open(&file("blocks.gguf")).expect("a file");
    let types: Vec<_> = opened.types().into_keys().collect();
    let all = ["bf16", "f16", "f32", "q4_0", "q4_1", "q4_k", "q5_0", "q5_1", "q5_k", "q6_k", "q8_0"];
    assert_eq!((types, opened.model_type(), opened.layers()), (all.map(String::from).to_vec(), "llama", 2));
    let model = opened.model().expect("a model");
    let expected = fs::read(file("blocks.safetensors")).expect("what is expected");
    let expected = SafeTensors::deserialize(&expected).expect("a whole file");
    assert_eq!(model.parameters().len(), expected.len());
    for parameter in model.parameters().iter() {
        let values = parameter.value.to_f32().expect("values");
        let view = expected.tensor(&parameter.name).expect("an array");
        let (bytes, _) = view.data().as_chunks::<4>();
        let expected: Vec<f32> = bytes.iter().map(|x| f32::from_le_bytes(*x)).collect();
        // Of matrices there are the first and the last nine rows.
        let ends = match parameter.value.shape().axes() {
            [rows, width] if *rows > 9 => [&values[..9 * width], &values[(rows - 9) * width..]].concat(),
            [..] if expected.len() == 2 * values.len() => [&values[..], &values[..]].concat(),
            [..] => values,
        };
        let same = ends.len() == expected.len() && ends.iter().zip(&expected).all(|(x, y)| x == y);
        assert!(same, "{}", parameter.name);
    }
}

/// Tokens of texts are those that PyPI's `tokenizers` finds, and give the texts back.
#[test]
fn the_tokenizer_in_a_file_reads_as_its_own() {
    let opened = open(&file("blocks.gguf")).expect("a file");
    let vocabulary = opened.vocabulary().expect("a tokenizer");
    assert_eq!((vocabulary.size(), opened.ends().expect("end tokens")), (300, vec![2]));
    let texts = fs::read(file("texts.json")).expect("texts");
    let texts: Vec<(String, Vec<u32>)> = serde_json::from_slice(&texts).expect("texts");
    for (text, tokens) in texts {
        assert_eq!(vocabulary.encode(&text).expect("tokens"), tokens, "{text:?}");
        if !text.contains("<|") {
            assert_eq!(vocabulary.decode(&tokens).expect("a text"), text);
        }
    }
}

#[test]
fn a_file_is_read_and_not_written() {
    let opened = open(&file("llama.gguf")).expect("a file");
    let model: LanguageModel<Cpu> = opened.model().expect("a model");
    assert_eq!(opened.parameters(), model.parameters().elements() as u64);
    assert_eq!((opened.files(), opened.ignored().count(), opened.ends().expect("none")), (1, 0, vec![]));
    let folder = tempfile::tempdir().expect("a folder");
    let told = opened.save(&model, &folder.path().join("new")).expect_err("a GGUF file").to_string();
    assert!(told.contains("llama.gguf") && told.contains("read and not written"), "{told}");
    assert!(!folder.path().join("new").exists());
    let told = opened.vocabulary().expect_err("no tokenizer").to_string();
    assert!(told.contains("tokenizer.ggml.model"), "{told}");
}

/// `blocks.gguf` with these entries more.
fn with_entries(entries: &[Vec<u8>]) -> Vec<u8> {
    let (mut bytes, mut more) = (fs::read(file("blocks.gguf")).expect("a file"), entries.concat());
    // Arrays come after a multiple of 32 bytes, so a note fills them up to the next one.
    let note = |length: usize| entry("note", 8, &text(&"-".repeat(length)));
    more.extend(note((32 - (more.len() + note(0).len()) % 32) % 32));
    let count = u64::from_le_bytes(bytes[16..24].try_into().expect("a number")) + entries.len() as u64 + 1;
    bytes[16..24].copy_from_slice(&count.to_le_bytes());
    bytes.splice(24..24, more);
    bytes
}

/// A truth as an entry.
fn truth(key: &str, value: bool) -> Vec<u8> {
    entry(key, 7, &[value.into()])
}

/// A number as an entry.
fn number(key: &str, value: u32) -> Vec<u8> {
    entry(key, 4, &value.to_le_bytes())
}

const TEMPLATE: &str = "tokenizer.chat_template";
const BOS: &str = "tokenizer.ggml.bos_token_id";
const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";
const ADD_EOS: &str = "tokenizer.ggml.add_eos_token";

/// What is looked at in a file of these bytes.
fn looked_at<T>(bytes: &[u8], what: impl FnOnce(&Opened<Cpu>) -> Result<T, Error>) -> Result<T, String> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.gguf");
    fs::write(&path, bytes).expect("room");
    let found = open(&path).and_then(|opened| what(&opened));
    found.map_err(|error| {
        assert!(matches!(error, Error::Checkpoint { .. }) && error.to_string().contains("model.gguf"), "{error:?}");
        error.to_string()
    })
}

/// The template in a file writes conversations, and knows the texts of the special tokens that the file has numbers of.
#[test]
fn the_template_in_a_file_writes_conversations() {
    let source = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}\
                  {{ '>' if add_generation_prompt }}{{ unk_token }}{{ pad_token }}";
    let written = |entries: &[Vec<u8>]| {
        looked_at(&with_entries(entries), |opened| {
            let template = opened.chat_template()?;
            Ok((template.prompt(&[Message::new("user", "cat")])?, template.end().map(str::to_owned)))
        })
    };
    let own = entry(TEMPLATE, 8, &text(source));
    let end = Some("<|im_end|>".to_owned());
    assert_eq!(written(std::slice::from_ref(&own)), Ok(("user: cat<|im_end|>>".to_owned(), end.clone())));
    let more = [own.clone(), number(BOS, 1), number("tokenizer.ggml.unknown_token_id", 0)];
    assert_eq!(written(&more), Ok(("<|im_start|>user: cat<|im_end|>><|endoftext|>".to_owned(), end)));
    for (entries, told) in [
        (&[][..], "no chat template in this file"),
        (&[number(TEMPLATE, 3)], "`tokenizer.chat_template` is 3, expected a text"),
        (&[entry(TEMPLATE, 8, &text("a\n{% for %}"))], "not understood in line 2"),
        (&[entry(TEMPLATE, 8, &text(&"a".repeat((1 << 20) + 1)))], "1048577 bytes, expected at most 1048576"),
        (
            &[own.clone(), number(BOS, 300)],
            "`tokenizer.ggml.bos_token_id` is 300, expected the number of one of the 300",
        ),
        (&[own, number("tokenizer.ggml.padding_token_id", u32::MAX)], "padding_token_id` is 4294967295"),
    ] {
        let found = written(entries).expect_err(told);
        assert!(found.contains(told), "{found}");
    }
}

/// Around a prompt are the tokens that the file asks for; where it does not tell, tokenizers cut as Llama 3's begin a text.
#[test]
fn prompts_have_the_tokens_around_them_that_a_file_asks_for() {
    let told = |begins: Option<bool>, like: &str, entries: &[Vec<u8>]| {
        let mut bytes = with_entries(entries);
        let mut change = |old: &[u8], new: &[u8]| {
            let at = bytes.windows(old.len()).position(|window| window == old).expect("a place");
            bytes[at..at + old.len()].copy_from_slice(new);
        };
        match begins {
            Some(begins) => change(&truth(ADD_BOS, false), &truth(ADD_BOS, begins)),
            // Another key of the same length, which nobody knows.
            None => change(ADD_BOS.as_bytes(), b"tokenizer.ggml.add_bos_tokeN"),
        }
        change(&text("smollm"), &text(like));
        looked_at(&bytes, |opened| {
            let vocabulary = opened.vocabulary()?;
            let [plain, prompt] = [vocabulary.encode("cat")?, vocabulary.encode_prompt("cat")?];
            let at = prompt.windows(plain.len()).position(|window| window == plain).expect("the text");
            Ok([prompt[..at].to_vec(), prompt[at + plain.len()..].to_vec()])
        })
    };
    let begin = || number(BOS, 1);
    assert_eq!(told(Some(false), "smollm", &[begin()]), Ok([vec![], vec![]]));
    assert_eq!(told(Some(true), "smollm", &[begin()]), Ok([vec![1], vec![]]));
    assert_eq!(told(Some(true), "smollm", &[begin(), truth(ADD_EOS, true)]), Ok([vec![1], vec![2]]));
    assert_eq!(told(Some(false), "smollm", &[truth(ADD_EOS, true)]), Ok([vec![], vec![2]]));
    assert_eq!(told(None, "smollm", &[begin()]), Ok([vec![], vec![]]));
    assert_eq!(told(None, "llama3", &[begin()]), Ok([vec![1], vec![]]));
    assert_eq!(told(Some(false), "llama3", &[begin()]), Ok([vec![], vec![]]));
    assert_eq!(told(None, "llama3", &[]), Ok([vec![], vec![]]));
    for (begins, entries, why) in [
        (Some(true), &[][..], "`tokenizer.ggml.add_bos_token` is true, expected false: the file says no number"),
        (Some(true), &[number(BOS, 300)], "`tokenizer.ggml.bos_token_id` is 300"),
        (None, &[number(ADD_EOS, 1)], "`tokenizer.ggml.add_eos_token` is 1, expected true or false"),
    ] {
        let found = told(begins, "smollm", entries).expect_err(why);
        assert!(found.contains(why), "{found}");
    }
}

/// A part of a header: an entry's key, kind and value.
fn entry(key: &str, kind: u32, value: &[u8]) -> Vec<u8> {
    [&(key.len() as u64).to_le_bytes()[..], key.as_bytes(), &kind.to_le_bytes(), value].concat()
}

/// A text as a value.
fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

/// An array's part of a header.
fn array(name: &str, lengths: &[u64], kind: u32, at: u64) -> Vec<u8> {
    let lengths_bytes = lengths.iter().flat_map(|length| length.to_le_bytes()).collect::<Vec<_>>();
    let axes = (lengths.len() as u32).to_le_bytes();
    [&text(name)[..], &axes, &lengths_bytes, &kind.to_le_bytes(), &at.to_le_bytes()].concat()
}

/// A file of these parts, and 256 bytes of arrays.
fn of_parts(entries: &[Vec<u8>], arrays: &[Vec<u8>]) -> Vec<u8> {
    let counts = [arrays.len() as u64, entries.len() as u64].map(u64::to_le_bytes).concat();
    let mut bytes = [&b"GGUF\x03\0\0\0"[..], &counts, &entries.concat(), &arrays.concat()].concat();
    bytes.resize(bytes.len().next_multiple_of(32) + 256, 0);
    bytes
}

/// A file that is refused; the message says all of `told`.
#[track_caller]
fn refused(bytes: &[u8], told: &[&str]) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.gguf");
    fs::write(&path, bytes).expect("room");
    let message = open(&path).expect_err("a refusal").to_string();
    told.iter().chain(&["model.gguf"]).for_each(|told| assert!(message.contains(told), "{message}\nwithout {told}"));
}

#[test]
fn what_is_damaged_is_told_by_name() {
    let name = |value: &str| entry("general.architecture", 8, &text(value));
    let llama = || name("llama");
    refused(b"GG", &["no GGUF file"]);
    refused(b"PK\x03\x04 and more", &["no GGUF file"]);
    refused(b"GGUF\x01\0\0\0", &["version 1", "expected 2 or 3"]);
    refused(b"GGUF\0\0\0\x03", &["highest byte comes first"]);
    let mut many = of_parts(&[], &[]);
    many[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
    refused(&many, &["18446744073709551615 arrays"]);
    refused(&of_parts(&[entry("k", 8, &u64::MAX.to_le_bytes())], &[]), &["18446744073709551615 bytes of its header"]);
    refused(&of_parts(&[entry("k", 99, &[])], &[]), &["`k` is of the kind 99"]);
    let long = [&0u32.to_le_bytes()[..], &(1u64 << 62).to_le_bytes()].concat();
    refused(&of_parts(&[entry("k", 9, &long)], &[]), &["bytes of its header"]);
    let nested = [&9u32.to_le_bytes()[..], &1u64.to_le_bytes()].concat();
    refused(&of_parts(&[entry("k", 9, &nested)], &[]), &["`k` is of the kind 9"]);
    refused(&of_parts(&[llama(), llama()], &[]), &["`general.architecture` comes twice"]);
    let no_text = [&1u64.to_le_bytes()[..], &[0xff]].concat();
    refused(&of_parts(&[entry("k", 8, &no_text)], &[]), &["damaged", "`k`", "no UTF-8"]);
    refused(&of_parts(&[entry("general.alignment", 4, &12u32.to_le_bytes())], &[]), &["alignment of 12 bytes"]);
    refused(&of_parts(&[], &[array("a", &[4], 0, 0), array("a", &[4], 0, 32)]), &["`a` comes twice"]);
    refused(&of_parts(&[], &[array("a", &[9], 0, 0), array("b", &[4], 0, 32)]), &["`a` and `b` lie in each other"]);
    refused(&of_parts(&[], &[array("a", &[4], 0, 5)]), &["`a` is at 5", "multiple of 32"]);
    refused(&of_parts(&[], &[array("a", &[65], 0, 0)]), &["`a` has 260 bytes that are not all in the file"]);
    refused(&of_parts(&[], &[array("a", &[4], 0, u64::MAX - 31)]), &["not all in the file"]);
    refused(&of_parts(&[], &[array("a", &[u64::MAX, 2], 0, 0)]), &["more values than can be counted"]);
    refused(&of_parts(&[], &[array("a", &[4; 5], 0, 0)]), &["`a` has 5 axes"]);
    refused(&of_parts(&[], &[array("a", &[256, 1], 10, 0)]), &["`a` is stored as Q2_K", "Q4_K"]);
    refused(&of_parts(&[], &[array("a", &[256, 1], 77, 0)]), &["`a` is stored as type 77"]);
    refused(&of_parts(&[], &[array("a", &[33, 2], 8, 0)]), &["rows of 33 values", "blocks of 32"]);
    refused(&of_parts(&[], &[]), &["general.architecture", "missing"]);
    refused(&of_parts(&[name("gpt2")], &[]), &["`gpt2`", "`llama` or `qwen35`"]);
    refused(&of_parts(&[llama()], &[]), &["`llama.block_count` is missing"]);
}

/// The whole file with a value changed where `old` stands once.
fn changed(name: &str, old: &[u8], new: &[u8]) -> Vec<u8> {
    let mut bytes = fs::read(file(name)).expect("a file");
    let places: Vec<_> = bytes.windows(old.len()).enumerate().filter(|(_, window)| *window == old).collect();
    let [(at, _)] = places[..] else { panic!("{} places of {old:?}", places.len()) };
    bytes.splice(at..at + old.len(), new.iter().copied());
    bytes
}

#[test]
fn what_is_not_built_or_does_not_fit_is_told_by_name() {
    let set = |key: &str, old: u32, new: u32| changed("llama.gguf", &number(key, old), &number(key, new));
    refused(&set("llama.block_count", 2, 3), &["lacks `model.layers.2."]);
    refused(&set("llama.block_count", 2, 60_000), &["`num_hidden_layers` is 60000"]);
    refused(&set("llama.block_count", 2, 1), &["holds", "`blk.1.", "another family"]);
    refused(&set("llama.attention.key_length", 6, 4), &["llama.attention.value_length", "expected 4"]);
    refused(&set("llama.rope.dimension_count", 6, 4), &["llama.rope.dimension_count", "expected 6"]);
    refused(&set("llama.feed_forward_length", 23, 24), &["`blk.0.ffn_", "expected"]);
    refused(&set("llama.attention.head_count_kv", 1, 0), &["num_key_value_heads"]);
    let groups = |heads| number("qwen35.ssm.group_count", heads);
    refused(
        &changed("qwen3_5_text.gguf", &groups(3), &groups(1)),
        &["qwen35.ssm.time_step_rank", "in GGUF files value heads that share a key head"],
    );
    // Keys of the same length stand for others.
    let key = |new: &str| changed("llama.gguf", b"llama.attention.key_length", new.as_bytes());
    refused(&key("llama.attention.key_lengtH"), &["`llama.attention.key_lengtH`", "may change the model"]);
    let fixed = changed("llama.gguf", b"llama.vocab_size", b"llama.expert_cou");
    refused(&fixed, &["`llama.expert_cou`"]);
    refused(
        &changed("llama.gguf", b"blk.1.attn_v.weight", b"blk.0.attn_v.weight"),
        &["`blk.0.attn_v.weight` comes twice"],
    );
    refused(
        &changed("llama.gguf", b"blk.1.attn_v.weight", b"blk.1.attn_v.WEIGHT"),
        &["lacks `model.layers.1.self_attn.v_proj"],
    );
    let more = || changed("llama.gguf", b"output_norm.weight", b"output_norm.weighT");
    refused(&more(), &["lacks `model.norm.weight`"]);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.gguf");
    let told = |bytes: Vec<u8>| {
        fs::write(&path, bytes).expect("room");
        open(&path).and_then(|opened| opened.vocabulary()).expect_err("a refusal").to_string()
    };
    let words = told(changed("blocks.gguf", &text("smollm"), &text("jais-9")));
    assert!(words.contains("`tokenizer.ggml.pre` is `jais-9`"), "{words}");
    let kind = told(changed("blocks.gguf", &text("gpt2"), &text("rwkv")));
    assert!(kind.contains("`tokenizer.ggml.model` is `rwkv`"), "{kind}");
    let twice = told(changed("blocks.gguf", &text("A"), &text("B")));
    assert!(twice.contains("\"B\" as ") && twice.contains("different tokens"), "{twice}");
    // A folder does not do for a file.
    fs::write(folder.path().join("config.json"), fs::read(crate::folder("llama").join("config.json")).expect("a file"))
        .expect("room");
    let told = open(folder.path()).expect_err("no weights").to_string();
    assert!(told.contains("a GGUF file is named itself"), "{told}");
}
