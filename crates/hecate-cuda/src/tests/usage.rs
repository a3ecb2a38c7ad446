//! Registers and spills of kernels, as the compiler counts them and as `usage/*.tsv` records them.

use crate::{compile::options, source::KernelSource};
use std::{collections::BTreeMap, fs, path::PathBuf};

/// What the compiler says of a kernel.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Usage {
    /// Its name.
    pub(super) kernel: String,
    /// Of a thread; none where the log does not say.
    pub(super) registers: Option<u32>,
    /// Bytes, stores and loads together, of its function that spills most.
    pub(super) spilled: Option<u32>,
}

/// Registers and spills of each kernel, from the log of `--ptxas-options=-v`.
/// It is read line by line, since the compiler has no other way to tell it.
pub(super) fn usage(log: &str) -> Vec<Usage> {
    let number_before = |line: &str, what: &str| {
        let before = line.split(what).next().filter(|before| before.len() < line.len())?;
        before.split_whitespace().next_back()?.parse::<u32>().ok()
    };
    let mut all: Vec<Usage> = Vec::new();
    for line in log.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            let kernel = rest.split('\'').next().unwrap_or_default().to_owned();
            all.push(Usage { kernel, registers: None, spilled: None });
        }
        let Some(last) = all.last_mut() else { continue };
        if let Some(stores) = number_before(line, " bytes spill stores") {
            // A kernel's functions that are not inlined have such a line each.
            last.spilled = last.spilled.max(Some(stores + number_before(line, " bytes spill loads").unwrap_or(0)));
        }
        last.registers = number_before(line, " registers").or(last.registers);
    }
    all
}

/// What was compiled for one architecture: for each file its code's name, and the usage of its kernels.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Record {
    /// By the file's name.
    pub(super) files: BTreeMap<String, (String, Vec<Usage>)>,
}

impl Record {
    /// A name for the code of a file and for how it is compiled.
    pub(super) fn code(source: &KernelSource, architecture: &str) -> String {
        source.hash(options(architecture, None).iter().map(String::as_str))
    }

    /// What is recorded of a file, where it is of this code.
    /// None where the code or the compiler's options changed since.
    pub(super) fn of(&self, source: &KernelSource, architecture: &str) -> Option<&[Usage]> {
        let (code, all) = self.files.get(source.name)?;
        (*code == Self::code(source, architecture)).then_some(all)
    }

    /// Where it is kept.
    pub(super) fn path(architecture: &str) -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("src/tests/usage/{architecture}.tsv"))
    }

    /// The record of an architecture; an empty one where there is none yet.
    pub(super) fn read(architecture: &str) -> Self {
        fs::read_to_string(Self::path(architecture)).map(|text| Self::from_text(&text)).unwrap_or_default()
    }

    /// A line for each file and, after a tab, one for each of its kernels. What is no number is none.
    pub(super) fn from_text(text: &str) -> Self {
        let mut files: BTreeMap<String, (String, Vec<Usage>)> = BTreeMap::new();
        let mut last = None;
        for line in text.lines() {
            let words: Vec<_> = line.split('\t').collect();
            match (words[..].as_ref(), &last) {
                (["", kernel, registers, spilled], Some(file)) => {
                    let usage = Usage {
                        kernel: (*kernel).to_owned(),
                        registers: registers.parse().ok(),
                        spilled: spilled.parse().ok(),
                    };
                    files.entry(String::clone(file)).or_default().1.push(usage);
                }
                ([file, code], _) => {
                    files.insert((*file).to_owned(), ((*code).to_owned(), Vec::new()));
                    last = Some((*file).to_owned());
                }
                _ => panic!("`{line}` is neither a file and its code nor a kernel, its registers and its spills"),
            }
        }
        Self { files }
    }

    /// The text that [`Record::from_text`] reads.
    pub(super) fn text(&self) -> String {
        let number = |number: Option<u32>| number.map_or("?".to_owned(), |number| number.to_string());
        let kernel =
            |usage: &Usage| format!("\t{}\t{}\t{}\n", usage.kernel, number(usage.registers), number(usage.spilled));
        let file = |(name, (code, all)): (&String, &(String, Vec<Usage>))| {
            format!("{name}\t{code}\n{}", all.iter().map(kernel).collect::<String>())
        };
        self.files.iter().map(file).collect()
    }
}

/// The log is read as ptxas writes it.
#[test]
fn logs_are_read() {
    let log = "ptxas info    : Compiling entry function 'a' for 'sm_80'\n\
               ptxas         .     8 bytes stack frame, 16 bytes spill stores, 4 bytes spill loads\n\
               ptxas info    : Used 32 registers, used 0 barriers\n\
               ptxas info    : Function properties for f\n\
               ptxas         .     0 bytes stack frame, 0 bytes spill stores, 8 bytes spill loads\n\
               ptxas info    : Compiling entry function 'b' for 'sm_80'\n";
    let all = usage(log);
    assert_eq!((all[0].kernel.as_str(), all[0].registers, all[0].spilled), ("a", Some(32), Some(20)));
    assert_eq!((all[1].kernel.as_str(), all[1].registers, all[1].spilled), ("b", None, None));
    // The same from a record.
    let record = Record { files: [("file".to_owned(), ("code".to_owned(), all))].into() };
    assert_eq!(Record::from_text(&record.text()), record);
    assert_eq!(record.text(), "file\tcode\n\ta\t32\t20\n\tb\t?\t?\n");
}
