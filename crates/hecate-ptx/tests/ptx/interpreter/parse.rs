//! From text to instructions. What the writer never writes is an error here.

use super::scalar::{self, Compute};
use std::collections::HashMap;

/// An operand of an instruction.
#[derive(Clone, Debug)]
pub(crate) enum Operand {
    /// Number of a register among all of a thread's.
    Register(usize),
    /// Bits of a constant, or the address of an array in shared memory.
    Bits(u64),
    /// An address: a register and bytes after it.
    Address(usize, u64),
    /// Where a parameter begins among the bytes of all, and how many it has.
    Parameter(usize),
    /// A special register, such as `tid.x`.
    Special(String),
    /// Registers between braces.
    Vector(Vec<usize>),
    /// The instruction after a label.
    Label(usize),
}

/// What an instruction does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Action {
    End,
    Branch,
    /// Waits for all threads of the block.
    Barrier,
    /// Is done by a whole warp.
    Shuffle,
    LoadMatrices,
    Multiply,
    /// Moves elements of so many bytes, in shared memory or not.
    Load(bool, usize),
    Store(bool, usize),
    /// Starts, groups, or waits for copies.
    Copy,
    Commit,
    Wait,
    /// Makes one register of two.
    Pack,
    Compute(Compute),
}

/// An instruction, such as `@!%p1 add.rn.f32 %f3, %f1, %f2`.
#[derive(Clone, Debug)]
pub(crate) struct Instruction {
    /// Register of the predicate, and what it must be.
    pub(crate) guard: Option<(usize, bool)>,
    /// Words of the name between dots.
    pub(crate) name: Vec<String>,
    pub(crate) operands: Vec<Operand>,
    pub(crate) action: Action,
    /// As it is in the text, for messages.
    pub(crate) line: String,
}

/// A kernel.
#[derive(Debug, Default)]
pub(crate) struct Program {
    pub(crate) entry: String,
    /// Types of parameters, with their names.
    pub(crate) parameters: Vec<(String, String)>,
    pub(crate) block: [u32; 3],
    pub(crate) registers: usize,
    pub(crate) shared: usize,
    pub(crate) instructions: Vec<Instruction>,
    classes: HashMap<String, (usize, usize)>,
    arrays: HashMap<String, usize>,
    labels: HashMap<String, usize>,
}

impl Program {
    pub(crate) fn parse(text: &str) -> Self {
        let mut program = Self::default();
        let lines: Vec<&str> = text.lines().map(|line| line.split("//").next().unwrap_or_default().trim()).collect();
        // Labels are used before they are written, so the first pass takes everything but instructions.
        let mut count = 0;
        let bodies: Vec<&str> = lines.into_iter().filter(|line| program.declares(line, &mut count)).collect();
        program.instructions = bodies.into_iter().map(|line| program.instruction(line)).collect();
        program
    }

    /// Takes a line that is no instruction; says whether it is one.
    fn declares(&mut self, line: &str, count: &mut usize) -> bool {
        let words: Vec<&str> = line.split([' ', ',', ';']).filter(|word| !word.is_empty()).collect();
        match words.as_slice() {
            [] | [")" | "{" | "}"] | [".version" | ".target" | ".address_size", ..] => {}
            [".visible", ".entry", name] => self.entry = name.trim_end_matches('(').to_owned(),
            [".param", ty, name] => self.parameters.push(((*name).to_owned(), ty.trim_start_matches('.').to_owned())),
            [".reqntid", x, y, z] => self.block = [x, y, z].map(|axis| axis.parse().expect("a number of threads")),
            [".reg", _, list] => {
                let (prefix, length) = list.trim_end_matches('>').split_once('<').expect("a list of registers");
                let length = length.parse().expect("a number of registers");
                self.classes.insert(prefix.to_owned(), (self.registers, length));
                self.registers += length;
            }
            [".shared", ".align", align, ty, list] => self.array(align, ty, list),
            [label] if label.ends_with(':') => {
                self.labels.insert(label.trim_end_matches(':').to_owned(), *count);
            }
            _ => {
                *count += 1;
                return true;
            }
        }
        false
    }

    fn array(&mut self, align: &str, ty: &str, list: &str) {
        let (name, length) = list.trim_end_matches(']').split_once('[').expect("an array");
        let bits: usize = ty[2..].parse().expect("a width");
        self.shared = self.shared.next_multiple_of(align.parse().expect("an alignment"));
        self.arrays.insert(name.to_owned(), self.shared);
        self.shared += length.parse::<usize>().expect("a length") * bits / 8;
    }

