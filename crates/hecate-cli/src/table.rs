//! Tables on the terminal, line by line: a row is written when it is known, so a column may widen on the way.

use crate::error::Result;
use std::io::{Write, stdout};

/// Columns whose widths grow with what was written so far.
pub(crate) struct Table<const N: usize> {
    /// Characters a column.
    widths: [usize; N],
    /// Until the first row is written.
    heading: Option<[String; N]>,
}

impl<const N: usize> Table<N> {
    /// A table without rows; columns are as wide as their headings.
    pub(crate) fn new(heading: &[&str; N]) -> Self {
        Self { widths: heading.map(str::len), heading: Some(heading.map(str::to_owned)) }
    }

    /// Reserves room for cells that come later.
    #[cfg(feature = "check")]
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
            self.write(&self.widths.map(|width| "-".repeat(width)))?;
        }
        self.write(&cells)
    }

    /// Writes cells padded to their columns, without spaces at the end.
    fn write(&self, cells: &[String; N]) -> Result<()> {
        let padded: Vec<String> =
            cells.iter().zip(self.widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        Ok(writeln!(stdout(), "{}", padded.join("  ").trim_end())?)
    }
}
