//! `hecate check`: every rule and primitive beside the same equations in 64 bits, forward and backward.
//!
//! Truth is computed here, on this machine, so nothing but the program is needed: no files of expected numbers. Random
//! arguments are the same everywhere.

use crate::{
    device::{Choice, with_device},
    error::{Error, Result},
    progress::{PAUSE, Ticker, say},
    table::Table,
};
use clap::Args;
use hecate::{Backend, Job, models::files::write_whole};
use hecate_conformance::{
    record::Record,
    report::{Cell, check_all},
};
use std::{
    fs,
    io::{self, IsTerminal, Write, stdout},
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Columns that the table fits into.
const COLUMNS: usize = 80;

/// Flags of `hecate check`.
#[derive(Args, Debug)]
pub(crate) struct CheckArgs {
    // Which backend, and its options.
    #[command(flatten)]
    device: Choice,
    /// Put what was found in place of this device's lines in a table of tabs, such as docs/conformance.tsv
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

/// Prints a row a cell as soon as it is checked; fails if one cell does.
pub(crate) fn run(arguments: CheckArgs) -> Result<ExitCode> {
    let choice = arguments.device.clone();
    with_device(&choice, arguments)
}

impl Job for CheckArgs {
    type Output = Result<ExitCode>;

    fn run<B: Backend>(self, device: &B) -> Result<ExitCode> {
        // Names fit this width, so columns stay in line while rows appear. Options go on in the next line.
        let heading = ["cell", "forward", "gradient", "", "options"];
        let mut table = Table::new(&heading).with_widths([16, 0, 0, 6, 0]).within(COLUMNS);
        let (ticker, watched) = (Ticker::new(PAUSE), stdout().is_terminal());
        let mut checked = 0;
        // A closed pipe ends the table, not the check.
        // `check_all` cannot be broken off, so the first failure to write is kept until it ends.
        let mut written = Ok(());
        let cells = check_all(device, |cell| {
            if written.is_ok() {
                written = table.row(row(cell));
            }
            checked += 1;
            // Rows may go into a file that nobody sees.
            if !watched && ticker.due() {
                say(&format!("{checked} cells checked, {} last", cell.name));
            }
        });
        written?;
        // Failures come again at the end, where the eye is.
        let failed: Vec<&Cell> = cells.iter().filter(|cell| !cell.passed).collect();
        let mut out = stdout().lock();
        writeln!(out, "\n{} cells on {}, {} failed", cells.len(), B::NAME, failed.len())?;
        // What the figures are, since a reader of the table may know no other document.
        writeln!(out, "errors, forward and of gradients: root mean square of the difference from")?;
        writeln!(out, "float64, over that of the truth; the worst slot's")?;
        for cell in &failed {
            let why = cell.failure.as_deref().unwrap_or("over its limit");
            writeln!(out, "failed: {} {}: {why}", cell.name, cell.options)?;
        }
        // After the table: a file that cannot be written loses nothing that was shown.
        if let Some(file) = &self.record {
            record(file, device, &cells)?;
        }
        Ok(if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// Writes the device's lines of `file`, which may not be there yet.
fn record<B: Backend>(file: &Path, device: &B, cells: &[Cell]) -> Result<()> {
    let mut record = match fs::read_to_string(file) {
        Ok(text) => Record::parse(&text).map_err(|why| Error::file(file, why))?,
        // The first device starts the file; others add their columns.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Record::default(),
        Err(source) => return Err(Error::Io { path: file.into(), source }),
    };
    record.replace(B::NAME, &device.hardware(), cells).map_err(|why| Error::file(file, why))?;
    Ok(write_whole(file, record.to_string().as_bytes())?)
}

/// Name, both errors, the verdict and options; a primitive without a backward has no gradient error.
fn row(cell: &Cell) -> [String; 5] {
    [
        cell.name.to_owned(),
        format!("{:.1e}", cell.forward_error),
        cell.backward_error.map_or_else(|| "-".to_owned(), |error| format!("{error:.1e}")),
        if cell.passed { "ok" } else { "FAILED" }.to_owned(),
        cell.options.clone(),
    ]
}
