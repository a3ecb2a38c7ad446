//! Where a run stands, without its weights.

use super::{
    RunPlan, Settings,
    files::{TRAINING, Training},
};
use crate::checkpoint::{Run, read_member};
use hecate_models::Result;

/// What the newest checkpoint of a run says of its training.
#[derive(Clone, Debug)]
pub struct Standing {
    /// Steps done.
    pub step: u64,
    /// Lowest loss on held-out text so far, nats a token.
    pub best: Option<f64>,
    /// How it learns.
    pub settings: Settings,
    /// Where its text comes from.
    pub plan: RunPlan,
}

impl Standing {
    /// Of the run in this folder; none if it has no checkpoint.
    ///
    /// # Errors
    /// [`Error::Checkpoint`](hecate_models::Error::Checkpoint) if the checkpoint cannot be understood,
    /// [`Error::Io`](hecate_models::Error::Io) if it cannot be read.
    pub fn read(run: &Run) -> Result<Option<Self>> {
        let Some(newest) = run.latest()? else { return Ok(None) };
        let folder = run.checkpoint(newest);
        let (path, content) = (folder.join(TRAINING), read_member(&folder, TRAINING)?);
        let Training { step, best, settings, plan, .. } = Training::parse(&path, &content, newest)?;
        Ok(Some(Self { step, best, settings, plan }))
    }
}
