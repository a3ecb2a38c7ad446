//! The thread that owns the model: reads prompts and writes texts, all that run a token at a time.
//!
//! Each round takes what was ordered, lets waiting texts begin, reads a segment of a prompt, and draws a token of every text whose
//! prompt is read. So a long prompt holds the others up by a segment a token, and texts join and leave between two tokens.
//! Prompts are cut into segments by their own length alone: what a text gets does not depend on which others run.

mod likelihoods;
mod prefixes;
mod request;
mod sessions;
mod text;

use crate::{
    Limits,
    error::Result,
    metrics::Metrics,
    order::{Deed, Order, Writing},
    refusal::Refusal,
};
use hecate_core::Backend;
use hecate_models::{
    Interrupt, LanguageModel, Vocabulary,
    generate::{SEGMENT, Session, next_of_all},
};
use prefixes::Prefixes;
use serde_json::Value;
use sessions::{Sessions, unused};
use std::{
    collections::VecDeque,
    path::PathBuf,
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError},
    },
    time::{Duration, Instant},
};
use text::Text;

/// How long an idle thread waits for orders before it looks whether the server is to stop.
const TICK: Duration = Duration::from_millis(50);

/// What texts are written with.
#[derive(Debug)]
pub(crate) struct Writer<'a, B: Backend> {
    /// What draws, and what its tokens mean.
    pub(crate) model: &'a LanguageModel<B>,
    pub(crate) vocabulary: &'a Vocabulary,
    /// Tokens that end a text.
    pub(crate) ends: &'a [u32],
}

/// The model's thread, between two rounds.
///
/// It is on one thread, and so is all that it calls: nothing in here is locked, and a device sees one caller.
#[derive(Debug)]
pub(crate) struct Engine<'a, B: Backend> {
    writer: Writer<'a, B>,
    limits: Limits,
    metrics: Arc<Metrics>,
    stop: Interrupt,
    /// When the server was first seen to stop.
    stopping: Option<Instant>,
    orders: Receiver<Order>,
    /// In the order of their arrival.
    waiting: VecDeque<Writing>,
    /// Read or written now, in the order in which they began.
    texts: Vec<Text<'a, B>>,
    sessions: Sessions<'a, B>,
    prefixes: Prefixes<B>,
}

impl<'a, B: Backend> Engine<'a, B> {
    /// Before the first order; `folder` has sessions from before.
    ///
    /// # Errors
    /// For a folder that cannot be read.
    pub(crate) fn new(
        writer: Writer<'a, B>,
        (limits, folder): (Limits, Option<PathBuf>),
        metrics: Arc<Metrics>,
        stop: Interrupt,
        orders: Receiver<Order>,
    ) -> Result<Self> {
        let sessions = Sessions::open(writer.model, folder, &limits)?;
        let (stopping, waiting, texts, prefixes) = (None, VecDeque::new(), Vec::new(), Prefixes::new(&limits));
        Ok(Self { writer, limits, metrics, stop, stopping, orders, waiting, texts, sessions, prefixes })
    }

    /// Works until the server is to stop and all texts are done, or nobody is left who could order; then saves all sessions.
    ///
    /// # Errors
    /// For sessions that cannot be saved.
    pub(crate) fn run(mut self) -> Result<()> {
        while self.take_orders() {
            self.begin();
            self.read();
            self.write();
            self.count();
        }
        self.sessions.save_all()
    }

    /// Takes all orders that are there, waiting for one if there is nothing else to do; false once all is done.
    fn take_orders(&mut self) -> bool {
        self.sweep();
        if self.texts.is_empty() && self.waiting.is_empty() {
            if self.stopping.is_some() {
                return false;
            }
            match self.orders.recv_timeout(TICK) {
                Ok(order) => self.take(order),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return false,
            }
        }
        while let Ok(order) = self.orders.try_recv() {
            self.take(order);
        }
        true
    }

    /// Drops what nobody reads any more, and what took too long; all that waits once the server is to stop.
    ///
    /// A text of a session that is dropped leaves the session as it was before. What is dropped gives its places back.
    fn sweep(&mut self) {
        if self.stopping.is_none() && self.stop.asked() {
            self.stopping = Some(Instant::now());
        }
        let Limits { patience, longest, grace, .. } = self.limits;
        let (ending, metrics) = (self.stopping.is_some(), &self.metrics);
        self.waiting.retain(|writing| {
            let refusal = match writing.arrived.elapsed() {
                _ if writing.events.is_closed() => return cancelled(metrics, writing.texts()),
                _ if ending => Refusal::stopping(),
                waited if waited > patience => Refusal::waited(patience.as_secs()),
                _ => return true,
            };
            request::refuse(writing, refusal)
        });
        let over = self.stopping.is_some_and(|since| since.elapsed() > grace);
        let sessions = &mut self.sessions;
        self.texts.retain(|text| {
            let refusal = match text.request.age() {
                _ if text.request.is_left() => {
                    cancelled(metrics, 1);
                    None
                }
                _ if over => Some(Refusal::stopping()),
                age if age > longest => Some(Refusal::endless(longest.as_secs())),
                _ => return true,
            };
            text.request.fail(sessions, refusal);
            false
        });
    }

