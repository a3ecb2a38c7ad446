//! A text that goes on from one call of the command to the next.

use super::{Continued, Draft, GenerateArgs, Writer, drawn, prepare, write};
use crate::{error::Result, released::Released};
use hecate::{
    Backend,
    models::{LanguageModel, generate::Session},
};
use std::path::Path;

impl GenerateArgs {
    /// Reads the prompt after the text in this file, continues it, and saves all of it there.
    pub(super) fn go_on<B: Backend>(
        &self,
        (released, draft): (&Released<B>, Option<&Draft<B>>),
        file: &Path,
        prompt: &str,
    ) -> Result<()> {
        let Released { model, vocabulary, ends, sampling } = released;
        let sampler = self.sampling.sampler(*sampling, 0)?.of(vocabulary);
        // A file that cannot be read is no text that is about to begin.
        let there = file.symlink_metadata().is_ok();
        let session = if there { Session::restore(model, file, sampler)? } else { Session::new(model, sampler)? };
        // Only a text's beginning has tokens around it.
        let tokens = if there { vocabulary.encode(prompt)? } else { self.encode(vocabulary, prompt)? };
        prepare((model, draft), &tokens)?;
        let mut writer = Writer::new(vocabulary, self.raw, &self.stop);
        // With a draft or without: what is read, written and kept is the same.
        let mut go_on = |text: &mut dyn Continued| {
            text.read_on(&tokens)?;
            writer.after(&tokens)?;
            writer.prompt(prompt)?;
            write(drawn(text), &mut writer, (self.tokens, ends), || false)
        };
        let Some(draft) = draft else {
            let mut text = (model, session);
            go_on(&mut text)?;
            return Ok(text.1.save(model, file)?);
        };
        // Of what the file has read, the draft knows nothing.
        let mut text = draft.ahead_of(model, session)?;
        go_on(&mut text)?;
        Ok(text.session().save(model, file)?)
    }
}

/// A model, and the text that it goes on with alone.
impl<B: Backend> Continued for (&LanguageModel<B>, Session<B>) {
    fn read_on(&mut self, tokens: &[u32]) -> Result<()> {
        Ok(self.1.feed(self.0, tokens)?)
    }

    fn draw(&mut self) -> hecate::models::Result<u32> {
        self.1.next(self.0)
    }
}
