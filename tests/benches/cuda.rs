//! Times of rules and of attention on the first GPU, by its own clock.
//!
//! `cargo bench -p hecate-tests --bench cuda` prints a table; with `-- --requests` each line `RULE DTYPE B T H D PASS` of the
//! standard input is answered with a line of milliseconds, as `peers/compare.py` asks for them. `titans_mlp:64:4` is that rule with
//! groups of 64 tokens and a hidden layer four times as wide as keys, `titans_mlp:exact:4` without groups; `yaad_matrix:16`,
//! `lattice:16` and `atlas:64` are these in such groups, atlas with 5 steps of Newton-Schulz. `titans_mlp_norm:64:4` has a layer
//! norm behind the last matrix, `titans_mlp+anchor` goes back to a learned start. `attention:512` sees a window of 512 tokens, and
//! `decoded:16384` is the attention of T tokens after a cache that fills such a window. `copy_rate` is a copy of as many bytes as
//! `softmax`, `layer_norm` and `rms_norm` read and write at least. `gated_rms_norm` has its gate before the norm, and moves half as
//! much again forward, and three fifths more with backward; `add_layer_norm` twice as much forward, and three fifths more. Nothing
//! is timed before it was compared, with the equations in 64 bits at small sizes and with the CPU column at the width that is
//! timed, over 256 tokens (gradients of the first state fade beyond). 256 MiB written between two runs leave no cache warm.

use hecate_conformance::{Array, Case, Random, Sizes, assert_close, case, oracle::Oracle, report};
use hecate_core::{
    DType, Device, Error, Kernel, Result, Rule, Sequences, Slots as _, Tensor, forward, infer,
    primitives::{
        self, AttentionInputs, AttentionOptions, Cache, Fp8, Fp8Factor, GatePlace, LayerNormInputs, RmsNormInputs,
        RmsNormOptions, Transpose,
    },
    rules::*,
};
use hecate_cpu::Cpu;
use hecate_cuda::Cuda;
use std::{
    io::{self, Write as _},
    str::FromStr,
};

/// What is timed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum TimedPart {
    /// Results alone.
    Forward,
    /// Results and all gradients.
    Both,
}

/// What to time, at which size.
#[derive(Clone, Debug, PartialEq)]
struct Request {
    rule: String,
    /// Whether the memory goes back to an anchor.
    anchored: bool,
    dtype: DType,
    sizes: [usize; 4],
    pass: TimedPart,
}

impl FromStr for Request {
    type Err = String;

    fn from_str(line: &str) -> std::result::Result<Self, String> {
        let [rule, dtype, b, t, h, d, pass] = line.split_whitespace().collect::<Vec<_>>()[..] else {
            return Err(format!("`{line}`: expected RULE DTYPE B T H D PASS"));
        };
        let known = [DType::F32, DType::Bf16, DType::F16].into_iter().find(|known| known.to_string() == dtype);
        let dtype = known.ok_or_else(|| format!("element type `{dtype}`: expected f32, bf16 or f16"))?;
        let (rule, anchored) = rule.strip_suffix("+anchor").map_or((rule, false), |rule| (rule, true));
        let pass = match pass {
            "forward" => TimedPart::Forward,
            "both" => TimedPart::Both,
            other => return Err(format!("pass `{other}`: expected forward or both")),
        };
        let mut sizes = [0; 4];
        for (size, word) in sizes.iter_mut().zip([b, t, h, d]) {
            *size = word.parse().map_err(|error| format!("size `{word}`: {error}"))?;
        }
        Ok(Self { rule: rule.to_owned(), anchored, dtype, sizes, pass })
    }
}

/// Rule `lif` with keys of width 1, whatever `D`.
const KEYLESS: &str = "lif:keyless";
/// Products of matrices: by cuBLAS, by kernels of our own, and by the one of these that has a thread for each element.
const PRODUCTS: [&str; 3] = ["product", "own_product", "naive_product"];

/// Primitives of rows.
const ROWS: [&str; 5] = ["softmax", "layer_norm", "rms_norm", "gated_rms_norm", "add_layer_norm"];

