//! Several texts that go on in one pass: what the model remembers of them, their scores, and their next tokens.

use super::{
    Memory, Scores, Session,
    captured::{Graph, lost, turn},
};
use crate::{Cache, LanguageModel, Result, sampling::Sampler};
use hecate_core::{
    Backend, Tensor,
    primitives::{self, concat, narrow},
};
use std::sync::{Arc, Mutex, OnceLock};

/// Texts that went on together, and where each of them stands. A row whose text left the others means nothing.
#[derive(Debug)]
pub(super) struct Together<B: Backend> {
    /// Tokens read of each.
    pub(super) positions: Vec<usize>,
    /// Of what is remembered of all.
    bytes: usize,
    /// Passes of exactly these texts before this one.
    pub(super) passes: usize,
    /// What the last pass left; where a graph has it, once somebody asked.
    left: OnceLock<Left<B>>,
    /// A graph that left it, at which of its steps.
    pub(super) graph: Option<(Arc<Mutex<Graph<B>>>, u64)>,
    /// Scores `[texts,V]` on the host, once somebody asked.
    on_host: OnceLock<Vec<f32>>,
}

/// What a pass leaves of several texts.
#[derive(Debug)]
pub(super) struct Left<B: Backend> {
    pub(super) cache: Cache<B>,
    /// Of the next tokens, `[texts,V]`.
    pub(super) scores: Tensor<B>,
}

impl<B: Backend> Together<B> {
    /// Texts that a pass left, `passes` of theirs after the first.
    fn after(left: Left<B>, positions: Vec<usize>, passes: usize) -> Self {
        let bytes = left.cache.bytes();
        Self { positions, bytes, passes, left: OnceLock::from(left), graph: None, on_host: OnceLock::new() }
    }

    /// The same texts after this step of a graph.
    pub(super) fn replayed(&self, graph: Arc<Mutex<Graph<B>>>, step: u64, positions: Vec<usize>) -> Self {
        let bytes = self.bytes / self.positions.len().max(1) * positions.len();
        let (graph, passes) = (Some((graph, step)), self.passes + 1);
        Self { positions, bytes, passes, left: OnceLock::new(), graph, on_host: OnceLock::new() }
    }

    /// What the last pass left.
    pub(super) fn left(&self) -> Result<&Left<B>> {
        if let (None, Some((graph, step))) = (self.left.get(), &self.graph) {
            let left = turn(graph).left(*step)?;
            return Ok(self.left.get_or_init(|| left));
        }
        self.left.get().ok_or_else(lost)
    }

    /// What is remembered of one text, bytes.
    pub(super) fn bytes_of_one(&self) -> usize {
        self.bytes / self.positions.len().max(1)
    }

    /// Scores of one text `[V]`.
    pub(super) fn scores_of(&self, row: usize) -> Result<&[f32]> {
        let all = match self.on_host.get() {
            Some(all) => all,
            // Two that ask at once both fetch the same.
            None => {
                let all = self.left()?.scores.to_f32()?;
                self.on_host.get_or_init(|| all)
            }
        };
        let width = all.len() / self.positions.len().max(1);
        Ok(&all[row * width..][..width])
    }
}

/// Reads in one pass the token that each of the sessions drew last. Session `i` is then row `i` of what they have together.
pub(super) fn read_together<B: Backend>(model: &LanguageModel<B>, sessions: &mut [&mut Session<B>]) -> Result<()> {
    let (mut cache, passes) = match in_company(sessions) {
        Some(all) => (all.left()?.cache.clone(), if all.graph.is_some() { 0 } else { all.passes + 1 }),
        None => {
            let own = sessions.iter().map(|session| session.memory.own(model)).collect::<Result<Vec<_>>>()?;
            (model.joined(&own.iter().collect::<Vec<_>>())?, 0)
        }
    };
    let tokens: Vec<u32> = sessions.iter().filter_map(|session| session.unread).collect();
    let scores = model.infer(&tokens, sessions.len(), &mut cache)?;
    let scores = scores.reshape([sessions.len(), scores.shape().last()])?;
    let positions = sessions.iter().map(|session| session.memory.position() + 1).collect();
    let all = Arc::new(Together::after(Left { cache, scores }, positions, passes));
    sessions.iter_mut().enumerate().for_each(|(row, session)| session.stands_at(&all, row));
    Ok(())
}

