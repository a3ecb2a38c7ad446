//! `hecate kernels`: kernels that are written as PTX, with no compiler.

use crate::error::{Error, Result};
use clap::Args;
use hecate_ptx::{Elementwise, FORMS, named};
use std::{
    io::{Write, stdout},
    process::ExitCode,
};

/// Flags of `kernels`.
#[derive(Args, Debug)]
pub(crate) struct KernelsArgs {
    /// Print this kernel, as `softmax_warp:1024,4096`; without it, all that there are
    #[arg(long, value_name = "SPEC")]
    ptx: Option<String>,
}

impl KernelsArgs {
    /// Prints the text of a kernel, or the forms of all.
    ///
    /// # Errors
    /// A kernel that there is not, and a closed pipe.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let mut out = stdout().lock();
        match &self.ptx {
            Some(line) => {
                let module = named(line).map_err(|error| Error::flag("--ptx", error.to_string()))?;
                write!(out, "{module}")?;
            }
            None => {
                for (name, sizes) in FORMS {
                    writeln!(out, "{name}:{}", sizes.join(","))?;
                }
                for operation in Elementwise::all() {
                    writeln!(out, "{}", operation.name())?;
                }
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
