//! Primitives and rules on small arrays, with options, ranges and lengths that need not fit them.

use crate::{
    device, hold,
    sizes::{size, sizes},
    sound,
};
use hecate_core::{
    Algorithm, ConvInput, DType, Decode, Dims, GateForm, GateLogit, Inputs, Result, Rule, Sequences, Shape, Slots,
    Tensor, TokenGates, decode, forward, forward_packed, infer_packed,
    primitives::{self as p, *},
    quantized::{BlockFormat, KScales, Quantized},
    rules::*,
};
use hecate_cpu::Cpu;
use proptest::{collection::vec, prelude::*};

/// An array of halves: of floats, unless the axes are too long for any.
fn array(axes: &[usize]) -> Result<Tensor<Cpu>> {
    let shape = Shape::from(axes);
    if shape.count() > 1 << 16 {
        return Tensor::zeros(&device(), shape, DType::F32);
    }
    let count = shape.count();
    Tensor::from_f32(&device(), shape, vec![0.5; count])
}

/// A float, seldom a sensible one.
fn factor() -> impl Strategy<Value = f32> {
    prop_oneof![2 => 0.1..2.0f32, 1 => prop::sample::select(vec![0.0, -1.0, f32::NAN, f32::INFINITY, f32::MAX, 1e-45])]
}

#[test]
fn elements_are_moved_or_refused() {
    let draws = (vec(0..4usize, 0..4), sizes(), vec(size(), 0..4), factor());
    hold(400, &draws, |(axes, [axis, start, count, width, classes, rows], other, factor)| {
        let x = array(&axes).expect("a small array");
        if let Ok(y) = sound("narrow", || p::narrow(&x, axis, start, count))? {
            prop_assert_eq!(y.shape().axes()[axis], count);
        }
        let shape = Shape::from(other.clone());
        let _ = sound("narrow_backward", || p::narrow_backward(&shape, axis, start, count, &x))?;
        let _ = sound("concat", || p::concat(&[&x, &x], axis))?;
        let _ = sound("concat", || p::concat::<Cpu>(&[], axis))?;
        let _ = sound("sum_rows", || p::sum_rows(&x, width))?;
        let _ = sound("scale", || p::scale(factor, &x))?;
        let mask = DropMask::new([width as u32, rows as u32], factor);
        let dropped = sound("dropout", || p::dropout(mask, &x))?;
        prop_assert!(dropped.is_err() || (0.0..1.0).contains(&factor), "{}", factor);
        let _ = sound("l2_norm", || p::l2_norm(&x, factor))?;
        let _ = sound("softmax", || p::softmax(&x))?;
        let draw = Draw { temperature: factor, top_k: count, top_p: 0.5 + 0.5 * factor };
        let streams = Tensor::from_u32(&device(), [rows.min(4), 3], vec![1; 3 * rows.min(4)]).expect("streams");
        let drawn = sound("sample", || p::sample(&draw, &x, &streams))?;
        prop_assert!(drawn.is_err() || factor == 0.0 || (factor > 0.0 && factor <= 1.0), "{}", factor);
        if let Ok(row) = array(&[width]) {
            let inputs = RmsNormInputs { x: &x, weight: &row, g: (count > 1).then_some(&x) };
            let (place, function) = (GatePlace::Before, GateFunction::Sigmoid);
            let options = RmsNormOptions { groups: rows, one_plus: true, ..RmsNormOptions::new(factor) };
            for options in [options, RmsNormOptions { place, function, ..options }] {
                let Ok(Normed { inverse, .. }) = sound("rms_norm", || p::rms_norm(&inputs, options))? else { continue };
                let call = RmsNormBackward { options, inputs, inverse: &inverse, dy: &x };
                let _ = sound("rms_norm_backward", || p::rms_norm_backward(&call).map(|grads| grads.x))?;
                let _ = sound("add_rms_norm", || p::add_rms_norm(&x, &inputs, options).map(|added| added.sum))?;
                let _ = sound("add_rms_norm_backward", || p::add_rms_norm_backward(&call, &x).map(|grads| grads.x))?;
            }
            let inputs = LayerNormInputs { x: &x, weight: &row, bias: &row };
            let _ = sound("layer_norm", || p::layer_norm(&inputs, factor).map(|normed| normed.y))?;
            let added = sound("add_layer_norm", || p::add_layer_norm(&x, &inputs, factor).map(|added| added.normed))?;
            if let Ok(LayerNormed { mean, inverse, .. }) = added {
                let call = LayerNormBackward { inputs, mean: &mean, inverse: &inverse, dy: &x };
                let _ =
                    sound("add_layer_norm_backward", || p::add_layer_norm_backward(&call, &x).map(|grads| grads.x))?;
            }
        }
        let _ = sound("poly2", || p::poly2(&x, [factor, 1.0, 0.5]))?;
        let _ = sound("cast", || p::cast(DType::Bf16, &x))?;
        let _ = sound("cast_all", || p::cast_all::<Cpu>(DType::Bf16, &[]))?;
        let targets = Tensor::from_u32(&device(), [rows.min(4)], vec![0; rows.min(4)]).expect("ids");
        let loss = LossInputs { classes, logits: &x, targets: &targets };
        let _ = sound("cross_entropy", || p::cross_entropy(&loss))?;
        if let Ok(y) = array(&other) {
            let _ = sound("add", || p::add(&x, &y))?;
            let call = BiasedBackward { x: &x, b: &y, dy: &x };
            for map in [None, Some(p::Map::Relu)] {
                let _ = sound("biased", || p::biased(map, &x, &y))?;
                let _ = sound("biased_backward", || p::biased_backward(map, &call))?;
            }
            let _ = sound("head_products", || p::head_products(&x, &y))?;
            let _ = sound("head_products_backward", || p::head_products_backward(&x, &y, &x))?;
            let _ = sound("mul_backward", || p::mul_backward(&x, &y, &x))?;
            for end in [ProjectionEnd::Each, ProjectionEnd::Gated, ProjectionEnd::Added(&y)] {
                let weights: &[_] = if matches!(end, ProjectionEnd::Added(_)) { &[&y] } else { &[&y, &x] };
                for norm in [None, Some((&y, factor))] {
                    let inputs = ProjectionInputs { x: &x, norm, weights, end };
                    let _ = sound("project", || p::project(&inputs))?;
                }
            }
            let factor = |x, format| Fp8Factor { x, format, scale: None, maximum: Some((x, axis)) };
            let factors = (factor(&x, Fp8::E4M3), factor(&y, Fp8::E5M2));
            let _ = sound("fp8_matmul", || p::fp8_matmul(factors.0, factors.1, Transpose::default()))?;
            let _ = sound("matmul_each", || p::matmul_each(&x, &[&y, &x]))?;
            for transpose in [Transpose::default(), Transpose { a: true, b: false }, Transpose { a: false, b: true }] {
                let _ = sound("matmul", || p::matmul(&x, &y, transpose))?;
            }
        }
        Ok(())
    });
}

