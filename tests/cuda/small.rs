//! The least that kernels of each rule can be given, forward and back. Racecheck watches every access to shared memory, and takes
//! minutes for larger cases.

use super::{Gpu, backends, frozen::near_cpu};
use hecate_conformance::{Case, Sizes, oracle::Oracle};
use hecate_core::{
    DType, Kernel,
    rules::{
        Activation, Atlas, Comba, Delta, Dgd, Gdn2, Hebbian, Kda, Lattice, Lif, Lightning, MatrixMemory, Memora,
        MemoraMatrix, MlpMemory, Moneta, MonetaMatrix, Rwkv7, Titans, TitansMlp, Trellis, Yaad, YaadMatrix,
        YaadMomentum,
    },
};
use hecate_cpu::Cpu;

/// A sequence and head of so many tokens, with keys and values of this width.
fn case<R: Oracle>(rule: R, [tokens, width]: [usize; 2]) -> Case<R> {
    Case::new(rule, Sizes::new(1, tokens, 1, width, width), 7)
}

/// The same of a memory that goes back to an anchor.
fn anchored<R: Oracle>(rule: R, size: [usize; 2]) -> Case<R> {
    case(rule, size).anchored(5).expect("an anchor")
}

fn runs<R: Oracle>(case: Case<R>, dtype: DType)
where
    Gpu: Kernel<R>,
    Cpu: Kernel<R>,
{
    // 16-bit factors have errors of 2⁻¹¹ each.
    let least = if dtype == DType::F32 { 1e-4 } else { 8.0 / 2048.0 };
    for device in backends().iter().take(1) {
        near_cpu(device, &case, dtype, least);
    }
}

/// A test a rule, so that each can run by itself.
macro_rules! small {
    ($case:ident; $($name:ident: $dtype:ident $size:expr, $rule:expr;)*) => { $(
        #[test]
        fn $name() {
            runs($case($rule, $size), DType::$dtype);
        }
    )* };
}

/// A hidden layer four times as wide as keys.
const WIDE: MlpMemory = MlpMemory { expansion: 4, activation: Activation::Silu, residual: false, norm: false };
/// A norm behind the last matrix.
const NORMED: MlpMemory = MlpMemory { expansion: 2, activation: Activation::Silu, residual: false, norm: true };

