//! Memory of the host: how much there is, and arrays in it that are refused where it does not suffice.
//!
//! A system may promise more memory than it has, and end the program that uses it. So a large array is compared with what
//! is free before it is asked for, and a small one is asked for at once.

pub use crate::bytes::Bytes;
use crate::{Error, Result};
pub use bytemuck::Zeroable;
use std::mem;

/// Bytes of the smallest array that is compared with what is free: 64 MiB. Looking costs as much as filling a few hundred
/// KiB.
const LARGE: usize = 64 << 20;

/// Memory of a device, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceMemory {
    /// All that there is, whoever uses it.
    pub total: u64,
    /// What nobody uses now.
    pub free: u64,
}

impl DeviceMemory {
    /// That of the machine that this program runs on, or of the group of processes that it is limited to. Memory that the
    /// system lends out until somebody needs it, as for files, counts as free. None where the system does not say: outside
    /// of Linux.
    pub fn of_host() -> Option<Self> {
        host::memory()
    }
}

/// Refuses `count` elements of type `T` where they are more than can be addressed, or, if they are many, than are free or
/// than the allocator gives. What is asked for after it, in parts of no more in total, is then there.
///
/// # Errors
/// [`Error::OutOfMemory`]; `what` is the operation in its message.
pub fn check<T>(what: &'static str, count: usize) -> Result<()> {
    fits::<T>(what, count)?;
    if count.saturating_mul(mem::size_of::<T>()) < LARGE {
        return Ok(());
    }
    // Asked for at once and given back untouched: it costs microseconds, and systems that do not say what is free refuse here.
    Vec::<T>::new().try_reserve_exact(count).map_err(|_| refused::<T>(what, count))
}

/// The part of [`check`] that does not ask the allocator.
fn fits<T>(what: &'static str, count: usize) -> Result<()> {
    let bytes = count as u128 * mem::size_of::<T>() as u128;
    if bytes < LARGE as u128 {
        return Ok(());
    }
    let free = DeviceMemory::of_host().map(|memory| memory.free);
    if bytes > isize::MAX as u128 || free.is_some_and(|free| bytes > free.into()) {
        return Err(Error::OutOfMemory { what, bytes: Bytes(bytes), free: free.map(|free| Bytes(free.into())) });
    }
    Ok(())
}

/// The error of an allocator that has no room for so many elements.
fn refused<T>(what: &'static str, count: usize) -> Error {
    let bytes = Bytes(count as u128 * mem::size_of::<T>() as u128);
    Error::OutOfMemory { what, bytes, free: DeviceMemory::of_host().map(|memory| Bytes(memory.free.into())) }
}

/// `count` zeros, which the system makes as they are touched: nothing is written here.
///
/// # Errors
/// As [`check`].
pub fn zeros<T: Zeroable>(what: &'static str, count: usize) -> Result<Vec<T>> {
    fits::<T>(what, count)?;
    bytemuck::allocation::try_zeroed_vec(count).map_err(|()| refused::<T>(what, count))
}

/// No elements, and room for `count`.
///
/// # Errors
/// As [`check`].
pub fn with_capacity<T>(what: &'static str, count: usize) -> Result<Vec<T>> {
    let mut elements = Vec::new();
    reserve(what, &mut elements, count)?;
    Ok(elements)
}

/// Makes room for `more` elements after those that are there, and for no others.
///
/// # Errors
/// As [`check`].
pub fn reserve<T>(what: &'static str, elements: &mut Vec<T>, more: usize) -> Result<()> {
    fits::<T>(what, more)?;
    elements.try_reserve_exact(more).map_err(|_| refused::<T>(what, more))
}

/// `count` times the same element.
///
/// # Errors
/// As [`check`].
pub fn filled<T: Clone>(what: &'static str, count: usize, element: T) -> Result<Vec<T>> {
    let mut elements = with_capacity(what, count)?;
    elements.resize(count, element);
    Ok(elements)
}

/// The elements of `source`, of which there are exactly as many as it says.
///
/// # Errors
/// As [`check`].
pub fn collect<T>(what: &'static str, source: impl ExactSizeIterator<Item = T>) -> Result<Vec<T>> {
    let mut elements = with_capacity(what, source.len())?;
    elements.extend(source);
    Ok(elements)
}

#[cfg(target_os = "linux")]
mod host {
    use super::DeviceMemory;
    use std::{fs, path::Path};

    /// Where the kernel shows groups of processes, in its second version and in its first.
    const GROUPS: &str = "/sys/fs/cgroup";

    pub(super) fn memory() -> Option<DeviceMemory> {
        let machine = of_machine(&fs::read_to_string("/proc/meminfo").ok()?)?;
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        // A group is limited by all groups that it is in.
        Some(limits(&own).chain(of_process()).fold(machine, |DeviceMemory { total, free }, limit| DeviceMemory {
            total: total.min(limit.total),
            free: free.min(limit.free),
        }))
    }

