//! Texts that go on together by a graph which the device replays: each has a row of arrays that stay where they are. Who leaves
//! leaves a row idle, and who comes takes an idle one.

use super::{
    Memory, Session,
    together::{Left, Together, in_company},
};
use crate::{Cache, Error, LanguageModel, Result, generate::device_draws::Drawn, sampling::Options};
use hecate_core::{Backend, Capture, CapturedStep, DType, Host, Tensor};
use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Passes that texts have made together before their step is captured, which takes as long as some of them.
const SETTLED: usize = 3;
/// Rows come in multiples of this, so that one more text does not ask for another graph at once.
const ROWS: usize = 8;
/// A graph is for at least one text in so many rows.
const SPARSE: usize = 4;

/// What a text reads next, a token that was drawn, and the stream of the draw after it.
type Read = (u32, [u32; 3]);

/// A step of texts, captured: it reads a token of each, and draws the next.
pub(super) struct Graph<B: Backend> {
    /// Its state is the cache's arrays, the unread tokens, the streams, and scores `[texts,V]`.
    captured: Box<dyn CapturedStep<B>>,
    /// A cache of as many texts, with the arrays of one alone.
    like: Cache<B>,
    options: Options,
    /// Of the model as it was captured.
    weights: Arc<()>,
    /// How often it was replayed.
    steps: u64,
    /// Of each row, as its session knows it too; of idle rows anything.
    next: Vec<Option<Read>>,
    /// Whether a replay failed: what is in its arrays then is anyone's guess.
    failed: bool,
}

impl<B: Backend> fmt::Debug for Graph<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Graph").field("steps", &self.steps).field("rows", &self.next.len()).finish_non_exhaustive()
    }
}

/// One's turn at a graph.
pub(super) fn turn<B: Backend>(graph: &Mutex<Graph<B>>) -> MutexGuard<'_, Graph<B>> {
    // A step that panicked is one that failed, and was noted before.
    graph.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What became of a text whose graph failed.
pub(super) fn lost() -> Error {
    Error::config("session", "one whose device failed in the middle of a token", "one that was saved before")
}

impl<B: Backend> Graph<B> {
    /// What its step of this number left.
    pub(super) fn left(&self, step: u64) -> Result<Left<B>> {
        if self.failed || step != self.steps {
            return Err(lost());
        }
        let mut arrays = self.captured.after()?;
        let scores = arrays.pop().ok_or_else(lost)?;
        arrays.truncate(arrays.len() - 2);
        Ok(Left { cache: self.like.with_arrays(arrays), scores })
    }
}

/// Reads what each of the sessions drew last and draws its next token, all by one replay: none where there is no graph of them
/// yet, and where they draw in unlike ways. What the device remembers of them is then that of the graph.
pub(super) fn replay_together<B: Backend>(
    model: &LanguageModel<B>,
    sessions: &mut [&mut Session<B>],
) -> Result<Option<Vec<Result<u32>>>> {
    let Some(options) = common_options(sessions) else { return Ok(None) };
    let places = match Places::find(model, sessions, &options) {
        Some(places) => Some(places),
        None => capture(model, sessions, &options).unwrap_or_else(|error| {
            tracing::warn!(%error, "texts go on call by call");
            None
        }),
    };
    places.map_or(Ok(None), |places| places.go_on(model, sessions))
}

/// How all of them draw on the device, if they draw in one way.
fn common_options<B: Backend>(sessions: &[&mut Session<B>]) -> Option<Options> {
    let options = sessions.first()?.sampler.options();
    let same = |session: &&mut Session<B>| session.is_drawn_by_device() && session.sampler.options() == options;
    sessions.iter().all(same).then_some(options)
}

/// Rows of a graph for texts, some of which may be new there.
struct Places<B: Backend> {
    graph: Arc<Mutex<Graph<B>>>,
    /// At this step of the graph they begin.
    step: u64,
    all: Arc<Together<B>>,
    /// One a text.
    rows: Vec<usize>,
}

