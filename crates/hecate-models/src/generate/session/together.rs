//! Several texts that go on in one pass: what the model remembers of them, their scores, and their next tokens.

use super::{Memory, Scores, Session};
use crate::{Cache, LanguageModel, Result, sampling::Sampler};
use hecate_core::{
    Backend, Tensor,
    primitives::{self, concat, narrow},
};
use std::sync::{Arc, OnceLock};

/// Texts that went on together, and where each of them stands.
#[derive(Debug)]
pub(super) struct Together<B: Backend> {
    pub(super) cache: Cache<B>,
    pub(super) positions: Vec<usize>,
    /// Of the next tokens, `[texts,V]`: on the device, and on the host once somebody asked.
    scores: Tensor<B>,
    on_host: OnceLock<Vec<f32>>,
}

impl<B: Backend> Together<B> {
    /// Scores of one text `[V]`.
    pub(super) fn scores_of(&self, row: usize) -> Result<&[f32]> {
        let width = self.scores.shape().last();
        let all = match self.on_host.get() {
            Some(all) => all,
            // Two that ask at once both fetch the same.
            None => {
                let all = self.scores.to_f32()?;
                self.on_host.get_or_init(|| all)
            }
        };
        Ok(&all[row * width..][..width])
    }
}

/// Reads in one pass the token that each of the sessions drew last. Session `i` is then row `i` of what they have together.
pub(super) fn read_together<B: Backend>(model: &LanguageModel<B>, sessions: &mut [&mut Session<B>]) -> Result<()> {
    let mut cache = match in_company(sessions) {
        Some(cache) => cache,
        None => {
            let own = sessions.iter().map(|session| session.memory.own(model)).collect::<Result<Vec<_>>>()?;
            model.joined(&own.iter().collect::<Vec<_>>())?
        }
    };
    let tokens: Vec<u32> = sessions.iter().filter_map(|session| session.unread).collect();
    let scores = model.infer(&tokens, sessions.len(), &mut cache)?;
    let scores = scores.reshape([sessions.len(), scores.shape().last()])?;
    let positions = sessions.iter().map(|session| session.memory.position() + 1).collect();
    let all = Arc::new(Together { cache, positions, scores, on_host: OnceLock::new() });
    for (row, session) in sessions.iter_mut().enumerate() {
        session.memory = Memory::Row(Arc::clone(&all), row);
        session.scores = Scores::Row(Arc::clone(&all), row);
        session.unread = None;
    }
    Ok(())
}

/// The cache of exactly these sessions in this order, if they went on together before.
fn in_company<B: Backend>(sessions: &[&mut Session<B>]) -> Option<Cache<B>> {
    let Memory::Row(all, _) = &sessions.first()?.memory else { return None };
    let stays = |(row, session): (usize, &&mut Session<B>)| match &session.memory {
        Memory::Row(other, found) => Arc::ptr_eq(other, all) && *found == row,
        Memory::Own(_) => false,
    };
    let same = all.positions.len() == sessions.len() && sessions.iter().enumerate().all(stays);
    same.then(|| all.cache.clone())
}

/// Draws on the device a token of each session that was just read with the others, as far as it can: none for those that need the
/// host, and where the device refuses. Sessions of the same options are drawn at once.
pub(super) fn draw_together<B: Backend>(sessions: &mut [&mut Session<B>]) -> Vec<Option<Result<u32>>> {
    let mut drawn: Vec<Option<Result<u32>>> = sessions.iter().map(|_| None).collect();
    let Some(Scores::Row(all, _)) = sessions.first().map(|session| &session.scores) else { return drawn };
    let all = Arc::clone(all);
    let by_device =
        |session: &Session<B>| session.allowed.is_none() && session.sampler.options().why_on_host().is_none();
    let mut left: Vec<usize> = (0..sessions.len()).filter(|&row| by_device(sessions[row])).collect();
    while let Some(&first) = left.first() {
        let options = sessions[first].sampler.options();
        let (same, others): (Vec<usize>, Vec<usize>) =
            left.into_iter().partition(|&row| sessions[row].sampler.options() == options);
        let samplers: Vec<&Sampler> = same.iter().map(|&row| &sessions[row].sampler).collect();
        let tokens = match tokens_of(&all.scores, &same, &samplers) {
            Ok(tokens) => tokens,
            // What is drawn so far counts: the others' scores are there for the host.
            Err(error) => {
                tracing::debug!(%error, "tokens are drawn on the host");
                return drawn;
            }
        };
        for (row, token) in same.into_iter().zip(tokens) {
            let token = sessions[row].sampler.accept(token);
            if let Ok(token) = &token {
                sessions[row].unread = Some(*token);
            }
            drawn[row] = Some(token);
        }
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
