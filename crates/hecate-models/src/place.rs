//! Places in models, as errors name them.

use std::fmt;

/// Where in a model something is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Block, from 0; none before the first block and after the last.
    pub layer: Option<usize>,
    /// Head, from 0; none where there are no heads.
    pub head: Option<usize>,
}

impl fmt::Display for Place {
    /// ` in layer 1, head 2 (counted from 0)`; nothing for no place.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.layer, self.head) {
            (Some(layer), Some(head)) => write!(f, " in layer {layer}, head {head} (counted from 0)"),
            (Some(layer), None) => write!(f, " in layer {layer} (counted from 0)"),
            (None, Some(head)) => write!(f, " in head {head} (counted from 0)"),
            (None, None) => Ok(()),
        }
    }
}
