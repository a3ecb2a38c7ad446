//! Models on the CPU: layers against 64-bit arithmetic, compositions, decoding, the bridge to dfdx, training and its files.

/// What all modules here run on.
mod column {
    pub(crate) type Column = hecate_cpu::Cpu;

    /// One device for arrays that meet in a call.
    pub(crate) fn device() -> Column {
        static CPU: std::sync::LazyLock<Column> = std::sync::LazyLock::new(Column::new);
        CPU.clone()
    }

    /// Another pool of memory: another device.
    pub(crate) fn another() -> Column {
        Column::new()
    }

    /// This column is never missing.
    pub(crate) fn is_missing() -> bool {
        false
    }

    /// Every configuration of every rule.
    pub(crate) fn sample<T>(all: Vec<T>, _: usize) -> Vec<T> {
        all
    }
}

mod bridge;
mod compositions;
mod configs;
mod decoding;
mod devices;
mod fp8;
mod layers;
mod levels;
mod own;
mod prepared;
mod quantized;
mod remembering;
mod sessions;
mod speculating;
mod steps;
mod training;
