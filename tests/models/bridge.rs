//! Memories among dfdx layers: gradients through both, against the same network in 64 bits.

use crate::layers::recurrence::recurrence;
use dfdx::{
    nn::{DeviceBuildExt, Module, builders, modules},
    shapes::{Axes4, Const, Rank2, Rank3, Rank4},
    tensor::{
        AsArray, Cpu as DfdxCpu, Gradients, NoneTape, OwnedTape, PutTape, SplitTape, Tape, Tensor, TensorFromVec, Trace,
    },
    tensor_ops::{Backward, PermuteTo, ReshapeTo, SumTo},
};
use hecate_conformance::{
    Array, Random, error,
    oracle::{Head, Leaf, Oracle, Token, Var, differentiate},
};
use hecate_core::{Error, Inputs, Kernel, Of, Slots, rules::*};
use hecate_cpu::Cpu;
use hecate_models::bridge::{Array4, Slot, memory};

const TOKENS: usize = 5;
const HEADS: usize = 2;
const KEY: usize = 3;
const VALUE: usize = 4;
/// Widths beside the memory.
const INPUT: usize = 7;
const OUTPUT: usize = 6;

type Layer<const I: usize, const O: usize> = modules::Linear<I, O, f32, DfdxCpu>;
type Gate = Tensor<Rank3<1, TOKENS, HEADS>, f32, DfdxCpu>;
type State = Tensor<Rank4<1, HEADS, KEY, VALUE>, f32, DfdxCpu>;

/// A network with a memory between linear layers:
/// `y = tanh(memory(x W_q, tanh(x W_k), v, gates, state)) W_o`.
struct Network<R: Oracle> {
    rule: R,
    x: Tensor<Rank2<TOKENS, INPUT>, f32, DfdxCpu>,
    q: Layer<INPUT, { HEADS * KEY }>,
    k: Layer<INPUT, { HEADS * KEY }>,
    /// Heads in front of tokens: it reaches the memory permuted, with strides of its own.
    v: Tensor<Rank4<1, HEADS, TOKENS, VALUE>, f32, DfdxCpu>,
    gates: Of<R::Gates, Gate>,
    state: Of<R::State, State>,
    o: Layer<{ HEADS * VALUE }, OUTPUT>,
}

