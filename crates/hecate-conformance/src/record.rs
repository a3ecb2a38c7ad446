//! What came of a run on a device, written down: one line for each cell of each column, as in `docs/conformance.tsv`.
//! Tables for readers are made from it, so that they say what ran and not what compiles.

use crate::{
    report::{Cell, check_all},
    require::say,
};
use hecate_core::{Backend, Rule, rules::*};
use std::fmt::{self, Write};

/// The columns of the matrix, by the names of their devices.
pub const COLUMNS: [&str; 3] = ["cpu", "cuda", "wgpu"];

/// Names of the fields of a line.
///
/// Fields are parted by tabs, since devices' names hold commas and spaces.
const HEADING: &str = "column\tcell\tforms\tforward error\tgradient error\tdevice\tversion";

/// What stands for a figure that nobody measured, or that the cell does not have.
const NONE: &str = "-";

/// One cell, over all of its options.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Name of the device's kind, one of [`COLUMNS`].
    pub column: String,
    /// Name of the rule or primitive.
    pub cell: String,
    /// What a run found; nothing where none was recorded yet.
    pub run: Option<Run>,
}

/// What a run of a cell found.
///
/// Errors are the root mean square of the difference over that of the truth ([`error`](crate::error)).
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// Combinations of options of a rule, calls of a primitive; 0 of a primitive that the device does not have.
    // Compared exactly: a lost combination of options is a lost test.
    pub forms: usize,
    /// Worst error of any result, relative to the truth in 64 bits.
    pub forward_error: f64,
    /// Worst error of any gradient, where the cell has a backward.
    pub gradient_error: Option<f64>,
    /// The device's [hardware](hecate_core::Device::hardware).
    pub device: String,
    /// Version of this crate.
    pub version: String,
}

/// All rows, by column and in the order of the lists of rules and primitives.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Record {
    /// The rows.
    pub rows: Vec<Row>,
}

/// Names of all rules.
pub fn rules() -> Vec<&'static str> {
    macro_rules! names {
        ($($rule:ident),*) => { vec![$(<$rule as Rule>::NAME),*] };
    }
    hecate_core::for_each_rule!(names)
}

/// Names of all cells of a column: rules, then primitives.
pub fn cells() -> Vec<&'static str> {
    macro_rules! names {
        ($($name:ident),*) => { [$(stringify!($name)),*] };
    }
    rules().into_iter().chain(crate::for_each_primitive!(names)).collect()
}

/// Every cell passes on this device, and what `record` says of its column is what comes out. For a test of each column.
///
/// # Panics
/// Naming the cells that fail or differ; if `record` cannot be read.
pub fn assert_recorded<B: Backend>(record: &str, device: &B) {
    let record = Record::parse(record).unwrap_or_else(|why| panic!("the record cannot be read: {why}"));
    // The same comparisons as `hecate check` makes, so the record can be made again by hand.
    let found = check_all(device, |_| {});
    let failed: Vec<_> = found.iter().filter(|cell| !cell.passed).collect();
    assert!(failed.is_empty(), "failed on {device:?}: {failed:#?}");
    let way_out = format!("`hecate check --device {} --record docs/conformance.tsv` records it anew", B::NAME);
    let differences = record.differences(B::NAME, &found);
    assert!(differences.is_empty(), "{device:?} is not as recorded; {way_out}:\n{}", differences.join("\n"));
    // Said and not failed: a machine without that device cannot fill its row.
    let unrecorded = record.unrecorded(B::NAME);
    if !unrecorded.is_empty() {
        say(&format!("not recorded of {}: {}; {way_out}", B::NAME, unrecorded.join(", ")));
    }
}

