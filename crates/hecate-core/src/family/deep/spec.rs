//! What a rule's options mean to a deep engine.

use super::{Activation, AttentionalBias, DeepMatrix, Map, MlpMemory, Retention, Structure};
use crate::{
    Dims, Error, Read, Result, Shape,
    family::MomentumForm,
    rule::{check_frozen, check_read},
};

/// What a rule of this family comes down to; backends run this.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeepSpec {
    /// What the memory is.
    pub structure: Structure,
    /// What it is taught.
    pub bias: AttentionalBias,
    /// How it forgets.
    pub retention: Retention,
    /// When a token reads.
    pub read: Read,
    /// Groups of this many tokens share one gradient point.
    pub frozen: Option<u32>,
    /// Which momentum, where the rule has it.
    pub momentum: MomentumForm,
    /// Length that what is taught stays under: `c` of (94), over 0. Absent: any.
    pub clip: Option<f32>,
    /// Whether columns of weights are set back to their anchor's lengths where groups start: (95).
    pub renorm: bool,
}

impl DeepSpec {
    /// A memory that is taught by the error itself and whose weights shrink.
    pub fn new(structure: Structure, read: Read, frozen: Option<u32>) -> Self {
        Self {
            structure,
            bias: AttentionalBias::L2,
            retention: Retention::Decay,
            read,
            frozen,
            momentum: MomentumForm::HeavyBall,
            clip: None,
            renorm: false,
        }
    }

    /// Shape of one of its matrices.
    pub(super) fn shape(self, dims: &Dims, matrix: DeepMatrix) -> Shape {
        let Structure::Mlp(memory) = self.structure else { return dims.matrices() };
        let (hidden, [rows, columns]) = (memory.hidden(dims.key), [dims.key, dims.value]);
        let [rows, columns] = if matrix.is_first() { [rows, hidden] } else { [hidden, columns] };
        [dims.sequences.count(), dims.heads, rows, columns].into()
    }

    /// Elements of a head's weights; `usize::MAX` where there are more.
    pub fn weights(self, dims: &Dims) -> usize {
        let Dims { key, value, .. } = *dims;
        let hidden = self.structure.hidden(key);
        hidden.map_or(key.saturating_mul(value), |hidden| key.saturating_add(value).saturating_mul(hidden))
    }

    /// Whether gradients are taken where momentum leads.
    pub fn looks_ahead(self) -> bool {
        self.momentum == MomentumForm::LookAhead
    }

    /// The options and sizes as kernels take them.
    pub fn options(self, dims: &Dims) -> DeepOptions {
        let activation = match self.structure {
            Structure::Matrix(_) => Activation::default(),
            Structure::Mlp(memory) => memory.activation,
        };
        let options = DeepOptions {
            key: dims.key as u32,
            hidden: self.structure.hidden(dims.key).unwrap_or(0) as u32,
            value: dims.value as u32,
            activation: activation as u32,
            residual: self.structure.residual().into(),
            norm: self.structure.norm().into(),
            read_after: (self.read == Read::After).into(),
            look_ahead: self.looks_ahead().into(),
            per_clip: self.clip.map_or(0.0, f32::recip),
            // What other errors and retentions do not read is set to something harmless.
            huber: 0,
            tanh: 0,
            literal: 0,
            p: 2.0,
            epsilon: 0.0,
            q: 2.0,
            scale: 1.0,
        };
        self.retained(self.taught(options))
    }

    /// With the options of its error.
    fn taught(self, options: DeepOptions) -> DeepOptions {
        match self.bias {
            AttentionalBias::L2 => options,
            AttentionalBias::Lp { p, epsilon, tanh } => DeepOptions { p, epsilon, tanh: tanh.into(), ..options },
            AttentionalBias::Huber(huber) => DeepOptions { huber: huber as u32, ..options },
        }
    }

    /// With the options of its retention.
    fn retained(self, options: DeepOptions) -> DeepOptions {
        match self.retention {
            Retention::Decay => options,
            Retention::Lq { q, map } => DeepOptions { q, literal: (map == Map::Literal).into(), ..options },
            Retention::Kl { scale } => DeepOptions { scale, ..options },
        }
    }

    /// Refuses to set lengths back where no group starts, where weights are not what is kept, and without lengths to go to.
    fn check_renorm(self, what: &'static str, dims: &Dims) -> Result<()> {
        let expected = match self.frozen {
            _ if !self.renorm => return Ok(()),
            None => "false, or groups of tokens (`frozen`), behind which columns are set back",
            Some(_) if self.retention != Retention::Decay => "false: these weights are no plain sums of writes",
            Some(_) if !dims.anchored => {
                "false, or an anchor (`Inputs::anchor`; layers have one with `retain: initial` and reads after the write), whose \
                 columns have the lengths to go back to"
            }
            Some(_) => return Ok(()),
        };
        Err(Error::Config { what, option: "renorm", found: "true".into(), expected })
    }

