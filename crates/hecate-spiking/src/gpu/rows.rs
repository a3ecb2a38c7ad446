//! Synapses on a device: rows by source, of the targets of one part.

use super::words;
use crate::{
    Network, Result,
    cpu::Learning,
    network::{Entry, within},
};
use hecate_core::{Device, Tensor, memory};
use std::ops::Range;

/// Rows of the synapses that lead into a part.
pub(crate) struct Rows<D: Device> {
    /// Where the row of each index begins, and one more.
    pub(crate) starts: Tensor<D>,
    /// The synapses, in as many arrays as the device's limit asks for; at least one.
    pub(crate) segments: Vec<Segment<D>>,
    /// For each index, by how many synapses its potential is shared, and in the highest bit whether that is what it delivers.
    pub(crate) sources: Tensor<D>,
    /// Most bytes of an array of synapses.
    most: u64,
}

/// Neighbouring synapses. A row may go on in the next segment.
pub(crate) struct Segment<D: Device> {
    /// Two words a synapse: its target as an index in the part; weight, potential and kind, from the lowest byte on.
    pub(crate) entries: Tensor<D>,
    /// The first of all synapses of the part that is here, and the one after the last.
    pub(crate) places: Range<u32>,
}

/// Bytes of a synapse.
const ENTRY: u64 = 8;

impl<D: Device> Rows<D> {
    /// With weights of now and synapses that were made, where some learn; no array is over `most` bytes.
    pub(super) fn new(
        device: &D,
        network: &Network,
        part: &Range<usize>,
        learning: Option<&Learning>,
        most: u64,
    ) -> Result<Self> {
        let all = learning.map_or(&network.entries[..], |learning| learning.entries(network));
        // At most 2³⁰ synapses: places fit 32 bits.
        let mut starts = memory::with_capacity("rows of synapses", network.count() + 1)?;
        let mut sources = memory::with_capacity("rows of synapses", network.count())?;
        let mut entries: Vec<u32> = memory::with_capacity("synapses", 2 * all.len())?;
        starts.push(0);
        for index in 0..network.count() {
            let row = &all[network.rows[index]..network.rows[index + 1]];
            let made =
                learning.and_then(|learning| learning.made().get(&(index as u32))).map_or(&[][..], Vec::as_slice);
            for row in [row, made] {
                entries.extend(row[within(row, part)].iter().flat_map(|entry| packed(entry, part.start)));
            }
            let area = network.area_at(index);
            // Synapses that lead into other parts count too.
            let shared = if area.uniform { 1 } else { (row.len() + made.len()) as u32 };
            sources.push(shared | u32::from(area.membrane_driven) << 31);
            starts.push((entries.len() / 2) as u32);
        }
        let segments = segments(device, entries, (most / ENTRY) as usize)?;
        Ok(Self { starts: words(device, starts)?, segments, sources: words(device, sources)?, most })
    }

    /// Weights in the order of the rows.
    pub(super) fn weights(&self) -> Result<Vec<u8>> {
        let mut weights = Vec::new();
        for Segment { entries, places } in &self.segments {
            memory::reserve("weights", &mut weights, places.len())?;
            let words = entries.to_u32()?;
            // An array of no synapse has a word all the same.
            weights.extend(words.chunks_exact(2).take(places.len()).map(|entry| entry[1] as u8));
        }
        Ok(weights)
    }

    /// The same of synapses as they are now.
    pub(super) fn renewed(&self, device: &D, network: &Network, part: &Range<usize>, of: &Learning) -> Result<Self> {
        Self::new(device, network, part, Some(of), self.most)
    }

    /// Words of all arrays.
    pub(super) fn words(&self) -> usize {
        let segments = self.segments.iter().map(|segment| segment.entries.shape().count());
        self.starts.shape().count() + self.sources.shape().count() + segments.sum::<usize>()
    }
}

/// Arrays of at most so many synapses each.
fn segments<D: Device>(device: &D, entries: Vec<u32>, most: usize) -> Result<Vec<Segment<D>>> {
    // Most networks fill one array.
    let count = entries.len() / 2;
    if count <= most {
        let entries = words(device, if entries.is_empty() { vec![0; 2] } else { entries })?;
        return Ok(vec![Segment { entries, places: 0..count as u32 }]);
    }
    // All arrays but the last are full.
    let segment = |(number, of_segment): (usize, &[u32])| {
        let start = (number * most) as u32;
        Ok(Segment { entries: words(device, of_segment.to_vec())?, places: start..start + of_segment.len() as u32 / 2 })
    };
    entries.chunks(2 * most).enumerate().map(segment).collect()
}

/// A synapse as kernels read it.
fn packed(entry: &Entry, start: usize) -> [u32; 2] {
    let what = u32::from(entry.weight) | u32::from(entry.potential) << 8 | u32::from(u8::from(entry.kind)) << 16;
    [entry.target - start as u32, what]
}
