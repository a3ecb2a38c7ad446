//! Names of sessions.

use crate::refusal::Refusal;
use std::fmt;

/// Most letters of a name.
const LONGEST: usize = 64;

/// 1 to 64 of `a` to `z`, digits, `_` and `-`: the only part of a request that a file's name is made of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Name(String);

impl Name {
    /// A name that somebody gave in this field.
    ///
    /// # Errors
    /// 400 for any other text.
    pub(crate) fn parse(field: &str, text: &str) -> Result<Self, Refusal> {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_' || byte == b'-';
        if (1..=LONGEST).contains(&text.len()) && text.bytes().all(plain) {
            return Ok(Self(text.to_owned()));
        }
        // Only its beginning: a name may be as long as a body.
        let shown: String = text.chars().take(LONGEST).collect();
        Err(Refusal::field(field, format!("{shown:?}"), format!("1 to {LONGEST} of a-z, 0-9, `_` and `-`")))
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_leads_out_of_a_folder() {
        for name in ["a", "0", "-", "_", "long-name_2", &"x".repeat(64)] {
            assert_eq!(Name::parse("name", name).unwrap().to_string(), name);
        }
        for name in ["", ".", "..", "a/b", "/etc", "a\\b", "a.b", "A", "é", "a b", "a\0", "a\n", &"x".repeat(65)] {
            let refused = Name::parse("name", name).expect_err(name);
            assert_eq!(refused.status.as_u16(), 400, "{name}");
        }
    }
}