small! {
    case;
    // Weights in registers, a token at a time.
    exact_titans_mlp: Bf16 [3, 32], TitansMlp::default();
    exact_titans_mlp_64: Bf16 [3, 64], TitansMlp::default();
    exact_titans_mlp_halves: F16 [3, 64], TitansMlp::default();
    exact_titans_mlp_wide: F32 [3, 64], TitansMlp::default();
    exact_moneta: Bf16 [3, 32], <Moneta>::default();
    exact_memora: Bf16 [3, 32], <Memora>::default();
    exact_yaad: Bf16 [3, 32], <Yaad>::default();
    exact_yaad_momentum: Bf16 [3, 32], <YaadMomentum>::default();
    exact_moneta_64: Bf16 [3, 64], <Moneta>::default();
    exact_memora_64: Bf16 [3, 64], <Memora>::default();
    exact_yaad_64: Bf16 [3, 64], <Yaad>::default();
    exact_yaad_momentum_64: Bf16 [3, 64], <YaadMomentum>::default();
    // 256 hidden units, for which one block has no room.
    exact_wide_titans_mlp: Bf16 [3, 64], TitansMlp { memory: WIDE, ..TitansMlp::default() };
    exact_wide_moneta: Bf16 [3, 64], Moneta { memory: WIDE, ..<Moneta>::default() };
    exact_wide_memora: Bf16 [3, 64], Memora { memory: WIDE, ..<Memora>::default() };
    exact_wide_yaad: Bf16 [3, 64], Yaad { memory: WIDE, ..<Yaad>::default() };
    exact_wide_yaad_momentum: Bf16 [3, 64], YaadMomentum { memory: WIDE, ..<YaadMomentum>::default() };
    // General kernels, a token at a time.
    tokens_titans_mlp: F32 [3, 12], TitansMlp { memory: NORMED, ..TitansMlp::default() };
    tokens_moneta: F32 [3, 12], Moneta { memory: NORMED, ..<Moneta>::default() };
    tokens_memora: F32 [3, 12], Memora { memory: NORMED, ..<Memora>::default() };
    tokens_yaad: F32 [3, 12], Yaad { memory: NORMED, ..<Yaad>::default() };
    tokens_yaad_momentum: F32 [3, 12], YaadMomentum { memory: NORMED, ..<YaadMomentum>::default() };
    matrix_moneta: F32 [3, 12], <MonetaMatrix>::default();
    matrix_memora: F32 [3, 12], <MemoraMatrix>::default();
    matrix_yaad: F32 [3, 12], <YaadMatrix>::default();
    // Segments beside each other, and the states that they pass on.
    passed_states: F32 [5184, 32], Delta::default();
    passed_states_momentum: F32 [5184, 32], Titans::default();
    // Frozen groups by clusters of blocks, with factors of 32 bits.
    groups_titans_mlp: F32 [5, 16], TitansMlp { frozen: Some(4), ..TitansMlp::default() };
    groups_yaad: F32 [5, 16], Yaad { frozen: Some(4), ..<Yaad>::default() };
    groups_yaad_momentum: F32 [5, 16], YaadMomentum { frozen: Some(4), ..<YaadMomentum>::default() };
    groups_moneta: F32 [5, 16], Moneta { frozen: Some(4), ..<Moneta>::default() };
    groups_memora: F32 [5, 16], Memora { frozen: Some(4), ..<Memora>::default() };
    groups_titans_mlp_64: F32 [17, 64], TitansMlp { frozen: Some(16), ..TitansMlp::default() };
    groups_moneta_64: F32 [17, 64], Moneta { frozen: Some(16), ..<Moneta>::default() };
    groups_memora_64: F32 [17, 64], Memora { frozen: Some(16), ..<Memora>::default() };
    groups_normed: F32 [17, 16], TitansMlp { frozen: Some(16), memory: NORMED, ..TitansMlp::default() };
    groups_normed_moneta: F32 [17, 32], Moneta { frozen: Some(16), memory: NORMED, ..<Moneta>::default() };
    groups_normed_matrix: F32 [17, 16], YaadMatrix {
        frozen: Some(16), memory: MatrixMemory { norm: true, residual: true }, ..<YaadMatrix>::default()
    };
    // The same as halves in shared memory.
    halves_normed: Bf16 [17, 32], TitansMlp { frozen: Some(16), memory: NORMED, ..TitansMlp::default() };
    halves_normed_wide: Bf16 [65, 64], TitansMlp {
        frozen: Some(64), memory: MlpMemory { norm: true, ..WIDE }, ..TitansMlp::default()
    };
    halves_titans_mlp: Bf16 [17, 32], TitansMlp { frozen: Some(16), ..TitansMlp::default() };
    halves_titans_mlp_wide: Bf16 [65, 64], TitansMlp { frozen: Some(64), memory: WIDE, ..TitansMlp::default() };
    halves_titans_mlp_64: Bf16 [65, 64], TitansMlp { frozen: Some(64), ..TitansMlp::default() };
    halves_titans_mlp_128: Bf16 [17, 128], TitansMlp { frozen: Some(16), memory: WIDE, ..TitansMlp::default() };
    halves_yaad: Bf16 [17, 32], Yaad { frozen: Some(16), ..<Yaad>::default() };
    halves_moneta: Bf16 [17, 32], Moneta { frozen: Some(16), ..<Moneta>::default() };
    halves_memora: Bf16 [17, 32], Memora { frozen: Some(16), ..<Memora>::default() };
    // Slots and windows, a token at a time and in groups.
    tokens_lattice: F32 [3, 12], Lattice::default();
    tokens_lif: F32 [3, 12], Lif::default();
    tokens_kda: F32 [3, 12], Kda::default();
    tokens_kda_halves: F16 [3, 32], Kda::default();
    tokens_gdn2: F32 [3, 12], Gdn2::default();
    tokens_comba: F32 [3, 12], Comba::default();
    tokens_rwkv7: F32 [3, 12], Rwkv7::default();
    tokens_trellis: F32 [3, 12], Trellis::default();
    tokens_atlas: F32 [3, 12], Atlas::default();
    groups_lattice: F32 [5, 32], Lattice { frozen: Some(4), ..Lattice::default() };
    groups_lattice_64: F32 [5, 64], Lattice { frozen: Some(4), ..Lattice::default() };
    groups_trellis: F32 [5, 32], Trellis { frozen: Some(4), ..Trellis::default() };
    groups_atlas: Bf16 [5, 64], Atlas { frozen: Some(4), newton_schulz: 1, ..Atlas::default() };
    // Linear rules in chunks of 64 tokens, by factors of 16 bits and of 32, and a token at a time.
    chunks_hebbian: Bf16 [130, 64], Hebbian::default();
    chunks_hebbian_128: Bf16 [130, 128], Hebbian::default();
    chunks_hebbian_wide: F32 [70, 64], Hebbian::default();
    chunks_lightning_128: Bf16 [130, 128], Lightning::default();
    chunks_delta: Bf16 [130, 64], Delta::default();
    chunks_delta_128: Bf16 [130, 128], Delta::default();
    chunks_delta_wide: F32 [70, 64], Delta::default();
    chunks_titans: Bf16 [130, 64], Titans::default();
    chunks_titans_128: Bf16 [130, 128], Titans::default();
    chunks_titans_wide: F32 [70, 64], Titans::default();
    chunks_dgd: Bf16 [130, 64], Dgd::default();
    chunks_dgd_wide: F32 [70, 64], Dgd::default();
    chunks_delta_256: Bf16 [70, 256], Delta::default();
    chunks_delta_wide_128: F32 [70, 128], Delta::default();
    chunks_titans_wide_32: F32 [70, 32], Titans::default();
    chunks_titans_wide_128: F32 [70, 128], Titans::default();
    tokens_hebbian: F32 [3, 17], Hebbian::default();
    tokens_delta_128: F32 [3, 128], Delta::default();
    tokens_delta_256: F32 [3, 256], Delta::default();
    tokens_delta_300: F32 [3, 300], Delta::default();
    tokens_titans_128: F32 [3, 128], Titans::default();
    tokens_titans_256: F32 [3, 256], Titans::default();
    tokens_titans_300: F32 [3, 300], Titans::default();
    tokens_delta: F32 [3, 17], Delta::default();
    tokens_titans: F32 [3, 17], Titans::default();
    tokens_dgd: F32 [3, 17], Dgd::default();
}

small! {
    anchored;
    anchored_lattice: F32 [5, 32], Lattice { frozen: Some(4), ..Lattice::default() };
    anchored_lattice_64: F32 [5, 64], Lattice { frozen: Some(4), ..Lattice::default() };
    anchored_trellis: F32 [5, 32], Trellis { frozen: Some(4), ..Trellis::default() };
    anchored_exact: Bf16 [3, 32], TitansMlp::default();
    anchored_groups: F32 [5, 16], Yaad { frozen: Some(4), ..<Yaad>::default() };
    anchored_halves: Bf16 [17, 32], Yaad { frozen: Some(16), ..<Yaad>::default() };
}
