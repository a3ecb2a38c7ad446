//! Attention on the tensor cores.

use super::backends;
use hecate_conformance::{Array, Random, checks::primitive, primitive_cases};
use hecate_core::{
    DType, Result, Sequences, Tensor,
    primitives::{self, AttentionInputs, AttentionOptions},
};
use hecate_cuda::Cuda;

/// Tokens, heads and width of a plain call.
const SIZES: [usize; 4] = [1, 200, 2, 64];

/// Several tiles of everything, within twice what rounding costs the CPU column.
fn narrow_tiles(dtype: DType) {
    let (known, cases) = (primitive_cases::attention_in_narrow_tiles(), primitive_cases::attention_in_narrow_tiles());
    primitive::rounding_with(&hecate_cpu::Cpu::new(), &known, &backends(), &cases, dtype);
}

#[test]
fn narrow_tiles_of_bfloat16() {
    narrow_tiles(DType::Bf16);
}

#[test]
fn narrow_tiles_of_halves() {
    narrow_tiles(DType::F16);
}

/// The same widths in 32 bits, by the kernels that do without tensor cores.
#[test]
fn narrow_tiles_in_32_bits() {
    let (cpu, backends) = (hecate_cpu::Cpu::new(), backends());
    let known = primitive_cases::attention_in_narrow_tiles();
    primitive::agrees_with(&cpu, &known, &backends, &primitive_cases::attention_in_narrow_tiles());
}

/// `y`, `lse`, `dq`, `dk` and `dv` of a call without cache and prefix.
fn plain(device: &Cuda, arrays: &[Array; 4], window: usize) -> Result<Vec<Array>> {
    let x = arrays.iter().map(|x| x.upload(device, DType::Bf16)).collect::<Result<Vec<Tensor<Cuda>>>>()?;
    let inputs = AttentionInputs { q: x[0].clone(), k: x[1].clone(), v: x[2].clone(), cache: None, prefix: None };
    let options = AttentionOptions { window, scale: 0.125 };
    let sequences = Sequences::batch(SIZES[0], SIZES[1]);
    let primitives::Attended { y, pass } = primitives::attention(options, &sequences, inputs)?;
    let lse = pass.lse().clone();
    let grads = pass.backward(&x[3], None)?;
    [&y, &lse, &grads.q, &grads.k, &grads.v].into_iter().map(Array::download).collect()
}

/// The same call gives the same bits, and another stream too.
#[test]
fn bits_repeat() {
    for device in backends() {
        let mut random = Random::new(3);
        let arrays: [Array; 4] = std::array::from_fn(|_| random.normals(SIZES));
        let first = plain(&device, &arrays, 150).unwrap();
        for again in [plain(&device, &arrays, 150).unwrap(), plain(&super::another(), &arrays, 150).unwrap()] {
            let bits =
                |all: &[Array]| -> Vec<u64> { all.iter().flat_map(|x| x.values.iter().map(|x| x.to_bits())).collect() };
            assert_eq!(bits(&first), bits(&again));
        }
    }
}

/// A score that is no number makes none of what sees its key, and of nothing else.
#[test]
fn not_a_number_comes_through() {
    let [_, tokens, heads, width] = SIZES;
    for device in backends() {
        let mut random = Random::new(4);
        let mut arrays: [Array; 4] = std::array::from_fn(|_| random.normals(SIZES));
        // Key 70 of head 1.
        arrays[1].values[(70 * heads + 1) * width] = f64::NAN;
        let found = plain(&device, &arrays, 50).unwrap();
        for row in 0..tokens * heads {
            let sees = row % heads == 1 && (70..120).contains(&(row / heads));
            assert_eq!(found[1].values[row].is_nan(), sees, "lse of row {row}");
            let y = &found[0].values[row * width..(row + 1) * width];
            assert!(y.iter().all(|y| y.is_nan() == sees), "y of row {row}");
        }
    }
}
