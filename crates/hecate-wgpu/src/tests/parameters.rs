//! Parameters of kernels: naga puts every field of their WGSL where Rust does. No adapter is needed.

use crate::{
    parameters::{Laid, Parameters, parameters, vec2, vec4},
    sources::ALL,
};
use naga::{AddressSpace, Module, TypeInner, front::wgsl};
use std::collections::{BTreeMap, BTreeSet};

/// Where naga puts a field of another size, or in another place, than Rust. A field may be shorter: of the words that all
/// rules have room for, each names its own.
fn difference(laid: &Laid, module: &Module) -> Option<String> {
    let found = module.types.iter().find(|(_, of)| of.name.as_deref() == Some(laid.name));
    let Some(TypeInner::Struct { members, .. }) = found.map(|(_, of)| &of.inner) else {
        return Some(format!("`{}` is not there", laid.name));
    };
    let fields = members.iter().map(|member| {
        let bytes = module.types[member.ty].inner.size(module.to_ctx());
        (member.name.as_deref().unwrap_or_default(), member.offset as usize, bytes as usize)
    });
    let fields: Vec<_> = fields.collect();
    let same = |(rust, wgsl): (&(&str, usize, usize), &(&str, usize, usize))| {
        rust.0 == wgsl.0 && rust.1 == wgsl.1 && rust.2 >= wgsl.2
    };
    let agree = fields.len() == laid.fields.len() && laid.fields.iter().zip(&fields).all(same);
    (!agree).then(|| format!("Rust has {:?}, WGSL {fields:?}", laid.fields))
}

/// Structures that tests declare for themselves.
const OF_TESTS: [&str; 3] = ["Apart", "Ignored", "TooMany"];

/// The name of the structure that is at binding 0.
fn uniform(module: &Module) -> Option<String> {
    let all = module.global_variables.iter();
    let uniform = all.map(|(_, variable)| variable).find(|variable| variable.space == AddressSpace::Uniform)?;
    module.types[uniform.ty].name.clone()
}

/// Every structure is in some source, and lies there as Rust hands it over. Sources have no other uniforms.
#[test]
fn wgsl_takes_what_rust_hands_over() {
    let sources: BTreeMap<_, _> = ALL.iter().copied().flatten().map(|kernel| (kernel.source.name, kernel)).collect();
    let (mut different, mut seen) = (Vec::new(), BTreeSet::new());
    for (source, kernel) in sources {
        let module = match wgsl::parse_str(&kernel.text()) {
            Ok(module) => module,
            Err(error) => {
                different.push(format!("{source}: {error}"));
                continue;
            }
        };
        let of_source = |laid: &&Laid| kernel.source.parts.contains(&laid.wgsl);
        let all: Vec<_> = inventory::iter::<Laid>.into_iter().filter(of_source).collect();
        let taken = uniform(&module);
        assert!(all.iter().any(|laid| Some(laid.name) == taken.as_deref()), "{source} takes {taken:?}");
        different.extend(all.iter().filter_map(|laid| Some(format!("{source}: {}", difference(laid, &module)?))));
        seen.extend(all.iter().map(|laid| laid.wgsl));
    }
    assert!(different.is_empty(), "{different:#?}");
    let unseen = |laid: &&Laid| !OF_TESTS.contains(&laid.name) && !seen.contains(laid.wgsl);
    let unseen: Vec<_> = inventory::iter::<Laid>.into_iter().filter(unseen).map(|laid| laid.name).collect();
    assert!(unseen.is_empty(), "{unseen:?} are in no source");
}

parameters! {
    /// WGSL leaves a gap in front of the vector, and Rust none.
    struct Apart {
        count: u32,
        key: vec2<u32>,
        gates: vec4<f32>,
    }
}

/// The text has fields in their order, and what lies elsewhere is found.
#[test]
fn differences_are_found() {
    assert_eq!(Apart::WGSL, "struct Apart {\n    count: u32,\n    key: vec2<u32>,\n    gates: vec4<f32>,\n}\n");
    let laid = inventory::iter::<Laid>.into_iter().find(|laid| laid.name == OF_TESTS[0]).expect("it is there");
    let module = |text: &str| wgsl::parse_str(text).expect("WGSL");
    let why = difference(laid, &module(Apart::WGSL)).expect("a difference");
    assert!(why.contains(r#"Rust has [("count", 0, 4), ("key", 4, 8), ("gates", 12, 16)]"#), "{why}");
    assert!(why.contains(r#"WGSL [("count", 0, 4), ("key", 8, 8), ("gates", 16, 16)]"#), "{why}");
    // As Rust lays it out; then a field more, another order, another name, another structure.
    let own = "struct Apart { count: u32, key: u32, more: u32, gates: u32 }";
    const FIELDS: &[(&str, usize, usize)] = &[("count", 0, 4), ("key", 4, 4), ("more", 8, 4), ("gates", 12, 4)];
    let laid = Laid { name: OF_TESTS[0], wgsl: own, fields: FIELDS };
    assert_eq!(difference(&laid, &module(own)), None);
    for (from, to) in [
        ("gates: u32", "gates: u32, last: u32"),
        ("count", "counts"),
        ("more: u32", "more: vec2<f32>"),
        ("Apart", "Other"),
    ] {
        assert!(difference(&laid, &module(&own.replace(from, to))).is_some(), "{to}");
    }
}
