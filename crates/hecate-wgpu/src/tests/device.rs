//! The device: what it refuses and fails at, and in which order it works.
//!
//! Each test opens a device of its own, so that one which is lost or full hurts no other.

use super::open;
use crate::{
    Selection, Wgpu,
    launch::{Binding, Kernel, WgslSource},
    memory::groups,
    parameters::{Parameters, array, parameters, vec4},
};
use hecate_core::{
    Algorithm, DType, Device, DeviceMemory, Error, Host, Tensor,
    primitives::{add, scale},
};

parameters! {
    /// What the kernels of these tests do not look at.
    struct Ignored {
        words: vec4<u32>,
    }
    /// More than a kernel can take.
    struct TooMany {
        words: array<vec4<u32>, 17>,
    }
}

const IGNORED: Ignored = Ignored { words: [0; 4] };
const TOO_MANY: TooMany = TooMany { words: [[0; 4]; 17] };

#[test]
fn what_no_adapter_is_called_is_refused() {
    if open().is_none() {
        return;
    }
    // The message lists the adapters that there are.
    let error = Wgpu::new(&Selection::Name("abacus".into())).expect_err("no such adapter").to_string();
    assert!(error.contains("abacus") && error.contains("0: "), "{error}");
}

#[test]
fn an_array_too_large_is_refused_with_the_numbers() {
    let Some(device) = open() else { return };
    // One element more than the largest array holds.
    let most = device.adapter().largest_array;
    let error = Tensor::zeros(&device, [most as usize / 4 + 1], DType::F32).expect_err("too large");
    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains(&format!("{} bytes", most + 4)) && text.contains(&most.to_string()), "{text}");
}

/// A GPU that uses the machine's memory has as much as that; of others, drivers do not tell.
#[test]
fn memory_is_that_of_the_machine_where_it_is_shared() {
    let Some(device) = open() else { return };
    let shared = ["CPU", "integrated GPU"].contains(&device.adapter().kind) && cfg!(target_os = "linux");
    let found = device.memory().expect("an answer");
    assert_eq!(found.is_some(), shared, "{found:?} of {}", device.adapter());
    let Some(DeviceMemory { total, free }) = found else { return };
    assert!(0 < free && free <= total, "{found:?}");
}

#[test]
fn a_lost_device_says_so() {
    let Some(device) = open() else { return };
    let x = Tensor::from_f32(&device, [3], vec![1.0, 2.0, 3.0]).expect("an array");
    // Work that is queued is lost too.
    // Queued, and lost with the device.
    let y = scale(2.0, &x).expect("a product");
    // As a driver does that was reset, or a GPU that was pulled out.
    device.raw().destroy();
    let says = |error: Error| {
        assert!(matches!(error, Error::Device { .. }), "{error:?}");
        let text = format!("{error}");
        assert!(text.contains("the device was lost") && text.contains("checkpoint"), "{text}");
    };
    says(y.to_f32().expect_err("lost"));
    says(Tensor::from_f32(&device, [1], vec![1.0]).expect_err("lost"));
    says(device.synchronize().expect_err("lost"));
    says(scale(2.0, &x).and_then(|y| y.to_f32()).expect_err("lost"));
}

/// A type error, and an entry point of another name.
const WRONG: WgslSource = WgslSource { name: "wrong", parts: &[Ignored::WGSL, "fn f() -> f32 { return 1u; }"] };
const MISSING: WgslSource =
    WgslSource { name: "missing", parts: &[Ignored::WGSL, "@compute @workgroup_size(1) fn other() {}"] };

#[test]
fn a_wrong_kernel_is_an_error() {
    let Some(device) = open() else { return };
    let x = Tensor::from_f32(&device, [1], vec![1.0]).expect("an array");
    // One is no WGSL, the other has no such entry point: both are told with the kernel's name and constants.
    for source in [&WRONG, &MISSING] {
        let kernel = Kernel { source, entry: "f", constants: &[("N", 3)] };
        let error = device.launch(&kernel, (1, 1, 1), &IGNORED, &[Binding::Write(&x)]).expect_err("it is wrong");
        assert!(matches!(error, Error::Device { .. }), "{error:?}");
        let text = format!("{error}");
        assert!(text.contains(&format!("compiling `f` of {}.wgsl (N = 3)", source.name)), "{text}");
    }
    // And nothing else is.
    assert_eq!(scale(2.0, &x).and_then(|x| x.to_f32()).expect("a product"), [2.0]);
}

