//! Along the tokens: short convolution, rotary positions.
//!
//! Tokens are rows of `C` channels. A filter of `W` taps sees the token and the `W − 1` before it; before the first
//! token of a sequence lies the state `[N,W−1,C]`.

use super::{CaseResult, Output, PrimitiveCase, Slot, elementwise::equation, pick};
use crate::{Array, Random, oracle::Var};
use hecate_core::primitives::Primitives;
use hecate_core::{
    Result, Sequences, Tensor,
    primitives::{self, ConvBackward, ConvInputs, ConvOptions, ConvOutputs, L2Norm, Map},
};

/// Batched and packed, shorter and longer than the filter, with SiLU and without, heads of length 1, with a state after that is
/// used and one that is not.
pub fn conv<B: Primitives>() -> Vec<PrimitiveCase<B>> {
    // Channels that four divides and that it does not: rows of fours have a path of their own on devices.
    let calls = [
        (Sequences::batch(2, 7), [2, 7, 5], 4),
        (Sequences::batch(1, 1), [1, 1, 3], 2),
        (Sequences::packed(&[1, 6, 2]), [1, 9, 33], 4),
        (Sequences::batch(1, 70), [1, 70, 6], 3),
        (Sequences::packed(&[21, 2, 30]), [1, 53, 8], 4),
    ];
    // Without heads of length 1: those need a number of channels that they divide.
    let options = [(false, None), (true, None)].map(|(silu, unit)| ConvOptions { silu, l2_norm: unit });
    let all = |(sequences, shape, width): (Sequences, [usize; 3], usize)| {
        // A state that nobody reads has no gradient, which the backward is told.
        let case = |options, used| convolution(sequences.clone(), shape, width, options, used);
        options.into_iter().flat_map(|options| [case(options, false), case(options, true)]).collect::<Vec<_>>()
    };
    let mut cases: Vec<_> = calls.into_iter().flat_map(all).collect();
    // Heads of three channels, of all channels, and of the usual 64.
    for (channels, head, taps, silu) in
        [(8, 4, 4, false), (16, 8, 4, true), (6, 3, 4, true), (128, 64, 4, true), (8, 8, 3, true)]
    {
        let options = ConvOptions { silu, l2_norm: Some(L2Norm { width: head, epsilon: 1e-3 }) };
        cases.push(convolution(Sequences::packed(&[2, 30]), [1, 32, channels], taps, options, channels == 8));
    }
    cases
}

/// Many rows: too much for the equations, so one backend is held to another.
pub fn conv_in_parts<B: Primitives>() -> Vec<PrimitiveCase<B>> {
    // Many sequences shorter than the filter, whose windows lie in the state for the most part.
    let lengths = [vec![1; 40], vec![300, 2]].concat();
    let silu = ConvOptions { silu: true, l2_norm: None };
    let unit = |width| ConvOptions { silu: true, l2_norm: Some(L2Norm { width, epsilon: 1e-3 }) };
    vec![
        convolution(Sequences::batch(2, 400), [2, 400, 70], 5, silu, true),
        convolution(Sequences::packed(&lengths), [1, 342, 3], 4, silu, true),
        convolution(Sequences::packed(&lengths), [1, 342, 12], 4, ConvOptions::default(), true),
        convolution(Sequences::packed(&lengths), [1, 342, 160], 4, silu, false),
        convolution(Sequences::packed(&lengths), [1, 342, 160], 4, unit(32), false),
        convolution(Sequences::packed(&lengths), [1, 342, 384], 4, unit(128), true),
        convolution(Sequences::batch(2, 400), [2, 400, 8], 4, silu, true),
        convolution(Sequences::batch(2, 400), [2, 400, 8], 6, ConvOptions::default(), true),
        convolution(Sequences::packed(&[52_000, 3]), [1, 52_003, 4], 4, unit(4), false),
    ]
}