    /// From the text of `/proc/meminfo`. What is swapped out makes room.
    pub(super) fn of_machine(text: &str) -> Option<DeviceMemory> {
        let kib = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            line.split_whitespace().next()?.parse::<u64>().ok()
        };
        let free = kib("MemAvailable")?.saturating_add(kib("SwapFree").unwrap_or(0));
        Some(DeviceMemory { total: kib("MemTotal")?.saturating_mul(1024), free: free.saturating_mul(1024) })
    }

    /// What `ulimit -v` leaves to this program; none where it is unlimited.
    fn of_process() -> Option<DeviceMemory> {
        let (limits, status) =
            (fs::read_to_string("/proc/self/limits").ok()?, fs::read_to_string("/proc/self/status").ok()?);
        let limit = limits.lines().find_map(|line| line.strip_prefix("Max address space"))?;
        let total = limit.split_whitespace().next()?.parse::<u64>().ok()?;
        let used = status.lines().find_map(|line| line.strip_prefix("VmSize:"))?;
        let used = used.split_whitespace().next()?.parse::<u64>().ok()?.saturating_mul(1024);
        Some(DeviceMemory { total, free: total.saturating_sub(used) })
    }

    /// Limits of the groups that `/proc/self/cgroup` names, and of those around them.
    fn limits(own: &str) -> impl Iterator<Item = DeviceMemory> + '_ {
        let folder = |line: &str| {
            let mut fields = line.splitn(3, ':').skip(1);
            let (controllers, group) = (fields.next()?, fields.next()?.trim_start_matches('/').to_owned());
            match controllers {
                "" => Some((Path::new(GROUPS).to_owned(), group, ["memory.max", "memory.current"])),
                list if list.split(',').any(|name| name == "memory") => {
                    Some((Path::new(GROUPS).join("memory"), group, ["memory.limit_in_bytes", "memory.usage_in_bytes"]))
                }
                _ => None,
            }
        };
        own.lines().filter_map(folder).flat_map(|(root, group, files)| {
            let own = root.join(group);
            let around: Vec<_> =
                own.ancestors().take_while(|path| path.starts_with(&root)).map(Path::to_owned).collect();
            around.into_iter().filter_map(move |path| limit(&path, files))
        })
    }

    /// The limit of one group; none where there is no such file, or it says `max`.
    fn limit(group: &Path, [limit, usage]: [&str; 2]) -> Option<DeviceMemory> {
        let number = |file| fs::read_to_string(group.join(file)).ok()?.trim().parse::<u64>().ok();
        let (total, used) = (number(limit)?, number(usage)?);
        // Pages of files and what the system caches of them are given back when others need the room.
        let statistics = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
        let lent = |name: &str| {
            let line = statistics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
            line.trim().parse::<u64>().ok()
        };
        let pages = |what: &str| lent(&format!("total_{what}")).or_else(|| lent(what)).unwrap_or(0);
        let lent: u64 = ["inactive_file", "active_file", "slab_reclaimable"].map(pages).iter().sum();
        Some(DeviceMemory { total, free: total.saturating_sub(used.saturating_sub(lent)) })
    }
}

#[cfg(not(target_os = "linux"))]
mod host {
    pub(super) fn memory() -> Option<super::DeviceMemory> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_there_is_is_an_error() {
        for count in [1 << 50, usize::MAX / 4, usize::MAX] {
            let found = [
                zeros::<f32>("a", count).err(),
                with_capacity::<u8>("a", count.max(1 << 60)).err(),
                check::<f32>("a", count).err(),
                reserve::<f32>("a", &mut vec![1.0], count).err(),
            ];
            for error in found {
                let Some(error @ Error::OutOfMemory { .. }) = error else { panic!("{count}: {error:?}") };
                assert!(error.to_string().starts_with("a: ") && error.to_string().contains("GB"), "{error}");
            }
        }
        assert_eq!(filled("a", 3, 2u8).ok(), Some(vec![2; 3]));
        assert_eq!(collect("a", 0..3).ok(), Some(vec![0, 1, 2]));
        assert_eq!(zeros::<u32>("a", 0).ok(), Some(Vec::new()));
    }

    #[test]
    fn sizes_are_readable() {
        let shown = [12, 3_400_000, 1_230_000_000, 1 << 62].map(|bytes| Bytes(bytes).to_string());
        assert_eq!(shown, ["12 bytes", "3.4 MB", "1.23 GB", "4.61e9 GB"]);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_host_says_what_it_has() {
        let memory = DeviceMemory::of_host().expect("Linux says it");
        assert!(memory.free > 1 << 20 && memory.total > 1 << 20, "{memory:?}");
        let text = "MemTotal:       8 kB\nMemFree: 1 kB\nMemAvailable:   3 kB\nSwapFree: 2 kB\n";
        assert_eq!(host::of_machine(text), Some(DeviceMemory { total: 8192, free: 5120 }));
        assert_eq!(host::of_machine("MemFree: 1 kB"), None);
    }
}