/// x[0] = y[0].
/// A kernel with one array to write and one to read.
const IN_PLACE: WgslSource = WgslSource {
    name: "in_place",
    parts: &[
        Ignored::WGSL,
        TooMany::WGSL,
        "@group(0) @binding(1) var<storage, read_write> x: array<f32>;
              @group(0) @binding(2) var<storage, read> y: array<f32>;
              @compute @workgroup_size(1) fn f() { x[0] = y[0]; }",
    ],
};

#[test]
fn an_array_is_not_read_and_written_under_two_names() {
    let Some(device) = open() else { return };
    let x = Tensor::from_f32(&device, [1], vec![1.0]).expect("an array");
    let kernel = Kernel { source: &IN_PLACE, entry: "f", constants: &[] };
    // WebGPU allows no array as read and as written in one launch.
    let bindings = [Binding::Write(&x), Binding::Read(&x)];
    let error = device.launch(&kernel, (1, 1, 1), &IGNORED, &bindings).expect_err("one array, two names");
    assert!(error.to_string().contains("array 1"), "{error}");
}

/// Memory of another device is found at the launch or at the submission; the error is told once, and nothing else fails.
#[test]
fn a_bad_launch_leaves_the_device_usable() {
    let (Some(device), Some(other)) = (open(), open()) else { return };
    let x = Tensor::from_f32(&device, [1], vec![1.0]).expect("an array");
    let foreign = Tensor::from_f32(&other, [1], vec![5.0]).expect("an array");
    let kernel = Kernel { source: &IN_PLACE, entry: "f", constants: &[] };
    let bindings = [Binding::Write(&x), Binding::Read(&foreign)];
    // Drivers may tell it at once or when the queue is waited for.
    let launched = device.launch(&kernel, (1, 1, 1), &IGNORED, &bindings);
    let error = launched.and_then(|()| device.synchronize()).expect_err("memory of another device");
    assert!(matches!(error, Error::Device { .. }), "{error:?}");
    assert_eq!(scale(2.0, &x).and_then(|x| x.to_f32()).expect("a product"), [2.0]);
    device.synchronize().expect("nothing more to tell");
}

#[test]
fn launches_over_a_limit_are_refused_before_they_are_queued() {
    let Some(device) = open() else { return };
    let x = Tensor::from_f32(&device, [1], vec![1.0]).expect("an array");
    let kernel = Kernel { source: &IN_PLACE, entry: "f", constants: &[] };
    // More than any adapter takes.
    let arrays: Vec<_> = std::iter::repeat_n(Binding::Read(&x), 1 << 12).collect();
    let errors = [
        // One over WebGPU's least limits: 65 535 workgroups, 256 bytes of parameters.
        device.launch(&kernel, (1, 1, 65_536), &IGNORED, &[]).expect_err("too many workgroups"),
        device.launch(&kernel, (1, 1, 1), &TOO_MANY, &[]).expect_err("too many parameters"),
        device.launch(&kernel, (1, 1, 1), &IGNORED, &arrays).expect_err("too many arrays"),
    ];
    for (error, words) in errors.iter().zip(["65536", "272 bytes of parameters", "4096 arrays"]) {
        assert!(error.to_string().contains(words), "{error}");
        assert_eq!(scale(2.0, &x).and_then(|x| x.to_f32()).expect("a product"), [2.0]);
    }
}

/// A result is read back by the queue that it lies on.
#[test]
fn arrays_of_another_queue_are_not_read_back() {
    let (Some(device), Some(other)) = (open(), open()) else { return };
    let foreign = Tensor::from_f32(&other, [1], vec![5.0]).expect("an array");
    let error = device.read_back(&foreign).map(drop).expect_err("another queue");
    assert!(matches!(error, Error::OtherDevice { what: "read_back", .. }), "{error}");
    // Other ways to use the same queue are the same device.
    assert_eq!(device.id(), device.with_poisoned_memory().id());
    assert_eq!(device.id(), device.with_portable_kernels().id());
}

/// Uploads into memory that was just let go of must not overtake the work that still reads it.
#[test]
fn uploads_do_not_overtake_kernels() {
    let Some(device) = open() else { return };
    let mut sums = Vec::new();
    // More uploads than a submission has dispatches.
    for i in 0..700 {
        let x = Tensor::from_f32(&device, [100], vec![i as f32; 100]).expect("an array");
        let y = scale(2.0, &x).expect("a product");
        // Its memory is free from here on, while the product may still be queued.
        drop(x);
        let z = Tensor::from_f32(&device, [100], vec![1.0; 100]).expect("an array");
        sums.push(add(&y, &z).expect("a sum"));
    }
    // Twice its own number and one: an upload that overtook would leave another's.
    for (i, sum) in sums.iter().enumerate() {
        assert_eq!(sum.to_f32().expect("values"), vec![2.0 * i as f32 + 1.0; 100], "{i}");
    }
}

