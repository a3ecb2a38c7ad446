//! Tests that need no suite: of the texts of kernels, which need no adapter, and of the device, which do.

mod device;
mod groups;
mod kernels;
mod numbers;
mod parameters;
mod rounds;

use crate::{Selection, Wgpu};

/// An adapter, or nothing where there is none, which is said, and fails where `HECATE_REQUIRE` asks for it.
fn open() -> Option<Wgpu> {
    match Wgpu::new(&Selection::Default) {
        Ok(wgpu) => Some(wgpu),
        Err(error) => {
            let required = std::env::var("HECATE_REQUIRE").unwrap_or_default();
            assert!(!required.split(',').any(|name| name.trim() == "wgpu"), "HECATE_REQUIRE asks for wgpu: {error}");
            println!("skipped: wgpu: {error}");
            None
        }
    }
}
