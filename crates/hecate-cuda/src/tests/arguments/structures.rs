//! Structures of C++, laid out as a compiler does it. Forms that no argument of a kernel has panic: they are to be taught
//! here first.

use super::macros::{Preprocessed, between};
use crate::arguments::{Member, Shape};
use std::collections::BTreeMap;

/// Numbers, by name and bytes; they begin at multiples of their size.
const NUMBERS: [(&str, usize); 9] = [
    ("u8", 1),
    ("u16", 2),
    ("u32", 4),
    ("u64", 8),
    ("int", 4),
    ("float", 4),
    ("double", 8),
    ("uint2", 8),
    // Reached through an address alone.
    ("void", 0),
];

/// A type as it lies in memory.
#[derive(Clone)]
pub(super) struct Laid {
    pub(super) shape: Shape,
    pub(super) bytes: usize,
    /// It begins at a multiple of so many bytes.
    align: usize,
}

/// What stands in a structure's definition.
struct Definition {
    /// Names of what a template leaves open.
    open: Vec<String>,
    /// The structure that it is based on, whose fields come first.
    base: Vec<String>,
    /// What it is aligned to at least.
    align: usize,
    body: Vec<String>,
}

/// All structures that a file of kernels knows.
pub(super) struct Structures<'a> {
    code: &'a Preprocessed,
    definitions: BTreeMap<String, Definition>,
    numbers: BTreeMap<String, usize>,
}

impl<'a> Structures<'a> {
    /// Those of a file and its headers.
    pub(super) fn new(code: &'a Preprocessed) -> Self {
        let mut all = Self { code, definitions: BTreeMap::new(), numbers: code.numbers.clone() };
        for words in &code.texts {
            for (at, word) in words.iter().enumerate() {
                match word.as_str() {
                    "struct" => all.define(words, at),
                    // `const u32 MOST = 16;`
                    "=" if words.get(at + 2).is_some_and(|end| end == ";" || end == ",") => {
                        if let Ok(number) = words[at + 1].parse() {
                            all.numbers.insert(words[at - 1].clone(), number);
                        }
                    }
                    _ => {}
                }
            }
        }
        all
    }

    /// Takes in the structure that begins at `at`, unless it is only named there.
    fn define(&mut self, words: &[String], at: usize) {
        let (mut align, mut name) = (1, at + 1);
        if ["__align__", "alignas"].contains(&words[name].as_str()) {
            let (bytes, end) = between(words, name + 1);
            (align, name) = (bytes.concat().concat().parse().expect("a number of bytes"), end);
        }
        let head: Vec<_> = words[name + 1..].iter().take_while(|word| *word != "{").cloned().collect();
        let (open, named) = (name + 1 + head.len(), head.is_empty() || head[0] == ":");
        if !named || head.contains(&";".to_owned()) {
            return;
        }
        let (_, end) = between(words, open);
        let (base, body) = (head.get(1..).unwrap_or_default().to_vec(), words[open + 1..end - 1].to_vec());
        let definition = Definition { open: left_open(&words[..at]), base, align, body };
        self.definitions.insert(words[name].clone(), definition);
    }

    /// The type of these words: a number, or a structure, with what its template leaves open.
    pub(super) fn laid(&self, of: &[String]) -> Laid {
        let name = of[0].as_str();
        if let Some(&(c, bytes)) = NUMBERS.iter().find(|number| number.0 == name) {
            return Laid { shape: Shape::Number(c, bytes), bytes, align: bytes.max(1) };
        }
        let definition = self.definitions.get(name).unwrap_or_else(|| panic!("what is `{name}`?"));
        let given = if of.len() > 1 { between(of, 1).0 } else { Vec::new() };
        let given: BTreeMap<_, _> = definition.open.iter().zip(given).collect();
        let mut all = Laid { shape: Shape::Structure(Vec::new()), bytes: 0, align: definition.align };
        let mut members = Vec::new();
        if !definition.base.is_empty() {
            let base = self.laid(&definition.base);
            members.push(Member { name: String::new(), at: 0, shape: Shape::InPlace(Box::new(base.shape)) });
            (all.bytes, all.align) = (base.bytes, base.align);
        }
        for (name, Laid { shape, bytes, align }) in self.fields(&definition.body, &given) {
            let at = all.bytes.next_multiple_of(align);
            (all.bytes, all.align) = (at + bytes, all.align.max(align));
            members.push(Member { name, at, shape });
        }
        Laid { shape: Shape::Structure(members), bytes: all.bytes.next_multiple_of(all.align), ..all }
    }

