//! Gates of every rule in 64 bits, from the logits of its layer.

use super::{columns, l2_norm, sigmoid};
use hecate_conformance::oracle::{Oracle, Var};
use hecate_core::{
    Of, Rule,
    families::{Channel, Deep, Linear, LinearGate, LinearRule, LowerGates, Own},
    rules::*,
};
use hecate_models::{MemoryConfig, layers::GatedRule};

/// Gates of one token from what the layer computes of it.
pub(crate) trait Gated<F = <Self as Rule>::Family>: GatedRule + Oracle {
    fn gated(self, log_a: Var, signal: &dyn Fn(&str) -> Var, config: &MemoryConfig) -> Of<Self::Gates, Var>;
}

impl<R: LinearRule + Oracle> Gated<Linear> for R {
    fn gated(self, log_a: Var, logit: &dyn Fn(&str) -> Var, config: &MemoryConfig) -> Of<R::Gates, Var> {
        let (step, most) = (f64::from(config.step), f64::from(config.momentum));
        let write = || sigmoid(&logit("b_proj"));
        let eta = || sigmoid(&logit("eta_proj")).scale(most);
        R::Gates::lower_backward(|gate| match gate {
            LinearGate::LogA => log_a.clone(),
            LinearGate::LogEta => eta().ln(),
            LinearGate::Theta if !self.spec().momentum || self.spec().look_ahead => write().scale(step),
            LinearGate::Theta if most == 1.0 => eta().scale(-1.0).shift(1.0) * write(),
            LinearGate::Theta => write().scale(1.0 - most),
            LinearGate::Beta if self.shares_erase() => write().scale(-1.0).shift(1.0) * sigmoid(&logit("erase_proj")),
            LinearGate::Beta => sigmoid(&logit("erase_proj")),
        })
    }
}

/// Steps of networks.
fn network(theta: &Var) -> Var {
    theta.scale(0.125)
}

impl Gated<Deep> for TitansMlp {
    fn gated(self, log_a: Var, signal: &dyn Fn(&str) -> Var, config: &MemoryConfig) -> MomentumGates<Var> {
        let MomentumGates { log_a, log_eta, theta } =
            Titans { momentum: self.momentum, ..Titans::default() }.gated(log_a, signal, config);
        MomentumGates { log_a, log_eta, theta: network(&theta) }
    }
}

impl<M: Memory> Gated<Deep> for Moneta<M>
where
    Self: Oracle<Gates = WriteGates<()>, Family = Deep>,
{
    fn gated(self, log_a: Var, signal: &dyn Fn(&str) -> Var, _: &MemoryConfig) -> WriteGates<Var> {
        let steepness = f64::from(self.p * (self.p - 1.0) * (self.q - 1.0)).max(1.0);
        let theta = sigmoid(&signal("b_proj")).scale(1.0 / steepness);
        let theta = if M::MATRIX { theta } else { network(&theta) };
        WriteGates { log_a, theta }
    }
}

pub(super) fn softplus(x: &Var) -> Var {
    x.exp().shift(1.0).ln()
}

impl<M: Memory> Gated<Deep> for Yaad<M>
where
    Self: Oracle<Gates = HuberGates<()>, Family = Deep>,
{
    fn gated(self, log_a: Var, signal: &dyn Fn(&str) -> Var, _: &MemoryConfig) -> HuberGates<Var> {
        let theta = sigmoid(&signal("b_proj"));
        let theta = if M::MATRIX { theta } else { network(&theta) };
        HuberGates { log_a, theta, delta: softplus(&signal("delta_proj")) }
    }
}

impl Gated<Deep> for YaadMomentum {
    fn gated(self, log_a: Var, signal: &dyn Fn(&str) -> Var, config: &MemoryConfig) -> HuberMomentumGates<Var> {
        let MomentumGates { log_a, log_eta, theta } =
            TitansMlp { momentum: self.momentum, ..TitansMlp::default() }.gated(log_a, signal, config);
        HuberMomentumGates { log_a, log_eta, theta, delta: softplus(&signal("delta_proj")) }
    }
}

