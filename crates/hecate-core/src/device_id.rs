//! Which device a value is.

use std::{
    fmt,
    hash::{Hash, Hasher},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

/// Number of identities given so far, over all backends.
static GIVEN: AtomicU64 = AtomicU64::new(0);

/// Tells device values apart: a backend gives one to each pool, stream or queue that it opens, and clones share it.
///
/// Arrays of two identities never meet in one call ([`Error::OtherDevice`](crate::Error::OtherDevice)): their memory may
/// lie on different chips, and their work has no common order. Comparing two is comparing two integers.
///
/// ```
/// use hecate_core::DeviceId;
/// let first = DeviceId::new(|number| format!("cuda:0 (stream {number})"));
/// let second = DeviceId::new(|number| format!("cuda:0 (stream {number})"));
/// assert!(first == first.clone() && first != second);
/// ```
#[derive(Clone)]
pub struct DeviceId {
    /// Unique in this process.
    number: u64,
    /// What messages call it.
    name: Arc<str>,
}

impl DeviceId {
    /// A new identity. `name` gets its number, counted from 1, and returns what messages call the device.
    pub fn new(name: impl FnOnce(u64) -> String) -> Self {
        let number = GIVEN.fetch_add(1, Ordering::Relaxed) + 1;
        Self { number, name: name(number).into() }
    }
}

impl PartialEq for DeviceId {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for DeviceId {}

impl Hash for DeviceId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.number.hash(state);
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl fmt::Debug for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceId({}, {})", self.number, self.name)
    }
}
