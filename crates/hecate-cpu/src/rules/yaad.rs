//! Huber's error, decay, with and without momentum.

use hecate_core::rules::{Yaad, YaadMatrix, YaadMomentum};

crate::deep::cells!(Yaad, YaadMatrix, YaadMomentum);
