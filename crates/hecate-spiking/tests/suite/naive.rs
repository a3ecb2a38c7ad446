//! A model of networks in maps and plain loops, written from the documented semantics alone. It shares no code with the
//! devices: it rounds by integers of 128 bits, and looks at every neuron and every synapse in every burst.

use crate::specs::Spec;
use hecate_spiking::{Form, Kind, Neuron};
use std::collections::{BTreeMap, BTreeSet};

/// A network and its state.
#[derive(Debug)]
pub(crate) struct Naive {
    spec: Spec,
    burst: u64,
    /// By id: potential, bursts to pass over, times fired in a row.
    pub(crate) neurons: BTreeMap<u32, (f32, u16, u16)>,
    /// Source, target, weight, potential, kind; in the order of the specification, then as they were made.
    pub(crate) synapses: Vec<(u32, u32, u8, u8, Kind)>,
    /// How many of them the specification has.
    given: usize,
    /// What fired last, with its potential.
    pub(crate) fired: BTreeMap<u32, f32>,
    /// All bursts, the newest last.
    past: Vec<BTreeSet<u32>>,
}

impl Naive {
    pub(crate) fn new(spec: &Spec) -> Self {
        let synapses: Vec<_> =
            spec.synapses.iter().map(|of| (of.source, of.target, of.weight, of.potential, of.kind)).collect();
        Self {
            spec: spec.clone(),
            burst: 0,
            neurons: (0..spec.neurons.len()).map(|id| (id as u32, begin(spec.start.get(id)))).collect(),
            given: synapses.len(),
            synapses,
            fired: BTreeMap::new(),
            past: Vec::new(),
        }
    }

    /// Id of the area of a neuron or memory neuron.
    fn area(&self, id: u32) -> u32 {
        if id >= 50_000_000 {
            self.spec.memory[(id - 50_000_000) as usize]
        } else {
            self.spec.neurons[id as usize].area
        }
    }

    /// All ids of an area, ascending.
    fn of_area(&self, area: u32) -> Vec<u32> {
        let memory = (0..self.spec.memory.len() as u32).map(|number| 50_000_000 + number);
        (0..self.spec.neurons.len() as u32).chain(memory).filter(|&id| self.area(id) == area).collect()
    }

    /// One burst: what fired, ascending by id.
    pub(crate) fn burst(&mut self, staged: &[(u32, f32)], fatigue: bool) -> Vec<(u32, f32)> {
        self.burst += 1;
        // First of all, potentials that do not outlast a burst are gone.
        for (id, state) in &mut self.neurons {
            if !self.spec.neurons[*id as usize].accumulate {
                state.0 = 0.0;
            }
        }
        // Whoever is in here was reached, even by zero.
        let mut sums: BTreeMap<u32, i128> = BTreeMap::new();
        for &(id, potential) in staged {
            *sums.entry(id).or_default() += fixed(potential);
        }
        self.power(fatigue, &mut sums);
        self.synapses(&mut sums);
        let mut fired = BTreeMap::new();
        // Maps ascend by id, as neurons decide.
        for (&id, &sum) in &sums {
            let given = float(sum);
            let potential = if id >= 50_000_000 { Some(given) } else { self.neuron(id, given) };
            if let Some(potential) = potential {
                fired.insert(id, potential);
            }
        }
        self.past.push(fired.keys().copied().collect());
        self.fired = fired;
        self.learn();
        self.fired.iter().map(|(&id, &potential)| (id, potential)).collect()
    }

    /// The first neuron of area 1, and in fatigue all of area 2.
    fn power(&self, fatigue: bool, sums: &mut BTreeMap<u32, i128>) {
        let mut getting: Vec<u32> = self.of_area(1).into_iter().take(1).collect();
        if fatigue {
            getting.extend(self.of_area(2));
        }
        for id in getting {
            *sums.entry(id).or_default() += fixed(self.spec.power);
        }
    }

    /// Every synapse whose source fired one burst ago.
    fn synapses(&self, sums: &mut BTreeMap<u32, i128>) {
        // Synapses of each source, made ones among them.
        let mut out: BTreeMap<u32, i128> = BTreeMap::new();
        self.synapses.iter().for_each(|of| *out.entry(of.0).or_default() += 1);
        for &(source, target, weight, potential, kind) in &self.synapses {
            let Some(&at) = self.fired.get(&source) else { continue };
            let area = self.spec.areas.iter().find(|area| area.id == self.area(source)).expect("an area");
            // The potential of the burst before, when it fired.
            let potential = if area.membrane_driven { half_even_byte(at) } else { potential };
            let mut size = i128::from(weight) * i128::from(potential) * 65536;
            if !area.uniform {
                let count = out[&source];
                // Shared by all synapses of the source, whoever gets them.
                // Half away from zero, of a number that is not negative.
                size = (2 * size + count) / (2 * count);
            }
            *sums.entry(target).or_default() += if kind == Kind::Inhibitory { -size } else { size };
        }
    }

