//! The WebGPU column, on the adapter that `HECATE_WGPU_ADAPTER` names, else on the best one.
