//! What is said through `tracing`, and at which level.

use super::open;
use crate::Wgpu;
use hecate_core::{Device, Tensor, primitives::scale};
use std::{
    io::{self, Write},
    sync::{Arc, Mutex},
};
use tracing::Level;

/// Lines that a subscriber wrote. Clones write to the same ones.
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

/// What `work` gives, and this crate's events of `level` and above while it runs on this thread, a line each.
fn listen<T>(level: Level, work: impl FnOnce() -> T) -> (T, Vec<String>) {
    let lines = Lines::default();
    let out = lines.clone();
    let subscriber = tracing_subscriber::fmt().with_max_level(level).with_ansi(false).with_writer(move || out.clone());
    let given = tracing::subscriber::with_default(subscriber.finish(), work);
    let bytes = lines.0.lock().expect("no test panicked");
    let text = String::from_utf8_lossy(&bytes);
    (given, text.lines().filter(|line| line.contains(" hecate_wgpu")).map(str::to_owned).collect())
}

/// One launch.
fn product(device: &Wgpu) {
    let x = Tensor::from_f32(device, [3], vec![1.0, 2.0, 3.0]).expect("an array");
    scale(2.0, &x).expect("a product");
    device.synchronize().expect("the end of it");
}

/// At `info` a program says what it computes on; a launch is told of at `trace` and not before.
#[test]
fn a_device_is_an_info_and_a_launch_a_trace() {
    // An event is off for this thread's subscriber if another test's thread, which has none, comes to it first. Subscribers
    // that are made later see it, so the first time is not looked at.
    let (there, _) = listen(Level::TRACE, || open().inspect(product).is_some());
    if !there {
        return;
    }
    let (device, opened) = listen(Level::INFO, open);
    let device = device.expect("an adapter that was there a moment ago");
    assert_eq!(opened.len(), 1, "{opened:?}");
    for part in ["INFO hecate_wgpu", "opened a WebGPU device", &device.adapter().name, &device.adapter().interface] {
        assert!(opened[0].contains(part), "`{part}` is not in: {}", opened[0]);
    }
    let ((), silent) = listen(Level::DEBUG, || product(&device));
    assert!(silent.is_empty(), "{silent:?}");
    let ((), launches) = listen(Level::TRACE, || product(&device));
    assert_eq!(launches.len(), 1, "{launches:?}");
    for part in ["TRACE hecate_wgpu", "launch", "kernel=", "file=\"elementwise\"", "groups=[1, 1, 1]"] {
        assert!(launches[0].contains(part), "`{part}` is not in: {}", launches[0]);
    }
}
