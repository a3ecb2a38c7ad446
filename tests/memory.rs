//! What a backward costs in memory, held to the formulas that the CPU backend and the models document.

#[path = "memory/counting.rs"]
mod counting;

use counting::peak;
use hecate_conformance::{Case, Sizes, oracle::Oracle};
use hecate_core::{DType, Forward, Kernel, forward, rules::*};
use hecate_cpu::{Cpu, PeakMemory};
use hecate_models::{Config, LanguageModel, MixerConfig, Precision, Retain};
const THREADS: usize = 1;
const HEADS: usize = 2;
const KEY: usize = 48;
const VALUE: usize = 40;

/// A call over `tokens` tokens, with an anchor or without; none where the rule has no such thing.
fn case<R: Oracle>(rule: R, tokens: usize, anchored: bool) -> Option<Case<R>> {
    let case = Case::new(rule, Sizes::new(1, tokens, HEADS, KEY, VALUE), 1);
    if anchored { case.anchored(2) } else { Some(case) }
}

/// Peak of a forward with its backward of this call, beside the arguments, and the formula's bound.
fn measure<R: Oracle>(case: &Case<R>) -> (usize, usize)
where
    Cpu: Kernel<R> + PeakMemory<R>,
{
    let (device, rule) = (Cpu::with_threads(THREADS).expect("a thread"), case.rule);
    let run = || {
        let inputs = case.upload(&device, DType::F32).expect("an upload");
        let grads = case.upload_grads(&device, DType::F32).expect("an upload");
        peak(|| {
            let Forward { outputs, pass } = forward(&device, rule, inputs).expect("a forward");
            let gradients = pass.backward(grads).expect("a backward");
            (outputs, gradients)
        })
    };
    // The first run starts the thread and fills what the libraries keep for later; what the device keeps is counted.
    run();
    device.release();
    (run(), device.peak_bytes(rule, &case.dims))
}

/// With an anchor too, where the rule has one.
fn hold<R: Oracle>(rule: R)
where
    Cpu: Kernel<R> + PeakMemory<R>,
{
    let (short, long) = (512, 1024);
    for anchored in [false, true] {
        let [Some(shorter), Some(longer)] = [short, long].map(|tokens| case(rule, tokens, anchored)) else { continue };
        hold_calls(rule, [short, long], [shorter, longer].map(|case| measure(&case)));
    }
}

/// Of two calls: what they took and what is documented.
fn hold_calls<R: Oracle>(rule: R, [short, long]: [usize; 2], measured: [(usize, usize); 2]) {
    let [(peak_short, bound_short), (peak_long, bound_long)] = measured;
    println!("{rule:?}: {peak_short} of {bound_short} bytes at {short} tokens, {peak_long} of {bound_long} at {long}");
    assert!(peak_short <= bound_short, "{rule:?}: {peak_short} bytes at {short} tokens, documented {bound_short}");
    assert!(peak_long <= bound_long, "{rule:?}: {peak_long} bytes at {long} tokens, documented {bound_long}");
    // A bound that nothing comes near would hold nothing.
    assert!(2 * peak_long >= bound_long, "{rule:?}: {bound_long} documented, {peak_long} used");
    let a_token = (peak_long - peak_short) / (long - short);
    let a_state = 4 * HEADS * KEY * VALUE;
    assert!(a_token < a_state / 2, "{rule:?}: {a_token} bytes a token, where a state has {a_state}");
}

/// A pass over a model whose activations outweigh all else, and its footprint.
fn hold_model(mixer: &str, config: &Config, composed: bool, precision: Precision) {
    let (batch, tokens) = (2, 192);
    let model = LanguageModel::new(&Cpu::with_threads(THREADS).expect("a thread"), config, 1);
    let model = model.expect("a model").with_precision(precision);
    let text: Vec<u32> = (0..batch * tokens).map(|i| (i * i % 251) as u32).collect();
    let run = || peak(|| model.loss_and_gradients(&text, &text, batch).expect("gradients"));
    run();
    let found = run();
    let footprint = model.footprint(batch, tokens);
    // What was there before: weights; moments are the optimiser's.
    let expected = footprint.total() - footprint.weights - footprint.moments;
    println!("{mixer} in {}: {found} of {expected} bytes, {footprint:?}", precision.name());
    let fits = match composed {
        false => found.abs_diff(expected) <= expected / 10,
        // The sum of the parts is a bound, and one that something comes near.
        true => found <= expected && expected <= found / 2 * 3,
    };
    assert!(fits, "{mixer} in {}: {found} of {expected}", precision.name());
}

fn deep(mixer: &str) -> Config {
    Config::uniform(mixer, 16, 64, 2).expect("a model")
}

/// As [`deep`] of titans, its momentum looking ahead.
fn looking_ahead() -> Config {
    let mut config = deep("titans");
    for layer in &mut config.layers {
        let MixerConfig::Memory(memory) = &mut layer.mixer else { panic!("a memory") };
        memory.rule = Titans { momentum: MomentumForm::LookAhead, ..Titans::default() }.into();
    }
    config
}