impl<R: Oracle> Network<R>
where
    Cpu: Kernel<R>,
{
    fn new(rule: R) -> Self {
        let (device, random) = (DfdxCpu::seed_from_u64(3), &mut Random::new(41));
        let values = |array: Array| array.values.into_iter().map(|x| x as f32).collect::<Vec<_>>();
        let gate = |random: &mut Random, name: &str| {
            let (low, high) = if name.starts_with("log") { (-1.0, 0.0) } else { (0.1, 0.6) };
            device.tensor_from_vec(values(random.uniforms([TOKENS * HEADS], low, high)), Default::default())
        };
        Self {
            rule,
            x: device.tensor_from_vec(values(random.normals([TOKENS * INPUT])), Default::default()),
            q: device.build_module::<builders::Linear<INPUT, { HEADS * KEY }>, f32>(),
            k: device.build_module::<builders::Linear<INPUT, { HEADS * KEY }>, f32>(),
            v: device.tensor_from_vec(values(random.normals([TOKENS * HEADS * VALUE])), Default::default()),
            gates: R::Gates::build(|name| gate(random, name)),
            state: R::State::build(|_| {
                device.tensor_from_vec(values(random.normals([HEADS * KEY * VALUE])), Default::default())
            }),
            o: device.build_module::<builders::Linear<{ HEADS * VALUE }, OUTPUT>, f32>(),
        }
    }

    /// What was read and the last state; `x` carries the tape.
    fn read<T: Tape<f32, DfdxCpu> + 'static>(
        &self,
        x: Tensor<Rank2<TOKENS, INPUT>, f32, DfdxCpu, T>,
    ) -> (Array4<T>, Of<R::State, Array4>) {
        let (q, tape) = self.q.forward(x).split_tape();
        let (k, tape) = self.k.forward(self.x.clone().put_tape(tape)).tanh().split_tape();
        let (v, tape) = self.v.clone().put_tape(tape).permute::<_, Axes4<0, 2, 1, 3>>().split_tape();
        let inputs = Inputs::<R, Slot<T>> {
            q: q.reshape::<Rank4<1, TOKENS, HEADS, KEY>>().into(),
            k: k.reshape::<Rank4<1, TOKENS, HEADS, KEY>>().into(),
            v: v.into(),
            gates: R::Gates::map(R::Gates::as_ref(&self.gates), |_, gate| gate.clone().into()),
            state: R::State::map(R::State::as_ref(&self.state), |_, state| state.clone().into()),
            anchor: None,
        };
        memory(&Cpu::new(), self.rule, inputs, tape).expect("a memory")
    }

    /// Sum of squares of the output and of the last state.
    fn loss(&self) -> Tensor<(), f32, DfdxCpu, OwnedTape<f32, DfdxCpu>> {
        let (out, state) = self.read(self.x.leaky_trace());
        let rows = out.reshape_like(&(TOKENS, Const::<{ HEADS * VALUE }>)).tanh();
        let mut loss = self.o.forward(rows).square().sum();
        for state in R::State::into_vec(state) {
            let (sum, tape) = loss.split_tape();
            let term: Tensor<(), f32, DfdxCpu, OwnedTape<f32, DfdxCpu>> = state.put_tape(tape).square().sum();
            loss = term + sum;
        }
        loss
    }

    /// Arguments in 64 bits: `x, W_q, b_q, W_k, b_k, v, W_o, b_o`, gates, states.
    fn leaves(&self) -> Vec<Leaf> {
        let leaf = |values: Vec<f32>, tile| {
            let values: Vec<f64> = values.into_iter().map(f64::from).collect();
            Leaf { array: Array::new([values.len()], values), tile }
        };
        let mut leaves = vec![
            leaf(self.x.as_vec(), (1, INPUT)),
            leaf(self.q.weight.as_vec(), (HEADS * KEY, INPUT)),
            leaf(self.q.bias.as_vec(), (1, HEADS * KEY)),
            leaf(self.k.weight.as_vec(), (HEADS * KEY, INPUT)),
            leaf(self.k.bias.as_vec(), (1, HEADS * KEY)),
            leaf(self.v.as_vec(), (1, VALUE)),
            leaf(self.o.weight.as_vec(), (OUTPUT, HEADS * VALUE)),
            leaf(self.o.bias.as_vec(), (1, OUTPUT)),
        ];
        leaves.extend(R::Gates::list(&self.gates).into_iter().map(|(_, gate)| leaf(gate.as_vec(), (1, 1))));
        leaves.extend(R::State::list(&self.state).into_iter().map(|(_, state)| leaf(state.as_vec(), (KEY, VALUE))));
        leaves
    }

    /// Gradients in the order of the leaves.
    fn gradients(&self, grads: &Gradients<f32, DfdxCpu>) -> Vec<(&'static str, Vec<f32>)> {
        let mut all = vec![
            ("x", grads.get(&self.x).as_vec()),
            ("q weight", grads.get(&self.q.weight).as_vec()),
            ("q bias", grads.get(&self.q.bias).as_vec()),
            ("k weight", grads.get(&self.k.weight).as_vec()),
            ("k bias", grads.get(&self.k.bias).as_vec()),
            ("v", grads.get(&self.v).as_vec()),
            ("o weight", grads.get(&self.o.weight).as_vec()),
            ("o bias", grads.get(&self.o.bias).as_vec()),
        ];
        all.extend(R::Gates::list(&self.gates).into_iter().map(|(name, gate)| (name, grads.get(gate).as_vec())));
        all.extend(R::State::list(&self.state).into_iter().map(|(name, state)| (name, grads.get(state).as_vec())));
        all
    }
}

/// Columns of one head.
fn head(x: &Var, head: usize, width: usize) -> Var {
    let (_, all) = x.shape();
    let picked = (0..all * width).map(|i| f64::from(u8::from(i / width == head * width + i % width)));
    x.dot(&x.constant(all, width, picked.collect()))
}

