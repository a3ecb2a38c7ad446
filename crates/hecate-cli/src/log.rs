//! What the command says of its own work, on standard error.

use crate::error::{Error, Result};
use std::{env, io};
use tracing_subscriber::{Layer, filter::Targets, fmt, layer::SubscriberExt, registry, util::SubscriberInitExt};

/// Variables that say how much is told, the first that is set.
const VARIABLES: [&str; 2] = ["HECATE_LOG", "RUST_LOG"];

/// Shows events of the level that `HECATE_LOG` or `RUST_LOG` names; warnings where neither is set.
///
/// # Errors
/// [`Error::Flag`] for text that names no level.
pub(crate) fn start() -> Result<()> {
    let set = VARIABLES.iter().find_map(|name| Some((*name, env::var(name).ok().filter(|text| !text.is_empty())?)));
    let (name, text) = set.unwrap_or((VARIABLES[0], "warn".to_owned()));
    let targets: Targets = text.parse().map_err(|error| {
        let levels =
            "off, error, warn, info, debug and trace are levels; `hecate_cuda=trace,warn` sets one for a crate";
        Error::flag(name, format!("`{text}` is not understood ({error}); {levels}"))
    })?;
    // Complaints of a log that cannot be written would end the program.
    let lines = fmt::layer().with_writer(io::stderr).log_internal_errors(false).without_time().compact();
    let lines = lines.with_filter(targets);
    // Nobody else in this program listens.
    registry().with(lines).init();
    Ok(())
}
