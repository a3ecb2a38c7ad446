//! The picture of a run: bits a byte over steps, and below it how large memories are.

use crate::error::{Error, Result};
use hecate_models::{checkpoint::Run, metrics::Record};
use plotters::prelude::*;

mod states;

/// Width and height of a panel in pixels.
const SIZE: (u32, u32) = (900, 540);
/// Room for figures left of an axis: steps of both panels stand below each other.
const LEFT: u32 = 60;
/// Share of a smoothed value that is taken from the one before.
/// A mean over about ten steps.
const SMOOTHING: f64 = 0.9;

/// The end of a picture, by which it is known.
const MARK: &str = "<!-- drawn by hecate -->\n";

/// Whether a content is a picture that [`draw`] made.
pub(crate) fn is_picture(content: &[u8]) -> bool {
    content.ends_with(MARK.as_bytes())
}

/// Draws the learned text's and the held-out text's curves into this SVG file of a run, which is replaced whole. Without a step
/// there is nothing to draw.
pub(crate) fn draw(run: &Run, name: &'static str, records: &[Record]) -> Result<()> {
    let path = &run.file(name);
    // Records of steps without a measurement have no held-out point.
    let train: Vec<_> = records.iter().filter_map(|r| Some((r.step as f64, r.bits_per_byte?))).collect();
    let held_out: Vec<_> = records.iter().filter_map(|r| Some((r.step as f64, r.held_out_bits_per_byte?))).collect();
    if train.is_empty() {
        return Ok(());
    }
    // The picture is made in memory, so that a failure leaves the old file.
    let mut picture = String::new();
    plot(&mut picture, (&train, &held_out), &states::by_layer(records))
        .map_err(|error| Error::file(path, format!("cannot be drawn: {error}")))?;
    picture.push_str(MARK);
    if run.is_foreign(&(name, is_picture)) {
        return Err(Error::file(path, "is no picture of a run, so it is left as it is; move it elsewhere"));
    }
    Ok(run.write(name, picture.as_bytes())?)
}

/// What drawing gives: its errors are those of a text that cannot be written.
type Drawn = Result<(), Box<dyn std::error::Error>>;
/// Where a panel is drawn.
type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
/// Points `(step, value)`.
type Line = [(f64, f64)];

/// The panel of losses, and that of memories where there are any.
fn plot(picture: &mut String, (train, held_out): (&Line, &Line), states: &[Vec<(f64, f64)>]) -> Drawn {
    let panels = if states.is_empty() { 1 } else { 2 };
    let area = SVGBackend::with_string(picture, (SIZE.0, panels * SIZE.1)).into_drawing_area();
    area.fill(&WHITE)?;
    // Both have the same steps.
    let last = train.iter().chain(held_out).map(|point| point.0).fold(2.0, f64::max);
    // As many as there are panels: a run of attention alone has one.
    let areas = area.split_evenly((panels as usize, 1));
    losses(&areas[0], train, held_out, last)?;
    if let Some(area) = areas.get(1) {
        states::draw(area, states, last)?;
    }
    area.present()?;
    Ok(())
}

/// Points `(step, bits a byte)`: every step faint, its smoothed curve strong, measurements on held-out text as dots.
fn losses(area: &Area<'_>, train: &Line, held_out: &Line, last: f64) -> Drawn {
    let all = || train.iter().chain(held_out);
    let lowest = all().map(|point| point.1).fold(f64::INFINITY, f64::min);
    let highest = all().map(|point| point.1).fold(lowest, f64::max);
    // Five hundredths of the range above and below.
    let margin = 0.05 * (highest - lowest).max(0.1);
    // Bits, since bytes compare between tokenizers.
    let mut chart = ChartBuilder::on(area)
        .caption("Bits per byte", ("sans-serif", 22))
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(LEFT)
        // Steps count from 1.
        .build_cartesian_2d(1.0..last, lowest - margin..highest + margin)?;
    chart
        .configure_mesh()
        .x_desc("step")
        .x_label_formatter(&|x| format!("{x:.0}"))
        .y_desc("bits per byte")
        .light_line_style(WHITE)
        .draw()?;
    // Single steps are noisy: they are drawn faint, behind their mean.
    chart.draw_series(LineSeries::new(train.iter().copied(), BLUE.mix(0.25)))?;
    chart.draw_series(LineSeries::new(smooth(train), BLUE.stroke_width(2)))?.label("learned").legend(key(BLUE));
    let held_out = held_out.iter().copied();
    let points = LineSeries::new(held_out, RED.stroke_width(2)).point_size(3);
    chart.draw_series(points)?.label("held out, one pass").legend(key(RED));
    chart.configure_series_labels().background_style(WHITE.mix(0.8)).border_style(BLACK.mix(0.4)).draw()?;
    Ok(())
}

/// A line in the curve's colour beside its name.
fn key(color: RGBColor) -> impl Fn((i32, i32)) -> PathElement<(i32, i32)> {
    move |(x, y)| PathElement::new([(x, y), (x + 20, y)], color.stroke_width(2))
}

/// An exponential mean of the second coordinates, divided by the sum of its weights so that its start is unbiased.
fn smooth(points: &[(f64, f64)]) -> impl Iterator<Item = (f64, f64)> {
    points.iter().scan((0.0, 0.0), |(sum, weight), &(x, y)| {
        *sum = SMOOTHING * *sum + (1.0 - SMOOTHING) * y;
        *weight = SMOOTHING * *weight + (1.0 - SMOOTHING);
        Some((x, *sum / *weight))
    })
}
