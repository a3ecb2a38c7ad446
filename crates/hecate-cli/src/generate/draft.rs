//! A smaller model that drafts what the other one writes.
//!
//! The draft decides how long a text takes and never what is written ([`Speculation`]). So all that the command does with a text, to end
//! it, to show it and to save it, is done as without a draft, token by token.

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

/// Flags of a draft. Lines of `--interactive` and texts in files have one too.
#[derive(Args, Debug)]
pub(super) struct DraftArgs {
    /// Smaller model that guesses the next tokens: the folder of a run, or with --model a released model; the text stays as it is
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
    /// Tokens that it guesses at a time.
    ahead: usize,
    /// Texts that go on share it, one after another.
    sum: Cell<Sum>,
}

/// What a draft did for the text of a whole call.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    /// Tokens of the text.
    written: usize,
    /// Tokens that were guessed.
    drafted: usize,
    /// Those of them that the model drew too.
    accepted: usize,
    /// Time of reading what was drawn and of drawing: not that of reading prompts.
    took: Duration,
}

impl DraftArgs {
    /// The draft of a model that lies at `large`, whose tokens are those of `vocabulary`; none where none is asked for.
    ///
    /// # Errors
    /// Those of a run or of a released model that cannot be opened, and of one with other tokens.
    pub(super) fn open<B: Backend>(
        &self,
        device: &B,
        (large, is_released): (&Path, bool),
        vocabulary: &Vocabulary,
    ) -> Result<Option<Draft<B>>> {
        let Some(path) = &self.draft else { return Ok(None) };
        // By the name of the flag: a run is else looked for among other runs.
        if !path.exists() {
            return Err(Error::file(path, "no such file or folder; name the draft's with `--draft PATH`"));
        }
        // A run has bytes or a tokenizer of its own in its folder, a released model has one in its files.
        // One kind of model drafts for the same kind: so a flag says of both what they are.
        let (model, own) = if is_released {
            let Released { model, vocabulary, .. } = released::open(device, path)?;
            (model, vocabulary)
        } else {
            let trained = runs::open(device, path, false, "--draft")?;
            (trained.model, trained.vocabulary)
        };
        // A guess is the number of a token.
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

    /// The text of a session as it goes on with the draft ahead of it. Of what the session has read before, the draft knows
    /// nothing: it guesses worse then.
    pub(super) fn ahead_of<'a>(&'a self, model: &'a LanguageModel<B>, session: Session<B>) -> Result<Drafted<'a, B>> {
        Ok(Drafted { text: Speculation::new(model, session, &self.model, self.ahead)?, draft: self })
    }

    /// Compiles what a GPU lacks for the draft, whose kernels have other sizes than the model's.
    ///
    /// # Errors
    /// The device's own failures.
    pub(super) fn prepare(&self, tokens: &[u32]) -> Result<()> {
        Ok(self.model.prepare(tokens, &mut |kernels| progress::say(&progress::compiling(kernels)))?)
    }

    /// Says what the draft was good for, and how fast tokens came: after the text, on standard error, where a pipe has nothing of it.
    pub(super) fn tell(&self) {
        let Sum { written, drafted, accepted, took } = self.sum.get();
        let seconds = took.as_secs_f64();
        // Without a token there was no time.
        let pace = written as f64 / seconds.max(f64::MIN_POSITIVE);
        progress::say(&format!(
            "{accepted} of {drafted} drafted tokens accepted; {written} tokens drawn in {seconds:.2} s, {pace:.1} tokens/s"
        ));
    }
}

/// A text with a draft ahead of it, for as long as a call of the command, or a line, goes on.
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
        // Most tokens are there already; the first of a round waits for all of it.
        let token = self.text.next_token()?;
        // What a round drafted beyond the end of the text counts too: it took its time.
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
    /// The text as it stands, without the draft: nothing that was drawn ahead of it is in its file.
    pub(super) fn session(&self) -> &Session<B> {
        self.text.session()
    }
}