/// What exactly these sessions in this order have together, if they went on so before.
pub(super) fn in_company<B: Backend>(sessions: &[&mut Session<B>]) -> Option<Arc<Together<B>>> {
    let Memory::Row(all, _) = &sessions.first()?.memory else { return None };
    let stays = |(row, session): (usize, &&mut Session<B>)| session.row_of(all) == Some(row);
    let same = all.positions.len() == sessions.len() && sessions.iter().enumerate().all(stays);
    same.then(|| Arc::clone(all))
}

impl<B: Backend> Session<B> {
    /// It is a row of these texts, after a pass.
    pub(super) fn stands_at(&mut self, all: &Arc<Together<B>>, row: usize) {
        self.memory = Memory::Row(Arc::clone(all), row);
        self.scores = Scores::Row(Arc::clone(all), row);
        self.unread = None;
    }

    /// Which row of these texts it is.
    pub(super) fn row_of(&self, all: &Arc<Together<B>>) -> Option<usize> {
        match &self.memory {
            Memory::Row(other, row) if Arc::ptr_eq(other, all) => Some(*row),
            _ => None,
        }
    }

    /// Whether the device draws its next token as it would any, so that the host need not look at the scores.
    pub(super) fn is_drawn_by_device(&self) -> bool {
        self.allowed.is_none() && self.sampler.options().why_on_host().is_none()
    }

    /// Takes a token that was drawn in its sampler's place.
    pub(super) fn accept(&mut self, token: u32) -> Result<u32> {
        let token = self.sampler.accept(token)?;
        self.unread = Some(token);
        Ok(token)
    }
}

/// Draws on the device a token of each session that was just read with the others, as far as it can: none for those that need the
/// host, and where the device refuses. Sessions of the same options are drawn at once.
pub(super) fn draw_together<B: Backend>(sessions: &mut [&mut Session<B>]) -> Vec<Option<Result<u32>>> {
    let mut drawn: Vec<Option<Result<u32>>> = sessions.iter().map(|_| None).collect();
    let Some(Scores::Row(all, _)) = sessions.first().map(|session| &session.scores) else { return drawn };
    let all = Arc::clone(all);
    let mut left: Vec<usize> = (0..sessions.len()).filter(|&row| sessions[row].is_drawn_by_device()).collect();
    while let Some(&first) = left.first() {
        let options = sessions[first].sampler.options();
        let (same, others): (Vec<usize>, Vec<usize>) =
            left.into_iter().partition(|&row| sessions[row].sampler.options() == options);
        let samplers: Vec<&Sampler> = same.iter().map(|&row| &sessions[row].sampler).collect();
        let tokens = match all.left().and_then(|left| tokens_of(&left.scores, &same, &samplers)) {
            Ok(tokens) => tokens,
            // What is drawn so far counts: the others' scores are there for the host.
            Err(error) => {
                tracing::debug!(%error, "tokens are drawn on the host");
                return drawn;
            }
        };
        same.into_iter().zip(tokens).for_each(|(row, token)| drawn[row] = Some(sessions[row].accept(token)));
        left = others;
    }
    drawn
}

/// What the device draws from these rows of scores `[texts,V]` for samplers of one kind: tokens, or what stands in their places.
fn tokens_of<B: Backend>(scores: &Tensor<B>, rows: &[usize], samplers: &[&Sampler]) -> Result<Vec<u32>> {
    let Some(options) = samplers.first().map(|sampler| sampler.options()) else { return Ok(Vec::new()) };
    let whole = rows.len() == scores.shape().axes()[0];
    let scores = if whole { scores.clone() } else { rows_of(scores, rows)? };
    let streams: Vec<u32> = samplers.iter().flat_map(|sampler| sampler.stream()).collect();
    let streams = Tensor::from_u32(scores.device(), [rows.len(), 3], streams)?;
    let drawn = primitives::sample(&options.draw, &options.known(scores)?, &streams)?;
    Ok(drawn.tokens.to_u32()?)
}

/// Some rows of an array `[any,V]`.
fn rows_of<B: Backend>(x: &Tensor<B>, rows: &[usize]) -> Result<Tensor<B>> {
    let parts = rows.iter().map(|&row| narrow(x, 0, row, 1)).collect::<std::result::Result<Vec<_>, _>>()?;
    Ok(concat(&parts.iter().collect::<Vec<_>>(), 0)?)
}
