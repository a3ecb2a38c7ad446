//! What Mesa's layer over Vulkan would say on machines without a session.

use std::{env, path::Path};

/// Variables by which users ask that layer for a GPU, or do without it.
const CHOICES: [&str; 3] = ["NODEVICE_SELECT", "MESA_VK_DEVICE_SELECT", "DRI_PRIME"];

/// Does without the layer that asks a Wayland compositor which GPU shows windows, where there is none to ask: it would complain
/// that `XDG_RUNTIME_DIR` is not set, twice, on standard error. To be called before there are threads.
#[allow(unsafe_code)]
pub(crate) fn ask_no_compositor() {
    let session = env::var_os("XDG_RUNTIME_DIR").is_some_and(|folder| Path::new(&folder).is_absolute());
    if session || CHOICES.iter().any(|name| env::var_os(name).is_some()) {
        return;
    }
    // SAFETY: this program has one thread so far, so that nobody reads the environment meanwhile.
    unsafe { env::set_var(CHOICES[0], "1") };
}
