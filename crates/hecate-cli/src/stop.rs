//! Ctrl-C, and the signals by which systems end programs: the first asks for an orderly end, the second ends the program.

use crate::error::Result;
use hecate_models::Interrupt;
use std::process;

/// Exit status after Ctrl-C, as shells have it.
pub(crate) const INTERRUPTED: u8 = 130;

/// Whether somebody asked to stop. Asking a second time ends the program at once.
pub(crate) struct Stop(Interrupt);

impl Stop {
    /// Takes over Ctrl-C, termination and hang-ups for the rest of the program; to be called once. A hang-up that was ignored
    /// before, as `nohup` has it, stays ignored.
    pub(crate) fn listen() -> Result<Self> {
        let interrupt = Interrupt::default();
        let asked = interrupt.clone();
        #[cfg(unix)]
        let ignored = hang_up::is_ignored()?;
        // The handler runs on a thread of its own.
        ctrlc::set_handler(move || {
            // The second time: somebody does not want to wait for the end of an operation.
            if asked.ask() {
                process::exit(INTERRUPTED.into());
            }
        })?;
        #[cfg(unix)]
        if ignored {
            hang_up::ignore()?;
        }
        Ok(Self(interrupt))
    }

    /// Whether somebody asked.
    pub(crate) fn asked(&self) -> bool {
        self.0.asked()
    }

    /// What models look at while they compute.
    pub(crate) fn interrupt(&self) -> Interrupt {
        self.0.clone()
    }
}

/// The signal that a terminal sends as it is closed.
#[cfg(unix)]
mod hang_up {
    use nix::{
        errno::Errno,
        sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction},
    };

    /// Ignores it from here on; returns what was done before.
    #[allow(unsafe_code)]
    pub(super) fn ignore() -> Result<SigAction, Errno> {
        let action = SigAction::new(SigHandler::SigIgn, SaFlags::empty(), SigSet::empty());
        // SAFETY: the action calls no function, so there is none that a signal could break in on.
        unsafe { sigaction(Signal::SIGHUP, &action) }
    }

    /// Whether whoever started this program had it ignored. It is ignored after this call, until somebody listens.
    pub(super) fn is_ignored() -> Result<bool, Errno> {
        Ok(matches!(ignore()?.handler(), SigHandler::SigIgn))
    }
}