/// Of the RMS norm that is timed.
const RMS: RmsNormOptions = RmsNormOptions::new(1e-5);

/// Runs one pass; what it made is dropped.
type Work = Box<dyn Fn(TimedPart) -> Result<()>>;

/// Tokens after which arguments come again: on how fast it goes this has no influence, but drawing them takes the processor
/// longer than all else.
const PART: usize = 1024;

/// Arguments of one sequence, or its state, for `b` of `times` as many tokens.
fn repeat<R: Rule>(slot: &str, x: &Tensor<Cuda>, b: usize, times: usize) -> Result<Tensor<Cuda>> {
    let state = R::State::NAMES.contains(&slot);
    let longer = if state { x.clone() } else { primitives::concat(&vec![x; times], 1)? };
    primitives::concat(&vec![&longer; b], 0)
}

/// Random arguments of a request's rule, with an anchor where it asks for one.
fn drawn<R: Oracle>(rule: R, sizes: Sizes, request: &Request) -> Result<Case<R>> {
    let key = if request.rule == KEYLESS { 1 } else { sizes.key };
    let case = Case::new(rule, Sizes { key, ..sizes }, 1);
    if !request.anchored {
        return Ok(case);
    }
    let refused = || {
        let (found, expected) = ("an anchor".into(), "none: this rule, with these options, has no such thing");
        Error::Config { what: R::NAME, option: "anchor", found, expected }
    };
    case.anchored(5).ok_or_else(refused)
}

/// The rule on the GPU with arguments of this size, once it is known to be right.
fn prepare<R: Oracle>(device: &Cuda, rule: R, request: &Request) -> Result<Work>
where
    Cuda: Kernel<R>,
    Cpu: Kernel<R>,
{
    let [_, t, _, d] = request.sizes;
    let cell = report::check_rule(device, rule);
    assert!(cell.passed, "{cell:?}");
    let case = drawn(rule, Sizes::new(1, t.min(256), 2, d, d), request)?;
    let (truth, found) = (case.run(&Cpu::new(), DType::F32)?, case.run(device, DType::F32)?);
    let compared = case::compare_outputs(rule, &truth.outputs, &found.outputs).into_iter();
    assert_close(&case, &Vec::from_iter(compared.chain(case::compare_grads(rule, &truth.grads, &found.grads))));
    repeated(device, rule, request)
}

/// A memory in frozen groups, held to the CPU column with arguments of the type that is timed.
fn prepare_frozen<R: Oracle>(device: &Cuda, rule: R, request: &Request) -> Result<Work>
where
    Cuda: Kernel<R>,
    Cpu: Kernel<R>,
{
    let [_, t, _, d] = request.sizes;
    let case = drawn(rule, Sizes::new(1, t.min(150), 2, d, d), request)?;
    let (truth, rounded) = (case.run(&Cpu::new(), DType::F32)?, case.run(&Cpu::new(), request.dtype)?);
    let found = case.run(device, request.dtype)?;
    for (((slot, truth), (_, rounded)), (_, found)) in truth.list().into_iter().zip(rounded.list()).zip(found.list()) {
        let [cost, error] = [rounded, found].map(|x| hecate_conformance::error(&truth.values, &x.values));
        assert!(error < 1e-4_f64.max(2.0 * cost), "{slot} is {error} away from the CPU's, rounding costs {cost}");
    }
    repeated(device, rule, request)
}

/// The rule on the GPU with arguments of this size.
fn repeated<R: Oracle>(device: &Cuda, rule: R, request: &Request) -> Result<Work>
where
    Cuda: Kernel<R>,
{
    let [b, t, h, d] = request.sizes;
    let part = if t.is_multiple_of(PART) { PART } else { t };
    let case = drawn(rule, Sizes::new(1, part, h, d, d), request)?;
    let mut arguments = case.upload(device, request.dtype)?;
    // Sequences share an anchor.
    let anchor = arguments.anchor.take();
    let mut inputs = arguments.try_map(|slot, x| repeat::<R>(slot, &x, b, t / part))?;
    inputs.anchor = anchor;
    let grads = case.upload_grads(device, request.dtype)?.try_map(|slot, x| repeat::<R>(slot, &x, b, t / part))?;
    let device = device.clone();
    Ok(Box::new(move |pass| match pass {
        TimedPart::Forward => infer(&device, rule, &inputs).map(drop),
        TimedPart::Both => {
            let pass = forward(&device, rule, inputs.clone())?.pass;
            pass.backward(grads.clone()).map(drop)
        }
    }))
}

