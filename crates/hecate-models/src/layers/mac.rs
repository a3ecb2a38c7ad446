//! Memory as a context.

use super::{
    Context, GatedFusion, Mixer, Persistent, RmsNorm, SlidingWindow,
    memory::{ReadableMemory, memory},
    packed::text_by_text,
    write_inputs::lengths_between_multiples,
};
use crate::{AttentionConfig, Builder, LayerCache, MacConfig, Parameters, Result, Tape, Var};
use hecate_core::{Backend, Sequences};

/// Parts of the cache: the memory that is written, the memory as it stood at the start of the segment, and the segment's
/// attention.
const MEMORY: usize = 0;
const START: usize = 1;
const ATTENTION: usize = 2;

/// Memory as a context (MAC). Each token of a segment brings along what the memory of the segments before has to say of
/// it. Attention reads both. Then the memory reads what attention saw.
///
/// ```text
/// h_t = rmsnorm(M_s(q(x_t)))             read only, M_s the memory at the start of the segment
/// y = rmsnorm(Attn([P; h; segment]))     P is seen by all tokens, h_j and x_j by x_t for j ≤ t
/// M_t written with y_t,  m_t = M_t(q(y_t))
/// o = (y · σ(rmsnorm(m))) W_o
/// ```
///
/// `h_j` is a function of token `j`: a causal mask over the rows `[h; segment]` as they stand would show every token
/// what was read for later ones. So attention reads the rows in the order `h_0, x_0, h_1, x_1, …`, where causal means
/// exactly `j ≤ t`. Its window has twice as many rows as tokens; rows of `x` are kept. The memory is written token by
/// token as in any text, and `m_t` is read as the rule reads ([`hecate_core::Read`]), not from the memory at the end of
/// the segment.
/// Source: Behrouz et al., "Titans", eqs 21–25, made causal inside of the segment, with the norms and the projection
/// that all mixers have.
#[derive(Debug)]
pub struct Mac<B: Backend> {
    /// Tokens a segment.
    segment: usize,
    persistent: Option<Persistent>,
    memory: Box<dyn ReadableMemory<B>>,
    /// Of what the memory says, `h`.
    norm: RmsNorm,
    attention: SlidingWindow,
    fusion: GatedFusion,
}

impl<B: Backend> Mac<B> {
    /// Both beside a residual stream of width `hidden`.
    ///
    /// # Errors
    /// The device's own failures.
    pub fn new(build: &mut Builder<'_, B>, config: &MacConfig, hidden: usize, norm_eps: f32) -> Result<Self> {
        config.validate(hidden, str::to_owned)?;
        let rows = AttentionConfig { window: 2 * config.seen(), ..config.attention.clone() };
        Ok(Self {
            segment: config.segment,
            persistent: Persistent::new(build, config.persistent, hidden)?,
            memory: memory(&mut build.within("memory"), &config.memory, hidden, norm_eps)?,
            norm: RmsNorm::new(build, "read_norm", hidden, norm_eps)?,
            attention: SlidingWindow::new(&mut build.within("attention"), &rows, hidden)?,
            fusion: GatedFusion::new(build, hidden, norm_eps)?,
        })
    }

    /// Tokens `x [B,T,hidden]` of one segment that ask the memory `q [B,T,H,K]`, the first of them at `position`.
    fn attend_segment(
        &self,
        tape: &Tape<'_, B>,
        (x, q): (&Var<B>, Var<B>),
        position: usize,
        cache: &mut LayerCache<B>,
    ) -> Result<Var<B>> {
        let (batch, tokens) = (x.axes()[0], x.axes()[1]);
        let mut context = Context::at(Sequences::batch(batch, tokens), position, Some(cache));
        let h = self.memory.look_up(tape, x, q, &context.part(START))?;
        let rows = interleave(tape, &self.norm.forward(tape, &h)?, x)?;
        // Two rows a token, `h` then `x`: positions inside of the segment double.
        let mut doubled = Context {
            sequences: Sequences::batch(batch, 2 * tokens),
            position: 2 * (position % self.segment),
            ..context.part(ATTENTION)
        };
        let persistent = self.persistent.map(|persistent| persistent.rows(tape)).transpose()?;
        let seen = self.attention.attend(tape, &rows, persistent.as_ref(), &mut doubled)?;
        let y = self.fusion.seen(tape, &second_rows(tape, &seen)?)?;
        let m = self.memory.forward(tape, &y, &mut context.part(MEMORY))?;
        self.fusion.forward(tape, &y, &m)
    }

