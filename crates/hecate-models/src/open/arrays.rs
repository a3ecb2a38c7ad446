//! All arrays in the safetensors files of a folder.

use super::{
    damaged,
    gguf::Change,
    header::{self, Entries},
    numbers::Stored,
};
use crate::{
    Error, Result,
    files::{self, JSON, Links, is_there},
};
use hecate_core::memory;
use std::{
    collections::{BTreeMap, HashMap},
    fs::File,
    io::{Read, Seek, SeekFrom},
    ops::Range,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

/// The only file of a model that is not split.
const ONE: &str = "model.safetensors";
/// Which file each array is in, of a model that is split.
const INDEX: &str = "model.safetensors.index.json";
/// Longest header that is read, as safetensors limits it: far above that of any model.
const HEADER: u64 = 100_000_000;
/// Bytes that are read at once, at most; far above those of any unit.
const PIECE: usize = 1 << 20;

/// A file with arrays.
#[derive(Debug)]
pub(super) struct Shard {
    /// Its name in the folder.
    pub(super) name: String,
    path: PathBuf,
    /// Where a thread reads, no other does.
    file: Mutex<File>,
    /// Bytes before the first array: the header, and the length of it.
    pub(super) start: u64,
}

/// An array of a file.
#[derive(Debug)]
pub(super) struct Array {
    /// Its name without what models that see have in front of the text's.
    pub(super) name: String,
    /// Its name in the file.
    pub(super) stored: String,
    pub(super) dtype: Stored,
    pub(super) shape: Vec<usize>,
    /// Number of its file.
    pub(super) shard: usize,
    /// First byte in its file.
    pub(super) at: u64,
    /// Number of bytes.
    pub(super) bytes: u64,
    /// What a converter made of its values.
    pub(super) change: Change,
}

/// All arrays of a folder, file by file and in each in the order of their bytes.
#[derive(Debug)]
pub(super) struct Arrays {
    shards: Vec<Shard>,
    all: Vec<Array>,
    by_name: HashMap<String, usize>,
}

impl Array {
    /// Number of elements. Headers whose products overflow were refused.
    pub(super) fn elements(&self) -> u64 {
        self.shape.iter().product::<usize>() as u64
    }

    /// Rows, and elements of one; an array without an axis has none.
    pub(super) fn rows(&self) -> [usize; 2] {
        [self.shape.first().copied().unwrap_or(0), self.shape.iter().skip(1).product()]
    }

    /// The name of the map whose weight it is.
    pub(super) fn map(&self) -> Option<&str> {
        self.name.strip_suffix(".weight")
    }

    /// Whether it is of a part that is not built here, or a table that is computed.
    pub(super) fn is_ignored(&self) -> bool {
        ["mtp.", "model.visual.", "visual."].iter().any(|part| self.name.starts_with(part))
            || self.name.ends_with(".rotary_emb.inv_freq")
    }
}

/// A name without what models that see have in front of the text's, and with `model.` where others have `backbone.`.
fn plain(stored: &str) -> String {
    if let Some(inside) = stored.strip_prefix("backbone.") {
        return format!("model.{inside}");
    }
    let inside = stored.strip_prefix("model.language_model.").or_else(|| stored.strip_prefix("language_model.model."));
    match (inside, stored.strip_prefix("language_model.")) {
        (Some(inside), _) => format!("model.{inside}"),
        (None, Some(head)) => head.to_owned(),
        (None, None) => stored.to_owned(),
    }
}

impl Arrays {
    /// Reads headers alone.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Checkpoint`] for no weights, files that are damaged, and names that come twice.
    pub(super) fn open(folder: &Path) -> Result<Self> {
        if is_there(&folder.join(ONE)) {
            return Self::of_file(folder, ONE);
        }
        if !is_there(&folder.join(INDEX)) {
            return Err(no_weights(folder));
        }
        let mut arrays = Self { shards: Vec::new(), all: Vec::new(), by_name: HashMap::new() };
        arrays.add_indexed(folder)?;
        Ok(arrays)
    }

    /// Those of one file of this name.
    ///
    /// # Errors
    /// As [`Arrays::open`].
    pub(super) fn of_file(folder: &Path, name: &str) -> Result<Self> {
        let mut arrays = Self { shards: Vec::new(), all: Vec::new(), by_name: HashMap::new() };
        arrays.add(folder, name)?;
        Ok(arrays)
    }

    /// These arrays of one file, whose names differ.
    pub(super) fn listed(path: &Path, file: File, all: Vec<Array>) -> Self {
        let by_name = all.iter().enumerate().map(|(i, array)| (array.name.clone(), i)).collect();
        let start = all.iter().map(|array| array.at).min().unwrap_or(0);
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Self { shards: vec![Shard { name, path: path.to_owned(), file: Mutex::new(file), start }], all, by_name }
    }

    /// All files that the index names. What they hold and what it says must be the same.
    fn add_indexed(&mut self, folder: &Path) -> Result<()> {
        let path = folder.join(INDEX);
        let mut files = BTreeMap::<String, Vec<String>>::new();
        for (array, file) in index(&path)? {
            files.entry(file).or_default().push(array);
        }
        for (file, named) in files {
            if !is_plain(&file) {
                let why = format!("names {file:?}, which is no safetensors file right in the folder");
                return Err(Error::checkpoint(path, why));
            }
            let first = self.all.len();
            self.add(folder, &file)?;
            let mut held: HashMap<&str, bool> =
                self.all[first..].iter().map(|array| (array.stored.as_str(), false)).collect();
            for array in &named {
                let Some(met) = held.get_mut(array.as_str()) else {
                    return Err(Error::checkpoint(
                        folder.join(file),
                        format!("lacks `{array}`, which {INDEX} says is in it"),
                    ));
                };
                *met = true;
            }
            if let Some((array, _)) = held.into_iter().filter(|(_, met)| !met).min() {
                return Err(Error::checkpoint(
                    folder.join(&file),
                    format!("holds `{array}`, of which {INDEX} says nothing"),
                ));
            }
        }
        Ok(())
    }

    /// Adds the arrays of a file.
    fn add(&mut self, folder: &Path, name: &str) -> Result<()> {
        let (path, shard) = (folder.join(name), self.shards.len());
        let (mut file, found) = files::open(&path, Links::Follow).map_err(Error::io("read", &path))?;
        let (start, entries) = read_header(&path, &mut file, found.len())?;
        for (stored, info) in entries {
            let (from, to) = info.data_offsets;
            let (at, bytes) = (start + from as u64, (to - from) as u64);
            let (dtype, change) = (Stored::Single(info.dtype), Change::Nothing);
            let array = Array { name: plain(&stored), stored, dtype, shape: info.shape, shard, at, bytes, change };
            if let Some(before) = self.by_name.insert(array.name.clone(), self.all.len()) {
                let other = &self.all[before];
                let (in_file, known) = (&self.shards.get(other.shard).map_or(name, |shard| &shard.name), &other.stored);
                let why =
                    format!("holds `{}`, which is also `{known}` in {in_file}; leave one of them out", array.stored);
                return Err(Error::checkpoint(path, why));
            }
            self.all.push(array);
        }
        self.shards.push(Shard { name: name.to_owned(), path, file: Mutex::new(file), start });
        Ok(())
    }

    /// All files.
    pub(super) fn shards(&self) -> &[Shard] {
        &self.shards
    }

    /// All arrays.
    pub(super) fn all(&self) -> &[Array] {
        &self.all
    }

    /// Appends the elements of some rows of an array, of a type that parameters are stored in.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(super) fn read_rows(&self, array: &Array, rows: Range<usize>, values: &mut Vec<f32>) -> Result<()> {
        let (width, first) = (array.rows()[1], values.len());
        // Types were looked at when the folder was opened, and rows are whole units.
        let [count, unit] = array.dtype.unit().unwrap_or([1, 1]);
        let row = (width / count * unit) as u64;
        let place = (array.at + rows.start as u64 * row, rows.len() as u64 * row);
        self.shards[array.shard].read(place, unit, &mut |bytes| array.dtype.widen(bytes, values))?;
        array.change.undo(&mut values[first..], width)
    }

    /// The number of the array of this name.
    pub(super) fn find(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }
}

