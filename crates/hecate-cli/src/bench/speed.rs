//! `hecate bench speed`: how fast rules are on this machine, beside its own fastest matrix product.
//!
//! A rule is checked against the 64-bit equations before it is timed: a fast wrong kernel gets no row.
//!
//! Times are of whole calls, with arrays on the device before and results left there. Figures in GFLOP/s count the
//! operations of the equations: a form that does more work than they ask for gains nothing by it.

mod clock;
mod operations;

use crate::{
    device::{Choice, with_device},
    error::{Error, Result},
    progress::{PAUSE, Ticker, compiling, say},
    table::Table,
};
use clap::Args;
use clock::Clock;
use hecate::{
    Backend, DType, Dims, Forward, Inputs, Job, Kernel, Outputs, Rule, Tensor, forward, infer, memory, rules::*,
};
use hecate_conformance::{Case, Sizes, oracle::Oracle, report::check_rule};
use operations::Counted;
use serde_json::{Value, json};
use std::{
    fmt::{self, Display, Formatter},
    io::{IsTerminal, Write, stdout},
    num::NonZeroU32,
    process::ExitCode,
    str::FromStr,
};

/// The delta rule with a decayed erase, as Gated DeltaNet has it.
const GATED_DELTA: &str = "gated_delta";

/// Atlas with five steps of Newton-Schulz, as the Muon optimiser takes them.
const ATLAS_MUON: &str = "atlas_muon";

/// Flags of `hecate bench speed`.
#[derive(Args, Debug)]
pub(super) struct SpeedArgs {
    /// Rules, with commas between; `all` for every one, `gated_delta` for the delta rule with a decayed erase,
    /// `atlas_muon` for atlas with five steps of Newton-Schulz
    #[arg(long, value_delimiter = ',', default_value = "hebbian,delta,gated_delta,dgd,titans", value_name = "NAMES")]
    // Names and not a parsed list: `all` stands for as many rows as there are rules.
    rules: Vec<String>,
    /// Batch, tokens, heads and width of keys and values, with commas between several; `BxTxHxKxV` where these differ,
    /// such as `4x2048x16x1x64`: neurons that have no keys
    #[arg(long, value_delimiter = ',', default_value = "1x1024x16x64,1x1024x32x128", value_name = "BxTxHxD")]
    shapes: Vec<CallShape>,
    /// Element type of queries, keys, values and results: f32, bf16 or f16
    #[arg(long, default_value = "f32", value_parser = dtype, value_name = "TYPE")]
    dtype: DType,
    /// Tokens of a group that share one gradient point, for rules that go by groups; with `all` others are left out
    #[arg(long, value_name = "TOKENS")]
    frozen: Option<NonZeroU32>,
    /// Seconds to measure each figure for, about
    #[arg(long, default_value_t = 1.0, value_name = "SECONDS")]
    seconds: f64,
    /// Print everything as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    device: Choice,
}

/// `BxTxHxD`: queries, keys and values `[B,T,H,D]`; or `BxTxHxKxV`: queries and keys `[B,T,H,K]`, values `[B,T,H,V]`.
#[derive(Clone, Copy, Debug)]
struct CallShape {
    /// Texts.
    batch: usize,
    /// Tokens a text.
    tokens: usize,
    /// `H`.
    heads: usize,
    /// Width of queries and keys.
    key: usize,
    /// Width of values.
    value: usize,
}

impl CallShape {
    /// The lengths as they are written: four of them, where keys are as wide as values.
    fn lengths(self) -> Vec<usize> {
        let Self { batch, tokens, heads, key, value } = self;
        // One width stands for both, as it was typed.
        let widths = if key == value { vec![value] } else { vec![key, value] };
        [vec![batch, tokens, heads], widths].concat()
    }
}

/// As it is typed: what is printed can be asked for again.
impl Display for CallShape {
    /// Lengths with an `x` between two of them.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.lengths().iter().map(usize::to_string).collect::<Vec<_>>().join("x"))
    }
}

impl FromStr for CallShape {
    type Err = String;

    /// Sizes as `BxTxHxD` or `BxTxHxKxV`.
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        // Four or five lengths, none of them zero.
        let numbers = text.split('x').map(str::parse).collect::<std::result::Result<Vec<usize>, _>>();
        // Too few, too many, or no numbers.
        let wrong = Err(format!("`{text}`: expected batch, tokens, heads and width, such as 1x1024x32x128"));
        match numbers.as_deref() {
            // A call without elements takes no time that says anything.
            Ok(lengths) if lengths.contains(&0) => wrong,
            // Keys as wide as values: what layers have unless they are told otherwise.
            Ok(&[batch, tokens, heads, width]) => Ok(Self { batch, tokens, heads, key: width, value: width }),
            // Such as neurons, which need no keys: `K = 1`.
            Ok(&[batch, tokens, heads, key, value]) => Ok(Self { batch, tokens, heads, key, value }),
            _ => wrong,
        }
    }
}

