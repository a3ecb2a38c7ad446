//! Sums, differences, products, quotients and means on a tape, by methods and by operators, and operations of a caller's own.

use super::{
    HIDDEN, check,
    tape::{array, parameters, place, values},
};
use crate::column::{Column, another, device, is_missing};
use hecate_conformance::oracle::Var as Row;
use hecate_core::{Backend, DType, Device as _, Result as CoreResult, Tensor, primitives as p};
use hecate_models::{Builder, Init, ParameterId, Parameters, Result, Tape, Var};

/// A row `w` that serves all others, away from zero.
fn row(build: &mut Builder<'_, Column>) -> Result<ParameterId> {
    build.parameter("w", [HIDDEN], Init::Constant(1.5))
}

/// `x` as far from zero as a divisor should be: `eˣ`.
fn positive(tape: &Tape<'_, Column>, x: &Var<Column>) -> Result<Var<Column>> {
    tape.map(p::Map::Exp, x)
}

#[test]
fn methods_are_their_equations() {
    if is_missing() {
        return;
    }
    check(
        "methods",
        row,
        |&w, tape, x| {
            let w = tape.parameter(w)?;
            // The row is on either side, and so are arrays of one shape.
            let inner = tape.sub(&tape.mul(&w, x)?, &tape.div(x, &w)?)?;
            let outer = tape.div(&tape.sub(&w, x)?, &positive(tape, x)?)?;
            tape.add(&tape.div(&w, &positive(tape, &inner)?)?, &tape.sub(&outer, &inner)?)
        },
        |weights, x| {
            let w = weights.matrix("w");
            let row = |x: &Row| {
                let inner = w * x - x * w.recip();
                let outer = (w - x) * x.exp().recip();
                w * inner.exp().recip() + (&outer - &inner)
            };
            x.iter().map(row).collect()
        },
    );
}

/// Owned and borrowed values, results of other operators, and numbers on both sides.
#[test]
fn operators_are_their_equations() {
    if is_missing() {
        return;
    }
    check(
        "operators",
        |build| Ok([row(build)?, build.parameter("s", [1], Init::Constant(-0.75))?]),
        |&[w, s], tape, x| {
            let (w, e) = (tape.parameter(w)?, positive(tape, x)?);
            let first = (&w * x - x + (0.5 * x)? - (1.5 * &w)?)?;
            let second = (2.0 - &e)? / (&e + 3.0) - ((1.0 / &e)? / 4.0)?;
            let bottom = (e * 2.0)? + 0.25 - (&w / 8.0)?;
            let third = (-(x.clone() * w.clone() + &first)?)? / bottom;
            // One number for all elements serves rows of one element.
            let shape = first.value().shape().clone();
            let column = tape.reshape(&first, [shape.count(), 1])?;
            let scaled = tape.reshape(&(column * tape.parameter(s)?)?, shape)?;
            (second? + third - scaled) * &w
        },
        |weights, x| {
            let (w, s) = (weights.matrix("w"), weights.matrix("s"));
            let row = |x: &Row| {
                let e = x.exp();
                let first = w * x - x + x.scale(0.5) - w.scale(1.5);
                let second = e.scale(-1.0).shift(2.0) * e.shift(3.0).recip() - e.recip().scale(0.25);
                let bottom = (e.scale(2.0).shift(0.25) - w.scale(0.125)).recip();
                let third = (x * w + &first).scale(-1.0) * bottom;
                (second + third - &first * s) * w
            };
            x.iter().map(row).collect()
        },
    );
}

#[test]
fn sums_and_means_are_their_equations() {
    if is_missing() {
        return;
    }
    let total = |rows: &[Row], of: &dyn Fn(&Row) -> Row| Row::total(rows.iter().map(|row| of(row).sum()));
    check(
        "sum and mean",
        row,
        |&w, tape, x| {
            let w = tape.parameter(w)?;
            let products = tape.mul(x, &w)?;
            // Each is taken once more, so that their own gradients are no ones.
            let [sum, mean] = [tape.sum(&tape.mul(&products, x)?)?, tape.mean(&products)?];
            tape.concat(&[&tape.mul(&sum, &mean)?, &tape.scale(3.0, &mean)?], 0)
        },
        |weights, x| {
            let w = weights.matrix("w");
            let (sum, mean) = (total(x, &|x| x * w * x), total(x, &|x| x * w).scale(1.0 / (x.len() * HIDDEN) as f64));
            vec![&sum * &mean, mean.scale(3.0)]
        },
    );
    check(
        "mean squared error",
        row,
        |&w, tape, x| {
            let w = tape.parameter(w)?;
            let to_row = tape.mean_squared_error(x, &w)?;
            let to_rows = tape.mean_squared_error(&tape.mul(x, x)?, x)?;
            tape.mul(&to_row, &to_rows)
        },
        |weights, x| {
            let (w, share) = (weights.matrix("w"), 1.0 / (x.len() * HIDDEN) as f64);
            let to_row = total(x, &|x| (x - w).square()).scale(share);
            vec![to_row * total(x, &|x| (x.square() - x).square()).scale(share)]
        },
    );
}

