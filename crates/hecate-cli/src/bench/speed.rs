//! `hecate bench speed`: how fast rules are on this machine.

mod clock;
mod operations;

use crate::{
    device::{Choice, Job, with_device},
    error::{Error, Result},
    table::Table,
};
use clap::Args;
use clock::Clock;
use hecate_core::{Backend, DType, Kernel, Rule, forward, infer, rules::*};
use hecate_tests::{Case, Sizes, oracle::Oracle, report::check_rule};
use operations::Counted;
use serde_json::{Value, json};
use std::{
    io::{Write, stdout},
    process::ExitCode,
    str::FromStr,
};

/// The delta rule with a decayed erase, as Gated DeltaNet has it.
const GATED_DELTA: &str = "gated_delta";

#[derive(Args, Debug)]
pub(super) struct Arguments {
    /// Rules, with commas between; `all` for every one, `gated_delta` for the delta rule with a decayed erase
    #[arg(long, value_delimiter = ',', default_value = "hebbian,delta,gated_delta,dgd,titans", value_name = "NAMES")]
    rules: Vec<String>,
    /// Batch, tokens, heads and width of keys and values, with commas between several
    #[arg(long, value_delimiter = ',', default_value = "1x1024x16x64,1x1024x32x128", value_name = "BxTxHxD")]
    shapes: Vec<Size>,
    /// Element type of queries, keys, values and results: f32, bf16 or f16
    #[arg(long, default_value = "f32", value_parser = dtype, value_name = "TYPE")]
    dtype: DType,
    /// Measure each figure for about this long
    #[arg(long, default_value_t = 1.0, value_name = "SECONDS")]
    seconds: f64,
    /// Print everything as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    device: Choice,
}

/// `BxTxHxD`.
#[derive(Clone, Copy, Debug)]
struct Size {
    batch: usize,
    tokens: usize,
    heads: usize,
    width: usize,
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let numbers = text.split('x').map(str::parse).collect::<std::result::Result<Vec<usize>, _>>();
        match numbers.as_deref() {
            Ok(&[batch, tokens, heads, width]) if batch * tokens * heads * width > 0 => {
                Ok(Self { batch, tokens, heads, width })
            }
            _ => Err(format!("`{text}`: expected batch, tokens, heads and width, such as 1x1024x32x128")),
        }
    }
}

fn dtype(text: &str) -> std::result::Result<DType, String> {
    let known = [DType::F32, DType::Bf16, DType::F16];
    let found = known.into_iter().find(|dtype| dtype.to_string() == text);
    found.ok_or_else(|| format!("`{text}`: expected {}", known.map(|dtype| dtype.to_string()).join(", ")))
}

pub(super) fn run(arguments: Arguments) -> Result<ExitCode> {
    if !(arguments.seconds > 0.0 && arguments.seconds.is_finite()) {
        return Err(Error::flag("--seconds", format!("{} is no time; give more than 0", arguments.seconds)));
    }
    let choice = arguments.device.clone();
    with_device(&choice, arguments)
}

/// A figure.
struct Row {
    rule: String,
    size: Size,
    pass: &'static str,
    seconds: f64,
    /// Tokens of a call.
    tokens: usize,
    /// Operations of a call.
    operations: f64,
}

impl Job for Arguments {
    type Output = ExitCode;

    fn run<B: Backend>(self, device: &B) -> Result<ExitCode> {
        self.rules.iter().try_for_each(|name| check_name(name))?;
        let clock = Clock::new(device, self.seconds);
        let mut report = Report::new(format!("{device:?}"), clock.peak()?, self.json);
        report.begin()?;
        for rule in &self.rules {
            for &size in &self.shapes {
                self.measure(&clock, rule, size, &mut |row| report.take(row))?;
            }
        }
        report.end()
    }
}

/// Refuses what is no rule.
fn check_name(name: &str) -> Result<()> {
    macro_rules! names {
        ($($rule:ident),*) => { ["all", GATED_DELTA, $(<$rule as Rule>::NAME),*] };
    }
    let known = hecate_core::for_each_rule!(names);
    match known.contains(&name) {
        true => Ok(()),
        false => Err(Error::flag("--rules", format!("no rule `{name}`; there are {}", known.join(", ")))),
    }
}

/// What becomes of a figure.
type Take<'a> = &'a mut dyn FnMut(Row) -> Result<()>;

