//! The table of rules and backends in README.md is the one that the code gives.

use hecate_core::{Kernel, Rule, rules::*};
use hecate_cpu::Cpu;
use hecate_cuda::Cuda;
use hecate_wgpu::Wgpu;
use std::{fs, path::Path};

const BEGIN: &str = "<!-- matrix -->";
const END: &str = "<!-- /matrix -->";

/// One row; that it compiles is what it says.
fn row<R: Rule>() -> String
where
    Cpu: Kernel<R>,
    Cuda: Kernel<R>,
    Wgpu: Kernel<R>,
{
    let cell = "forward, backward, infer";
    format!("| `{}` | {cell} | {cell} | {cell} |\n", R::NAME)
}

fn table() -> String {
    let mut table = String::from("| rule | cpu | cuda | wgpu |\n|---|---|---|---|\n");
    macro_rules! rows {
        ($($rule:ident),*) => { $(table.push_str(&row::<$rule>());)* };
    }
    hecate_core::for_each_rule!(rows);
    table
}

#[test]
fn readme_shows_the_matrix() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
    let text = fs::read_to_string(&path).expect("README.md beside the workspace's Cargo.toml");
    let (before, rest) = text.split_once(BEGIN).unwrap_or_else(|| panic!("README.md has no line `{BEGIN}`"));
    let (block, after) = rest.split_once(END).unwrap_or_else(|| panic!("README.md has no line `{END}`"));
    let wanted = format!("\n{}", table());
    if block == wanted {
        return;
    }
    assert!(
        std::env::var_os("UPDATE").is_some(),
        "the table in README.md is not the code's; `UPDATE=1 cargo test -p hecate-tests --test matrix` rewrites it.\n\
         README.md has:{block}\nthe code gives:{wanted}"
    );
    fs::write(&path, format!("{before}{BEGIN}{wanted}{END}{after}")).expect("README.md can be written");
}
