//! Groups of memories whose weights are an image of the state, (54) and (55): what takes the place of masked products.
//!
//! Inner gradients are products all the same. Reads are of an image of every token's state, so tokens go one after another there;
//! but a column of a state goes by itself, in registers: `sweep.wgsl` has a workgroup for every few columns of every memory.

use super::{
    IMAGES,
    pass::{Job, Pass},
    places::{Cutter, Panel, Places},
};
use crate::launch::Kernel;
use crate::parameters::parameters;
use hecate_core::{
    Read, Result,
    families::DeepSpec,
    rules::{Map, Retention},
};

/// `THREADS` of `groups.wgsl`, and columns of an invocation.
const THREADS: usize = super::pass::THREADS;
const COLUMNS: usize = 4;
/// `PARTS` of `mapped.wgsl`, `SLAB`, and its lists by slab.
const PARTS: usize = 8;
const SLAB: usize = 16;
const LISTS: usize = 4;
/// The largest q whose powers are taken in units that are bounds of elements (`move_unit` of `sweep.wgsl`).
const MOST_POWER: f32 = 8.0;

/// How a workgroup has the columns of a layer.
#[derive(Clone, Copy)]
struct Tiling {
    /// Invocations that share a column, and of each its rows.
    down: usize,
    rows: usize,
}

impl Tiling {
    /// That of most rows.
    const LARGEST: Self = Self { down: THREADS, rows: 16 };

    /// By the rows of a layer; none where they are too many for registers.
    fn of(rows: usize) -> Option<Self> {
        let all = [(8, 8), (32, 8), (64, 16)];
        all.into_iter().find(|(down, own)| rows <= down * own).map(|(down, rows)| Self { down, rows })
    }

    /// Invocations side by side.
    fn across(self) -> usize {
        THREADS / self.down
    }

    /// Workgroups of so many columns.
    fn blocks(self, wide: usize) -> usize {
        wide.div_ceil(self.across() * COLUMNS)
    }
}

parameters! {
    /// Where one layer's panels are, of memories whose weights are an image of the state.
    #[derive(Default)]
    pub(super) struct LayerPlaces {
        /// Rows of the layer's matrices; 0 for a layer that a matrix does not have.
        rows: u32,
        /// Columns of its matrices.
        wide: u32,
        /// Where it is written, `[G,rows]`.
        key: u32,
        /// What it is asked, `[G,rows]`.
        query: u32,
        /// What it is written with, `[G,wide]`.
        value: u32,
        /// What is read, `[G,wide]`.
        out: u32,
        /// X `[rows,wide]`.
        state: u32,
        /// Its image at the group's start.
        weights: u32,
        /// The gradient of that.
        dweights: u32,
        /// The gradient of X.
        dstate: u32,
        /// What X goes back to.
        anchor: u32,
        /// The gradient of that.
        danchor: u32,
        /// The gradient of what is read.
        dout: u32,
        /// The gradient of queries.
        dquery: u32,
        /// The gradient of keys.
        dkey: u32,
        /// The gradient of what is written.
        dvalue: u32,
        /// Logarithms of columns' sums `[G + 1,wide]`, of distributions alone.
        logs: u32,
        /// Parts of sums of powers `[8 blocks,G]`, of (54) alone.
        norms: u32,
        /// States before chunks of tokens, as invocations have them.
        starts: u32,
        /// States before the tokens of a chunk, in the same order.
        trail: u32,
        /// Parts of gradients of queries and keys `[blocks,G,2,rows]`.
        parts: u32,
        /// Parts of gradients of a `[8 blocks,G]`.
        da: u32,
        /// Lists by slabs of rows.
        by_slab: u32,
        /// Workgroups of a sweep.
        blocks: u32,
    }
}

/// What kernels of a rule's sweeps are compiled for.
#[derive(Clone, Copy)]
pub(super) struct Sweeps {
    /// `RETENTION`.
    retention: Retention,
    /// Whether tokens read after their own write, and whether states go back to an anchor.
    after: bool,
    anchored: bool,
}

