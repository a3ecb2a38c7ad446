//! A whole layer's token in one kernel.

use super::backends;
use hecate_conformance::{Array, FORWARD, Random, error, oracle::Oracle};
use hecate_core::{
    Backend, ConvInput, DType, Decode, Decoded, Dims, Error, GateForm, GateLogit, Inputs, Kernel, Read, Result,
    Sequences, Slots, Tensor, TokenGates, decode, infer,
    primitives::{self as p, Map},
    rules::*,
};
use hecate_cuda::Cuda;
use hecate_models::{Config, LanguageModel, LayerConfig, MemoryConfig, MixerConfig, RuleConfig};

/// Heads, key and value.
type Widths = [usize; 3];

/// What [`decode`] is, out of primitives and the rule.
fn composed<R: Oracle, B: Backend + Kernel<R>>(
    rule: R,
    [heads, key, value]: Widths,
    inputs: &Decode<R, Tensor<B>>,
) -> Result<Decoded<R, Tensor<B>>> {
    let (batch, device) = (inputs.q.x.shape().axes()[0], inputs.q.x.device());
    let row = |map: &ConvInput<Tensor<B>>, width: usize| {
        let (x, last) = match &map.conv {
            None => (map.x.clone(), None),
            Some((weight, last)) => {
                let inputs = p::ConvInputs { x: &map.x, weight, state: last };
                let next = p::conv(p::ConvOptions::default(), &Sequences::batch(batch, 1), &inputs)?;
                (next.y, Some(next.state))
            }
        };
        Ok::<_, Error>((p::map(Map::Silu, &x)?.reshape([batch, 1, heads, width])?, last))
    };
    let [(q, q_last), (k, k_last), (v, v_last)] = [row(&inputs.q, key)?, row(&inputs.k, key)?, row(&inputs.v, value)?];
    let gates = R::Gates::try_build(|gate| gate_of(gate, &inputs.gates, [batch, 1, heads]))?;
    let unit = |x: &Tensor<B>| p::l2_norm(x, inputs.norm_epsilon).map(|normed| normed.y);
    let state = R::State::map(R::State::as_ref(&inputs.state), |_, x| x.clone());
    let outputs = infer(device, rule, &Inputs { q: unit(&q)?, k: unit(&k)?, v, gates, state, anchor: None })?;
    let out = p::RmsNormInputs { x: &outputs.out, weight: &inputs.weight, g: None };
    let y = p::rms_norm(&out, p::RmsNormOptions::new(inputs.epsilon))?.y.reshape([batch, 1, heads * value])?;
    let out = inputs.gate.as_ref().map_or(Ok(y.clone()), |gate| p::gated(Map::Silu, &y, gate))?;
    Ok(Decoded { out, state: outputs.state, convs: [q_last, k_last, v_last] })
}

fn gate_of<B: Backend>(gate: &str, gates: &TokenGates<Tensor<B>>, shape: [usize; 3]) -> Result<Tensor<B>> {
    let number = |signal: &GateLogit<Tensor<B>>| p::add(&signal.x, &signal.bias);
    let sigmoid = |x: &Tensor<B>| p::map(Map::Sigmoid, x);
    let b = number(&gates.write)?;
    let theta = sigmoid(&b)?;
    match (gate, &gates.strengths) {
        ("log_a", _) => match &gates.retention {
            None => Tensor::zeros(b.device(), shape, DType::F32),
            Some((signal, a_log)) => {
                let a_log = p::scale(-1.0, &p::map(Map::Exp, a_log)?)?;
                p::mul(&p::map(Map::Softplus, &number(signal)?)?, &a_log)
            }
        },
        ("log_eta", GateForm::Momentum(e)) => p::map(Map::LogSigmoid, &number(e)?),
        ("theta", GateForm::Momentum(e)) => p::mul(&theta, &sigmoid(&p::scale(-1.0, &number(e)?)?)?),
        ("theta", GateForm::Write(factor)) => p::scale(*factor, &theta),
        ("theta", _) => Ok(theta),
        ("beta", GateForm::Erase(e)) => sigmoid(&number(e)?),
        ("beta", GateForm::EraseRest(e)) => p::mul(&sigmoid(&number(e)?)?, &sigmoid(&p::scale(-1.0, &b)?)?),
        other => panic!("no such gate: {other:?}"),
    }
}

