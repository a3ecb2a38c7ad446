//! Folders that somebody damaged: a model or an error, never a panic, and no memory that the files do not account for.

use crate::{ADAPTED, MODELS, adapters, copy, folder, largest::largest};
use hecate_cpu::Cpu;
use hecate_models::{Error, LanguageModel, Opened, Random};
use std::{
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
};

/// Cases unless `HECATE_FUZZ` says how many.
const CASES: usize = 256;
/// Words that files consist of, and what stands for them elsewhere.
const WORDS: [&str; 24] = [
    "F32",
    "F16",
    "BF16",
    "I32",
    "U8",
    "F64",
    "null",
    "true",
    "false",
    "0",
    "-1",
    "1e99",
    "65536",
    "4294967296",
    "18446744073709551615",
    "\"silu\"",
    "\"llama\"",
    "{}",
    "[]",
    "weight",
    "model.",
    "q_proj",
    "full_attention",
    "proj",
];

/// Draws of one seed: a case that fails is found again.
struct Draws(Random);

impl Draws {
    fn below(&mut self, count: usize) -> usize {
        self.0.below(count.max(1)).expect("more than none")
    }

    /// Bytes changed in one of the ways that files get damaged.
    fn change(&mut self, bytes: &mut Vec<u8>) {
        // Headers and texts are where most can go wrong: half of the places are in the first bytes.
        let most = if self.below(2) == 0 { bytes.len().min(600) } else { bytes.len() };
        let at = self.below(most);
        match self.below(6) {
            0 => bytes.truncate(at),
            1 if at < bytes.len() => bytes[at] ^= 1 << self.below(8),
            2 => drop(bytes.splice(at..at, [self.below(256) as u8])),
            3 => bytes.extend(vec![0; self.below(40)]),
            4 if at < bytes.len() => drop(bytes.remove(at)),
            _ => self.exchange(bytes),
        }
    }

    /// One word for another where it is found: types, names and numbers.
    fn exchange(&mut self, bytes: &mut Vec<u8>) {
        let [old, new] = [0; 2].map(|_| WORDS[self.below(WORDS.len())].as_bytes());
        let found: Vec<_> = bytes.windows(old.len()).enumerate().filter(|(_, window)| *window == old).collect();
        if let Some(at) = found.get(self.below(found.len())).map(|(at, _)| *at) {
            bytes.splice(at..at + old.len(), new.iter().copied());
        }
    }
}

/// How many cases there are to be.
fn cases() -> usize {
    let asked = std::env::var("HECATE_FUZZ").map(|cases| cases.parse().expect("HECATE_FUZZ is a number of cases"));
    asked.unwrap_or(CASES)
}

/// All files of a folder, in order.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> =
        fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("a file").path()).collect();
    files.sort();
    files
}

/// Opens and reads what is there.
fn read(folder: &Path) -> Result<LanguageModel<Cpu>, Error> {
    Opened::open(&Cpu::with_threads(1)?, folder)?.model()
}

/// Scores, or what the values are not: some are no numbers any more.
fn run(model: &LanguageModel<Cpu>) -> Result<(), Error> {
    model.infer(&[1, 2, 3], 1, &mut model.cache(1)?).map(drop)
}