impl Record {
    /// Reads what [`Display`](fmt::Display) wrote.
    ///
    /// # Errors
    /// Naming the line that is none, and what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut lines = text.lines();
        // Other fields, or another order, would be read as other figures.
        if lines.next() != Some(HEADING) {
            return Err(format!("line 1: expected the heading `{HEADING}`"));
        }
        // Lines count from 1, and the heading is the first.
        let row = |(i, line)| parse_row(line).map_err(|why| format!("line {}: {why}: `{line}`", i + 2));
        Ok(Self { rows: lines.enumerate().map(row).collect::<Result<_, _>>()? })
    }

    /// Puts what [`check_all`] found on `device` in place of the column's rows.
    ///
    /// # Errors
    /// Naming the cells that failed: what is wrong is not recorded.
    pub fn replace(&mut self, column: &str, device: &str, found: &[Cell]) -> Result<(), String> {
        // All or nothing: a column of which a part is old would say of no version what ran.
        let failed: Vec<&str> = found.iter().filter(|cell| !cell.passed).map(|cell| cell.name).collect();
        if !failed.is_empty() {
            return Err(format!("nothing is recorded, since these failed: {}", failed.join(", ")));
        }
        self.rows.retain(|row| row.column != column);
        let row = |name: &&str| Row { column: column.into(), cell: (*name).into(), run: run_of(name, device, found) };
        self.rows.extend(cells().iter().map(row));
        self.complete();
        Ok(())
    }

    /// Gives every column a row for every cell, without figures where none are known, and drops rows of no cell.
    pub fn complete(&mut self) {
        let all = COLUMNS.iter().flat_map(|column| cells().into_iter().map(move |cell| (*column, cell)));
        let known = |(column, cell): (&str, &str)| {
            let run = self.rows.iter().find(|row| row.column == column && row.cell == cell);
            Row { column: column.into(), cell: cell.into(), run: run.and_then(|row| row.run.clone()) }
        };
        self.rows = all.map(known).collect();
    }

    /// Rows of a column.
    pub fn column<'a>(&'a self, column: &'a str) -> impl Iterator<Item = &'a Row> {
        self.rows.iter().filter(move |row| row.column == column)
    }

    /// A table in Markdown, a line for each column: which device ran it, and the worst errors with their cells. It counts
    /// no cells: a document that shows it stays as it is when one is added.
    pub fn table(&self) -> String {
        let mut table = String::from("| backend | device of the recorded run | worst error | of gradients |\n");
        table.push_str("|---|---|---|---|\n");
        for column in COLUMNS {
            let runs: Vec<_> = self.column(column).filter_map(|row| Some((&*row.cell, row.run.as_ref()?))).collect();
            // A column is recorded at once, so it has one device; more would be named side by side.
            let mut devices: Vec<&str> = runs.iter().map(|(_, run)| &*run.device).collect();
            // Neighbours only, which is enough in a column that one run wrote.
            devices.dedup();
            let devices = if devices.is_empty() { "not recorded yet".into() } else { devices.join(", ") };
            let forward = worst(runs.iter().map(|(cell, run)| (*cell, run.forward_error)));
            let gradient = worst(runs.iter().filter_map(|(cell, run)| Some((*cell, run.gradient_error?))));
            // Writing to a `String` does not fail.
            let _ = writeln!(table, "| {column} | {devices} | {forward} | {gradient} |");
        }
        table
    }

    /// Names of a column's cells that no run is recorded of.
    pub fn unrecorded(&self, column: &str) -> Vec<&str> {
        let recorded = |cell: &&str| self.column(column).any(|row| row.cell == *cell && row.run.is_some());
        cells().into_iter().filter(|cell| !recorded(cell)).collect()
    }

    /// How what was found on a device differs from what is recorded of its column. Errors may differ tenfold, since sums
    /// in another order round otherwise. Those under the rounding of one element may differ at will.
    pub fn differences(&self, column: &str, found: &[Cell]) -> Vec<String> {
        // The device's name is not compared: another GPU of the same kind is to confirm the figures.
        let one = |row: &Row| {
            let (old, new) = (row.run.as_ref()?, run_of(&row.cell, "", found));
            let same = new.as_ref().is_some_and(|new| {
                let gradients = match (old.gradient_error, new.gradient_error) {
                    (Some(old), Some(new)) => alike(old, new),
                    // A backward that appeared or went away is a difference.
                    (old, new) => old.is_none() && new.is_none(),
                };
                old.forms == new.forms && alike(old.forward_error, new.forward_error) && gradients
            });
            (!same).then(|| format!("{}: recorded {old:?}, found {new:?}", row.cell))
        };
        self.column(column).filter_map(one).collect()
    }
}

/// The figures of all lines of a report that have this name.
fn run_of(name: &str, device: &str, found: &[Cell]) -> Option<Run> {
    // `f64::max` drops NaN, which is the worst.
    let max = |a: f64, b: f64| if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) };
    let cells: Vec<&Cell> = found.iter().filter(|cell| cell.name == name).collect();
    Some(Run {
        forms: cells.iter().map(|cell| cell.forms).sum(),
        forward_error: cells.iter().map(|cell| cell.forward_error).reduce(max)?,
        gradient_error: cells.iter().filter_map(|cell| cell.backward_error).reduce(max),
        device: device.into(),
        version: env!("CARGO_PKG_VERSION").into(),
    })
}

