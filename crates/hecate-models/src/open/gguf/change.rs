//! What converters do to values, and how it is undone.

use crate::Result;
use hecate_core::memory;

/// What a converter made of an array's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::open) enum Change {
    /// What they were.
    Nothing,
    /// In each head of so many rows, those that rotary positions turn together are neighbours: row `2 i + s` was row
    /// `s D/2 + i`.
    Neighbours(usize),
    /// One more.
    OneMore,
    /// `−exp(x)`.
    MinusExponential,
}

impl Change {
    /// Makes values `[rows, width]` what they were before.
    ///
    /// # Errors
    /// Too little memory.
    pub(in crate::open) fn undo(self, values: &mut [f32], width: usize) -> Result<()> {
        match self {
            Self::Nothing => {}
            Self::Neighbours(rows) => return apart(values, rows, width),
            Self::OneMore => values.iter_mut().for_each(|x| *x -= 1.0),
            Self::MinusExponential => values.iter_mut().for_each(|x| *x = (-*x).ln()),
        }
        Ok(())
    }
}

/// Puts the even rows of each head of so many rows before its odd ones.
fn apart(values: &mut [f32], rows: usize, width: usize) -> Result<()> {
    // Widths were looked at before: heads have an even number of channels.
    let size = rows.saturating_mul(width);
    if rows < 2 || size == 0 || size > values.len() {
        return Ok(());
    }
    let mut head = memory::with_capacity("weights", size)?;
    for values in values.chunks_exact_mut(size) {
        head.clear();
        head.extend_from_slice(values);
        for (at, row) in values.chunks_exact_mut(width).enumerate() {
            let (second, i) = (at / (rows / 2), at % (rows / 2));
            let from = (2 * i + second) * width;
            row.copy_from_slice(&head[from..from + width]);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn undone(change: Change, values: &[f32], width: usize) -> Vec<f32> {
        let mut values = values.to_vec();
        change.undo(&mut values, width).expect("memory");
        values
    }

    #[test]
    fn values_are_what_they_were() {
        assert_eq!(undone(Change::Nothing, &[1.0, 2.0], 1), [1.0, 2.0]);
        assert_eq!(undone(Change::OneMore, &[1.5, 0.0], 1), [0.5, -1.0]);
        let logarithms = undone(Change::MinusExponential, &[-1.0, -std::f32::consts::E], 1);
        // The number e is rounded, and its logarithm lies between two numbers.
        assert!(logarithms[0] == 0.0 && (logarithms[1] - 1.0).abs() <= f32::EPSILON, "{logarithms:?}");
        // Two heads of six rows of two values: 0 3 1 4 2 5 was 0 1 2 3 4 5.
        let turned = [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11].map(|row| [row as f32, row as f32 + 0.5]).concat();
        let plain: Vec<f32> = (0..12).flat_map(|row| [row as f32, row as f32 + 0.5]).collect();
        assert_eq!(undone(Change::Neighbours(6), &turned, 2), plain);
    }
}