#[test]
fn rows_are_found_or_refused() {
    hold(300, &(sizes(), vec(any::<u32>(), 0..4)), |([vocabulary, width, rows, ..], ids)| {
        let count = ids.len();
        let ids = Tensor::from_u32(&device(), [count], ids).expect("ids");
        let few = Tensor::from_u32(&device(), [count], vec![0; count]).expect("ids");
        let dy = array(&[count, width.min(5)]).expect("a small array");
        for ids in [&ids, &few] {
            if let Ok(dtable) = sound("embedding_backward", || p::embedding_backward(vocabulary, ids, &dy))? {
                prop_assert_eq!(dtable.shape().axes()[0], vocabulary);
            }
            let table = array(&[rows.min(5), width.min(5)]).expect("a small array");
            let _ = sound("embedding", || p::embedding(&table, ids))?;
        }
        Ok(())
    });
}

#[test]
fn blocks_are_taken_or_refused() {
    let formats = prop::sample::select(BlockFormat::ALL.to_vec());
    let draws = (formats, sizes(), vec(any::<u8>(), 0..500), vec(factor(), 0..520), ".{0,6}");
    hold(300, &draws, |(format, [rows, columns, axis, ..], blocks, values, name)| {
        // A few whole blocks, so that not all are refused.
        for columns in [columns, format.block() * (1 + columns % 2)] {
            let whole = format.bytes(columns).and_then(|bytes| bytes.checked_mul(rows)).unwrap_or(0).min(1 << 12);
            for blocks in [blocks.clone(), blocks.iter().copied().cycle().take(whole).collect()] {
                let made = sound("Quantized::new", || Quantized::new(&device(), format, [rows, columns], &blocks))?;
                if let Ok(matrix) = made {
                    prop_assert_eq!(matrix.blocks().expect("the bytes"), blocks);
                    for axes in [vec![columns], vec![2, columns], vec![axis.min(5)], vec![0, columns]] {
                        let x = array(&axes).expect("a small array");
                        let _ = sound("quantized_matmul", || p::quantized_matmul(&x, &matrix))?;
                    }
                }
            }
            let _ = sound("Quantized::zeros", || Quantized::zeros(&device(), format, [rows, columns]).map(|_| ()))?;
        }
        if let Ok(values) = sound("BlockFormat::dequantize", || format.dequantize(&blocks))? {
            prop_assert_eq!(values.len() % format.block(), 0);
        }
        if let Ok(blocks) = sound("BlockFormat::quantize", || format.quantize(&values))? {
            prop_assert!(format.dequantize(&blocks).expect("blocks").iter().all(|x| x.is_finite()));
        }
        if let Some(bytes) = blocks.first_chunk() {
            let scales = sound("KScales::unpack", || KScales::unpack(bytes))?;
            prop_assert_eq!(scales.pack(), *bytes);
        }
        let known = BlockFormat::ALL.iter().any(|format| format.name() == name);
        prop_assert_eq!(sound("BlockFormat", || name.parse::<BlockFormat>())?.is_ok(), known);
        Ok(())
    });
}

