//! What connections and the thread with the model say to each other. Nothing here knows which device that is.

use crate::{name::Name, refusal::Refusal, schema::Bound};
use hecate_models::sampling::{Likelihood, Sampler};
use serde_json::Value;
use std::time::Instant;
use tokio::sync::{OwnedSemaphorePermit, mpsc::UnboundedSender, oneshot};

/// What the thread with the model is asked for.
///
/// Orders come by a bounded channel: a server that cannot keep up refuses requests and does not collect them.
#[derive(Debug)]
pub(crate) enum Order {
    /// Continue prompts.
    Write(Writing),
    /// Do something with sessions. The answer is their description.
    Sessions(Deed, oneshot::Sender<Result<Value, Refusal>>),
}

/// Prompts to be continued, and how.
#[derive(Debug)]
pub(crate) struct Writing {
    /// Tokens of each, none of them empty.
    pub(crate) prompts: Vec<Vec<u32>>,
    /// One for each continuation of a prompt, as many for every prompt.
    pub(crate) samplers: Vec<Sampler>,
    /// Texts at which a continuation ends, none of them empty.
    pub(crate) stops: Vec<String>,
    /// What keeps each continuation to a schema, before its first token.
    pub(crate) bound: Option<Bound>,
    /// Most tokens of each continuation.
    pub(crate) tokens: usize,
    /// How many of the likeliest tokens are told beside each that is drawn; none where no likelihood is.
    pub(crate) likeliest: Option<usize>,
    /// The session that goes on: of one prompt and one continuation.
    pub(crate) session: Option<Name>,
    /// Where continuations go. Its receiver leaves to cancel; it gets no more than two events a token.
    pub(crate) events: UnboundedSender<Event>,
    /// A place for every text, until the last of them is done.
    pub(crate) places: OwnedSemaphorePermit,
    /// When the request came.
    pub(crate) arrived: Instant,
}

impl Writing {
    /// Continuations of all prompts.
    pub(crate) fn texts(&self) -> usize {
        self.prompts.len() * self.samplers.len()
    }
}

/// A token of a continuation.
///
/// Tokens are told in their order, beside the text that they begin with.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Told {
    /// Characters of the continuation before it.
    pub(crate) at: usize,
    pub(crate) likelihood: Likelihood,
}

/// What became of a text; `index` counts continuations, those of the first prompt first.
///
/// Texts of one request come in any order among each other; each has its parts in their order, then its end.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Event {
    /// It goes on with this, which may be empty, and with these tokens, where they were asked for.
    Text { index: usize, text: String, tokens: Vec<Told> },
    /// It is done, with so many tokens, and with so many of its prompt that were not read again for it: 0 for all but the first
    /// continuation of a prompt.
    Ended { index: usize, reason: Reason, tokens: usize, cached: usize },
    /// Nothing more comes, of any of the texts.
    Failed(Refusal),
}

/// Why a text ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The model wrote an end token or one of the stop texts.
    Stop,
    /// It has as many tokens as were asked for.
    Length,
}

impl Reason {
    /// As OpenAI's clients know it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
        }
    }
}

/// What can be done with sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Deed {
    /// Describe all of them.
    List,
    /// Describe one.
    Show(Name),
    /// Make one that has read nothing.
    Create(Name),
    /// Make one that goes on from where another stands.
    Fork { from: Name, to: Name },
    /// Write one to the disk.
    Save(Name),
    /// Forget one, and remove its file.
    Delete(Name),
}
