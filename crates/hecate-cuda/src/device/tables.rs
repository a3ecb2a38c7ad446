//! Small tables that kernels read, such as the edges of sequences.

use super::{Buffer, Cuda};
use hecate_core::{Device, Host, Result, Tensor};
use std::sync::{Arc, PoisonError};

/// Most tables that are kept on the device.
const MOST_TABLES: usize = 256;

/// Tables of the last calls that are kept.
const RECENT: usize = 8;

/// A table that many calls need: the same on the device every time.
pub(crate) struct Table {
    /// Its address on the device.
    pub(crate) pointer: u64,
    /// Its memory, unless the device keeps it.
    _own: Option<Buffer>,
}

impl Table {
    /// Memory that the device keeps.
    fn cached(memory: &Buffer) -> Self {
        Self { pointer: memory.pointer(), _own: None }
    }

    /// Memory that goes with the table.
    fn own(memory: Buffer) -> Self {
        Self { pointer: memory.pointer(), _own: Some(memory) }
    }
}

impl Cuda {
    /// A table for this call.
    pub(crate) fn table(&self, values: &[u32]) -> Result<Tensor<Self>> {
        Tensor::upload(self, [values.len()], Host::U32(values.to_vec()))
    }

    /// A table of addresses: that of one of the last calls, where it had the same.
    pub(crate) fn recent_table(&self, values: &[u32]) -> Result<Arc<Buffer>> {
        // What belongs to a graph is not for others.
        if self.ledger().arena().is_some() {
            return Ok(Arc::new(self.upload(Host::U32(values.to_vec()))?));
        }
        let recent = || self.0.recent_tables.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, memory)) = recent().iter().find(|(known, _)| known == values) {
            return Ok(memory.clone());
        }
        // No lock is held while it goes to the device, as below.
        let memory = Arc::new(self.upload(Host::U32(values.to_vec()))?);
        let mut recent = recent();
        recent.push_front((values.to_vec(), memory.clone()));
        let kept = RECENT.min(recent.len());
        let old = recent.split_off(kept);
        // Let go of after the lock.
        drop(recent);
        drop(old);
        Ok(memory)
    }

    /// A table that stays on the device, so that calls like the last one upload nothing.
    pub(crate) fn cached_table(&self, values: &[u32]) -> Result<Table> {
        // Not held while the table goes to the device: who waits for a turn must not make others wait.
        let tables = || self.0.tables.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(memory) = tables().get(values) {
            return Ok(Table::cached(memory));
        }
        let memory = self.upload(Host::U32(values.to_vec()))?;
        // What belongs to a graph is not for others.
        if self.ledger().arena().is_some() {
            return Ok(Table::own(memory));
        }
        let mut tables = tables();
        if tables.len() >= MOST_TABLES {
            return Ok(Table::own(memory));
        }
        Ok(Table::cached(tables.entry(values.to_vec()).or_insert(memory)))
    }
}
