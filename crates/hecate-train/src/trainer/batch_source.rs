//! What passes learn: windows drawn at random, or the next ones of texts that are being read.

use super::{FirstStates, Material, Settings};
use hecate_core::Backend;
use hecate_models::{
    Cache, Error, LanguageModel, LossGradients, Packed, Result,
    text::{Examples, TokenSource, Windows, windows},
    weights::pack_states,
};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Where the tokens of the next pass come from. A clone goes the same way.
#[derive(Clone, Debug)]
pub(super) struct BatchSource<B: Backend> {
    pub(super) windows: Windows,
    /// Bytes of text of the targets since [`BatchSource::take_bytes`]; none where it is not known what tokens were made of.
    bytes: Option<u64>,
    /// Texts of which windows are left to be learned.
    reading: Option<Reading<B>>,
}

/// Texts that are learned window after window, with the memories carried on.
#[derive(Clone, Debug)]
struct Reading<B: Backend> {
    /// Where each of them starts.
    starts: Vec<usize>,
    /// Tokens of other texts that were read before them; 0 where they start with fresh memories.
    before: usize,
    /// What is remembered of the windows before.
    cache: Cache<B>,
}

impl<B: Backend> Reading<B> {
    /// Tokens of these texts that are read.
    fn read(&self) -> usize {
        self.cache.position() - self.before
    }
}

/// A [`Reading`] without its arrays, as checkpoints keep it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Bookmark {
    starts: Vec<usize>,
    /// Tokens that the cache has behind it.
    position: usize,
    /// As [`Reading::before`]. Texts of before there was a choice start with fresh memories.
    #[serde(default, skip_serializing_if = "is_none_before")]
    before: usize,
}

/// Nothing was read before texts with fresh memories.
// The signature is serde's.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_none_before(before: &usize) -> bool {
    *before == 0
}

/// Tokens of a pass, and what follows each of them.
pub(super) struct TokenWindow {
    pub(super) inputs: Vec<u32>,
    pub(super) targets: Vec<u32>,
}

impl<B: Backend> BatchSource<B> {
    /// Nothing is being read.
    pub(super) fn new(windows: Windows) -> Self {
        Self { windows, bytes: Some(0), reading: None }
    }

    /// Bytes of text that all targets stand for which were handed out since the last call.
    pub(super) fn take_bytes(&mut self) -> Option<u64> {
        self.bytes.replace(0)
    }

    /// Counts the bytes of the targets of windows that start there.
    fn count_bytes(&mut self, text: TokenSource<'_>, starts: &[usize], tokens: usize) {
        let of = |start: &usize| text.bytes_of(start + 1..start + 1 + tokens);
        let bytes: Option<u64> = starts.iter().map(of).sum();
        self.bytes = self.bytes.zip(bytes).map(|(before, more)| before + more);
    }

    /// The next window of each sequence of a pass. If memories are carried, the cache comes with it as it is before the
    /// window; the caller moves it past the window.
    pub(super) fn next(
        &mut self,
        model: &LanguageModel<B>,
        text: TokenSource<'_>,
        settings: &Settings,
    ) -> Result<(TokenWindow, Option<&mut Cache<B>>)> {
        let &Settings { batch, tokens, .. } = settings;
        if !settings.carries() {
            let starts = self.windows.starts(text, batch, tokens)?;
            let (inputs, targets) = windows(text, starts.iter().copied(), tokens)?;
            self.count_bytes(text, &starts, tokens);
            return Ok((TokenWindow { inputs, targets }, None));
        }
        let length = settings.text();
        let reading = match self.reading.take() {
            Some(reading) if reading.read() < length => reading,
            ended => {
                let starts = self.windows.starts(text, batch, length)?;
                match ended {
                    // Every second text: what fresh memories start from is to be learned too.
                    Some(Reading { before: 0, cache, .. }) if settings.first_states == FirstStates::Other => {
                        Reading { starts, before: cache.position(), cache }
                    }
                    _ => Reading { starts, before: 0, cache: model.cache(batch)? },
                }
            }
        };
        let read = reading.read();
        let starts = &reading.starts;
        if starts.iter().any(|start| start.saturating_add(length) >= text.len()) {
            let expected = "the text whose memories are carried, whole";
            return Err(Error::config("tokens of text", text.len(), expected));
        }
        let starts: Vec<usize> = starts.iter().map(|start| start + read).collect();
        let (inputs, targets) = windows(text, starts.iter().copied(), tokens)?;
        self.count_bytes(text, &starts, tokens);
        let Reading { cache, .. } = self.reading.insert(reading);
        Ok((TokenWindow { inputs, targets }, Some(cache)))
    }

    /// The examples of the next pass.
    pub(super) fn draw(&mut self, examples: &Examples, settings: &Settings) -> Result<Packed> {
        if settings.carries() {
            let expected = "1 with examples: each of them starts with fresh memories";
            return Err(Error::config("carry", settings.carry, expected));
        }
        let numbers = self.windows.examples(examples.len(), settings.batch);
        self.bytes = self.bytes.map(|before| before + examples.bytes(&numbers) as u64);
        Ok(examples.packed(&numbers))
    }

    /// The next pass.
    pub(super) fn learn(
        &mut self,
        model: &LanguageModel<B>,
        text: Material<'_>,
        settings: &Settings,
    ) -> Result<LossGradients<B>> {
        let text = match text {
            Material::Text(text) => text,
            Material::Examples(examples) => return model.pass_packed(&self.draw(examples, settings)?),
        };
        let (TokenWindow { inputs, targets }, cache) = self.next(model, text, settings)?;
        match cache {
            None => model.pass(&inputs, &targets, settings.batch),
            Some(cache) if cache.position() > 0 => model.pass_with_cache(&inputs, &targets, cache),
            Some(cache) => {
                // Gradients flow to what memories start from, which a cache holds as constants.
                let pass = model.pass(&inputs, &targets, settings.batch)?;
                model.carry(&inputs, cache)?;
                Ok(pass)
            }
        }
    }

    /// Where the texts stand that are being read.
    pub(super) fn bookmark(&self) -> Option<Bookmark> {
        let Reading { starts, before, cache } = self.reading.as_ref()?;
        Some(Bookmark { starts: starts.clone(), position: cache.position(), before: *before })
    }

    /// What is remembered of them, as a file.
    pub(super) fn pack(&self, path: &Path) -> Result<Option<Vec<u8>>> {
        let Some(Reading { cache, .. }) = &self.reading else { return Ok(None) };
        Ok(Some(pack_states(path, &cache.by_name())?))
    }

    /// A source that goes on where the bookmark lies, with what the file remembers.
    pub(super) fn resume(
        windows: Windows,
        Bookmark { starts, position, before }: Bookmark,
        (model, settings): (&LanguageModel<B>, &Settings),
        (path, bytes): (PathBuf, &[u8]),
    ) -> Result<Self> {
        // Before these texts no other was read, or one of each, whole.
        let read = position.checked_sub(before).filter(|_| before == 0 || before == settings.text());
        let whole = read.is_some_and(|read| read <= settings.text() && read.is_multiple_of(settings.tokens));
        if starts.len() != settings.batch || !whole {
            let found = format!("{} texts at token {position}", starts.len());
            return Err(Error::config(
                "reading",
                found,
                "a text a sequence of the batch, at the end of one of its windows",
            ));
        }
        let mut cache = model.cache(starts.len())?;
        cache.restore(&path, bytes, position)?;
        Ok(Self { reading: Some(Reading { starts, before, cache }), ..Self::new(windows) })
    }
}
