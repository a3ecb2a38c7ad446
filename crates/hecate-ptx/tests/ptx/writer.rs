//! The writer: what it refuses, what it says that a kernel needs, and control flow.

use crate::interpreter::Device;
use hecate_ptx::{Axis, Bf16, Error, F16, Module, SHARED_LIMIT, Target, kernel};

fn wrong(module: Result<Module, Error>) -> String {
    module.expect_err("a kernel that is refused").to_string()
}

#[test]
fn shared_memory_is_summed_and_limited() {
    let of = |bytes: usize| {
        kernel("k", [32, 1, 1], |k| {
            k.shared::<u8>("first", 3);
            k.shared::<f32>("second", (bytes - 4) / 4);
        })
    };
    // The second array begins at byte 16.
    assert_eq!(of(SHARED_LIMIT - 12).expect("a kernel").shared_bytes(), SHARED_LIMIT);
    let error = wrong(of(SHARED_LIMIT - 8));
    assert!(error.contains("49156 bytes") && error.contains("has 49152"), "{error}");
    let endless = kernel("k", [32, 1, 1], |k| {
        k.shared::<u64>("first", usize::MAX);
        k.shared::<u64>("second", usize::MAX);
    });
    assert_eq!(endless, Err(Error::SharedMemory { kernel: "k".to_owned(), bytes: usize::MAX }));
}

#[test]
fn names_are_checked() {
    for name in ["", "_", "1st", "a b", "a;", "ä"] {
        assert!(wrong(kernel(name, [1, 1, 1], |_| {})).contains("letters, digits and"), "{name}");
    }
    let twice = kernel("k", [1, 1, 1], |k| {
        k.parameter::<u32>("n");
        k.parameter::<u32>("n");
    });
    assert!(wrong(twice).contains("the kernel has it already"));
    let twice = kernel("k", [1, 1, 1], |k| {
        k.shared::<u32>("tile", 1);
        k.shared::<u32>("tile", 1);
    });
    assert!(wrong(twice).contains("`tile`"));
}

#[test]
fn blocks_are_checked() {
    for block in [[0, 1, 1], [1025, 1, 1], [1, 1, 65], [33, 32, 1], [u32::MAX, u32::MAX, u32::MAX]] {
        assert!(wrong(kernel("k", block, |_| {})).contains("1 to 1024 threads"), "{block:?}");
    }
    for block in [[31, 1, 1], [16, 2, 1]] {
        let shuffled = kernel("k", block, |k| {
            k.shuffle_xor(0u32, 1);
        });
        assert!(wrong(shuffled).contains("a multiple of 32 along x"), "{block:?}");
    }
}

