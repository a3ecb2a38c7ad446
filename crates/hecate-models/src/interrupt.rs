//! Asking a long computation to stop.

use crate::{Error, Result};
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

/// A request to stop, which models see between two operations of a pass, forward and backward. Clones are one request.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Asks to stop, from any thread; whether that was asked before.
    pub fn ask(&self) -> bool {
        self.0.swap(true, Ordering::SeqCst)
    }

    /// Whether somebody asked.
    pub fn asked(&self) -> bool {
        // Read at every operation: nothing else is ordered by it.
        self.0.load(Ordering::Relaxed)
    }

    /// Refuses to go on once somebody asked.
    ///
    /// # Errors
    /// [`Error::Stopped`].
    pub fn check(&self) -> Result<()> {
        if self.asked() { Err(Error::Stopped) } else { Ok(()) }
    }
}
