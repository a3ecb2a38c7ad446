//! One table: machines, wishes, and the device that is taken.

use super::*;
use crate::devices::Absent;

/// The processor, which every machine of the table has.
fn cpu() -> DeviceInfo {
    let properties = Properties::Cpu { threads: 8, vectors: "AVX2 and FMA" };
    DeviceInfo {
        id: DeviceName { backend: BackendKind::Cpu, number: 0 },
        name: "x86_64".into(),
        is_default: true,
        properties,
    }
}

/// A GPU of this compute capability with 16 GiB, under a driver that speaks this version of CUDA
/// (`1000 major + 10 minor`).
fn cuda(number: usize, name: &str, capability: (u32, u32), multiprocessors: u32, driver: u32) -> DeviceInfo {
    let properties = Properties::Cuda { capability, multiprocessors, memory: 16 << 30, driver };
    let id = DeviceName { backend: BackendKind::Cuda, number };
    DeviceInfo { id, name: name.into(), is_default: number == 0, properties }
}

/// An adapter of WebGPU that the kernels fit; the first is the one that WebGPU itself would take.
fn adapter(number: usize, name: &str, kind: &'static str) -> DeviceInfo {
    let (interface, driver) = ("vulkan".into(), "a driver".into());
    let properties = Properties::Wgpu { kind, interface, driver, largest_array: 1 << 30, too_small: None };
    let id = DeviceName { backend: BackendKind::Wgpu, number };
    DeviceInfo { id, name: name.into(), is_default: number == 0, properties }
}

/// An adapter that the kernels do not fit.
fn small(number: usize, name: &str) -> DeviceInfo {
    let mut device = adapter(number, name, "integrated GPU");
    if let Properties::Wgpu { too_small, .. } = &mut device.properties {
        *too_small = Some(format!("{name} allows 4 storage buffers of a kernel, the kernels need 8"));
    }
    device
}

/// A machine with the processor and these GPUs. A backend without a device is absent, and says that it has no driver.
fn machine(devices: &[DeviceInfo]) -> Devices {
    let mut found = vec![cpu()];
    found.extend_from_slice(devices);
    let absent = [BackendKind::Cuda, BackendKind::Wgpu]
        .into_iter()
        .filter(|&backend| !found.iter().any(|device| device.id.backend == backend))
        .map(|backend| Absent { backend, why: format!("no driver of {backend}") })
        .collect();
    Devices { found, absent }
}

/// A machine, what [`Choose::Best`] takes there, and what it says where that is no GPU.
struct Row {
    /// What it is, for the message of a failure.
    machine: &'static str,
    /// Its GPUs, beside the processor.
    devices: Vec<DeviceInfo>,
    /// Name of the device that is taken.
    best: &'static str,
    /// Parts of the reason why that is no GPU; none where it is one.
    told: &'static [&'static str],
}

/// A row of the table, its fields in their order.
fn row(machine: &'static str, devices: Vec<DeviceInfo>, best: &'static str, told: &'static [&'static str]) -> Row {
    Row { machine, devices, best, told }
}

/// A driver of CUDA 13.0, newer than any kernel needs.
const NEW: u32 = 13_000;

/// The machines: none, one and several GPUs, of every compute capability from 5.0 to 12.1, old drivers, software.
fn table() -> Vec<Row> {
    let one = |name, capability, best, told| row(name, vec![cuda(0, name, capability, 40, NEW)], best, told);
    let old: &[&str] = &["compute capability is", "8.0 and later"];
    vec![
        row("no GPU", vec![], "cpu", &["cuda: no driver of cuda", "wgpu: no driver of wgpu"]),
        one("Maxwell", (5, 0), "cpu", old),
        one("Pascal", (6, 1), "cpu", old),
        one("Volta", (7, 0), "cpu", old),
        one("Turing", (7, 5), "cpu", old),
        one("Ampere, data centre", (8, 0), "cuda:0", &[]),
        one("Ampere", (8, 6), "cuda:0", &[]),
        one("Ada", (8, 9), "cuda:0", &[]),
        one("Hopper", (9, 0), "cuda:0", &[]),
        one("Blackwell, data centre", (10, 0), "cuda:0", &[]),
        one("Blackwell", (12, 0), "cuda:0", &[]),
        one("Blackwell, small", (12, 1), "cuda:0", &[]),
        row("old driver", vec![cuda(0, "A100", (8, 0), 108, 11_080)], "cpu", &["CUDA 11.8, 12.0 is needed", "cuda:0"]),
        row("oldest driver", vec![cuda(0, "A100", (8, 0), 108, 12_000)], "cuda:0", &[]),
        row(
            "several GPUs",
            vec![cuda(0, "3050", (8, 6), 20, NEW), cuda(1, "H100", (9, 0), 132, NEW), cuda(2, "T4", (7, 5), 140, NEW)],
            "cuda:1",
            &[],
        ),
        row("two alike", vec![cuda(0, "H200", (9, 0), 132, NEW), cuda(1, "H200", (9, 0), 132, NEW)], "cuda:0", &[]),
        row("software adapter", vec![adapter(0, "llvmpipe", "CPU")], "cpu", &["wgpu:0 (llvmpipe)", "processor"]),
        row("integrated GPU", vec![adapter(0, "Iris", "integrated GPU")], "wgpu:0", &[]),
        row("unknown adapter", vec![adapter(0, "Strange", "other")], "cpu", &["unknown kind (`other`)"]),
        row("small adapter", vec![small(0, "Tiny")], "cpu", &["Tiny allows 4 storage buffers"]),
        row(
            "small default beside others",
            vec![small(0, "Tiny"), adapter(1, "llvmpipe", "CPU"), adapter(2, "Radeon", "discrete GPU")],
            "wgpu:2",
            &[],
        ),
        row(
            "an old GPU that Vulkan drives",
            vec![cuda(0, "970", (5, 2), 13, NEW), adapter(0, "970", "discrete GPU")],
            "wgpu:0",
            &[],
        ),
        row(
            "one GPU under both",
            vec![cuda(0, "4090", (8, 9), 128, NEW), adapter(0, "4090", "discrete GPU")],
            "cuda:0",
            &[],
        ),
    ]
}

