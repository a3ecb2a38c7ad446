//! Text of a model or of a user as a terminal may show it: what a model writes must not move the cursor or change colours.

use std::path::Path;

/// Control characters as signs that can be seen: `␛` for an escape. Newlines and tabs stay.
pub(crate) fn visible(text: &str) -> String {
    // Most text has nothing to show, and is then as long.
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\t' => shown.push(c),
            // Unicode has a picture of each.
            '\0'..' ' => shown.extend(char::from_u32(0x2400 + c as u32)),
            '\u{7f}' => shown.push('\u{2421}'),
            // The second set of controls, and what turns the direction of writing around.
            '\u{80}'..='\u{9f}'
            | '\u{61c}'
            | '\u{200e}'..='\u{200f}'
            | '\u{202a}'..='\u{202e}'
            | '\u{2066}'..='\u{2069}' => {
                shown.extend(c.escape_unicode());
            }
            _ => shown.push(c),
        }
    }
    shown
}

/// A path, as [`visible`].
pub(crate) fn visible_path(path: &Path) -> String {
    visible(&path.to_string_lossy())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controls_are_shown_and_text_stays() {
        let text = "naïve\tφ\n\"quoted\" 語";
        // Letters of any script, accents and quotes.
        assert_eq!(visible(text), text);
        // Clear the screen, go back, colour, and write from right to left.
        assert_eq!(visible("\x1b[2J\r\0\x7f\u{9b}1m\u{202e}"), "␛[2J␍␀␡\\u{9b}1m\\u{202e}");
        // Both sets of controls, and all of Latin-1 between them.
        let all: String = (0..0x100).filter_map(char::from_u32).collect();
        assert!(visible(&all).chars().all(|c| !c.is_control() || c == '\n' || c == '\t'));
    }
}
