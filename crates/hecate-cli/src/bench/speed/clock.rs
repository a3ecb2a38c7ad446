//! Times of calls.

use hecate_core::{Backend, Device, Host, Result, Shape, Tensor, primitives};
use std::time::Instant;

/// Calls are queued in spans, which are then waited for; the best span counts.
const SPANS: usize = 8;

/// Seconds that each product is measured for.
const PEAK_SECONDS: f64 = 0.5;

/// Measures on a device.
pub(super) struct Clock<'a, D: Device> {
    device: &'a D,
    /// For about this long.
    seconds: f64,
}

impl<'a, D: Device> Clock<'a, D> {
    pub(super) fn new(device: &'a D, seconds: f64) -> Self {
        Self { device, seconds }
    }

    pub(super) fn device(&self) -> &'a D {
        self.device
    }

    /// Seconds a call takes, once the device is awake: what else the machine does only adds.
    pub(super) fn time(&self, call: &mut dyn FnMut() -> Result<()>) -> Result<f64> {
        let mut span = |calls: usize| -> Result<f64> {
            let start = Instant::now();
            (0..calls).try_for_each(|_| call())?;
            self.device.synchronize()?;
            Ok(start.elapsed().as_secs_f64() / calls as f64)
        };
        let start = Instant::now();
        let mut best = span(1)?;
        while start.elapsed().as_secs_f64() < self.seconds / 3.0 {
            best = span(1)?.min(best);
        }
        let calls = (self.seconds * 2.0 / 3.0 / SPANS as f64 / best).clamp(1.0, 1e5) as usize;
        for _ in 0..SPANS {
            best = span(calls)?.min(best);
        }
        Ok(best)
    }
}

impl<B: Backend> Clock<'_, B> {
    /// Operations a second of the fastest product of two `[n,n]` matrices of 32 bits: sizes are doubled until that brings
    /// nothing.
    pub(super) fn peak(&self) -> Result<f64> {
        let own = Self { seconds: PEAK_SECONDS, ..*self };
        let (mut peak, mut n) = (0.0f64, 256usize);
        loop {
            let matrix = |value: f32| {
                let host = Host::F32(vec![value; n * n]);
                Tensor::upload(self.device, Shape::from([n, n]), host)
            };
            let (a, b) = (matrix(0.5)?, matrix(-0.25)?);
            let product = || primitives::matmul(&a, &b, primitives::Transpose::default()).map(drop);
            let rate = 2.0 * (n as f64).powi(3) / own.time(&mut { product })?;
            let enough = rate < 1.1 * peak || n >= 8192;
            peak = peak.max(rate);
            if enough {
                return Ok(peak);
            }
            n *= 2;
        }
    }
}
