//! Panics of libraries that are given what a user has: files, drivers.

use std::{
    any::Any,
    cell::Cell,
    panic::{self, AssertUnwindSafe},
    sync::Once,
    thread,
};

thread_local! {
    /// Whether what panics on this thread is caught and told of as an error.
    static CAUGHT: Cell<bool> = const { Cell::new(false) };
}

/// Does the work; the message of a panic in it is the error, and nothing is printed. Other threads, and what panics outside of
/// such work, are told of as before.
///
/// # Errors
/// What was said as the thread panicked.
pub fn caught<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    // A hook cannot be changed while a thread unwinds.
    if !thread::panicking() {
        HOOK.call_once(|| {
            let others = panic::take_hook();
            panic::set_hook(Box::new(move |info| {
                if !CAUGHT.get() {
                    others(info);
                }
            }));
        });
    }
    let outer = CAUGHT.replace(true);
    let outcome = panic::catch_unwind(AssertUnwindSafe(work));
    CAUGHT.set(outer);
    outcome.map_err(|payload| message(&*payload))
}

/// What was said as a thread panicked.
fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("no message").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_and_later_ones_are_told_of_again() {
        assert_eq!(caught(|| 3), Ok(3));
        assert_eq!(caught(|| -> u32 { panic!("of {}", 7) }), Err("of 7".to_owned()));
        assert_eq!(caught(|| -> u32 { panic!("plain") }), Err("plain".to_owned()));
        assert!(!CAUGHT.get());
        // Work inside of work does not end the outer work's silence.
        let nested = caught(|| (caught(|| -> u32 { panic!("inner") }), CAUGHT.get()));
        assert_eq!(nested, Ok((Err("inner".to_owned()), true)));
    }
}