    /// A segment begins: its tokens read the memory as it is now, and attention has seen nothing. `START` becomes a copy of
    /// `MEMORY`'s state, `ATTENTION` is emptied.
    fn begin(&self, device: &B, batch: usize, cache: &mut LayerCache<B>) -> Result<()> {
        for name in self.memory.state_names() {
            if let Some(state) = cache.part_mut(MEMORY).and_then(|memory| memory.var(name).cloned()) {
                cache.part_mut(START).into_iter().for_each(|start| start.set(name, state.clone()));
            }
        }
        if let Some(attention) = cache.part_mut(ATTENTION) {
            // A call that keeps nothing needs no keys and values of earlier segments.
            let kept = attention.get("valid").is_some();
            *attention = if kept { self.attention.empty_cache(device, batch)? } else { LayerCache::new(Vec::new()) };
        }
        Ok(())
    }

    /// A plain batch `x [B,T,hidden]`, segment by segment, to the same shape. A call may start and end inside a segment.
    fn segments(&self, tape: &Tape<'_, B>, x: &Var<B>, context: &mut Context<'_, B>) -> Result<Var<B>> {
        let (batch, tokens, device) = (x.axes()[0], x.axes()[1], x.value().device());
        let mut own = None;
        let cache = match &mut context.cache {
            Some(cache) => &mut **cache,
            None => own.insert(LayerCache::new(Vec::new()).with_parts(vec![LayerCache::new(Vec::new()); 3])),
        };
        let mut position = context.position;
        let mut text = Context::at(context.sequences.clone(), position, Some(&mut *cache));
        let q = self.memory.queries(tape, x, &mut text.part(START))?;
        let lengths = lengths_between_multiples(position, tokens, self.segment);
        let mut all = Vec::new();
        for (x, q) in tape.split(x, 1, &lengths)?.into_iter().zip(tape.split(&q, 1, &lengths)?) {
            if position.is_multiple_of(self.segment) {
                self.begin(device, batch, cache)?;
            }
            all.push(self.attend_segment(tape, (&x, q), position, cache)?);
            position = position.saturating_add(x.axes()[1]);
        }
        tape.concat(&all.iter().collect::<Vec<_>>(), 1)
    }
}

/// Rows `a_0, b_0, a_1, b_1, …` of `a, b [B,T,hidden]`: `[B,2T,hidden]`. Joined along the last axis and reshaped, no
/// element has to be gathered.
fn interleave<B: Backend>(tape: &Tape<'_, B>, a: &Var<B>, b: &Var<B>) -> Result<Var<B>> {
    let (batch, tokens, hidden) = (a.axes()[0], a.axes()[1], a.axes()[2]);
    tape.reshape(&tape.concat(&[a, b], 2)?, [batch, 2 * tokens, hidden])
}

/// `b [B,T,hidden]` of [`interleave`], from `rows [B,2T,hidden]`.
fn second_rows<B: Backend>(tape: &Tape<'_, B>, rows: &Var<B>) -> Result<Var<B>> {
    let (batch, count, hidden) = (rows.axes()[0], rows.axes()[1], rows.axes()[2]);
    tape.narrow(&tape.reshape(rows, [batch, count / 2, 2 * hidden])?, 2, hidden, hidden)
}

impl<B: Backend> Mixer<B> for Mac<B> {
    fn forward(&self, tape: &Tape<'_, B>, x: &Var<B>, context: &mut Context<'_, B>) -> Result<Var<B>> {
        context.check(x)?;
        text_by_text(tape, x, context, &mut |x, context| self.segments(tape, x, context))
    }

    fn cache(&self, device: &B, parameters: &Parameters<B>, batch: usize) -> Result<LayerCache<B>> {
        let memory = self.memory.cache(device, parameters, batch)?;
        let parts = vec![memory.clone(), memory, self.attention.empty_cache(device, batch)?];
        Ok(LayerCache::new(Vec::new()).with_parts(parts))
    }

    fn group(&self) -> usize {
        self.memory.group()
    }
}