/// Every row gets the device it names. Where that is the processor, the reason names what is missing of the GPUs.
#[test]
fn the_best_device_of_every_machine() {
    for Row { machine: name, devices, best, told } in table() {
        let found = machine(&devices);
        let selected = select(&found, &Choose::Best).expect("there is always the processor");
        assert_eq!(selected.id.to_string(), best, "{name}");
        assert_eq!(selected.fallback.is_some(), best == "cpu", "{name}: {selected:?}");
        let fallback = selected.fallback.unwrap_or_default();
        for part in told {
            assert!(fallback.contains(part), "{name}: `{part}` is not in `{fallback}`");
        }
    }
}

/// A GPU changes nothing for the reference, and it is no fallback: it was asked for.
#[test]
fn the_reference_is_the_processor_on_every_machine() {
    for Row { machine: name, devices, .. } in table() {
        let selected = select(&machine(&devices), &Choose::Reference).expect("the processor is there");
        assert_eq!((selected.id.backend, selected.reference), (BackendKind::Cpu, true), "{name}");
        assert_eq!(selected.fallback, None, "{name}: nothing was fallen back from");
    }
}

/// The threshold is exact: one element less stays on the processor.
#[test]
fn small_calls_stay_on_the_processor() {
    for Row { machine: name, devices, best, .. } in table() {
        let found = machine(&devices);
        for (elements, wanted) in [(1, "cpu"), (FEW_ELEMENTS - 1, "cpu"), (FEW_ELEMENTS, best), (1 << 24, best)] {
            let selected = select(&found, &Choose::BestFor { elements }).expect("a device");
            assert_eq!(selected.id.to_string(), wanted, "{name}, {elements} elements");
        }
    }
}

/// A name is no wish for the best: an old GPU or software is taken where it is named. Parts of names fit in any case.
#[test]
fn names_are_taken_at_their_word() {
    let gpus = [
        cuda(0, "NVIDIA T4", (7, 5), 40, NEW),
        cuda(1, "NVIDIA H200", (9, 0), 132, NEW),
        adapter(0, "llvmpipe", "CPU"),
        adapter(1, "AMD Radeon", "discrete GPU"),
    ];
    let found = machine(&gpus);
    let cases = [
        ("cpu", "cpu"),
        ("cuda", "cuda:0"),
        ("cuda:1", "cuda:1"),
        ("cuda:h200", "cuda:1"),
        ("wgpu", "wgpu:0"),
        ("wgpu:1", "wgpu:1"),
        ("wgpu:radeon", "wgpu:1"),
        ("wgpu:LLVM", "wgpu:0"),
    ];
    for (name, wanted) in cases {
        let selected = select(&found, &name.parse().expect(name)).expect(name);
        assert_eq!((selected.id.to_string().as_str(), selected.fallback), (wanted, None), "{name}");
    }
}

/// The error names what was asked for, and what there is or why there is nothing.
#[test]
fn what_is_not_there_is_said_with_what_is() {
    let found = machine(&[cuda(0, "NVIDIA T4", (7, 5), 40, NEW)]);
    let cases: [(&str, &[&str]); 4] = [
        ("cuda:3", &["`cuda:3` was asked for", "there is cuda:0 (NVIDIA T4)"]),
        ("cuda:radeon", &["`cuda:radeon`", "cuda:0 (NVIDIA T4)"]),
        ("wgpu", &["`wgpu`", "no driver of wgpu"]),
        ("wgpu:1", &["`wgpu:1`", "no driver of wgpu"]),
    ];
    for (name, told) in cases {
        let error = select(&found, &Choose::Named(name.to_owned())).expect_err(name).to_string();
        assert!(told.iter().all(|part| error.contains(part)), "{name}: {error}");
    }
    for name in ["abacus", "cpu:1", "cuda:", "", "Best", ":0"] {
        let error = name.parse::<Choose>().expect_err(name).to_string();
        assert!(error.contains(&format!("`{name}`")) && error.contains("reference, cpu, cuda"), "{name}: {error}");
    }
}

/// A build without any backend names the features that would bring one.
#[test]
fn nothing_at_all_is_an_error_that_says_everything() {
    let absent = |backend: BackendKind| Absent { backend, why: not_built_in(backend) };
    let nothing = Devices { found: vec![], absent: BackendKind::ALL.map(absent).to_vec() };
    let error = select(&nothing, &Choose::Best).expect_err("nothing is there").to_string();
    for part in ["feature `cpu`", "feature `cuda`", "feature `wgpu`"] {
        assert!(error.contains(part), "{error}");
    }
    let error = select(&nothing, &Choose::Reference).expect_err("no processor").to_string();
    assert!(error.contains("feature `cpu`"), "{error}");
}

/// Both the wish and the choice print with `{:?}`, field by field.
#[test]
fn the_choice_is_printed() {
    let selected = select(&machine(&[]), &Choose::Best).expect("the processor");
    let text = format!("{selected:?}");
    for part in ["backend: Cpu", "number: 0", "reference: false", "fallback: Some("] {
        assert!(text.contains(part), "{text}");
    }
    assert_eq!(format!("{:?}", Choose::Named("cuda:1".into())), "Named(\"cuda:1\")");
}