/// Attention over a window, or all earlier tokens, compared with the CPU column on one head, over at most 1024 tokens.
/// `cached`: the window lies in a cache.
fn prepare_attention(device: &Cuda, request: &Request, window: usize, cached: bool) -> Result<Work> {
    let [b, t, h, d] = request.sizes;
    let options = AttentionOptions { window: window.max(2), scale: (d as f32).powf(-0.5) };
    let kept = if cached { options.window - 1 } else { 0 };
    let mut random = Random::new(1);
    let arrays: [Array; 6] = std::array::from_fn(|i| random.normals([1, if i < 4 { t.min(1024) } else { kept }, 1, d]));
    let truth = attend(&Cpu::new(), options, &arrays, DType::F32)?;
    // Within twice what rounding costs the CPU column.
    let (rounded, found) =
        (attend(&Cpu::new(), options, &arrays, request.dtype)?, attend(device, options, &arrays, request.dtype)?);
    for ((truth, rounded), found) in truth.iter().zip(&rounded).zip(&found) {
        let [cost, error] = [rounded, found].map(|x| hecate_conformance::error(&truth.values, &x.values));
        assert!(error < 1e-4_f64.max(2.0 * cost), "attention is {error} away from the CPU's");
    }
    let mut upload = |t| random.normals([b, t, h, d]).upload(device, request.dtype);
    let cache = (kept > 0).then(|| whole_cache(upload(kept)?, upload(kept)?)).transpose()?;
    let (inputs, dy) =
        (AttentionInputs { q: upload(t)?, k: upload(t)?, v: upload(t)?, cache, prefix: None }, upload(t)?);
    let sequences = Sequences::batch(b, t);
    Ok(Box::new(move |pass| {
        let attention = primitives::attention(options, &sequences, inputs.clone())?.pass;
        match pass {
            TimedPart::Forward => Ok(()),
            TimedPart::Both => attention.backward(&dy, None).map(drop),
        }
    }))
}

/// Primitives of rows `[B T H, D]`, compared with the CPU column on a few of them.
fn prepare_rows(device: &Cuda, request: &Request) -> Result<Work> {
    let [b, t, h, width] = request.sizes;
    let (name, mut random) = (request.rule.clone(), Random::new(1));
    let few = [random.normals([3, width]), random.normals([width]), random.normals([3, width])];
    let cpu = Cpu::new();
    let truth = rows(&name, &few.each_ref().map(|x| x.upload(&cpu, DType::F32).expect("rows")))?;
    let found = rows(&name, &few.each_ref().map(|x| x.upload(device, DType::F32).expect("rows")))?;
    for (truth, found) in truth.iter().zip(&found) {
        let error = hecate_conformance::error(&Array::download(truth)?.values, &Array::download(found)?.values);
        assert!(error < 1e-5, "{name} is {error} away from the CPU's");
    }
    let mut upload = |axes: &[usize]| random.normals(axes).upload(device, request.dtype);
    let arrays = [upload(&[b * t * h, width])?, upload(&[width])?, upload(&[b * t * h, width])?];
    Ok(Box::new(move |pass| match pass {
        TimedPart::Forward => rows_forward(&name, &arrays).map(drop),
        TimedPart::Both => rows(&name, &arrays).map(drop),
    }))
}

