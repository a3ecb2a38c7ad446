//! Normalising rows.

use super::{
    Broadcast, Combine, Elementwise, GatedBackward, Map, cast, check_device, check_dtype, check_float, check_like,
    check_shape, gated, gated_backward,
};
use crate::{Checked, DType, Device, Error, Result, Tensor};

/// Where the gate of [`rms_norm`] stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GatePlace {
    /// After the norm: `norm(x) act(g)`, as in gated delta rules.
    After,
    /// Before it: `norm(x act(g))`, as in Mamba-2.
    Before,
}

/// What is made of the gate of [`rms_norm`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GateFunction {
    /// `g σ(g)`.
    Silu,
    /// `σ(g)`.
    Sigmoid,
}

impl GateFunction {
    /// The same as a function of single numbers.
    pub const fn map(self) -> Map {
        match self {
            Self::Silu => Map::Silu,
            Self::Sigmoid => Map::Sigmoid,
        }
    }
}

/// How [`rms_norm`] treats rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RmsNormOptions {
    /// Added to mean squares.
    pub epsilon: f32,
    /// Parts of a row, of `D / groups` columns each, that are normalised by themselves.
    pub groups: usize,
    /// Whether rows are times `1 + w` instead of `w`: weights that are stored as what they add to one.
    pub one_plus: bool,
    /// Where the gate stands; not looked at without one.
    pub place: GatePlace,
    /// What is made of the gate.
    pub function: GateFunction,
}

impl RmsNormOptions {
    /// Whole rows times `w`; a gate is behind the norm, and a SiLU.
    pub const fn new(epsilon: f32) -> Self {
        Self { epsilon, groups: 1, one_plus: false, place: GatePlace::After, function: GateFunction::Silu }
    }
}

/// Arguments of [`rms_norm`], and, filled with gradients, what [`rms_norm_backward`] returns.
#[derive(Clone, Copy, Debug)]
pub struct RmsNormInputs<T> {
    /// `[.., D]`.
    pub x: T,
    /// `[D]`, of the type of `x`.
    pub weight: T,
    /// A gate like `x`.
    pub g: Option<T>,
}

/// Rows after a norm.
#[derive(Clone, Copy, Debug)]
pub struct Normed<T> {
    /// Of the shape and type of `x`.
    pub y: T,
    /// `r` in 32 bits, `[rows]`, or `[rows · groups]`: what each row or group was times; the backward needs it.
    pub inverse: T,
}

/// A sum, and its rows after a norm.
#[derive(Clone, Copy, Debug)]
pub struct AddedNorm<T> {
    /// `x + residual`, of the shape and type of `x`.
    pub sum: T,
    /// What [`rms_norm`] makes of it.
    pub normed: Normed<T>,
}

/// What the gradients of [`rms_norm`] are made from.
#[derive(Clone, Debug)]
pub struct RmsNormBackward<'a, D: Device> {
    /// Those of the forward.
    pub options: RmsNormOptions,
    /// Those of the forward.
    pub inputs: RmsNormInputs<&'a Tensor<D>>,
    /// [`Normed::inverse`] of the forward.
    pub inverse: &'a Tensor<D>,
    /// Gradient of `y`, and like it.
    pub dy: &'a Tensor<D>,
}

