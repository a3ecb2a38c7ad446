//! The two figures of a held-out text, each with its name.
//!
//! With *fresh windows* every sequence of the length that was learned starts with fresh memories, as in training: this is
//! what compares with the loss of training. In *one pass* memories are carried through the whole text, longer than they
//! were ever taught to: the two differ by what memories gain from a long text, or lose in it.

use crate::{error::Result, progress::Measuring, table::Table};
use clap::Args;
use hecate::{
    Backend,
    models::{LanguageModel, text::Stream},
    train::{
        FirstStates, Settings,
        evaluate::{self, Budget, POSITIONS, SEGMENT, Score, evaluate, evaluate_afresh, evaluate_by_position},
    },
};
use std::{ops::ControlFlow, time::Duration};

/// How long a run's last measurement takes.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct MeasureArgs {
    /// How much of the held-out text is measured in the end [default: for as long as training took]
    ///
    /// `all` of it, or what can be read in so many seconds.
    #[arg(long, hide_short_help = true, help_heading = "Measuring and saving", value_name = "all|SECONDS", value_parser = limit)]
    measure: Option<Limit>,
}

/// What bounds a measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Limit {
    /// The whole text.
    All,
    /// Both figures together.
    Time(Duration),
}

/// What `--measure` says.
fn limit(text: &str) -> Result<Limit, String> {
    if text == "all" {
        return Ok(Limit::All);
    }
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.map(Limit::Time).ok_or_else(|| format!("`{text}` is no time; give `all`, or seconds, such as 60"))
}

impl MeasureArgs {
    /// The time that both measurements may take, after a training of so long; none for as much as it takes.
    pub(crate) fn time(self, trained: Duration) -> Option<Duration> {
        match self.measure {
            Some(Limit::All) => None,
            Some(Limit::Time(time)) => Some(time),
            // However short it was: at least one call is made, which takes less than a step.
            None => Some(trained),
        }
    }
}

/// A text that is measured, and how.
pub(crate) struct Measurement<'a, B: Backend> {
    /// What predicts.
    pub(crate) model: &'a LanguageModel<B>,
    /// What is predicted.
    pub(crate) stream: &'a Stream,
    /// Tokens of a fresh window.
    pub(crate) window: usize,
    /// Tokens a call.
    pub(crate) segment: usize,
    /// For both figures; none for as much as it takes.
    pub(crate) time: Option<Duration>,
    /// Whether it is shown how far it is; where several go on at once, nobody could tell them apart.
    pub(crate) shown: bool,
}

/// A score, and what it is called.
pub(crate) struct Figure {
    /// The row's name in the table.
    pub(crate) name: String,
    /// Of the tokens that were read.
    pub(crate) score: Score,
}

/// What a step's loss is of.
pub(crate) fn learned_windows(&Settings { tokens, carry, first_states, .. }: &Settings) -> String {
    let other = match first_states {
        FirstStates::Fresh => "",
        // Their losses are lower or higher than those of fresh windows, as memories are worth.
        FirstStates::Other => ", every second text after another",
    };
    match carry {
        1 if other.is_empty() => format!("fresh windows of {tokens}"),
        1 => format!("windows of {tokens}{other}"),
        _ => format!("windows of {tokens}, state carried through {carry}{other}"),
    }
}

/// Tokens a call in which a model is measured that learned with these settings.
pub(crate) fn segment(settings: &Settings) -> usize {
    // A step holds more than a call that gathers no gradients.
    settings.batch.saturating_mul(settings.tokens).max(SEGMENT)
}

impl<B: Backend> Measurement<'_, B> {
    /// What the figures would wait for bit by bit, at once: `tell` is called with the number of kernels that are compiled.
    pub(crate) fn prepare(&self, tell: &mut dyn FnMut(usize)) -> Result<()> {
        // A call of either kind: of fresh windows, and of the pass over all.
        let calls = [(self.segment, self.window), (SEGMENT, usize::MAX)];
        Ok(evaluate::prepare(self.model, self.stream, &calls, tell)?)
    }

    /// Both figures, until somebody asks to stop: the score is then that of what was read.
    pub(crate) fn take(&self, stopped: &dyn Fn() -> bool) -> Result<[Figure; 2]> {
        // From here on the time of both runs.
        let all = Budget::new(self.time);
        let fresh = self.fresh(&Budget::new(self.time.map(|time| time / 2)), stopped)?;
        // What fresh windows left over is for the other figure.
        let pass = self.pass(&Budget::new(all.left()), stopped)?;
        Ok([fresh, pass])
    }

    /// Every window starts with fresh memories.
    pub(crate) fn fresh(&self, budget: &Budget, stopped: &dyn Fn() -> bool) -> Result<Figure> {
        let name = format!("fresh windows of {}", self.window);
        let bar = self.bar(&name);
        let at = (self.segment, self.window);
        let score = evaluate_afresh(self.model, self.stream, at, |done| follow(bar.as_ref(), budget, stopped, done))?;
        Ok(Figure { name, score })
    }

    /// Memories are carried from start to end.
    fn pass(&self, budget: &Budget, stopped: &dyn Fn() -> bool) -> Result<Figure> {
        let name = "one pass".to_owned();
        let bar = self.bar(&name);
        let score = evaluate(self.model, self.stream, SEGMENT, |done| follow(bar.as_ref(), budget, stopped, done))?;
        Ok(Figure { name, score })
    }

    /// In one pass, the score of each range of positions that the text reaches.
    pub(crate) fn by_position(&self) -> Result<Vec<Figure>> {
        let (bar, budget) = (self.bar("by position"), Budget::new(self.time));
        let scores = evaluate_by_position(self.model, self.stream, SEGMENT, |done| {
            follow(bar.as_ref(), &budget, &|| false, done)
        })?;
        // A short text reaches the first ranges alone.
        let figures = scores.into_iter().enumerate().filter(|(_, score)| score.tokens > 0);
        Ok(figures.map(|(range, score)| Figure { name: positions(range), score }).collect())
    }

    /// What shows how far a measurement of this name is.
    fn bar(&self, name: &str) -> Option<Measuring> {
        self.shown.then(|| Measuring::new(name, self.predicted()))
    }

    /// Tokens that are predicted: all but the first.
    pub(crate) fn predicted(&self) -> usize {
        self.stream.tokens.len().saturating_sub(1)
    }
}

