//! Arrays of two device values never meet: every call that takes several arrays is made with one of them astray.
//!
//! A kernel that read an array of another device would read a foreign address; core refuses first, by name.

mod calls;
mod lies;

pub use calls::{CALLS, CoreCall, calls};
pub use lies::bears_lies;

use crate::{Array, Case, Sizes, oracle::Oracle};
use hecate_core::{
    DType, Device, Error, Host, Inputs, Kernel, Outputs, Result, Shape, Tensor, forward, infer,
    quantized::{BlockFormat, Quantized},
};
use lies::{Liar, Lie};
use std::cell::Cell;

/// Makes the arguments of a call. One of them, counted in the order in which they are asked for, lies on another device, or is
/// not what the call expects.
#[derive(Debug)]
pub struct Placed<'a, D: Device> {
    /// Where the call is to run.
    here: &'a D,
    /// Another value of the same backend.
    there: &'a D,
    /// Number of the argument that lies on `there`.
    astray: Option<usize>,
    /// Which arguments lie, and how.
    liar: Option<Liar>,
    /// Arguments made so far.
    made: Cell<usize>,
    /// Whether the call names a device beside its arrays.
    anchored: Cell<bool>,
}

impl<'a, D: Device> Placed<'a, D> {
    fn new(here: &'a D, there: &'a D, astray: Option<usize>) -> Self {
        Self { here, there, astray, liar: None, made: Cell::new(0), anchored: Cell::new(false) }
    }

    /// The device that the call names.
    fn device(&self) -> &'a D {
        self.anchored.set(true);
        self.here
    }

    /// The next argument: ones.
    fn ones<const N: usize>(&self, shape: [usize; N]) -> Tensor<D> {
        self.place(shape.into(), |count| Host::F32(vec![1.0; count]))
    }

    /// The next argument: zeros of 32-bit integers.
    fn ids<const N: usize>(&self, shape: [usize; N]) -> Tensor<D> {
        self.place(shape.into(), |count| Host::U32(vec![0; count]))
    }

    /// The next argument: a quantized matrix of zeros.
    fn quantized(&self, shape: [usize; 2]) -> Quantized<D> {
        let lie = self.lie(&shape.into());
        let device = self.next();
        let made = |shape| Quantized::zeros(device, BlockFormat::Q8_0, shape);
        // A lie that is no matrix of blocks does not get so far.
        let lied = lie.and_then(|lie| made(lie.shape.axes().try_into().ok()?).ok());
        lied.map_or_else(|| made(shape), Ok).expect("an upload")
    }

    /// The next argument, on `there` where it is the one astray.
    fn place(&self, shape: Shape, fill: impl Fn(usize) -> Host) -> Tensor<D> {
        let lie = self.lie(&shape);
        let device = self.next();
        match lie {
            Some(lie) => lie.tell(device, fill).expect("an upload"),
            None => Tensor::upload(device, shape.clone(), fill(shape.count())).expect("an upload"),
        }
    }

    /// Where the next argument lies.
    fn next(&self) -> &'a D {
        let number = self.made.replace(self.made.get() + 1);
        if self.astray == Some(number) { self.there } else { self.here }
    }

    /// What the next argument says in place of this shape, where it lies.
    fn lie(&self, shape: &Shape) -> Option<Lie> {
        self.liar.as_ref()?.lie(self.made.get(), shape)
    }

    /// Whether this argument has another, or a device, to be told apart from.
    fn meets_others(&self) -> bool {
        self.made.get() > 1 || self.anchored.get()
    }
}

/// Every call with each of its arguments astray in turn is [`Error::OtherDevice`].
pub fn refuses_calls<D: hecate_core::Backend>(here: &D, there: &D) {
    for CoreCall { name, call } in calls::<D>() {
        // Nobody counts arguments beforehand: the call makes them, and the first number over ends it.
        for astray in 0.. {
            let placed = Placed::new(here, there, Some(astray));
            let result = call(&placed);
            if astray >= placed.made.get() {
                assert!(astray > 0, "{name}: no argument");
                break;
            }
            // A call of one array and no device runs wherever the array lies.
            if placed.meets_others() {
                expect(&format!("{name} with argument {astray} astray"), here, there, result);
            }
        }
    }
}

/// Every call with all of its arguments on one device goes through, so that what [`refuses_calls`] sees is that one error.
pub fn accepts_calls<D: hecate_core::Backend>(device: &D) {
    for CoreCall { name, call } in calls::<D>() {
        match call(&Placed::new(device, device, None)) {
            // Few devices have it; the check of arguments is over by then.
            Err(Error::Unsupported { .. }) if ["decode", "fp8_matmul"].contains(&name) => {}
            result => result.unwrap_or_else(|error| panic!("{name} on {device:?}: {error}")),
        }
    }
}

