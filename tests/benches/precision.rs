//! Errors of the linear rules with bfloat16 `q`, `k`, `v` and `out` over long sequences, as a table in Markdown.
//!
//! `cargo bench -p hecate-tests --bench precision -- [cpu|cuda|wgpu] [TOKENS] [WIDTH]`; `cpu`, 4096 and 64 unless
//! something else is said. A cell is the backend's error, and after it how often it is what rounding the arguments costs
//! anyway ([`precision`]); the program fails where that is over 2.

use hecate_conformance::{
    oracle::Oracle,
    precision::{self, Figure, Setting},
};
use hecate_core::{Backend, Result, Rule, rules::*};
use hecate_cpu::Cpu;
use hecate_cuda::Cuda;
use hecate_wgpu::{Selection, Wgpu};
use std::{
    error::Error,
    process::ExitCode,
    sync::{Mutex, PoisonError},
    thread,
};

/// Slots of the linear rules: results, and gradients.
const COLUMNS: [(&str, bool); 12] = [
    ("out", false),
    ("m", false),
    ("s", false),
    ("q", true),
    ("k", true),
    ("v", true),
    ("log_a", true),
    ("log_eta", true),
    ("theta", true),
    ("beta", true),
    ("m", true),
    ("s", true),
];

/// A line of the table.
struct Row {
    rule: &'static str,
    setting: Setting,
    figures: Vec<Figure>,
}

/// Computes a line.
type Job<'a> = Box<dyn FnOnce() -> Result<Row> + Send + 'a>;

fn jobs<B: Backend>(backend: &B, tokens: usize, width: usize) -> Vec<Job<'_>> {
    fn of<'a, R: Oracle, B: Backend + hecate_core::Kernel<R>>(
        backend: &'a B,
        (name, rule): (&'static str, R),
        (tokens, width): (usize, usize),
    ) -> impl Iterator<Item = Job<'a>> {
        Setting::ALL.into_iter().map(move |setting| {
            let row = move || {
                let figures = precision::figures(backend, &setting.case(rule, tokens, width))?;
                Ok(Row { rule: name, setting, figures })
            };
            Box::new(row) as Job<'a>
        })
    }
    let gated = Delta { erase: Erase::Decayed, ..Delta::default() };
    let sizes = (tokens, width);
    of(backend, (<Hebbian as Rule>::NAME, Hebbian::default()), sizes)
        .chain(of(backend, (<Delta as Rule>::NAME, Delta::default()), sizes))
        .chain(of(backend, ("delta, gated", gated), sizes))
        .chain(of(backend, (<Titans as Rule>::NAME, Titans::default()), sizes))
        .chain(of(backend, (<Dgd as Rule>::NAME, Dgd::default()), sizes))
        .collect()
}

/// All lines, as many at once as there are processors: the equations take the longest.
fn rows(jobs: Vec<Job<'_>>) -> Result<Vec<Row>> {
    let workers = thread::available_parallelism().map_or(1, usize::from);
    let jobs = Mutex::new(jobs.into_iter().enumerate());
    let next = || jobs.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work = || {
        let mut done = Vec::new();
        while let Some((i, job)) = next() {
            done.push((i, job()));
        }
        done
    };
    let mut rows: Vec<(usize, Result<Row>)> = thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        workers
            .into_iter()
            .flat_map(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    });
    rows.sort_by_key(|(i, _)| *i);
    rows.into_iter().map(|(_, row)| row).collect()
}

fn print(rows: &[Row]) {
    let title = |(slot, gradient): (&str, bool)| format!("{}{slot}", if gradient { "d" } else { "" });
    println!("| rule | tokens | {} |", COLUMNS.map(title).join(" | "));
    println!("|{}", "---|".repeat(2 + COLUMNS.len()));
    for Row { rule, setting, figures } in rows {
        let cell = |(slot, gradient)| {
            let figure = figures.iter().find(|figure| (figure.slot, figure.gradient) == (slot, gradient));
            figure.map_or(String::new(), |figure| format!("{:.1e}, {:.2}", figure.error, figure.ratio()))
        };
        println!("| {rule} | {setting} | {} |", COLUMNS.map(cell).join(" | "));
    }
}

/// What is over the limit, by name.
fn failures(rows: &[Row]) -> Vec<String> {
    let named = |row: &Row, figure: &Figure| format!("{}, {}: {figure:?}", row.rule, row.setting);
    let failed = |row: &Row| row.figures.iter().filter(|x| !x.passed()).map(|x| named(row, x)).collect::<Vec<_>>();
    rows.iter().flat_map(failed).collect()
}

fn measure<B: Backend>(backend: &B, tokens: usize, width: usize) -> Result<Vec<String>> {
    let rows = rows(jobs(backend, tokens, width))?;
    println!("{backend:?}, {tokens} tokens, keys and values of {width}");
    print(&rows);
    Ok(failures(&rows))
}

fn run() -> std::result::Result<Vec<String>, Box<dyn Error>> {
    // Cargo puts `--bench` after what the user says.
    let mut words = std::env::args().skip(1).filter(|word| word != "--bench");
    let device = words.next().unwrap_or_else(|| "cpu".into());
    let mut number =
        |usual: usize| words.next().map_or(Ok(usual), |word| word.parse().map_err(|error| format!("{word}: {error}")));
    let (tokens, width) = (number(4096)?, number(64)?);
    Ok(match device.as_str() {
        "cpu" => measure(&Cpu::new(), tokens, width)?,
        "cuda" => measure(&Cuda::new(0)?, tokens, width)?,
        "wgpu" => measure(&Wgpu::new(&Selection::Default)?, tokens, width)?,
        other => return Err(format!("device `{other}`: expected cpu, cuda or wgpu").into()),
    })
}

fn main() -> ExitCode {
    match run() {
        Ok(failures) if failures.is_empty() => ExitCode::SUCCESS,
        Ok(failures) => {
            failures.iter().for_each(|failure| eprintln!("over twice what rounding costs: {failure}"));
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
