//! What requests may take of a machine.

use std::time::Duration;

/// Bounds of a server. What goes beyond one is refused with the bound in the message.
///
/// Defaults suit a small model on one machine: a session of it takes megabytes, and a text's tokens take milliseconds each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Texts that are read and written at once.
    pub texts: usize,
    /// Texts that may wait for a place among them; a request beyond is answered 429.
    pub waiting: usize,
    /// Bytes of a request's body.
    pub body: usize,
    /// Tokens of all prompts of a request together.
    pub prompt: usize,
    /// Tokens that are written for a text.
    pub tokens: usize,
    /// Sessions in memory; more go to the disk, those first that were not used for longest.
    pub sessions: usize,
    /// Sessions in memory and on the disk together.
    pub stored: usize,
    /// Tokens from a kept state to the next in a long prompt; rounded up to a multiple of a segment
    /// ([`SEGMENT`](hecate_models::generate::SEGMENT)).
    pub prefix_every: usize,
    /// Bytes of states that are kept of prompts, so that others with the same beginning need not read it; 0 keeps none. Those go
    /// first that were not used for longest.
    pub prefix_bytes: usize,
    /// Connections at once; more wait to be accepted.
    pub connections: usize,
    /// How long a request may take to arrive, and then to wait for a place.
    pub patience: Duration,
    /// How long a request may take altogether.
    pub longest: Duration,
    /// How long texts may go on once the server was asked to stop.
    pub grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            texts: 64,
            waiting: 256,
            body: 4 << 20,
            prompt: 1 << 17,
            tokens: 1 << 14,
            sessions: 256,
            stored: 1 << 14,
            prefix_every: 1024,
            prefix_bytes: 512 << 20,
            connections: 1024,
            patience: Duration::from_secs(60),
            longest: Duration::from_secs(600),
            grace: Duration::from_secs(5),
        }
    }
}
