//! What `hecate bench text` says: a row a run as soon as it is known, in the order of the models; or JSON at the end.

use super::TextRun;
use crate::{
    error::{Error, Result},
    measure::positions,
    stop,
    table::Table,
    terminal,
};
use hecate::{
    models::Config,
    train::evaluate::{POSITIONS, Score},
};
use serde_json::{Value, json};
use std::{
    f64::consts::LN_2,
    io::{Write, stdout},
    process::ExitCode,
};

/// Ranges of positions.
const RANGES: usize = POSITIONS.len() + 1;
/// Columns before the ranges.
const BEFORE: usize = 6;
/// Columns of a row; the last says what went wrong.
const COLUMNS: usize = BEFORE + RANGES + 1;

/// A mean loss in two units.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measured {
    /// Nats a token.
    loss: f64,
    // Of text: compares between tokenizers.
    bits_per_byte: f64,
}

impl Measured {
    /// Of tokens that stand for so many bytes each.
    pub(super) fn of_loss(loss: f64, bytes_per_token: f64) -> Self {
        Self { loss, bits_per_byte: loss / LN_2 / bytes_per_token }
    }

    /// The figures that a row shows.
    fn of(score: &Score) -> Self {
        Self { loss: score.loss(), bits_per_byte: score.bits_per_byte() }
    }

    fn to_json(self) -> Value {
        json!({"loss": self.loss, "bits_per_byte": self.bits_per_byte})
    }
}

/// What is known of a run.
pub(super) struct Row {
    /// As it was named.
    model: String,
    seed: u64,
    // The whole of it goes into the JSON, so that a row says what was trained.
    config: Config,
    /// Of the model.
    pub(super) parameters: Option<usize>,
    /// Over the last steps.
    pub(super) learned: Option<Measured>,
    /// Of windows that start with fresh memories.
    pub(super) fresh: Option<Score>,
    /// In one pass, those ranges of positions that the text reaches.
    pub(super) positions: Vec<Score>,
    /// Why something is missing.
    failure: Option<String>,
    /// The failure is no result: the run could not be made.
    broken: bool,
}

impl Row {
    /// Nothing is known yet.
    pub(super) fn new(TextRun { model, config, seed }: &TextRun) -> Self {
        let (model, seed, config, parameters, learned, fresh) =
            (model.clone(), *seed, config.clone(), None, None, None);
        Self { model, seed, config, parameters, learned, fresh, positions: Vec::new(), failure: None, broken: false }
    }

    /// The run ended so. A model that diverged is a finding, like any other figure.
    pub(super) fn fail(&mut self, error: &Error) {
        self.broken = !matches!(error, Error::Model(hecate::models::Error::NonFinite { .. }));
        let told = error.to_string();
        // The way out of a step that is not finite is one of a run with checkpoints.
        let what = if self.broken { Some(told.as_str()) } else { told.split(';').next() };
        self.failure = what.map(str::to_owned);
    }

    /// The whole pass, as the sum of its ranges.
    fn carried(&self) -> Option<Score> {
        let sum = |all: Score, part: &Score| Score {
            nats: all.nats + part.nats,
            tokens: all.tokens + part.tokens,
            bytes: all.bytes + part.bytes,
        };
        // Sums and not means: ranges differ in length.
        let all = self.positions.iter().fold(Score::default(), sum);
        (all.tokens > 0).then_some(all)
    }

    /// For the line that tells of its end.
    pub(super) fn told(&self) -> String {
        let [learned, fresh, carried] = self.figures().map(shown);
        match &self.failure {
            Some(failure) => failure.clone(),
            None => format!("learned {learned}, fresh {fresh}, carried {carried} bits/byte"),
        }
    }

    /// What was learned, fresh windows, one pass.
    fn figures(&self) -> [Option<Measured>; 3] {
        [self.learned, self.fresh.as_ref().map(Measured::of), self.carried().as_ref().map(Measured::of)]
    }

