//! Rows of a table, by number.

use crate::{
    Wgpu,
    launch::{Binding, Kernel, PRELUDE, Source},
};
use hecate_core::{DType, Result, Tensor, primitives::Embedding};

const SORT: &str = include_str!("embedding_sort.wgsl");
const GATHER: Source = Source { name: "embedding", parts: &[PRELUDE, include_str!("embedding.wgsl")] };
const COUNTS: Source =
    Source { name: "embedding_counts", parts: &[PRELUDE, SORT, include_str!("embedding_counts.wgsl")] };
const STARTS: Source =
    Source { name: "embedding_starts", parts: &[PRELUDE, SORT, include_str!("embedding_starts.wgsl")] };
const PLACES: Source =
    Source { name: "embedding_places", parts: &[PRELUDE, SORT, include_str!("embedding_places.wgsl")] };
const BACKWARD: Source =
    Source { name: "embedding_backward", parts: &[PRELUDE, include_str!("embedding_backward.wgsl")] };

const ROWS: Kernel<'static> = Kernel { source: &GATHER, entry: "gather", constants: &[] };
const DIGIT_COUNTS: Kernel<'static> = Kernel { source: &COUNTS, entry: "digit_counts", constants: &[] };
const DIGIT_STARTS: Kernel<'static> = Kernel { source: &STARTS, entry: "digit_starts", constants: &[] };
const SUMS: Kernel<'static> = Kernel { source: &BACKWARD, entry: "gather_backward", constants: &[] };

/// Later passes, and the first.
const DIGIT_PLACES: [Kernel<'static>; 2] = [places(&[("FIRST", 0)]), places(&[("FIRST", 1)])];

const fn places(constants: &'static [(&'static str, u32)]) -> Kernel<'static> {
    Kernel { source: &PLACES, entry: "digit_places", constants }
}

pub(crate) const KERNELS: &[Kernel<'static>] =
    &[ROWS, DIGIT_COUNTS, DIGIT_STARTS, DIGIT_PLACES[0], DIGIT_PLACES[1], SUMS];

/// Values of a digit of the sort, invocations of a workgroup, and positions of a tile.
const DIGITS: usize = 256;

/// Bits of a digit.
const BITS: u32 = 8;

/// Columns that a workgroup adds up.
const COLUMNS: usize = 16;

#[derive(Clone, Copy, Debug, bytemuck::NoUninit)]
#[repr(C)]
struct Gather {
    count: u32,
    width: u32,
    vocabulary: u32,
    missing: f32,
}

#[derive(Clone, Copy, Debug, bytemuck::NoUninit)]
#[repr(C)]
struct Pass {
    count: u32,
    most: u32,
    shift: u32,
    tiles: u32,
}

#[derive(Clone, Copy, Debug, bytemuck::NoUninit)]
#[repr(C)]
struct Backward {
    count: u32,
    width: u32,
    vocabulary: u32,
    across: u32,
}

impl Embedding for Wgpu {
    fn embedding(&self, table: &Tensor<Self>, ids: &Tensor<Self>) -> Result<Tensor<Self>> {
        let (vocabulary, width, count) = (table.shape().axes()[0], table.shape().last(), ids.shape().count());
        let (dtype, table) = (table.dtype(), self.widened(table)?);
        let y = self.empty([count, width], DType::F32)?;
        let (vocabulary, missing) = (vocabulary as u32, f32::NAN);
        let args = Gather { count: count as u32, width: width as u32, vocabulary, missing };
        let arrays = [Binding::Read(ids), Binding::Read(&table), Binding::Write(&y)];
        self.launch(&ROWS, ((count * width).div_ceil(64), 1, 1), &args, &arrays)?;
        self.rounded(y, dtype)
    }

    fn embedding_backward(&self, vocabulary: usize, ids: &Tensor<Self>, dy: &Tensor<Self>) -> Result<Tensor<Self>> {
        let (width, count, dtype) = (dy.shape().last(), ids.shape().count(), dy.dtype());
        let dtable = self.empty([vocabulary, width], DType::F32)?;
        if vocabulary > 0 {
            let (dy, sorted) = (self.widened(dy)?, sort(self, vocabulary, ids)?);
            let across = width.div_ceil(COLUMNS);
            let groups = vocabulary * across;
            let (vocabulary, across) = (vocabulary as u32, across as u32);
            let args = Backward { count: count as u32, width: width as u32, vocabulary, across };
            let [keys, order, dy] = [&sorted.keys, &sorted.order, &dy].map(Binding::Read);
            self.launch(&SUMS, (groups, 1, 1), &args, &[keys, order, dy, Binding::Write(&dtable)])?;
        }
        self.rounded(dtable, dtype)
    }
}

/// Ids in ascending order, and where they stood; equal ids in the order of positions.
struct Sorted {
    keys: Tensor<Wgpu>,
    order: Tensor<Wgpu>,
}

/// Sorts positions by id, from the lowest digit up. Ids over the vocabulary come last.
fn sort(device: &Wgpu, vocabulary: usize, ids: &Tensor<Wgpu>) -> Result<Sorted> {
    let most = vocabulary as u32;
    let mut sorted = pass(device, most, 0, ids, None)?;
    for shift in (BITS..u32::BITS - most.leading_zeros()).step_by(BITS as usize) {
        sorted = pass(device, most, shift, &sorted.keys, Some(&sorted.order))?;
    }
    Ok(sorted)
}

/// Sorts by one digit.
fn pass(device: &Wgpu, most: u32, shift: u32, keys: &Tensor<Wgpu>, order: Option<&Tensor<Wgpu>>) -> Result<Sorted> {
    let count = keys.shape().count();
    let tiles = count.div_ceil(DIGITS);
    let words = |count: usize| device.empty([count], DType::U32);
    let (counts, totals) = (words(DIGITS * tiles)?, words(DIGITS)?);
    let sorted = Sorted { keys: words(count)?, order: words(count)? };
    let args = Pass { count: count as u32, most, shift, tiles: tiles as u32 };
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
