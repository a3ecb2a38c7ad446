//! The pictures of the documents, drawn from the figures under `docs/data`.
//!
//! A file `docs/data/NAME.tsv` becomes `docs/pictures/NAME.svg`. `UPDATE=1 cargo test -p hecate-tests --test docs pictures`
//! draws them all again.

mod bars;
mod data;
mod lines;

use data::{Data, Kind};
use plotters::prelude::RGBColor;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Colours that people with any colour vision tell apart (Okabe and Ito).
const COLORS: [RGBColor; 5] =
    [RGBColor(0, 114, 178), RGBColor(213, 94, 0), RGBColor(0, 158, 115), RGBColor(204, 121, 167), RGBColor(86, 86, 86)];
/// Width of a picture in pixels.
const WIDTH: u32 = 860;

/// What drawing can fail with: the text is written to memory, so only a bug of ours.
type Drawn = Result<(), Box<dyn std::error::Error>>;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Names without extension of the files in a folder that end so, in order.
fn names(folder: &str, extension: &str) -> Vec<String> {
    let folder = root().join(folder);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let paths = entries.map(|entry| entry.unwrap().path());
    let named = paths.filter(|path| path.extension().is_some_and(|found| found == extension));
    let mut names: Vec<_> = named.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect();
    names.sort();
    names
}

fn read(name: &str) -> Data {
    let path = format!("docs/data/{name}.tsv");
    let text = fs::read_to_string(root().join(&path)).unwrap();
    Data::parse(&text).unwrap_or_else(|problem| panic!("{path}: {problem}"))
}

fn draw(data: &Data) -> String {
    let mut picture = String::new();
    let drawn = match data.kind {
        Kind::Bars => bars::draw(&mut picture, data),
        Kind::Lines => lines::draw(&mut picture, data),
    };
    drawn.unwrap();
    picture + "\n"
}

#[test]
fn pictures_show_the_data() {
    let all = names("docs/data", "tsv");
    let update = std::env::var_os("UPDATE").is_some();
    for name in &all {
        let path = root().join(format!("docs/pictures/{name}.svg"));
        let wanted = draw(&read(name));
        if fs::read_to_string(&path).is_ok_and(|found| found == wanted) {
            continue;
        }
        assert!(
            update,
            "docs/pictures/{name}.svg is not what docs/data/{name}.tsv gives; \
             `UPDATE=1 cargo test -p hecate-tests --test docs pictures` draws it again"
        );
        fs::write(&path, wanted).unwrap();
    }
    assert_eq!(names("docs/pictures", "svg"), all, "every picture has its figures");
}

/// A figure that a document gives as well is the same in both.
#[test]
fn documents_have_the_figures_of_their_pictures() {
    let mut compared = 0;
    for name in names("docs/data", "tsv") {
        let data = read(&name);
        let Some(document) = &data.from else { continue };
        let text = fs::read_to_string(root().join(document)).unwrap();
        let words = text.split(|c: char| c.is_whitespace() || c == '|');
        let words: Vec<_> = words.map(|word| word.trim_end_matches([',', '.', ';', ':'])).collect();
        for row in &data.rows {
            assert!(words.contains(&row.value.as_str()), "{} of docs/data/{name}.tsv is not in {document}", row.value);
            compared += 1;
        }
    }
    assert!(compared > 0, "no file under docs/data names its document (`# from: docs/results.md`)");
}
