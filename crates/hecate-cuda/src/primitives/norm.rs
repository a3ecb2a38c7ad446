//! Normalising rows.
//!
//! A row of up to 1,024 runs of 16 bytes stays in registers between its sum and its result, so arrays are read once.
//! Longer rows are read twice. A group of a row's columns is a row to these kernels. A gate in front of the norm acts on rows in
//! registers too; [`gated_norm`] has longer ones.
//! Sums are in 32 bits, in an order that depends on width and type alone.

use super::{
    gated_norm,
    reduce::{Parts, Terms, sum_columns},
    whole_rows::RowBlocks,
};
use crate::{
    Cuda,
    arguments::{In, Out, Void, arguments},
    launch::{Array, Grid, KernelArguments, kernels, pointer},
    source::{KernelSource, kernel_source},
};
use hecate_core::{
    Checked, DType, Result, Tensor,
    primitives::{AddedNorm, GateFunction, GatePlace, Norm, Normed, RmsNormBackward, RmsNormInputs, RmsNormOptions},
};

/// `F.rms_norm(x, [width], weight, epsilon)`, also of groups, gated or with a residual, and `F.normalize`; gradients.
pub(crate) const SOURCE: KernelSource = kernel_source!("norm", "norm.cu");

arguments! {
    /// The same in the kernels: what rows are times.
    pub(super) struct Scale {
        /// `[groups · width]`, or not looked at.
        weight: Array,
        /// Rows that one weight serves.
        groups: u32,
        /// Added to weights.
        offset: f32,
    }
}

impl Scale {
    /// Without a weight.
    const NONE: Self = Self { weight: Array::NONE, groups: 1, offset: 0.0 };

    /// Of a weight that all groups of a row have their part of.
    pub(super) fn new(weight: &Tensor<Cuda>, options: RmsNormOptions) -> Self {
        // Adding 0 changes no bit of a weight.
        let offset = f32::from(u8::from(options.one_plus));
        Self { weight: weight.into(), groups: options.groups as u32, offset }
    }
}

arguments! {
    /// The same in the kernels.
    pub(super) struct Gate {
        /// Like `x`, or not looked at.
        g: Array,
        /// 1 for the sigmoid, 0 for SiLU.
        sigmoid: u32,
    }
}

impl Gate {
    const NONE: Self = Self { g: Array::NONE, sigmoid: 0 };

    /// Of a gate with this function, wherever it stands.
    pub(super) fn new(g: &Tensor<Cuda>, options: RmsNormOptions) -> Self {
        Self { g: g.into(), sigmoid: u32::from(options.function == GateFunction::Sigmoid) }
    }
}

arguments! {
    /// What forward kernels take; `Normalise` in the kernels.
    struct NormCall {
        /// `x`, `y` and the gate are `[rows, width]`, `inverse` is `[rows]` in 32 bits.
        x: Array,
        y: Array,
        /// Like `x`, or not looked at: what is added to `x` before, and the sum.
        residual: Array,
        sum: Array,
        scale: Scale,
        gate: Gate,
        inverse: Out<f32>,
        rows: u64,
        width: u64,
        /// Under the root; for lengths its square is.
        epsilon: f32,
        /// Threads of a row.
        lanes: u32,
        /// 1 for lengths, without a weight.
        l2: u32,
    }
}

arguments! {
    /// What backward kernels take; `NormaliseBackward` in the kernels.
    struct NormBackwardCall {
        /// `x`, `dy` and `dx` are `[rows, width]`, `inverse` is `[rows]`.
        x: Array,
        dy: Array,
        dx: Array,
        scale: Scale,
        inverse: In<f32>,
        rows: u64,
        width: u64,
        /// `1 / width`, or 1 for lengths.
        share: f32,
        /// Threads of a row.
        lanes: u32,
        /// 1 for lengths, without a weight.
        l2: u32,
    }
}

arguments! {
    /// What kernels take that make all gradients; `NormaliseGradients` in the kernels.
    struct NormGradientsCall {
        /// As above, and `dg` is `[rows, width]` or not looked at.
        x: Array,
        dy: Array,
        dx: Array,
        scale: Scale,
        gate: Gate,
        dg: Array,
        /// Like `dx`, to which it is added, or not looked at.
        dsum: Array,
        inverse: In<f32>,
        /// Of `dweight`: `[blocks, width]`.
        parts: Out<Void>,
        rows: u64,
        width: u64,
        lanes: u32,
    }
}

