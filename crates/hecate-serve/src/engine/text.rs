//! A text that is read and written.

use super::{
    Writer,
    likelihoods::Likelihoods,
    prefixes::{Mark, Prefixes},
    request::Request,
    sessions::Sessions,
};
use crate::{
    order::{Event, Reason},
    refusal::Refusal,
    schema::Bound,
};
use hecate_core::Backend;
use hecate_models::{
    Decoder,
    generate::{SEGMENT, Session, Stops},
    sampling::Sampler,
};
use std::{collections::VecDeque, rc::Rc};

/// A prompt that is read, and then a continuation of it.
///
/// Once its prompt is read it is the first of the continuations, and the others go on beside it. Each gets a token a round, until
/// an end token, a stop text, or as many tokens as were asked for.
#[derive(Debug)]
pub(crate) struct Text<'a, B: Backend> {
    pub(super) request: Rc<Request>,
    pub(super) session: Session<B>,
    /// Tokens that have come so far.
    pub(super) written: usize,
    /// The most of them.
    most: usize,
    /// Its number in the request.
    index: usize,
    prompt: Vec<u32>,
    /// Tokens of the prompt that are read, and those of them that were read for another one.
    read: usize,
    cached: usize,
    /// Where the prompt goes on from kept states, or leaves some; none before its first turn.
    marks: Option<Vec<Mark>>,
    /// Numbers and samplers of all continuations, while the prompt is being read.
    continuations: VecDeque<(usize, Sampler)>,
    decoder: Decoder<'a>,
    stops: Stops,
    likelihoods: Likelihoods,
    /// What keeps it to a schema.
    bound: Option<Bound>,
}

impl<'a, B: Backend> Text<'a, B> {
    /// Before its prompt is read. `continuations` has a number and a sampler for each, and at least one.
    pub(super) fn new(
        request: Rc<Request>,
        session: Session<B>,
        prompt: Vec<u32>,
        continuations: VecDeque<(usize, Sampler)>,
        (stops, most, likeliest): (&[String], usize, Option<usize>),
        bound: Option<Bound>,
        writer: &Writer<'a, B>,
    ) -> Self {
        let (decoder, stops) = (writer.vocabulary.decoder(), Stops::new(stops.to_vec()));
        let text = Self::begun(request, session, (0, most), (decoder, stops, Likelihoods::new(likeliest)));
        Self { prompt, continuations, bound, ..text }
    }

