//! Arrays in safetensors files.

mod parameters;

use crate::{
    Error, Parameter, Parameters, QuantizedMatrix, Result,
    files::{self, DIGITS, Links, checksum, checksum_around},
};
use half::bf16;
use hecate_core::{
    Backend, DType, Device, Host, Shape, Tensor, memory,
    quantized::{BlockFormat, Quantized},
};
use safetensors::{
    Dtype, SafeTensors,
    tensor::{Metadata, TensorInfo, TensorView},
};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    fmt::Display,
    io::Read,
    path::Path,
};

/// Key of the metadata that Hecate writes: checksums of this file and of those it was written beside. It is the only key:
/// the order of several would differ from run to run.
pub(crate) const MARK: &str = "hecate";
/// How a marked file goes on after its first eight bytes; the checksum of all other bytes follows.
const OPENING: &[u8] = b"{\"__metadata__\":{\"hecate\":\"";
/// Where that checksum is.
const AT: usize = LENGTH + OPENING.len();
/// Key of files from before there was the mark: a checksum of the arrays' bytes alone.
const UNMARKED: &str = "checksum";
/// Bytes that tell the length of the header after them. Then come the header in JSON, and the arrays.
const LENGTH: usize = 8;
/// Longest header that is read, as safetensors limits it: far above that of any model.
const HEADER: u64 = 100_000_000;
/// What to do with a file of other arrays.
const WAY_OUT: &str = "use the config.json it came with, or build the same model";

/// Checksums of the files that a file of weights was written beside, by their names.
pub type Beside = BTreeMap<String, String>;

/// An array as a file holds it: name, type, shape, bytes.
type Content<'a> = (&'a str, Dtype, Vec<usize>, Vec<u8>);

/// A safetensors file of floats in 32 bits, or in bfloat16 where they are that, and of quantized matrices as bytes
/// `[rows, blocks of a row, bytes of a block]`. It is marked as Hecate's, and as written beside these files. The same arrays give the same bytes.
///
/// # Errors
/// [`Error::Checkpoint`] for two arrays of one name; the device's own failures.
pub fn pack<B: Backend>(
    path: &Path,
    arrays: &[(String, &Tensor<B>)],
    matrices: &[QuantizedMatrix<B>],
    beside: &[(&str, &[u8])],
) -> Result<Vec<u8>> {
    let blocks = matrices
        .iter()
        .map(|QuantizedMatrix { name, matrix }| Ok((name.as_str(), Dtype::U8, byte_shape(matrix), matrix.blocks()?)));
    seal(path, weights(arrays).chain(blocks).collect::<Result<_>>()?, beside)
}

/// As [`pack`], of what mixers remember, all in 32 bits: these hold every element as it is.
///
/// # Errors
/// As [`pack`].
pub fn pack_states<B: Backend>(path: &Path, arrays: &[(String, &Tensor<B>)]) -> Result<Vec<u8>> {
    pack_and_count(path, arrays, &[], &[])
}

/// As [`pack_states`], and whole numbers by their names.
pub(crate) fn pack_and_count<B: Backend>(
    path: &Path,
    arrays: &[(String, &Tensor<B>)],
    numbers: &[(&str, Vec<u64>)],
    beside: &[(&str, &[u8])],
) -> Result<Vec<u8>> {
    let numbers = numbers.iter().map(|(name, all)| {
        let bytes = all.iter().flat_map(|number| number.to_le_bytes()).collect();
        Ok((*name, Dtype::U64, vec![all.len()], bytes))
    });
    seal(path, floats(arrays).chain(numbers).collect::<Result<_>>()?, beside)
}

/// Arrays in 32 bits.
fn floats<'a, B: Backend>(arrays: &'a [(String, &Tensor<B>)]) -> impl Iterator<Item = Result<Content<'a>>> {
    arrays.iter().map(|(name, array)| Ok(wide(name, array, array.to_f32()?)))
}

