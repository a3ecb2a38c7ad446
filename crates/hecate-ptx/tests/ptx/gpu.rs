//! The same launches on a GPU, where there is one. What it wrote is what tests compare with their equations then.

use crate::{interpreter::Argument, require};
use hecate_core::Tensor;
use hecate_cuda::{Argument as Passed, Cuda, OwnGrid};
use hecate_ptx::Module;
use std::sync::OnceLock;

/// The first GPU; none is told of once, and fails where it is required.
fn opened() -> Option<&'static Cuda> {
    static GPU: OnceLock<Option<Cuda>> = OnceLock::new();
    let open = || Cuda::new(0).inspect_err(|error| require::skip("cuda", &error.to_string())).ok();
    GPU.get_or_init(open).as_ref()
}

/// What a kernel is given: an argument, and the bytes of the array that it is the address of, as they are before.
pub(crate) type Given = (Argument, Option<Vec<u8>>);

/// Bytes of all arrays after the launch, in the order of the arguments; none where there is no GPU that has these instructions.
pub(crate) fn launch(module: &Module, grid: [u32; 3], given: &[Given]) -> Option<Vec<Option<Vec<u8>>>> {
    // Tests go on with what the interpreter found where there is no GPU.
    let gpu = opened()?;
    let (major, minor) = gpu.properties().capability;
    // Tensor cores of 16 bits came with capability 8.0.
    if module.target().capability > 10 * major + minor {
        return None;
    }
    let kernel = gpu.load_ptx(module.text(), module.name()).expect("PTX that an assembler took");
    let arrays: Vec<_> = given.iter().map(|(_, bytes)| bytes.as_ref().map(|bytes| upload(gpu, bytes))).collect();
    // Whether an array is written is known to the kernel alone.
    let arguments = given.iter().zip(&arrays).map(|((argument, _), array)| match (argument, array) {
        (_, Some(array)) => Passed::Write(array),
        (Argument::U32(x), _) => Passed::U32(*x),
        (Argument::U64(x) | Argument::Address(x), _) => Passed::U64(*x),
    });
    let arguments: Vec<_> = arguments.collect();
    let grid = OwnGrid { blocks: grid, threads: module.block(), shared: 0 };
    // SAFETY: the interpreter ran the same text with these arguments, and found no access outside of the arrays and an end.
    #[allow(unsafe_code)]
    unsafe { kernel.launch(grid, &arguments) }.unwrap_or_else(|error| panic!("{}: {error}", module.name()));
    let download = |(array, (_, bytes)): (Option<Tensor<Cuda>>, &Given)| {
        let words = array?.to_f32().expect("an array");
        let length = bytes.as_ref()?.len();
        Some(words.iter().flat_map(|word| word.to_le_bytes()).take(length).collect())
    };
    Some(arrays.into_iter().zip(given).map(download).collect())
}

/// Bytes as words of four, of which the last may be filled up.
fn upload(gpu: &Cuda, bytes: &[u8]) -> Tensor<Cuda> {
    let word = |bytes: &[u8]| f32::from_le_bytes(std::array::from_fn(|i| bytes.get(i).copied().unwrap_or(0)));
    // Bits go there and back as they are, those of NaN too.
    let words: Vec<f32> = bytes.chunks(4).map(word).collect();
    Tensor::from_f32(gpu, [words.len()], words).expect("an array on the GPU")
}