    /// A continuation of this number and of at most so many tokens, whose prompt is read and which has none yet.
    fn begun(
        request: Rc<Request>,
        session: Session<B>,
        (index, most): (usize, usize),
        (decoder, stops, likelihoods): (Decoder<'a>, Stops, Likelihoods),
    ) -> Self {
        Self {
            request,
            session,
            written: 0,
            most,
            index,
            prompt: Vec::new(),
            read: 0,
            cached: 0,
            marks: None,
            continuations: VecDeque::new(),
            decoder,
            stops,
            likelihoods,
            bound: None,
        }
    }

    /// Places that it takes among those that run.
    pub(super) fn places(&self) -> usize {
        self.continuations.len().max(1)
    }

    /// Whether its prompt is, so that it is a continuation.
    pub(super) fn is_read(&self) -> bool {
        self.continuations.is_empty()
    }

    /// Tokens of the prompt that are read next; none where all of them were read for another one.
    pub(super) fn segment(&self) -> usize {
        (self.prompt.len() - self.read).min(SEGMENT)
    }

    /// Before its first segment: goes on from the nearest kept state. How many tokens that spares, if any.
    ///
    /// A named session has read a text of its own before the prompt, so no state of other prompts is one of it.
    pub(super) fn resume(&mut self, prefixes: &mut Prefixes<B>) -> Option<usize> {
        if self.marks.is_some() {
            return None;
        }
        let is_whole = self.request.session.is_none();
        let marks = self.marks.insert(if is_whole { prefixes.marks(&self.prompt) } else { Vec::new() });
        let (read, session) = prefixes.nearest(marks)?;
        (self.session, self.read, self.cached) = (session, read, read);
        Some(read)
    }

    /// Reads the next segment of the prompt. After the last one continuations begin, of which all but the first are returned.
    ///
    /// # Errors
    /// The model's own.
    pub(super) fn read(&mut self, writer: &Writer<'a, B>, prefixes: &mut Prefixes<B>) -> Result<Vec<Self>, Refusal> {
        let end = self.read + self.segment();
        if end > self.read {
            self.session.feed(writer.model, &self.prompt[self.read..end])?;
            self.read = end;
            prefixes.keep(self.marks.as_deref().unwrap_or_default(), end, &self.session)?;
        }
        if end < self.prompt.len() {
            return Ok(Vec::new());
        }
        self.decoder.skip(&self.prompt)?;
        let continuations = std::mem::take(&mut self.continuations).into_iter();
        let mut all: VecDeque<Self> = continuations.map(|(index, sampler)| self.continuation(index, sampler)).collect();
        if let Some(first) = all.pop_front() {
            *self = Self { cached: self.cached, ..first };
        }
        Ok(all.into())
    }

    /// A continuation of what was read.
    ///
    /// All continuations of a prompt share what the model knows of it, until each goes on.
    fn continuation(&self, index: usize, mut sampler: Sampler) -> Self {
        let (request, mut session) = (Rc::clone(&self.request), self.session.fork());
        // The prompt is as much before one continuation as before another, whoever read it.
        sampler.read(&self.prompt);
        session.set_sampler(sampler);
        let writes = (self.decoder.clone(), self.stops.clone(), self.likelihoods.clone());
        Self { bound: self.bound.clone(), ..Self::begun(request, session, (index, self.most), writes) }
    }

    /// Has the next token be one that its schema allows.
    pub(super) fn bind(&mut self) {
        if let Some(allowed) = self.bound.as_ref().and_then(Bound::next) {
            self.session.allow(allowed.to_vec());
        }
    }

    /// Takes the token that was drawn, and tells what can be shown; why the text ends, if it does.
    ///
    /// # Errors
    /// 400 where its schema cannot be kept to any longer; the model's own, for a token outside the vocabulary.
    pub(super) fn push(&mut self, token: u32, writer: &Writer<'a, B>) -> Result<Option<Reason>, Refusal> {
        self.written += 1;
        let mut ends = writer.ends.contains(&token);
        if !ends {
            self.likelihoods.draw(&self.session)?;
            let text = self.decoder.push(token)?;
            self.show(&text);
            if let Some(bound) = &mut self.bound {
                bound.take(token)?;
                ends = bound.next().is_none();
            }
        }
        if self.stops.met() {
            return Ok(Some(Reason::Stop));
        }
        if !ends && self.written < self.most {
            return Ok(None);
        }
        // What was held back has become no stop text, unless the last character is one.
        let rest = self.decoder.finish()?;
        self.show(&rest);
        let met = self.stops.met();
        let held = self.stops.finish();
        self.tell(held);
        // Tokens without a text of their own are the end of the text as well.
        let rest = if met { Vec::new() } else { self.likelihoods.rest() };
        if !rest.is_empty() {
            self.request.tell(Event::Text { index: self.index, text: String::new(), tokens: rest });
        }
        Ok(Some(if ends || met { Reason::Stop } else { Reason::Length }))
    }

    /// Tells what of this the stop texts let through.
    fn show(&mut self, text: &str) {
        self.likelihoods.write(text);
        let shown = self.stops.push(text.as_bytes());
        self.tell(shown);
    }

    /// Tells these bytes, if any.
    fn tell(&mut self, bytes: Vec<u8>) {
        if !bytes.is_empty() {
            // Stops part no character in two.
            let text = String::from_utf8_lossy(&bytes).into_owned();
            let tokens = self.likelihoods.show(&text);
            self.request.tell(Event::Text { index: self.index, text, tokens });
        }
    }

    /// Is done; a named session goes on from here.
    pub(super) fn end(self, reason: Reason, sessions: &mut Sessions<'a, B>) {
        // First, so that whoever has the answer finds the session after it.
        if let Some(name) = &self.request.session {
            sessions.end(name, self.session);
        }
        self.request.tell(Event::Ended { index: self.index, reason, tokens: self.written, cached: self.cached });
    }
}