#[test]
fn threads_share_a_device() {
    let Some(device) = open() else { return };
    // An even number of changes of sign: what comes back is what went up.
    let work = |n: usize| {
        let mut x = Tensor::from_f32(&device, [257], vec![n as f32; 257]).expect("an array");
        for _ in 0..100 {
            x = scale(-1.0, &x).expect("a product");
        }
        assert_eq!(x.to_f32().expect("values"), vec![n as f32; 257]);
    };
    std::thread::scope(|scope| (0..8).for_each(|n| drop(scope.spawn(move || work(n)))));
}

#[test]
fn results_come_in_time() {
    let Some(device) = open() else { return };
    let x = Tensor::from_u32(&device, [3], vec![1, 2, 3]).expect("an array");
    // Two copies under way, the second asked for first.
    let (first, second) = (device.read_back(&x).expect("a copy"), device.read_back(&x).expect("a copy"));
    assert_eq!(pollster::block_on(second).expect("values"), Host::U32(vec![1, 2, 3]));
    assert_eq!(first.wait().expect("values"), Host::U32(vec![1, 2, 3]));
}

/// More workgroups than a dimension has, and an array that ends in the middle of one.
#[test]
fn long_arrays_are_reached_to_their_end() {
    let Some(device) = open() else { return };
    // Groups go on in a second dimension from there.
    let count = 65_535 * 256 + 1_003;
    let x = device.with_poisoned_memory().empty([count], DType::F32).expect("an array");
    device.fill(&x, 7).expect("a fill");
    let Ok(Host::F32(values)) = x.download() else { panic!("floats were filled") };
    assert!(groups(count).0 > 65_535);
    assert!(values.iter().all(|x| x.to_bits() == 7));
}

#[test]
fn odd_numbers_of_halves_come_and_go() {
    let Some(device) = open() else { return };
    // Two halves share a word; the last word of an odd number has one alone.
    for count in [1, 2, 3, 255] {
        let host = Host::from_f32(DType::Bf16, (0..count).map(|i| i as f32).collect());
        let x = Tensor::upload(&device, [count], host.clone()).expect("an array");
        assert_eq!(x.download().expect("values"), host);
    }
    let empty = Tensor::from_f32(&device, [0, 3], Vec::new()).expect("an array");
    assert_eq!(empty.to_f32().expect("values"), Vec::<f32>::new());
}

#[test]
fn memory_is_used_again() {
    let Some(device) = open() else { return };
    let x = Tensor::zeros(&device, [1 << 16], DType::F32).expect("an array");
    // Each product's argument is free once the next is made.
    let mut y = x.clone();
    for _ in 0..50 {
        y = scale(2.0, &y).expect("a product");
    }
    let peak = device.peak_bytes().expect("a count").expect("a count");
    assert!((3 << 18..=4 << 18).contains(&peak), "{peak} bytes for three arrays of {}", 1 << 18);
}

/// A driver on the CPU has room for some tens of thousands in a process, and ends it where there are more.
#[test]
fn bind_groups_are_kept_up_to_a_limit() {
    let Some(device) = open() else { return };
    let (_, most) = device.bind_groups().count();
    let fill = |value: usize| {
        let x = device.empty([1], DType::U32).expect("an array");
        device.fill(&x, value as u32).expect("a launch");
        x
    };
    // Every array lives, so each has memory and a group of its own.
    let arrays: Vec<_> = (0..most + most / 2).map(fill).collect();
    let (kept, _) = device.bind_groups().count();
    assert!((1..=most).contains(&kept), "{kept} are kept of {most}");
    for value in [0, most - 1, most, arrays.len() - 1] {
        assert_eq!(arrays[value].download().expect("a value"), Host::U32(vec![value as u32]));
    }
}

/// The one form has two names; another is refused with the way out, and the queue is the same.
#[test]
fn forms_are_kept_to_or_refused() {
    let Some(device) = open() else { return };
    for algorithm in [Algorithm::Auto, Algorithm::Scan] {
        assert_eq!(device.with_algorithm(algorithm).expect("the scan").id(), device.id());
    }
    let error = device.with_algorithm(Algorithm::Chunk(64)).expect_err("it goes token by token");
    assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");
    let text = error.to_string();
    for part in ["wgpu", "chunks", "`scan`", "`cpu`"] {
        assert!(text.contains(part), "`{part}` is not in: {text}");
    }
    assert!(matches!(device.with_algorithm(Algorithm::Chunk(0)), Err(Error::Config { option: "algorithm", .. })));
}
