//! A text that is read and written.

use super::{Writer, likelihoods::Likelihoods, request::Request, sessions::Sessions};
use crate::order::{Event, Reason};
use hecate_core::Backend;
use hecate_models::{
    Decoder, Result,
    generate::{SEGMENT, Session, Stops},
    sampling::Sampler,
};
use std::{collections::VecDeque, rc::Rc};

/// A continuation of a prompt, and those that begin with it.
#[derive(Debug)]
///
/// It begins with a prompt to be read. Then it gets a token a round, until an end token, a stop text, or as many tokens as
/// were asked for.
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
    /// Tokens of the prompt that are read.
    read: usize,
    /// Other continuations of the prompt, while it is being read.
    others: VecDeque<(usize, Sampler)>,
    decoder: Decoder<'a>,
    stops: Stops,
    likelihoods: Likelihoods,
}

impl<'a, B: Backend> Text<'a, B> {
    /// Before its prompt is read. `continuations` has a number and a sampler for each, and at least one.
    pub(super) fn new(
        request: Rc<Request>,
        mut session: Session<B>,
        prompt: Vec<u32>,
        mut continuations: VecDeque<(usize, Sampler)>,
        (stops, most, likeliest): (&[String], usize, Option<usize>),
        writer: &Writer<'a, B>,
    ) -> Self {
        let mut index = 0;
        if let Some((first, sampler)) = continuations.pop_front() {
            index = first;
            session.set_sampler(sampler);
        }
        let (decoder, stops, others) = (writer.vocabulary.decoder(), Stops::new(stops.to_vec()), continuations);
        let likelihoods = Likelihoods::new(likeliest);
        Self { request, session, written: 0, most, index, prompt, read: 0, others, decoder, stops, likelihoods }
    }

    /// Places that it takes among those that run.
    pub(super) fn places(&self) -> usize {
        1 + self.others.len()
    }

    /// Whether its prompt is.
    pub(super) fn is_read(&self) -> bool {
        self.read == self.prompt.len()
    }

    /// Tokens of the prompt that are read next.
    pub(super) fn segment(&self) -> usize {
        (self.prompt.len() - self.read).min(SEGMENT)
    }

    /// Reads the next segment of the prompt. After the last one other continuations begin, which are returned.
    ///
    /// # Errors
    /// The model's own.
    pub(super) fn read(&mut self, writer: &Writer<'a, B>) -> Result<Vec<Self>> {
        let end = self.read + self.segment();
        self.session.feed(writer.model, &self.prompt[self.read..end])?;
        self.read = end;
        if !self.is_read() {
            return Ok(Vec::new());
        }
        self.decoder.skip(&self.prompt)?;
        let others = std::mem::take(&mut self.others);
        Ok(others.into_iter().map(|(index, sampler)| self.other(index, sampler)).collect())
    }

    /// Another continuation of what was read.
    fn other(&self, index: usize, mut sampler: Sampler) -> Self {
        let (request, mut session) = (Rc::clone(&self.request), self.session.fork());
        // The prompt is as much before this continuation as before the one that read it.
        sampler.read(&self.prompt);
        session.set_sampler(sampler);
        let (prompt, others, decoder, stops) = (Vec::new(), VecDeque::new(), self.decoder.clone(), self.stops.clone());
        let (most, likelihoods) = (self.most, self.likelihoods.clone());
        Self { request, session, written: 0, most, index, prompt, read: 0, others, decoder, stops, likelihoods }
    }

    /// Takes the token that was drawn, and tells what can be shown; why the text ends, if it does.
    ///
    /// # Errors
    /// [`hecate_models::Error::Config`] for a token outside the vocabulary.
    pub(super) fn push(&mut self, token: u32, writer: &Writer<'a, B>) -> Result<Option<Reason>> {
        self.written += 1;
        let ends = writer.ends.contains(&token);
        if !ends {
            self.likelihoods.draw(&self.session);
            let text = self.decoder.push(token)?;
            self.show(&text);
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
        self.request.tell(Event::Ended { index: self.index, reason, tokens: self.written });
    }
}
