//! Drawing tokens.

use approx::assert_abs_diff_eq;
use hecate_models::{
    Error,
    sampling::{Sampler, Sampling},
};
use proptest::prelude::*;

const LOGITS: [f32; 6] = [0.5, 2.0, -1.0, 1.0, f32::NEG_INFINITY, 1.5];
const PLAIN: Sampling =
    Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, repetition_penalty: 1.0, seed: 1 };

/// Shares of the tokens among many draws.
fn shares(sampling: Sampling, logits: &[f32]) -> Vec<f64> {
    let mut sampler = Sampler::new(sampling).unwrap();
    let mut shares = vec![0.0; logits.len()];
    (0..20_000).for_each(|_| shares[sampler.draw(logits).unwrap() as usize] += 1.0 / 20_000.0);
    shares
}

fn expected(temperature: f64, kept: &[usize]) -> Vec<f64> {
    let weight = |i: usize| if kept.contains(&i) { (f64::from(LOGITS[i]) / temperature).exp() } else { 0.0 };
    let sum: f64 = (0..6).map(weight).sum();
    (0..6).map(|i| weight(i) / sum).collect()
}

#[test]
fn shares_follow_the_softmax_of_what_is_kept() {
    let cases = [
        (PLAIN, expected(1.0, &[0, 1, 2, 3, 5])),
        (Sampling { temperature: 0.5, ..PLAIN }, expected(0.5, &[0, 1, 2, 3, 5])),
        (Sampling { top_k: 2, ..PLAIN }, expected(1.0, &[1, 5])),
        (Sampling { top_k: 100, ..PLAIN }, expected(1.0, &[0, 1, 2, 3, 5])),
        (Sampling { top_p: 0.8, ..PLAIN }, expected(1.0, &[1, 5, 3])),
        (Sampling { top_p: 1e-6, ..PLAIN }, expected(1.0, &[1])),
        (Sampling { top_k: 1, ..PLAIN }, expected(1.0, &[1])),
        (Sampling { temperature: 0.0, ..PLAIN }, expected(1.0, &[1])),
        // Beside the likeliest they have e⁻⁰·⁵ = 0.61, e⁻¹ = 0.37, e⁻¹·⁵ = 0.22 and e⁻³ = 0.05.
        (Sampling { min_p: 0.2, ..PLAIN }, expected(1.0, &[0, 1, 3, 5])),
        (Sampling { min_p: 0.6, ..PLAIN }, expected(1.0, &[1, 5])),
        (Sampling { min_p: 1.0, ..PLAIN }, expected(1.0, &[1])),
        // Twice as far from each other.
        (Sampling { min_p: 0.2, temperature: 0.5, ..PLAIN }, expected(0.5, &[1, 5])),
        // Of all tokens the first two have 0.715 together, of the four that min-p keeps 0.731. Top-p comes before.
        (Sampling { min_p: 0.2, top_p: 0.72, ..PLAIN }, expected(1.0, &[1, 3, 5])),
        // Top-k comes first: of three, which have 0.51, 0.31 and 0.19.
        (Sampling { min_p: 0.5, top_k: 3, top_p: 0.6, ..PLAIN }, expected(1.0, &[1, 5])),
        (Sampling { min_p: 0.5, top_k: 3, top_p: 0.5, ..PLAIN }, expected(1.0, &[1])),
    ];
    for (sampling, expected) in cases {
        for (share, expected) in shares(sampling, &LOGITS).into_iter().zip(expected) {
            assert_abs_diff_eq!(share, expected, epsilon = 0.02);
        }
    }
}

/// Tokens that a vocabulary lacks are as if they had no score, whatever theirs is.
#[test]
fn only_known_tokens_are_drawn() {
    let logits = [&LOGITS[..], &[9.0, f32::NAN]].concat();
    let draws =
        |mut sampler: Sampler, logits: &[f32]| -> Vec<u32> { (0..50).map(|_| sampler.draw(logits).unwrap()).collect() };
    for sampling in [PLAIN, Sampling { top_k: 2, ..PLAIN }, Sampling { temperature: 0.0, ..PLAIN }] {
        let sampler = || Sampler::new(sampling).unwrap();
        assert_eq!(draws(sampler().among(6), &logits), draws(sampler(), &LOGITS), "{sampling:?}");
        // As many as there are, and more.
        assert_eq!(draws(sampler().among(7), &LOGITS), draws(sampler(), &LOGITS), "{sampling:?}");
    }
    assert!(matches!(Sampler::new(PLAIN).unwrap().among(0).draw(&LOGITS), Err(Error::Config { .. })));
}

/// Tokens that are not allowed are as if they had no score, also where limits are put on the others.
#[test]
fn only_allowed_tokens_are_drawn() {
    let (allowed, hidden) = ([true, false, true, true, true], f32::NEG_INFINITY);
    let left = [LOGITS[0], hidden, LOGITS[2], LOGITS[3], LOGITS[4], hidden];
    let first = Sampling { temperature: 0.0, ..PLAIN };
    for sampling in [PLAIN, Sampling { top_k: 2, ..PLAIN }, Sampling { min_p: 0.5, ..PLAIN }, first] {
        let [mut sampler, mut other] = [(); 2].map(|()| Sampler::new(sampling).unwrap());
        for _ in 0..50 {
            assert_eq!(sampler.draw_among(&LOGITS, &allowed).unwrap(), other.draw(&left).unwrap(), "{sampling:?}");
        }
    }
    // It is for one draw.
    let mut sampler = Sampler::new(first).unwrap();
    assert_eq!(sampler.draw_among(&LOGITS, &allowed).unwrap(), 3);
    assert_eq!(sampler.draw(&LOGITS).unwrap(), 1);
    // What is damaged is told of wherever it stands.
    let damaged = [&LOGITS[..5], &[f32::NAN]].concat();
    for (logits, allowed) in [(&LOGITS[..], &[false; 6][..]), (&LOGITS, &[]), (&damaged, &allowed)] {
        assert!(matches!(sampler.draw_among(logits, allowed), Err(Error::NonFinite { .. })), "{allowed:?}");
    }
}

