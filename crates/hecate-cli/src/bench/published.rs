//! What others report of the same tasks, to stand beside what is measured here.
//!
//! Sizes of models, steps and texts are theirs, so a figure says what may be hoped for. It is no baseline of ours: that would
//! have to be learned by the same command. Shares are in `[0, 1]`, as the accuracies above them.

use crate::{error::Result, table::Table};
use serde_json::{Value, json};
use std::io::{Write, stdout};

/// Columns that a table of figures keeps to.
const COLUMNS: usize = 80;

/// A figure of somebody else's.
#[derive(Clone, Copy)]
pub(super) struct Published {
    /// The model, and what else has to be known of it.
    model: &'static str,
    /// What of the task was measured.
    pub(super) measure: &'static str,
    /// A share of right answers.
    figure: f64,
    /// Where it is printed.
    source: &'static str,
}

/// Recall of 64 pairs in 512 tokens, models of width 64 to 128.
pub(super) const RECALL: [Published; 3] = [
    row("attention, about", "512:64", 1.0, "Arora et al., \"Zoology\""),
    row("RWKV-7, state of 8k", "512:64", 0.94, "RWKV-7, its authors' thread"),
    row("RWKV-7, state of 16k", "512:64", 0.99, "RWKV-7, its authors' thread"),
];

/// The row of DeltaNet: the delta rule, with keys of norm 1 and steps of at most 1.
pub(super) const MAD: [Published; 6] = [
    row("DeltaNet", "compression", 0.42, DELTA_NET),
    row("DeltaNet", "fuzzy-recall", 0.36, DELTA_NET),
    row("DeltaNet", "recall", 1.0, DELTA_NET),
    row("DeltaNet", "memorisation", 0.53, DELTA_NET),
    row("DeltaNet", "noisy-recall", 1.0, DELTA_NET),
    row("DeltaNet", "copying", 1.0, DELTA_NET),
];
/// Where MAD's tasks are measured for DeltaNet.
const DELTA_NET: &str = "Yang et al., \"Parallelizing Linear Transformers with the Delta Rule\", MAD";

/// Parity beyond the learned length; 0 is chance there, and 1 all right.
pub(super) const PARITY: [Published; 2] = [
    row("DeltaNet, steps to 2", "6 times the length", 1.0, GRAZZI),
    row("DeltaNet, steps to 1", "6 times the length", 0.017, GRAZZI),
];
/// Where parity is.
const GRAZZI: &str = "Grazzi et al., \"Unlocking State-Tracking\"; chance is 0";

/// A passkey among 16 thousand tokens of noise, learned at 4 thousand: the single needle of RULER.
pub(super) const NEEDLE: [Published; 5] = [
    row("Titans, memory alone", "passkey in 16k", 0.962, TITANS),
    row("Titans, as context", "passkey in 16k", 0.984, TITANS),
    row("TTT", "passkey in 16k", 0.884, TITANS),
    row("DeltaNet", "passkey in 16k", 0.714, TITANS),
    row("Mamba-2", "passkey in 16k", 0.054, TITANS),
];
/// Where needles are.
const TITANS: &str = "Behrouz et al., \"Titans\", S-NIAH";

/// A row of a list: a function, so that lists are read as tables.
const fn row(model: &'static str, measure: &'static str, figure: f64, source: &'static str) -> Published {
    Published { model, measure, figure, source }
}

impl Published {
    /// A table of them, under the one of what was measured.
    pub(super) fn print(all: &[Self]) -> Result<()> {
        if all.is_empty() {
            return Ok(());
        }
        writeln!(stdout())?;
        let mut table = Table::new(&["published", "accuracy on", "", "source"]).within(COLUMNS);
        // Long sources go on in the next line.
        // Rows are known: no later one is wider.
        let width = |text: fn(&Self) -> &str| all.iter().map(|row| text(row).chars().count()).max().unwrap_or(0);
        table = table.with_widths([width(|row| row.model), width(|row| row.measure), 5, 0]);
        let cells = |row: &Self| {
            [row.model.to_owned(), row.measure.to_owned(), format!("{:.3}", row.figure), row.source.to_owned()]
        };
        all.iter().try_for_each(|row| table.row(cells(row)))
    }

    /// The same as JSON, each with its source: who reads it elsewhere has to know that it is not ours.
    pub(super) fn to_json(all: &[Self]) -> Value {
        let row = |row: &Self| json!({"model": row.model, "measure": row.measure, "accuracy": row.figure, "source": row.source});
        all.iter().map(row).collect()
    }
}