impl<B: Backend> Places<B> {
    /// In a graph that some of these texts are rows of.
    fn find(model: &LanguageModel<B>, sessions: &[&mut Session<B>], options: &Options) -> Option<Self> {
        let all = sessions.iter().find_map(|session| session.company().filter(|all| all.graph.is_some()))?;
        let (graph, step) = all.graph.as_ref()?;
        let count = turn(graph).rows_for(model, options, *step)?;
        if sessions.len() > count || count > ROWS && sessions.len() * SPARSE < count {
            return None;
        }
        let known: Vec<Option<usize>> = sessions.iter().map(|session| session.row_of(all)).collect();
        let mut taken = vec![false; count];
        for &row in known.iter().flatten() {
            // A fork that goes on beside what it left has the same row.
            if std::mem::replace(&mut taken[row], true) {
                return None;
            }
        }
        let mut idle = (0..count).filter(|&row| !taken[row]);
        let rows = known.iter().map(|row| row.or_else(|| idle.next())).collect::<Option<Vec<_>>>()?;
        Some(Self { graph: Arc::clone(graph), step: *step, all: Arc::clone(all), rows })
    }

    /// Replays the graph for these sessions; none where others did meanwhile.
    fn go_on(self, model: &LanguageModel<B>, sessions: &mut [&mut Session<B>]) -> Result<Option<Vec<Result<u32>>>> {
        model.check_interrupt()?;
        let Self { graph, step, all, rows } = self;
        let next: Vec<_> = sessions.iter().zip(&rows).map(|(session, &row)| (row, session.next_read())).collect();
        let (count, as_left) = {
            let held = turn(&graph);
            (held.next.len(), next.iter().all(|(row, next)| held.next[*row] == *next))
        };
        let news = News::of(model, &all, (sessions, &rows), count)?;
        let goes_on = as_left && news.texts.is_empty();
        // Each that stays holds it twice, and this once. Who else does stands where it stood, as all do should what follows fail.
        let stayed = sessions.iter().filter(|session| session.row_of(&all).is_some()).count();
        if !goes_on || Arc::strong_count(&all) > 2 * stayed + 1 {
            all.left()?;
        }
        let mut held = turn(&graph);
        if held.steps != step {
            return Ok(None);
        }
        if !goes_on {
            held.restart(model, &all.left()?.cache, &news, &next)?;
        }
        let tokens = held.step()?;
        let positions = news.positions.iter().map(|position| position + 1).collect();
        let all = Arc::new(all.replayed(Arc::clone(&graph), held.steps, positions));
        let drawn = sessions.iter_mut().zip(&rows).map(|(session, &row)| {
            session.stands_at(&all, row);
            let token = session.accept(tokens[row]);
            held.next[row] = session.next_read();
            token
        });
        Ok(Some(drawn.collect()))
    }
}

/// Texts that come to a graph.
struct News<B: Backend> {
    /// What is remembered of each, by their rows in order.
    texts: Vec<(usize, Cache<B>)>,
    /// Where the text of each row stands.
    positions: Vec<usize>,
}

impl<B: Backend> News<B> {
    /// Those sessions that are no rows of these texts, where a graph has `count` rows.
    fn of(
        model: &LanguageModel<B>,
        all: &Arc<Together<B>>,
        (sessions, rows): (&[&mut Session<B>], &[usize]),
        count: usize,
    ) -> Result<Self> {
        let mut positions = all.positions.clone();
        positions.resize(count, 0);
        sessions.iter().zip(rows).for_each(|(session, &row)| positions[row] = session.memory.position());
        let new = sessions.iter().zip(rows).filter(|(session, _)| session.row_of(all).is_none());
        let mut texts = new.map(|(session, &row)| Ok((row, session.memory.own(model)?))).collect::<Result<Vec<_>>>()?;
        texts.sort_by_key(|(row, _)| *row);
        Ok(Self { texts, positions })
    }
}

impl<B: Backend> Session<B> {
    /// The texts that it goes on with.
    fn company(&self) -> Option<&Arc<Together<B>>> {
        match &self.memory {
            Memory::Row(all, _) => Some(all),
            Memory::Own(_) => None,
        }
    }

    /// What it reads, and draws by, next.
    fn next_read(&self) -> Option<Read> {
        self.unread.map(|token| (token, self.sampler.stream()))
    }

    /// Whether the device replays a captured step for it and those that it goes on with ([`next_of_all`](super::next_of_all)).
    pub fn is_captured(&self) -> bool {
        self.company().is_some_and(|all| all.graph.is_some())
    }
}