/// Normalisation over the innermost axis of `x [.., D]`; `rows` below is the product of the others.
pub trait Norm: Elementwise {
    /// `y = x r w`, `r = 1 / √(mean x² + ε)`, the mean over a group; with a gate `y = x r w act(g)`. A gate is always behind
    /// the norm here.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn rms_norm(
        &self,
        checked: Checked<Self>,
        options: RmsNormOptions,
        inputs: &RmsNormInputs<&Tensor<Self>>,
    ) -> Result<Normed<Tensor<Self>>>;

    /// With `h = w dy`, `dx = r h − x r³ (x·h) / D` and `dw = Σ_rows x r dy`, `D` the columns of a group. With a gate
    /// `act(g) dy` stands for `dy` in both, and `dg = act'(g) x r w dy`; there is a gradient of a gate where there is a gate.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn rms_norm_backward(
        &self,
        checked: Checked<Self>,
        call: &RmsNormBackward<'_, Self>,
    ) -> Result<RmsNormInputs<Tensor<Self>>>;

    /// `y = u r w`, `u = x act(g)`, `r = 1 / √(mean u² + ε)`: the gate before the norm. Here as three calls in 32 bits.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn gated_first(
        &self,
        checked: Checked<Self>,
        options: RmsNormOptions,
        inputs: &RmsNormInputs<&Tensor<Self>>,
        g: &Tensor<Self>,
    ) -> Result<Normed<Tensor<Self>>> {
        // Up to the result, which is rounded once.
        let [x, weight, g] = wide([inputs.x, inputs.weight, g])?;
        let through = gated(options.function.map(), &x, &g)?;
        let Normed { y, inverse } =
            self.rms_norm(checked, options, &RmsNormInputs { x: &through, weight: &weight, g: None })?;
        Ok(Normed { y: cast(inputs.x.dtype(), &y)?, inverse })
    }

    /// With `du` as [`Norm::rms_norm_backward`] makes it of `u`, `dx = act(g) du` and `dg = act'(g) x du`.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn gated_first_backward(
        &self,
        checked: Checked<Self>,
        call: &RmsNormBackward<'_, Self>,
        g: &Tensor<Self>,
    ) -> Result<RmsNormInputs<Tensor<Self>>> {
        let RmsNormInputs { x, weight, .. } = call.inputs;
        let ([x32, weight32, g, dy], map) = (wide([x, weight, g, call.dy])?, call.options.function.map());
        // What the gate lets through is made again, and its gradient passed on to both of its factors.
        let through = gated(map, &x32, &g)?;
        let inputs = RmsNormInputs { x: &through, weight: &weight32, g: None };
        let grads = self.rms_norm_backward(checked, &RmsNormBackward { inputs, dy: &dy, ..*call })?;
        let of_gate = gated_backward(map, &GatedBackward { x: &x32, g: &g, dy: &grads.x })?;
        let [dx, dg] = [of_gate.x, of_gate.g].map(|grad| cast(x.dtype(), &grad));
        Ok(RmsNormInputs { x: dx?, weight: cast(weight.dtype(), &grads.weight)?, g: Some(dg?) })
    }

    /// `s = x + residual`, rounded to its type, and [`Norm::rms_norm`] of `s`.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn add_rms_norm(
        &self,
        checked: Checked<Self>,
        options: RmsNormOptions,
        residual: &Tensor<Self>,
        inputs: &RmsNormInputs<&Tensor<Self>>,
    ) -> Result<AddedNorm<Tensor<Self>>> {
        self.add_rms_norm_by_parts(checked, options, residual, inputs)
    }

    /// The same by a sum and a norm, for rows that a backend has no kernel for.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn add_rms_norm_by_parts(
        &self,
        checked: Checked<Self>,
        options: RmsNormOptions,
        residual: &Tensor<Self>,
        inputs: &RmsNormInputs<&Tensor<Self>>,
    ) -> Result<AddedNorm<Tensor<Self>>> {
        let sum = self.combine(checked, Combine::Sum, alike(residual), inputs.x, residual)?;
        let normed = self.rms_norm(checked, options, &RmsNormInputs { x: &sum, ..*inputs })?;
        Ok(AddedNorm { sum, normed })
    }

    /// As [`Norm::rms_norm_backward`] with `s` for `x`; `dsum`, the gradient that `s` itself has, is added to `dx`.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn add_rms_norm_backward(
        &self,
        checked: Checked<Self>,
        call: &RmsNormBackward<'_, Self>,
        dsum: &Tensor<Self>,
    ) -> Result<RmsNormInputs<Tensor<Self>>> {
        self.add_rms_norm_backward_by_parts(checked, call, dsum)
    }

    /// The same by a norm and a sum, for backends that have no kernel for both: in 32 bits, so that `dx` is rounded once.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn add_rms_norm_backward_by_parts(
        &self,
        _: Checked<Self>,
        call: &RmsNormBackward<'_, Self>,
        dsum: &Tensor<Self>,
    ) -> Result<RmsNormInputs<Tensor<Self>>> {
        add_in_32_bits(self, call, dsum)
    }

    /// `y = x r`, `r = 1 / √(|x|² + ε²)`.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn l2_norm(&self, checked: Checked<Self>, epsilon: f32, x: &Tensor<Self>) -> Result<Normed<Tensor<Self>>>;

    /// `dx = r (dy − x r² (x·dy))`, `r` as `inverse`.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn l2_norm_backward(
        &self,
        checked: Checked<Self>,
        x: &Tensor<Self>,
        inverse: &Tensor<Self>,
        dy: &Tensor<Self>,
    ) -> Result<Tensor<Self>>;
}