impl Arguments {
    /// A rule by its name.
    fn measure<B: Backend>(&self, clock: &Clock<'_, B>, name: &str, size: Size, take: Take<'_>) -> Result<()> {
        macro_rules! by_name {
            ($($rule:ident),*) => {
                match name {
                    GATED_DELTA => {
                        let rule = Delta { erase: Erase::Decayed, ..Delta::default() };
                        self.rows(clock, GATED_DELTA, rule, size, take)
                    }
                    "all" => {
                        $(self.rows(clock, <$rule as Rule>::NAME, <$rule>::default(), size, take)?;)*
                        Ok(())
                    }
                    $(<$rule as Rule>::NAME => self.rows(clock, name, <$rule>::default(), size, take),)*
                    _ => check_name(name),
                }
            };
        }
        hecate_core::for_each_rule!(by_name)
    }

    /// Forward, forward and backward, and one token behind another.
    fn rows<R: Oracle + Counted, B: Kernel<R>>(
        &self,
        clock: &Clock<'_, B>,
        name: &str,
        rule: R,
        size: Size,
        take: Take<'_>,
    ) -> Result<()> {
        let (device, Size { batch, tokens, heads, width }) = (clock.device(), size);
        let cell = check_rule(device, rule);
        if !cell.passed {
            let why = cell.failure.unwrap_or_else(|| "it gives numbers that are none".into());
            return Err(Error::flag("--rules", format!("`{name}` is wrong on this device and not timed: {why}")));
        }
        let operations = rule.operations(width, width) * (batch * heads) as f64;
        let mut row = |pass, seconds, tokens: usize, factor: f64| {
            let (rule, operations) = (name.to_owned(), operations * tokens as f64 * factor);
            take(Row { rule, size, pass, seconds, tokens: batch * tokens, operations })
        };
        let case = Case::new(rule, Sizes::new(batch, tokens, heads, width, width), 1);
        let (inputs, grads) = (case.upload(device, self.dtype)?, case.upload_grads(device, self.dtype)?);
        row("forward", clock.time(&mut || infer(device, rule, &inputs).map(drop))?, tokens, 1.0)?;
        let mut both = || {
            let (_, pass) = forward(device, rule, inputs.clone())?;
            pass.backward(grads.clone()).map(drop)
        };
        // A gradient of a product is two products.
        row("both", clock.time(&mut both)?, tokens, 3.0)?;
        let mut token = Case::new(rule, Sizes::new(batch, 1, heads, width, width), 2).upload(device, self.dtype)?;
        let mut decode = || {
            // What one token leaves is what the next one finds.
            token.state = infer(device, rule, &token)?.state;
            Ok(())
        };
        row("decode", clock.time(&mut decode)?, 1, 1.0)
    }
}

/// A table that grows, or all of it as JSON in the end.
struct Report {
    device: String,
    peak: f64,
    json: bool,
    rows: Vec<Value>,
    table: Table<7>,
}

impl Report {
    fn new(device: String, peak: f64, json: bool) -> Self {
        let heading = ["rule", "batch x tokens x heads x width", "pass", "ms", "tokens/s", "GFLOP/s", "of the peak"];
        let table = Table::new(&heading).with_widths([13, 0, 7, 9, 11, 0, 0]);
        Self { device, peak, json, rows: Vec::new(), table }
    }

    fn begin(&self) -> Result<()> {
        if self.json {
            return Ok(());
        }
        let peak = self.peak / 1e9;
        let mut out = stdout().lock();
        Ok(writeln!(out, "{}; peak: {peak:.0} GFLOP/s, its fastest product of f32 matrices\n", self.device)?)
    }

    fn take(&mut self, row: Row) -> Result<()> {
        let Row { rule, size: Size { batch, tokens, heads, width }, pass, seconds, .. } = row;
        let (rate, speed) = (row.tokens as f64 / seconds, row.operations / seconds);
        if self.json {
            let shape = [batch, tokens, heads, width];
            self.rows.push(json!({
                "rule": rule, "shape": shape, "pass": pass, "seconds": seconds, "tokens_per_second": rate,
                "flops_per_second": speed, "share_of_peak": speed / self.peak,
            }));
            return Ok(());
        }
        self.table.row([
            rule,
            format!("{batch}x{tokens}x{heads}x{width}"),
            pass.to_owned(),
            format!("{:.3}", seconds * 1e3),
            format!("{rate:.0}"),
            format!("{:.1}", speed / 1e9),
            format!("{:.1} %", 100.0 * speed / self.peak),
        ])
    }

    fn end(self) -> Result<ExitCode> {
        if self.json {
            let Self { device, peak, rows, .. } = self;
            let all = json!({ "device": device, "peak_flops_per_second": peak, "rows": rows });
            writeln!(stdout(), "{all:#}")?;
        }
        Ok(ExitCode::SUCCESS)
    }
}
