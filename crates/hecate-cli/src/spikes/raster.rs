//! The picture of a run: a point where a neuron fired in a burst, neurons by area.

use crate::error::{Error, Result};
use hecate::models::files::{Links, is_there, read, write_whole};
use hecate_spiking::Network;
use plotters::prelude::*;
use std::path::Path;

/// Width and height in pixels.
const SIZE: (u32, u32) = (900, 540);
/// Most points beside and above each other: what lies closer shares one, which is darker.
const POINTS: (usize, usize) = (400, 240);
/// Areas with fewer points above each other have no name beside them.
const NAMED: usize = 6;
/// Most bytes of a file that is looked at before it is replaced. Pictures of this kind are smaller.
const LARGEST: u64 = 64 << 20;
/// The end of a picture, by which it is known.
const MARK: &str = "<!-- drawn by hecate -->\n";

/// Refuses a file that this command did not draw: nothing of others is replaced.
pub(super) fn check(path: &Path) -> Result<()> {
    let is_own = || read(path, Links::Refuse, LARGEST).is_ok_and(|content| content.ends_with(MARK.as_bytes()));
    if is_there(path) && !is_own() {
        return Err(Error::file(path, "is no picture that this command drew; name another file for `--raster`"));
    }
    Ok(())
}

/// Spikes by burst and neuron, of which many may share a point.
pub(super) struct Raster {
    /// Bursts of the whole run.
    bursts: u64,
    /// Spikes a point, rows of bursts.
    points: Vec<u32>,
    /// Points beside each other, at most as many as there are bursts.
    columns: usize,
    /// Points above each other, at most as many as there are neurons.
    rows: usize,
    /// The place of each neuron from the top, areas one below the other.
    places: Vec<u32>,
    /// The first place of each area, and its id.
    areas: Vec<(usize, u32)>,
}

impl Raster {
    /// Without a spike.
    pub(super) fn new(network: &Network, bursts: u64) -> Self {
        // A neuron's area is known by its id; every neuron has one.
        let area = |&index: &usize| network.area_of(network.id(index)).map_or(0, |area| area.id);
        let mut order: Vec<usize> = (0..network.count()).collect();
        order.sort_by_key(area);
        // The sort keeps the order of neurons within an area.
        let (mut places, mut areas) = (vec![0; order.len()], Vec::new());
        for (place, index) in order.iter().enumerate() {
            places[*index] = place as u32;
            if areas.last().is_none_or(|&(_, last)| last != area(index)) {
                areas.push((place, area(index)));
            }
        }
        let (columns, rows) = (POINTS.0.min(bursts as usize), POINTS.1.min(order.len()));
        Self { bursts, points: vec![0; columns * rows], columns, rows, places, areas }
    }

    /// The point of a place among `all`, of so many points.
    fn scaled(place: u64, all: u64, points: usize) -> usize {
        (u128::from(place) * points as u128 / u128::from(all)) as usize
    }

    /// A neuron fired in a burst, which counts from 1.
    pub(super) fn mark(&mut self, burst: u64, neuron: usize) {
        // The last of all has the last point.
        let column = Self::scaled(burst - 1, self.bursts, self.columns);
        let row = Self::scaled(self.places[neuron].into(), self.places.len() as u64, self.rows);
        self.points[row * self.columns + column] += 1;
    }

    /// Writes the picture, whole or not at all.
    pub(super) fn write(&self, path: &Path) -> Result<()> {
        // In memory first, so that a failure leaves the old file.
        let mut picture = String::new();
        self.draw(&mut picture).map_err(|error| Error::file(path, format!("cannot be drawn: {error}")))?;
        picture.push_str(MARK);
        // Somebody may have put a file there since.
        check(path)?;
        Ok(write_whole(path, picture.as_bytes())?)
    }

    /// Points, with lines and names between areas.
    fn draw(&self, picture: &mut String) -> Result<(), Box<dyn std::error::Error>> {
        let area = SVGBackend::with_string(picture, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let (bursts, neurons) = (self.bursts as f64, self.places.len() as f64);
        let mut chart = ChartBuilder::on(&area)
            .caption("Spikes", ("sans-serif", 22))
            .margin(16)
            .x_label_area_size(44)
            .y_label_area_size(60)
            // The first neuron is the topmost; bursts count from 1.
            .build_cartesian_2d(0.5..bursts + 0.5, neurons..0.0)?;
        // A short run has labels between bursts, which stay empty.
        let whole = |burst: &f64| if burst.fract() == 0.0 { format!("{burst}") } else { String::new() };
        let mut mesh = chart.configure_mesh();
        mesh.disable_mesh().disable_y_axis().x_label_formatter(&whole);
        mesh.x_desc("burst").y_desc("neurons, by area").draw()?;
        // Of a point, in bursts and neurons.
        let (wide, high) = (bursts / self.columns as f64, neurons / self.rows as f64);
        // The most that any point has is black.
        let most = f64::from(self.points.iter().copied().max().unwrap_or(0).max(1));
        let fired = self.points.iter().enumerate().filter(|(_, count)| **count > 0);
        chart.draw_series(fired.map(|(at, &count)| {
            let (x, y) = (0.5 + (at % self.columns) as f64 * wide, (at / self.columns) as f64 * high);
            let shade = BLACK.mix(0.3 + 0.7 * f64::from(count) / most);
            Rectangle::new([(x, y), (x + wide, y + high)], shade.filled())
        }))?;
        // An area ends where the next one begins.
        let ends = self.areas.iter().skip(1).map(|area| area.0).chain([self.places.len()]);
        for (&(start, id), end) in self.areas.iter().zip(ends) {
            let line = [(0.5, start as f64), (bursts + 0.5, start as f64)];
            chart.draw_series([PathElement::new(line, BLUE.mix(0.4))])?;
            // Names stay apart from each other.
            if (end - start) as f64 / high >= NAMED as f64 {
                let middle = (start + end) as f64 / 2.0;
                let (_, y) = chart.backend_coord(&(0.5, middle));
                area.draw(&Text::new(format!("{id}"), (40, y - 6), ("sans-serif", 13)))?;
            }
        }
        area.present()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hecate_spiking::{Area, Builder, Neuron};

    /// Areas lie one below the other whatever the order of their neurons, and the last burst and neuron have a point.
    #[test]
    fn spikes_lie_at_their_burst_and_area() {
        let mut builder = Builder::default();
        for area in [9, 3] {
            builder.area(Area::uniform(area)).unwrap();
        }
        for area in [9, 3, 9, 3] {
            builder.neuron(Neuron::new(area, 1.0)).unwrap();
        }
        let network = builder.build().unwrap();
        let mut raster = Raster::new(&network, 1000);
        assert_eq!((raster.columns, raster.rows, raster.areas.as_slice()), (400, 4, [(0, 3), (2, 9)].as_slice()));
        assert_eq!(raster.places, [2, 0, 3, 1]);
        for (burst, neuron, point) in [(1, 1, 0), (1000, 2, 3 * 400 + 399), (3, 0, 2 * 400), (4, 0, 2 * 400 + 1)] {
            raster.mark(burst, neuron);
            assert_eq!(raster.points[point], 1, "{burst} {neuron}");
        }
        assert_eq!(raster.points.iter().sum::<u32>(), 4);
        let mut picture = String::new();
        raster.draw(&mut picture).unwrap();
        // The background, and a point each.
        assert_eq!(picture.matches("<rect").count(), 1 + 4, "{picture}");
    }
}
