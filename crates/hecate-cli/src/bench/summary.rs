//! What a benchmark says at its end.

use super::{
    contest::{Outcome, Run},
    identities::Identity,
    settings::{Settings, shortest},
};
use crate::{error::Result, stop::INTERRUPTED, table::Table};
use serde_json::{Map, Value, json};
use std::{
    io::{Write, stdout},
    process::ExitCode,
};

pub(super) struct Summary {
    pub(super) task: &'static str,
    pub(super) settings: Map<String, Value>,
    pub(super) identities: Vec<Identity>,
    pub(super) measures: Vec<String>,
    pub(super) outcomes: Vec<Outcome>,
    /// Somebody asked to stop: something is missing.
    pub(super) stopped: bool,
}

impl Summary {
    pub(super) fn new(task: &'static str, settings: &Settings) -> Self {
        let settings = Map::from_iter(settings.to_json());
        Self { task, settings, identities: Vec::new(), measures: Vec::new(), outcomes: Vec::new(), stopped: false }
    }

    /// Notes a setting of the task's own.
    pub(super) fn set(&mut self, name: &str, value: Value) {
        self.settings.insert(name.to_owned(), value);
    }

    /// Prints it; fails if an identity does not hold.
    pub(super) fn print(&self, as_json: bool) -> Result<ExitCode> {
        if as_json {
            writeln!(stdout(), "{:#}", self.to_json())?;
        } else {
            self.print_identities()?;
            self.print_accuracies()?;
        }
        if self.stopped {
            return Ok(ExitCode::from(INTERRUPTED));
        }
        let holds = self.identities.iter().all(Identity::holds);
        Ok(if holds { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn print_identities(&self) -> Result<()> {
        let width = self.identities.iter().map(|identity| identity.name.chars().count()).max().unwrap_or(0);
        let mut table = Table::new(&["identity", "error", ""]).with_widths([width, 0, 0]);
        for identity in &self.identities {
            let verdict = if identity.holds() { "holds" } else { "FAILS" };
            table.row([identity.name.clone(), format!("{:.1e}", identity.error), verdict.to_owned()])?;
        }
        if !self.identities.is_empty() && !self.outcomes.is_empty() {
            writeln!(stdout())?;
        }
        Ok(())
    }

    fn print_accuracies(&self) -> Result<()> {
        let heading = ["rule", "state", "rate", "accuracy on", "mean", "by seed", ""];
        let name = self.outcomes.iter().map(|outcome| outcome.name.chars().count()).max().unwrap_or(0);
        let mut table = Table::new(&heading).with_widths([name, 8, 8, 14, 5, 18, 0]);
        for outcome in &self.outcomes {
            for (i, measure) in self.measures.iter().enumerate() {
                table.row(row(outcome, i, measure))?;
            }
        }
        Ok(())
    }

    fn to_json(&self) -> Value {
        let identity = |x: &Identity| json!({"name": x.name, "error": x.error, "limit": x.limit, "holds": x.holds()});
        json!({
            "task": self.task, "settings": self.settings, "measures": self.measures, "stopped": self.stopped,
            "identities": self.identities.iter().map(identity).collect::<Vec<_>>(),
            "outcomes": self.outcomes.iter().map(outcome_json).collect::<Vec<_>>(),
        })
    }
}

fn outcome_json(outcome: &Outcome) -> Value {
    let run = |run: &Run| {
        json!({
            "rate": shortest(run.rate), "seed": run.seed, "steps": run.steps, "loss": run.loss, "tuning": run.tuning,
            "accuracy": run.testing, "failure": run.failure,
        })
    };
    let runs: Vec<Value> = outcome.runs.iter().map(run).collect();
    json!({"rule": outcome.name, "state": outcome.state, "rate": outcome.rate.map(shortest), "runs": runs})
}

fn row(outcome: &Outcome, measure: usize, name: &str) -> [String; 7] {
    let scores: Vec<f64> = outcome.counted().map(|run| run.testing[measure]).collect();
    let mean = scores.iter().sum::<f64>() / scores.len() as f64;
    let seeds: Vec<String> = scores.iter().map(|score| format!("{score:.3}")).collect();
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
