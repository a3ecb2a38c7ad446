//! Small models of other people's families, as their own code wrote them: `make.py` made those in `models`, and what is expected
//! of each, with transformers and flash-linear-attention.

mod adapters;
mod conversations;
mod damage;
mod examples;
mod files;
mod gguf;
mod largest;
mod learning;
mod scores;
mod sessions;
mod turns;

use std::{fs, path::PathBuf};
use tempfile::TempDir;

/// Every family, in the forms that its files have.
const MODELS: [&str; 19] = [
    "llama",
    "llama_bf16",
    "delta_net",
    "gated_deltanet",
    "gated_deltanet_f16",
    "gated_deltanet_grouped",
    "olmo_hybrid",
    "olmo_hybrid_rotary",
    "olmo_hybrid_grouped",
    "lfm2",
    "mamba2",
    "granitemoehybrid",
    "granitemoehybrid_rotary",
    "falcon_h1",
    "falcon_h1_gate_first",
    "falcon_h1_norm_first",
    "qwen3_5",
    "qwen3_5_text",
    "qwen3_5_grouped",
];
/// Those beside which there is an adapter.
const ADAPTED: [&str; 2] = ["llama", "qwen3_5"];
/// One of attention alone, and those of other layers: what a GPU in software has time for.
const FEW: [&str; 6] = ["llama", "qwen3_5", "qwen3_5_grouped", "mamba2", "granitemoehybrid", "falcon_h1"];

/// Those whose matrices are bfloat16 in their files.
const BFLOAT16: [&str; 4] = ["llama_bf16", "qwen3_5_text", "granitemoehybrid_rotary", "falcon_h1_norm_first"];

/// A model's folder.
fn folder(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "released/models", name].iter().collect()
}

/// A copy of a model's folder, without what is expected of it.
fn copy(name: &str) -> TempDir {
    let copy = tempfile::tempdir().expect("a folder");
    for entry in fs::read_dir(folder(name)).expect("a model") {
        let path = entry.expect("a file").path();
        if !path.ends_with("expected.safetensors") {
            fs::copy(&path, copy.path().join(path.file_name().expect("a name"))).expect("room");
        }
    }
    copy
}

/// The tests of scores on one backend, whose `open` says why there is no device.
macro_rules! scores_on {
    ($backend:ident, $models:expr, $open:expr) => {
        mod $backend {
            use crate::{scores, sessions};

            #[test]
            fn scores_are_those_of_the_familys_own_code() {
                super::with($open, |device| scores::are_those_of_the_familys_own_code(device, &$models));
            }

            #[test]
            fn going_on_token_by_token_is_the_whole() {
                super::with($open, |device| scores::go_on_token_by_token(device, &$models));
            }

            #[test]
            fn gradients_are_those_of_the_familys_own_code() {
                super::with($open, |device| scores::have_the_gradients_of_the_familys_own_code(device, &$models));
            }

            #[test]
            fn texts_are_the_same_in_company() {
                super::with($open, |device| sessions::are_the_same_in_company(device, &$models));
            }

            #[test]
            fn texts_are_the_same_with_a_draft() {
                super::with($open, |device| sessions::are_the_same_with_a_draft(device, &$models));
            }

            #[test]
            fn texts_go_on_from_files() {
                super::with($open, |device| sessions::go_on_from_files(device, &$models));
            }

            #[test]
            fn adapters_are_those_of_peft() {
                super::with($open, |device| crate::adapters::are_those_of_peft(device));
            }

            #[test]
            fn matrices_in_16_bits_are_nearly_as_good() {
                super::with($open, |device| scores::are_nearly_so_in_16_bits(device, &crate::BFLOAT16));
            }
        }
    };
}

/// Runs a test on a device; where there is none, that is said.
fn with<D: hecate_core::Device>(opened: hecate_core::Result<D>, test: impl FnOnce(&D)) {
    match opened {
        Ok(device) => test(&device),
        Err(why) => hecate_conformance::require::skip(D::NAME, &why.to_string()),
    }
}

scores_on!(cpu, crate::MODELS, Ok(hecate_cpu::Cpu::new()));
scores_on!(wgpu, crate::FEW, hecate_wgpu::Wgpu::new(&hecate_wgpu::Selection::Default));
scores_on!(cuda, crate::MODELS, hecate_cuda::Cuda::new(0));