    /// Cells in bits a byte.
    fn cells(&self) -> [String; COLUMNS] {
        let parameters = self.parameters.map_or_else(|| "-".to_owned(), |count| count.to_string());
        let first = [self.model.clone(), parameters, self.seed.to_string()];
        let ranges = (0..RANGES).map(|i| shown(self.positions.get(i).map(Measured::of)));
        let last = self.failure.clone().unwrap_or_default();
        let mut cells = first.into_iter().chain(self.figures().map(shown)).chain(ranges).chain([last]);
        // As many as there are columns.
        std::array::from_fn(|_| cells.next().unwrap_or_default())
    }

    /// Everything that is known, in both units.
    fn to_json(&self) -> Value {
        let [learned, fresh, carried] = self.figures().map(|figure| figure.map(Measured::to_json));
        // A range that the text does not reach has no entry.
        let range = |(i, score): (usize, &Score)| {
            let Measured { loss, bits_per_byte } = Measured::of(score);
            json!({"positions": positions(i), "tokens": score.tokens, "loss": loss, "bits_per_byte": bits_per_byte})
        };
        json!({
            "model": self.model, "seed": self.seed, "parameters": self.parameters, "learned": learned, "fresh": fresh,
            "carried": carried, "by_position": self.positions.iter().enumerate().map(range).collect::<Vec<_>>(),
            "failure": self.failure, "config": self.config,
        })
    }
}

/// A figure as the table shows it; a dash for none.
fn shown(figure: Option<Measured>) -> String {
    figure.map_or_else(|| "-".to_owned(), |figure| format!("{:.4}", figure.bits_per_byte))
}

/// Rows of all runs, which end in any order.
pub(super) struct Report {
    /// One a run.
    rows: Vec<Option<Row>>,
    /// Rows that are in the table, or passed over at the end.
    printed: usize,
    /// None where everything is printed as JSON.
    table: Option<Table<COLUMNS>>,
}

impl Report {
    /// Before the first row.
    pub(super) fn new(runs: &[TextRun], as_json: bool) -> Self {
        let ranges: Vec<String> = (0..RANGES).map(positions).collect();
        // Figures in bits a byte, the last five by position.
        let first = ["model", "parameters", "seed", "learned", "fresh", "carried"];
        let mut heading = first.into_iter().chain(ranges.iter().map(String::as_str));
        let heading = std::array::from_fn(|_| heading.next().unwrap_or_default());
        // Rows come one by one: room for the longest name is there from the first.
        let name = runs.iter().map(|run| run.model.len()).max().unwrap_or(0);
        let widths = std::array::from_fn(|i| if i == 0 { name } else { 0 });
        let table = (!as_json).then(|| Table::new(&heading).with_widths(widths));
        Self { rows: runs.iter().map(|_| None).collect(), printed: 0, table }
    }

    /// A run is over: prints it, unless one before it is still under way.
    pub(super) fn take(&mut self, number: usize, row: Row) {
        self.rows[number] = Some(row);
        while let Some(row) = self.rows.get(self.printed).and_then(Option::as_ref) {
            Self::print(self.table.as_mut(), row);
            self.printed += 1;
        }
    }

    /// Writes a row. Whoever has read enough ends no run.
    fn print(table: Option<&mut Table<COLUMNS>>, row: &Row) {
        if let Some(Err(error)) = table.map(|table| table.row(row.cells())) {
            terminal::OUTPUT.note(&error);
        }
    }

    /// Prints what waits for runs that were stopped, or everything as JSON.
    pub(super) fn end(mut self, settings: Value, stopped: bool) -> Result<ExitCode> {
        // Of runs that ended after one that was stopped.
        for row in self.rows[self.printed..].iter().flatten() {
            Self::print(self.table.as_mut(), row);
        }
        let rows = || self.rows.iter().flatten();
        if self.table.is_none() {
            let rows: Vec<_> = rows().map(Row::to_json).collect();
            let mut found = json!({"task": "text", "settings": settings, "stopped": stopped, "rows": rows});
            found.sort_all_objects();
            // One value, so that a program can read all of standard output.
            writeln!(stdout(), "{found:#}")?;
        }
        terminal::tell_failures();
        if stopped {
            return Ok(ExitCode::from(stop::status()));
        }
        Ok(if rows().any(|row| row.broken) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}