    /// Names and types of all fields.
    fn fields(&self, body: &[String], given: &BTreeMap<&String, Vec<String>>) -> Vec<(String, Laid)> {
        statements(body).iter().flat_map(|words| self.declared(words, given)).collect()
    }

    /// Those of one declaration: `const float *m, *s`.
    fn declared(&self, words: &[String], given: &BTreeMap<&String, Vec<String>>) -> Vec<(String, Laid)> {
        let written = words[0] != "const";
        let words = &words[usize::from(!written)..];
        // The type, with what stands in its angle brackets.
        let end = if words[1] == "<" { between(words, 1).1 } else { 1 };
        let of = given.get(&words[0]).cloned().unwrap_or_else(|| words[..end].to_vec());
        let declared = words[end..].split(|word| word == ",");
        declared.map(|one| self.named(one, &of, written)).collect()
    }

    /// One of them: `*m`, or `gates[MOST]`.
    fn named(&self, words: &[String], of: &[String], written: bool) -> (String, Laid) {
        let stars = words.iter().take_while(|word| *word == "*").count();
        let mut laid = self.laid(of);
        if stars > 0 {
            assert_eq!(stars, 1, "{words:?}");
            let of = if let Shape::Structure(_) = laid.shape { Shape::Entry(laid.bytes) } else { laid.shape };
            laid = Laid { shape: Shape::Address { of: Box::new(of), written }, bytes: 8, align: 8 };
        }
        let (name, rest) = words[stars..].split_first().expect("a name");
        // The last count is that of neighbours.
        let mut counts: Vec<usize> = rest.chunks(3).map(|count| self.count(count)).collect();
        while let Some(count) = counts.pop() {
            let Laid { shape, bytes, align } = laid;
            laid =
                Laid { shape: Shape::Array { of: Box::new(shape), count, step: bytes }, bytes: count * bytes, align };
        }
        (name.clone(), laid)
    }

    /// The number in brackets.
    fn count(&self, words: &[String]) -> usize {
        let [open, count, close] = words else { panic!("{words:?} is no count of elements") };
        assert_eq!([open.as_str(), close], ["[", "]"], "{words:?}");
        let known = || *self.numbers.get(count).unwrap_or_else(|| panic!("how many are `{count}`?"));
        count.parse().unwrap_or_else(|_| known())
    }

    /// Kernels of the file and what they take.
    pub(super) fn kernels(&self) -> BTreeMap<String, Laid> {
        self.code.kernels().into_iter().map(|(kernel, of)| (kernel, self.laid(&of))).collect()
    }
}

/// Names of what the template leaves open whose head ends these words; none without one.
fn left_open(before: &[String]) -> Vec<String> {
    let head = before.iter().rposition(|word| word == "template").map(|at| &before[at + 1..]);
    let Some(head) = head.filter(|head| head.last().is_some_and(|last| last == ">")) else { return Vec::new() };
    let (parameters, end) = between(head, 0);
    // Something else was between.
    if end < head.len() {
        return Vec::new();
    }
    parameters.into_iter().filter_map(|mut parameter| parameter.pop()).collect()
}

/// Declarations of fields. Functions, constants and types inside are left out.
fn statements(body: &[String]) -> Vec<Vec<String>> {
    let (mut all, mut one, mut at) = (Vec::new(), Vec::new(), 0);
    while let Some(word) = body.get(at) {
        at += 1;
        match word.as_str() {
            // A function's body, or a type's. A field with a value of its own would be lost.
            "{" => {
                assert!(!one.contains(&"=".to_owned()), "{one:?}");
                at = between(body, at - 1).1;
                one.clear();
            }
            ";" => all.push(std::mem::take(&mut one)),
            _ => one.push(word.clone()),
        }
    }
    let other = ["static", "using", "typedef", "enum", "template", "struct"];
    let field =
        |one: &Vec<String>| !one.is_empty() && !other.contains(&one[0].as_str()) && !one.contains(&"(".to_owned());
    all.into_iter().filter(field).collect()
}
