//! Arrays in safetensors files.

use crate::{Error, Result, checksum::checksum};
use hecate_core::{Device, Shape, Tensor};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use std::{collections::HashMap, path::Path};

/// Key of the file's metadata under which the checksum of its data is kept. It is the only key: the order of several
/// would differ from run to run.
const CHECKSUM: &str = "checksum";

/// A safetensors file of 32-bit floats. The same arrays give the same bytes.
pub(crate) fn pack<D: Device>(path: &Path, arrays: &[(String, &Tensor<D>)]) -> Result<Vec<u8>> {
    let mut contents = arrays
        .iter()
        .map(|(name, array)| {
            let bytes: Vec<u8> = array.to_f32()?.iter().flat_map(|x| x.to_le_bytes()).collect();
            Ok((name.as_str(), array.shape().axes().to_vec(), bytes))
        })
        .collect::<Result<Vec<_>>>()?;
    contents.sort_by_key(|content| content.0);
    let data: Vec<&[u8]> = contents.iter().map(|(.., bytes)| bytes.as_slice()).collect();
    let metadata = HashMap::from([(CHECKSUM.to_owned(), checksum(&data.concat()))]);
    let fail = |error: safetensors::SafeTensorError| Error::checkpoint(path, format!("cannot be made: {error}"));
    let views = contents
        .iter()
        .map(|(name, shape, bytes)| Ok((*name, TensorView::new(Dtype::F32, shape.clone(), bytes)?)))
        .collect::<Result<Vec<_>, _>>()
        .map_err(fail)?;
    safetensors::serialize(views, Some(metadata)).map_err(fail)
}

/// The arrays of a safetensors file, in the order of `expected`; it must hold exactly these.
pub(crate) fn unpack<D: Device>(
    device: &D,
    path: &Path,
    bytes: &[u8],
    expected: &[(String, Shape)],
) -> Result<Vec<Tensor<D>>> {
    let damaged = |why: &dyn std::fmt::Display| {
        let why = format!("damaged or cut short ({why}); use a copy of it, or train again");
        Error::checkpoint(path, why)
    };
    let file = SafeTensors::deserialize(bytes).map_err(|error| damaged(&error))?;
    let (header, metadata) = SafeTensors::read_metadata(bytes).map_err(|error| damaged(&error))?;
    let written = metadata.metadata().as_ref().and_then(|entries| entries.get(CHECKSUM));
    if written.is_some_and(|written| *written != checksum(&bytes[8 + header..])) {
        return Err(damaged(&"its checksum does not fit its content"));
    }
    if let Some(name) = file.names().into_iter().find(|name| expected.iter().all(|(known, _)| known != name)) {
        let why = format!("holds `{name}`, which this configuration does not have; use the config.json it came with");
        return Err(Error::checkpoint(path, why));
    }
    expected.iter().map(|(name, shape)| read(device, path, &file, name, shape)).collect()
}

fn read<D: Device>(device: &D, path: &Path, file: &SafeTensors, name: &str, shape: &Shape) -> Result<Tensor<D>> {
    let fail = |why: String| Error::checkpoint(path, format!("{why}; use the config.json it came with"));
    let view = file.tensor(name).map_err(|_| fail(format!("lacks `{name}`")))?;
    if view.shape() != shape.axes() {
        return Err(fail(format!("`{name}` has shape {:?}, expected {shape}", view.shape())));
    }
    if view.dtype() != Dtype::F32 {
        return Err(fail(format!("`{name}` holds {:?}, expected F32", view.dtype())));
    }
    let (values, _) = view.data().as_chunks::<4>();
    let values = values.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    Ok(Tensor::from_f32(device, shape.clone(), values)?)
}
