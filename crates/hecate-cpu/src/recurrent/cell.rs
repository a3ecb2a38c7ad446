//! What the engine and the rules hand each other: one token, or a chunk of tokens, forward and back.
//!
//! The engine owns all arrays and states. A cell sees slices of one head, and keeps nothing between calls but its workspace.

use super::anchor::Decay;

/// One token's arguments. All is of one head, without gaps.
#[derive(Clone, Copy)]
pub(crate) struct Token<'a> {
    /// `[K]`.
    pub(crate) q: &'a [f32],
    /// `[K]`.
    pub(crate) k: &'a [f32],
    /// `[V]`.
    pub(crate) v: &'a [f32],
    /// The gates one after another, in the order of their slots.
    pub(crate) gates: &'a [f32],
}

/// Gradients of the arguments of one token, or of a chunk's tokens, in the same shapes. Zero when given.
pub(crate) struct TokenGrads<'a> {
    /// `[K]`, or `[n,K]` of a chunk.
    pub(crate) q: &'a mut [f32],
    /// Like `q`.
    pub(crate) k: &'a mut [f32],
    /// `[V]`, or `[n,V]`.
    pub(crate) v: &'a mut [f32],
    /// All slots of a token side by side, as in its arguments.
    pub(crate) gates: &'a mut [f32],
}

/// States around one token.
#[derive(Clone, Copy)]
pub(crate) struct TokenStates<'a> {
    /// Before the token.
    pub(crate) old: &'a [f32],
    /// Where the gradient is taken: `old`, or the state at the start of the group.
    pub(crate) point: &'a [f32],
    /// After the token.
    pub(crate) new: &'a [f32],
}

/// Gradients of states.
pub(crate) struct StateGrads<'a> {
    /// Of the state after the token when given, of the state before it when handed back, `point` not counted.
    pub(crate) state: &'a mut [f32],
    /// Of the point; to be added to.
    pub(crate) point: &'a mut [f32],
}

/// One token forward.
pub(crate) struct StepForward<'a, S> {
    /// Its arguments.
    pub(crate) token: Token<'a>,
    /// The state before the token.
    pub(crate) old: &'a [f32],
    /// Where the gradient is taken: `old`, or the state at the start of the group.
    pub(crate) point: &'a [f32],
    /// Set: the state after the token.
    pub(crate) new: &'a mut [f32],
    /// Set: [`Cell::record`] elements for the token's backward.
    pub(crate) record: &'a mut [f32],
    /// The head's workspace: any values, unless the cell says otherwise.
    pub(crate) scratch: &'a mut S,
    /// Set: what the query reads, `[V]`.
    pub(crate) out: &'a mut [f32],
}

/// One token backward.
pub(crate) struct StepBackward<'a, S> {
    /// Its arguments, as in the forward.
    pub(crate) token: Token<'a>,
    /// The states around it, computed again.
    pub(crate) states: TokenStates<'a>,
    /// What the forward left.
    pub(crate) record: &'a [f32],
    /// Gradient of what the query read, `[V]`.
    pub(crate) dout: &'a [f32],
    /// Of the states, added to and handed back.
    pub(crate) adjoint: StateGrads<'a>,
    /// The head's workspace, as in the forward.
    pub(crate) scratch: &'a mut S,
    /// Of the arguments.
    pub(crate) grads: TokenGrads<'a>,
}

/// A rule with all sizes known: what one token does.
///
/// Everything called here is `#[inline(always)]`.
/// It is then compiled for the widest vectors together with its caller.
pub(crate) trait Cell: Sync {
    /// Workspace for one token's intermediate results, one a head.
    /// Nothing is allocated in the loop over tokens.
    type Scratch: Send;

    /// A head's workspace.
    fn scratch(&self) -> Self::Scratch;

    /// Elements that a token's forward leaves for its backward.
    /// They are what is dear to compute and small: rows, never matrices.
    fn record(&self) -> usize;