/// An element type by its name.
fn dtype(text: &str) -> std::result::Result<DType, String> {
    let known = [DType::F32, DType::Bf16, DType::F16];
    let found = known.into_iter().find(|dtype| dtype.to_string() == text);
    found.ok_or_else(|| format!("`{text}`: expected {}", known.map(|dtype| dtype.to_string()).join(", ")))
}

/// Times the rules on the chosen device.
pub(super) fn run(arguments: SpeedArgs) -> Result<ExitCode> {
    // Written so that NaN is refused too.
    if !(arguments.seconds > 0.0 && arguments.seconds.is_finite()) {
        return Err(Error::flag("--seconds", format!("{} is no time; give more than 0", arguments.seconds)));
    }
    let choice = arguments.device.clone();
    with_device(&choice, arguments)
}

/// The time of one pass of one rule.
struct SpeedRow {
    rule: String,
    size: CallShape,
    /// `forward`, `both` or `decode`.
    pass: &'static str,
    /// Of a call.
    seconds: f64,
    /// Tokens of a call.
    tokens: usize,
    /// Operations of a call.
    operations: f64,
}

impl Job for SpeedArgs {
    type Output = Result<ExitCode>;

    fn run<B: Backend>(self, device: &B) -> Result<ExitCode> {
        // Before the peak is measured, which takes seconds.
        self.rules.iter().try_for_each(|name| check_name(name))?;
        let clock = Clock::new(device, self.seconds);
        let mut report =
            SpeedReport::new(format!("{}, {}", B::NAME, device.hardware()), clock.peak()?, self.frozen, self.json);
        report.begin()?;
        let (ticker, watched) = (Ticker::new(PAUSE), stdout().is_terminal() && !self.json);
        // Shapes inside, so that a rule's rows stand together.
        for rule in &self.rules {
            for &size in &self.shapes {
                self.measure(&clock, rule, size, &mut |row| {
                    // Rows may go into a file that nobody sees, or come at the end.
                    if !watched && ticker.due() {
                        say(&format!("timed: {}, {}", row.rule, row.pass));
                    }
                    report.take(row)
                })?;
            }
        }
        report.end()
    }
}

/// Refuses what is no rule.
fn check_name(name: &str) -> Result<()> {
    // Names come from the rules themselves, so a new one is known here at once.
    macro_rules! names {
        ($($rule:ident),*) => { ["all", GATED_DELTA, ATLAS_MUON, $(<$rule as Rule>::NAME),*] };
    }
    let known = hecate::for_each_rule!(names);
    match known.contains(&name) {
        true => Ok(()),
        false => Err(Error::flag("--rules", format!("no rule `{name}`; there are {}", known.join(", ")))),
    }
}

/// Takes a row as soon as it is measured.
type Take<'a> = &'a mut dyn FnMut(SpeedRow) -> Result<()>;