/// The loss of [`Network::loss`] in 64 bits.
fn equations<R: Oracle>(rule: R, leaves: &[Vec<Var>]) -> Var {
    let gates = R::Gates::NAMES.len();
    let linear = |x: &Var, i: usize| x.dot(&leaves[i][0].t()) + &leaves[i + 1][0];
    // One head's part of `x W_o` for every token, and the squares of its last state.
    let (mut parts, mut squares) = (vec![Vec::new(); TOKENS], Vec::new());
    for h in 0..HEADS {
        let token = |t: usize| {
            let (x, mut gate) = (&leaves[0][t], leaves[8..8 + gates].iter());
            Token::<R> {
                q: head(&linear(x, 1), h, KEY),
                k: head(&linear(x, 3).tanh(), h, KEY),
                v: leaves[5][h * TOKENS + t].clone(),
                gates: R::Gates::build(|_| gate.next().expect("a gate")[t * HEADS + h].clone()),
                head: Head { index: h, count: HEADS },
            }
        };
        let tokens: Vec<_> = (0..TOKENS).map(token).collect();
        let mut states = leaves[8 + gates..].iter();
        let state = R::State::build(|_| states.next().expect("a state")[h].clone());
        let (out, last) = recurrence(rule, &tokens, state, &[]);
        let back = head(&leaves[6][0], h, VALUE).t();
        out.iter().enumerate().for_each(|(t, y)| parts[t].push(y.tanh().dot(&back)));
        squares.extend(R::State::into_vec(last).iter().map(|state| state.square().sum()));
    }
    let output = |parts: Vec<Var>| (Var::total(parts) + &leaves[7][0]).square().sum();
    Var::total(parts.into_iter().map(output).chain(squares))
}

fn check<R: Oracle>()
where
    Cpu: Kernel<R>,
{
    for rule in R::all() {
        let network = Network::new(rule);
        let loss = network.loss();
        let value = f64::from(loss.array());
        let found = network.gradients(&loss.backward());
        let forward = |leaves: &[Vec<Var>]| vec![vec![equations(rule, leaves)]];
        let (truth, gradients) = differentiate(&network.leaves(), &[Array::full([1], 1.0)], &forward);
        assert!((value - truth[0][0]).abs() <= 1e-5 * value, "{rule:?}: loss {value}, in 64 bits {}", truth[0][0]);
        for ((name, found), truth) in found.iter().zip(&gradients) {
            let off = error(truth, &found.iter().copied().map(f64::from).collect::<Vec<_>>());
            assert!(off <= 1e-4, "{rule:?}: gradient of {name} is off by {off:.1e}");
        }
        // Without a tape the same is read.
        let (with, _) = network.read(network.x.leaky_trace());
        let (without, _) = network.read::<NoneTape>(network.x.clone());
        let values = |x: Vec<f32>| x.into_iter().map(f64::from).collect::<Vec<_>>();
        assert!(error(&values(with.as_vec()), &values(without.as_vec())) <= 1e-5, "{rule:?}");
    }
}

#[test]
fn hebbian() {
    check::<Hebbian>();
}

#[test]
fn delta() {
    check::<Delta>();
}

#[test]
fn titans() {
    check::<Titans>();
}

#[test]
fn dgd() {
    check::<Dgd>();
}

#[test]
fn wrong_shapes_are_refused() {
    let network = Network::new(Delta::default());
    let array = |axes: (usize, usize, usize, usize)| -> Array4 {
        DfdxCpu::default().tensor_from_vec(vec![0.0; axes.0 * axes.1 * axes.2 * axes.3], axes)
    };
    let inputs = Inputs::<Delta, Slot<NoneTape>> {
        q: array((1, TOKENS, HEADS, KEY)).into(),
        k: array((1, TOKENS, HEADS, KEY + 1)).into(),
        v: array((1, TOKENS, HEADS, VALUE)).into(),
        gates: WriteGates { log_a: network.gates.log_a.clone().into(), theta: network.gates.theta.clone().into() },
        state: Matrix { m: network.state.m.clone().into() },
        anchor: None,
    };
    match memory(&Cpu::new(), network.rule, inputs, NoneTape) {
        Err(hecate_models::Error::Core(Error::Shape { slot: "k", .. })) => {}
        Err(other) => panic!("another error: {other}"),
        Ok(_) => panic!("accepted"),
    }
}
