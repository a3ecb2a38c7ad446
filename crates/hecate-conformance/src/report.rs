//! The comparisons alone, for a table on the user's own device.

use crate::{
    Case, Comparison, Sizes,
    case::{compare_grads, compare_outputs},
    oracle::{Oracle, solve},
    primitive_cases::{self, PrimitiveCase},
};
use hecate_core::{Backend, DType, Kernel, Rule, rules::*};
use serde_json::Value;

/// One line of the table.
///
/// A rule has one line for each combination of its options, a primitive one for all of its calls.
#[derive(Clone, Debug)]
pub struct Cell {
    /// Name of the rule or primitive.
    pub name: &'static str,
    /// Options of a rule that are not as by default; the number of a primitive's calls.
    pub options: String,
    /// How many forms it has been compared in: calls of a primitive, one of a rule with these options. None of a primitive that
    /// the device does not have.
    pub forms: usize,
    /// Worst error of any result at any size, against 64-bit equations; NaN where there is no result.
    pub forward_error: f64,
    /// Worst error of any gradient; absent where there is no backward.
    pub backward_error: Option<f64>,
    /// Whether every slot was within its limit.
    pub passed: bool,
    /// What failed: slots over their limits, or what the device reported.
    pub failure: Option<String>,
}

impl Cell {
    /// Of a primitive that the device need not have, and does not have.
    fn absent(name: &'static str) -> Self {
        let (options, failure) = ("not on this device".to_owned(), None);
        Self { name, options, forms: 0, forward_error: 0.0, backward_error: None, passed: true, failure }
    }
}

/// Compares every rule with all its options, and every primitive, forward and backward, with the 64-bit equations.
/// `on_cell` sees each line as soon as it is there.
pub fn check_all<B: Backend>(backend: &B, mut on_cell: impl FnMut(&Cell)) -> Vec<Cell> {
    // In the order of the lists: rules with all their options, then primitives.
    let mut cells = Vec::new();
    let mut take = |cell: Cell| {
        on_cell(&cell);
        cells.push(cell);
    };
    macro_rules! rules {
        ($($rule:ident),*) => { $(for rule in <$rule>::all() {
            take(Cell { options: options(rule.into()), ..check_rule(backend, rule) });
        })* };
    }
    hecate_core::for_each_rule!(rules);
    macro_rules! primitives {
        ($($primitive:ident),*) => { $(take(check_primitive(backend, &primitive_cases::$primitive::<B>()));)* };
    }
    crate::for_each_primitive!(primitives);
    cells
}

/// A rule at three sizes, one of them longer than any chunk, and packed.
pub fn check_rule<R: Oracle, B: Kernel<R>>(backend: &B, rule: R) -> Cell {
    // Seeds are fixed, so a second run on the same device finds the same errors.
    let cases = [
        Case::new(rule, Sizes::new(2, 7, 3, 5, 3), 1),
        Case::new(rule, Sizes::new(1, 96, 2, 16, 24), 2),
        Case::packed(rule, &[3, 1, 20], 2, 8, 8, 3),
    ];
    let mut tally = Tally::default();
    for case in &cases {
        match case.run(backend, DType::F32) {
            // The other sizes are still compared: one report names all that is wrong.
            Err(error) => tally.fail(format!("{case}: {error}")),
            Ok(found) => {
                // Only after the device has answered: the equations take longer.
                let truth = solve(case);
                tally.forward(compare_outputs(rule, &truth.outputs, &found.outputs));
                tally.backward(compare_grads(rule, &truth.grads, &found.grads));
            }
        }
    }
    // Whoever checks one rule knows its options.
    tally.cell(<R as Rule>::NAME, String::new(), 1)
}

/// Options of a rule that are not as by default, under the names that configurations have: `erase decayed, frozen 4`.
fn options(rule: AnyRule) -> String {
    // By way of text, which has 32-bit numbers as they were typed.
    let fields = |rule| -> serde_json::Result<Value> {
        let mut fields: Value = serde_json::from_str(&serde_json::to_string(&rule)?)?;
        fields.sort_all_objects();
        Ok(fields)
    };
    // What a name alone stands for.
    let default = AnyRule::named(rule.name()).ok().and_then(|rule| fields(rule).ok()).unwrap_or_default();
    // In the order of names.
    let mut told = Vec::new();
    differences(&default, &fields(rule).unwrap_or_default(), &mut told);
    if told.is_empty() { "as by default".to_owned() } else { told.join(", ") }
}

/// Adds fields of `object` that differ from `default`, those of objects inside too.
fn differences(default: &Value, object: &Value, told: &mut Vec<String>) {
    for (name, value) in
        object.as_object().into_iter().flatten().filter(|(name, value)| default[name.as_str()] != **value)
    {
        match value {
            // A memory's own options, such as its activation.
            Value::Object(_) => differences(&default[name.as_str()], value, told),
            // An option that there is by default, and not here.
            Value::Null => told.push(format!("{name} none")),
            // Without the quotes.
            Value::String(text) => told.push(format!("{name} {text}")),
            value => told.push(format!("{name} {value}")),
        }
    }
}

/// All calls of a primitive are one line: their options are its sizes.
fn check_primitive<B: Backend>(backend: &B, cases: &[PrimitiveCase<B>]) -> Cell {
    // Cases of a primitive are all of one name.
    if cases[0].lacking(backend).is_some() {
        return Cell::absent(cases[0].name);
    }
    let mut tally = Tally::default();
    for case in cases {
        match case.run(backend, DType::F32) {
            Err(error) => tally.fail(format!("{}: {error}", case.options)),
            Ok(found) => {
                // 32 bits alone; 16-bit arguments are a test's affair.
                let (outputs, grads) = case.compare(&case.solve(DType::F32), &found);
                tally.forward(outputs);
                tally.backward(grads);
            }
        }
    }
    tally.cell(cases[0].name, format!("{} calls", cases.len()), cases.len())
}

/// Worst errors so far.
#[derive(Default)]
struct Tally {
    /// Of all results so far; `None` until there is one.
    forward: Option<f64>,
    /// Of all gradients so far; stays `None` without a backward.
    backward: Option<f64>,
    /// Slots over their limits, and what the device reported.
    failures: Vec<String>,
}

impl Tally {
    fn forward(&mut self, compared: Vec<Comparison>) {
        self.forward = self.worst(self.forward, compared);
    }

    fn backward(&mut self, compared: Vec<Comparison>) {
        self.backward = self.worst(self.backward, compared);
    }

    /// The larger of `worst` and these; slots over their limits join the failures.
    fn worst(&mut self, worst: Option<f64>, compared: Vec<Comparison>) -> Option<f64> {
        self.failures.extend(compared.iter().filter(|c| !c.passed()).map(ToString::to_string));
        // `f64::max` drops NaN, which is the worst.
        let max = |a: f64, b: f64| if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) };
        worst.into_iter().chain(compared.iter().map(|c| c.error)).reduce(max)
    }

    fn fail(&mut self, failure: String) {
        self.failures.push(failure);
    }

    /// The line. Without any forward result its error is NaN, and it has not passed.
    fn cell(self, name: &'static str, options: String, forms: usize) -> Cell {
        Cell {
            name,
            options,
            forms,
            forward_error: self.forward.unwrap_or(f64::NAN),
            backward_error: self.backward,
            passed: self.failures.is_empty() && self.forward.is_some(),
            failure: (!self.failures.is_empty()).then(|| self.failures.join("; ")),
        }
    }
}
