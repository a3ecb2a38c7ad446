//! Drawing tokens.
//!
//! Scores are multiples of an eighth, so that rounding them to 16 bits changes none, and many are equal.

use super::{CaseResult, Output, PrimitiveCase, Slot};
use crate::{Array, Random};
use hecate_core::{
    Result, Tensor,
    primitives::{self, Draw, LANES, NO_SCORE, Primitives, Sampled, TOO_LARGE, UNDEFINED, threefry},
};

/// Draws of a case, one after another.
const DRAWS: u32 = 3;

/// One token and many, a lane more than there are, all options alone and together.
pub fn sample<B: Primitives>() -> Vec<PrimitiveCase<B>> {
    // Shapes are texts and tokens; all of a row are kept unless an option says otherwise.
    let plain = Draw { temperature: 1.0, top_k: 0, top_p: 1.0 };
    let cases = [
        // One token, few of a lane each, and a lane of two.
        ([3, 1], plain),
        ([5, 7], plain),
        ([2, 1024], plain),
        ([4, 1025], Draw { temperature: 0.7, ..plain }),
        // The likeliest, which is also what the cold leaves; heat makes all equal.
        ([3, 300], Draw { temperature: 0.0, ..plain }),
        ([3, 300], Draw { temperature: 1e-30, ..plain }),
        ([6, 300], Draw { temperature: 1e30, ..plain }),
        ([6, 300], Draw { temperature: 100.0, top_k: 4, ..plain }),
        // No draw but one, and a limit that is none.
        ([6, 300], Draw { top_k: 1, ..plain }),
        ([6, 300], Draw { top_k: 300, top_p: 0.5, ..plain }),
        // A few kept of many: rounds that draw what is not kept.
        ([6, 3000], Draw { temperature: 0.8, top_p: 0.95, ..plain }),
        ([6, 3000], Draw { temperature: 3.0, top_p: 1e-6, ..plain }),
        // Both limits: the second counts in what the first leaves, ties at its edge included.
        ([6, 3000], Draw { temperature: 0.9, top_k: 50, top_p: 0.9 }),
        ([6, 3000], Draw { temperature: 5.0, top_k: 700, top_p: 0.3 }),
        // A GPU has eight blocks, four or two for a text, by texts and tokens; the last has more tokens than fit shared memory.
        ([3, 9000], Draw { temperature: 0.8, top_k: 50, top_p: 0.9 }),
        ([25, 5000], Draw { temperature: 0.8, top_k: 50, top_p: 0.9 }),
        ([60, 2100], Draw { temperature: 0.8, top_k: 50, top_p: 0.9 }),
        ([1, 470_000], Draw { temperature: 2.0, top_k: 40, top_p: 0.9 }),
    ];
    cases.map(|(shape, draw)| case(shape, draw)).into()
}

fn case<B: Primitives>([batch, vocabulary]: [usize; 2], draw: Draw) -> PrimitiveCase<B> {
    let random = &mut Random::new(47);
    let mut scores = random.normals([batch, vocabulary]);
    scores.values.iter_mut().for_each(|x| *x = (16.0 * *x).round().clamp(-100.0, 100.0) / 8.0);
    // Every row has a seed of its own, and another number of draws before.
    let streams: Vec<[u32; 3]> = (0..batch as u32).map(|row| [7 + row, 3, 11 * row]).collect();
    // What the equations read: rounding to 16 bits would not change it.
    let (rows, known) = (scores.values.clone(), streams.clone());
    PrimitiveCase {
        name: "sample",
        options: format!("{} {draw:?}", scores.shape),
        slots: vec![Slot::rows("scores", scores)],
        outputs: ["first", "second", "third"].map(|name| Output::wide(name, Array::full([batch], 1.0))).into(),
        forward: Box::new(move |x| {
            // A token has no gradient.
            let token = |drawn: u32| {
                let rows = rows.chunks_exact(vocabulary).zip(&known).zip(&x[0]);
                // The token's number is the result, as a float that holds it exactly.
                let number = |((scores, stream), x): ((&[f64], &[u32; 3]), &crate::oracle::Var)| {
                    let token = truth(scores, &draw, [stream[0], stream[1], stream[2] + drawn]);
                    x.sum().scale(0.0).shift(token as f64)
                };
                rows.map(number).collect()
            };
            (0..DRAWS).map(token).collect()
        }),
        device: Box::new(move |x, _| {
            // Where the scores lie, there the streams do.
            let device = x[0].device();
            // Each draw goes on with the streams that the one before left.
            let mut at = Tensor::from_u32(device, [batch, 3], streams.concat())?;
            let mut outputs = Vec::new();
            for _ in 0..DRAWS {
                let Sampled { tokens, streams } = primitives::sample(&draw, &x[0], &at)?;
                outputs.push(Tensor::from_f32(device, [batch], tokens.to_f32()?)?);
                at = streams;
            }
            let after: Vec<u32> = streams.iter().flat_map(|&[low, high, drawn]| [low, high, drawn + DRAWS]).collect();
            assert_eq!(at.to_u32()?, after, "streams after {DRAWS} draws");
            // At every size, since a row's tokens are spread over threads by their number.
            tells_apart(&x[0], &draw)?;
            Ok(CaseResult { outputs, grads: vec![] })
        }),
    }
}

