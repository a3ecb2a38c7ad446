//! Noticing damage.

use super::plain::{self, Links};
use std::{io::Read, path::Path};

/// 64 bits over eight bytes at a time (the recurrence of FNV-1a), as hexadecimal digits. Each step is a bijection of
/// the running value, so any change within one group of eight bytes changes the result. Not for security.
pub fn checksum(bytes: &[u8]) -> String {
    let mut all = Checksum::new(bytes.len());
    all.take(bytes);
    all.digits()
}

/// A [`checksum`] of bytes that come one part after another.
#[derive(Debug)]
pub(crate) struct Checksum {
    hash: u64,
    /// Bytes that are not eight yet.
    rest: Vec<u8>,
}

impl Checksum {
    /// Before the first of `length` bytes.
    pub(crate) fn new(length: usize) -> Self {
        Self { hash: 0xcbf2_9ce4_8422_2325_u64 ^ length as u64, rest: Vec::new() }
    }

    /// The next bytes.
    pub(crate) fn take(&mut self, mut bytes: &[u8]) {
        // A group may begin in one part and end in the next.
        if !self.rest.is_empty() {
            let (head, tail) = bytes.split_at(bytes.len().min(8 - self.rest.len()));
            self.rest.extend(head);
            bytes = tail;
        }
        if let &[a, b, c, d, e, f, g, h] = self.rest.as_slice() {
            self.eat(u64::from_le_bytes([a, b, c, d, e, f, g, h]));
            self.rest.clear();
        }
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|word| self.eat(u64::from_le_bytes(*word)));
        self.rest.extend(rest);
    }

    /// What they come to.
    pub(crate) fn digits(mut self) -> String {
        std::mem::take(&mut self.rest).into_iter().for_each(|byte| self.eat(u64::from(byte)));
        format!("{:016x}", self.hash)
    }

    fn eat(&mut self, word: u64) {
        self.hash = (self.hash ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(29);
    }
}

/// Digits of a [`checksum`].
pub(crate) const DIGITS: usize = 16;

/// As [`checksum`], of all but the [`DIGITS`] bytes from `at`, where the file itself keeps it.
pub(crate) fn checksum_around(bytes: &[u8], at: usize) -> String {
    // Of both parts' checksums: neither part is copied.
    checksum((checksum(&bytes[..at]) + &checksum(&bytes[at + DIGITS..])).as_bytes())
}

/// Bytes of a file that are read at once.
const BLOCK: usize = 1 << 16;

/// The checksum of a plain file, which is read block by block; none where there is no such file.
pub fn checksum_of(path: &Path) -> Option<String> {
    let (mut file, found) = plain::open(path, Links::Refuse).ok()?;
    let mut all = Checksum::new(usize::try_from(found.len()).ok()?);
    let (mut block, mut left) = (vec![0; BLOCK], found.len());
    while left > 0 {
        let part = &mut block[..left.min(BLOCK as u64) as usize];
        file.read_exact(part).ok()?;
        all.take(part);
        left -= part.len() as u64;
    }
    Some(all.digits())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs and checkpoints of before are known by these.
    #[test]
    fn parts_are_the_whole_and_the_whole_is_what_it_was() {
        let bytes: Vec<u8> = (0..100).collect();
        assert_eq!(checksum(b""), "cbf29ce484222325");
        assert_eq!(checksum(b"abc"), "13e11e3877c2fe4f");
        for size in [1, 3, 7, 8, 9, 20, 64, 100] {
            let mut parts = Checksum::new(bytes.len());
            bytes.chunks(size).for_each(|part| parts.take(part));
            assert_eq!(parts.digits(), checksum(&bytes), "in parts of {size}");
        }
    }
}