/// What a layer may have or not.
#[derive(Clone, Copy, Debug)]
struct Options {
    taps: usize,
    decay: bool,
    gate: bool,
}

/// Random arguments for two texts.
fn arguments<R: Oracle>(
    device: &Cuda,
    rule: R,
    [heads, key, value]: Widths,
    options: Options,
    strengths: impl Fn(GateLogit<Tensor<Cuda>>) -> GateForm<Tensor<Cuda>>,
) -> Decode<R, Tensor<Cuda>> {
    let (batch, mut random) = (2, Random::new(7));
    let mut draw = |shape: &[usize]| random.normals(shape.to_vec()).upload(device, DType::F32).unwrap();
    let project = |width: usize, draw: &mut dyn FnMut(&[usize]) -> Tensor<Cuda>| {
        let (x, taps) = (draw(&[batch, 1, heads * width]), options.taps);
        let conv = (taps > 0).then(|| (draw(&[heads * width, taps]), draw(&[batch, taps - 1, heads * width])));
        ConvInput { x, conv }
    };
    let [q, k, v] = [key, key, value].map(|width| project(width, &mut draw));
    let mut signal = || GateLogit { x: draw(&[batch, 1, heads]), bias: draw(&[heads]) };
    let (write, strengths) = (signal(), strengths(signal()));
    let retention = signal();
    let dims = Dims { batch, tokens: 1, heads, key, value, sequences: Sequences::batch(batch, 1), anchored: false };
    Decode {
        q,
        k,
        v,
        norm_epsilon: 1e-6,
        gates: TokenGates { retention: options.decay.then(|| (retention, draw(&[heads]))), write, strengths },
        state: R::State::map(rule.state(&dims), |_, shape| draw(shape.axes())),
        weight: draw(&[value]),
        epsilon: 1e-6,
        gate: options.gate.then(|| draw(&[batch, 1, heads * value])),
    }
}

/// Names and arrays.
fn arrays<R: Oracle>(decoded: &Decoded<R, Tensor<Cuda>>) -> Vec<(&'static str, Array)> {
    let convs = ["q", "k", "v"].into_iter().zip(&decoded.convs).filter_map(|(name, conv)| Some((name, conv.as_ref()?)));
    let all = [("out", &decoded.out)].into_iter().chain(R::State::list(&decoded.state)).chain(convs);
    all.map(|(name, x)| (name, Array::download(x).unwrap())).collect()
}

fn agree<R: Oracle>(rule: R, strengths: impl Fn(GateLogit<Tensor<Cuda>>) -> GateForm<Tensor<Cuda>>)
where
    Cuda: Kernel<R>,
{
    let full = Options { taps: 4, decay: true, gate: true };
    let plain = Options { taps: 0, decay: false, gate: false };
    let cases =
        [([2, 5, 3], full), ([1, 64, 64], full), ([3, 33, 70], plain), ([2, 128, 128], Options { taps: 2, ..full })];
    for device in backends() {
        for (widths, options) in cases {
            let inputs = arguments(&device, rule, widths, options, &strengths);
            let found = arrays(&decode(rule, widths, &inputs).unwrap());
            let truth = arrays(&composed(rule, widths, &inputs).unwrap());
            assert_eq!(found.len(), truth.len(), "{rule:?} {widths:?} {options:?}");
            for ((slot, truth), (_, found)) in truth.iter().zip(&found) {
                assert_eq!(truth.shape, found.shape, "{rule:?} {widths:?} {options:?}: {slot}");
                // The same operations, sums in another order.
                let error = error(&truth.values, &found.values);
                assert!(error <= FORWARD, "{rule:?} {widths:?} {options:?}: {slot} is off by {error:.1e}");
            }
        }
    }
}

