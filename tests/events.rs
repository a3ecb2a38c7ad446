//! What is said through `tracing`, and at which level.

use hecate::{BackendKind, DeviceName, Devices, prelude::*};
use std::{
    io::{self, Write},
    sync::{Arc, Mutex},
};
use tracing_subscriber::fmt::MakeWriter;

/// Lines that a subscriber wrote.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no test panicked").write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Self;

    /// Clones write to the same lines.
    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// Events of this level and above while `work` runs on this thread, a line each.
fn listen(level: tracing::Level, work: impl FnOnce()) -> Vec<String> {
    let lines = Lines::default();
    let subscriber =
        tracing_subscriber::fmt().with_writer(lines.clone()).with_max_level(level).with_ansi(false).finish();
    tracing::subscriber::with_default(subscriber, work);
    let bytes = lines.0.lock().expect("no test panicked");
    String::from_utf8_lossy(&bytes).lines().map(str::to_owned).collect()
}

/// One token of the delta rule, forward and backward.
struct Step;

impl Job for Step {
    type Output = &'static str;

    fn run<B: Backend>(self, device: &B) -> &'static str {
        // Values do not matter to what is said.
        let zeros = |axes: &[usize]| Tensor::zeros(device, axes, DType::F32).expect("zeros");
        let inputs = Inputs {
            q: zeros(&[1, 1, 1, 2]),
            k: zeros(&[1, 1, 1, 2]),
            v: zeros(&[1, 1, 1, 3]),
            gates: WriteGates { log_a: zeros(&[1, 1, 1]), theta: zeros(&[1, 1, 1]) },
            state: Matrix { m: zeros(&[1, 1, 2, 3]) },
            anchor: None,
        };
        let Forward { outputs, pass } = forward(device, Delta::default(), inputs).expect("a forward");
        pass.backward_out(outputs.out).expect("a backward");
        B::NAME
    }
}

/// A machine with a GPU that would be the best, and one without.
fn machines() -> [Devices; 2] {
    let without = hecate::devices_of(&[BackendKind::Cpu]);
    let mut with = without.clone();
    with.found.push(hecate::DeviceInfo {
        id: DeviceName { backend: BackendKind::Cuda, number: 0 },
        name: "a GPU that nobody may touch".into(),
        is_default: true,
        properties: hecate::Properties::Cuda {
            capability: (9, 0),
            multiprocessors: 132,
            memory: 1 << 37,
            driver: 13_000,
        },
    });
    [with, without]
}

/// The warning comes when the device is opened, not when it is chosen: choosing has no side effect.
#[test]
fn a_best_device_that_is_no_gpu_is_a_warning() {
    let [_, without] = machines();
    let selected = select(&without, &Choose::Best).expect("the processor");
    let lines = listen(tracing::Level::WARN, || assert_eq!(selected.run(Step).expect("the processor"), "cpu"));
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("WARN") && lines[0].contains("no GPU is used"), "{lines:?}");
}

/// The processor by name, as the reference or for a small call is no fallback.
#[test]
fn what_was_asked_for_is_no_warning() {
    let [_, without] = machines();
    for choose in [Choose::Reference, Choose::Named("cpu".into()), Choose::BestFor { elements: 1 }] {
        let selected = select(&without, &choose).expect("the processor");
        let lines = listen(tracing::Level::WARN, || {
            selected.run(Step).expect("the processor");
        });
        assert!(lines.is_empty(), "{choose}: {lines:?}");
    }
}

/// At `info` a program says what it computes on; at `trace`, each call of a rule with its sizes.
#[test]
fn a_device_is_an_info_and_a_call_a_trace() {
    let [_, without] = machines();
    let selected = select(&without, &Choose::Named("cpu".into())).expect("the processor").with_threads(1);
    let run = || assert_eq!(selected.run(Step).expect("the processor"), "cpu");
    let lines = listen(tracing::Level::INFO, run);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("INFO hecate_cpu") && lines[0].contains("threads=1"), "{lines:?}");
    let lines = listen(tracing::Level::TRACE, run);
    let calls: Vec<_> = lines.iter().filter(|line| line.contains("TRACE hecate_core")).collect();
    assert_eq!(calls.len(), 2, "{lines:?}");
    for (line, call) in calls.iter().zip(["forward", "backward"]) {
        assert!(line.contains(call) && line.contains("rule=\"delta\"") && line.contains("backend=\"cpu\""), "{line}");
    }
}

/// With the reference chosen nothing is started on a GPU, whatever the machine has.
#[test]
fn the_reference_touches_no_gpu() {
    let [with, _] = machines();
    assert_eq!(select(&with, &Choose::Best).expect("the GPU").id.to_string(), "cuda:0");
    let selected = select(&with, &Choose::Reference).expect("the processor");
    let lines = listen(tracing::Level::TRACE, || assert_eq!(selected.run(Step).expect("the processor"), "cpu"));
    assert!(lines.iter().any(|line| line.contains("opened the CPU as the reference")), "{lines:?}");
    let gpu = |line: &&String| ["hecate_cuda", "hecate_wgpu"].iter().any(|target| line.contains(target));
    assert_eq!(lines.iter().filter(gpu).count(), 0, "{lines:?}");
}

/// On a GPU opening it is an info too, and a launch a trace that names its kernel.
#[test]
fn a_gpu_is_an_info_and_a_launch_a_trace() {
    use hecate::wgpu::{Selection, Wgpu};
    let open = || Wgpu::new(&Selection::Default);
    // Lines of this backend: the device's own parts have events too.
    let of_gpu = |lines: Vec<String>| -> Vec<String> {
        lines.into_iter().filter(|line| line.contains(" hecate_wgpu")).collect()
    };
    // One launch of one group.
    let product = |device: &Wgpu| {
        let x = Tensor::from_f32(device, [3], vec![1.0, 2.0, 3.0]).expect("an array");
        hecate::primitives::scale(2.0, &x).expect("a product");
        device.synchronize().expect("the end of it");
    };
    // An event is off for this thread's subscriber if another test's thread, which has none, comes to it first. Subscribers
    // that are made later see it, so the first time is not looked at.
    let mut first = None;
    listen(tracing::Level::TRACE, || first = Some(open().inspect(product)));
    if let Some(Err(error)) = first {
        return hecate_conformance::require::skip("wgpu", &error.to_string());
    }
    let mut device = None;
    let opened = of_gpu(listen(tracing::Level::INFO, || device = open().ok()));
    let device = device.expect("an adapter that was there a moment ago");
    assert_eq!(opened.len(), 1, "{opened:?}");
    for part in ["INFO hecate_wgpu", "opened a WebGPU device", &device.adapter().name, &device.adapter().interface] {
        assert!(opened[0].contains(part), "`{part}` is not in: {}", opened[0]);
    }
    let silent = of_gpu(listen(tracing::Level::DEBUG, || product(&device)));
    assert!(silent.is_empty(), "{silent:?}");
    let launches = of_gpu(listen(tracing::Level::TRACE, || product(&device)));
    assert_eq!(launches.len(), 1, "{launches:?}");
    for part in ["TRACE hecate_wgpu", "launch", "kernel=", "file=\"elementwise\"", "groups=[1, 1, 1]"] {
        assert!(launches[0].contains(part), "`{part}` is not in: {}", launches[0]);
    }
}