/// `f` of every element, on the host.
fn on_host<B: Backend>(x: &Tensor<B>, f: fn(f32) -> f32) -> CoreResult<Tensor<B>> {
    Tensor::from_f32(x.device(), x.shape().clone(), x.to_f32()?.into_iter().map(f).collect())
}

/// An operation with two arguments and two results, neither of which any primitive has: `cosh x`, and `w sinh x`.
fn hyperbolic(tape: &Tape<'_, Column>, x: &Var<Column>, w: &Var<Column>) -> Result<[Var<Column>; 2]> {
    let (cosh, sinh) = (on_host(x.value(), f32::cosh)?, on_host(x.value(), f32::sinh)?);
    let (first, second) = (cosh.clone(), p::mul(&sinh, w.value())?);
    let w_kept = w.value().clone();
    tape.custom_each([x, w], [first, second], move |[first, second]| {
        let of_first = first.map(|dy| p::mul(&dy, &sinh)).transpose()?;
        let Some(dy) = second else { return Ok([of_first, None]) };
        let p::Operands { a: of_second, b: dw } = p::mul_backward(&sinh, &w_kept, &dy)?;
        let of_second = p::mul(&of_second, &cosh)?;
        let dx = of_first.map_or(Ok(of_second.clone()), |dx| p::add(&dx, &of_second))?;
        Ok([Some(dx), Some(dw)])
    })
}

#[test]
fn operations_of_a_callers_own_turn_around() {
    if is_missing() {
        return;
    }
    let cosh = |x: &Row| (x.exp() + x.scale(-1.0).exp()).scale(0.5);
    let sinh = |x: &Row| (x.exp() - x.scale(-1.0).exp()).scale(0.5);
    check(
        "custom",
        row,
        |&w, tape, x| {
            let w = tape.parameter(w)?;
            let [first, second] = hyperbolic(tape, x, &w)?;
            // Both results, then the second alone, then the first alone; and an operation with one result.
            let [_, again] = hyperbolic(tape, &first, &w)?;
            let [once, _] = hyperbolic(tape, &tape.scale(0.5, &second)?, &w)?;
            let kept = once.value().clone();
            let square = p::mul(&kept, &kept)?;
            let square = tape.custom([&once], square, move |dy| Ok([Some(p::scale(2.0, &p::mul(&dy, &kept)?)?)]))?;
            (square + again) * &second
        },
        |weights, x| {
            let w = weights.matrix("w");
            let row = |x: &Row| {
                let (first, second) = (cosh(x), w * sinh(x));
                (cosh(&second.scale(0.5)).square() + w * sinh(&first)) * second
            };
            x.iter().map(row).collect()
        },
    );
}

/// The parameter `a [2,3]` on a tape, and an operation on it that returns this gradient.
fn with_gradient(parameters: &Parameters<Column>, gradient: Option<Tensor<Column>>) -> Result<Vec<f32>> {
    let tape = Tape::recording(parameters);
    let a = tape.parameter(place(parameters, 0))?;
    let y = tape.custom([&a], a.value().clone(), |_| Ok([gradient]))?;
    let loss = tape.sum(&(y + &a)?)?;
    let gradients = tape.backward(&loss)?;
    Ok(gradients.get(place(parameters, 0)).expect("a gradient").to_f32()?)
}

/// What a backward returns is held to the argument's form; nothing stands for zeros.
#[test]
fn gradients_that_do_not_fit_are_refused() {
    if is_missing() {
        return;
    }
    let parameters = parameters();
    assert_eq!(with_gradient(&parameters, None).expect("gradients"), [1.0; 6]);
    assert_eq!(with_gradient(&parameters, Some(array(&[2, 3], [2; 6]))).expect("gradients"), [3.0; 6]);
    let rounded = p::cast(DType::Bf16, &array(&[2, 3], [2; 6])).expect("an array");
    let elsewhere = Tensor::zeros(&another(), [2, 3], DType::F32).expect("an array");
    let name = elsewhere.device().id().to_string();
    let wrong = [(array(&[3, 2], [2; 6]), "[3, 2]"), (rounded, "bf16"), (elsewhere, name.as_str())];
    for (gradient, word) in wrong {
        let message = with_gradient(&parameters, Some(gradient)).expect_err("refused").to_string();
        for word in ["gradient of argument 1 of a custom operation", word, "[2, 3] of f32"] {
            assert!(message.contains(word), "`{word}` is not in: {message}");
        }
    }
    let tape = Tape::recording(&parameters);
    let a = tape.parameter(place(&parameters, 0)).expect("a");
    let value = Tensor::zeros(&another(), [2, 3], DType::F32).expect("an array");
    assert!(tape.custom([&a], value, |dy| Ok([Some(dy)])).is_err(), "a value on another device");
}