kernels! { SOURCE {
    // By the length of rows, see [`Rows`]: y, then dx alone, then all gradients.
    "normalise_short" Short { call: NormCall }
    "normalise_medium" Medium { call: NormCall }
    "normalise_large" Large { call: NormCall }
    "normalise" Long { call: NormCall }
    // The sum with a residual beside y.
    "add_normalise_short" AddShort { call: NormCall }
    "add_normalise_medium" AddMedium { call: NormCall }
    "add_normalise_large" AddLarge { call: NormCall }
    // Of what a gate lets through.
    "gated_normalise_short" GatedShort { call: NormCall }
    "gated_normalise_medium" GatedMedium { call: NormCall }
    "gated_normalise_large" GatedLarge { call: NormCall }
    // x, dy and dx [rows, width].
    "normalise_short_backward" ShortBackward { call: NormBackwardCall }
    "normalise_medium_backward" MediumBackward { call: NormBackwardCall }
    "normalise_backward" LongBackward { call: NormBackwardCall }
    // The same with dweight.
    "normalise_short_gradients" ShortGradients { call: NormGradientsCall }
    "normalise_medium_gradients" MediumGradients { call: NormGradientsCall }
    "normalise_large_gradients" LargeGradients { call: NormGradientsCall }
    "normalise_larger_gradients" LargerGradients { call: NormGradientsCall }
    // And with dg, of a gate behind the norm and of one in front.
    "normalise_gated_short_gradients" ShortBehind { call: NormGradientsCall }
    "normalise_gated_medium_gradients" MediumBehind { call: NormGradientsCall }
    "normalise_gated_large_gradients" LargeBehind { call: NormGradientsCall }
    "normalise_gated_larger_gradients" LargerBehind { call: NormGradientsCall }
    "gated_normalise_short_gradients" ShortInFront { call: NormGradientsCall }
    "gated_normalise_medium_gradients" MediumInFront { call: NormGradientsCall }
    "gated_normalise_large_gradients" LargeInFront { call: NormGradientsCall }
    "gated_normalise_larger_gradients" LargerInFront { call: NormGradientsCall }
    // Arrays [rows, width], of long rows with a gate.
    "open_gate" OpenGate {
        x: Array, dy: Array, dg: Array, through: Array, scale: Scale, gate: Gate, inverse: In<f32>, rows: u64, width: u64
    }
} }

impl Norm for Cuda {
    /// `y = w x / √(mean x² + ε)`, times `act(g)` where there is a gate, and one over the root, `[rows · groups]`.
    fn rms_norm(
        &self,
        _: Checked<Self>,
        options: RmsNormOptions,
        inputs: &RmsNormInputs<&Tensor<Self>>,
    ) -> Result<Normed<Tensor<Self>>> {
        let gate = inputs.g.map_or(Gate::NONE, |g| Gate::new(g, options));
        normalise(self, options.epsilon, inputs.x, Before::Nothing, Some(Scale::new(inputs.weight, options)), gate)
    }

    /// The gradient of the gate is written beside the others.
    fn rms_norm_backward(
        &self,
        checked: Checked<Self>,
        call: &RmsNormBackward<'_, Self>,
    ) -> Result<RmsNormInputs<Tensor<Self>>> {
        gradients(self, checked, call, None)
    }

    /// One kernel, which reads long rows twice, the second time from the caches.
    fn gated_first(
        &self,
        _: Checked<Self>,
        options: RmsNormOptions,
        inputs: &RmsNormInputs<&Tensor<Self>>,
        g: &Tensor<Self>,
    ) -> Result<Normed<Tensor<Self>>> {
        let x = inputs.x;
        // Whether registers hold a group depends on its width and type alone.
        if matches!(Rows::new(x.shape().last() / options.groups, Array::from(x).wide()), Rows::Long) {
            return gated_norm::forward(self, options, inputs, g);
        }
        let (scale, gate) = (Scale::new(inputs.weight, options), Gate::new(g, options));
        normalise(self, options.epsilon, x, Before::Gate, Some(scale), gate)
    }

    /// One kernel for both factors of what the gate lets through, and of rows that are kept the parts of a sum over rows.
    fn gated_first_backward(
        &self,
        checked: Checked<Self>,
        call: &RmsNormBackward<'_, Self>,
        _: &Tensor<Self>,
    ) -> Result<RmsNormInputs<Tensor<Self>>> {
        gradients(self, checked, call, None)
    }

