//! A memory that makes its own keys, values and gates.

use super::{
    Context, Mixer, Projection, ProjectionTail,
    difference::head_products,
    output_projection::{OutputDims, OutputProjection},
    packed::text_by_text,
    rule_call::{CallOutputs, run},
    write_inputs::{WriteInputs, lengths_between_multiples, with_tokens, write_shapes},
};
use crate::{
    Builder, HopeConfig, Init, LayerCache, ParameterId, Parameters, Result, Retain, Tape, Var, gates::NORM_EPSILON,
};
use hecate_core::{
    Backend, DType, Dims, Read, Sequences, Slots,
    primitives::Map,
    rules::{Dgd, DgdGates, Hebbian, Matrix, Objective},
};

/// First values of the retention's `dt_bias`: a memory that makes its own values cannot outlive its forgetting, so
/// it starts with a horizon of `1/σ(−6) ≈ 400` tokens.
const RETENTION: f32 = 6.0;

/// The self-referential memory of HOPE. A head has five memories, `# ∈ {mem, k, v, η, α}`, each with values of its own
/// for the same keys. All values are made, and all gradients taken, with `M_#,c`, the memories at the start of the
/// chunk:
///
/// ```text
/// q = l2norm(conv(x W_q))    u = l2norm(conv(x W_u))                       per head, static
/// k = l2norm(u M_k,c)        v = u M_v,c        v̂_# = v M_#,c
/// η = softplus(u M_η,c + b_η)/C                 a = σ(u M_α,c + b_α)
/// M_# ← a M_# − η kᵀ(k M_#) − η kᵀ(k M_#,c − v̂_#)        y = q M_mem, read before the write
/// out = (rmsnorm(y) · silu(x W_g)) W_o
/// ```
///
/// The `C` steps of a chunk act as one step of the sum of their sizes on its start; divided by `C` they stay stable
/// where keys repeat. Keys, retention and steps are the same for all five memories, and value columns never meet. So
/// the five lie side by side in one matrix `[D, 3D + 2]` (mem, k, v, η, α). A chunk is three calls: what `u` reads,
/// what `v` reads, and one write. Everything starts from a learned matrix `B`.
///
/// What is forgotten goes back to it ([`HopeConfig::retain`]): `B + a (M − B)` stands for `a M`. A memory that makes its own keys
/// and values has none any more once it is empty. With `M = B + D` the write is
///
/// ```text
/// D ← a D − η kᵀ(k D) − η kᵀ(k D_c − (v̂ − 2 k B))        y = q B + q D
/// ```
///
/// the same one, told `v̂ − 2 k B`: both errors, the token's and the chunk's, have their share of `k B`.
/// Source: Behrouz et al., "Nested Learning" (HOPE), eqs 83–93, with matrices for memories.
///
/// In the cache lie the matrix at the start of the chunk, the inputs of the convolutions, and, in part 0, the writes of
/// the chunk so far.
#[derive(Clone, Debug)]
pub struct Hope {
    rule: Dgd,
    /// Tokens a chunk, `C`.
    chunk: usize,
    /// Memories side by side, `H`.
    heads: usize,
    /// Width of a head's keys and values, `D`.
    width: usize,
    q: Projection,
    u: Projection,
    /// Offset of the step size, `b_η [H]`.
    step: ParameterId,
    /// Offset of the retention, `b_α [H]`.
    retention: ParameterId,
    /// The five memories at the start of a text, `[1,H,D,3D+2]`.
    initial: ParameterId,
    /// Whether what is forgotten goes back to `initial`.
    anchored: bool,
    output: OutputProjection,
}

impl Hope {
    /// A self-referential memory beside a residual stream of width `hidden`.
    ///
    /// # Errors
    /// The device's own failures.
    pub fn new<B: Backend>(
        build: &mut Builder<'_, B>,
        config: &HopeConfig,
        hidden: usize,
        norm_eps: f32,
    ) -> Result<Self> {
        config.validate(hidden, str::to_owned)?;
        let (heads, width, chunk) = (config.heads, config.width(hidden), config.chunk);
        let tail = ProjectionTail { taps: config.conv, activate: true };
        let frozen = u32::try_from(chunk).ok().filter(|&chunk| chunk > 1);
        let held = [1, heads, width, 3 * width + 2];
        let output = OutputDims { hidden, heads, value: width };
        // Half as large as what keeps the length of a vector: values are made of values.
        let spread = Init::Spread(0.5 / (width as f32).sqrt());
        Ok(Self {
            rule: Dgd { objective: Objective::L2, read: Read::Before, frozen },
            chunk,
            heads,
            width,
            q: Projection::new(build, ("q_proj", "q_conv1d"), hidden, (heads, width), tail)?,
            u: Projection::new(build, ("u_proj", "u_conv1d"), hidden, (heads, width), tail)?,
            step: build.parameter("eta_bias", [heads], Init::Constant(0.0))?,
            retention: build.parameter("alpha_bias", [heads], Init::Constant(RETENTION))?,
            initial: build.within("initial").memory("m", held, spread)?,
            anchored: config.retain == Retain::Initial,
            output: OutputProjection::new(build, config.gate, output, norm_eps)?,
        })
    }