/// Shows how far a measurement is, and ends it where it has to end.
fn follow(bar: Option<&Measuring>, budget: &Budget, stopped: &dyn Fn() -> bool, done: usize) -> ControlFlow<()> {
    // First of all, so that the last state that is shown is the last that was read.
    if let Some(bar) = bar {
        bar.at(done, budget);
    }
    if stopped() { ControlFlow::Break(()) } else { budget.check() }
}

/// `0-255`, `256-1k` and so on.
pub(crate) fn positions(range: usize) -> String {
    let short = |tokens: usize| if tokens < 1 << 10 { tokens.to_string() } else { format!("{}k", tokens >> 10) };
    // Where the range before ends, and where this one does.
    match (range.checked_sub(1).map(|before| POSITIONS[before]), POSITIONS.get(range)) {
        (None, Some(end)) => format!("0-{}", end - 1),
        (Some(start), Some(&end)) => format!("{}-{}", short(start), short(end)),
        (start, None) => format!("{} and on", short(start.unwrap_or(0))),
    }
}

/// A row a figure, under what they are figures of; `of` is the number of tokens that could be measured.
pub(crate) fn print(heading: &str, figures: &[Figure], of: usize) -> Result<()> {
    // Rows come one by one: the widest name is reserved room for.
    let width = figures.iter().map(|figure| figure.name.len()).max().unwrap_or(0);
    let mut table =
        Table::new(&[heading, "nats/token", "bits/byte", "perplexity", "tokens"]).with_widths([width, 0, 0, 0, 0]);
    for Figure { name, score } in figures {
        table.row([
            name.clone(),
            format!("{:.4}", score.loss()),
            format!("{:.4}", score.bits_per_byte()),
            format!("{:.4}", score.perplexity()),
            if of > 0 { format!("{} of {of}", score.tokens) } else { score.tokens.to_string() },
        ])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measurement_takes_no_longer_than_training_unless_asked() {
        let args = |text: &str| MeasureArgs { measure: Some(limit(text).unwrap()) };
        let (short, long) = (Duration::from_millis(3), Duration::from_secs(300));
        assert_eq!(MeasureArgs { measure: None }.time(long), Some(long));
        assert_eq!(MeasureArgs { measure: None }.time(short), Some(short));
        assert_eq!(args("all").time(short), None);
        assert_eq!(args("0.5").time(long), Some(Duration::from_millis(500)));
        assert!(["-1", "nan", "inf", "some", ""].iter().all(|text| limit(text).is_err()));
    }

    #[test]
    fn any_word_is_a_limit_or_refused() {
        // Both have to come up, or the words are no test.
        let (mut taken, mut refused) = (0, 0);
        crate::words::each(&["all", "60", "0.5", "1e9", "1e400", "-1", "inf", "nan", ""], |word| match limit(word) {
            Ok(Limit::All) => assert_eq!(word, "all"),
            Ok(limit) => {
                let seconds: f64 = word.parse().expect("a number");
                assert!(seconds >= 0.0 && seconds.is_finite(), "{word}");
                // A limit of any length can be waited for.
                let time = MeasureArgs { measure: Some(limit) }.time(Duration::MAX);
                assert!(Budget::new(time).left().is_some());
                taken += 1;
            }
            Err(told) => {
                assert!(told.contains("give `all`, or seconds"), "{told}");
                refused += 1;
            }
        });
        assert!(taken > 1000 && refused > 1000, "{taken} {refused}");
    }

    #[test]
    fn ranges_of_positions_have_names() {
        let names: Vec<_> = (0..=POSITIONS.len()).map(positions).collect();
        assert_eq!(names, ["0-255", "256-1k", "1k-4k", "4k-16k", "16k-64k", "64k and on"]);
    }
}