impl Shard {
    /// Hands over `bytes` bytes of the file from `at` on, which are whole units of `unit` bytes, in pieces of whole ones.
    ///
    /// # Errors
    /// [`Error::Io`], also where the file ends before; what `take` returns.
    pub(super) fn read(
        &self,
        (at, bytes): (u64, u64),
        unit: usize,
        take: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let most = PIECE - PIECE % unit;
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.seek(SeekFrom::Start(at)).map_err(Error::io("read", &self.path))?;
        let mut piece = vec![0; most.min(usize::try_from(bytes).unwrap_or(most))];
        let mut left = bytes;
        while left > 0 {
            let now = &mut piece[..most.min(usize::try_from(left).unwrap_or(most))];
            file.read_exact(now).map_err(Error::io("read", &self.path))?;
            take(now)?;
            left -= now.len() as u64;
        }
        Ok(())
    }
}

/// Bytes before the arrays, and the arrays' entries, of a file of `all` bytes.
fn read_header(
    path: &Path,
    file: &mut File,
    all: u64,
) -> Result<(u64, Vec<(String, safetensors::tensor::TensorInfo)>)> {
    let mut length = [0; 8];
    if all < length.len() as u64 {
        return Err(damaged(path, format!("{all} bytes, where 8 tell the length of its header")));
    }
    file.read_exact(&mut length).map_err(Error::io("read", path))?;
    let (length, rest) = (u64::from_le_bytes(length), all - 8);
    if length > rest.min(HEADER) {
        return Err(damaged(path, format!("a header of {length} bytes, expected at most {}", rest.min(HEADER))));
    }
    let mut text = memory::with_capacity("weights", length as usize)?;
    file.take(length).read_to_end(&mut text).map_err(Error::io("read", path))?;
    let entries = header::parse(&text, rest - length).map_err(|why| damaged(path, why))?;
    Ok((8 + length, entries))
}