#[test]
fn products_larger_than_memory_are_refused() {
    let (column, row) = (array(&[1 << 23, 1]).expect("32 MiB"), array(&[1, 1 << 23]).expect("32 MiB"));
    let told = p::matmul(&column, &row, Transpose::default()).expect_err("2^46 elements").to_string();
    assert!(told.contains("matmul") && told.contains("GB of memory are needed"), "{told}");
}

#[test]
fn tokens_are_mixed_or_refused() {
    let draws = (sizes(), vec(size(), 0..4), sizes(), (factor(), factor()));
    hold(400, &draws, |([batch, tokens, heads, width, window, offset], lengths, [taps, of, prefix, ..], (f, g))| {
        let [b, t, h, d] = [batch, tokens, heads, width].map(|size| size.min(4));
        let x = array(&[b, t, h, d]).expect("a small array");
        for sequences in [Sequences::batch(batch, tokens), Sequences::batch(b, t), Sequences::packed(&lengths)] {
            let offsets = vec![offset; sequences.count().min(6)];
            let _ = sound("rotary", || p::rotary(&x, &sequences, &offsets, f))?;
            let of_heads = array(&[b, t, of.min(5), d]).expect("a small array");
            let own = array(&[prefix.min(5), of.min(5), d]).expect("a small array");
            let prefix = (prefix > 0).then(|| Prefix { k: own.clone(), v: own });
            let inputs = AttentionInputs { q: x.clone(), k: of_heads.clone(), v: of_heads, cache: None, prefix };
            let options = AttentionOptions { window, scale: g };
            if let Ok(attended) = sound("attention", || p::attention(options, &sequences, inputs.clone()))? {
                prop_assert_eq!(attended.y.shape(), x.shape());
                let _ = sound("AttentionPass::backward", || attended.pass.backward(&x, None).map(|_| ()))?;
            }
            let _ = sound("attention_cache", || p::attention_cache(options, &sequences, &inputs).map(|_| ()))?;
            let rows = array(&[b, t, d]).expect("a small array");
            let weight = array(&[d, taps.min(5)]).expect("a small array");
            let state = array(&[sequences.count().min(5), taps.min(5).saturating_sub(1), d]).expect("a small array");
            let options = ConvOptions { silu: true, l2_norm: Some(L2Norm { width: of, epsilon: f }) };
            let inputs = ConvInputs { x: &rows, weight: &weight, state: &state };
            let _ = sound("conv", || p::conv(options, &sequences, &inputs).map(|_| ()))?;
        }
        Ok(())
    });
}

/// Inputs of a rule, of small sizes.
fn inputs<R: Rule>(rule: R, dims: &Dims) -> Result<Inputs<R, Tensor<Cpu>>> {
    let mut inputs = Inputs::try_build(rule, dims, DType::F32, |shape, _| array(shape.axes()))?;
    inputs.state = hecate_core::fresh_state(&device(), rule, dims, 1)?;
    inputs.gates = R::Gates::try_map(inputs.gates, |name, x| match name.starts_with("log_") {
        true => p::scale(-1.0, &x),
        false => Ok(x),
    })?;
    Ok(inputs)
}

