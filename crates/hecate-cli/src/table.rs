//! Tables on the terminal, line by line: a row is written when it is known, so a column may widen on the way.

use crate::error::Result;
use std::{
    array,
    io::{Write, stdout},
};

/// Spaces between two columns.
const GAP: usize = 2;

/// Columns whose widths grow with what was written so far.
pub(crate) struct Table<const N: usize> {
    /// Characters a column.
    widths: [usize; N],
    /// Until the first row is written.
    heading: Option<[String; N]>,
    /// Columns of a line, over which the last cell goes on in the next.
    limit: usize,
}

impl<const N: usize> Table<N> {
    /// A table without rows; columns are as wide as their headings.
    pub(crate) fn new(heading: &[&str; N]) -> Self {
        Self { widths: heading.map(str::len), heading: Some(heading.map(str::to_owned)), limit: usize::MAX }
    }

    /// Breaks the last cell of a row where a line would have more columns than this.
    #[cfg(feature = "check")]
    pub(crate) fn within(self, limit: usize) -> Self {
        Self { limit, ..self }
    }

    /// Reserves room for cells that come later.
    pub(crate) fn with_widths(mut self, widths: [usize; N]) -> Self {
        for (width, more) in self.widths.iter_mut().zip(widths) {
            *width = more.max(*width);
        }
        self
    }

    /// Writes a row, and the heading before the first.
    pub(crate) fn row(&mut self, cells: [String; N]) -> Result<()> {
        // Characters: options and equations hold more than ASCII.
        for (width, cell) in self.widths.iter_mut().zip(&cells) {
            *width = cell.chars().count().max(*width);
        }
        if let Some(heading) = self.heading.take() {
            self.write(&heading)?;
            // A column that is broken is no wider than what is left for it.
            let room = self.limit.saturating_sub(self.start());
            let last = self.widths.last().map_or(0, |&width| width.min(room));
            self.write(&array::from_fn(|i| "-".repeat(if i + 1 < N { self.widths[i] } else { last })))?;
        }
        self.write(&cells)
    }

    /// Where the last column starts.
    fn start(&self) -> usize {
        self.widths.iter().take(N - 1).map(|width| width + GAP).sum()
    }

    /// Writes a row.
    fn write(&self, cells: &[String; N]) -> Result<()> {
        self.lines(cells).iter().try_for_each(|line| Ok(writeln!(stdout(), "{line}")?))
    }

    /// Cells padded to their columns, without spaces at the end.
    fn lines(&self, cells: &[String; N]) -> Vec<String> {
        let start = self.start();
        let parts = broken(cells.last().map_or("", String::as_str), self.limit.saturating_sub(start));
        let padded = cells.iter().zip(self.widths).take(N - 1).map(|(cell, width)| format!("{cell:<width$}"));
        // The first line has all columns, the others the last alone.
        let first = padded.chain(parts.first().cloned()).collect::<Vec<_>>().join(&" ".repeat(GAP));
        let others = parts.iter().skip(1).map(|part| " ".repeat(start) + part);
        [first.trim_end().to_owned()].into_iter().chain(others).collect()
    }
}

/// The words of a text in lines of at most so many characters; a longer word has a line of its own.
fn broken(text: &str, columns: usize) -> Vec<String> {
    // Words and not characters: an option is read as a whole.
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        let fits = |line: &&mut String| line.chars().count() + 1 + word.chars().count() <= columns;
        match lines.last_mut().filter(fits) {
            Some(line) => *line += &format!(" {word}"),
            None => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_cell_goes_on_in_the_next_line() {
        let table = Table::new(&["cell", "options"]).within(24);
        let row = ["delta", "read: After, erase: Decayed, frozen: None"].map(str::to_owned);
        let table = Table { widths: [5, 41], ..table };
        assert_eq!(table.lines(&row), ["delta  read: After,", "       erase: Decayed,", "       frozen: None"]);
        let whole = Table { limit: usize::MAX, ..table };
        assert_eq!(whole.lines(&row), ["delta  read: After, erase: Decayed, frozen: None"]);
        assert_eq!(whole.lines(&["a".into(), String::new()]), ["a"]);
    }
}
