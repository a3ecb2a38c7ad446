//! Lines over places on the x axis that are equally far apart, as 64, 256, 1024 are.

use super::{
    COLORS, Drawn, WIDTH,
    data::{Data, distinct},
};
use plotters::{
    coord::{
        Shift,
        types::{RangedCoordf64, RangedCoordi32},
    },
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};

const HEIGHT: u32 = 440;
/// Pixels right of the lines, for their names.
const NAMES: u32 = 190;
/// Pixels from one name down to the next at least.
const NAME: i32 = 19;
/// Half the width of a mark in pixels.
const MARK: i32 = 5;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordi32, RangedCoordf64>>;

/// A line's name, and the pixel where the line ends.
struct Name<'a> {
    text: &'a str,
    /// Number of the line.
    line: usize,
    at: (i32, i32),
}

/// Draws all lines into an SVG text, each with a colour, a mark and its name at the end.
pub(super) fn draw(picture: &mut String, data: &Data) -> Drawn {
    let places = distinct(data.rows.iter().map(|row| row.label.as_str()));
    let area = SVGBackend::with_string(picture, (WIDTH, HEIGHT)).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = axes(&area, data, &places)?;
    let mut names = Vec::new();
    for (line, text) in data.groups().into_iter().enumerate() {
        let of_line = data.rows.iter().filter(|row| row.group == text);
        let place = |label: &str| places.iter().position(|place| *place == label).unwrap_or(0) as i32;
        let points: Vec<_> = of_line.map(|row| (place(&row.label), row.number())).collect();
        draw_line(&mut chart, line, &points)?;
        names.push(Name { text, line, at: chart.backend_coord(&points[points.len() - 1]) });
    }
    draw_names(&area, names)?;
    area.present()?;
    Ok(())
}

fn axes<'a, 'b>(area: &'a Area<'b>, data: &Data, places: &[&str]) -> Result<Chart<'a, 'b>, Box<dyn std::error::Error>> {
    let values = || data.rows.iter().map(|row| row.number());
    let (low, high) = data.range.unwrap_or_else(|| {
        let (low, high) = (values().fold(f64::INFINITY, f64::min), values().fold(f64::NEG_INFINITY, f64::max));
        let margin = 0.06 * (high - low).max(0.1);
        (low - margin, high + margin)
    });
    let mut chart = ChartBuilder::on(area)
        .caption(&data.title, ("sans-serif", 22).into_font().style(FontStyle::Bold))
        .margin(14)
        .margin_right(NAMES)
        .x_label_area_size(48)
        .y_label_area_size(64)
        .build_cartesian_2d(0..places.len() as i32 - 1, low..high)?;
    chart
        .configure_mesh()
        .x_labels(places.len())
        .x_label_formatter(&|&i| places.get(i as usize).map_or_else(String::new, |place| (*place).to_owned()))
        .x_desc(&data.x)
        .y_desc(&data.y)
        .light_line_style(WHITE)
        .label_style(("sans-serif", 15))
        .axis_desc_style(("sans-serif", 16))
        .draw()?;
    Ok(chart)
}

fn draw_line(chart: &mut Chart<'_, '_>, line: usize, points: &[(i32, f64)]) -> Drawn {
    let area = chart.plotting_area();
    let color = COLORS[line % COLORS.len()];
    area.draw(&PathElement::new(points, color.stroke_width(2)))?;
    points.iter().try_for_each(|&point| area.draw(&(EmptyElement::at(point) + mark(line, (0, 0)))))?;
    Ok(())
}

/// Writes each name beside the end of its line, or as far below as the name above it asks for.
fn draw_names(area: &Area<'_>, mut names: Vec<Name<'_>>) -> Drawn {
    names.sort_by_key(|name| name.at.1);
    let mut free = 0;
    for Name { text, line, at: (x, y) } in names {
        let y = y.max(free);
        free = y + NAME;
        let color = COLORS[line % COLORS.len()];
        let style = ("sans-serif", 16).into_font().color(&color).pos(Pos::new(HPos::Left, VPos::Center));
        area.draw(&mark(line, (x + 18, y)))?;
        area.draw(&Text::new(text.to_owned(), (x + 30, y), style))?;
    }
    Ok(())
}

/// A circle, a square, a triangle or a diamond, so that lines differ without colour as well.
fn mark(line: usize, (x, y): (i32, i32)) -> Polygon<(i32, i32)> {
    let corners: Vec<(i32, i32)> = match line % 4 {
        0 => vec![(-MARK, -2), (-2, -MARK), (2, -MARK), (MARK, -2), (MARK, 2), (2, MARK), (-2, MARK), (-MARK, 2)],
        1 => vec![(-MARK, -MARK), (MARK, -MARK), (MARK, MARK), (-MARK, MARK)],
        2 => vec![(0, -MARK - 1), (MARK + 1, MARK), (-MARK - 1, MARK)],
        _ => vec![(0, -MARK - 2), (MARK + 2, 0), (0, MARK + 2), (-MARK - 2, 0)],
    };
    let corners: Vec<_> = corners.into_iter().map(|(dx, dy)| (x + dx, y + dy)).collect();
    Polygon::new(corners, COLORS[line % COLORS.len()].filled())
}
