//! Any GPU that wgpu reaches, on the WebGPU backend's queue and its kernels of one's own.

use super::{Arrays, Decided, Delivered, Engine, spiking};
use crate::Result;
use hecate_wgpu::{Binding, OwnSource, Wgpu};

/// What fired delivers.
static DELIVER: OwnSource =
    OwnSource::new("spiking_deliver", &[include_str!("burst.wgsl"), include_str!("deliver.wgsl")]);
/// Neurons that something reached decide.
static DECIDE: OwnSource = OwnSource::new("spiking_decide", &[include_str!("burst.wgsl"), include_str!("decide.wgsl")]);

/// Invocations of a workgroup.
const INVOCATIONS: usize = 256;
/// Most workgroups that deliver, whose invocations go on to the next neuron that fired.
const WORKGROUPS: usize = 1024;

impl Engine for Wgpu {
    fn deliver(&self, net: &Arrays<Self>, of: &Delivered<'_, Self>) -> Result<()> {
        use Binding::{Read, Write};
        let rows = &net.rows;
        let parameters = [of.parity, of.staged_count as u32, of.first.into(), 0, 0, 0, 0, 0];
        let bindings = [
            Read(&rows.starts),
            Read(&rows.entries),
            Read(&rows.sources),
            Read(of.fired),
            Write(of.counts),
            Read(of.staged),
            Write(&net.sums),
            Write(&net.candidates),
        ];
        let groups = of.threads().div_ceil(INVOCATIONS).clamp(1, WORKGROUPS);
        Ok(self.launch_own(&DELIVER, "spiking_deliver", groups, &parameters, &bindings)?)
    }

    fn decide(&self, net: &Arrays<Self>, of: &Decided) -> Result<()> {
        use Binding::{Read, Write};
        let (count, neurons) = (of.count as u32, of.neurons as u32);
        let parameters = [of.parity, 0, 0, count, neurons, of.start as u32, of.burst, of.forgets.into()];
        let bindings = [
            Write(&net.sums),
            Write(&net.candidates),
            Write(&net.potentials),
            Write(&net.states),
            Read(&net.sorts),
            Read(&net.table),
            Write(&net.fired[of.parity as usize]),
            Write(&net.counts),
        ];
        // 32 neurons an invocation.
        let groups = of.count.div_ceil(32 * INVOCATIONS);
        Ok(self.launch_own(&DECIDE, "spiking_decide", groups, &parameters, &bindings)?)
    }
}

spiking!(Wgpu, "wgpu");
