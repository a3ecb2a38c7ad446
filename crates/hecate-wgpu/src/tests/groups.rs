//! Which memories go by frozen groups.

use super::open;
use crate::deep::Groups;
use hecate_core::{
    Dims,
    families::{DeepRule, DeepSpec},
    rules::{MlpMemory, TitansMlp},
};

/// Workgroups of a dimension and one buffer bound the width of a memory; wider ones go token by token.
#[test]
fn wide_memories_go_by_tokens() {
    let Some(device) = open() else { return };
    let spec = |expansion| -> DeepSpec {
        let memory = MlpMemory { expansion, ..TitansMlp::default().memory };
        TitansMlp { memory, frozen: Some(16), ..TitansMlp::default() }.spec()
    };
    let goes =
        |expansion, width| Groups::new(&device, spec(expansion), 0, true, &Dims::new(1, 64, 1, width, width)).is_some();
    assert!(goes(4, 64) && goes(1, 300));
    // States of 65,536 times 64 elements.
    assert!(!goes(4, 512));
    assert!(!goes(65_536, 1));
}