/// As [`deep`], its memories going back to their start.
fn to_start(mixer: &str) -> Config {
    let mut config = deep(mixer);
    for layer in &mut config.layers {
        let memory = match &mut layer.mixer {
            MixerConfig::Memory(memory) => memory,
            MixerConfig::Mac(mac) => &mut mac.memory,
            MixerConfig::Cms(cms) => &mut cms.memory,
            MixerConfig::Conductor(conductor) => &mut conductor.memory,
            MixerConfig::Tnt(tnt) => &mut tnt.memory,
            other => panic!("{other:?} has no memory to choose for"),
        };
        memory.retain = Some(Retain::Initial);
    }
    config
}

/// Hope, whose memories go back to their start unless told otherwise.
fn hope_to_zero() -> Config {
    let mut config = deep("hope");
    for layer in &mut config.layers {
        let MixerConfig::Hope(hope) = &mut layer.mixer else { panic!("{:?} is not hope", layer.mixer) };
        hope.retain = Retain::Zero;
    }
    config
}

/// A loss over 250,000 tokens of a vocabulary: no array has the scores of all tokens of a text.
fn hold_large_vocabulary(precision: Precision) {
    let (vocabulary, tokens) = (250_000, 128);
    let config = Config { vocabulary_size: vocabulary, ..Config::uniform("delta", 1, 8, 2).expect("a model") };
    let device = Cpu::with_threads(THREADS).expect("a thread");
    let model = || LanguageModel::new(&device, &config, 1).expect("a model").with_precision(precision);
    let text: Vec<u32> = (0..tokens).map(|i| (i * 1_901) as u32).collect();
    // What the device keeps for later is counted where it is asked for.
    let run = |model: &LanguageModel<Cpu>, back: bool| {
        device.release();
        peak(|| match back {
            true => model.loss_and_gradients(&text, &text, 1).map(|_| ()).expect("gradients"),
            false => model.loss(&text, &text, 1).map(|_| ()).expect("a loss"),
        })
    };
    let (pieces, whole) = (model(), model().with_scores_at_once(usize::MAX));
    run(&pieces, true);
    let (found, all) = (run(&pieces, true), run(&whole, true));
    let footprint = pieces.footprint(1, tokens);
    let expected = footprint.total() - footprint.weights - footprint.moments;
    let scores = 4 * vocabulary * tokens;
    println!("{} tokens in {}: {found} of {expected} bytes, whole {all}", vocabulary, precision.name());
    // Products of few rows are made apart on a CPU, and copied: another piece. Factors of 16 bits are widened there, too.
    let most = (expected + scores / 4) / 10 * 11;
    assert!(precision != Precision::F32 || found <= most, "{found} of {most}");
    assert!(found < scores, "{}: {found} bytes, where all scores in 32 bits take {scores}", precision.name());
    // What is looked for is seen where it is.
    assert!(all > scores && all > 2 * found, "{}: {all} bytes with all scores at once", precision.name());
    // Losses for no gradient have 32 bits: a piece, and its product apart.
    let loss = run(&pieces, false);
    println!("the loss alone: {loss} bytes");
    assert!(loss < scores / 4 * 3, "{loss} bytes, where all scores take {scores}");
}

/// One test, because the count is of the whole process.
#[test]
fn memory_is_what_formulas_say() {
    for precision in [Precision::F32, Precision::Bf16] {
        let hold = |mixer, composed| hold_model(mixer, &deep(mixer), composed, precision);
        ["delta", "titans", "attention"].into_iter().for_each(|mixer| hold(mixer, false));
        ["mag", "mal", "mac", "cms", "conductor", "tnt", "hope"].into_iter().for_each(|mixer| hold(mixer, true));
        hold_model("hope, to zero", &hope_to_zero(), true, precision);
        for rule in ["delta", "titans", "dgd", "hebbian"] {
            hold_model(&format!("{rule}, to its start"), &to_start(rule), false, precision);
        }
        ["mac", "cms", "conductor", "tnt"].into_iter().for_each(|mixer| {
            hold_model(&format!("{mixer}, to its start"), &to_start(mixer), true, precision);
        });
    }
    for precision in [Precision::F32, Precision::Bf16] {
        hold_large_vocabulary(precision);
        hold_model("titans, looking ahead", &looking_ahead(), true, precision);
    }
    macro_rules! rules {
        ($($rule:ident),*) => { $(hold(<$rule>::default());)* };
    }
    hecate_core::for_each_rule!(rules);
    let momentum = MomentumForm::LookAhead;
    hold(Titans { momentum, ..Titans::default() });
    hold(TitansMlp { momentum, ..TitansMlp::default() });
    hold(YaadMomentum { momentum, ..YaadMomentum::default() });
    for group in [1, 4, 33, 100] {
        hold(Titans { frozen: Some(group), ..Titans::default() });
    }
}