/// Within a factor of ten, or both under `2⁻²³`; NaN is like nothing.
fn alike(old: f64, new: f64) -> bool {
    // Under the rounding of one number an error says nothing of the sums.
    let floor = f64::from(f32::EPSILON);
    let (old, new) = (if old < floor { floor } else { old }, if new < floor { floor } else { new });
    (0.1..=10.0).contains(&(new / old))
}

/// The largest, with its cell.
fn worst<'a>(errors: impl Iterator<Item = (&'a str, f64)>) -> String {
    // NaN stays, from either side: every comparison with it is false.
    let worst = errors.reduce(|a, b| if a.1.is_nan() || a.1 >= b.1 { a } else { b });
    worst.map_or_else(|| NONE.into(), |(cell, error)| format!("{error:.1e} (`{cell}`)"))
}

fn parse_row(line: &str) -> Result<Row, String> {
    let fields: Vec<&str> = line.split('\t').collect();
    // Seven fields, as in `HEADING`.
    let [column, cell, forms, forward, gradient, device, version] = fields[..] else {
        return Err(format!("{} fields, expected 7", fields.len()));
    };
    if !COLUMNS.contains(&column) {
        return Err(format!("no column `{column}`; there are {}", COLUMNS.join(", ")));
    }
    let number = |text: &str| text.parse::<f64>().map_err(|_| format!("`{text}` is no number"));
    let run = match forward {
        // Written for cells that no run is recorded of; the other fields say so too.
        NONE => None,
        _ => Some(Run {
            forms: forms.parse().map_err(|_| format!("`{forms}` is no count"))?,
            forward_error: number(forward)?,
            gradient_error: if gradient == NONE { None } else { Some(number(gradient)?) },
            device: device.into(),
            version: version.into(),
        }),
    };
    Ok(Row { column: column.into(), cell: cell.into(), run })
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{HEADING}")?;
        self.rows.iter().try_for_each(|row| writeln!(f, "{row}"))
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { column, cell, run } = self;
        // Two digits: what follows differs from device to device.
        let Some(Run { forms, forward_error, gradient_error, device, version }) = run else {
            return write!(f, "{column}\t{cell}\t{NONE}\t{NONE}\t{NONE}\tnot recorded\t{NONE}");
        };
        let gradient = gradient_error.map_or_else(|| NONE.into(), |error| format!("{error:.1e}"));
        write!(f, "{column}\t{cell}\t{forms}\t{forward_error:.1e}\t{gradient}\t{device}\t{version}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(error: f64, passed: bool) -> Vec<Cell> {
        let cell = |name| Cell {
            name,
            options: String::new(),
            forms: 2,
            forward_error: error,
            backward_error: Some(2.0 * error),
            passed,
            failure: None,
        };
        cells().into_iter().map(cell).collect()
    }

    #[test]
    fn a_record_survives_being_written() {
        let mut record = Record::default();
        record.replace("wgpu", "some adapter", &found(2e-6, true)).expect("all passed");
        assert_eq!(Record::parse(&record.to_string()), Ok(record.clone()));
        assert_eq!(record.unrecorded("wgpu"), Vec::<&str>::new());
        assert_eq!(record.unrecorded("cuda"), cells());
        assert!(record.table().contains("| wgpu | some adapter |") && record.table().contains("not recorded yet"));
    }

    #[test]
    fn what_fails_is_not_recorded() {
        let mut record = Record::default();
        assert!(record.replace("cpu", "2 threads", &found(1.0, false)).is_err_and(|why| why.contains("titans")));
        assert_eq!(record, Record::default());
    }

    #[test]
    fn other_figures_are_named() {
        let mut record = Record::default();
        record.replace("cpu", "2 threads", &found(1e-6, true)).expect("all passed");
        assert!(record.differences("cpu", &found(3e-6, true)).is_empty());
        for error in [2e-5, 1e-8, f64::NAN] {
            assert_eq!(record.differences("cpu", &found(error, true)).len(), cells().len(), "{error}");
        }
        assert_eq!(record.differences("cpu", &[]).len(), cells().len());
    }

    #[test]
    fn damaged_lines_are_named() {
        let line = |line: &str| Record::parse(&format!("{HEADING}\n{line}\n")).unwrap_err();
        assert!(line("cpu\tdelta").contains("line 2: 2 fields"));
        assert!(line("tpu\tdelta\t1\t1e-6\t-\tTpu\t0.1.0").contains("`tpu`"));
        assert!(line("cpu\tdelta\t1\tsmall\t-\t2 threads\t0.1.0").contains("`small`"));
        assert!(Record::parse("").is_err());
    }
}
