//! Every public call of core that takes arrays, beside the rules, with the smallest arguments that it takes.

use super::Placed;
use hecate_core::{
    Backend, ConvInput, Decode, GateForm, GateLogit, Result, Sequences, Tensor, TokenGates, capture, capture_work,
    decode,
    primitives::*,
    rules::{Momentum, Titans},
};

/// A call by its name in core.
#[derive(Debug)]
pub struct CoreCall<D: Backend> {
    /// Name of the function.
    pub name: &'static str,
    /// Makes the arguments, then calls it.
    pub call: fn(&Placed<'_, D>) -> Result<()>,
}

/// The list and its names from one place: [`CALLS`] is compared with the functions that core's sources declare.
macro_rules! calls {
    ($($name:ident: $call:expr),* $(,)?) => {
        /// Names of all calls: the functions of core that are generic over a device and take arrays.
        pub const CALLS: &[&str] = &[$(stringify!($name)),*];

        /// All calls.
        pub fn calls<D: Backend>() -> Vec<CoreCall<D>> {
            vec![$(CoreCall { name: stringify!($name), call: $call }),*]
        }
    };
}

calls! {
    matmul: |p| matmul(&p.ones([2, 3]), &p.ones([3, 4]), Transpose::default()).map(drop),
    // Weights of different height share an input.
    matmul_each: |p| matmul_each(&p.ones([2, 3]), &[&p.ones([4, 3]), &p.ones([5, 3])]).map(drop),
    // Nothing is computed, and all the same it is asked of one device.
    starts_together: |p| starts_together(&p.ones([2, 3]), &[&p.ones([4, 3]), &p.ones([5, 3])]).map(drop),
    // Gradients that others gave can be astray too.
    matmul_each_backward: |p| {
        let (x, weight, dout, onto) = (p.ones([2, 3]), p.ones([4, 3]), p.ones([2, 4]), p.ones([4, 3]));
        let back = vec![EachBackward { weight: &weight, dout: &dout, onto: Some(onto) }];
        matmul_each_backward(&x, back, Some(p.ones([2, 3]))).map(drop)
    },
    // With a norm in front and a sum behind, which each bring an array that can be astray.
    project: |p| {
        let (x, weight, residual) = (p.ones([2, 3]), p.ones([3]), p.ones([2, 4]));
        let (norm, end) = (Some((&weight, 1.0)), ProjectionEnd::Added(&residual));
        project(&ProjectionInputs { x: &x, norm, weights: &[&p.ones([4, 3])], end }).map(drop)
    },
    matmul_backward: |p| {
        matmul_backward(&p.ones([2, 3]), &p.ones([3, 4]), Transpose::default(), &p.ones([2, 4])).map(drop)
    },
    // Gradients that are added to are arguments too.
    matmul_backward_onto: |p| {
        let (a, b, dout) = (p.ones([2, 3]), p.ones([3, 4]), p.ones([2, 4]));
        let onto = Operands { a: Some(p.ones([2, 3])), b: Some(p.ones([3, 4])) };
        matmul_backward_onto(&a, &b, Transpose::default(), &dout, onto).map(drop)
    },
    // `[rows, heads, in]` by `[heads, in, out]`: a product a head.
    head_products: |p| head_products(&p.ones([2, 3, 4]), &p.ones([3, 4, 5])).map(drop),
    head_products_backward: |p| {
        head_products_backward(&p.ones([2, 3, 4]), &p.ones([3, 4, 5]), &p.ones([2, 3, 5])).map(drop)
    },
    // A row of weights is one block of 32.
    quantized_matmul: |p| quantized_matmul(&p.ones([2, 32]), &p.quantized([3, 32])).map(drop),
    // Scales and maxima of both factors lie in one array each.
    fp8_matmul: |p| {
        let (a, b, scales, maxima) = (p.ones([16, 16]), p.ones([16, 16]), p.ones([2]), p.ones([2]));
        let factor = |x, i| Fp8Factor { x, format: Fp8::E4M3, scale: Some((&scales, i)), maximum: Some((&maxima, i)) };
        fp8_matmul(factor(&a, 0), factor(&b, 1), Transpose::default()).map(drop)
    },
    map: |p| map(Map::Silu, &p.ones([3])).map(drop),
    map_backward: |p| map_backward(Map::Silu, &p.ones([3]), &p.ones([3])).map(drop),
    gated: |p| gated(Map::Silu, &p.ones([3]), &p.ones([3])).map(drop),
    gated_backward: |p| {
        let (x, g, dy) = (p.ones([3]), p.ones([3]), p.ones([3]));
        gated_backward(Map::Silu, &GatedBackward { x: &x, g: &g, dy: &dy }).map(drop)
    },
    // Operands are a matrix and a row that its rows share.
    add: |p| add(&p.ones([2, 3]), &p.ones([3])).map(drop),
    add_backward: |p| add_backward(&p.ones([2, 3]), &p.ones([3]), &p.ones([2, 3])).map(drop),
    mul: |p| mul(&p.ones([2, 3]), &p.ones([3])).map(drop),
    mul_backward: |p| mul_backward(&p.ones([2, 3]), &p.ones([3]), &p.ones([2, 3])).map(drop),
    sub: |p| sub(&p.ones([2, 3]), &p.ones([3])).map(drop),
    sub_backward: |p| sub_backward(&p.ones([2, 3]), &p.ones([3]), &p.ones([2, 3])).map(drop),
    // Rows that share a divisor, and one row.
    div: |p| div(&p.ones([2, 3]), &p.ones([3])).map(drop),
    div_backward: |p| {
        div_backward(&p.ones([1, 3]), &p.ones([3]), &p.ones([1, 3]))?;
        div_backward(&p.ones([2, 3]), &p.ones([3]), &p.ones([2, 3])).map(drop)
    },
    // With a map and without, which are two ways through core.
    biased: |p| {
        biased(None, &p.ones([2, 3]), &p.ones([3]))?;
        biased(Some(Map::Relu), &p.ones([2, 3]), &p.ones([3])).map(drop)
    },
    biased_backward: |p| {
        let (x, b, dy) = (p.ones([2, 3]), p.ones([3]), p.ones([2, 3]));
        biased_backward(None, &BiasedBackward { x: &x, b: &b, dy: &dy })?;
        biased_backward(Some(Map::Relu), &BiasedBackward { x: &x, b: &b, dy: &dy }).map(drop)
    },
    scale: |p| scale(2.0, &p.ones([3])).map(drop),
    dropout: |p| dropout(DropMask::new([1, 2], 0.5), &p.ones([3])).map(drop),
    cast: |p| cast(hecate_core::DType::Bf16, &p.ones([3])).map(drop),
    // Arrays of different length in one call.
    cast_all: |p| cast_all(hecate_core::DType::Bf16, &[&p.ones([3]), &p.ones([2])]).map(drop),
    // Without a gate and with one.
    rms_norm: |p| {
        let (x, weight, g) = (p.ones([2, 3]), p.ones([3]), p.ones([2, 3]));
        let plain = RmsNormInputs { x: &x, weight: &weight, g: None };
        let options = RmsNormOptions::new(1e-6);
        rms_norm(&plain, options)?;
        rms_norm(&RmsNormInputs { g: Some(&g), ..plain }, options).map(drop)
    },
    // The reciprocal of the norm is one number a row.
    rms_norm_backward: |p| {
        let (x, weight, g, inverse, dy) = (p.ones([2, 3]), p.ones([3]), p.ones([2, 3]), p.ones([2]), p.ones([2, 3]));
        let plain = RmsNormInputs { x: &x, weight: &weight, g: None };
        let options = RmsNormOptions::new(1e-6);
        rms_norm_backward(&RmsNormBackward { options, inputs: plain, inverse: &inverse, dy: &dy })?;
        let inputs = RmsNormInputs { g: Some(&g), ..plain };
        rms_norm_backward(&RmsNormBackward { options, inputs, inverse: &inverse, dy: &dy }).map(drop)
    },
    // The residual is an array of its own, and can be astray.
    add_rms_norm: |p| {
        let (x, weight, residual) = (p.ones([2, 3]), p.ones([3]), p.ones([2, 3]));
        add_rms_norm(&residual, &RmsNormInputs { x: &x, weight: &weight, g: None }, RmsNormOptions::new(1e-6)).map(drop)
    },
    // So can the gradient that the sum has besides.
    add_rms_norm_backward: |p| {
        let (x, weight, inverse, dy) = (p.ones([2, 3]), p.ones([3]), p.ones([2]), p.ones([2, 3]));
        let inputs = RmsNormInputs { x: &x, weight: &weight, g: None };
        let call = RmsNormBackward { options: RmsNormOptions::new(1e-6), inputs, inverse: &inverse, dy: &dy };
        add_rms_norm_backward(&call, &p.ones([2, 3])).map(drop)
    },
    // Weight and bias are rows.
    layer_norm: |p| {
        let (x, weight, bias) = (p.ones([2, 3]), p.ones([3]), p.ones([3]));
        layer_norm(&LayerNormInputs { x: &x, weight: &weight, bias: &bias }, 1e-6).map(drop)
    },
    // Mean and reciprocal are one number a row.
    layer_norm_backward: |p| {
        let (x, weight, bias, dy) = (p.ones([2, 3]), p.ones([3]), p.ones([3]), p.ones([2, 3]));
        let (mean, inverse) = (p.ones([2]), p.ones([2]));
        let inputs = LayerNormInputs { x: &x, weight: &weight, bias: &bias };
        layer_norm_backward(&LayerNormBackward { inputs, mean: &mean, inverse: &inverse, dy: &dy }).map(drop)
    },
    // As of the norm without a mean.
    add_layer_norm: |p| {
        let (x, weight, bias, residual) = (p.ones([2, 3]), p.ones([3]), p.ones([3]), p.ones([2, 3]));
        add_layer_norm(&residual, &LayerNormInputs { x: &x, weight: &weight, bias: &bias }, 1e-6).map(drop)
    },
    // Seven arrays, each of which can be astray.
    add_layer_norm_backward: |p| {
        let (x, weight, bias, dy) = (p.ones([2, 3]), p.ones([3]), p.ones([3]), p.ones([2, 3]));
        let (mean, inverse) = (p.ones([2]), p.ones([2]));
        let inputs = LayerNormInputs { x: &x, weight: &weight, bias: &bias };
        let call = LayerNormBackward { inputs, mean: &mean, inverse: &inverse, dy: &dy };
        add_layer_norm_backward(&call, &p.ones([2, 3])).map(drop)
    },
    sample: |p| sample(&Draw { temperature: 1.0, top_k: 0, top_p: 1.0 }, &p.ones([2, 5]), &p.ids([2, 3])).map(drop),
    // The backward takes what the forward gave, and not its argument.
    softmax: |p| softmax(&p.ones([2, 3])).map(drop),
    softmax_backward: |p| softmax_backward(&p.ones([2, 3]), &p.ones([2, 3])).map(drop),
    l2_norm: |p| l2_norm(&p.ones([2, 3]), 1e-6).map(drop),
    l2_norm_backward: |p| l2_norm_backward(&p.ones([2, 3]), &p.ones([2]), &p.ones([2, 3])).map(drop),
    poly2: |p| poly2(&p.ones([2, 3]), POLY2).map(drop),
    // `1 + 3 + 6 = 10` features of rows of 3.
    poly2_backward: |p| poly2_backward(&p.ones([2, 3]), POLY2, &p.ones([2, 10])).map(drop),
    // One decay and one bias a head, here three.
    retention: |p| {
        let (x, a_log, dt_bias) = (p.ones([2, 3]), p.ones([3]), p.ones([3]));
        retention(&RetentionInputs { x: &x, a_log: &a_log, dt_bias: &dt_bias }).map(drop)
    },
    retention_backward: |p| {
        let (x, a_log, dt_bias) = (p.ones([2, 3]), p.ones([3]), p.ones([3]));
        let inputs = RetentionInputs { x: &x, a_log: &a_log, dt_bias: &dt_bias };
        retention_backward(&RetentionBackward { inputs, dy: &p.ones([2, 3]) }).map(drop)
    },
    // `[B,T,C]`, taps `[C,W]`, state `[N,W−1,C]`.
    conv: |p| {
        let (x, weight, state) = (p.ones([1, 3, 4]), p.ones([4, 2]), p.ones([1, 1, 4]));
        let inputs = ConvInputs { x: &x, weight: &weight, state: &state };
        conv(ConvOptions::default(), &sequences(), &inputs).map(drop)
    },
    conv_backward: |p| {
        let (x, weight, state) = (p.ones([1, 3, 4]), p.ones([4, 2]), p.ones([1, 1, 4]));
        let (dy, dfinal) = (p.ones([1, 3, 4]), p.ones([1, 1, 4]));
        let inputs = ConvInputs { x: &x, weight: &weight, state: &state };
        let call = ConvBackward { inputs, dy: &dy, dfinal: Some(&dfinal) };
        conv_backward(ConvOptions::default(), &sequences(), &call).map(drop)
    },
    // Of two over the same rows.
    conv_each: |p| {
        let (x, weight, state) = (p.ones([1, 3, 4]), p.ones([4, 2]), p.ones([1, 1, 4]));
        let (other, taps, before) = (p.ones([1, 3, 4]), p.ones([4, 2]), p.ones([1, 1, 4]));
        let first = ConvInputs { x: &x, weight: &weight, state: &state };
        let second = ConvInputs { x: &other, weight: &taps, state: &before };
        let calls = [first, second].map(|inputs| (ConvOptions::default(), inputs));
        conv_each(&sequences(), &calls).map(drop)
    },
    // A state's gradient is there for one of them.
    conv_each_backward: |p| {
        let (x, weight, state) = (p.ones([1, 3, 4]), p.ones([4, 2]), p.ones([1, 1, 4]));
        let (dy, other, dfinal) = (p.ones([1, 3, 4]), p.ones([1, 3, 4]), p.ones([1, 1, 4]));
        let inputs = ConvInputs { x: &x, weight: &weight, state: &state };
        let calls = [(&dy, None), (&other, Some(&dfinal))];
        let calls = calls.map(|(dy, dfinal)| (ConvOptions::default(), ConvBackward { inputs, dy, dfinal }));
        conv_each_backward(&sequences(), &calls).map(drop)
    },
    // A table of 5 rows of 2; ids `[3]`.
    embedding: |p| embedding(&p.ones([5, 2]), &p.ids([3])).map(drop),
    embedding_backward: |p| embedding_backward(5, &p.ids([3]), &p.ones([3, 2])).map(drop),
    narrow: |p| narrow(&p.ones([2, 3]), 1, 0, 2).map(drop),
    narrow_backward: |p| narrow_backward(&[2, 3].into(), 1, 0, 2, &p.ones([2, 2])).map(drop),
    concat: |p| concat(&[&p.ones([2, 3]), &p.ones([2, 1])], 1).map(drop),
    // Forward and backward in one call: a pass that came of a refused forward does not exist.
    attention: |p| {
        let (inputs, dy, dcache) = (attention_inputs(p), p.ones([1, 3, 2, 5]), cache(p));
        attention(WINDOW, &sequences(), inputs)?.pass.backward(&dy, Some(&dcache)).map(drop)
    },
    attention_cache: |p| attention_cache(WINDOW, &sequences(), &attention_inputs(p)).map(drop),
    // Logits of 5 classes; targets `[3]`.
    cross_entropy: |p| {
        cross_entropy(&LossInputs { classes: 5, logits: &p.ones([3, 5]), targets: &p.ids([3]) }).map(drop)
    },
    // `lse` is one number a row, as the forward gave it.
    cross_entropy_backward: |p| {
        let (logits, targets, lse) = (p.ones([3, 5]), p.ids([3]), p.ones([3]));
        let inputs = LossInputs { classes: 5, logits: &logits, targets: &targets };
        cross_entropy_backward(&LossBackward { inputs, lse: &lse, factor: 1.0 }).map(drop)
    },
    cross_entropy_and_gradient: |p| {
        let inputs = LossInputs { classes: 5, logits: p.ones([3, 5]), targets: p.ids([3]) };
        cross_entropy_and_gradient(1.0, inputs).map(drop)
    },
    // The norm of clipping lies on the device too, and can be astray.
    adamw: |p| {
        let clip = p.ones([1]);
        adamw(&STEP, Some(&Clip { max_norm: 1.0, norm_squared: &clip }), slot(p), &p.ones([3])).map(drop)
    },
    adamw_all: |p| {
        let (clip, grads) = (p.ones([1]), [p.ones([3]), p.ones([3])]);
        let updates = grads.iter().map(|grad| Update { slot: slot(p), grad }).collect();
        adamw_all(&STEP, Some(&Clip { max_norm: 1.0, norm_squared: &clip }), updates).map(drop)
    },
    adamw_placed: |p| {
        let (clip, grad, rates, finite) = (p.ones([1]), p.ones([3]), p.ones([3]), p.ones([2]));
        let Slot { mut value, mut mean, mut square } = slot(p);
        let slot = Slot { value: &mut value, mean: &mut mean, square: &mut square };
        let (clip, given) = (Clip { max_norm: 1.0, norm_squared: &clip }, DeviceStep { rates: &rates, finite: &finite });
        adamw_placed(&STEP, Some(&clip), &given, vec![PlacedUpdate { slot, grad: &grad }])
    },
    norm_squared: |p| norm_squared(p.device(), &[&p.ones([3]), &p.ones([2])]).map(drop),
    sum: |p| sum(&p.ones([3])).map(drop),
    sum_rows: |p| sum_rows(&p.ones([2, 3]), 3).map(drop),
    sum_squares: |p| sum_squares(&p.ones([3])).map(drop),
    // One array and no device: there is nothing to be told apart from.
    rotary: |p| rotary(&p.ones([1, 3, 1, 4]), &sequences(), &[0], 1e4).map(drop),
    // Positions of one text.
    advance: |p| advance(&p.ids([1]), 3).map(drop),
    rotary_from: |p| rotary_from(&p.ones([1, 3, 1, 4]), &sequences(), &p.ids([1]), 1e4).map(drop),
    rotary_backward: |p| rotary_backward(&p.ones([1, 3, 1, 4]), &sequences(), &[0], 1e4).map(drop),
    // One head, keys of 2, values of 3.
    decode: |p| decode(Titans::default(), [1, 2, 3], &token(p)).map(drop),
    // State and inputs are arguments, whatever the step does with them.
    capture: |p| {
        let step = &mut |state: Vec<Tensor<D>>, x: Tensor<D>| Ok((state, x));
        capture(p.device(), &[p.ones([2]), p.ones([3])], &p.ones([2]), step).map(drop)
    },
    capture_work: |p| {
        capture_work(p.device(), &[p.ones([2]), p.ones([3])], &mut |_| Ok(())).map(drop)
    },
}

/// A window of 4: a cache holds 3.
const WINDOW: AttentionOptions = AttentionOptions { window: 4, scale: 0.5 };

/// Any constants: nothing is compared.
const STEP: AdamW = AdamW { learning_rate: 1e-3, beta1: 0.9, beta2: 0.99, epsilon: 1e-8, weight_decay: 0.0, step: 1 };

/// One sequence of 3 tokens.
fn sequences() -> Sequences {
    Sequences::batch(1, 3)
}

/// A parameter `[3]` with its moments.
fn slot<D: Backend>(p: &Placed<'_, D>) -> Slot<Tensor<D>> {
    Slot { value: p.ones([3]), mean: p.ones([3]), square: p.ones([3]) }
}

/// 3 tokens after a cache of 3, and 2 persistent ones; 2 query heads share one of keys 4 and values 5.
fn attention_inputs<D: Backend>(p: &Placed<'_, D>) -> AttentionInputs<Tensor<D>> {
    AttentionInputs {
        q: p.ones([1, 3, 2, 4]),
        k: p.ones([1, 3, 1, 4]),
        v: p.ones([1, 3, 1, 5]),
        cache: Some(cache(p)),
        prefix: Some(Prefix { k: p.ones([2, 1, 4]), v: p.ones([2, 1, 5]) }),
    }
}

/// Keys of 4 and values of 5 of 3 places.
fn cache<D: Backend>(p: &Placed<'_, D>) -> Cache<Tensor<D>> {
    Cache { k: p.ones([1, 3, 1, 4]), v: p.ones([1, 3, 1, 5]), valid: p.ones([1, 3]) }
}

/// One token of one head of keys 2 and values 3, 2 taps.
fn token<D: Backend>(p: &Placed<'_, D>) -> Decode<Titans, Tensor<D>> {
    let conv = |width| ConvInput { x: p.ones([1, 1, width]), conv: Some((p.ones([width, 2]), p.ones([1, 1, width]))) };
    let logit = || GateLogit { x: p.ones([1, 1, 1]), bias: p.ones([1]) };
    Decode {
        q: conv(2),
        k: conv(2),
        v: conv(3),
        norm_epsilon: 1e-6,
        gates: TokenGates {
            retention: Some((logit(), p.ones([1]))),
            write: logit(),
            strengths: GateForm::Momentum(logit()),
        },
        state: Momentum { m: p.ones([1, 1, 2, 3]), s: p.ones([1, 1, 2, 3]) },
        weight: p.ones([3]),
        epsilon: 1e-6,
        gate: Some(p.ones([1, 1, 3])),
    }
}
