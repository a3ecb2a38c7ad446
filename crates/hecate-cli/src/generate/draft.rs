//! A smaller model that drafts what the other one writes.

use super::Continued;
use crate::{
    error::{Error, Result},
    progress,
    released::{self, Released},
    runs,
};
use clap::{Args, value_parser};
use hecate::{
    Backend,
    models::{
        LanguageModel, Vocabulary,
        generate::{Session, Speculation},
    },
};
use std::{
    cell::Cell,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// Flags of a draft.
#[derive(Args, Debug)]
pub(super) struct DraftArgs {
    /// Smaller model that guesses the next tokens: the folder of a run, or with --model a released model; the text stays the same
    ///
    /// The model draws each token itself, and reads what was guessed in one pass. Both must have the same tokens.
    #[arg(long, value_name = "PATH")]
    draft: Option<PathBuf>,
    /// Tokens that the draft guesses at a time
    #[arg(long, default_value_t = 4, value_name = "N", requires = "draft", value_parser = value_parser!(u8).range(1..=64))]
    draft_tokens: u8,
}

/// A draft, and what came of it so far.
pub(super) struct Draft<B: Backend> {
    model: LanguageModel<B>,
    ahead: usize,
    sum: Cell<Sum>,
}

/// What a draft did for the text of a whole call.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    /// Tokens of the text.
    written: usize,
    drafted: usize,
    accepted: usize,
    took: Duration,
}

impl DraftArgs {
    /// The draft of a model that lies at `large`, whose tokens are those of `vocabulary`; none where none is asked for.
    pub(super) fn open<B: Backend>(
        &self,
        device: &B,
        (large, is_released): (&Path, bool),
        vocabulary: &Vocabulary,
    ) -> Result<Option<Draft<B>>> {
        let Some(path) = &self.draft else { return Ok(None) };
        if !path.exists() {
            return Err(Error::file(path, "no such file or folder; name the draft's with `--draft PATH`"));
        }
        // One kind of model drafts for the same kind: so a flag says of both what they are.
        let (model, own) = if is_released {
            let Released { model, vocabulary, .. } = released::open(device, path)?;
            (model, vocabulary)
        } else {
            let trained = runs::open(device, path, false, "--draft")?;
            (trained.model, trained.vocabulary)
        };
        if !own.has_tokens_of(vocabulary) {
            let why = format!(
                "{} has other tokens than {}; a draft needs the tokenizer of the model that it drafts for",
                path.display(),
                large.display()
            );
            return Err(Error::flag("--draft", why));
        }
        Ok(Some(Draft { model, ahead: self.draft_tokens.into(), sum: Cell::default() }))
    }
}

impl<B: Backend> Draft<B> {
    /// The draft, with its model changed.
    pub(super) fn map(self, change: impl FnOnce(LanguageModel<B>) -> Result<LanguageModel<B>>) -> Result<Self> {
        Ok(Self { model: change(self.model)?, ..self })
    }

    /// The text of a session as it goes on with the draft ahead of it.
    pub(super) fn ahead_of<'a>(&'a self, model: &'a LanguageModel<B>, session: Session<B>) -> Result<Drafted<'a, B>> {
        Ok(Drafted { text: Speculation::new(model, session, &self.model, self.ahead)?, draft: self })
    }

    /// Compiles what a GPU lacks for the draft.
    pub(super) fn prepare(&self, tokens: &[u32]) -> Result<()> {
        Ok(self.model.prepare(tokens, &mut |kernels| progress::say(&progress::compiling(kernels)))?)
    }

    /// Says what the draft was good for, and how fast tokens came.
    pub(super) fn tell(&self) {
        let Sum { written, drafted, accepted, took } = self.sum.get();
        let seconds = took.as_secs_f64();
        let pace = written as f64 / seconds.max(f64::MIN_POSITIVE);
        progress::say(&format!(
            "{accepted} of {drafted} drafted tokens accepted; {written} tokens drawn in {seconds:.2} s, {pace:.1} tokens/s"
        ));
    }
}

/// A text with a draft ahead of it.
pub(super) struct Drafted<'a, B: Backend> {
    text: Speculation<'a, B>,
    draft: &'a Draft<B>,
}

impl<B: Backend> Continued for Drafted<'_, B> {
    fn read_on(&mut self, tokens: &[u32]) -> Result<()> {
        Ok(self.text.feed(tokens)?)
    }

    fn draw(&mut self) -> hecate::models::Result<u32> {
        let (began, before) = (Instant::now(), [self.text.drafted(), self.text.accepted()]);
        let token = self.text.next()?;
        let Sum { written, drafted, accepted, took } = self.draft.sum.get();
        self.draft.sum.set(Sum {
            written: written + 1,
            drafted: drafted + self.text.drafted() - before[0],
            accepted: accepted + self.text.accepted() - before[1],
            took: took + began.elapsed(),
        });
        Ok(token)
    }
}

impl<B: Backend> Drafted<'_, B> {
    /// The text as it stands, without the draft.
    pub(super) fn session(&self) -> &Session<B> {
        self.text.session()
    }
}