/// Small: nothing is to run.
const SIZES: Sizes = Sizes::new(2, 5, 2, 3, 4);

/// Every input of a rule, astray or on a device other than the one that is named, is [`Error::OtherDevice`].
pub fn refuses_inputs<R: Oracle, D: Kernel<R>>(here: &D, there: &D) {
    let case = Case::new(R::all()[0], SIZES, 43);
    let slots: Vec<&'static str> = case.inputs.list().into_iter().map(|(slot, _)| slot).collect();
    for astray in slots {
        let inputs = || -> Inputs<R, Tensor<D>> {
            let place = |slot, x: Array| x.upload(if slot == astray { there } else { here }, DType::F32);
            case.inputs.clone().try_map(place).expect("an upload")
        };
        let what = format!("{case} with `{astray}` astray");
        expect(&what, here, there, infer(here, case.rule, &inputs()).map(drop));
        expect(&what, here, there, forward(here, case.rule, inputs()).map(drop));
    }
    // Arrays that agree among themselves still contradict the device that is named.
    let all: Inputs<R, Tensor<D>> = case.upload(there, DType::F32).expect("an upload");
    expect(&format!("{case} with all astray"), here, there, infer(here, case.rule, &all).map(drop));
    expect(&format!("{case} with all astray"), here, there, forward(here, case.rule, all).map(drop));
}

/// Every gradient of a rule's results, astray, is [`Error::OtherDevice`].
pub fn refuses_grads<R: Oracle, D: Kernel<R>>(here: &D, there: &D) {
    let case = Case::new(R::all()[0], SIZES, 47);
    let slots: Vec<&'static str> = case.grads.list().into_iter().map(|(slot, _)| slot).collect();
    for astray in slots {
        let place = |slot, x: Array| x.upload(if slot == astray { there } else { here }, DType::F32);
        let grads: Outputs<R, Tensor<D>> = case.grads.clone().try_map(place).expect("an upload");
        let inputs = case.upload(here, DType::F32).expect("an upload");
        let pass = forward(here, case.rule, inputs).unwrap_or_else(|error| panic!("{case} on {here:?}: {error}")).pass;
        expect(&format!("backward of {case} with `{astray}` astray"), here, there, pass.backward(grads).map(drop));
    }
}

/// [`Tensor::to`] brings the elements to the other device, where calls take them, and copies nothing at home.
pub fn moves<D: hecate_core::Backend>(here: &D, there: &D) {
    use hecate_core::primitives::add;
    // A clone is the same device.
    assert_eq!(here.id(), here.clone().id());
    assert_ne!(here.id(), there.id());
    assert_ne!(here.id().to_string(), there.id().to_string());
    let upload = |device: &D| Tensor::from_f32(device, [2, 2], vec![1.0, -2.0, 3.5, 0.0]).expect("an upload");
    let (x, y) = (upload(here), upload(there));
    expect("add", here, there, add(&x, &y).map(drop));
    let moved = y.to(here).expect("a move");
    assert_eq!((moved.device().id(), moved.shape(), moved.dtype()), (here.id(), x.shape(), x.dtype()));
    assert_eq!(add(&x, &moved).and_then(|sum| sum.to_f32()).expect("a sum"), [2.0, -4.0, 7.0, 0.0]);
    let same = x.to(here).expect("a move");
    // The same buffer, not an equal one.
    assert!(std::ptr::eq(x.buffer(), same.buffer()), "an array was copied to where it lies");
}

/// The result is the error that names both devices, and the way out.
#[track_caller]
fn expect<D: Device>(what: &str, here: &D, there: &D, result: Result<()>) {
    let Err(error) = result else { panic!("{what}: accepted on {here:?}") };
    let text = error.to_string();
    let Error::OtherDevice { expected, found, .. } = error else { panic!("{what}: another error: {text}") };
    // The first argument is what the others are measured by, so either device may be the expected one.
    assert!(expected != found && [here.id(), there.id()].contains(&&expected), "{what}: {text}");
    assert!([here.id(), there.id()].contains(&&found), "{what}: {text}");
    for part in [here.id().to_string(), there.id().to_string(), "tensor.to(&device)".into()] {
        assert!(text.contains(&part), "{what}: `{text}` does not name `{part}`");
    }
}
