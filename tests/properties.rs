//! What holds for any sizes, on random ones.

use hecate_conformance::{
    Array, Case, Random, Results, Sizes, error,
    oracle::{Oracle, solve},
};
use hecate_core::{
    DType, Kernel, Outputs,
    primitives::{self, Transpose},
    rules::*,
};
use hecate_cpu::{Algorithm, Cpu};
use proptest::{prelude::*, sample::Index, test_runner::RngSeed};

fn config() -> ProptestConfig {
    let config = ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() };
    // The same draws on every machine, unless PROPTEST_RNG_SEED asks for others.
    let rng_seed = if config.rng_seed == RngSeed::Random { RngSeed::Fixed(2024) } else { config.rng_seed };
    ProptestConfig { rng_seed, ..config }
}

/// How much further than another way of rounding one may be from the truth.
const LUCK: f64 = 100.0;

/// Of fewer than four elements, the norm in some memories leaves little but signs, and rounding decides.
fn sizes() -> impl Strategy<Value = Sizes> {
    (1..3usize, 1..40usize, 1..3usize, 1..12usize, 4..12usize).prop_map(|(b, t, h, k, v)| Sizes::new(b, t, h, k, v))
}

/// Agreement beside the largest number or 1: of few elements all may cancel, and a relative error means nothing.
fn close(truth: &Array, found: &Array) -> Result<(), TestCaseError> {
    prop_assert_eq!(&truth.shape, &found.shape);
    let difference = difference(truth, found);
    let scale = truth.values.iter().fold(1.0, |a: f64, x| a.max(x.abs()));
    prop_assert!(difference <= 2e-4 * scale, "differ by {difference:e}");
    Ok(())
}

/// The largest difference; infinity for what is no number.
fn difference(truth: &Array, found: &Array) -> f64 {
    let apart = |(t, f): (&f64, &f64)| if (t - f).is_nan() { f64::INFINITY } else { (t - f).abs() };
    truth.values.iter().zip(&found.values).map(apart).fold(0.0, f64::max)
}

/// Agreement of slots by name, of a rule's call.
fn same<'a>(
    rule: impl std::fmt::Debug,
    truth: impl IntoIterator<Item = (&'static str, &'a Array)>,
    found: impl IntoIterator<Item = (&'static str, &'a Array)>,
) -> Result<(), TestCaseError> {
    truth.into_iter().zip(found).try_for_each(|((slot, truth), (_, found))| {
        close(truth, found).map_err(|error| TestCaseError::fail(format!("{slot} of {rule:?}: {error}")))
    })
}

/// One of a rule's options.
fn option<R: Oracle>(index: Index) -> R {
    *index.get(&R::all())
}

fn chunk_is_scan<R: Oracle>(rule: R, sizes: Sizes, chunk: usize, seed: u64) -> Result<(), TestCaseError>
where
    Cpu: Kernel<R>,
{
    let case = Case::new(rule, sizes, seed);
    let run = |case: &Case<R>, algorithm| {
        let cpu = Cpu::new().with_algorithm(algorithm).expect("chunks of at least a token");
        case.run(&cpu, DType::F32).expect("a valid call")
    };
    let (scan, chunks) = (run(&case, Algorithm::Scan), run(&case, Algorithm::Chunk(chunk)));
    same(rule, scan.list(), chunks.list()).or_else(|failure| {
        // Some memories amplify rounding: then both are off the truth, about as much.
        let truth = solve(&case);
        let off = |found: &Results<R>| -> Vec<f64> {
            truth
                .list()
                .into_iter()
                .zip(found.list())
                .map(|((_, truth), (_, found))| difference(truth, found))
                .collect()
        };
        let agree =
            scan.list().into_iter().zip(chunks.list()).map(|((_, scan), (_, chunks))| close(scan, chunks).is_ok());
        let within =
            agree.zip(off(&scan)).zip(off(&chunks)).all(|((agree, scan), chunks)| agree || chunks <= LUCK * scan);
        if within { Ok(()) } else { Err(failure) }
    })
}

