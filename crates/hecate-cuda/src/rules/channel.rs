//! Linear memories that forget by key channel: equations (110)–(118).

use crate::{
    arguments::arguments,
    recurrent::{Recurrent, StepKernels, WorkspaceSize, step_kernels},
    source::{KernelSource, kernel_source},
};
use hecate_core::{
    Dims,
    families::{Channel, ChannelGate, ChannelRule, RetentionAxis},
};

/// Token by token, for every form.
pub(crate) const SOURCE: KernelSource = kernel_source!("channel", "channel.cu");

step_kernels! { KERNELS: SOURCE, Cell { "channel_forward" Forward, "channel_backward" Backward } }

arguments! {
    /// Twin of `channel.cu`'s `Channel`. Gates that a form lacks begin at [`NONE`].
    pub(crate) struct Cell {
        /// 1 where `log a` is one number a channel.
        by_channel: u32,
        /// Kinds of the erase key and of the rewrite key, as the core numbers them.
        erase: u32,
        rewrite: u32,
        /// 1 where the erase reads the memory before its decay.
        undecayed: u32,
        /// Where gates begin among a token's.
        theta_at: u32,
        erase_at: u32,
        rewrite_at: u32,
        factors_at: u32,
        /// Widths `K` and `V`.
        key: u32,
        value: u32,
    }
}

/// Where a gate that is absent begins.
const NONE: u32 = u32::MAX;

impl<R: ChannelRule> Recurrent<Channel> for R {
    type Cell = Cell;
    const KERNELS: StepKernels<Cell> = KERNELS;

    fn cell(self, dims: &Dims) -> Cell {
        let at = |gate| R::FORM.offset(gate, dims.key, dims.value).map_or(NONE, |at| at as u32);
        Cell {
            by_channel: (R::FORM.retention == RetentionAxis::Channel).into(),
            erase: R::FORM.erase.number(),
            rewrite: R::FORM.rewrite.number(),
            undecayed: R::FORM.undecayed.into(),
            theta_at: at(ChannelGate::Theta),
            erase_at: at(ChannelGate::Erase),
            rewrite_at: at(ChannelGate::Rewrite),
            factors_at: at(ChannelGate::Factors),
            key: dims.key as u32,
            value: dims.value as u32,
        }
    }

    /// What was erased; what `channel.cu` says of its scratch.
    fn workspace(self, dims: &Dims) -> WorkspaceSize {
        let record = if R::FORM.erases() { dims.value } else { 0 };
        WorkspaceSize { record, scratch: 8 * dims.key + 3 * dims.value, in_place: true, ahead: 0 }
    }
}
