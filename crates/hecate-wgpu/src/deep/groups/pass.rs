//! Some memories forward, group by group.

use super::{
    GROUPS, Groups, PRODUCTS,
    cooperative::{Cooperative, Packs},
    mapped::Leaves,
    places::{Has, Matrices, Number, Panel, Places},
    product::{Kind, Product, ProductArgs, Share, Term},
};
use crate::{
    Wgpu,
    deep::cell,
    launch::{Binding, Kernel},
    parameters::parameters,
    recurrent::{Arrays, CellWords as Cell, RecurrentCall},
};
use hecate_core::{Read, Result, Tensor};
use std::cell::OnceCell;

/// Invocations of a workgroup between products.
pub(super) const THREADS: usize = 64;

parameters! {
    /// What a kernel between products is told.
    pub(super) struct GroupArgs {
        /// The rule and its options.
        cell: Cell,
        /// First sequence and head of the dispatch.
        sequence_head: u32,
        /// First token of the group.
        start: u32,
        /// As in [`Job`].
        origin: u32,
        /// As in [`Job`].
        to: u32,
        /// As in [`Job`].
        width: u32,
        /// As in [`Job`].
        plus: u32,
    }
}

/// What a kernel between products is told.
#[derive(Clone, Copy, Default)]
pub(super) struct Job {
    /// The panel that is read.
    pub(super) origin: u32,
    /// The panel that is written, or an element of results.
    pub(super) to: u32,
    /// Elements of a row, or of all.
    pub(super) width: u32,
    /// A panel that joins; 0 for none.
    pub(super) plus: u32,
}

/// One of both layers in a pass: queries and what they read, keys and what they write.
#[derive(Clone, Copy)]
pub(super) struct Layer {
    /// 0 or 1.
    pub(super) number: usize,
    /// What the layer is asked.
    pub(super) query: Panel,
    /// Where it is written.
    pub(super) key: Panel,
    /// With what.
    pub(super) z: Panel,
}

/// Memories whose panels are in the workspace.
pub(super) struct Pass<'a> {
    pub(super) groups: &'a Groups,
    pub(super) device: &'a Wgpu,
    pub(super) places: Places,
    pub(super) has: Has,
    pub(super) call: RecurrentCall,
    pub(super) arrays: &'a Arrays<'a>,
    /// `groups.wgsl`'s `Plan`.
    pub(super) plan: Tensor<Wgpu>,
    /// Panels of all memories, `[memories, each]`.
    pub(super) workspace: Tensor<Wgpu>,
    /// Packed factors of cooperative products.
    pub(super) packs: OnceCell<Packs>,
    /// First sequence and head, and how many.
    pub(super) first: u32,
    pub(super) memories: usize,
    /// First token of the group in work.
    pub(super) start: usize,
}