/// An array of these elements in 32 bits.
fn wide<'a, B: Backend>(name: &'a str, array: &Tensor<B>, values: Vec<f32>) -> Content<'a> {
    let bytes = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    (name, Dtype::F32, array.shape().axes().to_vec(), bytes)
}

/// Arrays in 32 bits, but for those of bfloat16.
fn weights<'a, B: Backend>(arrays: &'a [(String, &Tensor<B>)]) -> impl Iterator<Item = Result<Content<'a>>> {
    arrays.iter().map(|(name, array)| match array.download()? {
        Host::Bf16(values) => {
            let bytes = values.iter().flat_map(|x| x.to_le_bytes()).collect();
            Ok((name.as_str(), Dtype::BF16, array.shape().axes().to_vec(), bytes))
        }
        values => Ok(wide(name, array, values.into_f32())),
    })
}

/// The file with these arrays, marked.
fn seal(path: &Path, mut contents: Vec<Content<'_>>, beside: &[(&str, &[u8])]) -> Result<Vec<u8>> {
    contents.sort_by_key(|content| content.0);
    if let Some(pair) = contents.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        let why = format!("cannot be made: two arrays are named `{}`; give each a name of its own", pair[0].0);
        return Err(Error::checkpoint(path, why));
    }
    // Digits of no file's checksum keep its place until the rest is known.
    let sums = beside.iter().map(|(name, content)| format!(" {name} {}", checksum(content)));
    let metadata = HashMap::from([(MARK.to_owned(), "0".repeat(DIGITS) + &sums.collect::<String>())]);
    let fail = |error: &dyn Display| Error::checkpoint(path, format!("cannot be made: {error}"));
    let views = contents
        .iter()
        .map(|(name, dtype, shape, bytes)| Ok((*name, TensorView::new(*dtype, shape.clone(), bytes)?)))
        .collect::<Result<Vec<_>, safetensors::SafeTensorError>>()
        .map_err(|error| fail(&error))?;
    let mut bytes = safetensors::serialize(views, Some(metadata)).map_err(|error| fail(&error))?;
    if !bytes[LENGTH..].starts_with(OPENING) {
        return Err(fail(&"its metadata does not come first"));
    }
    let sum = checksum_around(&bytes, AT);
    bytes[AT..AT + DIGITS].copy_from_slice(sum.as_bytes());
    Ok(bytes)
}

/// What stands in a file for a quantized matrix.
fn byte_shape<D: Device>(matrix: &Quantized<D>) -> Vec<usize> {
    let block = matrix.format().block_bytes();
    vec![matrix.rows(), matrix.row_bytes() / block, block]
}

/// The error of a file whose bytes are not those that were written.
fn damaged(path: &Path, why: &dyn Display) -> Error {
    Error::checkpoint(path, format!("damaged or cut short ({why}); use a copy of it, or train again"))
}

/// What a file of weights says it was written beside, once its own checksum fits; none for files of others. A checksum
/// under a key that is not Hecate's is damage too.
///
/// # Errors
/// [`Error::Checkpoint`] for a file that is damaged or cut short.
pub fn verify(path: &Path, bytes: &[u8]) -> Result<Option<Beside>> {
    let (length, rest) = header_length(path, bytes, bytes.len() as u64)?;
    let metadata = header(path, &bytes[LENGTH..LENGTH + length], rest)?;
    let none = HashMap::new();
    let entries: Vec<_> = metadata.metadata().as_ref().unwrap_or(&none).iter().collect();
    let digits = bytes.get(AT..AT + DIGITS).filter(|_| bytes[LENGTH..].starts_with(OPENING));
    let mark = || digits.is_some_and(|digits| *digits == *checksum_around(bytes, AT).as_bytes());
    match entries[..] {
        [(key, written)] if key == MARK && mark() => Ok(Some(beside(written))),
        [(key, written)] if key == UNMARKED && *written == checksum(&bytes[LENGTH + length..]) => Ok(None),
        [(key, _)] if key == MARK || key == UNMARKED => {
            let why = format!(
                "damaged or cut short, or changed by another program (its checksum does not fit its content); use a copy of it, \
                 or, where it was changed on purpose, save it again without the metadata `{key}`"
            );
            Err(Error::checkpoint(path, why))
        }
        _ => match entries.iter().find(|(key, value)| is_ours(key) || is_checksum(value)) {
            Some((key, _)) => Err(damaged(path, &format!("a checksum stands under `{key}`"))),
            // What others write there is theirs.
            None => Ok(None),
        },
    }
}