fn run<R: Rule>(rule: R, dims: &Dims, lengths: &[usize], chunk: usize) -> Result<()>
where
    Cpu: hecate_core::Kernel<R>,
{
    let here = device();
    if let Ok(inputs) = inputs(rule, dims) {
        let _ = infer_packed(&here, rule, lengths, &inputs);
        let _ = forward_packed(&here, rule, lengths, inputs);
    }
    let device = here.with_algorithm(Algorithm::Chunk(chunk))?;
    // A device is a pool of its own, but not by its algorithm.
    let done = forward(&device, rule, inputs(rule, dims)?)?;
    done.pass.backward_out(done.outputs.out).map(|_| ())
}

#[test]
fn rules_run_or_refuse() {
    macro_rules! runs {
        ($($rule:ident),*) => {
            [$(|dims: &Dims, frozen, lengths: &[usize], chunk| {
                run(<$rule>::default().with_frozen(frozen), dims, lengths, chunk)
            }),*]
        };
    }
    let all: Vec<fn(&Dims, Option<u32>, &[usize], usize) -> Result<()>> = hecate_core::for_each_rule!(runs).to_vec();
    let draws = (0..all.len(), sizes(), vec(size(), 0..4), any::<Option<u32>>());
    hold(200, &draws, |(rule, [batch, tokens, heads, key, value, chunk], lengths, frozen)| {
        let dims = Dims::new(batch.min(3), tokens.min(9), heads.min(3), key.min(4), value.min(4));
        let _ = sound(AnyRule::NAMES[rule], || all[rule](&dims, frozen, &lengths, chunk))?;
        Ok(())
    });
}

#[test]
fn steps_are_taken_or_refused() {
    hold(200, &((factor(), factor(), factor()), any::<u32>(), 0..3usize), |((rate, epsilon, most), step, odd)| {
        let x = || array(&[2, 3]).expect("a small array");
        let like = |slot| array(if slot == odd { &[3, 2] } else { &[2, 3] }).expect("a small array");
        let slot = Slot { value: x(), mean: like(1), square: like(2) };
        let constants = AdamW { learning_rate: rate, beta1: 0.9, beta2: 0.95, epsilon, weight_decay: 0.1, step };
        let norm = array(&[1]).expect("a small array");
        let clip = Clip { max_norm: most, norm_squared: &norm };
        if let Ok(slot) = sound("adamw", || p::adamw(&constants, Some(&clip), slot, &x()))? {
            prop_assert!(rate.is_finite() && step > 0 && odd == 0, "{rate} {step} {odd}");
            prop_assert!(slot.value.to_f32().is_ok());
        }
        Ok(())
    });
}

#[test]
fn tokens_of_layers_are_decoded_or_refused() {
    hold(200, &(sizes(), sizes(), 0..4usize), |([batch, heads, key, value, taps, axis], told, form)| {
        let [b, h, k, v, taps] = [batch, heads, key, value, taps].map(|size| size.min(4));
        let array = |axes: &[usize]| array(axes).expect("a small array");
        let logit = || GateLogit { x: array(&[b, 1, h]), bias: array(&[h]) };
        let conv = |width: usize| ConvInput {
            x: array(&[b, 1, h * width, 1][..3 + axis % 2]),
            conv: Some((array(&[h * width, taps]), array(&[b, taps.saturating_sub(1), h * width]))),
        };
        let strengths = match form {
            0 => GateForm::Write(f32::NAN),
            1 => GateForm::Momentum(logit()),
            2 => GateForm::Erase(logit()),
            _ => GateForm::EraseRest(logit()),
        };
        let gates = TokenGates { retention: Some((logit(), array(&[h]))), write: logit(), strengths };
        let state = Momentum { m: array(&[b, h, k, v]), s: array(&[b, h, k, v]) };
        let (q, gate) = (conv(k), Some(array(&[b, 1, h * v])));
        let (k, v, weight) = (q.clone(), conv(v), array(&[v]));
        let call = Decode { q, k, v, norm_epsilon: 0.0, gates, state, weight, epsilon: f32::NAN, gate };
        for sizes in [[h, key, value], [told[0], told[1], told[2]]] {
            // The kernel is another device's.
            let refused = sound("decode", || decode(Titans::default(), sizes, &call).map(|_| ()))?;
            prop_assert!(refused.is_err_and(|error| error.to_string().len() > 10));
        }
        Ok(())
    });
}