    /// Kernels that keep rows add up and normalise in one pass.
    fn add_rms_norm(
        &self,
        checked: Checked<Self>,
        options: RmsNormOptions,
        residual: &Tensor<Self>,
        inputs: &RmsNormInputs<&Tensor<Self>>,
    ) -> Result<AddedNorm<Tensor<Self>>> {
        let x = inputs.x;
        if matches!(Rows::new(x.shape().last() / options.groups, Array::from(x).wide()), Rows::Long) {
            return self.add_rms_norm_by_parts(checked, options, residual, inputs);
        }
        // The norm reads the sum as it is rounded, whether it comes from memory or not.
        let sum = self.empty(x.shape().clone(), x.dtype())?;
        let gate = inputs.g.map_or(Gate::NONE, |g| Gate::new(g, options));
        let (before, scale) = (Before::Residual([residual, &sum]), Scale::new(inputs.weight, options));
        let normed = normalise(self, options.epsilon, x, before, Some(scale), gate)?;
        Ok(AddedNorm { sum, normed })
    }

    /// In one pass where the gradients are.
    fn add_rms_norm_backward(
        &self,
        checked: Checked<Self>,
        call: &RmsNormBackward<'_, Self>,
        dsum: &Tensor<Self>,
    ) -> Result<RmsNormInputs<Tensor<Self>>> {
        gradients(self, checked, call, Some(dsum))
    }

    /// `y = x / √(|x|² + ε²)` row by row, and one over the root, `[rows]`.
    fn l2_norm(&self, _: Checked<Self>, epsilon: f32, x: &Tensor<Self>) -> Result<Normed<Tensor<Self>>> {
        normalise(self, epsilon, x, Before::Nothing, None, Gate::NONE)
    }

    /// `dx`, from what the forward left of each row.
    fn l2_norm_backward(
        &self,
        _: Checked<Self>,
        x: &Tensor<Self>,
        inverse: &Tensor<Self>,
        dy: &Tensor<Self>,
    ) -> Result<Tensor<Self>> {
        normalise_backward(self, x, None, inverse, dy)
    }
}

/// Threads of a block.
pub(super) const THREADS: usize = 256;

/// Rows that fill no GPU, even with a block each: those of tokens that are generated.
pub(super) const FEW: usize = 64;

/// How rows are spread over threads.
#[derive(Clone, Copy)]
enum Rows {
    /// Up to 32 runs of 16 bytes: every lane of a warp has one, of each of two rows.
    Short,
    /// Up to 128: every lane of a warp has up to four.
    Medium,
    /// Up to 1,024: every thread of a block has up to four, and there are as many threads as that takes.
    Large,
    /// Rows are read twice.
    Long,
}

impl Rows {
    /// For rows of `width` elements, `wide` of them in 16 bytes.
    fn new(width: usize, wide: usize) -> Self {
        match width.div_ceil(wide) {
            // Rows that runs do not fill begin where no run may begin.
            _ if !width.is_multiple_of(wide) => Self::Long,
            ..=32 => Self::Short,
            33..=128 => Self::Medium,
            129..=1024 => Self::Large,
            _ => Self::Long,
        }
    }

    /// Threads of a row: of a long one a warp, or a block where it is very long.
    fn lanes(self, width: usize, wide: usize) -> usize {
        match self {
            // A power of two, so that sums go by shuffles among neighbouring lanes.
            Self::Short => (width / wide).next_power_of_two(),
            Self::Medium => 32,
            // 64, 128 or 256, which is the whole block.
            Self::Large => (width / wide).div_ceil(4).next_power_of_two(),
            Self::Long if width <= 1024 => 32,
            Self::Long => THREADS,
        }
    }

    /// Threads of a block.
    fn threads(self, lanes: usize) -> usize {
        if matches!(self, Self::Large) { lanes } else { THREADS }
    }

    /// Kernels of long rows go on in steps of the grid.
    fn grid(self, rows: usize, lanes: usize) -> Grid {
        let blocks = match self {
            Self::Short => rows.div_ceil(2 * THREADS / lanes),
            Self::Medium => rows.div_ceil(THREADS / lanes),
            Self::Large => rows,
            // More rows than blocks are taken in turn.
            Self::Long => rows.div_ceil(THREADS / lanes).min(65_535),
        };
        Grid::blocks(blocks, self.threads(lanes) as u32)
    }
}

