//! A pass that only reads leaves every rule's memory as it is.

use crate::column::{Column, device, is_missing};
use hecate_conformance::{Array, Case, FORWARD, Sizes, error, oracle::Oracle};
use hecate_core::{DType, Dims, Inputs, Kernel, Of, Rule, Sequences, Slots, Tensor, for_each_rule, infer, rules::*};
use hecate_models::{Parameters, Tape, Var, layers::GatedRule};

const SIZES: Sizes = Sizes::new(2, 9, 2, 5, 5);

fn copy<R: Rule, T: Clone>(state: &Of<R::State, T>) -> Of<R::State, T> {
    R::State::map(R::State::as_ref(state), |_, x| x.clone())
}

/// What `q [B,T,H,K]` read in a memory that is not written.
fn read<R: GatedRule>(rule: R, dims: &Dims, q: &Array, state: Of<R::State, Tensor<Column>>) -> Array
where
    Column: Kernel<R>,
{
    let tokens = q.shape.axes()[1];
    let dims = Dims { tokens, sequences: Sequences::batch(dims.batch, tokens), ..dims.clone() };
    let q = Var::constant(q.upload(&device(), DType::F32).expect("queries"));
    let inputs = rule.reading(&dims, q, R::State::map(state, |_, x| Var::constant(x))).expect("arguments");
    let parameters = Parameters::new();
    let outputs = Tape::inert(&parameters).memory(rule.still(), &dims.sequences, inputs).expect("a pass");
    Array::download(outputs.out.value()).expect("what was read")
}

fn check<R: Oracle + GatedRule>()
where
    Column: Kernel<R>,
{
    // Where lengths go back as groups start, a memory is not read as it was left, and neurons are silent without a current:
    // layers refuse to read such ones.
    for rule in R::all().into_iter().filter(|rule| !rule.needs_anchor() && R::NAME != Lif::NAME) {
        let case = Case::new(rule, SIZES, 7);
        let inputs: Inputs<R, Tensor<Column>> = case.upload(&device(), DType::F32).expect("arguments");
        let written = infer(&device(), rule, &inputs).expect("a pass");
        let (first, last) = (copy::<R, _>(&inputs.state), copy::<R, _>(&written.state));
        let (q, out, end) = (&case.inputs.q, Array::download(&written.out).expect("a result"), SIZES.tokens);

        let together = read(rule, &case.dims, q, copy::<R, _>(&last));
        let one = |t| read(rule, &case.dims, &q.cut(1, t..t + 1), copy::<R, _>(&last));
        let alone = Array::join(&(0..end).map(one).collect::<Vec<_>>(), 1);
        let off = error(&alone.values, &together.values);
        assert!(off <= FORWARD, "{rule:?}: the memory moved while it was read, by {off:.1e}");

        // Rules that read after their write read the last memory last, those that read before it the first one first.
        let ends = error(&out.cut(1, end - 1..end).values, &together.cut(1, end - 1..end).values);
        let starts = error(&out.cut(1, 0..1).values, &read(rule, &case.dims, &q.cut(1, 0..1), first).values);
        let off = ends.min(starts);
        assert!(off <= FORWARD, "{rule:?}: reads another memory, off by {off:.1e}");
    }
}

macro_rules! check_all {
    ($($rule:ident),*) => { $(check::<$rule>();)* };
}

#[test]
fn every_rule_can_be_read_without_writing() {
    if is_missing() {
        return;
    }
    for_each_rule!(check_all);
}
