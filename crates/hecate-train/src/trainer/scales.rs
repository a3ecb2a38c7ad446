//! Scales of 8-bit factors, from the largest magnitudes of passes before (delayed scaling).
//!
//! Scales are powers of two, so a maximum is remembered as the exponent of the scale that it asks for. What a checkpoint keeps are
//! whole numbers, and a run that is resumed goes on with the same scales.

use hecate_models::{Error, FactorKind, Result};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// Training steps whose maxima are remembered. Source: the delayed scaling of NVIDIA's Transformer Engine remembers as many.
const REMEMBERED: usize = 16;

/// Exponents of scales, the newest last; none where an array was all zeros.
type Exponents = VecDeque<Option<i32>>;

/// What is remembered of each factor of each linear map.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Scales {
    /// By [`FactorKind::index`]; empty where there was no product yet.
    exponents: Vec<Exponents>,
}

/// [`Scales`] as checkpoints keep them: by the names of weights, of inputs, weights and gradients.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct SavedScales(BTreeMap<String, [Exponents; 3]>);

impl SavedScales {
    /// Whether nothing is remembered.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Scales {
    /// Nothing yet of so many parameters.
    pub(super) fn new(parameters: usize) -> Self {
        Self { exponents: vec![Exponents::new(); parameters * FactorKind::ALL.len()] }
    }

    /// Scales of all factors, by [`FactorKind::index`]: the largest that is remembered. None before the first maxima: factors are
    /// then rounded by their own.
    pub(super) fn values(&self) -> Option<Vec<f32>> {
        let largest: Vec<Option<i32>> =
            self.exponents.iter().map(|known| known.iter().flatten().max().copied()).collect();
        largest.iter().flatten().next()?;
        // What was all zeros so far takes the smallest scale of its kind, by which little vanishes.
        let kinds = FactorKind::ALL.len();
        let least = |kind: usize| largest.iter().skip(kind).step_by(kinds).flatten().min().copied();
        let least: Vec<i32> = (0..kinds).map(|kind| least(kind).unwrap_or(0)).collect();
        Some(largest.iter().enumerate().map(|(i, scale)| 2f32.powi(scale.unwrap_or(least[i % kinds]))).collect())
    }

    /// Remembers the largest magnitudes of a training step, by [`FactorKind::index`].
    pub(super) fn note(&mut self, maxima: &[f32]) {
        for (i, (known, &maximum)) in self.exponents.iter_mut().zip(maxima).enumerate() {
            let exponent = FactorKind::ALL[i % FactorKind::ALL.len()].format().scale_exponent(maximum);
            // Parameters of no product stay empty.
            if exponent.is_none() && known.is_empty() {
                continue;
            }
            known.push_back(exponent);
            if known.len() > REMEMBERED {
                known.pop_front();
            }
        }
    }

    /// What a checkpoint keeps of parameters with these names.
    pub(super) fn save<'a>(&self, names: impl Iterator<Item = &'a str>) -> SavedScales {
        let factors = self.exponents.chunks(FactorKind::ALL.len()).zip(names);
        let used = factors.filter(|(factors, _)| factors.iter().any(|known| !known.is_empty()));
        let named = |(factors, name): (&[Exponents], &str)| Some((name.to_owned(), factors.to_vec().try_into().ok()?));
        SavedScales(used.filter_map(named).collect())
    }

    /// What a checkpoint kept, of parameters with these names.
    ///
    /// # Errors
    /// [`Error::Config`] for other names, and for exponents that no scale has.
    pub(super) fn resume<'a>(saved: SavedScales, names: impl Iterator<Item = &'a str>) -> Result<Self> {
        let (mut exponents, mut saved) = (Vec::new(), saved.0);
        for name in names {
            exponents.extend(saved.remove(name).unwrap_or_default());
        }
        if let Some(name) = saved.keys().next() {
            return Err(Error::config("scales", name, "the name of one of the model's parameters"));
        }
        if let Some(wrong) = exponents.iter().flatten().flatten().find(|exponent| !(-126..=126).contains(*exponent)) {
            return Err(Error::config("scales", wrong, "exponents from -126 to 126"));
        }
        if exponents.iter().any(|known| known.len() > REMEMBERED) {
            return Err(Error::config("scales", "more of a factor", format!("at most {REMEMBERED} exponents")));
        }
        Ok(Self { exponents })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of two parameters, the second of which is a weight.
    fn noted(maxima: &[[f32; 3]]) -> Scales {
        let mut scales = Scales::new(2);
        maxima.iter().for_each(|maxima| scales.note(&[&[0.0; 3], &maxima[..]].concat()));
        scales
    }

    #[test]
    fn the_largest_of_the_last_steps_decides() {
        assert_eq!(Scales::new(2).values(), None);
        let mut scales = noted(&[[448.0, 7.0, 57_344.0], [900.0, 7.0, 0.0]]);
        assert_eq!(scales.values().expect("scales")[3..], [4.0, 2f32.powi(-6), 1.0]);
        // A parameter of no product takes what does no harm.
        assert_eq!(scales.values().expect("scales")[..3], [4.0, 2f32.powi(-6), 1.0]);
        for _ in 0..REMEMBERED {
            scales.note(&[0.0, 0.0, 0.0, 100.0, 7.0, 1.0]);
        }
        assert_eq!(scales.values().expect("scales")[3..], [0.25, 2f32.powi(-6), 2f32.powi(-15)]);
    }

    #[test]
    fn what_is_saved_is_resumed() {
        let scales = noted(&[[448.0, 0.3, 0.0], [900.0, 7.0, 1e-9]]);
        let names = || ["norm", "weight"].into_iter();
        let text = serde_json::to_string(&scales.save(names())).expect("text");
        let saved: SavedScales = serde_json::from_str(&text).expect("scales");
        assert_eq!(Scales::resume(saved.clone(), names()).expect("scales"), scales);
        let refused = Scales::resume(saved, ["other"].into_iter()).unwrap_err().to_string();
        assert!(refused.contains("scales") && refused.contains("weight"), "{refused}");
        for wrong in ["[[127],[],[]]", "[[],[-127],[]]", &format!("[[],[],{:?}]", [0; REMEMBERED + 1])] {
            let saved = serde_json::from_str(&format!("{{\"weight\": {wrong}}}")).expect("scales");
            assert!(Scales::resume(saved, names()).is_err(), "{wrong}");
        }
        assert!(Scales::new(2).save(names()).is_empty());
    }
}
