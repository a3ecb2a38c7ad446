//! Rows of a table, by number.

use crate::{
    Wgpu,
    launch::{Binding, Kernel, PRELUDE, WgslSource},
    parameters::{Parameters, parameters},
};
use hecate_core::{Checked, DType, Result, Tensor, primitives::Embedding};

/// What the three kernels of the sort share.
const SORT: &str = include_str!("embedding_sort.wgsl");
/// Rows by id, without a sort.
const GATHER: WgslSource =
    WgslSource { name: "embedding", parts: &[PRELUDE, GatherArgs::WGSL, include_str!("embedding.wgsl")] };
/// A radix sort has three kernels a digit: digits are counted first.
const COUNTS: WgslSource = WgslSource {
    name: "embedding_counts",
    parts: &[PRELUDE, SortPassArgs::WGSL, SORT, include_str!("embedding_counts.wgsl")],
};
/// Then counts become places.
const STARTS: WgslSource = WgslSource {
    name: "embedding_starts",
    parts: &[PRELUDE, SortPassArgs::WGSL, SORT, include_str!("embedding_starts.wgsl")],
};
/// Then keys and positions move there.
const PLACES: WgslSource = WgslSource {
    name: "embedding_places",
    parts: &[PRELUDE, SortPassArgs::WGSL, SORT, include_str!("embedding_places.wgsl")],
};
/// Sums of rows with one id, which the sort has put side by side.
const BACKWARD: WgslSource = WgslSource {
    name: "embedding_backward",
    parts: &[PRELUDE, GatherBackwardArgs::WGSL, include_str!("embedding_backward.wgsl")],
};

/// `y [count,D]`: an invocation copies one element.
const ROWS: Kernel<'static> = Kernel { source: &GATHER, entry: "gather", constants: &[] };
/// How often a tile has each digit.
const DIGIT_COUNTS: Kernel<'static> = Kernel { source: &COUNTS, entry: "digit_counts", constants: &[] };
/// Where each digit of each tile begins among those of the same digit.
const DIGIT_STARTS: Kernel<'static> = Kernel { source: &STARTS, entry: "digit_starts", constants: &[] };
/// `dtable [V,D]`: a workgroup adds up one row of 16 columns.
const SUMS: Kernel<'static> = Kernel { source: &BACKWARD, entry: "gather_backward", constants: &[] };

/// Later passes, and the first.
const DIGIT_PLACES: [Kernel<'static>; 2] = [places(&[("FIRST", 0)]), places(&[("FIRST", 1)])];

/// The first pass reads no order.
const fn places(constants: &'static [(&'static str, u32)]) -> Kernel<'static> {
    Kernel { source: &PLACES, entry: "digit_places", constants }
}

