//! Specifications: names, launches, and sizes that are refused when they are made.

use crate::golden::specifications;
use std::time::{Duration, Instant};

#[test]
fn names_are_those_of_entries() {
    for specification in specifications() {
        let module = specification.write().expect("a kernel");
        assert_eq!(module.name(), specification.name());
        assert!(module.text().contains(&format!(".visible .entry {}(\n", specification.name())), "{specification:?}");
        assert_eq!(module.block(), specification.launch().block, "{specification:?}");
    }
}

/// A kernel is text within a millisecond: the fastest of some tries, since other programs run beside this one.
#[test]
fn a_millisecond_a_kernel() {
    for specification in specifications() {
        let tries = (0..20).map(|_| {
            let start = Instant::now();
            specification.write().expect("a kernel");
            start.elapsed()
        });
        let fastest = tries.min().expect("some tries");
        println!("{:?}: {fastest:?}", specification);
        assert!(fastest <= Duration::from_millis(1), "{specification:?} took {fastest:?}");
    }
}