fn convolution<B: Primitives>(
    sequences: Sequences,
    shape: [usize; 3],
    width: usize,
    options: ConvOptions,
    used: bool,
) -> PrimitiveCase<B> {
    let random = &mut Random::new(17);
    // Weights are `[C,W]`, states `[N,W−1,C]`.
    let (channels, kept) = (shape[2], width - 1);
    let state = [sequences.count(), kept, channels];
    let (x, dy) = (random.normals(shape), random.normals(shape));
    let weight = random.normals([channels, width]);
    let before = random.normals(state);
    // The gradient of the state after the call.
    let after = if used { random.normals(state) } else { Array::full(state, 0.0) };
    let host = sequences.clone();
    PrimitiveCase {
        name: "conv",
        options: format!(
            "{} W {width}, {options:?}, state used {used}, starts {:?}",
            x.shape,
            sequences.starts().collect::<Vec<_>>()
        ),
        slots: vec![Slot::rows("x", x), Slot::tiles("weight", weight, (channels, width)), Slot::rows("state", before)],
        outputs: vec![Output::new("y", dy), Output::new("state", after)],
        forward: Box::new(move |x| {
            // One row of channels per tap, the current token's last.
            let taps: Vec<Var> = (0..width).map(|j| x[1][0].dot(&pick(&x[1][0], width, j)).t()).collect();
            let (mut y, mut state) = (Vec::new(), Vec::new());
            for (n, rows) in host.ranges().enumerate() {
                // The state first, then the sequence: token `t` sees places `t` to `t + W − 1` of both together.
                let seen = [&x[2][n * kept..(n + 1) * kept], &x[0][rows.clone()]].concat();
                let sum = |t| Var::total((0..width).map(|j| &taps[j] * &seen[t + j]));
                let active = |t| if options.silu { equation(Map::Silu, &sum(t)) } else { sum(t) };
                y.extend(
                    (0..rows.len()).map(|t| options.l2_norm.map_or_else(|| active(t), |unit| units(&active(t), unit))),
                );
                // The last `W − 1` places, which a sequence shorter than that shares with its old state.
                state.extend_from_slice(&seen[rows.len()..]);
            }
            vec![y, state]
        }),
        device: Box::new(move |x, dy| {
            let inputs = ConvInputs { x: &x[0], weight: &x[1], state: &x[2] };
            let ConvOutputs { y, state } = primitives::conv(options, &sequences, &inputs)?;
            let call = ConvBackward { inputs, dy: &dy[0], dfinal: used.then_some(&dy[1]) };
            let grads = primitives::conv_backward(options, &sequences, &call)?;
            Ok(CaseResult { outputs: vec![y, state], grads: [grads.x, grads.weight, grads.state].map(Some).into() })
        }),
    }
}

/// Several over the same rows: of one kind and of several, with as many channels and with others, more than a launch has.
pub fn conv_each<B: Primitives>() -> Vec<PrimitiveCase<B>> {
    let silu = ConvOptions { silu: true, l2_norm: None };
    let unit = |width| ConvOptions { silu: true, l2_norm: Some(L2Norm { width, epsilon: 1e-3 }) };
    // Channels, taps, options, and whether the state after is used.
    let like_a_layer = &[(32, 4, unit(16), false), (32, 4, unit(16), true), (32, 4, silu, false)][..];
    let of_all_sizes = &[(16, 4, silu, true), (160, 4, unit(32), false), (40, 4, ConvOptions::default(), true)];
    // Three taps, channels that no run divides, heads that no warp has.
    let apart = [&[(8, 4, silu, true), (8, 3, silu, true)][..], &[(8, 4, silu, false), (6, 4, unit(3), false)]];
    let many = &[(8, 4, silu, true); 5][..];
    let calls = [like_a_layer, of_all_sizes, apart[0], apart[1], many, &many[..1]];
    let texts = [(Sequences::batch(2, 11), [2, 11]), (Sequences::packed(&[21, 2, 30]), [1, 53])];
    texts.iter().flat_map(|text| calls.map(|calls| several(text, calls))).collect()
}

/// Channels, taps, options, and whether the state after is used, of each of several over one `x [B,T,·]`.
fn several<B: Primitives>(
    (sequences, [batch, tokens]): &(Sequences, [usize; 2]),
    calls: &[(usize, usize, ConvOptions, bool)],
) -> PrimitiveCase<B> {
    let case = |&(channels, taps, options, used): &(usize, usize, ConvOptions, bool)| {
        convolution::<B>(sequences.clone(), [*batch, *tokens, channels], taps, options, used)
    };
    // What the cases of each alone are made of, one after another.
    let (mut slots, mut outputs, mut equations) = (Vec::new(), Vec::new(), Vec::new());
    for PrimitiveCase { slots: own, outputs: made, forward, .. } in calls.iter().map(case) {
        // `x`, its weight and its state.
        slots.extend(own);
        outputs.extend(made);
        equations.push(forward);
    }
    let (sequences, calls) = (sequences.clone(), calls.to_vec());
    PrimitiveCase {
        name: "conv_each",
        options: format!("{calls:?}, starts {:?}", sequences.starts().collect::<Vec<_>>()),
        slots,
        outputs,
        // Three arguments each, as many as a convolution alone has.
        // Results come in the same order.
        forward: Box::new(move |x| x.chunks(3).zip(&equations).flat_map(|(x, forward)| forward(x)).collect()),
        device: Box::new(move |x, dy| {
            // In the order of the calls.
            let forward = calls.iter().zip(x.chunks(3)).map(|(&(_, _, options, _), x)| (options, inputs_of(x)));
            let made = primitives::conv_each(&sequences, &forward.collect::<Vec<_>>())?;
            // The same arguments again for the way back.
            // And two results, of which the state may be of no use.
            let back = calls.iter().zip(x.chunks(3).zip(dy.chunks(2))).map(|(&(_, _, options, used), (x, dy))| {
                (options, ConvBackward { inputs: inputs_of(x), dy: &dy[0], dfinal: used.then_some(&dy[1]) })
            });
            let grads = primitives::conv_each_backward(&sequences, &back.collect::<Vec<_>>())?;
            Ok(CaseResult {
                outputs: made.into_iter().flat_map(|out| [out.y, out.state]).collect(),
                grads: grads.into_iter().flat_map(|grads| [grads.x, grads.weight, grads.state].map(Some)).collect(),
            })
        }),
    }
}