/// Whether Hecate writes such a key.
fn is_ours(key: &str) -> bool {
    [MARK, UNMARKED].contains(&key)
}

/// Whether a value begins as one of Hecate's does: with digits of a checksum.
fn is_checksum(value: &str) -> bool {
    let first = value.split(' ').next().unwrap_or_default();
    first.len().abs_diff(DIGITS) <= 1 && first.bytes().filter(u8::is_ascii_hexdigit).count() + 1 >= first.len()
}

/// Names and checksums after the file's own.
fn beside(written: &str) -> Beside {
    let words: Vec<&str> = written.split(' ').skip(1).collect();
    words.chunks_exact(2).map(|pair| (pair[0].to_owned(), pair[1].to_owned())).collect()
}

/// Arrays of a file that are stored alike.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Alike {
    /// How many there are.
    pub arrays: usize,
    /// Elements of all of them.
    pub elements: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Lengths of the rows of matrices among them.
    pub rows: BTreeSet<usize>,
}

/// How the arrays of a safetensors file are stored: `f32`, `bf16`, the names of formats. In older files all blocks are of this
/// format. The header alone is read, and must account for the file's length.
///
/// # Errors
/// [`Error::Io`]; [`Error::Checkpoint`] for a file that is damaged or cut short.
pub fn stored(path: &Path, quantization: Option<BlockFormat>) -> Result<BTreeMap<String, Alike>> {
    let (mut file, found) = files::open(path, Links::Refuse).map_err(Error::io("read", path))?;
    let all = found.len();
    let mut first = Vec::new();
    file.by_ref().take(LENGTH as u64).read_to_end(&mut first).map_err(Error::io("read", path))?;
    let (length, rest) = header_length(path, &first, all)?;
    let mut text = memory::with_capacity("weights", length)?;
    file.take(length as u64).read_to_end(&mut text).map_err(Error::io("read", path))?;
    let header = header(path, &text, rest)?;
    let mut stored = BTreeMap::<String, Alike>::new();
    for array in header.tensors().values() {
        let (name, [outer, row]) = described(array, quantization);
        let alike = stored.entry(name).or_default();
        alike.arrays += 1;
        alike.elements = alike.elements.saturating_add((outer as u64).saturating_mul(row as u64));
        alike.bytes = alike.bytes.saturating_add((array.data_offsets.1 - array.data_offsets.0) as u64);
        if array.shape.len() > 1 {
            alike.rows.insert(row);
        }
    }
    Ok(stored)
}

/// Elements of all arrays of a safetensors file, as [`stored`] tells of them.
///
/// # Errors
/// As [`stored`].
pub fn count_parameters(path: &Path, quantization: Option<BlockFormat>) -> Result<u64> {
    Ok(stored(path, quantization)?.values().map(|alike| alike.elements).fold(0, u64::saturating_add))
}

/// How an array is stored, how many rows it has, and how many elements a row. Their product was checked with the header.
fn described(array: &TensorInfo, quantization: Option<BlockFormat>) -> (String, [usize; 2]) {
    let of_bytes = |bytes: usize| BlockFormat::ALL.into_iter().find(|format| format.block_bytes() == bytes);
    let found = match array.shape[..] {
        [rows, blocks, bytes] => of_bytes(bytes).map(|format| (format, rows, blocks)),
        [rows, bytes] => quantization.map(|format| (format, rows, bytes / format.block_bytes())),
        _ => None,
    };
    match found.filter(|_| array.dtype == Dtype::U8) {
        Some((format, rows, blocks)) => (format.to_string(), [rows, blocks.saturating_mul(format.block())]),
        None => {
            let row = array.shape.last().copied().unwrap_or(1);
            let outer = array.shape.iter().rev().skip(1).product();
            (format!("{:?}", array.dtype).to_lowercase(), [outer, row])
        }
    }
}

