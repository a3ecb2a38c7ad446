//! What can be tested without a GPU: the kernels' code, the cache, and what is said where there is no driver.

mod alone;
mod arguments;
mod cache;
mod driver;
mod kernels;
mod launches;
mod ptx;
mod settled;
mod transfers;
mod usage;

use crate::{Cuda, device::check_ordinal, nvrtc::Nvrtc};
use cudarc::driver::sys;
use hecate_core::Error;
use std::{env, io::Write as _};

/// A line that is seen even where the output of passing tests is not.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// The compiler; without it the test is skipped, which is said, and fails where `HECATE_REQUIRE` names `nvrtc`.
/// So a machine without it runs the other tests, and one that is to have it cannot skip by mistake.
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

/// Whether `HECATE_KERNELS=all` asks for what is recorded to be compiled again.
/// That takes many minutes, which a change of a few files is not worth.
fn compiles_all() -> bool {
    env::var("HECATE_KERNELS").is_ok_and(|value| value.trim() == "all")
}

/// Says how many files of kernels are compiled because no record knows them.
fn unrecorded(architecture: &str, count: usize) {
    if count > 0 && !compiles_all() {
        say(&format!(
            "{count} files are compiled for {architecture}, since they are not in its record: `UPDATE=1 cargo test -p \
             hecate-cuda` puts them there"
        ));
    }
}

/// The first GPU; without one the test is skipped, which is said, and fails where `HECATE_REQUIRE` names `cuda`.
/// Tests that need numbers of a GPU return early without it.
fn device() -> Option<Cuda> {
    let why = match Cuda::new(0) {
        Ok(cuda) => return Some(cuda),
        Err(error) => error.to_string(),
    };
    let required = env::var("HECATE_REQUIRE").unwrap_or_default();
    assert!(!required.split(',').any(|name| name.trim() == "cuda"), "HECATE_REQUIRE asks for cuda: {why}");
    say(&format!("skipped: cuda: {why}"));
    None
}

/// Numbers that the driver does not list are refused before anything is opened.
#[test]
fn numbers_of_gpus_that_are_not_there() {
    assert!(check_ordinal(0, 1).is_ok() && check_ordinal(7, 8).is_ok());
    for (ordinal, count) in [(1, 1), (8, 8), (usize::MAX, 2)] {
        let error = check_ordinal(ordinal, count).expect_err("there is none");
        assert!(matches!(error, Error::NoSuchDevice { backend: "cuda", .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains(&ordinal.to_string()) && text.contains(&count.to_string()), "{text}");
    }
    let Some(device) = device() else { return };
    assert_eq!(device.ordinal(), 0);
    let count = Cuda::count().expect("a number");
    let error = Cuda::new(count).map(drop).expect_err("one more than there are");
    assert!(matches!(error, Error::NoSuchDevice { ordinal, .. } if ordinal == count), "{error}");
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
        assert!(matches!(error, Error::NoDevice { backend: "cuda", .. }), "{error:?}");
        let text = error.to_string();
        for expected in ["no cuda device", "libcuda.so.1", "install the NVIDIA driver", "another device"] {
            assert!(text.contains(expected), "`{text}` does not say `{expected}`");
        }
    }
}