/// `a bᵀ`, `a [B T, D]`, `b [H, D]`, by cuBLAS or by kernels of our own, as `device` is.
fn prepare_product(device: &Cuda, request: &Request) -> Result<Work> {
    let [b, t, columns, inner] = request.sizes;
    let mut random = Random::new(1);
    let mut upload = |rows: usize| random.normals([rows, inner]).upload(device, request.dtype);
    let (left, right) = (upload(b * t)?, upload(columns)?);
    let transpose = Transpose { a: false, b: true };
    // Held to the CPU column by a row of the result.
    let cpu = Cpu::new();
    let first = |x: &Tensor<Cuda>, rows| Array::download(&primitives::narrow(x, 0, 0, rows)?)?.upload(&cpu, DType::F32);
    let truth = Array::download(&primitives::matmul(&first(&left, 1)?, &first(&right, columns)?, transpose)?)?;
    let found = Array::download(&primitives::narrow(&primitives::matmul(&left, &right, transpose)?, 0, 0, 1)?)?;
    let error = hecate_conformance::error(&truth.values, &found.values);
    assert!(error < 1e-2, "a product is {error} away from the CPU's");
    Ok(Box::new(move |pass| {
        let out = primitives::matmul(&left, &right, transpose)?;
        match pass {
            TimedPart::Forward => Ok(()),
            TimedPart::Both => primitives::matmul_backward(&left, &right, transpose, &out).map(drop),
        }
    }))
}

/// `fp8_product`, for GPUs that have it: as [`prepare_product`] with factors that are rounded to 8 bits in each run, by scales that are known.
fn prepare_fp8_product(device: &Cuda, request: &Request) -> Result<Work> {
    let [b, t, columns, inner] = request.sizes;
    let (mut random, scale) = (Random::new(1), 2f32.powi(-6));
    let mut upload = |rows: usize| random.normals([rows, inner]).upload(device, request.dtype);
    let (left, right) = (upload(b * t)?, upload(columns)?);
    let (scales, maxima) = (Tensor::from_f32(device, [1], vec![scale])?, Tensor::zeros(device, [1], DType::F32)?);
    // Gradients are as large as what they are gradients of.
    let product = move |[a, b]: [&Tensor<Cuda>; 2], format: Fp8, transpose| {
        let [a, b] = [(a, format), (b, Fp8::E4M3)].map(|(x, format)| {
            let (scale, maximum) = (Some((&scales, 0)), Some((&maxima, 0)));
            Fp8Factor { x, format, scale, maximum }
        });
        primitives::fp8_matmul(a, b, transpose)
    };
    // Held to a row of the CPU column's product of the same factors, rounded.
    let (cpu, across) = (Cpu::new(), Transpose { a: false, b: true });
    let first = |x: &Tensor<Cuda>, rows| {
        let mut x = Array::download(&primitives::narrow(x, 0, 0, rows)?)?;
        x.values.iter_mut().for_each(|x| *x = f64::from(Fp8::E4M3.round(*x as f32 / scale) * scale));
        x.upload(&cpu, DType::F32)
    };
    let truth = Array::download(&primitives::matmul(&first(&left, 1)?, &first(&right, columns)?, across)?)?;
    let out = product([&left, &right], Fp8::E4M3, across)?;
    let error = hecate_conformance::error(&truth.values, &Array::download(&primitives::narrow(&out, 0, 0, 1)?)?.values);
    assert!(error < 1e-2, "a product is {error} away from the CPU's");
    Ok(Box::new(move |pass| {
        let out = product([&left, &right], Fp8::E4M3, across)?;
        if pass == TimedPart::Both {
            product([&out, &right], Fp8::E5M2, Transpose::default())?;
            product([&out, &left], Fp8::E5M2, Transpose { a: true, b: false })?;
        }
        Ok(())
    }))
}

/// The RMS norm of this name; `dy` serves as its gate.
fn rms<'a, B: Device>(
    name: &str,
    [x, weight, dy]: &'a [Tensor<B>; 3],
) -> (RmsNormInputs<&'a Tensor<B>>, RmsNormOptions) {
    if name == "rms_norm" {
        return (RmsNormInputs { x, weight, g: None }, RMS);
    }
    (RmsNormInputs { x, weight, g: Some(dy) }, RmsNormOptions { place: GatePlace::Before, ..RMS })
}