#[test]
fn one_kernel_is_its_parts() {
    for read in [Read::After, Read::Before] {
        agree(Hebbian { read }, |_| GateForm::Write(1.0));
        agree(Delta { read, ..Delta::default() }, |_| GateForm::Write(1.5));
        agree(Delta { read, erase: Erase::Decayed, ..Delta::default() }, |_| GateForm::Write(1.0));
        agree(Titans { read, ..Titans::default() }, GateForm::Momentum);
        agree(Dgd { read, ..Dgd::default() }, GateForm::EraseRest);
        agree(Dgd { read, objective: Objective::Dot, ..Dgd::default() }, GateForm::Erase);
    }
}

#[test]
fn what_has_no_kernel_says_so() {
    for device in backends() {
        let dims = |key| Dims {
            batch: 1,
            tokens: 1,
            heads: 1,
            key,
            value: 8,
            sequences: Sequences::batch(1, 1),
            anchored: false,
        };
        assert!(device.has_fused_decode(Delta::default(), &dims(1024)));
        assert!(!device.has_fused_decode(Delta::default(), &dims(1025)));
        assert!(!device.has_fused_decode(Lattice::all()[0], &dims(8)));
        let frozen = Delta { frozen: Some(4), ..Delta::default() };
        assert!(!device.has_fused_decode(frozen, &dims(8)));
        let options = Options { taps: 4, decay: true, gate: true };
        let inputs = arguments(&device, frozen, [1, 8, 8], options, |_| GateForm::Write(1.0));
        assert!(matches!(decode(frozen, [1, 8, 8], &inputs), Err(Error::Unsupported { what: "delta", .. })));
    }
}

/// Scores of all tokens and what is remembered after them, read in calls of `step` tokens.
fn read(model: &LanguageModel<Cuda>, tokens: &[u32], step: usize) -> (Array, Vec<Array>) {
    let mut cache = model.cache(1).unwrap();
    let mut part = |part| Array::download(&model.infer(part, 1, &mut cache).unwrap()).unwrap();
    let scores: Vec<Array> = tokens.chunks(step).map(&mut part).collect();
    let kept = cache.layers().iter().flat_map(|layer| layer.iter().map(|(_, x)| Array::download(x).unwrap()));
    (Array::join(&scores, 1), kept.collect())
}

/// Layers with every option read a text token by token, in one kernel or in many, as they read it at once.
#[test]
fn layers_read_token_by_token() {
    let tokens: Vec<u32> = (0..40).map(|i| i * i % 11).collect();
    let usual = MemoryConfig { heads: 2, ..MemoryConfig::default() };
    for device in backends() {
        for rule in ["hebbian", "delta", "titans", "dgd", "lattice"] {
            let usual = MemoryConfig { rule: RuleConfig::named(rule).unwrap(), ..usual.clone() };
            for config in [
                usual.clone(),
                MemoryConfig { conv: 0, gate: false, ..usual.clone() },
                MemoryConfig { decay: false, key_dim: Some(12), value_dim: Some(7), ..usual.clone() },
            ] {
                let mixer = MixerConfig::Memory(config);
                let config = Config { vocabulary_size: 11, hidden_size: 32, ..Config::default() };
                let layers = vec![LayerConfig { mixer: mixer.clone() }; 2];
                let model = LanguageModel::new(&device, &Config { layers, ..config }, 3).unwrap();
                let (whole, alone) = (read(&model, &tokens, tokens.len()), read(&model, &tokens, 1));
                let off = |a: &Array, b: &Array| error(&a.values, &b.values);
                let worst =
                    whole.1.iter().zip(&alone.1).map(|(a, b)| off(a, b)).fold(off(&whole.0, &alone.0), f64::max);
                assert!(worst <= FORWARD, "{mixer:?}: {worst:.1e}");
            }
        }
    }
}
