//! A model's folder, written as another one is.

use super::{
    arrays::{Array, Arrays, Shard},
    numbers::{Stored, narrow},
    plan::Plan,
};
use crate::{
    Error, Parameters, Result,
    files::{self, JSON, Links, write_whole, write_whole_with},
    parameters::check_count,
};
use hecate_core::{Backend, DType};
use std::{
    collections::{HashMap, hash_map::Entry},
    fs,
    path::Path,
};

/// Ends of the names of files beside the weights that are copied: configurations, tokenizers, templates.
const COPIED: [&str; 4] = [".json", ".jinja", ".txt", ".model"];

/// Writes the folder `to` with these parameters, and everything else as it is in the folder `from`.
pub(super) fn folder<B: Backend>(
    (from, arrays, plan): (&Path, &Arrays, &Plan),
    parameters: &Parameters<B>,
    to: &Path,
) -> Result<()> {
    check(plan, parameters)?;
    make_empty(to)?;
    for (number, shard) in arrays.shards().iter().enumerate() {
        let own = arrays.all().iter().enumerate().filter(|(_, array)| array.shard == number);
        write_shard((shard, own), plan, parameters, &to.join(&shard.name))?;
    }
    for entry in fs::read_dir(from).map_err(Error::io("read", from))? {
        let name = entry.map_err(Error::io("read", from))?.file_name();
        if name.to_str().is_some_and(|name| COPIED.iter().any(|ending| name.ends_with(ending))) {
            write_whole(&to.join(&name), &files::read(&from.join(&name), Links::Follow, JSON)?)?;
        }
    }
    Ok(())
}

/// Makes a folder, unless it is there, and refuses one with files in it. Folders in it are somebody else's.
pub(super) fn make_empty(to: &Path) -> Result<()> {
    fs::create_dir_all(to).map_err(Error::io("create", to))?;
    for entry in fs::read_dir(to).map_err(Error::io("read", to))? {
        if !entry.and_then(|entry| entry.file_type()).map_err(Error::io("read", to))?.is_dir() {
            let why = "there is something in it, and a model is written into an empty folder; name another";
            return Err(Error::checkpoint(to, why));
        }
    }
    Ok(())
}

/// Refuses parameters that are not those of the plan, in 32 bits.
fn check<B: Backend>(plan: &Plan, parameters: &Parameters<B>) -> Result<()> {
    if !parameters.frozen().is_empty() {
        let expected = "merged with it (`LanguageModel::merged`), or its adapter alone (`Opened::save_adapter`)";
        return Err(Error::config("model", "one beside an adapter", expected));
    }
    check_names(plan, parameters)?;
    match parameters.iter().find(|own| own.value.dtype() != DType::F32) {
        None => Ok(()),
        Some(own) => {
            let expected = "f32: matrices that were rounded to generate with are not what the folder has";
            Err(Error::config(&own.name, own.value.dtype(), expected))
        }
    }
}

/// Refuses parameters of other names or shapes than those of the plan.
pub(super) fn check_names<B: Backend>(plan: &Plan, parameters: &Parameters<B>) -> Result<()> {
    check_count("model", parameters.len(), plan.parameters().len())?;
    for ((name, shape), own) in plan.parameters().iter().zip(parameters.iter()) {
        if own.name != *name || own.value.shape() != shape {
            let found = format!("`{}` of shape {}", own.name, own.value.shape());
            return Err(Error::config(
                "parameter",
                found,
                format!("`{name}` of shape {shape}: the folder's own model"),
            ));
        }
    }
    Ok(())
}

/// Writes a file with the header that it had, and arrays of the same sizes in the same order.
fn write_shard<'a, B: Backend>(
    (shard, arrays): (&Shard, impl Iterator<Item = (usize, &'a Array)>),
    plan: &Plan,
    parameters: &Parameters<B>,
    path: &Path,
) -> Result<()> {
    write_whole_with(path, |write| {
        shard.read((0, shard.start), 1, write)?;
        for (number, array) in arrays {
            match plan.of_array(number) {
                // Of no use here, and as it was.
                [] => shard.read((array.at, array.bytes), 1, write)?,
                _ => write_array((number, array), plan, parameters, write)?,
            }
        }
        Ok(())
    })
}

/// Writes an array, piece by piece of the parameters that it is made of.
fn write_array<B: Backend>(
    (number, array): (usize, &Array),
    plan: &Plan,
    parameters: &Parameters<B>,
    write: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let Stored::Single(dtype) = array.dtype else {
        return Err(Error::config(&array.stored, array.dtype, "floats: blocks are not written back"));
    };
    let mut read = HashMap::new();
    for piece in plan.of_array(number) {
        let values = match read.entry(piece.parameter) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                let value =
                    parameters.iter().nth(piece.parameter).map(|parameter| parameter.value.to_f32()).transpose()?;
                place.insert(value.unwrap_or_default())
            }
        };
        let [_, width] = array.rows();
        let (from, count) = (piece.parameter_row * width, piece.rows * width);
        write(&narrow(dtype, &values[from..from + count]))?;
    }
    Ok(())
}
