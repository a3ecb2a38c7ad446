//! Parameters in safetensors files.

use super::{pack, unpack_all};
use crate::{
    Error, Parameter, Parameters, QuantizedMatrix, Result,
    files::{Checksum, read_file, write_whole},
};
use hecate_core::{Backend, Tensor};
use std::path::Path;

impl<B: Backend> Parameters<B> {
    /// Writes all values to a safetensors file, under their names. The file is there whole or not at all; one that was
    /// there before is replaced.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Checkpoint`] for two parameters of one name; the device's own failures.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        write_whole(path, &pack(path, &self.by_name(), self.quantized(), &[])?)
    }

    /// Takes all values from a safetensors file, such as [`Parameters::save`] wrote, whose names and shapes must be those
    /// of the parameters. Places that [`Parameters::add`] gave stay valid.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Checkpoint`] for a file that is damaged or of other parameters; no parameters; the device's
    /// own failures. All values are then as they were.
    pub fn load(&mut self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let Some(first) = self.iter().next() else {
            return Err(Error::config("parameters", "none", "those of a model, built before its values are loaded"));
        };
        let device = first.value.device().clone();
        self.restore(&device, path, &read_file(path)?)
    }

    /// Names and values of what is learned.
    pub fn by_name(&self) -> Vec<(String, &Tensor<B>)> {
        self.iter().map(|parameter| (parameter.name.clone(), &parameter.value)).collect()
    }

    /// A checksum of all names and values, in their order; frozen ones first.
    pub(crate) fn checksum(&self) -> Result<String> {
        let mut all = Checksum::new(self.elements());
        for Parameter { name, value, .. } in self.frozen().iter().chain(self.iter()) {
            all.take(name.as_bytes());
            value.to_f32()?.iter().for_each(|x| all.take(&x.to_le_bytes()));
        }
        for QuantizedMatrix { name, matrix } in self.quantized() {
            all.take(name.as_bytes());
            all.take(&matrix.blocks()?);
        }
        Ok(all.digits())
    }

    /// As [`Parameters::load`], from the content of the file.
    ///
    /// # Errors
    /// As [`Parameters::load`].
    pub fn restore(&mut self, device: &B, path: &Path, content: &[u8]) -> Result<()> {
        let (values, matrices) = unpack_all(device, path, content, self)?;
        for (parameter, value) in self.iter_mut().zip(values) {
            parameter.value = value;
        }
        for (quantized, matrix) in self.quantized_mut().iter_mut().zip(matrices) {
            quantized.matrix = matrix;
        }
        Ok(())
    }
}
