//! Networks whose synapses fill several arrays are the ones of one array.

use super::{DeviceNet, Engine};
use crate::{
    Area, Builder, Cpu, Error, Form, Kind, Mapping, Network, Neuron, Result, Spiking, State, Stimulus, Synapse,
};
use std::sync::Arc;

/// Forty neurons of two areas with rows of 0 to 12 synapses, which learn in all three forms.
fn network() -> Arc<Network> {
    let mut builder = Builder::default();
    for area in [Area::uniform(3), Area { uniform: false, ..Area::uniform(4) }] {
        builder.area(area).unwrap();
    }
    for i in 0..40 {
        builder.neuron(Neuron { leak: 0.25, ..Neuron::new(3 + i % 2, 900.0) }).unwrap();
    }
    // Targets lie apart, so that made synapses are many.
    for source in 0..40 {
        for i in 0..source * 7 % 13 {
            let (target, kind) =
                ((source * 5 + 3 * i) % 40, if i % 4 == 3 { Kind::Inhibitory } else { Kind::Excitatory });
            builder.synapse(Synapse { source, target, weight: 200, potential: 90, kind }).unwrap();
        }
    }
    let forms = [
        Form::Bidirectional { constant: 3, ltp: 5, ltd: 2, potential: 40 },
        Form::Classic { constant: 2, ltp: 3, ltd: 1 },
        Form::Exponential,
    ];
    for (form, (source, target)) in forms.into_iter().zip([(3, 4), (4, 3), (3, 3)]) {
        builder.mapping(Mapping { source, target, window: 2, form }).unwrap();
    }
    builder.build().unwrap()
}

/// Runs a network beside the CPU, with arrays of one synapse, of three, and of all.
fn split<D: Engine + Spiking<Net = DeviceNet<D>>>(device: &D) {
    let (network, cpu) = (network(), Cpu::with_threads(1).unwrap());
    let start = State::start(&network).unwrap();
    for (synapses, most) in [(1, 8), (3, 31), (usize::MAX, 1 << 20)] {
        let mut net = DeviceNet::load_split(device, &network, &start, 0..40, most).unwrap();
        // As many arrays as the limit asks for.
        let segments = &net.arrays.rows.segments;
        assert_eq!(segments.len(), network.synapse_count().div_ceil(synapses));
        // The CPU knows of no arrays.
        let mut expected = cpu.load(&network, &start).unwrap();
        for burst in 0..30 {
            // A third of the neurons fires whatever reaches it.
            let staged: Vec<_> = (0..40).filter(|i| (i + burst) % 3 == 0).map(|i| (i, 5000.0)).collect();
            let stimulus = Stimulus { staged: &staged, fatigue: false };
            device.burst(&mut net, stimulus).unwrap();
            cpu.burst(&mut expected, stimulus).unwrap();
            let (found, expected) = (device.state(&net).unwrap(), cpu.state(&expected).unwrap());
            assert_eq!(found, expected, "burst {burst}, {most} bytes");
        }
        assert!(!cpu.state(&expected).unwrap().made.is_empty(), "no synapse was made");
    }
}

/// The device, or what a missing one means.
fn opened<D>(name: &str, device: hecate_core::Result<D>) -> Option<D> {
    let required = std::env::var("HECATE_REQUIRE").is_ok_and(|list| list.split(',').any(|required| required == name));
    device.map_err(|error| assert!(!required, "{name}: {error}")).map_err(|()| println!("skipped: {name}")).ok()
}

#[cfg(feature = "cuda")]
#[test]
fn synapses_of_cuda_are_split() {
    if let Some(device) = opened("cuda", hecate_cuda::Cuda::new(0)) {
        split(&device);
    }
}

#[cfg(feature = "wgpu")]
#[test]
fn synapses_of_webgpu_are_split() {
    if let Some(device) = opened("wgpu", hecate_wgpu::Wgpu::new(&hecate_wgpu::Selection::Default)) {
        split(&device);
    }
}

/// What is not split is refused with what there can be.
#[test]
fn larger_arrays_are_refused() {
    let error: Result<()> = super::too_large("sums of neurons", 9, 8);
    let error = error.expect_err("too large");
    assert!(matches!(error, Error::TooLarge { what: "sums of neurons", bytes: 9, most: 8 }), "{error}");
    assert!(super::too_large("sums of neurons", 8, 8).is_ok());
}

/// The PTX beside the kernels is theirs. With `UPDATE=1` it is made again, with NVRTC 13.0 and no GPU.
#[cfg(feature = "cuda")]
#[test]
fn ptx_is_of_these_kernels() {
    use super::cuda::{BURST, BURSTS, LEARN, LEARNS};
    for (source, kernels, file) in [(&BURST, &BURSTS[..], "burst.ptx.br"), (&LEARN, &LEARNS[..], "learn.ptx.br")] {
        if std::env::var_os("UPDATE").is_some() {
            let text = source.modules(kernels).unwrap();
            let mut packed = Vec::new();
            let parameters = brotli::enc::BrotliEncoderParams { quality: 11, lgwin: 24, ..Default::default() };
            brotli::BrotliCompress(&mut text.as_bytes(), &mut packed, &parameters).unwrap();
            let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/gpu").join(file);
            std::fs::write(path, packed).unwrap();
            continue;
        }
        let renew = "`UPDATE=1 cargo test -p hecate-spiking --features cuda ptx_is` makes it again";
        source.check_ptx(kernels).unwrap_or_else(|error| panic!("src/gpu/{file}: {error}; {renew}"));
    }
}