#[test]
fn the_same_seed_draws_the_same_tokens() {
    let draw = |seed| -> Vec<u32> {
        let mut sampler = Sampler::new(Sampling { seed, ..PLAIN }).unwrap();
        (0..50).map(|_| sampler.draw(&LOGITS).unwrap()).collect()
    };
    assert_eq!(draw(7), draw(7));
    assert_ne!(draw(7), draw(8));
}

#[test]
fn bad_options_and_logits_are_refused() {
    let bad = [
        Sampling { temperature: -0.1, ..PLAIN },
        Sampling { temperature: f32::NAN, ..PLAIN },
        Sampling { temperature: f32::INFINITY, ..PLAIN },
        Sampling { top_p: 0.0, ..PLAIN },
        Sampling { top_p: 1.1, ..PLAIN },
        Sampling { top_p: f32::NAN, ..PLAIN },
        Sampling { min_p: -0.1, ..PLAIN },
        Sampling { min_p: 1.1, ..PLAIN },
        Sampling { min_p: f32::NAN, ..PLAIN },
        Sampling { repetition_penalty: 0.0, ..PLAIN },
        Sampling { repetition_penalty: f32::NAN, ..PLAIN },
        Sampling { repetition_penalty: f32::INFINITY, ..PLAIN },
    ];
    assert!(bad.into_iter().all(|sampling| matches!(Sampler::new(sampling), Err(Error::Config { .. }))));
    let mut sampler = Sampler::new(PLAIN).unwrap();
    assert!(matches!(sampler.draw(&[]), Err(Error::Config { .. })));
    for logits in [&[0.0, f32::NAN][..], &[f32::INFINITY], &[f32::NEG_INFINITY; 2]] {
        assert!(matches!(sampler.draw(logits), Err(Error::NonFinite { .. })), "{logits:?}");
    }
}

/// Shares of tokens by logits that a penalty and a bias changed before.
fn weighed(logits: [f64; 4]) -> Vec<f64> {
    let sum: f64 = logits.iter().map(|x| x.exp()).sum();
    logits.iter().map(|x| x.exp() / sum).collect()
}

#[test]
fn a_penalty_is_on_tokens_that_were_read() {
    let logits = [1.0f32, -1.0, 0.5, 0.0];
    let sampling = Sampling { repetition_penalty: 2.0, ..PLAIN };
    let mut counts = vec![0.0; 4];
    for seed in 0..20_000 {
        let mut sampler = Sampler::new(Sampling { seed, ..sampling }).unwrap();
        // The same token twice is one penalty; a token without a logit has none.
        sampler.read(&[0, 1, 0, 77]);
        counts[sampler.draw(&logits).unwrap() as usize] += 1.0 / 20_000.0;
    }
    for (share, expected) in counts.into_iter().zip(weighed([0.5, -2.0, 0.5, 0.0])) {
        assert_abs_diff_eq!(share, expected, epsilon = 0.02);
    }
    // What was drawn is read: with the likeliest taken each time, all but the negative one come before one comes again.
    let mut greedy = Sampler::new(Sampling { temperature: 0.0, repetition_penalty: 100.0, ..PLAIN }).unwrap();
    let drawn: Vec<u32> = (0..4).map(|_| greedy.draw(&[1.0, 0.9, 0.8, -1.0]).unwrap()).collect();
    assert_eq!(drawn, [0, 1, 2, 0]);
}

#[test]
fn a_bias_is_added_before_the_penalty() {
    let logits = [1.0f32, -1.0, 0.5, 0.0];
    let mut counts = vec![0.0; 4];
    for seed in 0..20_000 {
        let sampler = Sampler::new(Sampling { repetition_penalty: 2.0, seed, ..PLAIN }).unwrap();
        let mut sampler = sampler.biased(&[(1, 2.0), (2, f32::NEG_INFINITY), (0, -2.0), (0, -1.0), (9, 1.0)]).unwrap();
        sampler.read(&[0, 1]);
        counts[sampler.draw(&logits).unwrap() as usize] += 1.0 / 20_000.0;
    }
    // 1 − 3 = −2 is doubled, −1 + 2 = 1 is halved.
    for (share, expected) in counts.into_iter().zip(weighed([-4.0, 0.5, f64::NEG_INFINITY, 0.0])) {
        assert_abs_diff_eq!(share, expected, epsilon = 0.02);
    }
    for bad in [f32::NAN, f32::INFINITY] {
        assert!(matches!(Sampler::new(PLAIN).unwrap().biased(&[(3, bad)]), Err(Error::Config { .. })));
    }
}

proptest! {
    #[test]
    fn drawn_tokens_are_among_the_likeliest(
        logits in prop::collection::vec(-20.0_f32..20.0, 1..40),
        temperature in 0.0_f32..3.0,
        top_k in 0_usize..10,
        top_p in 0.01_f32..=1.0,
        seed: u64,
    ) {
        let mut sampler = Sampler::new(Sampling { temperature, top_k, top_p, seed, ..PLAIN }).unwrap();
        let token = sampler.draw(&logits).unwrap() as usize;
        let above = logits.iter().filter(|&&x| x > logits[token]).count();
        prop_assert!(temperature > 0.0 || above == 0);
        prop_assert!(top_k == 0 || above < top_k);
    }
}
