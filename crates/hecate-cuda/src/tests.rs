//! What can be tested without a GPU: the kernels' code, the cache, and what is said where there is no driver.

mod cache;
mod kernels;
mod ptx;
mod transfers;

use crate::{Cuda, nvrtc::Nvrtc};
use cudarc::driver::sys;
use hecate_core::Error;
use std::{env, io::Write as _};

/// A line that is seen even where the output of passing tests is not.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// The compiler; without it the test is skipped, which is said, and fails where `HECATE_REQUIRE` names `nvrtc`.
fn nvrtc() -> Option<Nvrtc> {
    let why = match Nvrtc::find() {
        Ok(nvrtc) => return Some(nvrtc),
        Err(why) => format!("NVRTC: {why} (`pip install nvidia-cuda-nvrtc`, or name its folder in HECATE_NVRTC)"),
    };
    let required = env::var("HECATE_REQUIRE").unwrap_or_default();
    assert!(!required.split(',').any(|name| name.trim() == "nvrtc"), "HECATE_REQUIRE asks for nvrtc: {why}");
    say(&format!("skipped: nvrtc: {why}"));
    None
}

/// Where there is no driver, that is an error which names what was looked for and a way out.
#[test]
fn without_a_driver() {
    // SAFETY: looks for a library by name and opens it; libcuda's initialisers are the vendor's.
    #[allow(unsafe_code)]
    if unsafe { sys::is_culib_present() } {
        return say("skipped: without_a_driver: there is one here");
    }
    for error in [Cuda::new(0).map(|_| ()), Cuda::new(7).map(|_| ()), Cuda::count().map(|_| ())] {
        let error = error.expect_err("an error without a driver");
        assert!(matches!(error, Error::Unsupported { backend: "cuda", .. }), "{error:?}");
        let text = error.to_string();
        for expected in ["cuda", "libcuda.so.1", "install", "another device"] {
            assert!(text.contains(expected), "`{text}` does not say `{expected}`");
        }
    }
}
