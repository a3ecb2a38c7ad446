//! The device: what it refuses and fails at, and in which order it works.

use super::open;
use crate::{
    Selection, Wgpu,
    launch::{Binding, Kernel, Source},
    memory::groups,
};
use hecate_core::{
    DType, Device, Error, Host, Tensor,
    primitives::{add, scale},
};

#[test]
fn what_no_adapter_is_called_is_refused() {
    if open().is_none() {
        return;
    }
    let error = Wgpu::new(&Selection::Name("abacus".into())).expect_err("no such adapter").to_string();
    assert!(error.contains("abacus") && error.contains("0: "), "{error}");
}

#[test]
fn an_array_too_large_is_refused_with_the_numbers() {
    let Some(device) = open() else { return };
    let most = device.adapter().largest_array;
    let error = Tensor::zeros(&device, [most as usize / 4 + 1], DType::F32).expect_err("too large");
    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains(&format!("{} bytes", most + 4)) && text.contains(&most.to_string()), "{text}");
}

#[test]
fn a_lost_device_says_so() {
    let Some(device) = open() else { return };
    let x = Tensor::from_f32(&device, [3], vec![1.0, 2.0, 3.0]).expect("an array");
    // Work that is queued is lost too.
    let y = scale(2.0, &x).expect("a product");
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

const WRONG: Source = Source { name: "wrong", parts: &["fn f() -> f32 { return 1u; }"] };
const MISSING: Source = Source { name: "missing", parts: &["@compute @workgroup_size(1) fn other() {}"] };

#[test]
fn a_wrong_kernel_is_an_error() {
    let Some(device) = open() else { return };
    let x = Tensor::from_f32(&device, [1], vec![1.0]).expect("an array");
    for source in [&WRONG, &MISSING] {
        let kernel = Kernel { source, entry: "f", constants: &[("N", 3)] };
        let error = device.launch(&kernel, (1, 1, 1), &[0u32; 4], &[Binding::Write(&x)]).expect_err("it is wrong");
        assert!(matches!(error, Error::Device { .. }), "{error:?}");
        let text = format!("{error}");
        assert!(text.contains(&format!("compiling `f` of {}.wgsl (N = 3)", source.name)), "{text}");
    }
    // And nothing else is.
    assert_eq!(scale(2.0, &x).and_then(|x| x.to_f32()).expect("a product"), [2.0]);
}

const IN_PLACE: Source = Source {
    name: "in_place",
    parts: &["@group(0) @binding(1) var<storage, read_write> x: array<f32>;
              @group(0) @binding(2) var<storage, read> y: array<f32>;
              @compute @workgroup_size(1) fn f() { x[0] = y[0]; }"],
};

#[test]
fn an_array_is_not_read_and_written_under_two_names() {
    let Some(device) = open() else { return };
    let x = Tensor::from_f32(&device, [1], vec![1.0]).expect("an array");
    let kernel = Kernel { source: &IN_PLACE, entry: "f", constants: &[] };
    let bindings = [Binding::Write(&x), Binding::Read(&x)];
    let error = device.launch(&kernel, (1, 1, 1), &[0u32; 4], &bindings).expect_err("one array, two names");
    assert!(error.to_string().contains("array 1"), "{error}");
}

/// Uploads into memory that was just let go of must not overtake the work that still reads it.
#[test]
fn uploads_do_not_overtake_kernels() {
    let Some(device) = open() else { return };
    let mut sums = Vec::new();
    for i in 0..700 {
        let x = Tensor::from_f32(&device, [100], vec![i as f32; 100]).expect("an array");
        let y = scale(2.0, &x).expect("a product");
        drop(x);
        let z = Tensor::from_f32(&device, [100], vec![1.0; 100]).expect("an array");
        sums.push(add(&y, &z).expect("a sum"));
    }
    for (i, sum) in sums.iter().enumerate() {
        assert_eq!(sum.to_f32().expect("values"), vec![2.0 * i as f32 + 1.0; 100], "{i}");
    }
}

#[test]
fn threads_share_a_device() {
    let Some(device) = open() else { return };
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
    let (first, second) = (device.read_back(&x).expect("a copy"), device.read_back(&x).expect("a copy"));
    assert_eq!(pollster::block_on(second).expect("values"), Host::U32(vec![1, 2, 3]));
    assert_eq!(first.wait().expect("values"), Host::U32(vec![1, 2, 3]));
}

/// More workgroups than a dimension has, and an array that ends in the middle of one.
#[test]
fn long_arrays_are_reached_to_their_end() {
    let Some(device) = open() else { return };
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
    let mut y = x.clone();
    for _ in 0..50 {
        y = scale(2.0, &y).expect("a product");
    }
    let peak = device.peak_bytes().expect("a count").expect("a count");
    assert!((3 << 18..=4 << 18).contains(&peak), "{peak} bytes for three arrays of {}", 1 << 18);
}
