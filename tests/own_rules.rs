//! Rules of a crate of one's own: no backend has heard of them, and each runs them as it does Hecate's. A module a column.

use hecate_conformance::{
    Case, Sizes, checks,
    oracle::{Oracle, Token, Var},
};
use hecate_core::{
    Backend, DType, Forward, Inputs, Kernel, NoSlots, Rule, Tensor,
    families::{DeepForm, DeepRule, DeepSpec, EraseStrength, Linear, LinearRule, LinearSpec},
    forward,
    rules::{AnchorWeights, Matrix, Momentum, MomentumGates, MomentumWeights, StrengthGates, TitansMlp},
};
use hecate_models::{
    Builder, MemoryConfig, Parameters, Random, Tape,
    layers::{Context, Memory, Mixer},
};

/// Titans' momentum with the erase of Gated DeltaNet.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct GatedTitans;

impl Rule for GatedTitans {
    const NAME: &'static str = "gated_titans";
    type Family = Linear;
    type Gates = MomentumGates<()>;
    type State = Momentum<()>;
    type Anchor = NoSlots;
}

impl LinearRule for GatedTitans {
    fn spec(self) -> LinearSpec {
        LinearSpec { momentum: true, erase: EraseStrength::Decayed, ..LinearSpec::default() }
    }
}

/// `S_t = η S_{t−1} − θ kᵀ (a k M_{t−1} − v)`, `M_t = a M_{t−1} + S_t`.
impl Oracle for GatedTitans {
    fn all() -> Vec<Self> {
        vec![Self]
    }

    fn step(self, token: &Token<Self>, old: &Momentum<Var>, _: &Momentum<Var>) -> (Var, Momentum<Var>) {
        let Token { q, k, v, gates, .. } = token;
        let kept = gates.log_a.exp() * &old.m;
        let s = gates.log_eta.exp() * &old.s - &gates.theta * k.t().dot(&(k.dot(&kept) - v));
        let m = kept + &s;
        (q.dot(&m), Momentum { m, s })
    }
}

/// RetNet's retention, whose heads forget at constant rates.
#[derive(Clone, Copy, Debug, PartialEq)]
struct RetNet;

impl Rule for RetNet {
    const NAME: &'static str = "retnet";
    type Family = Linear;
    type Gates = StrengthGates<()>;
    type State = Matrix<()>;
    type Anchor = NoSlots;
}

impl LinearRule for RetNet {
    fn spec(self) -> LinearSpec {
        LinearSpec::default()
    }

    fn head_log_a(self, head: usize, _: usize) -> f32 {
        (-(-5.0 - head as f32).exp2()).ln_1p()
    }
}

/// `M_t = γ M_{t−1} + θ kᵀ v` with `γ = 1 − 2^{−5−h}` (Sun et al., "Retentive Network", eq 8).
impl Oracle for RetNet {
    fn all() -> Vec<Self> {
        vec![Self]
    }

    fn step(self, token: &Token<Self>, old: &Matrix<Var>, _: &Matrix<Var>) -> (Var, Matrix<Var>) {
        let Token { q, k, v, gates, head } = token;
        let m = old.m.scale(1.0 - (-5.0 - head.index as f64).exp2()) + &gates.theta * k.t().dot(v);
        (q.dot(&m), Matrix { m })
    }
}

/// A deep rule that is Titans' by another name.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Renamed(TitansMlp);

impl DeepRule for Renamed {
    const NAME: &'static str = "renamed";
    const FORM: DeepForm = DeepForm::L2Momentum;
    type Gates = MomentumGates<()>;
    type State = MomentumWeights<()>;
    type Anchor = AnchorWeights<()>;

    fn spec(self) -> DeepSpec {
        self.0.spec()
    }

    fn frozen_option(&mut self) -> &mut Option<u32> {
        &mut self.0.frozen
    }
}

/// What was read, and the gradient of every argument.
fn call<B: Backend + Kernel<R>, R: Rule>(device: &B, rule: R, inputs: Inputs<R, Tensor<B>>) -> Vec<Vec<f32>> {
    let Forward { outputs, pass } = forward(device, rule, inputs).expect("a valid call");
    let read = outputs.out.to_f32().expect("an array");
    let grads = pass.backward_out(outputs.out).expect("gradients");
    let grads = grads.list().into_iter().map(|(_, x)| x.to_f32().expect("a gradient"));
    std::iter::once(read).chain(grads).collect()
}