impl<M: Memory> Gated<Deep> for Memora<M>
where
    Self: Oracle<Gates = WriteGates<()>, Family = Deep>,
{
    fn gated(self, log_a: Var, signal: &dyn Fn(&str) -> Var, _: &MemoryConfig) -> WriteGates<Var> {
        WriteGates { log_a, theta: sigmoid(&signal("b_proj")) }
    }
}

impl Gated<Channel> for Gla {
    fn gated(self, log_a: Var, _: &dyn Fn(&str) -> Var, _: &MemoryConfig) -> ChannelGates<Var> {
        ChannelGates { log_a }
    }
}

impl Gated<Channel> for Kda {
    fn gated(self, log_a: Var, signal: &dyn Fn(&str) -> Var, config: &MemoryConfig) -> ChannelStepGates<Var> {
        ChannelStepGates { log_a, theta: sigmoid(&signal("b_proj")).scale(f64::from(config.step)) }
    }
}

impl Gated<Channel> for Gdn2 {
    fn gated(self, log_a: Var, signal: &dyn Fn(&str) -> Var, _: &MemoryConfig) -> ChannelErase<Var> {
        ChannelErase { log_a, erase: sigmoid(&signal("erase_proj")), write: sigmoid(&signal("write_proj")) }
    }
}

impl Gated<Channel> for Comba {
    fn gated(self, log_a: Var, signal: &dyn Fn(&str) -> Var, config: &MemoryConfig) -> ScaledErase<Var> {
        let theta = sigmoid(&signal("b_proj")).scale(f64::from(config.step));
        ScaledErase { log_a, theta, share: sigmoid(&signal("share_proj")) }
    }
}

impl Gated<Channel> for Dplr {
    fn gated(self, log_a: Var, signal: &dyn Fn(&str) -> Var, _: &MemoryConfig) -> LookupGates<Var> {
        let lookup = l2_norm(&signal("lookup_proj"));
        let rewrite = (sigmoid(&signal("rewrite_proj")) * &lookup).scale(-1.0);
        LookupGates { log_a, lookup, rewrite }
    }
}

impl Gated<Channel> for Rwkv7 {
    fn gated(self, log_a: Var, signal: &dyn Fn(&str) -> Var, _: &MemoryConfig) -> LookupGates<Var> {
        let rewrite = sigmoid(&signal("rewrite_proj"));
        LookupGates { log_a, lookup: l2_norm(&signal("lookup_proj")), rewrite }
    }
}

impl Gated<Own> for Lattice {
    fn gated(self, log_a: Var, signal: &dyn Fn(&str) -> Var, _: &MemoryConfig) -> WriteGates<Var> {
        WriteGates { log_a, theta: sigmoid(&signal("b_proj")) }
    }
}

impl Gated<Own> for Lif {
    fn gated(self, log_a: Var, signal: &dyn Fn(&str) -> Var, _: &MemoryConfig) -> WriteGates<Var> {
        WriteGates { log_a, theta: sigmoid(&signal("b_proj")) }
    }
}

impl Gated<Own> for Trellis {
    fn gated(self, log_a: Var, signal: &dyn Fn(&str) -> Var, _: &MemoryConfig) -> CodeGates<Var> {
        let (theta, code) = (sigmoid(&signal("b_proj")), signal("code_proj"));
        match self.phi {
            Phi::Identity => CodeGates { log_a, theta, code },
            Phi::L2Silu => CodeGates { log_a, theta, code: l2_norm(&code) },
            Phi::LnSilu => {
                let norm = f64::from(self.slots).sqrt();
                CodeGates { log_a, theta, code: l2_norm(&code).scale(norm) }
            }
        }
    }
}

impl Gated<Own> for Atlas {
    fn gated(self, log_a: Var, signal: &dyn Fn(&str) -> Var, _: &MemoryConfig) -> WindowGates<Var> {
        let eta = sigmoid(&signal("eta_proj"));
        let strengths = sigmoid(&signal("b_proj"));
        let window = self.window as usize;
        let gamma = columns(&strengths, 0, window).scale(1.0 / window as f64);
        let (gamma, theta) = match self.newton_schulz {
            0 => (eta.scale(-1.0).shift(1.0) * gamma, eta.constant(1, 1, vec![1.0])),
            _ => (gamma, columns(&strengths, window, 1)),
        };
        WindowGates { log_a, log_eta: eta.ln(), theta, gamma }
    }
}
