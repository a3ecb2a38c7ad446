//! What a column of the matrix must provide.

use crate::{
    Kernel, Rule,
    families::{ChannelEngine, DeepEngine, LinearEngine},
    primitives::Primitives,
    rules::*,
};

macro_rules! declare_rules {
    ($($rule:ident),*) => {
        /// Every rule: the engines of the families, and a cell of each rule that has kernels of its own. One that is missing
        /// is a compile error where a [`Backend`] is asked for.
        ///
        /// With the engines come rules that no list has:
        ///
        /// ```
        /// use hecate_core::{Backend, Kernel, families::LinearRule};
        /// fn wants_a_cell<D: Kernel<R>, R: LinearRule>(_: &D, _: R) {}
        /// fn any_linear_rule<B: Backend, R: LinearRule>(device: &B, rule: R) {
        ///     wants_a_cell(device, rule);
        /// }
        /// ```
        ///
        /// A device without cells is a [`Device`](crate::Device) still:
        ///
        /// ```
        /// use hecate_core::{DType, Device, DeviceId, Host, Result};
        ///
        /// #[derive(Clone, Debug)]
        /// struct Memory(DeviceId);
        /// impl Device for Memory {
        ///     const NAME: &'static str = "memory";
        ///     type Buffer = Host;
        ///     fn id(&self) -> &DeviceId {
        ///         &self.0
        ///     }
        ///     fn check_buffer(&self, _: &Host, _: DType, _: usize) -> Result<()> {
        ///         Ok(())
        ///     }
        ///     fn upload(&self, host: Host) -> Result<Host> {
        ///         Ok(host)
        ///     }
        ///     fn download(&self, buffer: &Host, _: DType, _: usize) -> Result<Host> {
        ///         Ok(buffer.clone())
        ///     }
        ///     fn synchronize(&self) -> Result<()> {
        ///         Ok(())
        ///     }
        /// }
        /// fn wants_a_device<D: Device>(_: &D) {}
        /// wants_a_device(&Memory(DeviceId::new(|number| format!("memory {number}"))));
        /// ```
        ///
        /// It is no backend, and no place for a rule that it has no cell of:
        ///
        /// ```compile_fail,E0277
        /// # use hecate_core::{DType, Device, DeviceId, Host, Result};
        /// # #[derive(Clone, Debug)]
        /// # struct Memory(DeviceId);
        /// # impl Device for Memory {
        /// #     const NAME: &'static str = "memory";
        /// #     type Buffer = Host;
        /// #     fn id(&self) -> &DeviceId {
        /// #         &self.0
        /// #     }
        /// #     fn check_buffer(&self, _: &Host, _: DType, _: usize) -> Result<()> {
        /// #         Ok(())
        /// #     }
        /// #     fn upload(&self, host: Host) -> Result<Host> {
        /// #         Ok(host)
        /// #     }
        /// #     fn download(&self, buffer: &Host, _: DType, _: usize) -> Result<Host> {
        /// #         Ok(buffer.clone())
        /// #     }
        /// #     fn synchronize(&self) -> Result<()> {
        /// #         Ok(())
        /// #     }
        /// # }
        /// use hecate_core::{Kernel, rules::Delta};
        /// fn wants_a_cell<D: Kernel<Delta>>(_: &D) {}
        /// wants_a_cell(&Memory(DeviceId::new(|number| format!("memory {number}"))));
        /// ```
        pub trait Rules: $(Kernel<$rule> +)* LinearEngine + ChannelEngine + DeepEngine {}
        impl<D: $(Kernel<$rule> +)* LinearEngine + ChannelEngine + DeepEngine> Rules for D {}
    };
}
crate::rule_list! { own declare_rules [] }

/// Compiles where a device has a cell of this rule.
const fn has_cell<D: Kernel<R>, R: Rule>() {}

/// That a [`Backend`] has all of them is a matter of compiling.
macro_rules! check_cells {
    ($($rule:ident),*) => {
        #[expect(dead_code, reason = "it only has to compile")]
        const fn check_cells<B: Backend>() {
            $(has_cell::<B, $rule>();)*
        }
    };
}
crate::for_each_rule!(check_cells);

/// A whole column: every primitive and every rule, forward and backward. Never implemented by hand.
pub trait Backend: Primitives + Rules {}
impl<D: Primitives + Rules> Backend for D {}