/// A deep rule of one's own runs by the kernels of its form, to the bit.
fn deep_rules_run<B: Backend>(backends: &[B]) {
    for device in backends {
        let rule = TitansMlp::default();
        let case = Case::new(rule, Sizes::new(2, 5, 2, 6, 4), 3);
        let known = case.inputs.try_map(|_, x| x.upload(device, DType::F32)).expect("arrays");
        let Inputs { q, k, v, gates, state, anchor } = known.clone();
        let own = call(device, Renamed(rule), Inputs { q, k, v, gates, state, anchor });
        assert_eq!(own, call(device, rule, known));
    }
}

/// No bound names a rule here: a [`Backend`] is promised to run all of its families.
fn linear_rules_run<B: Backend>(backends: &[B]) {
    checks::forward::<GatedTitans, _>(backends);
    checks::backward::<RetNet, _>(backends);
}

/// A layer with a rule of one's own, forward and backward: every parameter has a part in what it says.
fn layer_learns<B: Backend>(device: &B) {
    let (mut parameters, mut random) = (Parameters::new(), Random::new(3));
    let config = MemoryConfig { rule: GatedTitans, heads: 2, ..MemoryConfig::default() };
    let build = &mut Builder::new(device, &mut parameters, &mut random, 0.3, 1);
    let layer = Memory::new(build, &config, 8, 1e-6).expect("a layer");
    let x = parameters.add("x", random_array(device), false);
    let tape = Tape::recording(&parameters);
    let y = layer.forward(&tape, &tape.parameter(x).expect("x"), &mut Context::whole(1, 6)).expect("a pass");
    let loss = tape.mean(&(&y * &y).expect("squares")).expect("a loss");
    let gradients = tape.backward(&loss).expect("gradients");
    for (parameter, gradient) in parameters.iter().zip(gradients.iter()) {
        let values = gradient.as_ref().expect(&parameter.name).to_f32().expect("a gradient");
        assert!(values.iter().all(|x| x.is_finite()) && values.iter().any(|x| *x != 0.0), "{}", parameter.name);
    }
}

/// `[1,6,8]`.
fn random_array<B: Backend>(device: &B) -> Tensor<B> {
    let values = (0..48).map(|i| (i as f32 * 0.618_034).fract() - 0.5).collect();
    Tensor::from_f32(device, [1, 6, 8], values).expect("an array")
}

/// The suite of both rules on a column, and what code without a word of them makes there. `$open` opens its device.
macro_rules! column {
    ($column:ident, $device:ty, $open:expr) => {
        mod $column {
            use hecate_conformance::require::skip;
            use hecate_core::Device;
            use std::sync::OnceLock;

            fn backends() -> Vec<$device> {
                static OPENED: OnceLock<Vec<$device>> = OnceLock::new();
                let open = || match $open {
                    Ok(device) => vec![device],
                    Err(error) => {
                        skip(<$device>::NAME, &hecate_core::Error::to_string(&error));
                        Vec::new()
                    }
                };
                OPENED.get_or_init(open).clone()
            }

            hecate_conformance::conformance_cell!(backends, gated_titans = crate::GatedTitans);
            hecate_conformance::conformance_cell!(backends, retnet = crate::RetNet);

            #[test]
            fn any_backend_runs_them() {
                crate::linear_rules_run(&backends());
                crate::deep_rules_run(&backends());
            }

            #[test]
            fn layers_learn_with_them() {
                backends().iter().for_each(crate::layer_learns);
            }
        }
    };
}
column!(cpu, hecate_cpu::Cpu, hecate_core::Result::Ok(hecate_cpu::Cpu::new()));
column!(cuda, hecate_cuda::Cuda, hecate_cuda::Cuda::new(0).and_then(|cuda| cuda.with_poisoned_memory()));
column!(wgpu, hecate_wgpu::Wgpu, {
    hecate_wgpu::Wgpu::new(&hecate_wgpu::Selection::Default).map(|wgpu| wgpu.with_poisoned_memory())
});
