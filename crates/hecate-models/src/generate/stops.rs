//! Texts at which a continuation ends.

/// Lets text through until one of the texts at which it ends is there. What may be the start of one is held back.
#[derive(Clone, Debug)]
pub struct Stops {
    stops: Vec<String>,
    /// Not let through yet.
    held: Vec<u8>,
    /// One of the texts was met.
    met: bool,
}

impl Stops {
    /// Before the first byte. An empty text is met at once.
    pub fn new(stops: Vec<String>) -> Self {
        Self { stops, held: Vec::new(), met: false }
    }

    /// Whether the text has ended.
    pub fn met(&self) -> bool {
        self.met
    }

    /// What can be shown now that these bytes have come.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<u8> {
        // Never longer than the longest of the texts and what comes at once.
        self.held.extend(bytes);
        // The first place counts, whichever text it is of.
        if let Some(end) = self.stops.iter().filter_map(|stop| find(&self.held, stop.as_bytes())).min() {
            self.met = true;
            self.held.truncate(end);
            return std::mem::take(&mut self.held);
        }
        // The longest end of it with which one of the texts begins.
        let begins = |stop: &String, length: usize| self.held.ends_with(&stop.as_bytes()[..length]);
        let longest = |stop: &String| (1..stop.len()).rev().find(|&length| begins(stop, length));
        let kept = self.stops.iter().filter_map(longest).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - kept);
        std::mem::replace(&mut self.held, rest)
    }

    /// What was held back for nothing. From here on another text may end.
    pub fn finish(&mut self) -> Vec<u8> {
        self.met = false;
        std::mem::take(&mut self.held)
    }
}

/// Where these bytes begin in the text.
fn find(text: &[u8], bytes: &[u8]) -> Option<usize> {
    if bytes.is_empty() {
        return Some(0);
    }
    text.windows(bytes.len()).position(|window| window == bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All that comes through, byte by byte.
    fn through(stops: &[&str], text: &str) -> (String, bool) {
        let stops: Vec<String> = stops.iter().map(|&stop| stop.to_owned()).collect();
        // As tokens come: the smallest part of a text that there is.
        let (mut all, mut out) = (Stops::new(stops), Vec::new());
        for byte in text.bytes() {
            out.extend(all.push(&[byte]));
            if all.met() {
                break;
            }
        }
        let met = all.met();
        out.extend(all.finish());
        (String::from_utf8(out).unwrap(), met)
    }

    #[test]
    fn text_ends_before_the_first_of_them() {
        assert_eq!(through(&["\n\n"], "one\ntwo\n\nthree"), ("one\ntwo".to_owned(), true));
        assert_eq!(through(&["END", "two"], "one two END"), ("one ".to_owned(), true));
        // A start that comes to nothing is shown; a start inside a start is found.
        assert_eq!(through(&["aab"], "aaab"), ("a".to_owned(), true));
        assert_eq!(through(&["stop"], "sto sto"), ("sto sto".to_owned(), false));
        assert_eq!(through(&[], "text"), ("text".to_owned(), false));
        assert_eq!(through(&[""], "text"), (String::new(), true));
        assert_eq!(through(&["é"], "caf\u{e8} caf\u{e9}"), ("caf\u{e8} caf".to_owned(), true));
    }

    #[test]
    fn what_cannot_be_a_start_is_shown_at_once() {
        let mut all = Stops::new(vec!["END".to_owned()]);
        // A reader sees all but the letter that may be the first of three.
        assert_eq!(all.push(b"text E"), b"text ");
        assert_eq!(all.push(b"x"), b"Ex");
        assert_eq!(all.push(b"EN"), b"");
        assert_eq!(all.finish(), b"EN");
    }
}
