//! A text that goes on from one call of the command to the next.

use super::{GenerateArgs, Writer, write};
use crate::{error::Result, progress, released::Released};
use hecate::{Backend, models::generate::Session};
use std::{iter::from_fn, path::Path};

impl GenerateArgs {
    /// Reads the prompt after the text in this file, continues it, and saves all of it there.
    pub(super) fn go_on<B: Backend>(&self, released: &Released<B>, file: &Path, prompt: &str) -> Result<()> {
        let Released { model, vocabulary, ends, sampling } = released;
        let sampler = self.sampling.sampler(*sampling, 0)?.of(vocabulary);
        // A file that cannot be read is no text that is about to begin.
        let there = file.symlink_metadata().is_ok();
        let mut session = if there { Session::restore(model, file, sampler)? } else { Session::new(model, sampler)? };
        // Only a text's beginning has tokens around it.
        let tokens = if there { vocabulary.encode(prompt)? } else { self.encode(vocabulary, prompt)? };
        // Told where there is something to wait for: a new GPU, or a new version.
        model.prepare(&tokens, &mut |kernels| progress::say(&progress::compiling(kernels)))?;
        session.feed(model, &tokens)?;
        let mut writer = Writer::new(vocabulary, self.raw, &self.stop);
        writer.after(&tokens)?;
        writer.prompt(prompt)?;
        write(from_fn(|| Some(session.next(model))), &mut writer, (self.tokens, ends), || false)?;
        Ok(session.save(model, file)?)
    }
}
