//! Files of measured figures.
//!
//! Lines `# key: value` say what the picture is called, what its axes mean, on which machine the figures were measured and
//! by which command. Then come columns with tabs between: `panel row who value` for bars, `line x y` for lines.

use std::collections::HashMap;

/// What a file of figures is drawn as.
#[derive(Debug, PartialEq)]
pub(super) enum Kind {
    Bars,
    Lines,
}

/// One figure. A line of a picture has no panel, and its point no `who`.
#[derive(Debug, PartialEq)]
pub(super) struct Row {
    /// Panel of a bar; the name of the line.
    pub(super) group: String,
    /// Label of a group of bars; place on the x axis.
    pub(super) label: String,
    /// Whose bar it is.
    pub(super) who: String,
    /// The figure as the file has it.
    pub(super) value: String,
}

impl Row {
    pub(super) fn number(&self) -> f64 {
        self.value.parse().expect("checked by `Data::parse`")
    }
}

/// A file of figures.
#[derive(Debug)]
pub(super) struct Data {
    pub(super) kind: Kind,
    pub(super) title: String,
    /// Name and unit of the x axis.
    pub(super) x: String,
    /// Name and unit of the y axis; bars have none.
    pub(super) y: String,
    /// Lowest and highest y; that of the figures unless given.
    pub(super) range: Option<(f64, f64)>,
    /// The document that has the same figures.
    pub(super) from: Option<String>,
    pub(super) rows: Vec<Row>,
}

impl Data {
    /// Reads a file, or says what is wrong with it.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let (head, body): (Vec<&str>, Vec<&str>) = text.lines().partition(|line| line.starts_with('#'));
        let pair = |line: &&str| {
            let (key, value) = line[1..].split_once(": ")?;
            Some((key.trim().to_owned(), value.trim().to_owned()))
        };
        let mut head: HashMap<_, _> = head.iter().filter_map(pair).collect();
        let mut required = |key: &str| head.remove(key).ok_or_else(|| format!("no line `# {key}: …`"));
        let (title, x) = (required("title")?, required("x")?);
        required("machine")?;
        required("command")?;
        let mut body = body.iter().map(|line| line.split('\t').collect::<Vec<_>>());
        let kind = match body.next().as_deref() {
            Some(["panel", "row", "who", "value"]) => Kind::Bars,
            Some(["line", "x", "y"]) => Kind::Lines,
            found => return Err(format!("columns are {found:?}, not `panel row who value` or `line x y`")),
        };
        let rows = body.map(|fields| row(&fields)).collect::<Result<_, _>>()?;
        let y = if kind == Kind::Lines { required("y")? } else { String::new() };
        let range = head.remove("range").map(|range| bounds(&range)).transpose()?;
        Ok(Self { kind, title, x, y, range, from: head.remove("from"), rows })
    }

    /// Names in the order in which they come first.
    pub(super) fn groups(&self) -> Vec<&str> {
        distinct(self.rows.iter().map(|row| row.group.as_str()))
    }
}

/// Each name once, in the order in which they come first.
pub(super) fn distinct<'a>(all: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut found = Vec::new();
    for name in all {
        if !found.contains(&name) {
            found.push(name);
        }
    }
    found
}

fn row(fields: &[&str]) -> Result<Row, String> {
    let (group, label, who, value) = match *fields {
        [group, label, who, value] => (group, label, who, value),
        [group, label, value] => (group, label, "", value),
        _ => return Err(format!("{fields:?} has {} fields", fields.len())),
    };
    if !value.parse().is_ok_and(f64::is_finite) {
        return Err(format!("`{value}` in {fields:?} is no number"));
    }
    let owned = str::to_owned;
    Ok(Row { group: owned(group), label: owned(label), who: owned(who), value: owned(value) })
}

fn bounds(range: &str) -> Result<(f64, f64), String> {
    let pair = range.split_once(' ').and_then(|(low, high)| Some((low.parse().ok()?, high.parse().ok()?)));
    pair.ok_or_else(|| format!("`# range: {range}` is not two numbers"))
}

#[test]
fn figures_without_a_machine_or_a_number_are_refused() {
    let whole = "# title: t\n# x: ms\n# y: ms\n# machine: m\n# command: c\nline\tx\ty\na\t1\t2.5\n";
    assert_eq!(Data::parse(whole).unwrap().rows[0].number(), 2.5);
    for (without, told) in [("# machine: m\n", "machine"), ("# command: c\n", "command"), ("# y: ms\n", "# y")] {
        let problem = Data::parse(&whole.replace(without, "")).unwrap_err();
        assert!(problem.contains(told), "{problem}");
    }
    assert!(Data::parse(&whole.replace("2.5", "NaN")).unwrap_err().contains("NaN"));
}
