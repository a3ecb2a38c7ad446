//! Times of calls, as the device takes them: queued work is waited for.
//!
//! The least of several times is taken and not their mean: other work of the machine can slow a call, never speed it
//! up.

use hecate::{Backend, Device, Host, Result, Shape, Tensor, primitives};
use std::time::Instant;

/// Calls are queued in rounds, each of which is waited for; the fastest round counts.
///
/// Several calls a round hide what waiting itself costs; several rounds give one that nothing disturbed.
const ROUNDS: usize = 8;

/// Seconds that each product is measured for.
const PEAK_SECONDS: f64 = 0.5;

/// Measures calls on a device.
pub(super) struct Clock<'a, D: Device> {
    device: &'a D,
    /// For about this long.
    seconds: f64,
}

impl<'a, D: Device> Clock<'a, D> {
    /// A clock that measures each call for about so many seconds.
    pub(super) fn new(device: &'a D, seconds: f64) -> Self {
        Self { device, seconds }
    }

    /// The device that it waits for.
    pub(super) fn device(&self) -> &'a D {
        self.device
    }

    /// Seconds a call takes, once the device is awake: what else the machine does only adds.
    pub(super) fn time(&self, call: &mut dyn FnMut() -> Result<()>) -> Result<f64> {
        // Mean of a round, with one wait at its end.
        let mut round = |calls: usize| -> Result<f64> {
            let start = Instant::now();
            (0..calls).try_for_each(|_| call())?;
            self.device.synchronize()?;
            Ok(start.elapsed().as_secs_f64() / calls as f64)
        };
        let start = Instant::now();
        // Rounds of one call wake the device and tell how many make a long round.
        let mut best = round(1)?;
        // A third of the time, at least one call: the first one may compile kernels.
        while start.elapsed().as_secs_f64() < self.seconds / 3.0 {
            best = round(1)?.min(best);
        }
        // The other two thirds over all rounds, and never without a call.
        let calls = (self.seconds * 2.0 / 3.0 / ROUNDS as f64 / best).clamp(1.0, 1e5) as usize;
        for _ in 0..ROUNDS {
            best = round(calls)?.min(best);
        }
        Ok(best)
    }
}

impl<B: Backend> Clock<'_, B> {
    /// Operations a second of the fastest product of two `[n,n]` matrices of 32 bits: sizes are doubled until that brings
    /// nothing.
    pub(super) fn peak(&self) -> Result<f64> {
        // Products are measured for a time of their own, however short the figures' is.
        let own = Self { seconds: PEAK_SECONDS, ..*self };
        let (mut peak, mut n) = (0.0f64, 256usize);
        loop {
            // Values do not matter to the time, as long as they are ordinary numbers.
            let matrix = |value: f32| {
                let host = Host::F32(vec![value; n * n]);
                Tensor::upload(self.device, Shape::from([n, n]), host)
            };
            let (a, b) = (matrix(0.5)?, matrix(-0.25)?);
            let product = || primitives::matmul(&a, &b, primitives::Transpose::default()).map(drop);
            // A multiplication and an addition for each of `n³` pairs.
            let rate = 2.0 * (n as f64).powi(3) / own.time(&mut { product })?;
            // 8192² numbers are 256 MiB a matrix: three of them fit most GPUs.
            let enough = rate < 1.1 * peak || n >= 8192;
            peak = peak.max(rate);
            if enough {
                return Ok(peak);
            }
            n *= 2;
        }
    }
}