impl<B: Backend> Graph<B> {
    /// Its rows, if this is where it stands and what it does.
    fn rows_for(&self, model: &LanguageModel<B>, options: &Options, step: u64) -> Option<usize> {
        let same = Arc::ptr_eq(&self.weights, model.weights()) && self.options == *options;
        (same && !self.failed && self.steps == step).then_some(self.next.len())
    }

    /// Goes on from what was left of its rows, with new texts in some; rows read and draw by what their sessions say.
    fn restart(
        &mut self,
        model: &LanguageModel<B>,
        left: &Cache<B>,
        news: &News<B>,
        next: &[(usize, Option<Read>)],
    ) -> Result<()> {
        let texts: Vec<_> = news.texts.iter().map(|(row, cache)| (*row, cache)).collect();
        let cache = left.with_texts(&model.inert(), model.device(), &texts, &news.positions)?;
        next.iter().for_each(|(row, next)| self.next[*row] = *next);
        let state = state_of(model, &cache, &self.next)?;
        // Until all is there.
        self.failed = true;
        self.captured.restart(&state)?;
        self.failed = false;
        Ok(())
    }

    /// One replay: a token of every row, or what stands in its place.
    fn step(&mut self) -> Result<Vec<u32>> {
        // Until it came to an end.
        self.failed = true;
        let Host::U32(tokens) = self.captured.step(Host::U32(vec![0]))? else {
            return Err(Error::config("captured step", "other than tokens", "tokens"));
        };
        (self.failed, self.steps) = (false, self.steps + 1);
        Ok(tokens)
    }
}

/// The state that a step goes on from. What idle rows read means nothing, and so do scores that none were drawn from.
fn state_of<B: Backend>(model: &LanguageModel<B>, cache: &Cache<B>, next: &[Option<Read>]) -> Result<Vec<Tensor<B>>> {
    let (unread, streams): (Vec<u32>, Vec<[u32; 3]>) = next.iter().map(|next| next.unwrap_or_default()).unzip();
    let mut state = cache.arrays();
    state.extend(model.to_draw_from(&unread, &streams)?);
    state.push(Tensor::zeros(model.device(), [next.len(), model.vocabulary_size()], DType::F32)?);
    Ok(state)
}

/// Rows for sessions that went on together for a while, in a graph of their step.
fn capture<B: Backend>(
    model: &LanguageModel<B>,
    sessions: &[&mut Session<B>],
    options: &Options,
) -> Result<Option<Places<B>>> {
    let settled = |all: &Arc<Together<B>>| all.passes == SETTLED && all.graph.is_none();
    let Some(all) = in_company(sessions).filter(settled) else { return Ok(None) };
    if model.why_call_by_call(options).is_some() {
        return Ok(None);
    }
    let (count, tape) = (sessions.len(), model.inert());
    let rows = if count == 1 { 1 } else { count.next_multiple_of(ROWS) };
    let mut positions = all.positions.clone();
    positions.resize(rows, positions[0]);
    let cache = all.left()?.cache.padded(&tape, model.device(), &positions)?;
    let mut next: Vec<_> = sessions.iter().map(|session| session.next_read()).collect();
    next.resize(rows, None);
    let mut step = |mut state: Vec<Tensor<B>>, _: Tensor<B>| {
        state.pop();
        let Drawn { tokens, scores, mut state } = model.drawn(&cache, options, state)?;
        state.push(scores);
        Ok((state, tokens))
    };
    let input = Tensor::from_u32(model.device(), [1], vec![0])?;
    let captured = match hecate_core::capture(model.device(), &state_of(model, &cache, &next)?, &input, &mut step)? {
        Capture::Graph(captured) => captured,
        Capture::Refused { why } => {
            tracing::info!(why, "texts go on call by call");
            return Ok(None);
        }
    };
    tracing::debug!(texts = count, rows, "captured the step of texts that go on together");
    let (like, options, weights) = (cache.like(&tape)?, options.clone(), Arc::clone(model.weights()));
    let graph = Arc::new(Mutex::new(Graph { captured, like, options, weights, steps: 0, next, failed: false }));
    Ok(Some(Places { graph, step: 0, all, rows: (0..count).collect() }))
}
