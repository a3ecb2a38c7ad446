//! What a benchmark says at its end: as a table for readers, as JSON for programs.

use super::{
    identities::Identity,
    published::Published,
    settings::{SweepSettings, shortest},
    sweep::{Outcome, SweepRun, Swept},
};
use crate::{
    error::{Error, Result},
    stop::{self, Stop},
    table::Table,
};
use serde_json::{Map, Value, json};
use std::{
    io::{Write, stdout},
    process::ExitCode,
};

/// Everything that a benchmark found, as a table or as JSON.
pub(super) struct Summary {
    /// The subcommand.
    pub(super) task: &'static str,
    /// Flags by name, in the order in which they were set.
    pub(super) settings: Map<String, Value>,
    /// Equations that need no learning.
    pub(super) identities: Vec<Identity>,
    /// Names of the accuracies of a run.
    pub(super) measures: Vec<String>,
    /// What others report.
    pub(super) published: Vec<Published>,
    /// One a candidate.
    pub(super) outcomes: Vec<Outcome>,
    /// Somebody asked to stop: something is missing.
    pub(super) stopped: bool,
    /// What ended the sweep before its end; what was found until then is printed all the same.
    pub(super) failure: Option<Error>,
}

impl Summary {
    /// A summary without findings.
    pub(super) fn new(task: &'static str, settings: &SweepSettings) -> Self {
        let settings = Map::from_iter(settings.to_json());
        let (identities, measures, published, outcomes) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { task, settings, identities, measures, published, outcomes, stopped: false, failure: None }
    }

    /// Notes a setting of the task's own.
    pub(super) fn set(&mut self, name: &str, value: Value) {
        self.settings.insert(name.to_owned(), value);
    }

    /// Takes what a sweep found, which may have been stopped.
    pub(super) fn take(&mut self, Swept { outcomes, failure }: Swept, stop: &Stop) {
        (self.outcomes, self.failure, self.stopped) = (outcomes, failure, stop.asked());
    }

    /// Prints it; fails if an identity does not hold, and with what ended the sweep early.
    pub(super) fn print(mut self, as_json: bool) -> Result<ExitCode> {
        // Even a sweep that was stopped is printed: what ended counts.
        if as_json {
            let mut found = self.to_json();
            found.sort_all_objects();
            writeln!(stdout(), "{found:#}")?;
        } else {
            self.print_identities()?;
            self.print_accuracies()?;
            Published::print(&self.published)?;
        }
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        // A stop first: what is missing cannot have failed.
        if self.stopped {
            return Ok(ExitCode::from(stop::status()));
        }
        let holds = self.identities.iter().all(Identity::holds);
        Ok(if holds { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// A row an equation: its name, its error, and whether it holds.
    fn print_identities(&self) -> Result<()> {
        // Characters, not bytes: names hold Greek letters.
        let width = self.identities.iter().map(|identity| identity.name.chars().count()).max().unwrap_or(0);
        let mut table = Table::new(&["identity", "error", ""]).with_widths([width, 0, 0]);
        for identity in &self.identities {
            let verdict = if identity.holds() { "holds" } else { "FAILS" };
            table.row([identity.name.clone(), format!("{:.1e}", identity.error), verdict.to_owned()])?;
        }
        // Between two tables.
        if !self.identities.is_empty() && !self.outcomes.is_empty() {
            writeln!(stdout())?;
        }
        Ok(())
    }

    /// A row a candidate and measure: the mean over seeds, and each seed's share.
    fn print_accuracies(&self) -> Result<()> {
        // Widths are reserved, since rows of later candidates may be wider.
        let heading = ["rule", "state", "rate", "accuracy on", "mean", "by seed", ""];
        let name = self.outcomes.iter().map(|outcome| outcome.name.chars().count()).max().unwrap_or(0);
        // Of several tasks each has its own.
        let measures = self.outcomes.iter().flat_map(|outcome| &outcome.measures);
        let measure = measures.map(|measure| measure.chars().count()).max().unwrap_or(0);
        let mut table = Table::new(&heading).with_widths([name, 8, 8, measure.max(14), 5, 18, 0]);
        for outcome in &self.outcomes {
            for (i, measure) in outcome.measures.iter().enumerate() {
                table.row(row(outcome, i, measure))?;
            }
        }
        Ok(())
    }

    /// All findings, every run included.
    fn to_json(&self) -> Value {
        // NaN has no JSON: serde writes `null` for it.
        let identity = |x: &Identity| json!({"name": x.name, "error": x.error, "limit": x.limit, "holds": x.holds()});
        json!({
            "task": self.task, "settings": self.settings, "measures": self.measures, "stopped": self.stopped,
            "published": Published::to_json(&self.published),
            "identities": self.identities.iter().map(identity).collect::<Vec<_>>(),
            "outcomes": self.outcomes.iter().map(outcome_json).collect::<Vec<_>>(),
        })
    }
}

/// A candidate with all its runs; learning rates as they were typed.
fn outcome_json(outcome: &Outcome) -> Value {
    // `tuning` is what the rate was chosen by; only `accuracy` is to be reported.
    let run = |run: &SweepRun| {
        json!({
            "rate": shortest(run.rate), "seed": run.seed, "steps": run.steps, "loss": run.loss, "tuning": run.tuning,
            "accuracy": run.testing, "failure": run.failure,
        })
    };
    let runs: Vec<Value> = outcome.runs.iter().map(run).collect();
    json!({"rule": outcome.name, "measures": outcome.measures, "state": outcome.state, "rate": outcome.rate.map(shortest), "runs": runs})
}

/// Cells of a candidate's row for one measure.
fn row(outcome: &Outcome, measure: usize, name: &str) -> [String; 7] {
    let scores: Vec<f64> = outcome.counted().map(|run| run.testing[measure]).collect();
    // NaN without a score, which is shown as a dash.
    let mean = scores.iter().sum::<f64>() / scores.len() as f64;
    let seeds: Vec<String> = scores.iter().map(|score| format!("{score:.3}")).collect();
    // Diverged runs count as wrong, and are told of.
    let diverged = outcome.counted().filter(|run| run.failure.is_some()).count();
    [
        outcome.name.clone(),
        outcome.state.to_string(),
        outcome.rate.map_or_else(|| "-".to_owned(), |rate| rate.to_string()),
        name.to_owned(),
        if scores.is_empty() { "-".to_owned() } else { format!("{mean:.3}") },
        seeds.join(" "),
        if diverged > 0 { format!("{diverged} diverged") } else { String::new() },
    ]
}
