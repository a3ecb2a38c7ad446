//! Sizes that users of the core can get wrong, beside calls.

use crate::{device, hold, sound};
use hecate_core::{
    Checkpoints, DType, Device, Dims, Host, Rule, Sequences, Shape, Slots, Tensor, fresh_state,
    primitives::{AttentionDims, AttentionOptions, ConvDims, ConvOptions, poly2_width},
    rules::*,
};
use hecate_cpu::{Cpu, PeakMemory};
use proptest::{collection::vec, prelude::*};

/// None of these many elements is in any memory.
const HUGE: [usize; 6] = [1 << 40, 1 << 62, usize::MAX / 2, usize::MAX / 2 + 1, usize::MAX - 1, usize::MAX];

/// A size that is small, or larger than all memory.
pub(crate) fn size() -> impl Strategy<Value = usize> {
    prop_oneof![3 => 0..7usize, 2 => prop::sample::select(&HUGE[..])]
}

/// Six such sizes, most of them small.
pub(crate) fn sizes() -> impl Strategy<Value = [usize; 6]> {
    prop::array::uniform6(prop_oneof![3 => 0..5usize, 1 => size()])
}

#[test]
fn arrays_are_made_or_refused() {
    let types = prop::sample::select(vec![DType::F32, DType::Bf16, DType::F16, DType::U32]);
    hold(400, &(vec(size(), 0..5), types, size()), |(axes, dtype, count)| {
        let shape = Shape::from(axes);
        let told = sound("Shape", || (shape.count(), shape.rows(), shape.last(), format!("{shape}")))?;
        if let Ok(x) = sound("Tensor::zeros", || Tensor::zeros(&device(), shape.clone(), dtype))? {
            prop_assert_eq!(x.shape(), &shape);
            prop_assert!(x.download().is_ok_and(|host| host.len() == told.0 && host.dtype() == dtype));
            let _ = sound("Tensor::reshape", || x.reshape([count, 1]))?;
            let _ = sound("Debug", || format!("{x:?}"))?;
        }
        let _ = sound("Tensor::from_f32", || Tensor::from_f32(&device(), shape, vec![0.0; 4]))?;
        if let Ok(host) = sound("Host::zeros", || Host::zeros(dtype, count))? {
            prop_assert_eq!(host.len(), count);
        }
        let _ = sound("Device::zeros", || device().zeros(dtype, count).map(|_| ()))?;
        Ok(())
    });
}

#[test]
fn sequences_of_any_size_cost_nothing() {
    let draws = (sizes(), vec(size(), 0..5));
    hold(400, &draws, |([batch, tokens, n, row, tile, frozen], lengths)| {
        for sequences in [Sequences::batch(batch, tokens), Sequences::packed(&lengths)] {
            sound("Sequences", || {
                let range = sequences.range(n);
                assert!(range.start <= range.end && range.end <= sequences.rows());
                let owner = sequences.owner(row);
                assert!(owner <= sequences.count());
                (sequences.longest(), sequences.starts().take(4).count(), sequences.ranges().take(4).count())
            })?;
            sound("Sequences::tiles", || sequences.tiles(tile, -1, |tokens| tokens.min(9)).take(4).count())?;
            let checkpoints = Checkpoints::new(u32::try_from(frozen).ok());
            sound("Checkpoints", || (checkpoints.count(tokens), checkpoints.total(&sequences)))?;
            let options = AttentionOptions { window: tile, scale: 1.0 };
            let (sequences, heads) = (sequences, row);
            let conv =
                ConvDims { sequences: sequences.clone(), channels: n, width: tile, options: ConvOptions::default() };
            sound("ConvDims::state", || conv.state().count())?;
            let dims = AttentionDims { sequences, query_heads: heads, heads, key: n, value: n, prefix: n, options };
            sound("AttentionDims::kept", || dims.kept())?;
        }
        sound("poly2_width", || poly2_width(n))?;
        Ok(())
    });
}

/// All that a rule says of sizes; states of those that fit.
struct Told<'a>(&'a Dims);

impl RuleVisitor for Told<'_> {
    type Output = ();

    fn visit<R: Rule>(self, rule: R) {
        let shapes = R::State::into_vec(rule.state(self.0)).into_iter().chain(R::Gates::into_vec(rule.gates(self.0)));
        let counts: Vec<usize> = shapes.map(|shape| shape.count()).collect();
        let _ = (rule.check(self.0), R::State::into_vec(rule.initial(self.0)));
        match fresh_state(&device(), rule, self.0, 1) {
            Ok(state) => assert!(R::State::into_vec(state).iter().all(|x| counts.contains(&x.shape().count()))),
            Err(error) => assert!(error.to_string().len() > 10),
        }
    }
}

#[test]
fn rules_tell_of_any_size() {
    let names = prop::sample::select(&AnyRule::NAMES[..]);
    let draws = (names, any::<u32>(), sizes());
    hold(400, &draws, |(name, frozen, [batch, tokens, heads, key, value, _])| {
        let rule = AnyRule::named(name).expect("a rule").with_frozen((frozen % 3 > 0).then_some(frozen));
        let dims = Dims::new(batch, tokens, heads, key, value);
        sound(name, || rule.visit(Told(&dims)))?;
        Ok(())
    });
}

#[test]
fn bounds_of_memory_are_told_for_any_size() {
    macro_rules! bounds {
        ($($rule:ident),*) => { [$(|dims: &Dims| PeakMemory::peak_bytes(&device(), <$rule>::default(), dims)),*] };
    }
    let all: Vec<fn(&Dims) -> usize> = hecate_core::for_each_rule!(bounds).to_vec();
    hold(200, &(0..all.len(), sizes()), |(rule, [batch, tokens, heads, key, value, _])| {
        sound(AnyRule::NAMES[rule], || all[rule](&Dims::new(batch, tokens, heads, key, value)))?;
        Ok(())
    });
}

#[test]
fn devices_are_opened_or_refused() {
    for threads in HUGE {
        assert!(Cpu::with_threads(threads).is_err() && Cpu::reference(threads).is_err(), "{threads}");
    }
    let memory = device().memory().expect("a device");
    assert!(memory.is_none_or(|memory| memory.total > 0));
}
