//! Shuffles: lanes of a warp read each other's registers.
//!
//! A shuffle names the lanes that take part, and all of them must come to it. Here all 32 do: shuffles are methods where
//! control flow is converged.

use super::{Axis, Converged, Scope};
use crate::types::{Class, Reg, Type, Value};

/// All lanes of a warp.
const ALL: &str = "0xffffffff";

impl<F> Scope<'_, F> {
    /// Number of the thread in its warp, 0 to 31.
    pub fn lane(&mut self) -> Reg<u32> {
        self.writer.whole_warps();
        let thread = self.thread_index(Axis::X);
        self.and(thread, 31u32)
    }

    /// Number of the warp in its block.
    pub fn warp(&mut self) -> Reg<u32> {
        self.writer.whole_warps();
        let thread = self.thread_index(Axis::X);
        self.shr(thread, 5u32)
    }
}

impl Scope<'_, Converged> {
    /// The value of the lane whose number differs by the bits of `mask`.
    ///
    /// Five steps give every lane the sum over the warp:
    ///
    /// ```
    /// # use hecate_ptx::{kernel};
    /// # kernel("example", [64, 1, 1], |k| {
    /// let lane = k.lane();
    /// let sum = k.to_f32(lane);
    /// for mask in [16, 8, 4, 2, 1] {
    ///     let other = k.shuffle_xor(sum, mask);
    ///     k.add_to(sum, other);
    /// }
    /// # })?;
    /// # Ok::<(), hecate_ptx::Error>(())
    /// ```
    ///
    /// Lanes that other lanes do not come with have nobody to ask:
    ///
    /// ```compile_fail,E0599
    /// hecate_ptx::kernel("wrong", [64, 1, 1], |k| {
    ///     let lane = k.lane();
    ///     let is_low = k.lt(lane, 16u32);
    ///     k.if_(is_low, |k| drop(k.shuffle_xor(lane, 1)));
    /// });
    /// ```
    pub fn shuffle_xor<A: Value>(&mut self, a: A, mask: u32) -> Reg<A::Type> {
        self.shuffle("bfly", a, mask)
    }

    /// The value of lane `lane`.
    ///
    /// ```
    /// # use hecate_ptx::{kernel};
    /// # kernel("example", [64, 1, 1], |k| {
    /// let lane = k.lane();
    /// let first = k.shuffle_from(lane, 0u32); // 0 in every lane
    /// # })?;
    /// # Ok::<(), hecate_ptx::Error>(())
    /// ```
    pub fn shuffle_from<A: Value>(&mut self, a: A, lane: impl Value<Type = u32>) -> Reg<A::Type> {
        self.shuffle("idx", a, lane)
    }

    fn shuffle<A: Value>(&mut self, mode: &str, a: A, lane: impl Value<Type = u32>) -> Reg<A::Type> {
        const {
            assert!(
                matches!(A::Type::CLASS, Class::F32 | Class::U32 | Class::B32),
                "shuffles move registers of 32 bits"
            )
        };
        self.writer.whole_warps();
        let d = self.writer.register::<A::Type>();
        self.writer.line(format_args!("shfl.sync.{mode}.b32 {d}, {}, {}, 31, {ALL}", a.operand(), lane.operand()));
        d
    }
}
