//! Some memories backward, from the last group: states before groups are computed again from kept ones.

use super::{
    pass::{Job, Layer, Pass},
    places::{Matrices, Number, Panel},
    product::{Kind, Product, Share, Term},
};
use hecate_core::Result;

/// `D_READ_A` and `D_LAST_C` of `numbers.wgsl`.
const D_READ_A: u32 = 17;
const D_LAST_C: u32 = 19;

/// A layer with what comes back to it, `dr [G,wide]`, and places of its gradients.
struct LayerBack {
    layer: Layer,
    dr: Panel,
    /// Of what the layer was asked.
    dquery: Panel,
    /// Of where it was written.
    dkey: Panel,
    /// Of what it was written with.
    dz: Panel,
    /// Pre-activations that queries come from.
    slope: Option<Panel>,
}

impl Pass<'_> {
    /// Interval by interval of `unit` tokens.
    pub(super) fn backward(mut self, longest: usize, unit: usize) -> Result<()> {
        self.open(self.places.state)?;
        self.open(self.places.dstate)?;
        let group = self.places.group as usize;
        for interval in (0..longest.div_ceil(unit)).rev() {
            let begin = interval * unit;
            let groups = (longest - begin).min(unit).div_ceil(group);
            self.recall_at(begin)?;
            // States before groups after the first.
            for number in 1..groups {
                self.start = begin + (number - 1) * group;
                self.begin()?;
                self.inner_grads()?;
                self.write()?;
                if number + 1 < groups {
                    self.copy(self.places.state[0].at, self.places.begun(number))?;
                }
            }
            for number in (0..groups).rev() {
                // The state before the last group is at hand.
                if number + 1 < groups && number > 0 {
                    self.copy(self.places.begun(number), self.places.state[0].at)?;
                }
                if number + 1 < groups && number == 0 {
                    self.recall_at(begin)?;
                }
                self.start = begin + number * group;
                self.group_back()?;
            }
        }
        self.close(self.places.dstate)
    }

    /// The kept state before token `start`.
    fn recall_at(&mut self, start: usize) -> Result<()> {
        self.start = start;
        self.recall()
    }

    /// One group; the state is the one before it.
    fn group_back(&self) -> Result<()> {
        let p = &self.places;
        if let Some(dout) = self.arrays.dout {
            self.load(dout, p.dout)?;
        }
        // Both leave gradients of queries and keys in their panels.
        if self.has.sweeps.is_some() {
            self.sweeps_back()?;
        } else {
            self.layers_back()?;
        }
        let dk = self.call.dk;
        // After a norm `du` has the gradient of what comes before it, and errors' have the place of predictions.
        let errors = if self.has.norm { p.prediction } else { p.du };
        self.store(p.dq, self.residual().then_some(p.dout), 0)?;
        self.store(p.dk, self.residual().then_some(errors), dk)
    }

    /// Of a group of a memory that decays.
    fn layers_back(&self) -> Result<()> {
        let p = &self.places;
        self.by_rows("clear", 1, Job::default())?;
        // Forward again, as far as gradients need it: outputs are made where a norm follows.
        self.begin()?;
        self.inner_grads()?;
        self.read_low()?;
        if self.has.norm {
            self.read(&self.high(), p.prediction, Kind::Plain)?;
        }
        self.answer_back()?;
        let (layer, slope) = (self.high(), (!self.matrix()).then_some(p.read_pre));
        self.layer_back(&LayerBack { layer, dr: p.dread, dquery: p.dread_h, dkey: p.dh, dz: p.dz1, slope })?;
        if let Some(layer) = self.low() {
            let (dr, slope) = (p.dread_h, None);
            self.layer_back(&LayerBack { layer, dr, dquery: p.dq, dkey: p.dk, dz: p.dback, slope })?;
        }
        // Gates come after all that reads masks has added to them.
        self.by_rows("masks_back", 2, Job::default())?;
        self.inner_grads_back()?;
        self.by_rows("gates_back", p.group, Job::default())
    }

    /// Products of rows with the transposes of X, the anchor and S, or with the matrices themselves, one after another.
    fn share_products(&self, rows: Panel, of: [Option<Panel>; 3]) -> Result<[Panel; 3]> {
        let wide = of[0].map_or(0, |x| x.columns);
        let size = rows.rows * wide;
        let panels = [0, 1, 2].map(|i| Panel {
            at: self.places.shares + i * size,
            rows: rows.rows,
            columns: wide,
            row: wide,
            column: 1,
        });
        for (panel, matrix) in panels.iter().zip(of) {
            if let Some(matrix) = matrix {
                self.multiply(&Product::new(*panel, [Term::new(rows, matrix)]))?;
            }
        }
        Ok(panels)
    }

    /// A layer's read and write. Gradients of the state go from after the group to before it.
    fn layer_back(&self, back: &LayerBack) -> Result<()> {
        let p = &self.places;
        let (has, Layer { number, query, key, z }) = (self.has, back.layer);
        let of = |matrices: Matrices| matrices[number];
        let [x, s, anchor, dx, ds] = [p.state, p.momentum, p.anchor, p.dstate, p.dmomentum].map(of);
        self.multiply(&Product::new(p.square, [Term::new(query, key.t())]))?;
        self.multiply(&Product::new(p.dsquare, [Term::new(back.dr, z.t())]).kind(Kind::MaskBack(p.square)))?;
        // What each of the first states gives to its share; then all of it to queries.
        let (with_anchor, with_s) = (has.anchor.then_some(anchor.t()), has.momentum.then_some(s.t()));
        let [to_x, to_anchor, to_s] = self.share_products(back.dr, [Some(x.t()), with_anchor, with_s])?;
        let shares = |origin: Panel, plus| Job { origin: origin.at, to: p.shares, width: origin.columns, plus };
        self.by_rows("shares_back", p.group, shares(query, D_READ_A))?;
        let mut to_query = Product::new(back.dquery, [Term::new(p.dsquare, key)])
            .join(true, to_x, Share::Rows(Number::ReadA))
            .join(has.anchor, to_anchor, Share::Rows(Number::ReadRest))
            .join(has.momentum, to_s, Share::Rows(Number::ReadB));
        if let Some(slope) = back.slope {
            to_query = to_query.slope(slope);
        }
        self.multiply(&to_query)?;
        let mut to_key = vec![Term::new(p.dsquare.t(), query), Term::new(z, dx.t()).by(Number::LastC)];
        to_key.extend(has.momentum.then(|| Term::new(z, ds.t()).by(Number::LastE)));
        self.multiply(&Product::new(back.dkey, to_key))?;
        // What the state after the group gives to values and to each write's share.
        let [of_dx, _, of_ds] = self.share_products(key, [Some(dx), None, has.momentum.then_some(ds)])?;
        self.by_rows("shares_back", p.group, shares(z, D_LAST_C))?;
        let to_z = Product::new(back.dz, [Term::new(p.square.t(), back.dr)])
            .join(true, of_dx, Share::Rows(Number::LastC))
            .join(has.momentum, of_ds, Share::Rows(Number::LastE));
        self.multiply(&to_z)?;
        self.state_back(back)
    }

    /// Through what the group keeps of the first state.
    fn state_back(&self, back: &LayerBack) -> Result<()> {
        let p = &self.places;
        let (has, Layer { number, query, .. }) = (self.has, back.layer);
        let of = |matrices: Matrices| matrices[number];
        let [x, dx, ds, danchor] = [p.state, p.dstate, p.dmomentum, p.danchor].map(of);
        let sums = Job { origin: x.at, to: p.sums_of(number), width: x.columns, plus: 0 };
        self.by_rows("state_sums", x.rows, sums)?;
        let read = |by| [Term::new(query.t(), back.dr).by_depth(by)];
        // Both have some of the old gradient of X, which changes last.
        if has.momentum {
            let product = Product::new(ds, read(Number::ReadB)).own(Share::Left);
            self.multiply(&product.join(true, dx, Share::Pushed))?;
        }
        if has.anchor {
            let product = Product::new(danchor, read(Number::ReadRest)).own(Share::Whole);
            self.multiply(&product.join(true, dx, Share::Rest))?;
        }
        self.multiply(&Product::new(dx, read(Number::ReadA)).own(Share::Kept))
    }

    /// Back through the inner gradients, at the weights that the group starts with.
    pub(super) fn inner_grads_back(&self) -> Result<()> {
        let p = &self.places;
        let ([low, high], [low_s, high_s]) = (p.weights, p.momentum);
        let teach_back =
            || self.by_rows("inner_grad_rows_vjp", p.group, Job { to: 2 * self.call.dk, ..Job::default() });
        let to_hidden = Product::new(p.dh, self.at_point(p.du, high.t(), high_s.t())).own(Share::Whole);
        if self.matrix() {
            // Nothing comes to u but by what is written.
            self.multiply(&Product::new(p.du, []))?;
            teach_back()?;
            self.point_back(1, &[Term::new(p.h.t(), p.du)])?;
            return self.multiply(&to_hidden);
        }
        self.by_rows("hidden_back", p.group, Job::default())?;
        self.multiply(&Product::new(p.du, self.at_point(p.dback, high, high_s)))?;
        teach_back()?;
        // W₁ of b, then of the output; both got it at the point.
        self.point_back(1, &[Term::new(p.dback.t(), p.u), Term::new(p.h.t(), p.du)])?;
        self.multiply(&to_hidden.slope(p.pre))?;
        self.multiply(&Product::new(p.dk, self.at_point(p.dh, low.t(), low_s.t())).own(Share::Whole))?;
        self.point_back(0, &[Term::new(p.k.t(), p.dh)])
    }

    /// The gradient of a layer's weights at the point. The state gets it; where the point is X + S, both do.
    fn point_back(&self, number: usize, terms: &[Term]) -> Result<()> {
        let p = &self.places;
        let to = |out| Product::new(out, terms.iter().copied());
        if self.has.sweeps.is_some() {
            return self.multiply(&to(p.dweights[number]));
        }
        self.multiply(&to(p.dweights[number]).own(Share::Whole))?;
        if self.looks_ahead() { self.multiply(&to(p.dmomentum[number]).own(Share::Whole)) } else { Ok(()) }
    }
}