/// Each operation's language and GPU, as NVIDIA's manual of PTX has them.
#[test]
fn needs_are_those_of_the_operations() {
    let of =
        |body: fn(&mut hecate_ptx::Scope<'_, hecate_ptx::Converged>)| kernel("k", [32, 1, 1], body).expect("a kernel");
    let turing = of(|k| {
        let tile = k.shared::<F16>("tile", 256);
        k.load_matrices(tile);
    });
    assert_eq!(turing.target(), Target { isa: (7, 0), capability: 75 });
    let least = of(|k| {
        let sum = k.shuffle_xor(1f32, 1);
        k.narrow::<F16>(sum);
        k.barrier();
    });
    assert_eq!(least.target(), Target::LEAST);
    assert!(least.text().starts_with(".version 7.0\n.target sm_70\n.address_size 64\n"), "{least}");
    let ampere: [fn(&mut hecate_ptx::Scope<'_, hecate_ptx::Converged>); 4] = [
        |k| k.commit_copies(),
        |k| {
            k.narrow::<Bf16>(1f32);
        },
        |k| {
            k.narrow_pair::<F16>(1f32, 2f32);
        },
        |k| {
            let tile = k.shared::<Bf16>("tile", 256);
            let a = k.load_matrices(tile);
            let sums = [0f32; 4].map(|zero| k.variable(zero));
            k.multiply(sums, a, [a[0], a[1]]);
        },
    ];
    for body in ampere {
        let module = of(body);
        assert_eq!(module.target(), Target { isa: (7, 0), capability: 80 });
        assert!(module.text().starts_with(".version 7.0\n.target sm_80\n"), "{module}");
    }
    assert!(turing.target().runs_on(Target { isa: (8, 0), capability: 80 }));
    assert!(!turing.target().runs_on(Target { isa: (8, 0), capability: 70 }));
    assert!(!turing.target().runs_on(Target { isa: (6, 5), capability: 80 }));
}

/// Comments cannot end and let text of theirs become instructions.
#[test]
fn comments_stay_comments() {
    let module = kernel("k", [1, 1, 1], |k| k.comment("one\n    trap;\rtwo")).expect("a kernel");
    assert!(module.text().contains("// one     trap; two\n"), "{module}");
}

/// `y[i]` is 10 for even numbers of threads, else 20, plus the sum of `0, 2, …` below `i`, plus 100 in the second block.
#[test]
fn branches_and_loops() {
    let module = kernel("flow", [64, 1, 1], |k| {
        let (y, n) = (k.pointer::<u32>("y"), k.parameter::<u32>("n"));
        let (thread, block) = (k.thread_index(Axis::X), k.block_index(Axis::X));
        let value = k.variable(0u32);
        let bit = k.and(thread, 1u32);
        let is_even = k.lt(bit, 1u32);
        k.if_else(is_even, |k| k.assign(value, 10u32), |k| k.assign(value, 20u32));
        k.for_each(0u32, thread, 2u32, |k, i| {
            let sum = k.add(value, i);
            k.assign(value, sum);
        });
        let not_first = k.uniform_lt(0u32, block);
        k.if_uniform(not_first, |k| {
            k.barrier();
            let sum = k.add(value, 100u32);
            k.assign(value, sum);
        });
        let i = k.mul_add(block, 64u32, thread);
        let inside = k.lt(i, n);
        let to = k.at(y, i);
        k.guarded(inside, |k| k.store(to, value));
    })
    .expect("a kernel");
    let mut device = Device::default();
    let y = device.output(100 * 4);
    device.launch(&module, [2, 1, 1], &[y, 100u32.into()]).expect("a launch");
    let truth = |i: u32| {
        let thread = i % 64;
        10 + 10 * (thread % 2) + (0..thread).step_by(2).sum::<u32>() + 100 * (i / 64)
    };
    assert_eq!(device.read(y, u32::from_le_bytes), (0..100).map(truth).collect::<Vec<_>>());
}

/// A matrix may have more elements than 32 bits can number: the first row after 2³² elements is not the first of all.
#[test]
fn rows_are_found_in_64_bits() {
    let module = kernel("row", [1, 1, 1], |k| {
        let (y, length) = (k.pointer::<u32>("y"), k.parameter::<u32>("length"));
        let row = k.row(y, length, length);
        k.store(row, 1u32);
    });
    let (module, mut device) = (module.expect("a kernel"), Device::default());
    let y = device.output(4);
    device.launch(&module, [1, 1, 1], &[y, 0u32.into()]).expect("the first row");
    let fault = device.launch(&module, [1, 1, 1], &[y, 65536u32.into()]).expect_err("a row far away");
    assert!(fault.contains("is no address of an array"), "{fault}");
}

/// What the interpreter is there for: it sees that a barrier is missing, and an index past an end.
#[test]
fn faults_are_seen() {
    let reversed = |with_barrier: bool, length: u32| {
        let module = kernel("reversed", [64, 1, 1], |k| {
            let y = k.pointer::<u32>("y");
            let tile = k.shared::<u32>("tile", 64);
            let thread = k.thread_index(Axis::X);
            let mine = k.at_shared(tile, thread);
            k.store(mine, thread);
            if with_barrier {
                k.barrier();
            }
            let other = k.xor(thread, 63u32);
            let theirs = k.at_shared(tile, other);
            let value = k.load(theirs);
            let to = k.at(y, thread);
            k.store(to, value);
        });
        let mut device = Device::default();
        let y = device.output(length as usize * 4);
        device.launch(&module.expect("a kernel"), [1, 1, 1], &[y])
    };
    reversed(true, 64).expect("a launch");
    let fault = reversed(false, 64).expect_err("no barrier");
    assert!(fault.contains("before it is written") || fault.contains("no barrier"), "{fault}");
    let fault = reversed(true, 63).expect_err("an array that is too short");
    assert!(fault.contains("bytes 252 to 256 of array 1"), "{fault}");
}