/// What a sweep forward leaves beside what it reads.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Leaves {
    /// The state behind the group, over the one before.
    State = 1,
    /// States before chunks of tokens.
    Starts = 2,
}

impl Sweeps {
    /// None where weights are the state.
    pub(super) fn new(spec: DeepSpec, anchored: bool) -> Option<Self> {
        let after = spec.read == Read::After;
        (spec.retention != Retention::Decay).then_some(Self { retention: spec.retention, after, anchored })
    }

    /// Whether sweeps do for a memory whose longer matrix has so many rows: these have room in registers, and powers in 32 bits.
    pub(super) fn fit(spec: DeepSpec, rows: usize) -> bool {
        let small = !matches!(spec.retention, Retention::Lq { q, .. } if q > MOST_POWER);
        small && Tiling::of(rows).is_some()
    }

    /// Whether weights need a norm of the whole matrix, as those of (54).
    fn normed(self) -> bool {
        matches!(self.retention, Retention::Lq { .. })
    }

    /// Both layers' places, of which those of sweeps alone are cut now.
    pub(super) fn layers(self, p: &Places, all: &mut Cutter, backward: bool) -> [LayerPlaces; 2] {
        let group = p.group as usize;
        let tilings = p.state.map(|state| Tiling::of(state.rows as usize).unwrap_or(Tiling::LARGEST));
        let blocks = |n: usize| tilings[n].blocks(p.state[n].columns as usize);
        // One layer goes back after the other: what it needs for that, the other one has had.
        let states = [0, 1].map(|n| blocks(n) * tilings[n].rows * COLUMNS * THREADS);
        let most = |each: [usize; 2]| if backward { each[0].max(each[1]) } else { 0 };
        let trail = all.panel(chunk(self.normed()), most(states)).at;
        let parts = all.panel(2 * group, most([0, 1].map(|n| blocks(n) * p.state[n].rows as usize))).at;
        let da = all.panel(PARTS * group, most([0, 1].map(blocks))).at;
        let mut layer = |n: usize, [key, query, value, out]: [Panel; 4], [dout, dquery, dkey, dvalue]: [Panel; 4]| {
            // The first layer of a matrix is not there.
            let [rows, wide] = if p.state[n].count() == 0 { [0; 2] } else { p.state[n].sizes() };
            // A forward keeps no states inside a group.
            let chunks = if backward { group.div_ceil(chunk(self.normed())) } else { 0 };
            let norms = if self.normed() { PARTS * blocks(n) } else { 0 };
            let logs = if self.normed() { 0 } else { wide as usize };
            LayerPlaces {
                rows,
                wide,
                key: key.at,
                query: query.at,
                value: value.at,
                out: out.at,
                state: p.state[n].at,
                weights: p.weights[n].at,
                dweights: p.dweights[n].at,
                dstate: p.dstate[n].at,
                anchor: p.anchor[n].at,
                danchor: p.danchor[n].at,
                dout: dout.at,
                dquery: dquery.at,
                dkey: dkey.at,
                dvalue: dvalue.at,
                logs: all.panel(group + 1, logs).at,
                norms: all.panel(group, norms).at,
                starts: all.panel(chunks, states[n]).at,
                trail,
                parts,
                da,
                by_slab: all.panel(LISTS, (rows as usize).div_ceil(SLAB)).at,
                blocks: blocks(n) as u32,
            }
        };
        [
            layer(0, [p.k, p.q, p.z0, p.read_pre], [p.dread_h, p.dq, p.dk, p.dback]),
            layer(1, [p.h, p.read_h, p.z1, p.prediction], [p.dread, p.dread_h, p.dh, p.dz1]),
        ]
    }

    /// Constants of kernels, for a layer of so many rows and columns.
    fn constants(self, rows: usize, wide: usize) -> Constants {
        let tiling = Tiling::of(rows).unwrap_or(Tiling::LARGEST);
        // Then no load has to ask whether it is inside.
        let whole = rows == tiling.down * tiling.rows && wide.is_multiple_of(tiling.across() * COLUMNS);
        let (power, literal) = match self.retention {
            Retention::Lq { q, map } => (power(q), map == Map::Literal),
            _ => (0, false),
        };
        let Self { after, anchored, .. } = self;
        constants(Variant { power, literal, after, anchored, whole, tiling, ..Variant::of(self.normed()) })
    }
}