/// Length of the header that a file's `first` bytes tell, and how many of its `all` bytes are for arrays.
fn header_length(path: &Path, first: &[u8], all: u64) -> Result<(usize, u64)> {
    let Some(length) = first.first_chunk::<LENGTH>().map(|bytes| u64::from_le_bytes(*bytes)) else {
        return Err(damaged(path, &format!("{all} bytes, where {LENGTH} tell the length of its header")));
    };
    let rest = all.saturating_sub(LENGTH as u64);
    let most = rest.min(HEADER);
    match usize::try_from(length) {
        Ok(header) if length <= most => Ok((header, rest - length)),
        _ => Err(damaged(path, &format!("a header of {length} bytes, expected at most {most}"))),
    }
}

/// What a header says of the arrays after it, of which there are `rest` bytes.
fn header(path: &Path, text: &[u8], rest: u64) -> Result<Metadata> {
    let header: Metadata = serde_json::from_slice(text).map_err(|error| damaged(path, &error))?;
    if header.data_len() as u64 != rest {
        return Err(damaged(path, &format!("{rest} bytes of arrays, expected {}", header.data_len())));
    }
    Ok(header)
}

/// The arrays of a safetensors file, in the order of `expected`; it must hold exactly these.
///
/// # Errors
/// [`Error::Checkpoint`] for a file that is damaged, or of other arrays; the device's own failures.
pub fn unpack<B: Backend>(
    device: &B,
    path: &Path,
    bytes: &[u8],
    expected: &[(String, Shape)],
) -> Result<Vec<Tensor<B>>> {
    let file = open(path, bytes, &names_of(expected))?;
    let floats = expected.iter().map(|(name, shape)| {
        let values = elements(path, &file, name, shape)?;
        Ok(Tensor::from_f32(device, shape.clone(), values)?)
    });
    floats.collect()
}

/// The arrays of a safetensors file that these parameters are, each of its own type, and their quantized matrices.
pub(crate) fn unpack_all<B: Backend>(
    device: &B,
    path: &Path,
    bytes: &[u8],
    parameters: &Parameters<B>,
) -> Result<(Vec<Tensor<B>>, Vec<Quantized<B>>)> {
    let quantized = parameters.quantized();
    let names = parameters.iter().map(|own| own.name.as_str()).chain(quantized.iter().map(|own| own.name.as_str()));
    let file = open(path, bytes, &names.collect::<Vec<_>>())?;
    let floats = parameters.iter().map(|Parameter { name, value, .. }| {
        let shape = value.shape();
        if value.dtype() == DType::Bf16 {
            let (values, _) = read(path, &file, name, shape.axes(), Dtype::BF16)?.as_chunks::<2>();
            let values = values.iter().map(|bytes| bf16::from_le_bytes(*bytes)).collect();
            return Ok(Tensor::upload(device, shape.clone(), Host::Bf16(values))?);
        }
        Ok(Tensor::from_f32(device, shape.clone(), elements(path, &file, name, shape)?)?)
    });
    let blocks = quantized.iter().map(|QuantizedMatrix { name, matrix }| {
        // In older files rows are not cut into blocks.
        let is_old = file.tensor(name).is_ok_and(|view| view.shape().len() == 2);
        let shape = if is_old { vec![matrix.rows(), matrix.row_bytes()] } else { byte_shape(matrix) };
        let blocks = read(path, &file, name, &shape, Dtype::U8)?;
        Ok(Quantized::new(device, matrix.format(), [matrix.rows(), matrix.columns()], blocks)?)
    });
    Ok((floats.collect::<Result<_>>()?, blocks.collect::<Result<_>>()?))
}

/// Names and shapes of arrays.
pub(crate) type Named = Vec<(String, Shape)>;