    /// `out [V]` and the state after the token, from the state before it.
    /// Every element of `new`, `record` and `out` is written.
    fn forward(&self, step: StepForward<'_, Self::Scratch>);

    /// Gradients of a token's arguments and of the state before it.
    fn backward(&self, step: StepBackward<'_, Self::Scratch>);

    /// The next token is not the neighbour of the last one.
    /// Whatever the workspace holds of the last token's states is then void.
    fn reset_shared(&self, _: &mut Self::Scratch) {}

    /// Whether [`Cell::backward`] adds the point's gradient to that of the state before the token itself.
    /// Where no group is frozen they are the same state, and one pass over it saves another.
    fn merges_point(&self) -> bool {
        false
    }

    /// Elements of the weights, where gradients are taken not at them but at their sum with the momentum after them.
    /// Then the point's first elements are that sum, and its gradient is that of both.
    fn ahead(&self) -> usize {
        0
    }

    /// From states of calls, and anchors, to those that steps work on, with `sign` 1; and back with −1. They may count from
    /// elsewhere.
    fn shift(&self, _state: &mut [f32], _sign: f32) {}

    /// Rows and columns of the state's first slots, where their columns go back to the anchor's lengths as groups start.
    fn renormed(&self) -> &[[usize; 2]] {
        &[]
    }

    /// The form in matrix products over several tokens of one group, where the rule has one.
    fn groups(&self) -> Option<&dyn GroupedForm<Self::Scratch>> {
        None
    }

    /// Bytes of a head's workspace, that of [`Cell::groups`] included: for the peak memory.
    fn scratch_bytes(&self) -> usize;
}

/// Arguments of several neighbouring tokens of one group, row after row.
#[derive(Clone, Copy)]
pub(crate) struct TokenRows<'a> {
    /// `n`, at least 1.
    pub(crate) tokens: usize,
    /// `[n,K]`.
    pub(crate) q: &'a [f32],
    /// `[n,K]`.
    pub(crate) k: &'a [f32],
    /// `[n,V]`.
    pub(crate) v: &'a [f32],
    /// `[n, all gates]`.
    pub(crate) gates: &'a [f32],
}

/// What a chunk's states go back to as they forget. `log a` of the gates is 0 then, and `decays` stand for it.
#[derive(Clone, Copy)]
pub(crate) struct GroupAnchor<'a> {
    /// `B`, as long as the state's first slots that have one.
    pub(crate) anchor: &'a [f32],
    /// Of the chunk's tokens, `[n]`.
    pub(crate) decays: &'a [Decay],
}

/// A chunk forward; `S` is a head's workspace.
pub(crate) struct GroupForward<'a, S> {
    /// The chunk's arguments.
    pub(crate) rows: TokenRows<'a>,
    /// The head's workspace: any values, unless the cell says otherwise.
    pub(crate) scratch: &'a mut S,
    /// The state before the chunk.
    pub(crate) old: &'a [f32],
    /// Set: the state after the chunk.
    pub(crate) new: &'a mut [f32],
    /// The state at the group's start; `old` itself where the chunk is the group's first.
    pub(crate) point: &'a [f32],
    /// Where the state goes as it forgets, unless that is zero.
    pub(crate) anchor: Option<GroupAnchor<'a>>,
    /// Set: `[n,V]`.
    pub(crate) out: &'a mut [f32],
}

/// A chunk backward.
pub(crate) struct GroupBackward<'a, S> {
    /// The chunk's arguments, as in the forward.
    pub(crate) rows: TokenRows<'a>,
    /// The head's workspace, as in the forward.
    pub(crate) scratch: &'a mut S,
    /// Of any length, with any values: for states around the chunk's tokens.
    pub(crate) tokens: &'a mut Vec<f32>,
    /// Likewise, for weights that are made of states.
    pub(crate) weights: &'a mut Vec<Vec<f32>>,
    /// The state before the chunk.
    pub(crate) start: &'a [f32],
    /// The state at the group's start.
    pub(crate) point: &'a [f32],
    /// Whether that is `start`.
    pub(crate) opens: bool,
    /// As in the forward; its gradient is `danchor`.
    pub(crate) anchor: Option<GroupAnchor<'a>>,
    /// `[n,V]`.
    pub(crate) dout: &'a [f32],
    /// Of the states, added to and handed back.
    pub(crate) adjoint: StateGrads<'a>,
    /// Of the anchor, to be added to; empty where there is none.
    pub(crate) danchor: &'a mut [f32],
    /// Of the arguments, row after row.
    pub(crate) grads: TokenGrads<'a>,
}

/// A chunk of at most [`CHUNK`] tokens inside one group at once, as matrix products.
pub(crate) trait GroupedForm<S>: Sync {
    /// Reads of the chunk's tokens, and the state after it.
    fn forward(&self, chunk: GroupForward<'_, S>);

    /// The state after the chunk alone: `out` may take any values.
    fn advance(&self, chunk: GroupForward<'_, S>) {
        self.forward(chunk);
    }

    /// Gradients of the chunk's arguments and of the state before it.
    fn backward(&self, chunk: GroupBackward<'_, S>);

    /// Whether [`GroupedForm::backward`] adds the point's gradient to that of the state before the chunk itself, where both are
    /// one state: in a group's first chunk.
    fn merges_start(&self) -> bool {
        false
    }
}