    /// Sizes of a call of the five memories as one.
    fn dims(&self, batch: usize, tokens: usize) -> Dims {
        let Self { heads, width, .. } = *self;
        let sequences = Sequences::batch(batch, tokens);
        Dims { batch, tokens, heads, key: width, value: 3 * width + 2, sequences, anchored: false }
    }

    /// What `x [B,T,H,D]` reads in all memories `m`: `[B,T,H,3D+2]`.
    fn read<B: Backend>(&self, tape: &Tape<'_, B>, x: &Var<B>, m: &Var<B>) -> Result<Var<B>> {
        let (rule, dims) = (Hebbian::default(), self.dims(x.axes()[0], x.axes()[1]));
        let inputs = super::GatedRule::reading(rule, &dims, x.clone(), Matrix { m: m.clone() })?;
        Ok(tape.memory(rule, &dims.sequences, inputs)?.out)
    }

    /// What tokens `u [B,T,H,D]` write, made by the memories `m`.
    fn make<B: Backend>(&self, tape: &Tape<'_, B>, u: &Var<B>, m: &Var<B>) -> Result<WriteInputs<B>> {
        let (width, scalars) = (self.width, [u.axes()[0], u.axes()[1], self.heads]);
        let made = tape.split(&self.read(tape, u, m)?, 3, &[width, width, width, 1, 1])?;
        let signal = |at: usize, bias| {
            let signal = tape.cast(DType::F32, &tape.reshape(&made[at], scalars)?)?;
            tape.add(&signal, &tape.parameter(bias)?)
        };
        let k = tape.l2_norm(&made[1], NORM_EPSILON)?;
        let v = self.read(tape, &made[2], m)?;
        let eta = tape.map(Map::Softplus, &signal(3, self.step)?)?;
        let eta = tape.scale((self.chunk as f32).recip(), &eta)?;
        let log_a = tape.map(Map::LogSigmoid, &signal(4, self.retention)?)?;
        let gates = DgdGates { log_a, theta: eta.clone(), beta: eta };
        Ok(WriteInputs::new(k, v, <DgdGates<()> as Slots>::into_vec(gates)))
    }

    /// What `q [B,T,H,D]` reads `[B,T,H,D]`, chunk by chunk, while `u [B,T,H,D]` writes. Tokens of an unfinished chunk are
    /// written again with the later ones of the chunk, from the chunk's start.
    fn chunks<B: Backend>(
        &self,
        tape: &Tape<'_, B>,
        q: &Var<B>,
        u: &Var<B>,
        context: &mut Context<'_, B>,
    ) -> Result<Var<B>> {
        let (batch, tokens, device) = (q.axes()[0], q.axes()[1], q.value().device());
        let room = self.dims(batch, self.chunk);
        let shapes = write_shapes(self.rule, &room);
        let anchor = self.anchor(tape)?;
        let mut m = self.start(tape, batch, device, context)?;
        let lengths = lengths_between_multiples(context.position, tokens, self.chunk);
        let before = context.position % self.chunk;
        let mut pending = WriteInputs::pending(&shapes, before, tape, q, &context.part(0))?;
        let mut out = Vec::new();
        for (q, u) in tape.split(q, 1, &lengths)?.iter().zip(tape.split(u, 1, &lengths)?) {
            let made = self.make(tape, &u, &m)?;
            let (writes, queries, known) = match pending.take() {
                Some(known) => {
                    let queries = tape.concat(&[known.keys(), q], 1)?;
                    (known.join(tape, &made)?, queries, known.tokens())
                }
                None => (made, q.clone(), 0),
            };
            let dims = with_tokens(&room, writes.tokens());
            let (read, last) = self.write(tape, &dims, &queries, &writes, (&m, anchor.as_ref()))?;
            out.push(tape.narrow(&read, 1, known, q.axes()[1])?);
            if writes.tokens() == self.chunk {
                m = last;
            } else {
                pending = Some(writes);
            }
        }
        context.keep("m", m.value());
        WriteInputs::keep(pending.as_ref(), shapes, device, &mut context.part(0))?;
        tape.concat(&out.iter().collect::<Vec<_>>(), 1)
    }

