//! The picture of a run: bits a byte over steps, and below it how large memories are.

use crate::error::{Error, Result};
use hecate::train::{checkpoint::Run, metrics::Record};
use plotters::prelude::*;

mod states;

/// Width and height of a panel in pixels.
const SIZE: (u32, u32) = (900, 540);
/// Room for figures left of an axis: steps of both panels stand below each other.
const LEFT: u32 = 60;
/// Most points on either side that a smoothed value is of, and how many times as many come before it: a loss falls fastest,
/// and least straight, where a run begins.
const REACH: usize = 15;
const BEFORE: usize = 6;

/// The end of a picture, by which it is known.
const MARK: &str = "<!-- drawn by hecate -->\n";

/// Whether a content is a picture that [`draw`] made.
pub(crate) fn is_picture(content: &[u8]) -> bool {
    content.ends_with(MARK.as_bytes())
}

/// Draws the learned text's and the held-out text's curves into this SVG file of a run, which is replaced whole.
/// `learned` says what the losses of steps are of. Without a step there is nothing to draw.
pub(crate) fn draw(run: &Run, name: &'static str, records: &[Record], learned: &str) -> Result<()> {
    let path = &run.file(name);
    // Records of steps without a measurement have no held-out point.
    let train: Vec<_> = records.iter().filter_map(|r| Some((r.step, r.bits_per_byte?))).collect();
    let held_out: Vec<_> = records.iter().filter_map(|r| Some((r.step, r.held_out_bits_per_byte?))).collect();
    if train.is_empty() {
        return Ok(());
    }
    // The picture is made in memory, so that a failure leaves the old file.
    let mut picture = String::new();
    plot(&mut picture, Losses { train: &train, held_out: &held_out, learned }, &states::by_layer(records))
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
/// Points `(step, value)`, in the order of steps.
type Line = [(u64, f64)];

/// The curves of the first panel, in bits a byte.
struct Losses<'a> {
    train: &'a Line,
    held_out: &'a Line,
    /// What `train` is of.
    learned: &'a str,
}

/// The panel of losses, and that of memories where there are any.
fn plot(picture: &mut String, losses: Losses<'_>, states: &[Vec<(u64, f64)>]) -> Drawn {
    let panels = if states.is_empty() { 1 } else { 2 };
    let area = SVGBackend::with_string(picture, (SIZE.0, panels * SIZE.1)).into_drawing_area();
    area.fill(&WHITE)?;
    // Both have the same steps.
    let last = losses.train.iter().chain(losses.held_out).map(|point| point.0).fold(2, u64::max);
    // As many as there are panels: a run of attention alone has one.
    let areas = area.split_evenly((panels as usize, 1));
    losses.draw(&areas[0], last)?;
    if let Some(area) = areas.get(1) {
        states::draw(area, states, last)?;
    }
    area.present()?;
    Ok(())
}

impl Losses<'_> {
    /// Every step faint, its smoothed curve strong, measurements on held-out text as dots.
    fn draw(&self, area: &Area<'_>, last: u64) -> Drawn {
        let all = || self.train.iter().chain(self.held_out).map(|point| point.1);
        let lowest = all().fold(f64::INFINITY, f64::min);
        let highest = all().fold(lowest, f64::max);
        // Five hundredths of the range above and below.
        let margin = 0.05 * (highest - lowest).max(0.1);
        // Bits, since bytes compare between tokenizers.
        let mut chart = ChartBuilder::on(area)
            .caption("Bits per byte", ("sans-serif", 22))
            .margin(16)
            .x_label_area_size(44)
            .y_label_area_size(LEFT)
            // Steps count from 1.
            .build_cartesian_2d(1..last, lowest - margin..highest + margin)?;
        chart.configure_mesh().x_desc("step").y_desc("bits per byte").light_line_style(WHITE).draw()?;
        // Single steps are noisy: they are drawn faint, behind their mean.
        chart.draw_series(LineSeries::new(self.train.iter().copied(), BLUE.mix(0.25)))?;
        let smoothed = LineSeries::new(smooth(self.train), BLUE.stroke_width(2));
        chart.draw_series(smoothed)?.label(format!("learned: {}", self.learned)).legend(key(BLUE));
        let points = LineSeries::new(self.held_out.iter().copied(), RED.stroke_width(2)).point_size(3);
        chart.draw_series(points)?.label("held out: one pass").legend(key(RED));
        chart.configure_series_labels().background_style(WHITE.mix(0.8)).border_style(BLACK.mix(0.4)).draw()?;
        Ok(())
    }
}