    /// Puts a text at the end of the queue, or does what can be done at once.
    fn take(&mut self, order: Order) {
        match order {
            Order::Write(writing) => self.waiting.push_back(writing),
            Order::Sessions(deed, answer) => {
                let done = self.deed(deed);
                // Whoever asked may have left.
                let _ = answer.send(done);
            }
        }
    }

    /// Does something with sessions between two tokens.
    fn deed(&mut self, deed: Deed) -> Result<Value, Refusal> {
        match deed {
            Deed::List => Ok(self.sessions.list()),
            Deed::Show(name) => self.sessions.show(&name),
            Deed::Create(name) => self.sessions.create(name),
            Deed::Fork { from, to } => self.sessions.fork(&from, to),
            Deed::Save(name) => self.sessions.save(&name),
            Deed::Delete(name) => self.sessions.delete(&name),
        }
    }

    /// Lets texts begin that waited longest, while there are places for all of a request.
    fn begin(&mut self) {
        while let Some(writing) = self.waiting.front() {
            if self.texts.iter().map(Text::places).sum::<usize>() + writing.texts() > self.limits.texts {
                break;
            }
            let Some(writing) = self.waiting.pop_front() else { break };
            let session = match &writing.session {
                Some(name) => self.sessions.begin(name),
                None => unused().and_then(|sampler| Ok(Session::new(self.writer.model, sampler)?)),
            };
            match session {
                Ok(session) => self.texts.extend(request::texts(writing, &self.writer, session)),
                Err(refusal) => drop(request::refuse(&writing, refusal)),
            }
        }
        // Whoever got a word of a text finds it counted.
        self.metrics.running.set(self.texts.len());
    }

    /// Reads prompts: a segment, or several short ones that are no longer together.
    ///
    /// A text whose reading fails is answered and dropped; all others go on.
    fn read(&mut self) {
        let (mut room, mut at) = (SEGMENT, 0);
        while let Some(text) = self.texts.get_mut(at) {
            if text.is_read() {
                at += 1;
                continue;
            }
            // As late as can be: the prompt before it may have the same beginning.
            if let Some(tokens) = text.resume(&mut self.prefixes) {
                self.metrics.prefix_hits.add(1);
                self.metrics.prefix_tokens.add(tokens);
            }
            if text.segment() > room {
                break;
            }
            room -= text.segment();
            self.metrics.read.add(text.segment());
            match text.read(&self.writer, &mut self.prefixes) {
                // Continuations of the same prompt begin where it was read.
                Ok(others) => drop(self.texts.splice(at + 1..at + 1, others)),
                Err(refusal) => self.texts.remove(at).request.fail(&mut self.sessions, Some(refusal)),
            }
        }
    }

    /// Draws a token of every text whose prompt is read.
    ///
    /// Texts keep their order from round to round, and new ones come last: sessions that go on in the same company copy nothing.
    fn write(&mut self) {
        let began = Instant::now();
        let (reading, mut ready): (Vec<_>, Vec<_>) = self.texts.drain(..).partition(|text| !text.is_read());
        if ready.is_empty() {
            self.texts = reading;
            return;
        }
        ready.iter_mut().for_each(Text::bind);
        // One pass for all of them where the mixers allow rows at different positions.
        let mut sessions: Vec<_> = ready.iter_mut().map(|text| &mut text.session).collect();
        let drawn = next_of_all(self.writer.model, &mut sessions);
        self.metrics.written.add(drawn.len());
        self.metrics.step.add(began.elapsed());
        for (mut text, token) in ready.into_iter().zip(drawn) {
            if text.written == 0 {
                self.metrics.first_token.add(text.request.age());
            }
            match token.map_err(Refusal::from).and_then(|token| text.push(token, &self.writer)) {
                Ok(None) => self.texts.push(text),
                Ok(Some(reason)) => text.end(reason, &mut self.sessions),
                Err(refusal) => text.request.fail(&mut self.sessions, Some(refusal)),
            }
        }
        self.texts.extend(reading);
    }

    /// Tells the numbers of this round.
    fn count(&self) {
        self.metrics.running.set(self.texts.len());
        self.metrics.waiting.set(self.waiting.iter().map(Writing::texts).sum());
        let (in_memory, on_disk) = self.sessions.counts();
        self.metrics.in_memory.set(in_memory);
        self.metrics.on_disk.set(on_disk);
        let (states, bytes) = self.prefixes.counts();
        self.metrics.prefix_states.set(states);
        self.metrics.prefix_bytes.set(bytes);
    }
}

/// Counts texts whose reader left; they are not kept.
fn cancelled(metrics: &Metrics, texts: usize) -> bool {
    metrics.cancelled.add(texts);
    false
}