    /// What one neuron does with what it was given: its potential if it fires.
    fn neuron(&mut self, id: u32, given: f32) -> Option<f32> {
        let of: Neuron = self.spec.neurons[id as usize].clone();
        // 0 and 65535 limit nothing.
        let counts = of.fire_limit != 0 && of.fire_limit != 65535;
        let (mut v, mut waits, mut row) = self.neurons[&id];
        let mut fires = None;
        // Three ends: it waits, it fires, or it leaks; one that fired too often only starts to count anew.
        if waits > 0 {
            waits -= 1;
            if waits == 0 && counts && row >= of.fire_limit {
                row = 0;
            }
        } else {
            v = normal(v + given);
            let may = v >= normal(of.threshold) && of.limit.is_none_or(|limit| v <= normal(limit));
            if may && counts && row >= of.fire_limit {
                row = 0;
            } else if may && lucky(id, self.burst, of.excitability) {
                fires = Some(v);
                v = 0.0;
                row = if row == 65535 { 65535 } else { row + 1 };
                let more = if counts && row >= of.fire_limit { u32::from(of.snooze) } else { 0 };
                waits = (u32::from(of.refractory) + more).min(65535) as u16;
            } else {
                if counts {
                    row = 0;
                }
                v = normal(v * (1.0 - of.leak));
            }
        }
        self.neurons.insert(id, (v, waits, row));
        fires
    }

    /// All mappings, in their order.
    fn learn(&mut self) {
        for mapping in self.spec.mappings.clone() {
            let ends: Vec<usize> = (0..self.synapses.len())
                .filter(|&at| {
                    let of = &self.synapses[at];
                    self.area(of.0) == mapping.source && self.area(of.1) == mapping.target
                })
                .collect();
            let window = usize::from(mapping.window);
            match mapping.form {
                Form::Exponential => ends.into_iter().for_each(|at| self.pairs(at, window)),
                Form::Classic { constant, ltp, ltd } => self.window(&ends, window, [constant, ltp, ltd]),
                Form::Bidirectional { constant, ltp, ltd, potential } => {
                    self.window(&ends, window, [constant, ltp, ltd]);
                    self.make(mapping.source, mapping.target, window, constant * ltp, potential);
                }
            }
        }
    }

    /// Synapses whose ends fired in all or in some of the last bursts.
    fn window(&mut self, ends: &[usize], window: usize, [constant, ltp, ltd]: [i64; 3]) {
        if self.past.len() < window {
            return;
        }
        // Both ends in every burst, or any end in any burst.
        let past = &self.past[self.past.len() - window..];
        for &at in ends {
            let (source, target, weight, ..) = &mut self.synapses[at];
            let fired = past.iter().flat_map(|burst| [burst.contains(source), burst.contains(target)]);
            let (all, any) = fired.fold((true, false), |(all, any), fired| (all && fired, any || fired));
            let changed = match (all, any) {
                (true, _) => i64::from(*weight) + (constant * ltp).clamp(0, 255),
                (_, true) => i64::from(*weight) - (constant * ltd).clamp(0, 255),
                _ => i64::from(*weight),
            };
            *weight = changed.clamp(0, 255) as u8;
        }
    }

    /// Synapses that are missing between neurons that fired in all of the last bursts.
    fn make(&mut self, from: u32, to: u32, window: usize, weight: i64, potential: u8) {
        if self.past.len() < window {
            return;
        }
        let past = self.past[self.past.len() - window..].to_vec();
        let always = |id: &u32| past.iter().all(|burst| burst.contains(id));
        for source in self.of_area(from).into_iter().filter(always) {
            for target in self.of_area(to).into_iter().filter(always) {
                if !self.synapses.iter().any(|of| (of.0, of.1) == (source, target)) {
                    self.synapses.push((source, target, weight.clamp(0, 255) as u8, potential, Kind::Excitatory));
                }
            }
        }
    }

    /// Pairs of spikes of one synapse, of which the later one is of this burst; those furthest apart first.
    fn pairs(&mut self, at: usize, window: usize) {
        let now = self.past.len() - 1;
        let (source, target, mut weight, ..) = self.synapses[at];
        for apart in (1..window.min(self.past.len())).rev() {
            let (earlier, later) = (&self.past[now - apart], &self.past[now]);
            let change = |size: f64| (size * 255.0 / (apart as f64 / 20.0).exp()).round() as i64;
            let mut changed = i64::from(weight);
            if earlier.contains(&source) && later.contains(&target) {
                changed = (changed + change(0.01)).min(255);
            }
            if earlier.contains(&target) && later.contains(&source) {
                changed = (changed - change(0.012)).max(0);
            }
            weight = changed as u8;
        }
        self.synapses[at].2 = weight;
    }