    /// Refuses options that fit no memory of these sizes.
    pub(crate) fn check(self, what: &'static str, dims: &Dims) -> Result<()> {
        let refuse = |option, found: String, expected| Err(Error::Config { what, option, found, expected });
        check_frozen(what, self.frozen)?;
        self.check_renorm(what, dims)?;
        check_read(what, self.read, dims)?;
        if let Some(clip) = self.clip {
            // Kernels take its reciprocal, which is to be finite too.
            if !(clip.is_finite() && clip >= f32::MIN_POSITIVE) {
                return refuse("clip", clip.to_string(), "a length over 0, or null for errors of any length");
            }
        }
        if let Structure::Mlp(MlpMemory { expansion: 0, .. }) = self.structure {
            return refuse("expansion", "0".into(), "a hidden layer at least as wide as a key");
        }
        if self.structure.residual() && dims.key != dims.value {
            let found = format!("true with keys of width {} and values of width {}", dims.key, dims.value);
            return refuse("residual", found, "keys and values of one width, since inputs are added to outputs");
        }
        if let AttentionalBias::Lp { p, epsilon, .. } = self.bias {
            if !(p.is_finite() && p >= 1.0) {
                return refuse("p", p.to_string(), "a power of at least 1");
            }
            if !(epsilon.is_finite() && epsilon > 0.0) {
                return refuse("epsilon", epsilon.to_string(), "a number over 0");
            }
        }
        match self.retention {
            Retention::Lq { q, .. } if !(q.is_finite() && q >= 2.0) => {
                refuse("q", q.to_string(), "a norm of at least 2")
            }
            Retention::Kl { scale } if !(scale.is_finite() && scale > 0.0) => {
                refuse("scale", scale.to_string(), "a number over 0")
            }
            _ => Ok(()),
        }
    }
}

/// A rule at known sizes, as structures of kernels hold it. The kinds of error and retention, and whether there is
/// momentum, are the [form](super::DeepForm)'s.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct DeepOptions {
    /// `K`.
    pub key: u32,
    /// `D`; 0 for a matrix.
    pub hidden: u32,
    /// `V`.
    pub value: u32,
    /// In the order of [`Activation`].
    pub activation: u32,
    /// 1 where inputs are added to outputs.
    pub residual: u32,
    /// 1 where outputs pass a layer norm.
    pub norm: u32,
    /// 1 where a token reads after its own write.
    pub read_after: u32,
    /// 1 where momentum looks ahead.
    pub look_ahead: u32,
    /// In the order of [`Huber`](crate::rules::Huber).
    pub huber: u32,
    /// 1 where the sign of an error is a hyperbolic tangent.
    pub tanh: u32,
    /// 1 where weights are the paper's image of the dual variable.
    pub literal: u32,
    /// Power of the error (48), (49).
    pub p: f32,
    /// Its smoothing.
    pub epsilon: f32,
    /// Norm of the retention (54).
    pub q: f32,
    /// Sum of a column (55).
    pub scale: f32,
    /// `1 / c` of (94); 0 where nothing is clipped.
    pub per_clip: f32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        families::DeepRule,
        rules::{Huber, MemoraMatrix, Moneta, Yaad},
    };

    /// As `deep_options.cuh`, `activation.wgsl` and `bias.wgsl` number them.
    #[test]
    fn options_are_numbered_as_in_kernels() {
        assert_eq!([Activation::Silu, Activation::GeluTanh, Activation::Gelu].map(|x| x as u32), [0, 1, 2]);
        assert_eq!([Huber::Coordinate, Huber::Norm, Huber::Mix].map(|x| x as u32), [0, 1, 2]);
        let dims = Dims::new(1, 1, 1, 3, 5);
        let moneta = Moneta::<MlpMemory> { map: Map::Literal, tanh: true, ..Moneta::default() }.spec();
        let DeepOptions { key, hidden, value, tanh, literal, p, q, .. } = moneta.options(&dims);
        assert_eq!([key, hidden, value, tanh, literal], [3, 6, 5, 1, 1]);
        assert_eq!((p, q, moneta.weights(&dims)), (3.0, 4.0, 48));
        let clipped = Yaad::<MlpMemory> { clip: Some(4.0), ..Yaad::default() }.spec().options(&dims);
        assert_eq!([clipped.per_clip, moneta.options(&dims).per_clip], [0.25, 0.0]);
        assert_eq!(Yaad::<MlpMemory> { bias: Huber::Mix, ..Yaad::default() }.spec().options(&dims).huber, 2);
        let memora = MemoraMatrix { scale: 3.0, ..MemoraMatrix::default() }.spec();
        assert_eq!((memora.options(&dims).scale, memora.weights(&dims)), (3.0, 15));
    }
}
