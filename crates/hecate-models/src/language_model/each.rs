//! Several calls of one text that end where a caller may want to go on, or not.

use super::{Cache, LanguageModel};
use crate::{
    Call, Error, Result,
    model::{check_parts, check_rows},
};
use hecate_core::{Backend, Tensor};

impl<B: Backend> LanguageModel<B> {
    /// Scores `[1,T,V]` of each of these calls of one text, bit for bit what [`LanguageModel::infer`] gives call by call, and what
    /// is remembered then. A call that ends inside a group of a frozen rule leaves nothing: the next one begins where it did.
    ///
    /// All that is remembered on the way is kept, so a caller goes back to any call without reading again. Arrays that a call
    /// does not change are shared.
    ///
    /// # Errors
    /// As [`LanguageModel::infer`]; [`Error::Config`] for a cache of several texts.
    pub(crate) fn infer_each(&self, texts: &[Vec<u32>], cache: &Cache<B>) -> Result<Vec<(Tensor<B>, Cache<B>)>> {
        if cache.batch() != 1 {
            return Err(Error::config("batch", cache.batch(), "1, a cache of one text"));
        }
        cache.check(&self.config)?;
        self.check_group(cache.position())?;
        let is_whole = |tokens: &[u32]| tokens.len().is_multiple_of(self.group());
        let (mut calls, mut after, mut position) = (Vec::new(), None, cache.position());
        for (number, tokens) in texts.iter().enumerate() {
            calls.push(Call { tokens: self.ids(tokens, 1)?, position, after, memory: cache.memory().clone() });
            if is_whole(tokens) {
                (after, position) = (Some(number), position.saturating_add(tokens.len()));
            }
        }
        let scores = self.model.scores_each(&self.inert(), &mut calls)?;
        let (mut kept, mut all) = (cache.clone(), Vec::new());
        for ((mut call, scores), tokens) in calls.into_iter().zip(scores).zip(texts) {
            check_rows(&scores, call.tokens.shape().axes(), Some(self.vocabulary_size()))?;
            check_parts(Some(&mut call.memory), self.mixers().len())?;
            if is_whole(tokens) {
                kept = cache.moved(call.memory, call.position.saturating_add(tokens.len()));
            }
            all.push((scores.into_value(), kept.clone()));
        }
        Ok(all)
    }
}