/// Every kernel of the files.
pub(crate) const KERNELS: &[Kernel<'static>] =
    &[ROWS, DIGIT_COUNTS, DIGIT_STARTS, DIGIT_PLACES[0], DIGIT_PLACES[1], SUMS];

/// Values of a digit of the sort, invocations of a workgroup, and positions of a tile.
const DIGITS: usize = 256;

/// Bits of a digit.
const BITS: u32 = 8;

/// Columns that a workgroup adds up.
const COLUMNS: usize = 16;

parameters! {
    /// What the copy of rows is told.
    struct GatherArgs {
        /// Ids.
        count: u32,
        /// `D`.
        width: u32,
        /// `V`.
        vocabulary: u32,
        /// What an id of `V` or more gives: NaN.
        missing: f32,
    }
}

parameters! {
    /// What each kernel of a pass of the sort is told.
    struct SortPassArgs {
        /// Positions.
        count: u32,
        /// Larger keys count as this one.
        most: u32,
        /// Bits under the digit.
        shift: u32,
        /// Tiles of 256 positions.
        tiles: u32,
    }
}

parameters! {
    /// What the sums of gradients are told.
    struct GatherBackwardArgs {
        /// Positions.
        count: u32,
        /// `D`.
        width: u32,
        /// `V`.
        vocabulary: u32,
        /// Workgroups side by side, 16 columns each.
        across: u32,
    }
}

impl Embedding for Wgpu {
    /// `table [V,D]`, `ids [n]`: an id that is not there gives NaN.
    /// Ids are values: core sees their shape and type alone, and reading them back would stall the queue.
    fn embedding(&self, _: Checked<Self>, table: &Tensor<Self>, ids: &Tensor<Self>) -> Result<Tensor<Self>> {
        let (vocabulary, width, count) = (table.shape().axes()[0], table.shape().last(), ids.shape().count());
        let (dtype, table) = (table.dtype(), self.widened(table)?);
        let y = self.empty([count, width], DType::F32)?;
        let (vocabulary, missing) = (vocabulary as u32, f32::NAN);
        let args = GatherArgs { count: count as u32, width: width as u32, vocabulary, missing };
        let arrays = [Binding::Read(ids), Binding::Read(&table), Binding::Write(&y)];
        self.launch(&ROWS, ((count * width).div_ceil(64), 1, 1), &args, &arrays)?;
        self.rounded(y, dtype)
    }

    /// Sorted ids turn the scatter into sums with one owner each.
    /// `dy [n,D]` to `dtable [V,D]`: no atomic additions, so every run gives the same bits.
    fn embedding_backward(
        &self,
        _: Checked<Self>,
        vocabulary: usize,
        ids: &Tensor<Self>,
        dy: &Tensor<Self>,
    ) -> Result<Tensor<Self>> {
        let (width, count, dtype) = (dy.shape().last(), ids.shape().count(), dy.dtype());
        let dtable = self.empty([vocabulary, width], DType::F32)?;
        if vocabulary > 0 {
            let (dy, sorted) = (self.widened(dy)?, sort(self, vocabulary, ids)?);
            // A workgroup an id: each row of the table has one owner, so the order of additions is fixed.
            let across = width.div_ceil(COLUMNS);
            let groups = vocabulary * across;
            let (vocabulary, across) = (vocabulary as u32, across as u32);
            let args = GatherBackwardArgs { count: count as u32, width: width as u32, vocabulary, across };
            let [keys, order, dy] = [&sorted.keys, &sorted.order, &dy].map(Binding::Read);
            self.launch(&SUMS, (groups, 1, 1), &args, &[keys, order, dy, Binding::Write(&dtable)])?;
        }
        self.rounded(dtable, dtype)
    }
}

/// Ids in ascending order, and where they stood; equal ids in the order of positions.
struct Sorted {
    /// `[count]`, ascending.
    keys: Tensor<Wgpu>,
    /// `[count]`: the positions they had.
    order: Tensor<Wgpu>,
}

/// Sorts positions by id, from the lowest digit up. Ids over the vocabulary come last.
/// Each pass is stable, so a digit of 8 bits at a time sorts all of them.
fn sort(device: &Wgpu, vocabulary: usize, ids: &Tensor<Wgpu>) -> Result<Sorted> {
    let most = vocabulary as u32;
    let mut sorted = sort_by_digit(device, most, 0, ids, None)?;
    // Only digits that the vocabulary reaches.
    for shift in (BITS..u32::BITS - most.leading_zeros()).step_by(BITS as usize) {
        sorted = sort_by_digit(device, most, shift, &sorted.keys, Some(&sorted.order))?;
    }
    Ok(sorted)
}

/// Sorts by one digit.
/// `keys [count]`; `order [count]` says where they stood at first, and is missing in the first pass.
fn sort_by_digit(
    device: &Wgpu,
    most: u32,
    shift: u32,
    keys: &Tensor<Wgpu>,
    order: Option<&Tensor<Wgpu>>,
) -> Result<Sorted> {
    let count = keys.shape().count();
    let tiles = count.div_ceil(DIGITS);
    let words = |count: usize| device.empty([count], DType::U32);
    let (counts, totals) = (words(DIGITS * tiles)?, words(DIGITS)?);
    let sorted = Sorted { keys: words(count)?, order: words(count)? };
    let args = SortPassArgs { count: count as u32, most, shift, tiles: tiles as u32 };
    let key = Binding::Read(keys);
    device.launch(&DIGIT_COUNTS, (tiles, 1, 1), &args, &[key, Binding::Write(&counts)])?;
    let arrays = [key, Binding::Write(&counts), Binding::Write(&totals)];
    device.launch(&DIGIT_STARTS, (DIGITS, 1, 1), &args, &arrays)?;
    let kernel = &DIGIT_PLACES[usize::from(order.is_none())];
    // In the first pass nobody looks at an order.
    let [order, counts, totals] = [order.unwrap_or(keys), &counts, &totals].map(Binding::Read);
    let arrays = [key, order, counts, totals, Binding::Write(&sorted.keys), Binding::Write(&sorted.order)];
    device.launch(kernel, (tiles, 1, 1), &args, &arrays)?;
    Ok(sorted)
}