/// Of a layer norm, whose weight is its bias too.
fn layer<B: Device>([x, weight, _]: &[Tensor<B>; 3]) -> LayerNormInputs<&Tensor<B>> {
    LayerNormInputs { x, weight, bias: weight }
}

/// Results alone of `x`, `weight` and `dy`.
fn rows_forward<B: primitives::Primitives>(name: &str, arrays: &[Tensor<B>; 3]) -> Result<Tensor<B>> {
    let [x, _, dy] = arrays;
    match name {
        "softmax" => primitives::softmax(x),
        "layer_norm" => primitives::layer_norm(&layer(arrays), 1e-5).map(|normed| normed.y),
        "add_layer_norm" => primitives::add_layer_norm(dy, &layer(arrays), 1e-5).map(|added| added.normed.y),
        _ => {
            let (inputs, options) = rms(name, arrays);
            primitives::rms_norm(&inputs, options).map(|normed| normed.y)
        }
    }
}

/// The result, and the gradients by `x` and where there is one by `weight`.
fn rows<B: primitives::Primitives>(name: &str, arrays: &[Tensor<B>; 3]) -> Result<Vec<Tensor<B>>> {
    let [x, _, dy] = arrays;
    match name {
        "softmax" => {
            let y = primitives::softmax(x)?;
            Ok(vec![y.clone(), primitives::softmax_backward(&y, dy)?])
        }
        "layer_norm" => {
            let inputs = layer(arrays);
            let primitives::LayerNormed { y, mean, inverse } = primitives::layer_norm(&inputs, 1e-5)?;
            let call = primitives::LayerNormBackward { inputs, mean: &mean, inverse: &inverse, dy };
            let grads = primitives::layer_norm_backward(&call)?;
            Ok(vec![y, grads.x, grads.weight, grads.bias])
        }
        "add_layer_norm" => {
            let inputs = layer(arrays);
            let primitives::AddedLayerNorm { sum, normed } = primitives::add_layer_norm(dy, &inputs, 1e-5)?;
            let inputs = LayerNormInputs { x: &sum, ..inputs };
            let call = primitives::LayerNormBackward { inputs, mean: &normed.mean, inverse: &normed.inverse, dy };
            let grads = primitives::add_layer_norm_backward(&call, dy)?;
            Ok(vec![sum, normed.y, grads.x, grads.weight, grads.bias])
        }
        _ => {
            let (inputs, options) = rms(name, arrays);
            let primitives::Normed { y, inverse } = primitives::rms_norm(&inputs, options)?;
            let call = primitives::RmsNormBackward { options, inputs, inverse: &inverse, dy };
            let grads = primitives::rms_norm_backward(&call)?;
            Ok([Some(y), Some(grads.x), Some(grads.weight), grads.g].into_iter().flatten().collect())
        }
    }
}

/// Results and gradients of `q, k, v, dy`, after a cache of further keys and values `[1, P, 1, D]` where these have rows.
fn attend<B: primitives::Attention>(
    device: &B,
    options: AttentionOptions,
    arrays: &[Array; 6],
    dtype: DType,
) -> Result<Vec<Array>> {
    let upload = |i: usize| arrays[i].upload(device, dtype);
    let sequences = Sequences::batch(1, arrays[0].shape.axes()[1]);
    let cache = (arrays[4].shape.count() > 0).then(|| whole_cache(upload(4)?, upload(5)?)).transpose()?;
    let inputs = AttentionInputs { q: upload(0)?, k: upload(1)?, v: upload(2)?, cache, prefix: None };
    let primitives::Attended { y, pass } = primitives::attention(options, &sequences, inputs)?;
    let grads = pass.backward(&upload(3)?, None)?;
    [&y, &grads.q, &grads.k, &grads.v].into_iter().map(Array::download).collect()
}

/// A cache `[B, P, H, D]` of which every place counts.
fn whole_cache<B: primitives::Attention>(k: Tensor<B>, v: Tensor<B>) -> Result<Cache<Tensor<B>>> {
    let places = [k.shape().axes()[0], k.shape().axes()[1]];
    Ok(Cache { valid: Tensor::from_f32(k.device(), places, vec![1.0; places[0] * places[1]])?, k, v })
}