    /// One call of the rule, from the memories `m`: what the queries `q` read `[B,T,H,D]`, and the memories after it.
    fn write<B: Backend>(
        &self,
        tape: &Tape<'_, B>,
        dims: &Dims,
        q: &Var<B>,
        writes: &WriteInputs<B>,
        (m, anchor): (&Var<B>, Option<&Var<B>>),
    ) -> Result<(Var<B>, Var<B>)> {
        let call = |q: &Var<B>, writes: &WriteInputs<B>, m: Var<B>| {
            let CallOutputs { out, mut state } =
                run(&self.rule, tape, &dims.sequences, Some(q), writes, (vec![m], &Vec::new()))?;
            // The one matrix of the state.
            Ok((tape.narrow(&out, 3, 0, self.width)?, state.remove(0)))
        };
        let Some(anchor) = anchor else { return call(q, writes, m.clone()) };
        let (k, v, gates) = writes.parts();
        // In 32 bits: `k B` is larger than `v̂`, so the sum would be rounded more than its part.
        let [wide, k, v] = [q, k, v].map(|x| tape.cast(DType::F32, x));
        let (wide, k) = (wide?, k?);
        let v = tape.add(&v?, &head_products(tape, &k, &tape.scale(-2.0, anchor)?)?)?;
        let from = tape.add(m, &tape.scale(-1.0, anchor)?)?;
        let (out, last) = call(&wide, &WriteInputs::new(k, v, gates.to_vec()), from)?;
        let out = tape.add(&out, &head_products(tape, &wide, &tape.narrow(anchor, 2, 0, self.width)?)?)?;
        Ok((tape.cast(q.value().dtype(), &out)?, tape.add(&last, anchor)?))
    }

    /// What the memories go back to, `[H,D,3D+2]`; none where that is zero.
    fn anchor<B: Backend>(&self, tape: &Tape<'_, B>) -> Result<Option<Var<B>>> {
        let anchor = || {
            let initial = tape.parameter(self.initial)?;
            tape.reshape(&initial, initial.axes()[1..].to_vec())
        };
        self.anchored.then(anchor).transpose()
    }

    /// The matrix `[B,H,D,3D+2]` at the start of the chunk that the call starts in.
    fn start<B: Backend>(
        &self,
        tape: &Tape<'_, B>,
        batch: usize,
        device: &B,
        context: &Context<'_, B>,
    ) -> Result<Var<B>> {
        match &context.cache {
            None => self.initial_state(tape, batch),
            Some(_) => context.state(device, "m", self.dims(batch, 1).matrices()),
        }
    }

    /// The learned matrix, for every text: `[B,H,D,3D+2]`.
    fn initial_state<B: Backend>(&self, tape: &Tape<'_, B>, batch: usize) -> Result<Var<B>> {
        tape.repeat(&tape.parameter(self.initial)?, batch)
    }
}

impl<B: Backend> Mixer<B> for Hope {
    fn forward(&self, tape: &Tape<'_, B>, x: &Var<B>, context: &mut Context<'_, B>) -> Result<Var<B>> {
        context.check(x)?;
        text_by_text(tape, x, context, &mut |x, context| {
            let q = self.q.forward_l2_norm(tape, x, NORM_EPSILON, context)?;
            let u = self.u.forward_l2_norm(tape, x, NORM_EPSILON, context)?;
            let read = self.chunks(tape, &q, &u, context)?;
            self.output.forward(tape, x, &read)
        })
    }

    fn cache(&self, device: &B, parameters: &Parameters<B>, batch: usize) -> Result<LayerCache<B>> {
        let convs = [&self.q, &self.u].into_iter().filter_map(Projection::conv).map(|conv| conv.cache(device, batch));
        let mut arrays = convs.collect::<Result<Vec<_>>>()?;
        let dims = self.dims(batch, self.chunk);
        arrays.push(("m", self.initial_state(&Tape::inert(parameters), batch)?.into_value()));
        let room = LayerCache::new(WriteInputs::room(write_shapes(self.rule, &dims), device)?);
        Ok(LayerCache::new(arrays).with_parts(vec![room]))
    }
}
