//! What the texts of one request have in common.

use super::{Writer, sessions::Sessions, text::Text};
use crate::{
    name::Name,
    order::{Event, Writing},
    refusal::Refusal,
};
use hecate_core::Backend;
use hecate_models::generate::Session;
use std::{
    rc::Rc,
    time::{Duration, Instant},
};
use tokio::sync::{OwnedSemaphorePermit, mpsc::UnboundedSender};

/// Whoever asked, and what is held for them.
/// It is dropped with the last of its texts, and so are the places that it had.
#[derive(Debug)]
pub(crate) struct Request {
    events: UnboundedSender<Event>,
    pub(super) session: Option<Name>,
    arrived: Instant,
    /// Given back once the last text is done.
    _places: OwnedSemaphorePermit,
}

impl Request {
    /// How long ago it came.
    pub(super) fn age(&self) -> Duration {
        self.arrived.elapsed()
    }

    /// Whether nobody reads it any more.
    pub(super) fn is_left(&self) -> bool {
        self.events.is_closed()
    }

    /// Tells what became of a text.
    pub(super) fn tell(&self, event: Event) {
        // A reader who left is found by the next round.
        let _ = self.events.send(event);
    }

    /// Ends it without an answer. Its session stays as it was before.
    pub(super) fn fail<B: Backend>(&self, sessions: &mut Sessions<'_, B>, why: Option<Refusal>) {
        if let Some(name) = &self.session {
            sessions.release(name);
        }
        if let Some(why) = why {
            self.tell(Event::Failed(why));
        }
    }
}

/// Refuses what has not begun; it is not kept.
pub(super) fn refuse(writing: &Writing, why: Refusal) -> bool {
    let _ = writing.events.send(Event::Failed(why));
    false
}

/// A text for every prompt, each with a copy of `session`. Continuations of a prompt begin when it is read.
///
/// All of them share the request, and so its places. Each is kept to the schema by itself.
pub(super) fn texts<'a, B: Backend>(writing: Writing, writer: &Writer<'a, B>, session: Session<B>) -> Vec<Text<'a, B>> {
    let Writing { prompts, samplers, stops, bound, tokens, likeliest, session: name, events, places, arrived } =
        writing;
    let request = Rc::new(Request { events, session: name, arrived, _places: places });
    let texts = prompts.into_iter().enumerate().map(|(i, prompt)| {
        let continuations = (i * samplers.len()..).zip(samplers.iter().cloned()).collect();
        Text::new(
            Rc::clone(&request),
            session.fork(),
            prompt,
            continuations,
            (&stops, tokens, likeliest),
            bound.clone(),
            writer,
        )
    });
    texts.collect()
}