/// Elements of arrays of 32-bit floats in a safetensors file, and the whole numbers of these names. Numbers say which arrays
/// are `expected`, in whose order they come; the file must hold exactly these.
///
/// # Errors
/// [`Error::Checkpoint`] for a file that is damaged, or of other arrays; the errors of `expected`.
pub(crate) fn unpack_elements<const N: usize>(
    path: &Path,
    bytes: &[u8],
    names: [&str; N],
    expected: impl FnOnce(&[Vec<u64>; N]) -> Result<Named>,
) -> Result<(Vec<Vec<f32>>, [Vec<u64>; N])> {
    let file = parse(path, bytes)?;
    let mut numbers = names.map(|_| Vec::new());
    for (name, place) in names.iter().zip(&mut numbers) {
        *place = whole_numbers(path, &file, name)?;
    }
    let expected = expected(&numbers)?;
    refuse_others(path, &file, &names_of(&expected).into_iter().chain(names).collect::<Vec<_>>())?;
    let floats = expected.iter().map(|(name, shape)| elements(path, &file, name, shape));
    Ok((floats.collect::<Result<_>>()?, numbers))
}

/// Names of arrays.
fn names_of(arrays: &[(String, Shape)]) -> Vec<&str> {
    arrays.iter().map(|(name, _)| name.as_str()).collect()
}

/// A safetensors file that holds nothing but arrays of these names.
fn open<'a>(path: &Path, bytes: &'a [u8], known: &[&str]) -> Result<SafeTensors<'a>> {
    let file = parse(path, bytes)?;
    refuse_others(path, &file, known)?;
    Ok(file)
}

/// A safetensors file whose checksum fits.
fn parse<'a>(path: &Path, bytes: &'a [u8]) -> Result<SafeTensors<'a>> {
    // Before others read the header: the sum of its offsets may overflow there.
    verify(path, bytes)?;
    SafeTensors::deserialize(bytes).map_err(|error| damaged(path, &error))
}

/// Refuses a file that holds an array of another name.
fn refuse_others(path: &Path, file: &SafeTensors<'_>, known: &[&str]) -> Result<()> {
    let known: HashSet<&str> = known.iter().copied().collect();
    match file.names().into_iter().find(|name| !known.contains(name)) {
        Some(name) => {
            let why = format!("holds `{name}`, which this model does not have; {WAY_OUT}");
            Err(Error::checkpoint(path, why))
        }
        None => Ok(()),
    }
}

/// The whole numbers of this name, as many as the file says.
fn whole_numbers(path: &Path, file: &SafeTensors<'_>, name: &str) -> Result<Vec<u64>> {
    let count = file.tensor(name).map(|view| view.shape().iter().product()).unwrap_or(1);
    let (words, _) = read(path, file, name, &[count], Dtype::U64)?.as_chunks::<8>();
    Ok(words.iter().map(|word| u64::from_le_bytes(*word)).collect())
}

/// The elements of an array of 32-bit floats.
fn elements(path: &Path, file: &SafeTensors<'_>, name: &str, shape: &Shape) -> Result<Vec<f32>> {
    let (values, _) = read(path, file, name, shape.axes(), Dtype::F32)?.as_chunks::<4>();
    Ok(values.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
}

/// The bytes of an array of this name, shape and type.
fn read<'a>(path: &Path, file: &SafeTensors<'a>, name: &str, shape: &[usize], dtype: Dtype) -> Result<&'a [u8]> {
    let fail = |why: String| Error::checkpoint(path, format!("{why}; {WAY_OUT}"));
    let view = file.tensor(name).map_err(|_| fail(format!("lacks `{name}`")))?;
    if view.dtype() != dtype {
        return Err(fail(format!("`{name}` holds {:?}, expected {dtype:?}", view.dtype())));
    }
    if view.shape() != shape {
        return Err(fail(format!("`{name}` has shape {:?}, expected {}", view.shape(), Shape::from(shape))));
    }
    Ok(view.data())
}
