//! Ctrl-C.

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
    pub(crate) fn listen() -> Result<Self> {
        let asked = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&asked);
        ctrlc::set_handler(move || {
            if flag.swap(true, Ordering::SeqCst) {
                process::exit(INTERRUPTED.into());
            }
        })?;
        Ok(Self(asked))
    }

    pub(crate) fn asked(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}
