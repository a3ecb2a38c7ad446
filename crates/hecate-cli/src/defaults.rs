//! What `hecate train` does unless told otherwise: sizes and rates for two cores and three minutes.

use hecate::train::{RunPlan, Settings, schedule::Schedule};

/// Rule of the memories.
pub(crate) const RULE: &str = "delta";
/// Number of blocks.
pub(crate) const LAYERS: usize = 2;
/// Width of the residual stream.
pub(crate) const WIDTH: usize = 128;
/// Memories a layer.
pub(crate) const HEADS: usize = 4;
/// Sequences a pass.
pub(crate) const BATCH: usize = Settings::BATCH;
/// Tokens a sequence.
pub(crate) const TOKENS: usize = Settings::TOKENS;
/// Steps of a run.
pub(crate) const STEPS: u64 = 400;
/// Highest learning rate.
pub(crate) const LEARNING_RATE: f32 = Schedule::PEAK;
/// Lowest learning rate over the highest.
pub(crate) const LEARNING_RATE_FLOOR: f32 = Schedule::FLOOR;
/// Share of the steps in which the learning rate warms up.
pub(crate) const WARMUP: f64 = Schedule::WARMUP;
/// Weight decay of matrices.
pub(crate) const WEIGHT_DECAY: f32 = 0.1;
/// Norm above which gradients are clipped.
pub(crate) const CLIP: f32 = 1.0;
/// Share of the text that is held out.
pub(crate) const HELD_OUT: f32 = RunPlan::HELD_OUT;
/// Measurements on held-out text, and checkpoints, a run.
pub(crate) const MEASUREMENTS: u64 = RunPlan::MEASUREMENTS;
/// Tokens of held-out text that measurements during the run read; those at its end read what they have time for.
pub(crate) const MEASURED_TOKENS: usize = 8192;
/// Tokens of the sample at the end of a run.
pub(crate) const SAMPLE_TOKENS: usize = 300;
/// Prompt of the sample where Hecate's own sources were learned.
pub(crate) const SAMPLE_PROMPT: &str = "pub fn ";
/// Where runs are, each in a folder of its own.
pub(crate) const RUNS: &str = "runs";
/// Name of the run that learns Hecate's own sources.
pub(crate) const RUN: &str = "default";
