//! The header of a safetensors file: names, types, shapes and places of its arrays.
//!
//! The format's own crate reads headers into a map, where of two entries of one name the last is left. So entries are read here
//! one by one, and checked by that crate.

use safetensors::tensor::{Metadata, TensorInfo};
use serde::{
    Deserialize, Deserializer,
    de::{Error, IgnoredAny, MapAccess, Visitor},
};
use std::{collections::HashSet, fmt, marker::PhantomData};

/// Entries of a JSON object in their order; no name comes twice. `__metadata__` is left out.
#[derive(Debug)]
pub(super) struct Entries<T>(pub(super) Vec<(String, T)>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Entries<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Each(PhantomData))
    }
}

/// Reads entry by entry.
struct Each<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Each<T> {
    type Value = Entries<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object in braces")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries<T>, A::Error> {
        let (mut names, mut entries) = (HashSet::new(), Vec::new());
        while let Some(name) = map.next_key::<String>()? {
            if !names.insert(name.clone()) {
                return Err(A::Error::custom(format!("`{name}` comes twice")));
            }
            if name == "__metadata__" {
                map.next_value::<IgnoredAny>()?;
            } else {
                entries.push((name, map.next_value()?));
            }
        }
        Ok(Entries(entries))
    }
}

/// The arrays that a header tells of, in the order of their bytes, of which there are `rest` in all.
///
/// # Errors
/// Why it is no such header.
pub(super) fn parse(text: &[u8], rest: u64) -> Result<Vec<(String, TensorInfo)>, String> {
    let Entries::<TensorInfo>(mut entries) = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    entries.sort_by_key(|(_, info)| info.data_offsets);
    let metadata = Metadata::new(None, entries.clone()).map_err(|error| error.to_string())?;
    if metadata.data_len() as u64 != rest {
        return Err(format!("{rest} bytes of arrays, expected {}", metadata.data_len()));
    }
    Ok(entries)
}
