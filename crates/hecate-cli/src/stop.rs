//! Ctrl-C: the first asks for an orderly end, the second ends the program.

use crate::error::Result;
use std::{
    process,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// Exit status after Ctrl-C, as shells have it.
pub(crate) const INTERRUPTED: u8 = 130;

/// Whether somebody asked to stop. Asking a second time ends the program at once.
pub(crate) struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Takes over Ctrl-C for the rest of the program; to be called once.
    pub(crate) fn listen() -> Result<Self> {
        // The handler runs on a thread of its own.
        let asked = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&asked);
        ctrlc::set_handler(move || {
            // The second time: somebody does not want to wait for the end of a step.
            if flag.swap(true, Ordering::SeqCst) {
                process::exit(INTERRUPTED.into());
            }
        })?;
        Ok(Self(asked))
    }

    /// Whether Ctrl-C was pressed.
    pub(crate) fn asked(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}