impl Pass<'_> {
    /// Whether gradients are taken where momentum leads.
    pub(super) fn looks_ahead(&self) -> bool {
        self.groups.spec.looks_ahead()
    }

    /// Whether the memory is one matrix.
    pub(super) fn matrix(&self) -> bool {
        self.groups.hidden == 0
    }

    /// Whether inputs are added to outputs.
    pub(super) fn residual(&self) -> bool {
        self.groups.options.residual != 0
    }

    /// What kernels between products are told.
    pub(super) fn args(&self, job: Job) -> GroupArgs {
        let Job { origin, to, width, plus } = job;
        let (cell, sequence_head, start) = (cell(self.groups.options), self.first, self.start as u32);
        GroupArgs { cell, sequence_head, start, origin, to, width, plus }
    }

    /// Their arrays.
    pub(super) fn bindings<'b>(&'b self, x: &'b Tensor<Wgpu>, out: &'b Tensor<Wgpu>) -> [Binding<'b>; 5] {
        [
            Binding::Read(&self.plan),
            Binding::Read(self.arrays.read[3]),
            Binding::Read(x),
            Binding::Write(&self.workspace),
            Binding::Write(out),
        ]
    }

    /// A kernel of `groups.wgsl` on so many workgroups a memory.
    fn launch(
        &self,
        entry: &'static str,
        workgroups: usize,
        job: Job,
        x: &Tensor<Wgpu>,
        out: &Tensor<Wgpu>,
    ) -> Result<()> {
        let constants = [("BIAS", self.groups.bias)];
        let kernel = Kernel { source: &GROUPS, entry, constants: &constants };
        let groups = (workgroups, self.memories, 1);
        self.device.launch(&kernel, groups, &self.args(job), &self.bindings(x, out))
    }

    /// One that a token has a workgroup for, or a row.
    pub(super) fn by_rows(&self, entry: &'static str, rows: u32, job: Job) -> Result<()> {
        self.launch(entry, rows as usize, job, self.arrays.read[0], self.arrays.made)
    }

    /// One that an element has an invocation for.
    pub(super) fn by_elements(&self, entry: &'static str, elements: u32, job: Job, out: &Tensor<Wgpu>) -> Result<()> {
        self.launch(entry, (elements as usize).div_ceil(THREADS), job, self.arrays.read[0], out)
    }

    /// The group's rows of an array.
    pub(super) fn load(&self, x: &Tensor<Wgpu>, panel: Panel) -> Result<()> {
        let job = Job { to: panel.at, width: panel.columns, ..Job::default() };
        self.launch("load", (panel.count() as usize).div_ceil(THREADS), job, x, self.arrays.made)
    }

    /// The group's rows to results from element `to` on, with a panel that joins them.
    pub(super) fn store(&self, panel: Panel, plus: Option<Panel>, to: u32) -> Result<()> {
        let plus = plus.map_or(0, |plus| plus.at);
        let job = Job { origin: panel.at, to, width: panel.columns, plus };
        self.by_elements("store", panel.count(), job, self.arrays.made)
    }

    /// A product.
    pub(super) fn multiply(&self, product: &Product) -> Result<()> {
        let read_after = self.groups.spec.read == Read::After;
        let args = product.args(&self.places, cell(self.groups.options), read_after);
        let way = Cooperative::new(self.device, product, &self.places);
        way.map_or_else(|| self.multiply_plain(product, &args), |way| self.multiply_cooperative(way, product, &args))
    }

    /// One that goes by no matrices of the device.
    #[expect(unsafe_code, reason = "a product is what most time goes to")]
    fn multiply_plain(&self, product: &Product, args: &ProductArgs) -> Result<()> {
        let workgroups = (product.tiles(), self.memories, 1);
        // SAFETY: the kernel reads and writes elements of panels alone, which `Places` cut from the workspace, and reads a memory's
        // first element where it is outside of a matrix. `Product` has
        // compared their sizes, and `Groups` has seen that workgroups are not folded. It divides by constants and by the tiles
        // of a row, and its loops end.
        unsafe { self.device.launch_unchecked(&PRODUCTS[0], workgroups, args, &[Binding::Write(&self.workspace)]) }
    }

    /// x W, and where momentum looks ahead x (W + S): products at the point where gradients are taken.
    pub(super) fn at_point(&self, x: Panel, weights: Panel, momentum: Panel) -> impl Iterator<Item = Term> {
        let ahead = self.looks_ahead().then(|| Term::new(x, momentum));
        [Term::new(x, weights)].into_iter().chain(ahead)
    }

    /// The state from place to place.
    fn states(&self, entry: &'static str, job: Job, out: &Tensor<Wgpu>) -> Result<()> {
        self.by_elements(entry, self.call.state, job, out)
    }

    /// Initial states, or gradients of final ones.
    pub(super) fn open(&self, to: Matrices) -> Result<()> {
        self.states("open", Job { to: to[0].at, ..Job::default() }, self.arrays.made)
    }

    /// Final states, or gradients of initial ones.
    pub(super) fn close(&self, origin: Matrices) -> Result<()> {
        self.states("close", Job { origin: origin[0].at, ..Job::default() }, self.arrays.made)
    }

    /// The kept state before the group.
    pub(super) fn recall(&self) -> Result<()> {
        self.states("recall", Job::default(), self.arrays.kept)
    }

    /// A state from one place to another.
    pub(super) fn copy(&self, origin: u32, to: u32) -> Result<()> {
        self.states("copy", Job { origin, to, width: self.call.state, plus: 0 }, self.arrays.made)
    }

    /// The group's rows and masks; or gates, and weights where they are an image of the state.
    pub(super) fn begin(&self) -> Result<()> {
        if self.has.sweeps.is_some() {
            return self.begin_images();
        }
        let constants = [("BIAS", self.groups.bias)];
        self.arrive(&Kernel { source: &GROUPS, entry: "masks", constants: &constants })
    }

    /// A kernel whose first workgroup has the gates, and whose others bring rows.
    pub(super) fn arrive(&self, kernel: &Kernel<'_>) -> Result<()> {
        let [q, k, v, _] = self.arrays.read;
        let widest = self.places.k.columns.max(self.places.v.columns);
        let workgroups = 1 + ((self.places.group * widest) as usize).div_ceil(THREADS);
        let [plan, given, q, workspace, made] = self.bindings(q, self.arrays.made);
        let bindings = [plan, given, q, workspace, made, Binding::Read(k), Binding::Read(v)];
        self.device.launch(kernel, (workgroups, self.memories, 1), &self.args(Job::default()), &bindings)
    }

    /// What both layers are written with, at the weights that the group starts with.
    pub(super) fn inner_grads(&self) -> Result<()> {
        let p = &self.places;
        let [low, high] = p.weights;
        let [low_s, high_s] = p.momentum;
        if !self.matrix() {
            self.multiply(&Product::new(p.pre, self.at_point(p.k, low, low_s)).kind(Kind::Activate(p.h)))?;
        }
        self.multiply(&Product::new(p.prediction, self.at_point(p.h, high, high_s)))?;
        self.by_rows("inner_grad_rows", p.group, Job::default())?;
        if self.matrix() {
            return Ok(());
        }
        let back = Product::new(p.z0, self.at_point(p.u, high.t(), high_s.t()));
        self.multiply(&back.kind(Kind::Write(p.back, p.pre)))
    }

    /// The first layer, which a matrix does not have.
    pub(super) fn low(&self) -> Option<Layer> {
        let p = &self.places;
        (!self.matrix()).then_some(Layer { number: 0, query: p.q, key: p.k, z: p.z0 })
    }

    /// The second layer.
    pub(super) fn high(&self) -> Layer {
        let p = &self.places;
        Layer { number: 1, query: p.read_h, key: p.h, z: p.z1 }
    }

    /// What queries read of a layer.
    pub(super) fn read(&self, layer: &Layer, out: Panel, kind: Kind) -> Result<()> {
        let p = &self.places;
        let (query, square) = (layer.query, p.square);
        self.multiply(&Product::new(square, [Term::new(query, layer.key.t())]).kind(Kind::Mask))?;
        let of = |matrices: &Matrices, number| Term::new(query, matrices[layer.number]).by(number);
        let mut terms = vec![of(&p.weights, Number::ReadA), Term::new(square, layer.z)];
        terms.extend(self.has.momentum.then(|| of(&p.momentum, Number::ReadB)));
        terms.extend(self.has.anchor.then(|| of(&p.anchor, Number::ReadRest)));
        self.multiply(&Product::new(out, terms).kind(kind))
    }

    /// The hidden layer that queries find.
    pub(super) fn read_low(&self) -> Result<()> {
        let p = &self.places;
        self.low().map_or(Ok(()), |low| self.read(&low, p.read_pre, Kind::Activate(p.read_h)))
    }

    /// The state after the group.
    pub(super) fn write(&self) -> Result<()> {
        if self.has.sweeps.is_some() {
            return self.sweep_ahead();
        }
        let p = &self.places;
        for Layer { number, key, z, .. } in self.low().into_iter().chain([self.high()]) {
            let (x, s, anchor) = (p.weights[number], p.momentum[number], p.anchor[number]);
            let written = |by| [Term::new(key.t(), z).by_depth(by)];
            // Of the momentum before the group, so this comes first.
            let weights = Product::new(x, written(Number::LastC)).own(Share::Kept);
            let weights = weights.join(self.has.momentum, s, Share::Pushed).join(self.has.anchor, anchor, Share::Rest);
            self.multiply(&weights)?;
            if self.has.momentum {
                self.multiply(&Product::new(s, written(Number::LastE)).own(Share::Left))?;
            }
        }
        Ok(())
    }

    /// What queries read of the group's states, in place of predictions, which are not needed any more; and the state after it.
    fn reads(&self) -> Result<()> {
        if self.has.sweeps.is_some() {
            return self.sweeps(Leaves::State);
        }
        self.read_low()?;
        self.read(&self.high(), self.places.prediction, Kind::Plain)?;
        self.write()
    }

    /// Outputs out of what queries read, in place.
    ///
    /// Without a layer norm they are the same.
    fn answer(&self) -> Result<()> {
        if !self.has.norm {
            return Ok(());
        }
        let Panel { at, rows, columns, .. } = self.places.prediction;
        self.by_rows("outputs_of_reads", rows, Job { origin: at, width: columns, ..Job::default() })
    }

    /// Gradients of what queries read, out of those of outputs.
    pub(super) fn answer_back(&self) -> Result<()> {
        if !self.has.norm {
            return Ok(());
        }
        let Places { prediction, dout, dread, .. } = &self.places;
        let job = Job { origin: prediction.at, plus: dout.at, to: dread.at, width: dout.columns };
        self.by_rows("answer_back", dout.rows, job)
    }

    /// Group by group.
    pub(super) fn forward(mut self, longest: usize, keeps: bool) -> Result<()> {
        self.open(self.places.state)?;
        for start in (0..longest).step_by(self.places.group as usize) {
            self.start = start;
            if keeps && start % self.call.unit as usize == 0 {
                self.states("keep", Job::default(), self.arrays.kept)?;
            }
            self.begin()?;
            self.inner_grads()?;
            self.reads()?;
            self.answer()?;
            let p = &self.places;
            self.store(p.prediction, self.residual().then_some(p.q), 0)?;
        }
        self.close(self.places.state)
    }
}