    /// Weights of the specification's synapses, ascending by source and target.
    pub(crate) fn weights(&self) -> Vec<u8> {
        let mut given = self.synapses[..self.given].to_vec();
        given.sort_by_key(|of| (of.0, of.1));
        given.into_iter().map(|of| of.2).collect()
    }

    /// Synapses that were made, ascending by source and target.
    pub(crate) fn made(&self) -> Vec<(u32, u32, u8, u8, Kind)> {
        let mut made = self.synapses[self.given..].to_vec();
        made.sort_by_key(|of| (of.0, of.1));
        made
    }
}

/// What a neuron begins with.
fn begin(start: Option<&(f32, u16, u16)>) -> (f32, u16, u16) {
    start.map_or((0.0, 0, 0), |&(potential, waits, row)| (normal(potential), waits, row))
}

/// Mantissa and exponent of a finite float: `mantissa · 2^exponent`.
fn taken_apart(x: f32) -> (i128, i32) {
    let (bits, sign) = (x.to_bits() & 0x7fff_ffff, if x < 0.0 { -1 } else { 1 });
    match bits >> 23 {
        0 => (sign * i128::from(bits), -149),
        exponent => (sign * i128::from(bits & 0x7f_ffff | 0x80_0000), exponent as i32 - 150),
    }
}

/// The nearest integer to `mantissa / 2^shift`, and of two the even one.
fn half_even(mantissa: i128, shift: u32) -> i128 {
    if shift == 0 {
        return mantissa;
    }
    if shift > 100 {
        return 0;
    }
    let (down, rest, half) = (mantissa >> shift, mantissa & ((1 << shift) - 1), 1i128 << (shift - 1));
    down + i128::from(rest > half || rest == half && down & 1 == 1)
}

/// A potential with 16 bits behind the point.
fn fixed(x: f32) -> i128 {
    let (mantissa, exponent) = taken_apart(x);
    let shift = exponent + 16;
    if shift >= 0 { mantissa << shift } else { half_even(mantissa, shift.unsigned_abs()) }
}

/// The float nearest to a sum, put together from its bits.
fn float(sum: i128) -> f32 {
    let size = sum.unsigned_abs() as i128;
    if size == 0 {
        return 0.0;
    }
    let length = 128 - size.leading_zeros() as i32;
    let shift = (length - 24).max(0);
    let mut mantissa = half_even(size, shift as u32);
    let mut exponent = shift - 16;
    // 24 bits, of which the first is not stored.
    while mantissa >= 1 << 24 {
        mantissa >>= 1;
        exponent += 1;
    }
    while mantissa < 1 << 23 {
        mantissa <<= 1;
        exponent -= 1;
    }
    // The exponent of the last bit of the mantissa is stored with 150 added.
    let bits = ((exponent + 150) as u32) << 23 | (mantissa as u32 & 0x7f_ffff);
    f32::from_bits(bits | if sum < 0 { 1 << 31 } else { 0 })
}

/// A potential as a byte.
fn half_even_byte(x: f32) -> u8 {
    let (mantissa, exponent) = taken_apart(x);
    let whole = if exponent >= 0 { mantissa << exponent.min(40) } else { half_even(mantissa, exponent.unsigned_abs()) };
    whole.clamp(0, 255) as u8
}

/// Zero, with its sign, for what is below the least normal float.
fn normal(x: f32) -> f32 {
    let bits = x.to_bits();
    if bits & 0x7f80_0000 == 0 { f32::from_bits(bits & 0x8000_0000) } else { x }
}

/// The comparison of the generator's word, as a float, with an excitability.
fn lucky(id: u32, burst: u64, excitability: f32) -> bool {
    // All is modulo 2³²; products of two such numbers fit 64 bits.
    let part = |x: u64| x & 0xffff_ffff;
    let seed = part(u64::from(id) * 2_654_435_761 + part(part(burst) * 1_597_334_677));
    let state = part(seed * 747_796_405 + 2_891_336_453);
    let word = part(((state >> ((state >> 28) + 4)) ^ state) * 277_803_737);
    let random = ((word >> 22) ^ word) as u32 as f32 / 4_294_967_296.0;
    excitability >= 0.999 || excitability > 0.0 && random < excitability
}
