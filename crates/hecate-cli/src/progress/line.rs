//! A line of figures that fits its terminal.

/// Columns of a terminal that does not tell.
pub(super) const COLUMNS: usize = 80;

/// A figure of a line, and when it is left out: the highest first, 0 never.
pub(super) struct Figure(pub(super) u8, pub(super) String);

/// As many of the figures as fit into so many columns, with two spaces between.
pub(super) fn fit(mut figures: Vec<Figure>, columns: usize) -> String {
    loop {
        let line = figures.iter().map(|Figure(_, text)| text.as_str()).collect::<Vec<_>>().join("  ");
        if line.chars().count() <= columns {
            return line;
        }
        // All figures of the highest rank go at once: they belong together.
        let least = figures.iter().map(|&Figure(rank, _)| rank).max().filter(|&rank| rank > 0);
        match least {
            Some(least) => figures.retain(|&Figure(rank, _)| rank < least),
            // What cannot be left out is cut.
            None => return line.chars().take(columns).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_left_out_by_rank() {
        let figures = || {
            [(0, "step 1/9"), (2, "loss 1.5"), (3, "9 tokens/s"), (1, "0:10 left")]
                .map(|(rank, text)| Figure(rank, text.into()))
        };
        // Narrower and narrower terminals.
        assert_eq!(fit(figures().into(), 80), "step 1/9  loss 1.5  9 tokens/s  0:10 left");
        assert_eq!(fit(figures().into(), 40), "step 1/9  loss 1.5  0:10 left");
        assert_eq!(fit(figures().into(), 20), "step 1/9  0:10 left");
        assert_eq!(fit(figures().into(), 9), "step 1/9");
        assert_eq!(fit(figures().into(), 4), "step");
    }
}