/// Root-mean-square normalisation of each row of `x [.., D]` with `weight [D]`: `y = x r w`,
/// `r = 1 / √(mean x² + ε)`. [`RmsNormOptions`] has groups, `1 + w`, and where a gate `g`, an array like `x`, stands
/// (Zhang and Sennrich, "Root Mean Square Layer Normalization"; Dao and Gu, "Transformers are SSMs", for groups and gates).
///
/// Squares are summed in 32 bits. A row whose length is over 1.8e19 gives zeros, and with `ε = 0` one under 1e-19 may give infinities.
///
/// # Errors
/// Shapes that do not fit, integers, no elements, `ε` negative or not finite, groups that do not divide `D`.
pub fn rms_norm<D: Norm>(inputs: &RmsNormInputs<&Tensor<D>>, options: RmsNormOptions) -> Result<Normed<Tensor<D>>> {
    check_rms(inputs, options)?;
    let device = inputs.x.device();
    match inputs.g.filter(|_| options.place == GatePlace::Before) {
        Some(g) => device.gated_first(Checked::new(), options, inputs, g),
        None => device.rms_norm(Checked::new(), options, inputs),
    }
}

/// Gradients of [`rms_norm`]; there is one of the gate where there is a gate.
///
/// # Errors
/// As [`rms_norm`], and arguments unlike those of the forward.
pub fn rms_norm_backward<D: Norm>(call: &RmsNormBackward<'_, D>) -> Result<RmsNormInputs<Tensor<D>>> {
    let what = check_rms(&call.inputs, call.options)?;
    check_inverse(what, call.inputs.x, call.options.groups, call.inverse, call.dy)?;
    let device = call.dy.device();
    match call.inputs.g.filter(|_| call.options.place == GatePlace::Before) {
        Some(g) => device.gated_first_backward(Checked::new(), call, g),
        None => device.rms_norm_backward(Checked::new(), call),
    }
}

/// The sum `s = x + residual` of arrays of one shape, and [`rms_norm`] of `s`: one pass over a residual stream.
///
/// # Errors
/// As [`rms_norm`], and a `residual` unlike `x`.
pub fn add_rms_norm<D: Norm>(
    residual: &Tensor<D>,
    inputs: &RmsNormInputs<&Tensor<D>>,
    options: RmsNormOptions,
) -> Result<AddedNorm<Tensor<D>>> {
    let what = check_rms(inputs, options)?;
    check_like(what, "residual", residual, inputs.x)?;
    let device = inputs.x.device();
    if inputs.g.is_none() || options.place == GatePlace::After {
        return device.add_rms_norm(Checked::new(), options, residual, inputs);
    }
    let sum = device.combine(Checked::new(), Combine::Sum, alike(residual), inputs.x, residual)?;
    let normed = rms_norm(&RmsNormInputs { x: &sum, ..*inputs }, options)?;
    Ok(AddedNorm { sum, normed })
}

/// Gradients of [`add_rms_norm`], with [`AddedNorm::sum`] for `x` in `call`, and `dsum`, the gradient of that sum. That of
/// `x` is the residual's too.
///
/// # Errors
/// As [`rms_norm_backward`], and a `dsum` unlike `x`.
pub fn add_rms_norm_backward<D: Norm>(
    call: &RmsNormBackward<'_, D>,
    dsum: &Tensor<D>,
) -> Result<RmsNormInputs<Tensor<D>>> {
    let what = check_rms(&call.inputs, call.options)?;
    check_inverse(what, call.inputs.x, call.options.groups, call.inverse, call.dy)?;
    check_like(what, "dsum", dsum, call.inputs.x)?;
    let device = dsum.device();
    if call.inputs.g.is_none() || call.options.place == GatePlace::After {
        return device.add_rms_norm_backward(Checked::new(), call, dsum);
    }
    let grads = rms_norm_backward(call)?;
    Ok(RmsNormInputs { x: device.combine(Checked::new(), Combine::Sum, alike(dsum), &grads.x, dsum)?, ..grads })
}

