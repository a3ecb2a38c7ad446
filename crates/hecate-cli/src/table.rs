//! Tables on the terminal, line by line.

use crate::error::Result;
use std::io::{Write, stdout};

/// Columns whose widths grow with what was written so far.
pub(crate) struct Table<const N: usize> {
    widths: [usize; N],
    heading: Option<[String; N]>,
}

impl<const N: usize> Table<N> {
    pub(crate) fn new(heading: &[&str; N]) -> Self {
        Self { widths: heading.map(str::len), heading: Some(heading.map(str::to_owned)) }
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
        for (width, cell) in self.widths.iter_mut().zip(&cells) {
            *width = cell.chars().count().max(*width);
        }
        if let Some(heading) = self.heading.take() {
            self.write(&heading)?;
            self.write(&self.widths.map(|width| "-".repeat(width)))?;
        }
        self.write(&cells)
    }

    fn write(&self, cells: &[String; N]) -> Result<()> {
        let padded: Vec<String> =
            cells.iter().zip(self.widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        Ok(writeln!(stdout(), "{}", padded.join("  ").trim_end())?)
    }
}
