//! Operations on arrays have the bits that this processor gives, for every number that is special.

use crate::interpreter::{Argument, Device};
use hecate_ptx::{Elementwise, Operation, Scalar};
use std::time::{Duration, Instant};

/// Numbers at the ends of a type's range, and others.
fn samples<T: Copy>(special: &[T], ordinary: impl Fn(f64) -> T) -> Vec<T> {
    let ordinary = (0..12).map(|i| ordinary((f64::from(i) - 5.5) * 1.7f64.powi(3 * i - 16)));
    special.iter().copied().chain(ordinary).collect()
}

/// One type: its numbers, their bytes, and what a processor computes with the same steps.
macro_rules! tests_of {
    ($module:ident, $float:ident, $real:expr, $complex:expr) => {
        mod $module {
            use super::*;

            fn numbers() -> Vec<$float> {
                let special = [
                    0.0,
                    -0.0,
                    $float::INFINITY,
                    $float::NEG_INFINITY,
                    $float::NAN,
                    $float::MAX,
                    $float::MIN_POSITIVE,
                    $float::MIN_POSITIVE / 8.0,
                    -1.0,
                ];
                samples(&special, |x| x as $float)
            }

            fn same(what: &str, found: &[$float], truth: &[$float]) {
                assert_eq!(found.len(), truth.len());
                for (at, (found, truth)) in found.iter().zip(truth).enumerate() {
                    let same = found.to_bits() == truth.to_bits() || found.is_nan() && truth.is_nan();
                    assert!(same, "{what}: element {at} is {found:?}, and should be {truth:?}");
                }
            }

            fn run(operation: Operation, scalar: Scalar, x: &[$float], y: &[$float], elements: usize) -> Vec<$float> {
                let kernel = Elementwise::new(operation, scalar).expect("a kernel");
                let mut device = Device::default();
                let mut arguments = vec![device.input(x.iter().map(|x| x.to_le_bytes()))];
                if operation.is_binary() {
                    arguments.push(device.input(y.iter().map(|y| y.to_le_bytes())));
                }
                let parts = if operation == Operation::Abs { elements } else { x.len() };
                let out = device.output(parts * size_of::<$float>());
                arguments.extend([out, Argument::U64(elements as u64)]);
                let module = kernel.write().expect("a kernel");
                // Two blocks make several rounds.
                let launch = kernel.launch(elements as u64);
                device.launch(&module, [launch.grid[0].min(2), 1, 1], &arguments).expect(module.name());
                device.read(out, $float::from_le_bytes)
            }

            /// All pairs of numbers.
            fn pairs() -> (Vec<$float>, Vec<$float>) {
                let all = numbers();
                let pairs = all.iter().flat_map(|&x| all.iter().map(move |&y| (x, y)));
                pairs.unzip()
            }

            #[test]
            fn real() {
                let (x, y) = pairs();
                let truth: [(Operation, fn($float, $float) -> $float); 9] = [
                    (Operation::Add, |x, y| x + y),
                    (Operation::Sub, |x, y| x - y),
                    (Operation::Mul, |x, y| x * y),
                    (Operation::Div, |x, y| x / y),
                    (Operation::Neg, |x, _| -x),
                    (Operation::Abs, |x, _| x.abs()),
                    (Operation::Sqrt, |x, _| x.sqrt()),
                    (Operation::Reciprocal, |x, _| 1.0 / x),
                    // Of two zeros the negative one is the smaller, which Rust leaves open.
                    (Operation::Min, |x, y| {
                        if x != y {
                            x.min(y)
                        } else if x.is_sign_negative() {
                            x
                        } else {
                            y
                        }
                    }),
                ];
                for (operation, of) in truth {
                    let truth: Vec<$float> = x.iter().zip(&y).map(|(&x, &y)| of(x, y)).collect();
                    same(operation.name(), &run(operation, $real, &x, &y, x.len()), &truth);
                }
                let larger = |x: $float, y: $float| {
                    if x != y {
                        x.max(y)
                    } else if x.is_sign_positive() {
                        x
                    } else {
                        y
                    }
                };
                let truth: Vec<$float> = x.iter().zip(&y).map(|(&x, &y)| larger(x, y)).collect();
                same("max", &run(Operation::Max, $real, &x, &y, x.len()), &truth);
            }

            /// Lengths around those of blocks and grids.
            #[test]
            fn lengths() {
                for length in [1, 255, 256, 257, 513, 1300] {
                    let x: Vec<$float> = (0..length).map(|i| i as $float).collect();
                    let truth: Vec<$float> = x.iter().map(|x| x + x).collect();
                    same("add", &run(Operation::Add, $real, &x, &x, length), &truth);
                }
            }

            #[test]
            fn exponential() {
                let (low, high) = ($float::MIN_POSITIVE.ln() as i32 - 60, $float::MAX.ln() as i32 + 10);
                let steps = (low * 8..high * 8).map(|i| i as $float / 8.0 + 0.011);
                let x: Vec<$float> = steps.chain([0.0, $float::INFINITY, $float::NEG_INFINITY, $float::NAN]).collect();
                let found = run(Operation::Exp, $real, &x, &x, x.len());
                for (x, found) in x.into_iter().zip(found) {
                    let truth = x.exp();
                    // Two units of the last place; below normal numbers, of the smallest one.
                    let unit = (truth * $float::EPSILON).max($float::from_bits(1));
                    let close = if truth.is_finite() { (found - truth).abs() <= 2.0 * unit } else { found == truth };
                    assert!(close || found.is_nan() && x.is_nan(), "exp({x:?}) is {found:?}, and should be {truth:?}");
                }
            }

            type Complex = [$float; 2];

            fn smith([a, b]: Complex, [c, d]: Complex) -> Complex {
                if c.abs() >= d.abs() {
                    let r = d / c;
                    let s = c + d * r;
                    [(a + b * r) / s, (b - a * r) / s]
                } else {
                    let r = c / d;
                    let s = d + c * r;
                    [(a * r + b) / s, (b * r - a) / s]
                }
            }

            #[test]
            fn complex() {
                let (x, y) = pairs();
                // Each pair as a number, divided by every seventh after it.
                let x: Vec<Complex> = x.into_iter().zip(y).map(|(a, b)| [a, b]).collect();
                let y: Vec<Complex> = (0..x.len()).map(|i| x[(i * 7 + 3) % x.len()]).collect();
                let truth: [(Operation, fn(Complex, Complex) -> Complex); 6] = [
                    (Operation::Add, |[a, b], [c, d]| [a + c, b + d]),
                    (Operation::Sub, |[a, b], [c, d]| [a - c, b - d]),
                    (Operation::Mul, |[a, b], [c, d]| [a * c - b * d, a * d + b * c]),
                    (Operation::Div, smith),
                    (Operation::Neg, |[a, b], _| [-a, -b]),
                    (Operation::Conjugate, |[a, b], _| [a, -b]),
                ];
                for (operation, of) in truth {
                    let truth: Vec<$float> = x.iter().zip(&y).flat_map(|(&x, &y)| of(x, y)).collect();
                    same(
                        operation.name(),
                        &run(operation, $complex, x.as_flattened(), y.as_flattened(), x.len()),
                        &truth,
                    );
                }
                let found = run(Operation::Abs, $complex, x.as_flattened(), &[], x.len());
                for ([a, b], found) in x.into_iter().zip(found) {
                    let truth = a.hypot(b);
                    // Four roundings, and those of numbers below the normal ones.
                    let bound = 4.0 * (truth * $float::EPSILON).max($float::from_bits(1));
                    let close = if truth.is_finite() { (found - truth).abs() <= bound } else { found == truth };
                    assert!(close || found.is_nan() && truth.is_nan(), "|{a:?} + {b:?} i| is {found:?}, not {truth:?}");
                }
            }

            /// Numbers whose squares overflow or vanish, and parts of very different sizes.
            #[test]
            fn scaled_division() {
                let (large, small) = ($float::MAX / 4.0, $float::MIN_POSITIVE * 4.0);
                let x = [[large, large], [small, small], [1.0, 1.0], [large, 0.0]];
                let y = [[large, large], [small, small], [large.sqrt(), 1.0 / large.sqrt()], [0.0, large]];
                let truth = [[1.0, 0.0], [1.0, 0.0], [1.0 / large.sqrt(), 1.0 / large.sqrt()], [0.0, -1.0]];
                let found = run(Operation::Div, $complex, x.as_flattened(), y.as_flattened(), x.len());
                for (found, truth) in found.into_iter().zip(truth.as_flattened()) {
                    assert!((found - truth).abs() <= 4.0 * truth.abs() * $float::EPSILON, "{found:?} is not {truth:?}");
                }
            }
        }
    };
}
tests_of!(single, f32, Scalar::F32, Scalar::C64);
tests_of!(double, f64, Scalar::F64, Scalar::C128);

#[test]
fn operations_without_a_meaning_are_refused() {
    let error = Elementwise::new(Operation::Max, Scalar::C64).expect_err("complex numbers have no order");
    assert!(error.to_string().contains("`max` of c64"), "{error}");
    assert!(Elementwise::new(Operation::Conjugate, Scalar::F32).is_err());
    assert_eq!(Elementwise::all().count(), 11 + 11 + 7 + 7);
}

/// A kernel is text within a millisecond: the fastest of some tries, since other programs run beside this one.
#[test]
fn a_millisecond_a_kernel() {
    let modules = Elementwise::all().map(|kernel| (kernel.name(), Box::new(move || kernel.write())));
    for (name, write) in modules {
        let tries = (0..20).map(|_| {
            let start = Instant::now();
            write().expect("a kernel");
            start.elapsed()
        });
        let fastest = tries.min().expect("some tries");
        assert!(fastest <= Duration::from_millis(1), "{name} took {fastest:?}");
    }
}
