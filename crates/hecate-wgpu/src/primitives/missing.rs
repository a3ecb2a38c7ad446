//! Primitives that are not written yet.

use crate::{Wgpu, error::unsupported};
use hecate_core::{Result, Tensor, primitives::*};

impl Attention for Wgpu {
    fn attention(
        &self,
        _dims: &AttentionDims,
        _inputs: &AttentionInputs<Tensor<Self>>,
    ) -> Result<(Tensor<Self>, Tensor<Self>)> {
        Err(missing("attention"))
    }

    fn attention_backward(
        &self,
        _dims: &AttentionDims,
        _inputs: &AttentionInputs<Tensor<Self>>,
        _y: &Tensor<Self>,
        _lse: &Tensor<Self>,
        _dy: &Tensor<Self>,
        _dcache: Option<&Cache<Tensor<Self>>>,
    ) -> Result<AttentionInputs<Tensor<Self>>> {
        Err(missing("attention_backward"))
    }

    fn attention_cache(
        &self,
        _dims: &AttentionDims,
        _inputs: &AttentionInputs<Tensor<Self>>,
    ) -> Result<Cache<Tensor<Self>>> {
        Err(missing("attention_cache"))
    }
}

impl Conv for Wgpu {
    fn conv(
        &self,
        _dims: &ConvDims,
        _x: &Tensor<Self>,
        _weight: &Tensor<Self>,
        _state: &Tensor<Self>,
    ) -> Result<(Tensor<Self>, Tensor<Self>)> {
        Err(missing("conv"))
    }

    fn conv_backward(
        &self,
        _dims: &ConvDims,
        _x: &Tensor<Self>,
        _weight: &Tensor<Self>,
        _state: &Tensor<Self>,
        _dy: &Tensor<Self>,
        _dfinal: Option<&Tensor<Self>>,
    ) -> Result<(Tensor<Self>, Tensor<Self>, Tensor<Self>)> {
        Err(missing("conv_backward"))
    }
}

impl Embedding for Wgpu {
    fn embedding(&self, _table: &Tensor<Self>, _ids: &Tensor<Self>) -> Result<Tensor<Self>> {
        Err(missing("embedding"))
    }

    fn embedding_backward(&self, _vocabulary: usize, _ids: &Tensor<Self>, _dy: &Tensor<Self>) -> Result<Tensor<Self>> {
        Err(missing("embedding_backward"))
    }
}

impl Features for Wgpu {
    fn poly2(&self, _coefficients: [f32; 3], _x: &Tensor<Self>) -> Result<Tensor<Self>> {
        Err(missing("poly2"))
    }

    fn poly2_backward(&self, _coefficients: [f32; 3], _x: &Tensor<Self>, _dy: &Tensor<Self>) -> Result<Tensor<Self>> {
        Err(missing("poly2_backward"))
    }
}

impl Matmul for Wgpu {
    fn matmul(&self, _dims: MatmulDims, _a: &Tensor<Self>, _b: &Tensor<Self>) -> Result<Tensor<Self>> {
        Err(missing("matmul"))
    }
}

impl Norm for Wgpu {
    fn rms_norm(
        &self,
        _epsilon: f32,
        _x: &Tensor<Self>,
        _weight: &Tensor<Self>,
    ) -> Result<(Tensor<Self>, Tensor<Self>)> {
        Err(missing("rms_norm"))
    }

    fn rms_norm_backward(
        &self,
        _x: &Tensor<Self>,
        _weight: &Tensor<Self>,
        _inverse: &Tensor<Self>,
        _dy: &Tensor<Self>,
    ) -> Result<(Tensor<Self>, Tensor<Self>)> {
        Err(missing("rms_norm_backward"))
    }

    fn l2_norm(&self, _epsilon: f32, _x: &Tensor<Self>) -> Result<(Tensor<Self>, Tensor<Self>)> {
        Err(missing("l2_norm"))
    }

    fn l2_norm_backward(&self, _x: &Tensor<Self>, _inverse: &Tensor<Self>, _dy: &Tensor<Self>) -> Result<Tensor<Self>> {
        Err(missing("l2_norm_backward"))
    }
}

impl Rotary for Wgpu {
    fn rotary(&self, _dims: &RotaryDims, _x: &Tensor<Self>) -> Result<Tensor<Self>> {
        Err(missing("rotary"))
    }
}

fn missing(what: &'static str) -> hecate_core::Error {
    unsupported(what, "there is no kernel yet")
}
