//! Products of f16 by cooperative matrices: small squares that a subgroup holds and multiplies together, on units of a GPU
//! that do nothing else. Products of two halves are exact in 32 bits, in which sums are made.

use super::matmul::{MatmulArgs, MatmulTiling};
use crate::{
    Wgpu,
    adapter::CooperativeMatrices,
    launch::{Binding, Kernel, PRELUDE, WgslSource},
    parameters::Parameters,
};
use hecate_core::{
    DType, Result, Tensor,
    primitives::{MatmulDims, Transpose},
};

/// The kernel, whatever the side of its matrices.
const TEXT: &str = include_str!("matmul_cooperative.wgsl");
/// Roles of matrices with sides of 16 and of 8: what goes first, because it asks things of the language.
pub(crate) const ROLES: [&str; 2] = [
    "enable f16;\nenable wgpu_cooperative_matrix;\nconst SIDE = 16u;\nalias FactorA = coop_mat16x16<f16, A>;\n\
     alias FactorB = coop_mat16x16<f16, B>;\nalias Sums = coop_mat16x16<f32, C>;",
    "enable f16;\nenable wgpu_cooperative_matrix;\nconst SIDE = 8u;\nalias FactorA = coop_mat8x8<f16, A>;\n\
     alias FactorB = coop_mat8x8<f16, B>;\nalias Sums = coop_mat8x8<f32, C>;",
];
/// Sides of the matrices, the larger first.
pub(crate) const SIDES: [u32; 2] = [16, 8];
static SOURCES: [WgslSource; 2] = [
    WgslSource { name: "matmul_cooperative_16", parts: &[ROLES[0], PRELUDE, MatmulArgs::WGSL, TEXT] },
    WgslSource { name: "matmul_cooperative_8", parts: &[ROLES[1], PRELUDE, MatmulArgs::WGSL, TEXT] },
];

/// Matrices along a side of a subgroup's square, the most first.
const REACHES: [u32; 2] = [4, 2];

/// For the test that compiles every kernel: both sides, both reaches, both ways to store each operand.
pub(crate) const KERNELS: &[Kernel<'static>] = &{
    const CONSTANTS: [[(&str, u32); 4]; 8] = {
        let mut all = [constants(32, 0, Transpose { a: false, b: false }); 8];
        let mut i = 0;
        while i < all.len() {
            all[i] = constants(32, REACHES[i / 4], Transpose { a: i / 2 % 2 == 1, b: i % 2 == 1 });
            i += 1;
        }
        all
    };
    let mut all = [kernel(0, &CONSTANTS[0]); 16];
    let mut i = 0;
    while i < all.len() {
        all[i] = kernel(i / 8, &CONSTANTS[i % 8]);
        i += 1;
    }
    all
};

const fn kernel<'a>(source: usize, constants: &'a [(&'static str, u32)]) -> Kernel<'a> {
    Kernel { source: &SOURCES[source], entry: "matmul_cooperative", constants }
}

/// What the kernel leaves open.
const fn constants(lanes: u32, reach: u32, stored: Transpose) -> [(&'static str, u32); 4] {
    [("LANES", lanes), ("REACH", reach), ("A_DEEP", !stored.a as u32), ("B_DEEP", stored.b as u32)]
}

/// A product that goes by such matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CooperativeProduct {
    matrices: CooperativeMatrices,
    reach: u32,
    tiling: MatmulTiling,
}

impl CooperativeProduct {
    /// None where the device does not do so, or where a tile or a matrix would be cut at an edge.
    pub(super) fn new(device: &Wgpu, dims: &MatmulDims, [a, b]: [&Tensor<Wgpu>; 2]) -> Option<Self> {
        let halves = a.dtype() == DType::F16 && b.dtype() == DType::F16;
        halves.then(|| device.cooperative_matrices()).flatten().and_then(|matrices| Self::fitting(matrices, dims))
    }

    /// With the largest tiles that leave no rest.
    fn fitting(matrices: CooperativeMatrices, dims: &MatmulDims) -> Option<Self> {
        let fits = |side: u32| dims.rows.is_multiple_of(side as usize) && dims.columns.is_multiple_of(side as usize);
        // Parts of sums are multiples of 16 terms too.
        if dims.inner == 0 || !dims.inner.is_multiple_of(matrices.side as usize) {
            return None;
        }
        // A tile is two squares wide.
        let reach = REACHES.into_iter().find(|reach| fits(2 * reach * matrices.side))?;
        let tiling = MatmulTiling::of_side(2 * reach * matrices.side, dims)?;
        Some(Self { matrices, reach, tiling })
    }

    /// The product in 32 bits.
    #[expect(unsafe_code, reason = "checks would branch around matrices, and keep loops from being unrolled")]
    pub(super) fn run(&self, device: &Wgpu, dims: &MatmulDims, [a, b]: [&Tensor<Wgpu>; 2]) -> Result<Tensor<Wgpu>> {
        let CooperativeMatrices { side, lanes } = self.matrices;
        let constants = constants(lanes, self.reach, dims.transpose);
        let kernel = kernel(usize::from(side != SIDES[0]), &constants);
        device.parts((&self.tiling, dims), DType::F32, |args, parts| {
            let arrays = [Binding::Read(a), Binding::Read(b), Binding::Write(parts)];
            // SAFETY: `fitting` has seen that tiles and matrices cover the product without a rest, so every element of a
            // matrix is one of its array. The loop counts terms, and the kernel divides by counts that are not zero.
            unsafe { device.launch_unchecked(&kernel, (args.groups as usize, 1, 1), args, &arrays) }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever is not covered goes another way.
    #[test]
    fn tiles_leave_no_rest() {
        let reach = |side, [rows, inner, columns]: [usize; 3]| {
            let dims = MatmulDims { batch: 2, rows, inner, columns, transpose: Transpose::default() };
            CooperativeProduct::fitting(CooperativeMatrices { side, lanes: 32 }, &dims).map(|product| product.reach)
        };
        assert_eq!(reach(16, [256, 48, 128]), Some(4));
        assert_eq!(reach(16, [64, 16, 128]), Some(2));
        assert_eq!(reach(8, [64, 16, 128]), Some(4));
        assert_eq!(reach(8, [32, 8, 96]), Some(2));
        for sizes in [[32, 16, 128], [64, 8, 64], [64, 40, 64], [65, 16, 64], [64, 0, 64]] {
            assert_eq!(reach(16, sizes), None, "{sizes:?}");
        }
    }
}