fn packed_is_separate<R: Oracle>(rule: R, lengths: &[usize], seed: u64) -> Result<(), TestCaseError>
where
    Cpu: Kernel<R>,
{
    let (device, case) = (Cpu::new(), Case::packed(rule, lengths, 2, 5, 3, seed));
    let packed = case.run(&device, DType::F32).expect("a valid call");
    for (n, rows) in case.dims.sequences.ranges().enumerate() {
        let states = |state: &hecate_core::Of<R::State, Array>| {
            use hecate_core::Slots;
            R::State::map(R::State::as_ref(state), |_, x: &Array| x.cut(0, n..n + 1))
        };
        let alone = case.cut(rows.clone(), &states(&case.inputs.state), &states(&case.grads.state));
        let alone = alone.run(&device, DType::F32).expect("a valid call");
        let out = packed.outputs.out.cut(1, rows);
        let found = Outputs::<R, Array> { out, state: states(&packed.outputs.state) };
        same(rule, alone.outputs.list(), found.list())?;
    }
    Ok(())
}

fn cut_is_whole<R: Oracle>(rule: R, sizes: Sizes, at: Index, seed: u64) -> Result<(), TestCaseError>
where
    Cpu: Kernel<R>,
{
    let group = rule.group().unwrap_or(1);
    let sizes = Sizes { tokens: sizes.tokens + group, ..sizes };
    let (device, case) = (Cpu::new(), Case::new(rule, sizes, seed));
    let at = group * (1 + at.index((sizes.tokens - 1) / group));
    let infer = |case: &Case<R>| case.infer(&device, DType::F32).expect("a valid call");
    let whole = infer(&case);
    let first = infer(&case.cut(0..at, &case.inputs.state, &case.grads.state));
    let second = infer(&case.cut(at..sizes.tokens, &first.state, &case.grads.state));
    let found = Outputs::<R, Array> { out: Array::join(&[first.out, second.out], 1), state: second.state };
    same(rule, whole.list(), found.list())
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn chunks_compute_what_scans_do(sizes in sizes(), chunk in 1..20usize, index in any::<Index>(), seed: u64) {
        macro_rules! rules {
            ($($rule:ident),*) => { $(chunk_is_scan::<$rule>(option(index), sizes, chunk, seed)?;)* };
        }
        hecate_core::for_each_rule!(rules);
    }

    #[test]
    fn packed_sequences_do_not_meet(
        lengths in prop::collection::vec(1..25usize, 1..5), index in any::<Index>(), seed: u64,
    ) {
        macro_rules! rules {
            ($($rule:ident),*) => { $(packed_is_separate::<$rule>(option(index), &lengths, seed)?;)* };
        }
        hecate_core::for_each_rule!(rules);
    }

    #[test]
    fn a_text_may_be_cut(sizes in sizes(), at in any::<Index>(), index in any::<Index>(), seed: u64) {
        macro_rules! rules {
            ($($rule:ident),*) => { $(cut_is_whole::<$rule>(option(index), sizes, at, seed)?;)* };
        }
        hecate_core::for_each_rule!(rules);
    }

    /// Twice the values and the state, twice the output.
    #[test]
    fn hebbian_is_linear_in_what_it_stores(sizes in sizes(), factor in -3.0..3.0f64, seed: u64) {
        let case = Case::new(Hebbian::default(), sizes, seed);
        let infer = |case: &Case<Hebbian>| case.infer(&Cpu::new(), DType::F32).expect("a valid call").out;
        let multiplied = |mut array: Array| {
            array.values.iter_mut().for_each(|x| *x *= factor);
            array
        };
        let more = case.clone().with(|slot, array| if ["v", "m"].contains(&slot) { multiplied(array) } else { array });
        close(&multiplied(infer(&case)), &infer(&more))?;
    }

    #[test]
    fn matmul_is_rows_times_columns(
        m in 1..20usize, k in 1..40usize, n in 1..20usize, batch in 1..4usize, a: bool, b: bool, seed: u64,
    ) {
        let random = &mut Random::new(seed);
        let left = random.normals(if a { [batch, k, m] } else { [batch, m, k] });
        let right = random.normals(if b { [batch, n, k] } else { [batch, k, n] });
        let at = |x: &Array, transposed: bool, i: usize, r: usize, c: usize| {
            let [_, rows, columns] = *x.shape.axes() else { unreachable!("three axes") };
            let (r, c) = if transposed { (c, r) } else { (r, c) };
            x.values[(i * rows + r) * columns + c]
        };
        let term = |i: usize, r: usize, c: usize, s: usize| at(&left, a, i, r, s) * at(&right, b, i, s, c);
        let element = |e: usize| (0..k).map(|s| term(e / (m * n), e / n % m, e % n, s)).sum();
        let truth = Array::new([batch, m, n], (0..batch * m * n).map(element).collect());
        let cpu = Cpu::new();
        let upload = |x: &Array| x.upload(&cpu, DType::F32).expect("an upload");
        let found = primitives::matmul(&upload(&left), &upload(&right), Transpose { a, b }).expect("a valid call");
        close(&truth, &Array::download(&found).expect("a download"))?;
    }

    /// Joined and cut again, arrays are what they were, bit for bit; and a range put back covers only itself.
    #[test]
    fn cutting_undoes_joining(
        axis in 0..3usize, lengths in prop::collection::vec(1..6usize, 1..4), seed: u64,
    ) {
        let random = &mut Random::new(seed);
        let shape = |length: usize| {
            let mut axes = [2, 3, 4];
            axes[axis] = length;
            axes
        };
        let parts: Vec<Array> = lengths.iter().map(|&length| random.normals(shape(length))).collect();
        let cpu = Cpu::new();
        let tensors: Vec<_> = parts.iter().map(|x| x.upload(&cpu, DType::F32).expect("an upload")).collect();
        let whole = primitives::concat(&tensors.iter().collect::<Vec<_>>(), axis).expect("a valid call");
        prop_assert_eq!(&Array::download(&whole).expect("a download"), &Array::join(&parts, axis));
        let mut start = 0;
        for (part, &length) in parts.iter().zip(&lengths) {
            let cut = primitives::narrow(&whole, axis, start, length).expect("a valid call");
            prop_assert_eq!(&Array::download(&cut).expect("a download"), part);
            let back = primitives::narrow_backward(whole.shape(), axis, start, length, &cut).expect("a valid call");
            let back = Array::download(&back).expect("a download");
            prop_assert_eq!(&back.cut(axis, start..start + length), part);
            let sum = |x: &Array| x.values.iter().map(|x| x.abs()).sum::<f64>();
            prop_assert!((sum(&back) - sum(part)).abs() < 1e-9);
            start += length;
        }
    }

    /// Whatever the error measure is given, it is 0 for equals, scales with the difference, and sees a NaN.
    #[test]
    fn errors_are_relative(values in prop::collection::vec(0.1..10.0f64, 1..20), off in 1e-6..1.0f64) {
        let moved: Vec<f64> = values.iter().map(|x| x * (1.0 + off)).collect();
        prop_assert_eq!(error(&values, &values), 0.0);
        prop_assert!((error(&values, &moved) - off).abs() < 1e-9);
        let mut broken = values.clone();
        broken[0] = f64::NAN;
        prop_assert!(error(&values, &broken).is_nan() && error(&broken, &values).is_nan());
    }
}

/// `q M = q N − q S`, of which little is left where `η` is near 1: a difference of 16-bit numbers would be noise.
#[test]
fn momentum_that_looks_ahead_keeps_its_digits_in_16_bits() {
    let rule = Titans { momentum: MomentumForm::LookAhead, ..Titans::default() };
    let case = Case::new(rule, Sizes::new(1, 40, 2, 16, 16), 5).with(|slot, mut array| {
        let value = match slot {
            "log_eta" => 0.999f64.ln(),
            // From nothing, so that all that is read came through the momentum.
            "m" | "s" => 0.0,
            _ => return array.rounded(DType::Bf16),
        };
        array.values.fill(value);
        array.rounded(DType::F32)
    });
    let truth = solve(&case);
    let found = case.run(&Cpu::new(), DType::Bf16).expect("a run");
    let error = error(&truth.outputs.out.values, &found.outputs.out.values);
    // Half a unit of the last of 8 digits, once.
    assert!(error < 4e-3, "{error:e}");
}