/// A norm and a sum, both in 32 bits.
fn add_in_32_bits<D: Norm>(
    device: &D,
    call: &RmsNormBackward<'_, D>,
    dsum: &Tensor<D>,
) -> Result<RmsNormInputs<Tensor<D>>> {
    let RmsNormBackward { options, inputs: RmsNormInputs { x, weight, g }, inverse, dy } = *call;
    let sum = |dx: &Tensor<D>, dsum| device.combine(Checked::new(), Combine::Sum, alike(dsum), dx, dsum);
    if x.dtype() == DType::F32 {
        let grads = device.rms_norm_backward(Checked::new(), call)?;
        return Ok(RmsNormInputs { x: sum(&grads.x, dsum)?, ..grads });
    }
    let [wide_x, wide_weight, dy, dsum] = wide([x, weight, dy, dsum])?;
    let wide_g = g.map(|g| cast(DType::F32, g)).transpose()?;
    let inputs = RmsNormInputs { x: &wide_x, weight: &wide_weight, g: wide_g.as_ref() };
    let grads = device.rms_norm_backward(Checked::new(), &RmsNormBackward { options, inputs, inverse, dy: &dy })?;
    let g = g.zip(grads.g).map(|(g, dg)| cast(g.dtype(), &dg)).transpose()?;
    Ok(RmsNormInputs { x: cast(x.dtype(), &sum(&grads.x, &dsum)?)?, weight: cast(weight.dtype(), &grads.weight)?, g })
}

/// Two arrays of the shape of `x`, element by element.
pub(super) fn alike<D: Device>(x: &Tensor<D>) -> Broadcast {
    Broadcast { rows: 1, width: x.shape().count() }
}

/// The same arrays in 32 bits.
pub(super) fn wide<D: Elementwise, const N: usize>(arrays: [&Tensor<D>; N]) -> Result<[Tensor<D>; N]> {
    let wide: Result<Vec<_>> = arrays.into_iter().map(|x| cast(DType::F32, x)).collect();
    Ok(wide?.try_into().unwrap_or_else(|_| unreachable!("as many as there were")))
}

/// Each row of `x [.., D]` divided by `√(|x|² + ε²)`: smooth at zero, where the gradient is at most `1/ε`. Rows that are too long or
/// too short for it are those of [`rms_norm`].
///
/// # Errors
/// Integers, no elements, `ε` negative or not finite.
pub fn l2_norm<D: Norm>(x: &Tensor<D>, epsilon: f32) -> Result<Normed<Tensor<D>>> {
    check_float("l2_norm", "x", x)?;
    check_epsilon("l2_norm", epsilon)?;
    x.device().l2_norm(Checked::new(), epsilon, x)
}

/// Gradient of [`l2_norm`], given its [`Normed::inverse`].
///
/// # Errors
/// As [`l2_norm`], and arguments unlike those of the forward.
pub fn l2_norm_backward<D: Norm>(x: &Tensor<D>, inverse: &Tensor<D>, dy: &Tensor<D>) -> Result<Tensor<D>> {
    check_float("l2_norm", "x", x)?;
    check_inverse("l2_norm", x, 1, inverse, dy)?;
    x.device().l2_norm_backward(Checked::new(), x, inverse, dy)
}

/// The name in messages, which says whether there is a gate.
fn check_rms<D: Device>(inputs: &RmsNormInputs<&Tensor<D>>, options: RmsNormOptions) -> Result<&'static str> {
    let RmsNormInputs { x, weight, g } = *inputs;
    let what = if g.is_some() { "rms_norm_gated" } else { "rms_norm" };
    check_device(what, x, &[("weight", weight)])?;
    check_float(what, "x", x)?;
    check_shape(what, "weight", weight, &[x.shape().last()].into())?;
    check_dtype(what, "weight", weight, x.dtype())?;
    g.map_or(Ok(()), |g| check_like(what, "g", g, x))?;
    check_epsilon(what, options.epsilon)?;
    if options.groups > 0 && x.shape().last().is_multiple_of(options.groups) {
        return Ok(what);
    }
    let expected = "1 or more, a divisor of the length of rows";
    Err(Error::Config { what, option: "groups", found: options.groups.to_string(), expected })
}

/// `inverse` has a number for each of `groups` of a row.
fn check_inverse<D: Device>(
    what: &'static str,
    x: &Tensor<D>,
    groups: usize,
    inverse: &Tensor<D>,
    dy: &Tensor<D>,
) -> Result<()> {
    check_device(what, x, &[("inverse", inverse)])?;
    check_shape(what, "inverse", inverse, &[x.shape().rows() * groups].into())?;
    check_dtype(what, "inverse", inverse, DType::F32)?;
    check_like(what, "dy", dy, x)
}

pub(super) fn check_epsilon(what: &'static str, epsilon: f32) -> Result<()> {
    if epsilon.is_finite() && epsilon >= 0.0 {
        return Ok(());
    }
    let expected = "a finite number, 0 or more";
    Err(Error::Config { what, option: "epsilon", found: epsilon.to_string(), expected })
}
