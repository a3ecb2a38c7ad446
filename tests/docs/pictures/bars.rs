//! Horizontal bars in panels: each panel has an axis of its own.

use super::{
    COLORS, Drawn, WIDTH,
    data::{Data, Row, distinct},
};
use plotters::{
    coord::Shift,
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};

/// Pixels for the picture's title, a panel without its bars, a bar, and the gap between groups of bars.
const TITLE: u32 = 40;
const FRAME: u32 = 88;
const BAR: u32 = 22;
const GAP: u32 = 10;
/// Pixels left of a panel's bars, for the labels of groups.
const LABELS: u32 = 140;

/// Draws all panels, one below the other, into an SVG text.
pub(super) fn draw(picture: &mut String, data: &Data) -> Drawn {
    let panels: Vec<Vec<&Row>> = data.groups().iter().map(|group| rows_of(data, group)).collect();
    let height = TITLE + panels.iter().map(|rows| FRAME + bars_height(rows)).sum::<u32>();
    let area = SVGBackend::with_string(picture, (WIDTH, height)).into_drawing_area();
    area.fill(&WHITE)?;
    let title = ("sans-serif", 22).into_font().style(FontStyle::Bold).color(&BLACK);
    area.draw(&Text::new(data.title.clone(), (16, 12), title))?;
    let mut top = TITLE;
    for rows in &panels {
        let bottom = top + FRAME + bars_height(rows);
        let panel = area.clone().shrink((0, top), (WIDTH, bottom - top));
        draw_panel(&panel, rows, &data.x)?;
        top = bottom;
    }
    area.present()?;
    Ok(())
}

fn rows_of<'a>(data: &'a Data, group: &str) -> Vec<&'a Row> {
    data.rows.iter().filter(|row| row.group == group).collect()
}

fn labels<'a>(rows: &[&'a Row]) -> Vec<&'a str> {
    distinct(rows.iter().map(|row| row.label.as_str()))
}

fn bars_height(rows: &[&Row]) -> u32 {
    rows.len() as u32 * BAR + labels(rows).len() as u32 * GAP
}

/// One panel: bars from the top down, y in pixels of the bars' height.
fn draw_panel(panel: &DrawingArea<SVGBackend<'_>, Shift>, rows: &[&Row], unit: &str) -> Drawn {
    let longest = rows.iter().map(|row| row.number()).fold(0.0, f64::max);
    let height = bars_height(rows) as i32;
    let mut chart = ChartBuilder::on(panel)
        .caption(&rows[0].group, ("sans-serif", 16))
        .margin(8)
        .margin_left(LABELS)
        .x_label_area_size(42)
        // Room for what is written after the longest bar.
        .build_cartesian_2d(0.0..longest * 1.75, height..0)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .x_labels(8)
        .x_label_formatter(&|x| format!("{x}"))
        .x_desc(unit)
        .light_line_style(WHITE)
        .label_style(("sans-serif", 14))
        .axis_desc_style(("sans-serif", 14))
        .draw()?;
    let small = |h| ("sans-serif", 15).into_font().color(&BLACK).pos(Pos::new(h, VPos::Center));
    let mut y = GAP as i32 / 2;
    for label in labels(rows) {
        let group: Vec<_> = rows.iter().filter(|row| row.label == label).collect();
        let end = y + (group.len() as u32 * BAR) as i32;
        let name = EmptyElement::at((0.0, (y + end) / 2)) + Text::new(label.to_owned(), (-8, 0), small(HPos::Right));
        chart.plotting_area().draw(&name)?;
        for (i, row) in group.into_iter().enumerate() {
            let color = COLORS[i % COLORS.len()];
            let bar = [(0.0, y + 2), (row.number(), y + BAR as i32 - 2)];
            chart.draw_series([Rectangle::new(bar, color.filled())])?;
            let at = EmptyElement::at((row.number(), y + BAR as i32 / 2));
            let text = Text::new(format!("{}  {}", row.value, row.who), (6, 0), small(HPos::Left));
            chart.plotting_area().draw(&(at + text))?;
            y += BAR as i32;
        }
        y += GAP as i32;
    }
    Ok(())
}
