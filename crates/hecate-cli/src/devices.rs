//! `hecate devices`.

use crate::{error::Result, table::Table};
use std::{process::ExitCode, thread};

pub(crate) fn run() -> Result<ExitCode> {
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let mut table = Table::new(&["device", "threads", "vector instructions"]);
    if cfg!(feature = "cpu") {
        table.row(["cpu".into(), threads.to_string(), vector_instructions().into()])?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The widest that the CPU backend finds here.
#[cfg(target_arch = "x86_64")]
fn vector_instructions() -> &'static str {
    if is_x86_feature_detected!("avx512f") {
        "AVX-512"
    } else if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        "AVX2 and FMA"
    } else {
        "none used (AVX2 and FMA are not there)"
    }
}

/// The widest that the CPU backend finds here.
#[cfg(not(target_arch = "x86_64"))]
fn vector_instructions() -> &'static str {
    if cfg!(target_arch = "aarch64") { "NEON" } else { "none used" }
}
