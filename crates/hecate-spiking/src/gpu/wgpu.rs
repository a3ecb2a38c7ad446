//! Any GPU that wgpu reaches, on the WebGPU backend's queue and its kernels of one's own.

use super::{
    engine::{Arrays, Decided, Delivered, Engine, Learned, List, Recent},
    spiking,
};
use crate::{Result, builder};
use hecate_wgpu::{Binding, OwnSource, Wgpu};

/// What fired delivers.
static DELIVER: OwnSource =
    OwnSource::new("spiking_deliver", &[include_str!("burst.wgsl"), include_str!("deliver.wgsl")]);
/// Neurons that something reached decide.
static DECIDE: OwnSource = OwnSource::new("spiking_decide", &[include_str!("burst.wgsl"), include_str!("decide.wgsl")]);
/// What fired is noted.
static NOTE: OwnSource = OwnSource::new("spiking_note", &[include_str!("learn.wgsl"), include_str!("note.wgsl")]);
/// Weights change.
static WEIGHTS: OwnSource =
    OwnSource::new("spiking_weights", &[include_str!("learn.wgsl"), include_str!("weights.wgsl")]);

/// Invocations of a workgroup.
const INVOCATIONS: usize = 256;
/// Most workgroups that deliver or learn, whose invocations go on to the next neuron.
const WORKGROUPS: usize = 1024;

/// Workgroups for so many invocations, at least one.
fn groups(invocations: usize) -> usize {
    invocations.div_ceil(INVOCATIONS).clamp(1, WORKGROUPS)
}

impl Engine for Wgpu {
    type Kernels = ();

    /// Kernels are compiled when they are first started.
    fn kernels(&self, _: bool) -> Result<()> {
        Ok(())
    }

    fn set_block(_: &mut (), threads: u32) -> Result<()> {
        Err(builder::value("network", 0, "block", threads, "none: workgroups of WebGPU have 256 invocations"))
    }

    fn most_bytes(&self) -> u64 {
        self.adapter().largest_array
    }

    fn deliver(&self, (): &(), net: &Arrays<Self>, of: &Delivered<'_, Self>) -> Result<()> {
        use Binding::{Read, Write};
        let (rows, List { fired, counts, parity, .. }) = (&net.rows, of.list);
        let places = &of.segment.places;
        // What only the other kernel reads is zero.
        let parameters = [parity, of.staged_count as u32, of.first.into(), 0, 0, 0, 0, 0, places.start, places.end];
        let bindings = [
            Read(&rows.starts),
            Read(&of.segment.entries),
            Read(&rows.sources),
            Read(fired),
            Write(counts),
            Read(of.staged),
            Write(&net.sums),
            Write(&net.candidates),
        ];
        Ok(self.launch_own(&DELIVER, "spiking_deliver", groups(of.threads()), &parameters, &bindings)?)
    }

    fn decide(&self, (): &(), net: &Arrays<Self>, of: &Decided) -> Result<()> {
        use Binding::{Read, Write};
        let (count, neurons) = (of.count as u32, of.neurons as u32);
        let parameters = [of.parity, 0, 0, count, neurons, of.start as u32, of.burst, of.forgets.into(), 0, 0];
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

    /// The list of what fired is bound, since both kernels of the file share their bindings; it is not read.
    fn age(&self, (): &(), recent: &Recent<Self>, fired: &List<'_, Self>) -> Result<()> {
        let parameters = noted(recent, 0);
        Ok(self.launch_own(
            &NOTE,
            "spiking_age",
            recent.count.div_ceil(INVOCATIONS),
            &parameters,
            &bound(recent, fired),
        )?)
    }

    fn note(&self, (): &(), recent: &Recent<Self>, fired: &List<'_, Self>) -> Result<()> {
        let parameters = noted(recent, fired.parity);
        Ok(self.launch_own(&NOTE, "spiking_note", groups(fired.most), &parameters, &bound(recent, fired))?)
    }

    fn learn(&self, (): &(), recent: &Recent<Self>, of: &Learned<'_, Self>) -> Result<()> {
        use Binding::{Read, Write};
        let (places, [rise, fall]) = (&of.segment.places, of.steps.unwrap_or_default());
        // Fields of the structure in `learn.wgsl`, in order.
        let [count, planes, _, ..] = noted(recent, 0);
        let (members, start) = (of.member_count as u32, of.part.start as u32);
        let parameters = [count, planes, 0, members, places.start, places.end, start, of.area, of.window, rise, fall];
        let bindings = [
            Read(&of.rows.starts),
            Write(&of.segment.entries),
            Read(&recent.bits),
            Read(of.places),
            Read(of.members),
            Read(of.table),
        ];
        // One file has both forms, with the same bindings.
        let entry = if of.steps.is_some() { "spiking_learn_windows" } else { "spiking_learn_pairs" };
        let groups = groups(of.member_count.saturating_mul(32));
        Ok(self.launch_own(&WEIGHTS, entry, groups, &parameters, &bindings)?)
    }
}

/// Parameters of what is noted.
fn noted(recent: &Recent<Wgpu>, parity: u32) -> [u32; 11] {
    let mut parameters = [0; 11];
    parameters[..3].copy_from_slice(&[recent.count as u32, recent.planes as u32, parity]);
    parameters
}

/// Arrays of what is noted.
fn bound<'a>(recent: &'a Recent<Wgpu>, list: &List<'a, Wgpu>) -> [Binding<'a>; 3] {
    [Binding::Write(&recent.bits), Binding::Read(list.fired), Binding::Read(list.counts)]
}

spiking!(Wgpu, "wgpu");
