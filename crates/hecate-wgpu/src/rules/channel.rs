//! Linear memories that forget by key channel: equations (110)–(118).
//!
//! One pair of kernels runs all rules of the family: which keys a token erases by, and which gates there are, is told at launch.
//! A token goes over the memory twice forward and four times back, by rows and by columns in turn.

use crate::{
    launch::{Kernel, WgslSource},
    parameters::{Parameters, parameters},
    recurrent::{self, CellWords, NO_PRODUCTS, Recurrent, WorkspaceSize, cell_words},
};
use hecate_core::{
    Dims,
    families::{Channel, ChannelGate, ChannelRule, RetentionAxis},
};

parameters! {
    /// A form at a call's sizes. Gates that it lacks begin at [`NONE`].
    struct Cell {
        /// 1 where `log a` is one number a channel.
        by_channel: u32,
        /// Kind of the erase key, as the core numbers them.
        erase: u32,
        /// Kind of the rewrite key.
        rewrite: u32,
        /// 1 where the erase reads the memory before its decay.
        undecayed: u32,
        /// Where `θ` is among a token's gates.
        theta_at: u32,
        /// Where the erase key's gate begins.
        erase_at: u32,
        /// Where that of the rewrite key begins.
        rewrite_at: u32,
        /// Where `ω` begins.
        factors_at: u32,
    }
}

/// Where a gate that is absent begins.
const NONE: u32 = u32::MAX;

/// The kernels of all rules of the family.
const SOURCES: [&WgslSource; 2] = recurrent::sources! {
    "channel",
    [NO_PRODUCTS, Cell::WGSL, include_str!("channel.wgsl")],
    [include_str!("channel_forward.wgsl")],
    [include_str!("channel_backward.wgsl")],
};

/// As tests compile them.
pub(crate) const KERNELS: &[Kernel<'static>] = recurrent::kernels!(SOURCES);

impl<R: ChannelRule> Recurrent<Channel> for R {
    const SOURCES: [&'static WgslSource; 2] = SOURCES;

    fn cell(self, dims: &Dims) -> CellWords {
        let at = |gate| R::FORM.offset(gate, dims.key, dims.value).map_or(NONE, |at| at as u32);
        cell_words(&Cell {
            by_channel: (R::FORM.retention == RetentionAxis::Channel).into(),
            erase: R::FORM.erase.number(),
            rewrite: R::FORM.rewrite.number(),
            undecayed: R::FORM.undecayed.into(),
            theta_at: at(ChannelGate::Theta),
            erase_at: at(ChannelGate::Erase),
            rewrite_at: at(ChannelGate::Rewrite),
            factors_at: at(ChannelGate::Factors),
        })
    }

    /// In elements, as `channel.wgsl` cuts them up: what was erased is left for the backward.
    fn workspace(self, dims: &Dims) -> WorkspaceSize {
        let record = if R::FORM.erases() { dims.value } else { 0 };
        WorkspaceSize { record, scratch: 8 * dims.key + 3 * dims.value, matrices: 0, ahead: 0 }
    }
}
