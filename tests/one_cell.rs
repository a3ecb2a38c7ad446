//! A new backend starts with one cell: a device that knows one rule and no primitive is tested for that rule alone. It is
//! no [`Backend`] yet, which is a matter of compiling.

use hecate_conformance::{Array, conformance_cell, report::check_rule};
use hecate_core::{
    Backend, DType, Device, DeviceId, Dims, Host, Inputs, InputsOn, Kernel, KernelCall, Outputs, OutputsOn, Read,
    Result, Tensor,
    rules::{Hebbian, Matrix, WriteGates},
};

conformance_cell!(backends, hebbian: Hebbian);

fn backends() -> Vec<Start> {
    vec![Start(DeviceId::new(|number| format!("start #{number}")))]
}

/// A host that runs the Hebbian rule in 64 bits, head by head and token by token.
#[derive(Clone, Debug)]
struct Start(DeviceId);

impl Device for Start {
    const NAME: &'static str = "start";
    type Buffer = Host;

    fn id(&self) -> &DeviceId {
        &self.0
    }

    fn check_buffer(&self, _: &Host, _: DType, _: usize) -> Result<()> {
        Ok(())
    }

    fn upload(&self, host: Host) -> Result<Host> {
        Ok(host)
    }

    fn download(&self, buffer: &Host, _: DType, _: usize) -> Result<Host> {
        Ok(buffer.clone())
    }

    fn synchronize(&self) -> Result<()> {
        Ok(())
    }
}

impl Kernel<Hebbian> for Start {
    type Saved = ();

    fn forward(call: KernelCall<'_, Hebbian, Self>, _: bool) -> Result<(OutputsOn<Hebbian, Self>, Option<()>)> {
        let KernelCall { device, rule, dims, inputs, .. } = call;
        let host = download(inputs)?;
        let (mut out, mut m) = (Array::full(dims.values(), 0.0), host.state.m.clone());
        for head in heads(dims) {
            let states = head.states(&host);
            for (t, &row) in head.rows.iter().enumerate() {
                let memory = &states[head.read(rule, t)];
                row_of(&mut out, row).copy_from_slice(&transposed(memory, dims.value, at(&host.q, row)));
            }
            m.values[head.state()].copy_from_slice(&states[head.rows.len()]);
        }
        let outputs = Outputs { out, state: Matrix { m } };
        Ok((
            outputs.try_map(|slot, x| x.upload(device, if slot == "out" { inputs.q.dtype() } else { DType::F32 }))?,
            Some(()),
        ))
    }

    fn backward(
        KernelCall { device, rule, dims, inputs, .. }: KernelCall<'_, Hebbian, Self>,
        (): (),
        grads: &OutputsOn<Hebbian, Self>,
    ) -> Result<InputsOn<Hebbian, Self>> {
        let host = download(inputs)?;
        let (dout, dm) = (Array::download(&grads.out)?, Array::download(&grads.state.m)?);
        let mut found = host.clone();
        for head in heads(dims) {
            head.backward(rule, &host, (&dout, &dm), &mut found);
        }
        let token = |slot| ["q", "k", "v"].contains(&slot);
        found.try_map(|slot, x| x.upload(device, if token(slot) { inputs.q.dtype() } else { DType::F32 }))
    }
}

/// One head of one sequence.
struct Head {
    /// Which matrix of `m [N,H,K,V]` is its state.
    index: usize,
    /// Its rows of `[B,T,H,width]`, in the order of tokens.
    rows: Vec<usize>,
    key: usize,
    value: usize,
}

fn heads(dims: &Dims) -> Vec<Head> {
    let (heads, key, value) = (dims.heads, dims.key, dims.value);
    let head = |(n, tokens): (usize, std::ops::Range<usize>), head: usize| {
        let rows = tokens.map(|token| token * heads + head).collect();
        Head { index: n * heads + head, rows, key, value }
    };
    dims.sequences.ranges().enumerate().flat_map(|x| (0..heads).map(move |h| head(x.clone(), h))).collect()
}

impl Head {
    /// Where `m` holds its state.
    fn state(&self) -> std::ops::Range<usize> {
        let size = self.key * self.value;
        self.index * size..(self.index + 1) * size
    }

    /// Which of [`Head::states`] token `t` reads.
    fn read(&self, rule: Hebbian, t: usize) -> usize {
        if rule.read == Read::After { t + 1 } else { t }
    }