/// Three arguments as a convolution takes them.
fn inputs_of<B: Primitives>(x: &[Tensor<B>]) -> ConvInputs<&Tensor<B>> {
    ConvInputs { x: &x[0], weight: &x[1], state: &x[2] }
}

/// A row whose heads have length 1: each number times the reciprocal length of its head.
///
/// `1/√(|x|² + ε²)`: the root of the sum is smooth at 0, where a maximum with `ε` would not be.
fn units(row: &Var, unit: L2Norm) -> Var {
    let (_, channels) = row.shape();
    let squares = row.square();
    // A column with ones where head `h` is: sums the head's squares, then spreads the result over it.
    let head = |h: usize| {
        let mut member = vec![0.0; channels];
        member[h * unit.width..(h + 1) * unit.width].fill(1.0);
        let square = squares.dot(&row.constant(channels, 1, member.clone())).shift(f64::from(unit.epsilon).powi(2));
        square.sqrt().recip().dot(&row.constant(1, channels, member))
    };
    row * Var::total((0..channels / unit.width).map(head))
}

/// From the start, from far in, and packed.
pub fn rotary<B: Primitives>() -> Vec<PrimitiveCase<B>> {
    let calls = [
        (Sequences::batch(2, 3), [2, 3, 2, 6], vec![0, 5], 10_000.0),
        (Sequences::packed(&[2, 5]), [1, 7, 1, 4], vec![7, 100_000], 10_000.0),
        (Sequences::batch(1, 9), [1, 9, 3, 16], vec![1000], 500.0),
    ];
    let cases = calls.into_iter().flat_map(|(sequences, shape, offsets, base)| {
        [false, true].map(|counted| rotation((sequences.clone(), offsets.clone()), shape, base, counted))
    });
    cases.collect()
}

/// `offsets` as the device counts them, three tokens after where it was told to begin; before 0 stands 2³² − 1.
fn counted_to<B: Primitives>(device: &B, offsets: &[usize]) -> Result<Tensor<B>> {
    let before = offsets.iter().map(|&offset| (offset as u32).wrapping_sub(3)).collect();
    primitives::advance(&Tensor::from_u32(device, [offsets.len()], before)?, 3)
}

/// Su et al., "RoFormer": channel `i` of the first half and channel `i` of the second are one pair, turned by
/// `position · base^{−2i/width}`. `counted`: by the device, which takes the last step to the offsets itself.
fn rotation<B: Primitives>(
    (sequences, offsets): (Sequences, Vec<usize>),
    shape: [usize; 4],
    base: f32,
    counted: bool,
) -> PrimitiveCase<B> {
    let random = &mut Random::new(19);
    let [_, _, heads, width] = shape;
    let (x, dy) = (random.normals(shape), random.normals(shape));
    let starts = sequences.ranges().zip(&offsets);
    // A position for each row: sequences continue where an earlier call left off.
    let positions: Vec<usize> = starts.flat_map(|(rows, &offset)| (0..rows.len()).map(move |t| offset + t)).collect();
    PrimitiveCase {
        name: "rotary",
        options: format!("{} from {offsets:?} base {base} counted {counted}", x.shape),
        slots: vec![Slot::elements("x", x)],
        outputs: vec![Output::new("y", dy)],
        forward: Box::new(move |x| {
            let turn = |i: usize| {
                let (row, column) = (i / width, i % width);
                let pair = column % (width / 2);
                // 64 bits keep the angle at position 100 000, where numbers of 32 bits are 0.008 apart.
                let angle = positions[row / heads] as f64 * f64::from(base).powf(-2.0 * pair as f64 / width as f64);
                let at = |half: usize| &x[0][row * width + pair + half * width / 2];
                match column < width / 2 {
                    true => at(0).scale(angle.cos()) - at(1).scale(angle.sin()),
                    false => at(0).scale(angle.sin()) + at(1).scale(angle.cos()),
                }
            };
            vec![(0..x[0].len()).map(turn).collect()]
        }),
        device: Box::new(move |x, dy| {
            let y = match counted {
                true => primitives::rotary_from(&x[0], &sequences, &counted_to(x[0].device(), &offsets)?, base)?,
                false => primitives::rotary(&x[0], &sequences, &offsets, base)?,
            };
            // Linear in `x`, so the backward needs no arguments of the forward.
            let dx = primitives::rotary_backward(&dy[0], &sequences, &offsets, base)?;
            Ok(CaseResult { outputs: vec![y], grads: vec![Some(dx)] })
        }),
    }
}
