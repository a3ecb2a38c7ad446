//! Calls whose arguments are not what they should be: of other sizes, types or values, or beside numbers that fit no array.
//!
//! Each is an error or has a result. It never panics, and no kernel leaves its arrays; a checker of memory sees the latter.

use super::{CoreCall, Placed, calls};
use hecate_core::{
    Backend, DType, Device, Host, Result, Sequences, Shape, Tensor, bf16, f16,
    primitives::*,
    rules::{Delta, Hebbian},
};
use std::cell::Cell;

/// An argument that is not what the call expects.
#[derive(Debug)]
pub(super) struct Lie {
    /// In place of the one that the call expects, or the same.
    pub(super) shape: Shape,
    /// Another type than the call's.
    dtype: Option<DType>,
    /// In place of each element: of floats, and of integers.
    value: Option<(f32, u32)>,
}

impl Lie {
    /// The argument as it says.
    /// `fill` makes as many honest elements as it is asked for; they are used where neither type nor value is a lie.
    pub(super) fn tell<D: Device>(self, device: &D, fill: impl Fn(usize) -> Host) -> Result<Tensor<D>> {
        let count = self.shape.count();
        let host = match (fill(count), self.value) {
            (Host::F32(_), Some((value, _))) => Host::F32(vec![value; count]),
            (Host::U32(_), Some((_, value))) => Host::U32(vec![value; count]),
            (host, _) => host,
        };
        let host = match self.dtype {
            Some(DType::F32) => Host::F32(vec![1.0; count]),
            Some(DType::U32) => Host::U32(vec![1; count]),
            Some(DType::Bf16) => Host::Bf16(vec![bf16::ONE; count]),
            Some(DType::F16) => Host::F16(vec![f16::ONE; count]),
            _ => host,
        };
        Tensor::upload(device, self.shape, host)
    }
}

/// Which arguments lie, and which of their lies they tell.
#[derive(Debug)]
pub(super) struct Liar {
    /// None: all of them.
    argument: Option<usize>,
    /// Counted from 0; a number beyond the last is no lie, and only counts them.
    number: usize,
    /// Most lies that one of them had.
    lies: Cell<usize>,
}

impl Liar {
    /// Arguments are counted from 0, in the order in which a call places them.
    fn new(argument: Option<usize>, number: usize) -> Self {
        Self { argument, number, lies: Cell::new(0) }
    }

    /// What this argument says in place of its shape.
    pub(super) fn lie(&self, argument: usize, shape: &Shape) -> Option<Lie> {
        if self.argument.is_some_and(|own| own != argument) {
            return None;
        }
        let lies = lies(shape);
        self.lies.set(self.lies.get().max(lies.len()));
        lies.into_iter().nth(self.number)
    }
}

/// A size that no other axis has, and that tiles of kernels do not divide.
const LONG: usize = 4099;

/// Everything that an argument of this shape could be instead.
fn lies(shape: &Shape) -> Vec<Lie> {
    let axes = shape.axes();
    let other = |shape: Vec<usize>| Lie { shape: shape.into(), dtype: None, value: None };
    let mut all = Vec::new();
    for (axis, &n) in axes.iter().enumerate() {
        // None, one too few or too many, twice as many, and more than any tile has.
        for length in [0, n - 1, n + 1, 2 * n, LONG] {
            let mut axes = axes.to_vec();
            axes[axis] = length;
            all.push(other(axes));
        }
    }
    // An axis more, one less, none, and all in one.
    all.extend([[&[1], axes].concat(), axes[1..].to_vec(), vec![], vec![shape.count()]].map(other));
    // As many elements, along axes in another order.
    all.push(other(axes.iter().rev().copied().collect()));
    let types = [DType::F32, DType::U32, DType::Bf16, DType::F16].map(Some);
    all.extend(types.map(|dtype| Lie { shape: shape.clone(), dtype, value: None }));
    // What no result is defined for, and indices that lead out of any array.
    let values = [(f32::NAN, u32::MAX), (f32::INFINITY, 1 << 31), (-1.0, LONG as u32), (3e38, 0x7fff_ffff)].map(Some);
    all.extend(values.map(|value| Lie { shape: shape.clone(), dtype: None, value }));
    all
}

/// Numbers that fit some call, hardly any, or no memory.
const NUMBERS: [usize; 11] = [0, 1, 2, 3, 5, 64, LONG, 1 << 32, 1 << 62, usize::MAX / 2, usize::MAX];

