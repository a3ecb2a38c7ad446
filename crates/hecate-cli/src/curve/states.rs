//! The panel of memories: how large their states are, layer by layer.

use super::{Area, Drawn, LEFT, key};
use hecate::train::metrics::Record;
use plotters::prelude::*;

/// The first layer's colour, and the last one's; those between lie between.
const ENDS: [RGBColor; 2] = [RGBColor(31, 119, 180), RGBColor(214, 39, 40)];
/// Between the largest memory and the upper end of the axis, a factor; likewise below.
const ROOM: f64 = 1.25;
/// Fewest and most figures beside the axis.
const TICKS_LEAST: usize = 3;
const TICKS_MOST: usize = 8;
/// Layers that are named beside their lines; of more, the first and the last.
const NAMED: usize = 8;

/// Points `(step, RMS)` of each layer, the mean over heads and slots; momentum is no memory. Empty without any record of them.
pub(super) fn by_layer(records: &[Record]) -> Vec<Vec<(u64, f64)>> {
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
                line.push((record.step, all.iter().sum::<f64>() / all.len() as f64));
            }
        }
    }
    lines
}

/// A line a layer, up to step `last`. The axis is logarithmic, since a memory that runs away grows by powers.
pub(super) fn draw(area: &Area<'_>, lines: &[Vec<(u64, f64)>], last: u64) -> Drawn {
    // A logarithm has no place for a memory that is empty.
    let has_place = |&(_, rms): &(u64, f64)| rms > 0.0 && rms.is_finite();
    let lines: Vec<Vec<_>> = lines.iter().map(|line| line.iter().copied().filter(has_place).collect()).collect();
    let sizes = || lines.iter().flatten().map(|point| point.1);
    // Some room above and below, also where all are alike.
    let (lowest, highest) = (sizes().fold(f64::INFINITY, f64::min) / ROOM, sizes().fold(0.0, f64::max) * ROOM);
    if lowest > highest {
        return Ok(());
    }
    let mut chart = ChartBuilder::on(area)
        .caption("Memories, RMS by layer", ("sans-serif", 22))
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(LEFT)
        .build_cartesian_2d(1..last, (lowest..highest).log_scale().with_key_points(ticks(lowest, highest)))?;
    // Sizes as they are, since the axis does the logarithm.
    let mut mesh = chart.configure_mesh();
    mesh.x_desc("step")
        .y_label_formatter(&|rms| size(*rms))
        .y_desc("RMS of the state")
        .light_line_style(WHITE)
        .draw()?;
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

/// Figures beside a logarithmic axis: 1, 2 and 5 times powers of ten where they are few enough, and all round ones where they
/// are too few.
fn ticks(lowest: f64, highest: f64) -> Vec<f64> {
    let inside = |tick: &f64| (lowest..=highest).contains(tick);
    let decades = lowest.log10().floor() as i32..=highest.log10().ceil() as i32;
    // Of all decades that the axis touches, what lies on it.
    let of = |mantissas: &[i64]| -> Vec<f64> {
        decades.clone().flat_map(|power| mantissas.iter().map(move |&m| decimal(m, power))).filter(inside).collect()
    };
    let (few, powers) = (of(&[1, 2, 5]), of(&[1]));
    match few.len() {
        0..TICKS_LEAST => round(lowest, highest),
        TICKS_LEAST..=TICKS_MOST => few,
        // Powers of ten alone.
        // Every second one, or third, of a memory that runs away.
        _ => powers.iter().copied().step_by(powers.len().div_ceil(TICKS_MOST).max(1)).collect(),
    }
}

/// Multiples of the least 1, 2 or 5 times a power of ten that gives few enough.
fn round(lowest: f64, highest: f64) -> Vec<f64> {
    let power = (highest - lowest).log10().floor() as i32 - 1;
    // From a tenth of the range upwards, so that one of them is coarse enough.
    let steps = [(1, power), (2, power), (5, power), (1, power + 1), (2, power + 1), (5, power + 1)];
    let multiples = |(m, power): (i64, i32)| -> Vec<f64> {
        let step = decimal(m, power);
        // Whole numbers of steps between both ends.
        let range = (lowest / step).ceil() as i64..=(highest / step).floor() as i64;
        range.map(|i| decimal(i * m, power)).collect()
    };
    steps.into_iter().map(multiples).find(|ticks| ticks.len() <= TICKS_MOST).unwrap_or_default()
}

/// A decimal number, the nearest there is: products with powers of ten have digits that nobody wants to read.
fn decimal(digits: i64, power: i32) -> f64 {
    format!("{digits}e{power}").parse().unwrap_or(f64::NAN)
}

/// A size in a few characters: as it is, or as a power of ten.
fn size(rms: f64) -> String {
    if (0.001..10000.0).contains(&rms) { rms.to_string() } else { format!("{rms:e}") }
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
    use hecate::train::monitor::SlotMonitor;

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
        assert_eq!(by_layer(&records), [vec![(4, 3.0)], Vec::new(), vec![(4, 0.5)]]);
        assert!(by_layer(&records[..1]).is_empty());
    }

    #[test]
    fn figures_beside_the_axis_are_round() {
        let shown = |lowest, highest| ticks(lowest, highest).into_iter().map(size).collect::<Vec<_>>().join(" ");
        assert_eq!(shown(0.2, 3.0), "0.2 0.5 1 2");
        assert_eq!(shown(0.04, 12.0), "0.05 0.1 0.2 0.5 1 2 5 10");
        // A narrow range, and one of a memory that runs away.
        assert_eq!(shown(0.23, 0.41), "0.25 0.3 0.35 0.4");
        assert_eq!(shown(2.08, 2.43), "2.1 2.15 2.2 2.25 2.3 2.35 2.4");
        assert_eq!(shown(9e-6, 2e3), "1e-5 0.001 0.1 10 1000");
        assert_eq!(shown(0.9, 3e30), "1 1e4 1e8 1e12 1e16 1e20 1e24 1e28");
    }

    #[test]
    fn colours_go_from_one_end_to_the_other() {
        assert_eq!([color(0, 4), color(3, 4), color(0, 1)], [ENDS[0], ENDS[1], ENDS[0]]);
    }
}