/// Errors of a backward come out of the way back; where no gradient is wanted it is not called.
#[test]
fn a_backward_is_called_where_it_is_wanted() {
    if is_missing() {
        return;
    }
    let parameters = parameters();
    let refuse = |_| Err(hecate_core::Error::other("no way back"));
    let run = |tape: Tape<'_, Column>, constant: bool| -> Result<()> {
        let a = tape.parameter(place(&parameters, 0))?;
        let x = if constant { Var::constant(a.value().clone()) } else { a.clone() };
        let y = tape.custom([&x], x.value().clone(), refuse)?;
        assert_eq!(y.is_constant(), x.is_constant());
        let loss = tape.sum(&(y + a)?)?;
        tape.backward(&loss).map(drop)
    };
    let message = run(Tape::recording(&parameters), false).expect_err("refused").to_string();
    assert_eq!(message, "no way back");
    run(Tape::recording(&parameters), true).expect("no gradient is wanted");
    let inert = run(Tape::inert(&parameters), false).expect_err("refused").to_string();
    assert!(inert.contains("inert"), "{inert}");
}

/// Shapes that do not fit are errors of operators, wherever the operand that is wrong stands.
#[test]
fn operators_refuse_what_methods_refuse() {
    if is_missing() {
        return;
    }
    let parameters = parameters();
    let tape = Tape::recording(&parameters);
    let [a, b] = [0, 1].map(|index| tape.parameter(place(&parameters, index)).expect("a parameter"));
    for (name, result) in [("add", &a + &b), ("sub", &b - &a), ("mul", &b * &a), ("div", &a / &b)] {
        assert!(result.expect_err("refused").to_string().starts_with(name), "{name}");
    }
    assert!((&a + (&a / &b)).is_err() && ((&a + &b) * &a).is_err());
}

/// Values go from thread to thread, and outlive their tape: then they are constants.
#[test]
fn operators_work_wherever_values_are() {
    if is_missing() {
        return;
    }
    fn moves<T: Send + Sync>(_: &T) {}
    let parameters = parameters();
    let tape = Tape::recording(&parameters);
    let a = tape.parameter(place(&parameters, 0)).expect("a");
    moves(&a);
    let doubled = std::thread::scope(|scope| scope.spawn(|| (&a + &a).expect("a sum")).join().expect("a sum"));
    let loss = tape.sum(&doubled).expect("a sum");
    let gradients = tape.backward(&loss).expect("gradients");
    assert_eq!(values(&gradients)[0], Some(vec![2.0; 6]));
    // The tape is gone.
    let after = (&doubled * 2.0).expect("a product");
    assert!(after.is_constant() && after.value().to_f32().expect("an array")[5] == 24.0);
}

/// In 16 bits sums are made in 32, and gradients have the type of what they are of.
#[test]
fn means_of_rounded_values_keep_their_digits() {
    if is_missing() {
        return;
    }
    let mut parameters = Parameters::new();
    // A sum of more than f16 can hold, of which each element has less of a share than f16 can.
    let x = Tensor::from_f32(&device(), [70_000], vec![3.0; 70_000]).expect("an array");
    parameters.add("x", x, false);
    let tape = Tape::recording(&parameters);
    let x = tape.cast(DType::F16, &tape.parameter(place(&parameters, 0)).expect("x")).expect("halves");
    let error = tape.mean_squared_error(&x, &(&x - 1.0).expect("a difference")).expect("an error");
    let sum = tape.sum(&x).expect("a sum");
    assert_eq!(sum.value().to_f32().expect("a number"), [210_000.0]);
    assert_eq!((error.value().dtype(), error.value().to_f32().expect("a number")), (DType::F32, vec![1.0]));
    // What the error gives by x and by x − 1 is 2/n and −2/n; 1/n is left, of the mean, to the digits that f16 has there.
    let loss = (tape.mean(&x).expect("a mean") + &error).expect("a loss");
    let gradients = values(&tape.backward(&loss).expect("gradients"));
    let gradient = gradients[0].as_ref().expect("a gradient");
    assert!(gradient.iter().all(|x| (x - 70_000f32.recip()).abs() < 6e-8), "{:?}", &gradient[..2]);
}