/// A line in the curve's colour beside its name.
fn key(color: RGBColor) -> impl Fn((i32, i32)) -> PathElement<(i32, i32)> {
    move |(x, y)| PathElement::new([(x, y), (x + 20, y)], color.stroke_width(2))
}

/// The height, at each point, of the straight line that fits the points around it best, near ones most.
///
/// A mean of the points before would lag behind a loss that falls, and held-out text would look easier than it is.
fn smooth(points: &Line) -> impl Iterator<Item = (u64, f64)> {
    points.iter().enumerate().map(|(i, &(x, y))| {
        let reach = REACH.min(i / BEFORE);
        let around = &points[i.saturating_sub(reach)..points.len().min(i + reach + 1)];
        // Weighted sums of 1, d, d², y and d y, where d is the distance in steps.
        let mut sums = [0.0; 5];
        for &(at, value) in around {
            let d = at as f64 - x as f64;
            // A triangle, which is 0 where the points end.
            let weight = (1.0 - d.abs() / (reach + 1) as f64).max(0.0);
            for (sum, term) in sums.iter_mut().zip([1.0, d, d * d, value, d * value]) {
                *sum += weight * term;
            }
        }
        let [n, d, dd, y_sum, dy] = sums;
        // The normal equations of two unknowns; the line's height at `d = 0`.
        let spread = n * dd - d * d;
        // A point alone has no slope.
        (x, if spread > 0.0 { (dd * y_sum - d * dy) / spread } else { y })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// At both ends too, where a mean would be of one side alone.
    #[test]
    fn a_falling_loss_is_not_smoothed_upwards() {
        let falling: Vec<_> = (1..=60).map(|step| (step, 8.0 - 0.1 * step as f64)).collect();
        for ((step, smoothed), (_, loss)) in smooth(&falling).zip(&falling) {
            approx::assert_abs_diff_eq!(smoothed, *loss, epsilon = 1e-9);
            assert!(step > 0);
        }
        assert_eq!(smooth(&[(7, 2.5)]).collect::<Vec<_>>(), [(7, 2.5)]);
    }

    #[test]
    fn noise_is_smoothed() {
        let noisy: Vec<_> = (1..=300).map(|step| (step, 2.0 + if step % 2 == 0 { 1.0 } else { -1.0 })).collect();
        // At the end half of the points are there.
        assert!(smooth(&noisy).skip(REACH * BEFORE).all(|(_, value)| (value - 2.0).abs() < 0.2));
        assert!(smooth(&noisy).skip(REACH * BEFORE).take(150).all(|(_, value)| (value - 2.0).abs() < 0.05));
    }

    /// Within a hundredth of its fall, where a mean of as many points everywhere would be a fifth of it too high.
    #[test]
    fn a_loss_that_falls_at_once_is_followed() {
        let loss: Vec<_> = (1..=400).map(|step| (step, 2.0 + 6.0 * (-0.1 * step as f64).exp())).collect();
        let off = smooth(&loss).zip(&loss).map(|((_, smoothed), (_, loss))| (smoothed - loss).abs());
        assert!(off.fold(0.0, f64::max) < 0.01 * 6.0);
    }

    /// Steps are whole: no two labels of the axis are alike.
    #[test]
    fn short_runs_have_whole_steps_below_them() {
        let train: Vec<_> = (1..=6).map(|step| (step, 8.0 - step as f64)).collect();
        let mut picture = String::new();
        plot(&mut picture, Losses { train: &train, held_out: &[], learned: "fresh windows of 9" }, &[]).unwrap();
        // The other axis has fractions.
        let labels: Vec<_> = picture.lines().filter(|line| line.parse::<u64>().is_ok()).collect();
        let mut different = labels.clone();
        different.dedup();
        assert!(labels.len() >= 5 && labels == different, "{labels:?}");
    }
}