/// MLP memories by `RULE:GROUP:EXPANSION`, where GROUP may be `exact`, others by `RULE:GROUP`; none for other names.
fn frozen(device: &Cuda, request: &Request) -> Option<Result<Work>> {
    let mut words = request.rule.split(':');
    let (name, group) = (words.next()?, words.next()?);
    let frozen = if group == "exact" { None } else { Some(group.parse().ok()?) };
    macro_rules! by_name {
        ($($name:literal $rule:expr),*) => {
            match name {
                $($name => Some(prepare_frozen(device, $rule, request)),)*
                _ => None,
            }
        };
    }
    let Some(expansion) = words.next() else {
        return by_name!(
            "lattice" Lattice { frozen, ..Lattice::default() },
            "trellis" Trellis { frozen, ..Trellis::default() },
            "atlas" Atlas { newton_schulz: 5, frozen, ..Atlas::default() },
            "yaad_matrix" YaadMatrix { frozen, ..YaadMatrix::default() },
            "moneta_matrix" MonetaMatrix { frozen, ..MonetaMatrix::default() },
            "memora_matrix" MemoraMatrix { frozen, ..MemoraMatrix::default() }
        );
    };
    let memory = MlpMemory { expansion: expansion.parse().ok()?, ..MlpMemory::default() };
    by_name!(
        "titans_mlp" TitansMlp { memory, frozen, ..TitansMlp::default() },
        "titans_mlp_norm" TitansMlp { memory: MlpMemory { norm: true, ..memory }, frozen, ..TitansMlp::default() },
        "titans_mlp_ahead" TitansMlp { memory, frozen, momentum: MomentumForm::LookAhead, ..TitansMlp::default() },
        "moneta" Moneta { memory, frozen, ..Moneta::default() },
        "moneta_literal" Moneta { memory, frozen, q: 3.0, map: Map::Literal, ..Moneta::default() },
        "yaad" Yaad { memory, frozen, ..Yaad::default() },
        "yaad_momentum" YaadMomentum { memory, frozen, ..YaadMomentum::default() },
        "memora" Memora { memory, frozen, ..Memora::default() },
        "memora_norm" Memora { memory: MlpMemory { norm: true, ..memory }, frozen, ..Memora::default() }
    )
}

/// Every rule by its name, the delta rule in both its forms.
fn work(device: &Cuda, request: &Request) -> Result<Work> {
    if let Some(work) = frozen(device, request) {
        return work;
    }
    if let Some((name @ ("attention" | "decoded"), window)) = request.rule.split_once(':')
        && let Ok(window) = window.parse()
    {
        return prepare_attention(device, request, window, name == "decoded");
    }
    macro_rules! by_name {
        ($($rule:ident),*) => {
            match request.rule.as_str() {
                "gated_delta" => {
                    prepare(device, Delta { erase: Erase::Decayed, ..Delta::default() }, request)
                }
                KEYLESS => prepare(device, Lif::default(), request),
                "attention" => prepare_attention(device, request, request.sizes[1], false),
                name if PRODUCTS.contains(&name) => prepare_product(device, request),
                "fp8_product" => prepare_fp8_product(device, request),
                name if ROWS.contains(&name) => prepare_rows(device, request),
                $(<$rule as Rule>::NAME => prepare(device, <$rule>::all()[0], request),)*
                other => Err(Error::Unsupported { backend: "cuda", what: "this rule", why: format!("`{other}` is none") }),
            }
        };
    }
    hecate_core::for_each_rule!(by_name)
}

/// A device that does without cuBLAS, for products by kernels of our own: in 32 bits by tiles, in 16 bits on tensor cores.
fn device_for(device: &Cuda, rule: &str) -> Result<Cuda> {
    match PRODUCTS.iter().position(|&product| product == rule) {
        Some(1) => device.with_own_products(),
        Some(2) => device.with_naive_products(),
        _ => Ok(device.clone()),
    }
}

