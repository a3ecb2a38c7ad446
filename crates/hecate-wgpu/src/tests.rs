//! Tests that need no suite: of the texts of kernels, which need no adapter, and of the device, which do.

mod kernels;
