//! A step as one graph of the device, replayed with other tokens.
//!
//! A small model's step is queued longer than it is computed. Forward, backward, the norm and the update are the same work in
//! every step, so a device that can do so captures them. Learning rate and count of steps are an input, as tokens are. The
//! device moves nothing where the loss or the norm is not finite: the host sees that afterwards, and weights are as they were.

use super::{
    Material, Trainer,
    batch_source::TokenWindow,
    measure::{Measured, StepArrays, StepResults},
    scales::Scales,
};
use hecate_core::{Backend, Capture, DType, Host, Replay, Tensor, capture_work, primitives::DeviceStep};
use hecate_models::{Dropout, Error, Result, text::TokenSource};
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
    /// A graph makes the step `at` this count and learning rate too.
    pub(super) fn measure(&mut self, text: Material<'_>, at: (u32, f32)) -> Result<Measured<B>> {
        let Material::Text(windows) = text else {
            // Passes over examples have other lengths every time.
            return self.measure_call_by_call(text);
        };
        if let StepGraph::Captured { .. } = self.graph
            && let Some(measured) = self.replay(windows, at)?
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
    fn replay(&mut self, text: TokenSource<'_>, at: (u32, f32)) -> Result<Option<Measured<B>>> {
        self.model.check_interrupt()?;
        let rates = self.settings.optimizer.rule(at)?.rates();
        // What somebody holds is not written over.
        if self.is_held() {
            self.graph = StepGraph::new();
            return Ok(None);
        }
        let before = self.source.clone();
        let mut inputs = Vec::new();
        for _ in 0..self.settings.accumulate {
            let (TokenWindow { inputs: tokens, targets }, _) = self.source.next(&self.model, text, &self.settings)?;
            self.model.check_tokens(&tokens, &targets, self.settings.batch)?;
            inputs.extend([Host::U32(tokens), Host::U32(targets)]);
        }
        inputs.extend(self.scales.as_ref().and_then(Scales::values).map(Host::F32));
        inputs.push(Host::F32(rates.to_vec()));
        let StepGraph::Captured { replay, results } = &mut self.graph else { return Ok(None) };
        if replay.replay(inputs, &self.moments.arrays(self.model.parameters()))? {
            return results.read(true).map(Some);
        }
        // Somebody holds parameters that were updated: the new ones lie elsewhere.
        self.source = before;
        self.graph = StepGraph::new();
        Ok(None)
    }

    /// Whether somebody else holds a weight or a moment.
    fn is_held(&self) -> bool {
        self.moments.arrays(self.model.parameters()).iter().any(|x| x.is_shared())
    }

    /// Captures a step after a step that went call by call and took so long, from the second step on.
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
            // A call's update gives the trainer arrays of its own, after which there is nobody else.
            _ if self.is_held() => return Ok(()),
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
        (self.model.dropout() != Dropout::default()).then_some("every step drops by masks of its own")
    }

    /// The graph, or why there is none.
    fn capture(&mut self) -> Result<std::result::Result<StepGraph<B>, String>> {
        let (batch, tokens, accumulate) = (self.settings.batch, self.settings.tokens, self.settings.accumulate);
        let device = self.model.device().clone();
        let zeros = || Tensor::from_u32(&device, [batch, tokens], vec![0; batch * tokens]);
        let mut inputs = (0..2 * accumulate).map(|_| zeros()).collect::<hecate_core::Result<Vec<_>>>()?;
        // Scales of 8-bit factors, and the rates, are other ones in every replay.
        inputs.extend(self.fp8_scales()?);
        inputs.push(Tensor::zeros(&device, [3], DType::F32)?);
        let (mut results, moments, constants) = (None, &mut self.moments, &self.settings.optimizer);
        let mut captured = self.model.uninterrupted(|model| {
            let mut work = |inputs: &[Tensor<B>]| {
                let (tokens, others) = inputs.split_at(2 * accumulate);
                let (rates, scales) = (&others[others.len() - 1], others[..others.len() - 1].first());
                let passes = tokens.chunks(2).map(|pair| model.pass_of((&pair[0], &pair[1]), scales));
                let made = StepResults::of(&device, passes)?;
                let StepArrays { gradients, norm_squared, finite } = made.arrays();
                // What a pass still held would be written elsewhere, where the next replay does not look.
                if moments.arrays(model.parameters()).iter().any(|x| x.is_shared()) {
                    let why = "a pass holds weights after its end".to_owned();
                    return Err(hecate_core::Error::Unsupported { backend: B::NAME, what: "a step as a graph", why });
                }
                let given = DeviceStep { rates, finite };
                let parameters = model.parameters_mut();
                moments.update_placed(parameters, gradients, norm_squared, constants, &given)?;
                results = Some(made);
                Ok(())
            };
            capture_work(&device, &inputs, &mut work)
        });
        if let Ok(Capture::Graph(replay)) = &mut captured {
            replay.note(&self.moments.arrays(self.model.parameters()));
        }
        Ok(match (captured.map_err(Error::from)?, results) {
            (Capture::Graph(replay), Some(results)) => Ok(StepGraph::Captured { replay, results }),
            (Capture::Refused { why }, _) => Err(why),
            (Capture::Graph(_), None) => Err("the device did not run it".to_owned()),
        })
    }
}
