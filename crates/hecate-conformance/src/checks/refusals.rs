//! What does not fit is refused before anything runs, by a typed error that names the slot.

use crate::{Array, Case, Sizes, oracle::Oracle};
use hecate_core::{DType, Device, Error, Host, Inputs, Kernel, Result, Tensor, forward, infer};

/// Two sequences of 5 tokens, two heads, keys of 3 and values of 4: small, and no two neighbouring axes are alike.
const SIZES: Sizes = Sizes::new(2, 5, 2, 3, 4);

/// A slot made wrong, and the kind of error that it must give.
struct Fault<D: Device> {
    name: &'static str,
    /// The wrong tensor in place of the right array.
    spoil: fn(&Array, &D) -> Result<Tensor<D>>,
    /// Whether this error is the right one for `slot`.
    fits: fn(&Error, &'static str) -> bool,
}

/// Every way to be wrong; the fault's name completes the sentence of a message.
fn faults<D: Device>() -> [Fault<D>; 4] {
    [
        Fault {
            name: "one token or sequence more",
            spoil: |x, device| {
                let mut axes = x.shape.axes().to_vec();
                // Axis 1 is the tokens of gates, q, k and v, and the heads of states.
                axes[1] += 1;
                Array::full(axes, 0.5).upload(device, DType::F32)
            },
            // `q` is what the others are measured by.
            fits: |error, slot| matches!(error, Error::Shape { slot: found, .. } if *found == slot || slot == "q"),
        },
        Fault {
            // As many elements as there should be: only the axes are wrong.
            name: "one axis",
            spoil: |x, device| Array::new([x.values.len()], x.values.clone()).upload(device, DType::F32),
            fits: |error, slot| matches!(error, Error::Rank { slot: found, .. } | Error::Shape { slot: found, .. } if *found == slot),
        },
        Fault {
            // A kernel over nothing would have no blocks to start.
            name: "no elements",
            spoil: |x, device| {
                let mut axes = x.shape.axes().to_vec();
                axes[0] = 0;
                Array::full(axes, 0.0).upload(device, DType::F32)
            },
            fits: |error, slot| matches!(error, Error::Empty { slot: found, .. } | Error::Shape { slot: found, .. } if *found == slot),
        },
        Fault {
            // As wide as floats: kernels would read their bits as such.
            name: "integers",
            spoil: |x, device| Tensor::upload(device, x.shape.clone(), Host::zeros(DType::U32, x.values.len())?),
            fits: |error, slot| matches!(error, Error::DType { slot: found, .. } if *found == slot),
        },
    ]
}

/// Every input with a wrong length, number of axes, without elements and of a wrong type; an anchor too, where there is one.
pub fn refuses_inputs<R: Oracle, B: Kernel<R>>(backends: &[B]) {
    let case = Case::new(R::all()[0], SIZES, 37);
    refuses_inputs_of(&backends[0], &case);
    if let Some(case) = case.anchored(38) {
        refuses_inputs_of(&backends[0], &case);
    }
}

/// Of one case.
/// One slot is wrong at a time, so that the error can name no other.
fn refuses_inputs_of<R: Oracle, B: Kernel<R>>(backend: &B, case: &Case<R>) {
    let rule = case.rule;
    let slots: Vec<&'static str> = case.inputs.list().into_iter().map(|(slot, _)| slot).collect();
    for spoiled in slots {
        for fault in faults::<B>() {
            let wrong: Result<Inputs<R, Tensor<B>>> = case.inputs.clone().try_map(|slot, array| {
                if slot == spoiled { (fault.spoil)(&array, backend) } else { array.upload(backend, DType::F32) }
            });
            let wrong = wrong.expect("an upload");
            let what = format!("{case} with {} in `{spoiled}` on {backend:?}", fault.name);
            // Both ways in check alike, before anything is allocated.
            expect(&what, infer(backend, rule, &wrong).map(|_| ()), |error| (fault.fits)(error, spoiled));
            expect(&what, forward(backend, rule, wrong).map(|_| ()), |error| (fault.fits)(error, spoiled));
        }
    }
}

/// Every gradient of a result with a wrong length, number of axes, without elements and of a wrong type.
/// The forward is honest, so that only what the backward is given can be wrong.
pub fn refuses_grads<R: Oracle, B: Kernel<R>>(backends: &[B]) {
    let (rule, backend) = (R::all()[0], &backends[0]);
    let case = Case::new(rule, SIZES, 41);
    let slots: Vec<&'static str> = case.grads.list().into_iter().map(|(slot, _)| slot).collect();
    for spoiled in slots {
        for fault in faults::<B>() {
            // A pass of its own for each fault: backward consumes it.
            let pass = forward(backend, rule, case.upload(backend, DType::F32).expect("an upload"))
                .unwrap_or_else(|error| panic!("{case} on {backend:?}: {error}"))
                .pass;
            let wrong = case.grads.clone().try_map(|slot, array| {
                if slot == spoiled { (fault.spoil)(&array, backend) } else { array.upload(backend, DType::F32) }
            });
            let what = format!("backward of {case} with {} in `{spoiled}` on {backend:?}", fault.name);
            let result = pass.backward(wrong.expect("an upload")).map(|_| ());
            expect(&what, result, |error| (fault.fits)(error, spoiled));
        }
    }
}

/// The result is an error that fits and whose message names what went wrong.
fn expect(what: &str, result: Result<()>, fits: impl Fn(&Error) -> bool) {
    match result {
        Ok(()) => panic!("{what}: accepted"),
        Err(error) => assert!(fits(&error), "{what}: another error than expected: {error}"),
    }
}