/// Median milliseconds of many runs, all queued before the first is waited for.
fn median(device: &Cuda, work: &Work, pass: TimedPart) -> Result<f32> {
    let once = || -> Result<hecate_cuda::Timing> {
        drop(Tensor::zeros(device, [64 << 20], DType::F32)?);
        device.timed(|| work(pass)).map(|((), timing)| timing)
    };
    for _ in 0..2 {
        work(pass)?;
    }
    let guess = once()?.milliseconds()?;
    let runs = ((200.0 / guess) as usize).clamp(5, 100);
    let timings = (0..runs).map(|_| once()).collect::<Result<Vec<_>>>()?;
    let mut times = timings.iter().map(hecate_cuda::Timing::milliseconds).collect::<Result<Vec<_>>>()?;
    times.sort_by(f32::total_cmp);
    device.synchronize()?;
    Ok(times[times.len() / 2])
}

/// Milliseconds of a copy that reads and writes as many bytes as a primitive of rows has to: `x` and `y`, then with the
/// gradient the kept one of them, `dy` and `dx`.
fn copied(device: &Cuda, request: &Request) -> Result<f32> {
    let arrays = if request.pass == TimedPart::Forward { 2 } else { 5 };
    let bytes = arrays * request.sizes.iter().product::<usize>() * request.dtype.size();
    Ok((bytes as f64 / device.copy_rate()? * 1e3) as f32)
}

/// Answers lines of the standard input.
fn serve(device: &Cuda) -> Result<()> {
    let mut prepared: Option<(Request, Cuda, Work)> = None;
    for line in io::stdin().lines().map_while(io::Result::ok) {
        let answer = line.parse::<Request>().and_then(|request| {
            if request.rule == "copy_rate" {
                return copied(device, &request).map_err(|error| error.to_string());
            }
            let alike = |old: &Request| Request { pass: request.pass, ..old.clone() } == request;
            if !prepared.as_ref().is_some_and(|(old, ..)| alike(old)) {
                // The old one's memory first.
                prepared = None;
                let device = device_for(device, &request.rule).map_err(|error| error.to_string())?;
                let work = work(&device, &request).map_err(|error| error.to_string())?;
                prepared = Some((request.clone(), device, work));
            }
            let Some((_, device, work)) = &prepared else { unreachable!("it was just put there") };
            median(device, work, request.pass).map_err(|error| error.to_string())
        });
        match answer {
            Ok(time) => println!("{time}"),
            Err(error) => println!("error: {error}"),
        }
        let _ = io::stdout().flush();
    }
    Ok(())
}

/// What the GPU does at most.
struct Floors {
    /// Bytes a second of a copy, those read and those written.
    bandwidth: f64,
    /// Operations a second of the tensor cores, in a large product of bfloat16.
    operations: f64,
}

impl Floors {
    fn measure(device: &Cuda) -> Result<Self> {
        let n = 8192;
        let square = Random::new(1).normals([n, n]).upload(device, DType::Bf16)?;
        let once = || primitives::matmul(&square, &square, Transpose::default()).map(drop);
        once()?;
        let timings = (0..20).map(|_| device.timed(once).map(|x| x.1)).collect::<Result<Vec<_>>>()?;
        let times = timings.iter().map(hecate_cuda::Timing::milliseconds).collect::<Result<Vec<_>>>()?;
        let best = f64::from(times.into_iter().fold(f32::INFINITY, f32::min)) / 1e3;
        Ok(Self { bandwidth: device.copy_rate()?, operations: 2.0 * (n as f64).powi(3) / best })
    }