/// The token in 64 bits: what is kept is found by sorting.
fn truth(scores: &[f64], draw: &Draw, [low, high, drawn]: [u32; 3]) -> usize {
    // Among equals the lowest token comes first.
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]).then(a.cmp(&b)));
    if draw.temperature == 0.0 {
        return order[0];
    }
    // Relative to the largest, so that no power overflows.
    let top = scores[order[0]];
    let weight = |&i: &usize| ((scores[i] - top) / f64::from(draw.temperature)).exp();
    let mass = |tokens: &[usize]| tokens.iter().map(weight).sum::<f64>();
    // Top-k first, then top-p of what it leaves.
    let first = if draw.top_k == 0 { order.len() } else { draw.top_k.min(order.len()) };
    // The smallest number of tokens whose mass reaches the share; all where there is no limit.
    let wanted = f64::from(draw.top_p) * mass(&order[..first]);
    let reached = (1..=first).find(|&n| draw.top_p < 1.0 && mass(&order[..n]) >= wanted);
    // Ranks under `kept` are kept, and ranks under `left` are drawn from.
    let (kept, mut left) = (reached.unwrap_or(first), order.len());
    // As the definition draws it: what is not kept ends what the next round draws from.
    for round in 0.. {
        let mut target = mass(&order[..left]) * f64::from(threefry([low, high], [drawn, round])[0]) / 2f64.powi(32);
        // The order of intervals is part of the definition.
        let mut lanes: Vec<usize> = order[..left].to_vec();
        lanes.sort_by_key(|i| (i % LANES, i / LANES));
        let hit = lanes.iter().find(|i| {
            target -= weight(i);
            target < 0.0
        });
        // Its rank says whether it is kept.
        let place = order.iter().position(|i| Some(i) == hit).expect("one of them");
        if place < kept {
            return order[place];
        }
        left = place;
    }
    unreachable!("every round leaves fewer")
}

/// A row without a token says why, and draws of other rows are those of the host.
fn tells_apart<B: Primitives>(scores: &Tensor<B>, draw: &Draw) -> Result<()> {
    let (device, width) = (scores.device(), scores.shape().last());
    // `[V]`, the first text of the case.
    let sound = scores.to_f32()?[..width].to_vec();
    // One score in the middle of the row.
    let changed = |value: f32| {
        let mut row = sound.clone();
        row[width / 2] = value;
        row
    };
    // NaN is seen beside an infinity too.
    let [mut both, none] = [changed(f32::NAN), vec![f32::NEG_INFINITY; width]];
    both[0] = if width > 1 { f32::INFINITY } else { f32::NAN };
    // The largest finite numbers too: half their distance is finite.
    let rows = [
        sound.clone(),
        both,
        changed(f32::INFINITY),
        none,
        changed(f32::NEG_INFINITY),
        changed(f32::MAX),
        changed(-f32::MAX),
    ];
    let streams: Vec<[u32; 3]> = (0..rows.len() as u32).map(|row| [row, 9, 5]).collect();
    // Rows with and without a token in one call: they have nothing to do with each other.
    let all = Tensor::from_f32(device, [rows.len(), width], rows.concat())?;
    let found = primitives::sample(draw, &all, &Tensor::from_u32(device, [rows.len(), 3], streams.concat())?)?;
    let found = found.tokens.to_u32()?;
    assert_eq!(found[1..4], [UNDEFINED, TOO_LARGE, NO_SCORE], "{draw:?}");
    // The host's definition says the same of all of them.
    for ((row, stream), found) in rows.iter().zip(&streams).zip(found) {
        assert_eq!(found, draw.token(row, *stream)?, "{draw:?} {stream:?}");
    }
    Ok(())
}
