//! Ctrl-C, and the signals by which systems end programs: the first asks for an orderly end, the second ends the program.

use crate::error::Result;
use hecate::models::Interrupt;
use std::process;

/// Exit status of a program that a signal ended, beside the signal's number, as shells have it.
const BY_SIGNAL: u8 = 128;
/// The signal of Ctrl-C, where no other is known.
const INTERRUPT: u8 = 2;

/// Exit status of what was asked to stop: 130 after Ctrl-C, 143 after termination, 129 after a hang-up.
pub(crate) fn status() -> u8 {
    #[cfg(unix)]
    let signal = signals::last().unwrap_or(INTERRUPT);
    #[cfg(not(unix))]
    let signal = INTERRUPT;
    BY_SIGNAL + signal
}

/// Has the system refuse what it would write beyond the size that files may have (`ulimit -f`), as on a full disk. Unasked, it
/// ends the program without a word.
#[cfg(unix)]
pub(crate) fn let_writes_fail() {
    // Where it cannot be had, such a limit does what it did.
    let _ = signals::ignore_size_limit();
}

/// Whether somebody asked to stop. Asking a second time ends the program at once.
pub(crate) struct Stop(Interrupt);

impl Stop {
    /// Takes over Ctrl-C, termination and hang-ups for the rest of the program; to be called once. A hang-up that was ignored
    /// before, as `nohup` has it, stays ignored.
    pub(crate) fn listen() -> Result<Self> {
        Self::listen_with(|| false, || ())
    }

    /// As [`Stop::listen`], for a program with nothing to save: termination and hang-ups end it at once, and only Ctrl-C asks.
    /// `first` runs where that is the first time, or the first since [`Stop::forget`].
    pub(crate) fn listen_to_ctrl_c(first: impl Fn() + Send + 'static) -> Result<Self> {
        Self::listen_with(|| status() != BY_SIGNAL + INTERRUPT, first)
    }

    /// From here on nobody has asked.
    pub(crate) fn forget(&self) {
        self.0.withdraw();
    }

    /// Listens to signals, of which some end the program `at_once`.
    fn listen_with(at_once: impl Fn() -> bool + Send + 'static, first: impl Fn() + Send + 'static) -> Result<Self> {
        let interrupt = Interrupt::default();
        let asked = interrupt.clone();
        #[cfg(unix)]
        let ignored = signals::is_hang_up_ignored()?;
        // The handler runs on a thread of its own.
        ctrlc::set_handler(move || {
            // The second time: somebody does not want to wait for the end of an operation.
            if asked.ask() || at_once() {
                process::exit(status().into());
            }
            first();
        })?;
        #[cfg(unix)]
        signals::note(ignored)?;
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

/// Which signal it was. `ctrlc` does not tell.
#[cfg(unix)]
mod signals {
    use nix::{
        errno::Errno,
        sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction},
    };
    use std::{
        ffi::c_int,
        sync::{
            OnceLock,
            atomic::{AtomicU8, Ordering},
        },
    };

    /// What is done about a signal, once it is noted.
    type Handler = extern "C" fn(c_int);

    /// The last signal; 0 before the first.
    static LAST: AtomicU8 = AtomicU8::new(0);
    /// The handler of `ctrlc`, the same for all signals.
    static NEXT: OnceLock<Handler> = OnceLock::new();

    /// The last signal that asked to stop.
    pub(super) fn last() -> Option<u8> {
        Some(LAST.load(Ordering::SeqCst)).filter(|&signal| signal > 0)
    }

    /// Notes the signal, and hands it on.
    // A signal may break in on anything: two atomics are all that is touched here.
    extern "C" fn take(signal: c_int) {
        LAST.store(u8::try_from(signal).unwrap_or(0), Ordering::SeqCst);
        if let Some(next) = NEXT.get() {
            next(signal);
        }
    }

    /// Notes signals from here on before `ctrlc` sees them, which listens already. Hang-ups are ignored instead where they
    /// were before.
    pub(super) fn note(ignore_hang_ups: bool) -> Result<(), Errno> {
        for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
            if signal == Signal::SIGHUP && ignore_hang_ups {
                set(signal, SigHandler::SigIgn)?;
            } else if let SigHandler::Handler(next) = set(signal, SigHandler::Handler(take))? {
                NEXT.get_or_init(|| next);
            }
        }
        Ok(())
    }

    /// Whether whoever started this program had hang-ups ignored. They are after this call, until somebody listens.
    pub(super) fn is_hang_up_ignored() -> Result<bool, Errno> {
        Ok(matches!(set(Signal::SIGHUP, SigHandler::SigIgn)?, SigHandler::SigIgn))
    }

    /// Ignores the signal of files that grow too large: what is written then fails.
    pub(super) fn ignore_size_limit() -> Result<(), Errno> {
        set(Signal::SIGXFSZ, SigHandler::SigIgn).map(drop)
    }

    /// Another handler from here on; returns the one of before.
    #[allow(unsafe_code)]
    fn set(signal: Signal, handler: SigHandler) -> Result<SigHandler, Errno> {
        let action = SigAction::new(handler, SaFlags::SA_RESTART, SigSet::empty());
        // SAFETY: the only function that is ever set is `take`, which may break in on any other.
        Ok(unsafe { sigaction(signal, &action) }?.handler())
    }
}
