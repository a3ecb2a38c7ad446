//! The panel of memories: how large their states are, layer by layer.

use super::{Area, Drawn, LEFT, key};
use hecate_models::metrics::Record;
use plotters::prelude::*;

/// The first layer's colour, and the last one's; those between lie between.
const ENDS: [RGBColor; 2] = [RGBColor(31, 119, 180), RGBColor(214, 39, 40)];
/// Layers that are named beside their lines; of more, the first and the last.
const NAMED: usize = 8;

/// Points `(step, RMS)` of each layer, the mean over heads and slots; momentum is no memory. Empty without any record of them.
pub(super) fn by_layer(records: &[Record]) -> Vec<Vec<(f64, f64)>> {
    // Counted over all records: a run that was made longer may have old lines without any.
    let layers = records.iter().flat_map(|record| &record.states).map(|state| state.layer + 1).max().unwrap_or(0);
    // Attention has no state: the line of its layer has no point.
    let mut lines = vec![Vec::new(); layers];
    for record in records {
        for (layer, line) in lines.iter_mut().enumerate() {
            let memories = record.states.iter().filter(|state| state.layer == layer && state.over_memory.is_none());
            // A layer with several memories has one line.
            // What is not finite has no place in a picture.
            let all: Vec<f64> = memories.flat_map(|state| &state.rms).flatten().map(|&rms| f64::from(rms)).collect();
            if !all.is_empty() {
                line.push((record.step as f64, all.iter().sum::<f64>() / all.len() as f64));
            }
        }
    }
    lines
}

/// A line a layer, up to step `last`. What is drawn are logarithms, since a memory that runs away grows by powers.
pub(super) fn draw(area: &Area<'_>, lines: &[Vec<(f64, f64)>], last: f64) -> Drawn {
    // A logarithm has no place for a memory that is empty.
    let place = |&(step, rms): &(f64, f64)| Some((step, rms.log10())).filter(|point| point.1.is_finite());
    let lines: Vec<Vec<_>> = lines.iter().map(|line| line.iter().filter_map(place).collect()).collect();
    let sizes = || lines.iter().flatten().map(|point| point.1);
    // Some room above and below, also where all are alike.
    let (lowest, highest) =
        (sizes().fold(f64::INFINITY, f64::min) - 0.1, sizes().fold(f64::NEG_INFINITY, f64::max) + 0.1);
    if lowest > highest {
        return Ok(());
    }
    let mut chart = ChartBuilder::on(area)
        .caption("Memories, RMS by layer", ("sans-serif", 22))
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(LEFT)
        .build_cartesian_2d(1.0..last, lowest..highest)?;
    // Labels tell sizes, not their logarithms.
    let mut mesh = chart.configure_mesh();
    mesh.x_desc("step").x_label_formatter(&|x| format!("{x:.0}")).y_label_formatter(&|y| size(10_f64.powf(*y)));
    mesh.y_desc("RMS of the state").light_line_style(WHITE).draw()?;
    for (layer, line) in lines.iter().enumerate() {
        // Measurements are few: each is a dot.
        let color = color(layer, lines.len());
        let series = LineSeries::new(line.iter().copied(), color.stroke_width(2)).point_size(2);
        let drawn = chart.draw_series(series)?;
        if lines.len() <= NAMED || layer == 0 || layer + 1 == lines.len() {
            drawn.label(format!("layer {layer}")).legend(key(color));
        }
    }
    // Lines end at the right; at the left, before the first measurement, there are none.
    let mut labels = chart.configure_series_labels();
    let labels = labels.position(SeriesLabelPosition::UpperLeft).background_style(WHITE.mix(0.8));
    labels.border_style(BLACK.mix(0.4)).draw()?;
    Ok(())
}

/// A size in a few characters: three digits, or a power of ten.
fn size(rms: f64) -> String {
    if (0.01..1000.0).contains(&rms) { format!("{rms:.3}") } else { format!("{rms:.0e}") }
}

/// The colour of a layer among so many.
fn color(layer: usize, layers: usize) -> RGBColor {
    let share = layer as f64 / (layers.max(2) - 1) as f64;
    // Channel by channel, so that neighbours look alike.
    let mix = |a: u8, b: u8| (f64::from(a) + share * (f64::from(b) - f64::from(a))).round() as u8;
    let [first, last] = ENDS;
    RGBColor(mix(first.0, last.0), mix(first.1, last.1), mix(first.2, last.2))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hecate_models::monitor::SlotMonitor;

    #[test]
    fn lines_are_means_over_heads_and_slots() {
        let state = |layer, slot: &str, rms: &[Option<f32>], over_memory| SlotMonitor {
            layer,
            part: 0,
            slot: slot.to_owned(),
            rms: rms.to_vec(),
            from_start: None,
            over_memory,
        };
        let states = vec![
            state(0, "w0", &[Some(1.0), Some(3.0)], None),
            // A head without a figure counts for nothing.
            state(0, "w1", &[Some(5.0), None], None),
            // Momentum, which is drawn nowhere.
            state(0, "s0", &[Some(100.0)], Some(vec![Some(20.0)])),
            state(2, "m", &[Some(0.5)], None),
        ];
        let records = [Record { step: 1, ..Record::default() }, Record { step: 4, states, ..Record::default() }];
        assert_eq!(by_layer(&records), [vec![(4.0, 3.0)], Vec::new(), vec![(4.0, 0.5)]]);
        assert!(by_layer(&records[..1]).is_empty());
    }

    #[test]
    fn sizes_are_short() {
        assert_eq!([0.5, 12.0, 0.0001, 2e6].map(size), ["0.500", "12.000", "1e-4", "2e6"]);
    }

    #[test]
    fn colours_go_from_one_end_to_the_other() {
        assert_eq!([color(0, 4), color(3, 4), color(0, 1)], [ENDS[0], ENDS[1], ENDS[0]]);
    }
}