/// No lie makes a call panic or leave its arrays, and the device goes on after all of them.
///
/// # Panics
/// Where one does.
pub fn bears_lies<D: Backend>(device: &D) {
    for CoreCall { name, call } in calls::<D>() {
        let told = |argument, number| {
            let placed = Placed { liar: Some(Liar::new(argument, number)), ..Placed::new(device, device, None) };
            // An error says what is wrong; some lies are calls of other sizes.
            _ = call(&placed);
            placed.liar.as_ref().map_or(0, |liar| liar.lies.get())
        };
        // Calls say on the way how many arguments they take, and arguments how many lies they have.
        for argument in [None].into_iter().chain((0..).map(Some)) {
            let lies = told(argument, usize::MAX);
            if lies == 0 {
                assert!(argument > Some(0), "{name} takes no argument");
                break;
            }
            for number in 0..lies {
                told(argument, number);
            }
        }
        device.synchronize().unwrap_or_else(|error| panic!("after lies to {name}: {error}"));
    }
    let placed = Placed::new(device, device, None);
    for n in NUMBERS {
        numbers(&placed, n);
        device.synchronize().unwrap_or_else(|error| panic!("after numbers of {n}: {error}"));
    }
    // What was refused has broken nothing.
    let sum = sum(&placed.ones([LONG])).and_then(|sum| sum.to_f32());
    assert_eq!(sum.expect("a sum"), [LONG as f32]);
}

/// Calls that take a number beside their arrays, with this one in each place.
/// Results are thrown away: an error and a result are both answers, and a panic is none.
fn numbers<D: Backend>(p: &Placed<'_, D>, n: usize) {
    let (x, wide) = (p.ones([2, 3]), p.ones([1, 3, 1, 4]));
    _ = narrow(&x, n, 0, 1);
    _ = narrow(&x, 1, n, 1);
    _ = narrow(&x, 1, 0, n);
    _ = narrow(&x, 1, n, n);
    _ = narrow_backward(&[n, 3].into(), 0, 0, 2, &x);
    _ = narrow_backward(&[2, 3].into(), n, n, 2, &x);
    _ = narrow_backward(&[2, n].into(), 1, n, 3, &x);
    _ = concat(&[&x, &x], n);
    _ = sum_rows(&x, n);
    _ = embedding_backward(n, &p.ids([2]), &x);
    _ = cross_entropy(&LossInputs { classes: n, logits: &x, targets: &p.ids([2]) });
    _ = x.reshape([n, 3]);
    _ = rotary(&wide, &Sequences::batch(1, 3), &[n], 1e4);
    _ = rotary(&wide, &Sequences::batch(1, 3), &vec![0; n.min(LONG)], 1e4);
    _ = rotary(&wide, &Sequences::batch(n, 3), &[0], 1e4);
    _ = rotary_from(&wide, &Sequences::packed(&[n, 1]), &p.ids([2]), 1e4);
    _ = sample(&Draw { temperature: 1.0, top_k: n, top_p: 1.0 }, &x, &p.ids([2, 3]));
    _ = poly2_width(n);
    let of_sequences =
        [Sequences::batch(n, 3), Sequences::batch(1, n), Sequences::packed(&[1, n]), Sequences::packed(&[n; 3])];
    for sequences in of_sequences {
        let (x, weight, state) = (p.ones([1, 3, 4]), p.ones([4, 2]), p.ones([1, 1, 4]));
        let inputs = ConvInputs { x: &x, weight: &weight, state: &state };
        let l2_norm = Some(L2Norm { width: n, epsilon: 1e-6 });
        _ = conv(ConvOptions { silu: true, l2_norm }, &sequences, &inputs);
        let attended = |window| {
            let inputs =
                || AttentionInputs { q: wide.clone(), k: wide.clone(), v: wide.clone(), cache: None, prefix: None };
            let options = AttentionOptions { window, scale: 1.0 };
            _ = attention(options, &sequences, inputs()).and_then(|made| made.pass.backward(&wide, None));
            _ = attention_cache(options, &sequences, &inputs());
        };
        attended(n);
        attended(3);
    }
    let options = RmsNormOptions { groups: n, ..RmsNormOptions::new(1e-6) };
    let row = p.ones([3]);
    _ = rms_norm(&RmsNormInputs { x: &x, weight: &row, g: None }, options);
    rules(p, n);
}

/// Rules of sizes that their arrays do not have.
/// Arrays are of three tokens, one head and keys of 4, whatever the lengths claim.
fn rules<D: Backend>(p: &Placed<'_, D>, n: usize) {
    use hecate_core::{
        Dims, Inputs, forward_packed, fresh_state,
        rules::{Matrix, WriteGates},
    };
    let inputs = || Inputs::<Hebbian, _> {
        q: p.ones([1, 3, 1, 4]),
        k: p.ones([1, 3, 1, 4]),
        v: p.ones([1, 3, 1, 4]),
        gates: WriteGates {
            log_a: p.place([1, 3, 1].into(), |count| Host::F32(vec![0.0; count])),
            theta: p.ones([1, 3, 1]),
        },
        state: Matrix { m: p.ones([1, 1, 4, 4]) },
        anchor: None,
    };
    for lengths in [&[n][..], &[1, n], &[n, n, n], &[]] {
        _ = forward_packed(p.device(), Hebbian::default(), lengths, inputs());
    }
    // Memory that is there is not asked for in vain.
    if n <= 64 || n > 1 << 40 {
        for dims in [Dims::new(n, 1, 1, 1, 1), Dims::new(1, n, n, 1, 1), Dims::new(1, 1, 1, n, n)] {
            _ = fresh_state(p.device(), Delta::default(), &dims, 0);
        }
    }
}