impl SpeedArgs {
    /// The passes of a rule by its name, or of all rules.
    fn measure<B: Backend>(&self, clock: &Clock<'_, B>, name: &str, size: CallShape, take: Take<'_>) -> Result<()> {
        // One arm a rule: the compiler makes each rule's passes once.
        macro_rules! by_name {
            ($($rule:ident),*) => {
                match name {
                    GATED_DELTA => {
                        let rule = Delta { erase: Erase::Decayed, ..Delta::default() };
                        self.rows(clock, GATED_DELTA, rule, size, take)
                    }
                    ATLAS_MUON => {
                        let rule = Atlas { newton_schulz: 5, ..Atlas::default() };
                        self.rows(clock, ATLAS_MUON, rule, size, take)
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
        hecate::for_each_rule!(by_name)
    }

    /// The rule in groups where that is asked for; none where it is one of `all` that has no groups.
    fn frozen<R: Rule>(&self, name: &str, rule: R) -> Result<Option<R>> {
        // Exact, as rules are unless they are told otherwise.
        let Some(group) = self.frozen else { return Ok(Some(rule)) };
        let rule = rule.with_frozen(Some(group.get()));
        if rule.frozen().is_some() {
            return Ok(Some(rule));
        }
        match self.rules.iter().any(|asked| asked == name) {
            true => Err(Error::flag("--frozen", format!("`{name}` does not go by groups; leave it out of --rules"))),
            false => Ok(None),
        }
    }

    /// Passes of `rule`, once its results are right: forward, forward and backward, and decoding token by token.
    fn rows<R: Oracle + Counted, B: Kernel<R>>(
        &self,
        clock: &Clock<'_, B>,
        name: &str,
        rule: R,
        size: CallShape,
        take: Take<'_>,
    ) -> Result<()> {
        let Some(rule) = self.frozen(name, rule)? else { return Ok(()) };
        let (device, CallShape { batch, tokens, heads, key, value }) = (clock.device(), size);
        let dims = Dims::new(batch, tokens, heads, key, value);
        rule.check(&dims)?;
        check_room(rule, &dims)?;
        // A memory that vanishes within the text becomes subnormal numbers, which some processors are slow with.
        let case = Case::new(rule, Sizes::new(batch, tokens, heads, key, value), 1);
        let case = case.changed("log_a", |i, drawn| 0.05 * drawn[i]);
        // Arrays are uploaded before the clock starts.
        let (inputs, grads) = (case.upload(device, self.dtype)?, case.upload_grads(device, self.dtype)?);
        let mut token = Case::new(rule, Sizes::new(batch, 1, heads, key, value), 2).upload(device, self.dtype)?;
        prepare(device, rule, [&inputs, &token], &grads)?;
        // Small sizes, in 32 bits: wrong results are found, not those of this very shape.
        let cell = check_rule(device, rule);
        if !cell.passed {
            let why = cell.failure.unwrap_or_else(|| "its results are not finite".into());
            return Err(Error::flag("--rules", format!("`{name}` is wrong on this device and not timed: {why}")));
        }
        // Of one token in all texts and heads.
        let operations = rule.operations(key, value) * (batch * heads) as f64;
        // `factor` is the work of the pass over that of a forward.
        let mut row = |pass, seconds, tokens: usize, factor: f64| {
            let (rule, operations) = (name.to_owned(), operations * tokens as f64 * factor);
            take(SpeedRow { rule, size, pass, seconds, tokens: batch * tokens, operations })
        };
        row("forward", clock.time(&mut || infer(device, rule, &inputs).map(drop))?, tokens, 1.0)?;
        // Clones share buffers: what is timed is the pass, not copies of its arguments.
        let mut both = || {
            let pass = forward(device, rule, inputs.clone())?.pass;
            pass.backward(grads.clone()).map(drop)
        };
        // A gradient of a product is two products.
        row("both", clock.time(&mut both)?, tokens, 3.0)?;
        if self.frozen.is_some() {
            // A group's gradients are of the memory that it began with, which a single token does not know.
            return Ok(());
        }
        let mut decode = || {
            // Each call waits for the state of the one before it, as in generation.
            // What one token leaves is what the next one finds.
            token.state = infer(device, rule, &token)?.state;
            Ok(())
        };
        row("decode", clock.time(&mut decode)?, 1, 1.0)
    }
}

/// The kernels of a rule's passes at once: a first call would compile them one by one, while the clock runs.
fn prepare<R: Rule, B: Kernel<R>>(
    device: &B,
    rule: R,
    [inputs, token]: [&Inputs<R, Tensor<B>>; 2],
    grads: &Outputs<R, Tensor<B>>,
) -> Result<()> {
    let mut work = || {
        // What they find means nothing.
        let _ = (infer(device, rule, inputs), infer(device, rule, token));
        let _ = forward(device, rule, inputs.clone()).and_then(|Forward { pass, .. }| pass.backward(grads.clone()));
    };
    Ok(device.prepare(&mut work, &mut |kernels| say(&compiling(kernels)))?)
}

/// Refuses arguments and gradients that the host has no room for: they are drawn there, in 64 bits.
fn check_room<R: Rule>(rule: R, dims: &Dims) -> hecate::Result<()> {
    let counts = Inputs::<R, _>::try_build(rule, dims, DType::F32, |shape, _| Ok::<_, hecate::Error>(shape.count()))?;
    let all = counts.list().into_iter().fold(0, |sum: usize, (_, &count)| sum.saturating_add(count));
    memory::check::<[f64; 2]>("bench", all)
}

/// A table that grows, or all of it as JSON in the end.
struct SpeedReport {
    /// Its kind and its hardware.
    device: String,
    /// Operations a second of its fastest matrix product.
    peak: f64,
    /// Tokens of a group; none where rules are exact.
    frozen: Option<NonZeroU32>,
    /// Whether all of it is one JSON value, printed at the end.
    json: bool,
    /// Rows that wait to be printed as JSON.
    rows: Vec<Value>,
    /// Unused with JSON.
    table: Table<7>,
}

impl SpeedReport {
    /// A report without rows.
    fn new(device: String, peak: f64, frozen: Option<NonZeroU32>, json: bool) -> Self {
        // With room for the cells that come, these are the 80 columns of a terminal.
        let heading = ["rule", "BxTxHxD", "pass", "ms", "tokens/s", "GFLOP/s", "of peak"];
        let table = Table::new(&heading).with_widths([13, 13, 7, 9, 10, 8, 0]);
        Self { device, peak, frozen, json, rows: Vec::new(), table }
    }

    /// The lines above the table.
    fn begin(&self) -> Result<()> {
        if self.json {
            return Ok(());
        }
        // In operations of 10⁹, as the column has them.
        let peak = self.peak / 1e9;
        let mut out = stdout().lock();
        writeln!(out, "{}", self.device)?;
        // On lines of their own: a device may have a long name.
        writeln!(out, "peak: {peak:.0} GFLOP/s, its fastest product of f32 matrices")?;
        if let Some(group) = self.frozen {
            writeln!(out, "frozen: groups of {group} tokens share one gradient point")?;
        }
        Ok(writeln!(out, "BxTxHxD: batch, tokens, heads, widths of keys and values, once where they agree\n")?)
    }

    /// A row: printed, or kept for JSON.
    fn take(&mut self, row: SpeedRow) -> Result<()> {
        let SpeedRow { rule, size, pass, seconds, .. } = row;
        // Tokens a second, and operations a second.
        let (rate, speed) = (row.tokens as f64 / seconds, row.operations / seconds);
        if self.json {
            self.rows.push(json!({
                "rule": rule, "shape": size.lengths(), "pass": pass, "seconds": seconds, "tokens_per_second": rate,
                "flops_per_second": speed, "share_of_peak": speed / self.peak,
            }));
            return Ok(());
        }
        self.table.row([
            rule,
            size.to_string(),
            pass.to_owned(),
            format!("{:.3}", seconds * 1e3),
            format!("{rate:.0}"),
            format!("{:.1}", speed / 1e9),
            format!("{:.1} %", 100.0 * speed / self.peak),
        ])
    }

    /// Prints what was kept.
    fn end(self) -> Result<ExitCode> {
        if self.json {
            let Self { device, peak, frozen, rows, .. } = self;
            let mut all = json!({ "device": device, "peak_flops_per_second": peak, "frozen": frozen, "rows": rows });
            all.sort_all_objects();
            writeln!(stdout(), "{all:#}")?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words;

    #[test]
    fn any_word_is_a_shape_or_refused() {
        let mut taken = 0;
        let known = [
            "1x1024x16x64",
            "4x2048x16x1x64",
            "1x1x1x1",
            "1x1x1x1x0",
            "0x1x1x1",
            "18446744073709551615x9x9x9",
            "1x2x3",
            "x",
            "",
        ];
        words::each(&known, |word| match word.parse::<CallShape>() {
            Ok(size) => {
                let CallShape { batch, tokens, heads, key, value } = size;
                // Blanks and signs that no number has were refused.
                let again = size.to_string().parse::<CallShape>();
                assert_eq!(again.map(CallShape::lengths), Ok(size.lengths()), "{word}");
                assert!(![batch, tokens, heads, key, value].contains(&0), "{word}");
                let dims = Dims::new(batch, tokens, heads, key, value);
                // Products of what was typed must not overflow, and shapes of this machine's size are not refused.
                let fits = check_room(Delta::default(), &dims).is_ok();
                assert!(fits || batch.max(tokens).max(heads).max(key).max(value) > 1000, "{word}");
                taken += 1;
            }
            Err(told) => assert!(told.contains("expected batch, tokens, heads and width"), "{told}"),
        });
        assert!(taken > 1000, "{taken}");
    }

    /// Integers are a type too, but no one that a rule takes.
    #[test]
    fn any_word_is_a_type_or_refused() {
        words::each(&["f32", "bf16", "f16", "u32"], |word| match dtype(word) {
            Ok(dtype) => assert_eq!(dtype.to_string(), word),
            Err(told) => assert!(told.contains("f32, bf16, f16"), "{told}"),
        });
    }
}
