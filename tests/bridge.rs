//! Memories among dfdx layers.
#[test]
fn placeholder() {}
