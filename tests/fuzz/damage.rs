//! Damage of texts and files: bits, bytes, runs of them, and numbers in JSON.

use proptest::{collection::vec, prelude::*, sample::Index};

/// What stands in the place of a number.
const NUMBERS: [&str; 14] = [
    "0",
    "-1",
    "1",
    "2",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "18446744073709551615",
    "18446744073709551616",
    "1e308",
    "1e999",
    "-0.0",
    "null",
    "\"\"",
];

/// One change.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    Flip(Index, u8),
    Set(Index, u8),
    Cut(Index),
    Remove(Index, usize),
    Insert(Index, Vec<u8>),
    Repeat(Index, usize),
    Number(Index, Index),
}

/// One change to three.
pub(crate) fn changes() -> impl Strategy<Value = Vec<Change>> {
    let at = any::<Index>;
    let change = prop_oneof![
        2 => (at(), 0..8u8).prop_map(|(at, bit)| Change::Flip(at, bit)),
        2 => (at(), any::<u8>()).prop_map(|(at, byte)| Change::Set(at, byte)),
        1 => at().prop_map(Change::Cut),
        2 => (at(), 1..40usize).prop_map(|(at, count)| Change::Remove(at, count)),
        1 => (at(), vec(any::<u8>(), 1..9)).prop_map(|(at, bytes)| Change::Insert(at, bytes)),
        1 => (at(), 1..60usize).prop_map(|(at, count)| Change::Repeat(at, count)),
        4 => (at(), at()).prop_map(|(at, number)| Change::Number(at, number)),
    ];
    vec(change, 1..4)
}

/// The bytes after all changes, which may cancel each other.
pub(crate) fn damaged(whole: &[u8], changes: &[Change]) -> Vec<u8> {
    changes.iter().fold(whole.to_vec(), |bytes, change| if bytes.is_empty() { bytes } else { apply(bytes, change) })
}

fn apply(mut bytes: Vec<u8>, change: &Change) -> Vec<u8> {
    let end = bytes.len();
    match change {
        Change::Flip(at, bit) => bytes[at.index(end)] ^= 1 << bit,
        Change::Set(at, byte) => bytes[at.index(end)] = *byte,
        Change::Cut(at) => bytes.truncate(at.index(end)),
        Change::Remove(at, count) => {
            let start = at.index(end);
            bytes.drain(start..end.min(start + count));
        }
        Change::Insert(at, new) => {
            let start = at.index(end);
            bytes.splice(start..start, new.iter().copied());
        }
        Change::Repeat(at, count) => {
            let start = at.index(end);
            let part = bytes[start..end.min(start + count)].to_vec();
            bytes.splice(start..start, part);
        }
        Change::Number(at, number) => {
            let places = numbers(&bytes);
            if !places.is_empty() {
                bytes.splice(at.get(&places).clone(), number.get(&NUMBERS).bytes());
            }
        }
    }
    bytes
}

/// Where runs of digits stand; weights of a file are no text, so only its start counts.
fn numbers(bytes: &[u8]) -> Vec<std::ops::Range<usize>> {
    let text = &bytes[..bytes.len().min(1 << 13)];
    let digit = |at: usize| text.get(at).is_some_and(u8::is_ascii_digit);
    let starts = (0..text.len()).filter(|&at| digit(at) && (at == 0 || !digit(at - 1)));
    starts.map(|start| start..(start..).find(|&at| !digit(at)).unwrap_or(text.len())).collect()
}
