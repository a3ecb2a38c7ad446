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
    /// Two words a synapse: its target as an index in the part; weight, potential and kind, from the lowest byte on.
    pub(crate) entries: Tensor<D>,
    /// For each index, by how many synapses its potential is shared, and in the highest bit whether that is what it delivers.
    pub(crate) sources: Tensor<D>,
}

impl<D: Device> Rows<D> {
    /// With weights of now and synapses that were made, where some learn.
    pub(super) fn new(device: &D, network: &Network, part: &Range<usize>, learning: Option<&Learning>) -> Result<Self> {
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
        Ok(Self {
            starts: words(device, starts)?,
            entries: words(device, if entries.is_empty() { vec![0; 2] } else { entries })?,
            sources: words(device, sources)?,
        })
    }
}

/// A synapse as kernels read it.
fn packed(entry: &Entry, start: usize) -> [u32; 2] {
    let what = u32::from(entry.weight) | u32::from(entry.potential) << 8 | u32::from(u8::from(entry.kind)) << 16;
    [entry.target - start as u32, what]
}
