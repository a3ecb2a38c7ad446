//! `hecate quantize`: a trained model in few bits a weight, for `generate` and `eval`.

use crate::{
    device::{Choice, with_device},
    error::{Error, Result},
    runs::{self, RunArgs},
    table::Table,
    visible::visible_path,
};
use clap::Args;
use hecate::{
    Backend, Bytes, Job,
    models::{
        quantize::{quantize, save},
        trained::Trained,
        weights::{Alike, stored},
    },
    quantized::BlockFormat,
};
use indicatif::HumanCount;
use std::{
    collections::BTreeMap,
    fs,
    io::{Write, stdout},
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Flags of `hecate quantize`.
#[derive(Args, Debug)]
pub(crate) struct QuantizeArgs {
    #[command(flatten)]
    run: RunArgs,
    /// Format of the matrices: q8_0, q6_k, q5_k or q4_k, of 8.5 to 4.5 bits a weight
    ///
    /// Matrices whose rows are no whole blocks of it take q8_0, or 16 bits where they are no blocks of that.
    #[arg(long, value_name = "FORMAT", value_parser = format)]
    to: BlockFormat,
    /// Folder for the quantized model; that of the run with `-FORMAT` after its name unless given
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    device: Choice,
}

/// A format by its name.
fn format(name: &str) -> std::result::Result<BlockFormat, String> {
    // Unknown ones are told the list.
    name.parse().map_err(|error: hecate::Error| error.to_string())
}

/// Writes the quantized model to a folder of its own.
pub(crate) fn run(arguments: QuantizeArgs) -> Result<ExitCode> {
    let choice = arguments.device.clone();
    with_device(&choice, arguments)
}

impl Job for QuantizeArgs {
    type Output = Result<ExitCode>;

    fn run<B: Backend>(self, device: &B) -> Result<ExitCode> {
        // The run itself is never changed.
        let folder = self.run.folder()?;
        let out = match self.out.clone() {
            Some(out) => out,
            None => beside(&folder, self.to)?,
        };
        runs::check_folder(&out, "--out")?;
        // Tokens mean the same after it: the vocabulary goes along.
        let trained = self.run.load(device, &folder)?;
        let model = quantize(&trained.model, self.to)?;
        // Whatever else the run has, its text and its training, stays where it is.
        save(&Trained { model, ..trained }, &out)?;
        // Of the weights alone: a run has checkpoints beside them.
        // A file that is not there has no bytes.
        let size = |folder: &Path| fs::metadata(folder.join(runs::MODEL)).map_or(0, |file| file.len());
        let [before, after] = [&folder, &out].map(|folder| Bytes(size(folder).into()));
        writeln!(stdout(), "{}: {after} of weights in {}, before {before}\n", visible_path(&out), self.to)?;
        table(self.to, &stored(&out.join(runs::MODEL), Some(self.to))?)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Prints how the arrays are stored, from those in the format that was asked for on, and why others are not in it.
fn table(asked: BlockFormat, stored: &BTreeMap<String, Alike>) -> Result<()> {
    let own = asked.name();
    let mut table = Table::new(&["stored as", "arrays", "weights", "size", "what they are"]);
    let names = [own, BlockFormat::Q8_0.name(), "bf16", "f32"];
    for (i, name) in names.into_iter().enumerate().filter(|(i, name)| *i == 0 || *name != own) {
        let Some(alike) = stored.get(name) else { continue };
        let lengths: Vec<_> = alike.rows.iter().map(ToString::to_string).collect();
        let what = match i {
            0 => "matrices".to_owned(),
            3 => "tables, norms, convolutions, maps to gates".to_owned(),
            _ => format!("matrices with rows of {}, no multiple of {}", lengths.join(", "), asked.block()),
        };
        let (arrays, weights) = (alike.arrays.to_string(), HumanCount(alike.elements).to_string());
        table.row([name.to_owned(), arrays, weights, Bytes(alike.bytes.into()).to_string(), what])?;
    }
    Ok(())
}

/// The folder next to a run's that is named after it and the format.
fn beside(run: &Path, format: BlockFormat) -> Result<PathBuf> {
    // `.` and `..` name no folder that another could be named after.
    let Some(name) = run.file_name() else {
        return Err(Error::flag("--out", format!("{} has no name of its own; name a folder", run.display())));
    };
    Ok(run.with_file_name(format!("{}-{format}", name.to_string_lossy())))
}
