//! The device of a column that may be missing. The column's own file says what it is and opens it.

pub(crate) use crate::Column;

use hecate_conformance::require::skip;
use hecate_core::Device;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    thread,
};

/// The device under test, or nothing where there is none. Every module of tests has one of its own, since a device compiles
/// one kernel at a time where it does so in software, and what a module has in common is compiled once.
fn opened() -> Option<Column> {
    type Opened = Arc<OnceLock<Result<Column, String>>>;
    static DEVICES: Mutex<BTreeMap<String, Opened>> = Mutex::new(BTreeMap::new());
    // A test's thread has its path for a name.
    let name = thread::current().name().unwrap_or_default().to_owned();
    let module = name.split("::").next().unwrap_or_default().to_owned();
    let device = DEVICES.lock().unwrap_or_else(PoisonError::into_inner).entry(module).or_default().clone();
    match device.get_or_init(|| crate::open().map_err(|error| error.to_string())) {
        Ok(device) => Some(device.clone()),
        Err(why) => {
            skip(Column::NAME, why);
            None
        }
    }
}

pub(crate) fn device() -> Column {
    opened().expect("a device: tests ask first whether it is missing")
}

/// Another value of the same GPU: another device.
pub(crate) fn another() -> Column {
    crate::open().expect("a device that was there a moment ago")
}

/// Whether there is no such device, which is said, and fails where `HECATE_REQUIRE` asks for it.
pub(crate) fn is_missing() -> bool {
    opened().is_none()
}

/// Of a list of every rule with each of `kinds` compositions: every rule once, the compositions in turn. What a composition
/// does around its memory is the same with every rule, each rule's kernels have tests of their own, and here every kernel is
/// compiled first.
pub(crate) fn sample<T>(all: Vec<T>, kinds: usize) -> Vec<T> {
    all.into_iter().step_by(kinds + 1).collect()
}