/// Kernels of few rows begin early: what they wait for is short.
fn start<A: KernelArguments>(device: &Cuda, rows: usize, grid: Grid, arguments: &A) -> Result<()> {
    if rows <= FEW { device.launch_early(grid, 1, arguments) } else { device.launch(grid, arguments) }
}

/// What becomes of rows before their norm; other than nothing does of rows that are kept.
#[derive(Clone, Copy)]
enum Before<'a> {
    /// They are normalised as they are; a gate acts on the result.
    Nothing,
    /// A residual is added; the place of the sum.
    Residual([&'a Tensor<Cuda>; 2]),
    /// They go through the gate first.
    Gate,
}

/// `y` and `r`; with a weight by the root of the mean square of groups, without by the length.
fn normalise(
    device: &Cuda,
    epsilon: f32,
    x: &Tensor<Cuda>,
    before: Before<'_>,
    scale: Option<Scale>,
    gate: Gate,
) -> Result<Normed<Tensor<Cuda>>> {
    // Rows are all axes but the last, or groups of these.
    let groups = scale.map_or(1, |scale| scale.groups as usize);
    let (rows, width) = (x.shape().rows() * groups, x.shape().last() / groups);
    let (y, inverse) = (device.empty(x.shape().clone(), x.dtype())?, device.empty([rows], DType::F32)?);
    let x = Array::from(x);
    // Which kernel, and how many threads a row has.
    let spread = Rows::new(width, x.wide());
    let lanes = match spread {
        // A block each of a few: a warp would go over the row six times or more, and wait as often.
        Rows::Long if rows <= FEW => THREADS,
        _ => spread.lanes(width, x.wide()),
    };
    // Arrays that other kernels do not look at.
    let [residual, sum] = match before {
        Before::Residual(added) => added.map(Array::from),
        _ => [Array::NONE; 2],
    };
    let call = NormCall {
        x,
        y: (&y).into(),
        residual,
        sum,
        scale: scale.unwrap_or(Scale::NONE),
        gate,
        inverse: pointer(&inverse),
        rows: rows as u64,
        width: width as u64,
        epsilon,
        lanes: lanes as u32,
        l2: scale.is_none().into(),
    };
    let grid = spread.grid(rows, lanes);
    match (spread, before) {
        (Rows::Short, Before::Nothing) => start(device, rows, grid, &Short { call })?,
        (Rows::Medium, Before::Nothing) => start(device, rows, grid, &Medium { call })?,
        (Rows::Large, Before::Nothing) => start(device, rows, grid, &Large { call })?,
        (Rows::Short, Before::Residual(_)) => start(device, rows, grid, &AddShort { call })?,
        (Rows::Medium, Before::Residual(_)) => start(device, rows, grid, &AddMedium { call })?,
        (Rows::Large, Before::Residual(_)) => start(device, rows, grid, &AddLarge { call })?,
        (Rows::Short, Before::Gate) => start(device, rows, grid, &GatedShort { call })?,
        (Rows::Medium, Before::Gate) => start(device, rows, grid, &GatedMedium { call })?,
        (Rows::Large, Before::Gate) => start(device, rows, grid, &GatedLarge { call })?,
        // Nothing comes before the norm here.
        (Rows::Long, _) => device.launch(grid, &Long { call })?,
    }
    Ok(Normed { y, inverse })
}

/// `dx` of the shape of `x`; with a weight by the root of the mean square of groups, without by the length.
fn normalise_backward(
    device: &Cuda,
    x: &Tensor<Cuda>,
    scale: Option<Scale>,
    inverse: &Tensor<Cuda>,
    dy: &Tensor<Cuda>,
) -> Result<Tensor<Cuda>> {
    // A length is over the whole row.
    let groups = scale.map_or(1, |scale| scale.groups as usize);
    let (rows, width) = (x.shape().rows() * groups, x.shape().last() / groups);
    let dx = device.empty(x.shape().clone(), x.dtype())?;
    let x = Array::from(x);
    // Rows that a block would keep, and those of two types, are read twice.
    let spread = match Rows::new(width, x.wide()) {
        kept @ (Rows::Short | Rows::Medium) if dx.dtype() == dy.dtype() => kept,
        _ => Rows::Long,
    };
    let lanes = spread.lanes(width, x.wide());
    // `inverse` is what the forward left of each row.
    let call = NormBackwardCall {
        x,
        dy: dy.into(),
        dx: (&dx).into(),
        scale: scale.unwrap_or(Scale::NONE),
        inverse: pointer(inverse),
        rows: rows as u64,
        width: width as u64,
        share: if scale.is_some() { 1.0 / width as f32 } else { 1.0 },
        lanes: lanes as u32,
        l2: scale.is_none().into(),
    };
    let grid = spread.grid(rows, lanes);
    match spread {
        Rows::Short => device.launch(grid, &ShortBackward { call })?,
        Rows::Medium => device.launch(grid, &MediumBackward { call })?,
        _ => device.launch(grid, &LongBackward { call })?,
    }
    Ok(dx)
}

/// Blocks of [`THREADS`] that fill a large GPU, and the most that are worth their sums.
///
/// Each block leaves a row of `dweight` to be summed, 8 bytes an element.
const BLOCKS: [usize; 2] = [512, 1 << 14];

/// Rows that a thread adds up in 32 bits, while there are blocks.
///
/// A longer sum in 32 bits would lose digits that the sum over blocks, in 64, could not bring back.
const SHORT: usize = 32;

/// All gradients; `dsum` is added to that of `x`, which a gate in front of the norm does not have.
fn gradients(
    device: &Cuda,
    checked: Checked<Cuda>,
    call: &RmsNormBackward<'_, Cuda>,
    dsum: Option<&Tensor<Cuda>>,
) -> Result<RmsNormInputs<Tensor<Cuda>>> {
    let RmsNormBackward { options, inputs: RmsNormInputs { x, g, .. }, .. } = *call;
    // By the length of a group, which is a row to the kernels.
    let spread = Rows::new(x.shape().last() / options.groups, Array::from(x).wide());
    match (spread, g, dsum) {
        (Rows::Long, _, Some(dsum)) => device.add_rms_norm_backward_by_parts(checked, call, dsum),
        // A gate that acts on the result has its gradient made first.
        (Rows::Long, Some(g), None) if options.place == GatePlace::Before => gated_norm::backward(device, call, g),
        (Rows::Long, ..) => long_gradients(device, call),
        _ => kept_gradients(device, call, spread, dsum),
    }
}

/// Rows are read twice: the gate behind them first, then `dx`, then sums over rows.
fn long_gradients(device: &Cuda, call: &RmsNormBackward<'_, Cuda>) -> Result<RmsNormInputs<Tensor<Cuda>>> {
    let RmsNormBackward { options, inputs: RmsNormInputs { x, weight, g }, inverse, dy } = *call;
    // A gradient of the gate where there is a gate.
    let dg = g.map(|g| device.empty(g.shape().clone(), g.dtype())).transpose()?;
    // What it lets through stands for `dy` in all that follows, and has 32 bits.
    let through = g.zip(dg.as_ref()).map(|(g, dg)| open_gate(device, call, g, dg)).transpose()?;
    let dy = through.as_ref().unwrap_or(dy);
    let dx = normalise_backward(device, x, Some(Scale::new(weight, options)), inverse, dy)?;
    Ok(RmsNormInputs { x: dx, weight: sum_columns(device, x.shape().last(), Terms::Scaled(x, inverse, dy))?, g: dg })
}

/// Arrays are read once; blocks go through rows of a group in turn and leave parts of `dweight`.
fn kept_gradients(
    device: &Cuda,
    call: &RmsNormBackward<'_, Cuda>,
    spread: Rows,
    dsum: Option<&Tensor<Cuda>>,
) -> Result<RmsNormInputs<Tensor<Cuda>>> {
    let RmsNormBackward { options, inputs: RmsNormInputs { x, weight, g }, inverse, dy } = *call;
    // Groups count as rows.
    let (rows, width) = (x.shape().rows() * options.groups, x.shape().last() / options.groups);
    let wide = Array::from(x).wide();
    // Like `x`, and like the gate where there is one.
    let dx = device.empty(x.shape().clone(), x.dtype())?;
    let dg = g.map(|g| device.empty(g.shape().clone(), g.dtype())).transpose()?;
    // A block a row, or several rows a block.
    let large = matches!(spread, Rows::Large).then(|| RowBlocks::new(rows, width / wide));
    let lanes = large.map_or_else(|| spread.lanes(width, wide), |large| large.threads);
    // A block has `together` rows at a time; each leaves a part of `dweight`.
    let together = THREADS / lanes;
    // No more parts of `dweight` than pay.
    let blocks = rows.div_ceil(together * SHORT).clamp(BLOCKS[0], BLOCKS[1]);
    let (blocks, threads, together) =
        large.map_or((blocks, THREADS, together), |large| (large.blocks, large.threads, 1));
    // Groups have as many blocks each, and no more than rows.
    let each = blocks.div_ceil(options.groups).min(x.shape().rows().div_ceil(together));
    // `[each, groups · width]`: a block leaves its group's part. Sums of a thread have 32 bits, those of a block 64.
    let parts = match large {
        Some(_) => Parts::narrow(device, each, x.shape().last())?,
        None => Parts::new(device, each, x.shape().last())?,
    };
    let arguments = NormGradientsCall {
        x: x.into(),
        dy: dy.into(),
        dx: (&dx).into(),
        scale: Scale::new(weight, options),
        gate: g.map_or(Gate::NONE, |g| Gate::new(g, options)),
        dg: dg.as_ref().map_or(Array::NONE, Array::from),
        dsum: dsum.map_or(Array::NONE, Array::from),
        inverse: pointer(inverse),
        parts: parts.pointer(),
        // Of groups.
        rows: rows as u64,
        width: width as u64,
        lanes: lanes as u32,
    };
    // Blocks go through rows in turn; block `b` has group `b % groups`.
    let grid = Grid::blocks(each * options.groups, threads as u32);
    let larger = large.is_some_and(|large| large.larger);
    launch_gradients(device, grid, (spread, larger), g.map(|_| options.place), arguments)?;
    Ok(RmsNormInputs { x: dx, weight: parts.total(device, weight.dtype())?, g: dg })
}

/// The kernel for rows like these, the `larger` ones of large, and for the place of the gate, where there is one.
fn launch_gradients(
    device: &Cuda,
    grid: Grid,
    (spread, larger): (Rows, bool),
    gate: Option<GatePlace>,
    call: NormGradientsCall,
) -> Result<()> {
    use GatePlace::{After, Before};
    // All take the same arguments.
    match (spread, gate) {
        (Rows::Short, None) => device.launch(grid, &ShortGradients { call }),
        (Rows::Short, Some(After)) => device.launch(grid, &ShortBehind { call }),
        (Rows::Short, Some(Before)) => device.launch(grid, &ShortInFront { call }),
        (Rows::Medium, None) => device.launch(grid, &MediumGradients { call }),
        (Rows::Medium, Some(After)) => device.launch(grid, &MediumBehind { call }),
        (Rows::Medium, Some(Before)) => device.launch(grid, &MediumInFront { call }),
        // Four runs a thread instead of two.
        (_, None) if larger => device.launch(grid, &LargerGradients { call }),
        (_, Some(After)) if larger => device.launch(grid, &LargerBehind { call }),
        (_, Some(Before)) if larger => device.launch(grid, &LargerInFront { call }),
        (_, None) => device.launch(grid, &LargeGradients { call }),
        (_, Some(After)) => device.launch(grid, &LargeBehind { call }),
        (_, Some(Before)) => device.launch(grid, &LargeInFront { call }),
    }
}

/// What the gate lets through of `dy`, in 32 bits, since `dweight` adds it up; writes its gradient.
fn open_gate(
    device: &Cuda,
    call: &RmsNormBackward<'_, Cuda>,
    gate: &Tensor<Cuda>,
    dg: &Tensor<Cuda>,
) -> Result<Tensor<Cuda>> {
    let RmsNormBackward { options, inputs: RmsNormInputs { x, weight, .. }, inverse, dy } = *call;
    let through = device.empty(dy.shape().clone(), DType::F32)?;
    let arguments = OpenGate {
        x: x.into(),
        dy: dy.into(),
        dg: dg.into(),
        through: (&through).into(),
        scale: Scale::new(weight, options),
        gate: Gate::new(gate, options),
        inverse: pointer(inverse),
        rows: (x.shape().rows() * options.groups) as u64,
        width: (x.shape().last() / options.groups) as u64,
    };
    device.launch(Grid::elements(x.shape().count()), &arguments)?;
    Ok(through)
}