/// Names of arrays and of their files.
fn index(path: &Path) -> Result<Vec<(String, String)>> {
    /// What an index says.
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: Entries<String>,
    }
    let content = files::read(path, Links::Follow, JSON)?;
    let index: Index = serde_json::from_slice(&content).map_err(|error| damaged(path, error))?;
    match index.weight_map.0 {
        entries if entries.is_empty() => Err(damaged(path, "it names no array")),
        entries => Ok(entries),
    }
}

/// Whether a name is that of a safetensors file right in a folder, on every system.
fn is_plain(name: &str) -> bool {
    let reserved = |c: char| c.is_control() || "/\\:*?\"<>|".contains(c);
    name.ends_with(".safetensors") && !name.starts_with('.') && !name.contains(reserved)
}

/// The error of a folder without weights that can be read, which says what there is in their place.
fn no_weights(folder: &Path) -> Error {
    let names = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name());
    let names: Vec<String> = names.map(|name| name.to_string_lossy().into_owned()).collect();
    let has = |ending: &str| names.iter().any(|name| name.ends_with(ending));
    let why = if has(".gguf") {
        "a GGUF file is named itself, and not its folder"
    } else if has(".bin") || has(".pt") || has(".pth") {
        "weights pickled by PyTorch are programs, and are not run; use the model's safetensors files"
    } else {
        "a released model has its weights there"
    };
    Error::checkpoint(folder, format!("no {ONE} and no {INDEX} in it: {why}"))
}
