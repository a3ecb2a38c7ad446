//! `hecate check`.

use crate::{
    device::{Choice, Job, with_device},
    error::Result,
    table::Table,
};
use clap::Args;
use hecate_core::Backend;
use hecate_tests::report::{Cell, check_all};
use std::{
    io::{Write, stdout},
    process::ExitCode,
};

#[derive(Args, Debug)]
pub(crate) struct Arguments {
    #[command(flatten)]
    device: Choice,
}

pub(crate) fn run(arguments: Arguments) -> Result<ExitCode> {
    with_device(&arguments.device, Check)
}

struct Check;

impl Job for Check {
    type Output = ExitCode;

    fn run<B: Backend>(self, device: &B) -> Result<ExitCode> {
        let heading = ["cell", "options", "forward error", "gradient error", ""];
        let mut table = Table::new(&heading).with_widths([22, 50, 0, 0, 0]);
        let mut written = Ok(());
        let cells = check_all(device, |cell| {
            if written.is_ok() {
                written = table.row(row(cell));
            }
        });
        written?;
        let failed: Vec<&Cell> = cells.iter().filter(|cell| !cell.passed).collect();
        let mut out = stdout().lock();
        writeln!(out, "\n{} cells on {}, {} failed", cells.len(), B::NAME, failed.len())?;
        writeln!(out, "errors: root mean square of the difference from float64, over that of the truth; worst slot")?;
        for cell in &failed {
            let why = cell.failure.as_deref().unwrap_or("over its limit");
            writeln!(out, "failed: {} {}: {why}", cell.name, cell.options)?;
        }
        Ok(if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

fn row(cell: &Cell) -> [String; 5] {
    [
        cell.name.to_owned(),
        cell.options.clone(),
        format!("{:.1e}", cell.forward_error),
        cell.backward_error.map_or_else(|| "-".to_owned(), |error| format!("{error:.1e}")),
        if cell.passed { "ok" } else { "FAILED" }.to_owned(),
    ]
}