    /// Milliseconds that no form of a linear rule can be under: each of `q, k, v, out`, and of their gradients, once; and
    /// that none in chunks of 64 tokens can: its products. `None` for other rules.
    fn of(&self, rule: &str, [b, t, h, d]: [usize; 4], pass: TimedPart) -> Option<[f64; 2]> {
        let tokens = (b * t * h) as f64;
        if ROWS.contains(&rule) {
            // x and y; then the kept one of them, dy and dx.
            let arrays = if pass == TimedPart::Forward { 2.0 } else { 5.0 };
            return Some([2.0 * d as f64 * tokens * arrays / self.bandwidth * 1e3, 0.0]);
        }
        if PRODUCTS.contains(&rule) {
            let once = 2.0 * (b * t * h * d) as f64;
            let operations = if pass == TimedPart::Forward { once } else { 3.0 * once };
            return Some([0.0, operations / self.operations * 1e3]);
        }
        let matrices = match rule {
            "hebbian" | "delta" | "gated_delta" | "dgd" => 1.0,
            "titans" => 2.0,
            _ => return None,
        };
        let (chunk, d) = (64.0, d as f64);
        // Products of [chunk,d] with the memory, and halves of squares of a chunk, in each of the two directions.
        let products = 3.0 * matrices * d / chunk;
        let (forward, backward) = (products + 2.0, 2.0 * products + 5.0);
        let (arrays, products) = match pass {
            TimedPart::Forward => (4.0, forward),
            TimedPart::Both => (11.0, forward + backward),
        };
        let (bytes, operations) = (2.0 * d * tokens * arrays, 2.0 * chunk * d * tokens * products);
        Some([bytes / self.bandwidth * 1e3, operations / self.operations * 1e3])
    }
}

/// Rules and sizes of the table.
fn table(device: &Cuda) -> Result<()> {
    let linear = ["hebbian", "delta", "gated_delta", "titans", "dgd"];
    let deep = ["titans_mlp", "moneta_matrix", "yaad_matrix", "memora_matrix", "lattice", "trellis", "atlas"];
    let (large, small) = ([4, 2048, 16, 128], [8, 1024, 8, 64]);
    let others = [[2, 16384, 16, 128], [1, 8192, 96, 128], [4, 4096, 64, 128], [4, 2048, 8, 256]];
    let rows = linear.iter().flat_map(|rule| [(rule, large), (rule, small)]);
    let rows = rows.chain(["delta", "gated_delta"].iter().flat_map(|rule| others.map(|sizes| (rule, sizes))));
    let rows = rows.chain(deep.iter().map(|rule| (rule, small)));
    let rows = rows.chain([large, small, others[0]].map(|sizes| (&"attention", sizes)));
    let rows =
        rows.chain(ROWS.iter().flat_map(|name| [[1, 8192, 1, 4096], [1, 256, 1, 131_072]].map(|sizes| (name, sizes))));
    let rows = rows.chain(PRODUCTS.iter().map(|name| (name, [1, 4096, 4096, 4096])));
    let floors = Floors::measure(device)?;
    println!(
        "{device:?}, bf16, milliseconds; in brackets the floors' shares in them: of memory, at {:.2} TB/s, and of the",
        floors.bandwidth / 1e12
    );
    println!("products of a form in chunks, at {:.0} TFLOP/s", floors.operations / 1e12);
    println!("{:<16} {:<20} {:>9} {:>15} {:>9} {:>15}", "rule", "B,T,H,D", "forward", "", "both", "");
    for (rule, sizes) in rows {
        let request =
            Request { rule: (*rule).to_owned(), anchored: false, dtype: DType::Bf16, sizes, pass: TimedPart::Forward };
        let device = &device_for(device, rule)?;
        let work = work(device, &request)?;
        print!("{rule:<16} {:<20}", format!("{sizes:?}"));
        for pass in [TimedPart::Forward, TimedPart::Both] {
            let time = median(device, &work, pass)?;
            let share = |floor: f64| 100.0 * floor / f64::from(time);
            let shares = floors
                .of(rule, sizes, pass)
                .map(|[memory, products]| format!("({:.0} %, {:.0} %)", share(memory), share(products)));
            print!(" {time:>9.3} {:>15}", shares.unwrap_or_default());
        }
        println!();
    }
    Ok(())
}

fn main() -> std::process::ExitCode {
    let requests = std::env::args().any(|argument| argument == "--requests");
    let done = match Cuda::new(0) {
        Err(error) => {
            println!("skipped: {error}");
            return std::process::ExitCode::SUCCESS;
        }
        Ok(device) if requests => serve(&device),
        Ok(device) => table(&device),
    };
    match done {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}