/// Powers that are products; 0 stands for others.
fn power(q: f32) -> u32 {
    if [2.0, 3.0, 4.0].contains(&q) { q as u32 } else { 0 }
}

/// What kernels are compiled for.
#[derive(Clone, Copy)]
struct Variant {
    /// (54) and not (55).
    normed: bool,
    /// q where |y|^{q-2} is a product, else 0.
    power: u32,
    /// Whether weights are the literal map's.
    literal: bool,
    /// Whether tokens read after their own write.
    after: bool,
    /// Whether states go back to an anchor.
    anchored: bool,
    /// Whether tiles cover the matrix without a rest.
    whole: bool,
    /// How a workgroup has its columns.
    tiling: Tiling,
}

impl Variant {
    /// The plainest one.
    const fn of(normed: bool) -> Self {
        let (after, tiling) = (true, Tiling { down: 8, rows: 8 });
        Self { normed, power: 0, literal: false, after, anchored: false, whole: false, tiling }
    }
}

/// As kernels name them.
type Constants = [(&'static str, u32); 10];

const fn constants(variant: Variant) -> Constants {
    let Variant { normed, power, literal, after, anchored, whole, tiling: Tiling { down, rows } } = variant;
    [
        ("RETENTION", if normed { 1 } else { 2 }),
        ("POWER", power),
        ("LITERAL", literal as u32),
        ("AFTER", after as u32),
        ("ANCHORED", anchored as u32),
        ("WHOLE", whole as u32),
        ("DOWN", down as u32),
        ("ACROSS", (THREADS / down) as u32),
        ("ROWS", rows as u32),
        ("CHUNK", chunk(normed) as u32),
    ]
}

/// Tokens that invocations go through by themselves.
const fn chunk(normed: bool) -> usize {
    // Distributions leave three numbers a column, and workgroup memory is small.
    if normed { 8 } else { 4 }
}

impl Pass<'_> {
    /// A kernel of sweeps that needs no layer's tiling.
    fn image(&self, entry: &'static str, workgroups: u32, layer: usize) -> Result<()> {
        let Some(sweeps) = self.has.sweeps else { return Ok(()) };
        let kernel = Kernel { source: &IMAGES, entry, constants: &sweeps.constants(1, 1) };
        let args = self.args(Job { origin: layer as u32, ..Job::default() });
        let groups = (workgroups as usize, self.memories, 1);
        self.device.launch(&kernel, groups, &args, &self.bindings(self.arrays.read[0], self.arrays.made))
    }

    /// The same where only (54) has something to do.
    fn norm(&self, entry: &'static str, workgroups: u32, layer: usize) -> Result<()> {
        if self.has.sweeps.is_some_and(Sweeps::normed) { self.image(entry, workgroups, layer) } else { Ok(()) }
    }

    /// A sweep over one layer.
    #[expect(unsafe_code, reason = "sweeps are what most time goes to")]
    fn sweep(&self, entry: &'static str, layer: usize, plus: u32) -> Result<()> {
        let Some(sweeps) = self.has.sweeps else { return Ok(()) };
        let LayerPlaces { rows, wide, blocks, .. } = self.places.layers[layer];
        let kernel = Kernel { source: &IMAGES, entry, constants: &sweeps.constants(rows as usize, wide as usize) };
        let args = self.args(Job { origin: layer as u32, plus, ..Job::default() });
        let bindings = self.bindings(self.arrays.read[0], self.arrays.made);
        // SAFETY: elements are those of panels that `Sweeps::layers` cut for these tilings, or are left out (`element`, `put_four`).
        // Memories are those of the call, and its tables have a place for each. Tokens end inside a group, and loops with them or
        // with constants. It divides by constants, by heads, of which there is one at least, and by floats.
        unsafe { self.device.launch_unchecked(&kernel, (blocks as usize, self.memories, 1), &args, &bindings) }
    }

    /// Slabs of both layers' matrices.
    fn slabs(&self) -> u32 {
        self.places.layers.iter().map(|layer| layer.rows.div_ceil(SLAB as u32)).sum()
    }

    /// Gates, and weights at the state before the group.
    pub(super) fn begin_images(&self) -> Result<()> {
        let slabs = self.slabs();
        if let Some(sweeps) = self.has.sweeps {
            self.arrive(&Kernel { source: &IMAGES, entry: "gates", constants: &sweeps.constants(1, 1) })?;
        }
        self.norm("tops", slabs, 0)?;
        self.norm("powers", slabs, 0)?;
        self.image("images", slabs, 0)
    }

    /// The layers that there are.
    fn swept(&self) -> std::ops::Range<usize> {
        usize::from(self.matrix())..2
    }

    /// The state after the group.
    pub(super) fn sweep_ahead(&self) -> Result<()> {
        self.norm("reach", 2 * self.places.group, 0)?;
        self.swept().try_for_each(|layer| self.sweep("sweep", layer, Leaves::State as u32))
    }

    /// What queries read of all states of the group, layer by layer.
    pub(super) fn sweeps(&self, leaves: Leaves) -> Result<()> {
        self.norm("reach", 2 * self.places.group, 0)?;
        self.swept().try_for_each(|layer| {
            self.sweep("sweep", layer, leaves as u32)?;
            self.image("looks", self.places.group, layer)
        })
    }

    /// All gradients of a group but those that go to results by row; the state is the one before it.
    pub(super) fn sweeps_back(&self) -> Result<()> {
        self.begin()?;
        self.inner_grads()?;
        self.sweeps(Leaves::Starts)?;
        self.answer_back()?;
        for layer in self.swept().rev() {
            // From the second layer to the first, as gradients go.
            self.norm("slopes", self.places.group, layer)?;
            self.sweep("sweep_back", layer, 0)?;
            self.image("gather", self.places.group, layer)?;
        }
        // What was written is known for all tokens: inner gradients go back at once.
        self.inner_grads_back()?;
        let slabs = self.slabs();
        self.norm("alongs", slabs, 0)?;
        self.image("pull", slabs, 0)?;
        self.image("gates_back", 1, 0)
    }
}

/// Kernels of sweeps as tests compile them.
macro_rules! kernels {
    ($($constants:expr),*) => {
        &[$(
            Kernel { source: &IMAGES, entry: "gates", constants: $constants },
            Kernel { source: &IMAGES, entry: "tops", constants: $constants },
            Kernel { source: &IMAGES, entry: "powers", constants: $constants },
            Kernel { source: &IMAGES, entry: "images", constants: $constants },
            Kernel { source: &IMAGES, entry: "alongs", constants: $constants },
            Kernel { source: &IMAGES, entry: "pull", constants: $constants },
            Kernel { source: &IMAGES, entry: "reach", constants: $constants },
            Kernel { source: &IMAGES, entry: "looks", constants: $constants },
            Kernel { source: &IMAGES, entry: "slopes", constants: $constants },
            Kernel { source: &IMAGES, entry: "gather", constants: $constants },
            Kernel { source: &IMAGES, entry: "gates_back", constants: $constants },
            Kernel { source: &IMAGES, entry: "sweep", constants: $constants },
            Kernel { source: &IMAGES, entry: "sweep_back", constants: $constants },
        )*]
    };
}

/// Both maps, at every tiling.
pub(crate) const KERNELS: &[Kernel<'static>] = kernels!(
    &constants(Variant { power: 4, anchored: true, whole: true, ..Variant::of(true) }),
    &constants(Variant { after: false, literal: true, tiling: Tiling { down: 32, rows: 8 }, ..Variant::of(true) }),
    &constants(Variant { power: 3, tiling: Tiling::LARGEST, ..Variant::of(true) }),
    &constants(Variant { anchored: true, whole: true, ..Variant::of(false) }),
    &constants(Variant { after: false, tiling: Tiling { down: 32, rows: 8 }, ..Variant::of(false) }),
    &constants(Variant { tiling: Tiling::LARGEST, ..Variant::of(false) })
);