#[test]
fn damaged_folders_are_read_or_refused() {
    let cases = cases();
    let (mut draws, mut opened, mut refused) = (Draws(Random::new(24)), 0, 0);
    for case in 0..cases {
        let name = MODELS[case % MODELS.len()];
        let folder = copy(name);
        let before: u64 = files(folder.path()).iter().map(|path| fs::metadata(path).expect("a file").len()).sum();
        let all = files(folder.path());
        let path = &all[draws.below(all.len())];
        if draws.below(20) == 0 {
            fs::remove_file(path).expect("a file");
        } else {
            let mut bytes = fs::read(path).expect("a file");
            (0..=draws.below(3)).for_each(|_| draws.change(&mut bytes));
            fs::write(path, bytes).expect("room");
        }
        let (outcome, most) = largest(|| sound(|| read(folder.path())));
        let told = outcome.unwrap_or_else(|| panic!("case {case} of {name} panicked, {}", path.display()));
        // Elements of 16 bits are read into 32, and some files have a few bytes more than before.
        assert!(most as u64 <= 2 * before + 4096, "case {case} of {name}: {most} bytes at once, of {before} in all");
        let error = match told {
            Ok(model) => {
                opened += 1;
                sound(|| run(&model)).unwrap_or_else(|| panic!("case {case} of {name} panicked as it ran")).err()
            }
            Err(error) => {
                refused += 1;
                Some(error)
            }
        };
        assert!(error.is_none_or(|error| error.to_string().len() > 10), "case {case} of {name}");
    }
    // Where values alone are changed, a model is one still.
    assert!(opened > cases / 20 && refused > cases / 4, "{opened} opened, {refused} refused");
}

/// A GGUF file that is damaged: in its header, which is most of two of them, or anywhere.
#[test]
fn damaged_gguf_files_are_read_or_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, names) = (folder.path().join("model.gguf"), ["llama", "qwen3_5_text", "blocks"]);
    let whole = names.map(|name| fs::read(crate::gguf::file(&format!("{name}.gguf"))).expect("a file"));
    let (mut draws, mut opened, mut refused) = (Draws(Random::new(25)), 0, 0);
    for case in 0..cases() {
        let which = case % names.len();
        let mut bytes = whole[which].clone();
        (0..=draws.below(3)).for_each(|_| draws.change(&mut bytes));
        fs::write(&path, &bytes).expect("room");
        let (outcome, most) = largest(|| sound(|| read(&path)));
        let told = outcome.unwrap_or_else(|| panic!("case {case} of {} panicked", names[which]));
        // Elements of 4.5 bits are read into 32; a reader has 8192 bytes.
        assert!(most <= 8 * bytes.len() + 8192, "case {case}: {most} bytes at once, of {} in all", bytes.len());
        let words = sound(|| Opened::open(&Cpu::with_threads(1)?, &path)?.vocabulary().map(drop));
        words.unwrap_or_else(|| panic!("case {case} of {} panicked at its tokenizer", names[which])).ok();
        let error = match told {
            Ok(model) => {
                opened += 1;
                sound(|| run(&model)).unwrap_or_else(|| panic!("case {case} panicked as it ran")).err()
            }
            Err(error) => {
                refused += 1;
                Some(error)
            }
        };
        assert!(error.is_none_or(|error| error.to_string().len() > 10), "case {case}");
    }
    assert!(opened > cases() / 20 && refused > cases() / 4, "{opened} opened, {refused} refused");
}

/// As folders of models: an adapter or an error.
#[test]
fn damaged_adapters_are_read_or_refused() {
    let (mut draws, mut read, mut refused) = (Draws(Random::new(25)), 0, 0);
    for case in 0..cases() {
        let (name, copy) = (ADAPTED[case % ADAPTED.len()], adapters::copy(ADAPTED[case % ADAPTED.len()]));
        let path = &files(copy.path())[draws.below(2)];
        let mut bytes = fs::read(path).expect("a file");
        (0..=draws.below(3)).for_each(|_| draws.change(&mut bytes));
        fs::write(path, bytes).expect("room");
        let opened =
            Opened::open(&Cpu::with_threads(1).expect("a thread"), &folder(name)).expect("a folder of a model");
        let model = opened.model().expect("a model");
        match sound(|| opened.read_adapter(model, copy.path())) {
            Some(Ok(_)) => read += 1,
            Some(Err(error)) => {
                assert!(error.to_string().len() > 10, "case {case} of {name}");
                refused += 1;
            }
            None => panic!("case {case} of {name} panicked, {}", path.display()),
        }
    }
    assert!(read > cases() / 20 && refused > cases() / 4, "{read} read, {refused} refused");
}

/// What `work` gives; none where it panics.
fn sound<T>(work: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(work)).ok()
}
