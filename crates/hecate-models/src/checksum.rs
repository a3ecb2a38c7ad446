//! Noticing damage.

/// 64 bits over eight bytes at a time (the recurrence of FNV-1a), as hexadecimal digits. Each step is a bijection of
/// the running value, so any change within one group of eight bytes changes the result. Not for security.
pub(crate) fn checksum(bytes: &[u8]) -> String {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64 ^ bytes.len() as u64;
    let mut eat = |word: u64| hash = (hash ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(29);
    let (words, rest) = bytes.as_chunks::<8>();
    words.iter().for_each(|word| eat(u64::from_le_bytes(*word)));
    rest.iter().for_each(|&byte| eat(u64::from(byte)));
    format!("{hash:016x}")
}