    /// The memory `[K,V]` before the first token, then after each: `M_t = a M_{t−1} + θ kᵀ v`.
    fn states(&self, host: &Inputs<Hebbian, Array>) -> Vec<Vec<f64>> {
        let mut states = vec![host.state.m.values[self.state()].to_vec()];
        for (t, &row) in self.rows.iter().enumerate() {
            let (a, theta) = (host.gates.log_a.values[row].exp(), host.gates.theta.values[row]);
            let (k, v) = (at(&host.k, row), at(&host.v, row));
            let next = |(i, m): (usize, &f64)| a * m + theta * k[i / self.value] * v[i % self.value];
            states.push(states[t].iter().enumerate().map(next).collect());
        }
        states
    }

    /// Gradients of its tokens, gates and state, written over the arguments in `found`.
    fn backward(
        &self,
        rule: Hebbian,
        host: &Inputs<Hebbian, Array>,
        (dout, dm): (&Array, &Array),
        found: &mut Inputs<Hebbian, Array>,
    ) {
        let states = self.states(host);
        let mut dm = dm.values[self.state()].to_vec();
        for (t, &row) in self.rows.iter().enumerate().rev() {
            let (q, k, v, dy) = (at(&host.q, row), at(&host.k, row), at(&host.v, row), at(dout, row));
            let (a, theta) = (host.gates.log_a.values[row].exp(), host.gates.theta.values[row]);
            row_of(&mut found.q, row).copy_from_slice(&product(&states[self.read(rule, t)], dy));
            let reads = |dm: &mut Vec<f64>| {
                dm.iter_mut().enumerate().for_each(|(i, x)| *x += q[i / dy.len()] * dy[i % dy.len()])
            };
            if rule.read == Read::After {
                reads(&mut dm);
            }
            let (dk, dv) = (product(&dm, v), transposed(&dm, self.value, k));
            found.gates.theta.values[row] = dot(&dv, v);
            found.gates.log_a.values[row] = a * dot(&dm, &states[t]);
            row_of(&mut found.k, row).iter_mut().zip(dk).for_each(|(x, dk)| *x = theta * dk);
            row_of(&mut found.v, row).iter_mut().zip(dv).for_each(|(x, dv)| *x = theta * dv);
            dm.iter_mut().for_each(|x| *x *= a);
            if rule.read == Read::Before {
                reads(&mut dm);
            }
        }
        found.state.m.values[self.state()].copy_from_slice(&dm);
    }
}

fn download(inputs: &Inputs<Hebbian, Tensor<Start>>) -> Result<Inputs<Hebbian, Array>> {
    let WriteGates { log_a, theta } = &inputs.gates;
    Ok(Inputs {
        q: Array::download(&inputs.q)?,
        k: Array::download(&inputs.k)?,
        v: Array::download(&inputs.v)?,
        gates: WriteGates { log_a: Array::download(log_a)?, theta: Array::download(theta)? },
        state: Matrix { m: Array::download(&inputs.state.m)? },
        anchor: None,
    })
}

/// Row `row` of an array `[…,width]`.
fn at(x: &Array, row: usize) -> &[f64] {
    let width = x.shape.last();
    &x.values[row * width..][..width]
}

fn row_of(x: &mut Array, row: usize) -> &mut [f64] {
    let width = x.shape.last();
    &mut x.values[row * width..][..width]
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// `m [K,V]` times a column of `V`.
fn product(m: &[f64], column: &[f64]) -> Vec<f64> {
    m.chunks(column.len()).map(|row| dot(row, column)).collect()
}

/// A row of `K` times `m [K,V]`.
fn transposed(m: &[f64], value: usize, row: &[f64]) -> Vec<f64> {
    (0..value).map(|j| row.iter().enumerate().map(|(i, x)| x * m[i * value + j]).sum()).collect()
}

/// The line of its table, as `hecate check` prints it.
#[test]
fn one_cell_has_its_line_in_a_report() {
    let cell = check_rule(&backends()[0], Hebbian::default());
    assert!(cell.passed && cell.backward_error.is_some(), "{cell:?}");
}

/// `Start` is no backend: it lacks the other rules and the primitives. If it were one, `check` would be ambiguous here and
/// this file would not compile.
#[test]
fn one_cell_is_no_column() {
    trait Unless<Proof> {
        fn check() -> bool {
            true
        }
    }
    impl<D: Device> Unless<()> for D {}
    struct IsBackend;
    impl<D: Backend> Unless<IsBackend> for D {}
    assert!(<Start as Unless<_>>::check());
}