    fn instruction(&self, line: &str) -> Instruction {
        let body = line.strip_suffix(';').unwrap_or_else(|| panic!("no end of `{line}`"));
        let (guard, body) = match body.strip_prefix('@') {
            None => (None, body),
            Some(rest) => {
                let (predicate, rest) = rest.split_once(' ').expect("an instruction after a predicate");
                let register = self.register(predicate.trim_start_matches('!')).expect("a predicate");
                (Some((register, !predicate.starts_with('!'))), rest)
            }
        };
        let (name, operands) = body.split_once(' ').unwrap_or((body, ""));
        let operands: Vec<_> = split(operands).into_iter().map(|operand| self.operand(operand)).collect();
        let name: Vec<String> = name.split('.').map(str::to_owned).collect();
        let words: Vec<&str> = name.iter().map(String::as_str).collect();
        let action = action(&words, &operands).unwrap_or_else(|| panic!("what is `{line}`?"));
        Instruction { guard, name, operands, action, line: line.to_owned() }
    }

    fn register(&self, name: &str) -> Option<usize> {
        let digits = name.find(|c: char| c.is_ascii_digit())?;
        let (first, length) = self.classes.get(&name[..digits])?;
        let id: usize = name[digits..].parse().ok()?;
        assert!(id < *length, "{name} is not declared");
        Some(first + id)
    }

    fn operand(&self, text: &str) -> Operand {
        if let Some(list) = text.strip_prefix('{') {
            let names = split(list.trim_end_matches('}'));
            return Operand::Vector(names.into_iter().map(|name| self.register(name).expect("a register")).collect());
        }
        if let Some(address) = text.strip_prefix('[') {
            let address = address.trim_end_matches(']');
            if let Some(at) = self.parameters.iter().position(|(name, _)| name == address) {
                return Operand::Parameter(at);
            }
            let (base, offset) = address.split_once('+').unwrap_or((address, "0"));
            return Operand::Address(self.register(base).expect("a register"), offset.parse().expect("an offset"));
        }
        if let Some(register) = self.register(text) {
            return Operand::Register(register);
        }
        if let Some(special) = text.strip_prefix('%') {
            return Operand::Special(special.to_owned());
        }
        if let Some(at) = self.labels.get(text) {
            return Operand::Label(*at);
        }
        let hex = ["0f", "0d", "0x"].iter().find_map(|prefix| text.strip_prefix(prefix));
        let bits = hex.map_or_else(|| text.parse().ok(), |digits| u64::from_str_radix(digits, 16).ok());
        let array = self.arrays.get(text).map(|&at| at as u64);
        Operand::Bits(bits.or(array).unwrap_or_else(|| panic!("what is `{text}`?")))
    }
}

fn action(name: &[&str], operands: &[Operand]) -> Option<Action> {
    // Bytes of an element, from the type at the end.
    let width = || name.last().and_then(|ty| ty.get(1..)?.parse::<usize>().ok()).map(|bits| bits / 8);
    Some(match name {
        ["ret"] => Action::End,
        ["bra"] => Action::Branch,
        ["bar", "sync"] => Action::Barrier,
        ["shfl", "sync", "bfly" | "idx", "b32"] => Action::Shuffle,
        ["ldmatrix", ..] => Action::LoadMatrices,
        ["mma", ..] => Action::Multiply,
        ["ld", space, ..] => Action::Load(*space == "shared", width()?),
        ["st", space, ..] => Action::Store(*space == "shared", width()?),
        ["cp", "async", "cg", "shared", "global"] => Action::Copy,
        ["cp", "async", "commit_group"] => Action::Commit,
        ["cp", "async", "wait_group"] => Action::Wait,
        ["mov", "b32"] if matches!(operands, [_, Operand::Vector(_)]) => Action::Pack,
        _ => Action::Compute(scalar::decode(name)?),
    })
}

/// Operands between commas; those of a vector stay together.
fn split(text: &str) -> Vec<&str> {
    let (mut parts, mut from, mut depth) = (Vec::new(), 0, 0);
    for (at, c) in text.char_indices() {
        match c {
            '{' | '[' => depth += 1,
            '}' | ']' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(text[from..at].trim());
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(text[from..].trim());
    parts.retain(|part| !part.is_empty());
    parts
}
