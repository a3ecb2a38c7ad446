//! The passes of a step as one graph of the device, replayed with other tokens.
//!
//! A small model's step is queued longer than it is computed. Forward, backward and the norm are the same work in every
//! step, so a device that can do so captures them. The update stays a call: the host sees before it whether all is finite,
//! and hands it the learning rate and the count of steps.

use super::{
    Trainer,
    batch_source::TokenWindow,
    measure::{Measured, StepResults},
    scales::Scales,
};
use crate::{Dropout, Error, Result, language_model::into_core, text::TokenSource};
use hecate_core::{Backend, Capture, Host, Replay, Tensor, capture_work};
use std::time::{Duration, Instant};

/// Steps that take longer are not captured: queueing them takes no time beside computing, and a graph cannot be stopped.
const LONG: Duration = Duration::from_millis(250);

/// Long steps after which no shorter one is waited for.
const PATIENCE: u32 = 16;

/// What is known of the graph of a step.
#[derive(Debug)]
pub(super) enum StepGraph<B: Backend> {
    /// So many steps went call by call; the first made what all need.
    Waiting { steps: u32 },
    /// The graph, and the arrays that a replay leaves its results in.
    Captured { replay: Box<dyn Replay<B>>, results: StepResults<B> },
    /// Steps go call by call.
    Off,
}

impl<B: Backend> StepGraph<B> {
    /// Nothing was tried.
    pub(super) fn new() -> Self {
        Self::Waiting { steps: 0 }
    }
}

impl<B: Backend> Trainer<B> {
    /// Loss and gradients of the next windows of `text`, through the graph where there is one.
    pub(super) fn measure(&mut self, text: TokenSource<'_>) -> Result<Measured<B>> {
        if let StepGraph::Captured { .. } = self.graph
            && let Some(measured) = self.replay(text)?
        {
            return Ok(measured);
        }
        let began = Instant::now();
        let measured = self.measure_call_by_call(text)?;
        self.capture_after(began.elapsed())?;
        Ok(measured)
    }

    /// Steps go call by call from here on, which is told.
    fn give_up_graph(&mut self, why: &str) {
        self.graph = StepGraph::Off;
        tracing::info!(why, "steps go call by call");
        self.tell(format!("steps go call by call, not as one graph: {why}"));
    }

    /// Replays the graph on the next windows. None, and nothing happened, where it does not fit the model any more.
    fn replay(&mut self, text: TokenSource<'_>) -> Result<Option<Measured<B>>> {
        self.model.check_interrupt()?;
        let before = self.source.clone();
        let mut inputs = Vec::new();
        for _ in 0..self.settings.accumulate {
            let (TokenWindow { inputs: tokens, targets }, _) = self.source.next(&self.model, text, &self.settings)?;
            self.model.check_tokens(&tokens, &targets, self.settings.batch)?;
            inputs.extend([Host::U32(tokens), Host::U32(targets)]);
        }
        inputs.extend(self.scales.as_ref().and_then(Scales::values).map(Host::F32));
        let StepGraph::Captured { replay, results } = &mut self.graph else { return Ok(None) };
        let read: Vec<_> = self.model.parameters().iter().map(|parameter| &parameter.value).collect();
        if replay.replay(inputs, &read)? {
            return results.read().map(Some);
        }
        // Somebody holds parameters that were updated: the new ones lie elsewhere.
        self.source = before;
        self.graph = StepGraph::new();
        Ok(None)
    }

    /// Captures the passes after a step that went call by call and took so long, from the second step on.
    fn capture_after(&mut self, took: Duration) -> Result<()> {
        let StepGraph::Waiting { steps } = &mut self.graph else { return Ok(()) };
        *steps += 1;
        if !self.model.device().captures_work() {
            self.graph = StepGraph::Off;
            return Ok(());
        }
        if let Some(why) = self.hinders() {
            self.give_up_graph(why);
            return Ok(());
        }
        match self.graph {
            StepGraph::Waiting { steps: ..2 } => return Ok(()),
            // A graph reads the scales of 8-bit factors, which come of the maxima of a step before it.
            _ if self.scales.as_ref().is_some_and(|scales| scales.values().is_none()) => return Ok(()),
            // Another program may have been in the way.
            StepGraph::Waiting { steps: ..PATIENCE } if took > LONG => return Ok(()),
            StepGraph::Waiting { .. } if took > LONG => {
                self.give_up_graph("one takes over a quarter of a second, where a graph gains nothing");
                return Ok(());
            }
            _ => {}
        }
        match self.capture()? {
            Ok(graph) => self.graph = graph,
            Err(why) => self.give_up_graph(&why),
        }
        Ok(())
    }

    /// What of the settings makes one step other work than the next.
    fn hinders(&self) -> Option<&'static str> {
        if self.settings.carries() {
            return Some("memories are carried from window to window");
        }
        (self.model.config().dropout() != Dropout::default()).then_some("every step drops by masks of its own")
    }

    /// The graph, or why there is none.
    fn capture(&mut self) -> Result<std::result::Result<StepGraph<B>, String>> {
        let (batch, tokens, accumulate) = (self.settings.batch, self.settings.tokens, self.settings.accumulate);
        let device = self.model.device().clone();
        let zeros = || Tensor::from_u32(&device, [batch, tokens], vec![0; batch * tokens]);
        let mut inputs = (0..2 * accumulate).map(|_| zeros()).collect::<hecate_core::Result<Vec<_>>>()?;
        // Scales of 8-bit factors are other ones in every replay.
        inputs.extend(self.fp8_scales()?);
        let mut results = None;
        let captured = self.model.uninterrupted(|model| {
            let read: Vec<_> = model.parameters().iter().map(|parameter| &parameter.value).collect();
            let mut work = |inputs: &[Tensor<B>]| {
                let (tokens, scales) = inputs.split_at(2 * accumulate);
                let passes = tokens.chunks(2).map(|pair| model.pass_of((&pair[0], &pair[1]), scales.first()));
                results = Some(StepResults::of(&device, passes).map_err(into_core)?);
                Ok(())
            };
            capture_work(&device, &inputs, &read, &mut work)
        });
        Ok(match (captured.map_err(Error::from)?, results) {
            (Capture::Graph(replay), Some(results)) => Ok(StepGraph::Captured { replay, results }),
            (Capture::Refused { why }, _) => Err(why),
            (Capture::Graph(_), None) => Err("the device did not run it".to_owned()),
        })
    }
}
