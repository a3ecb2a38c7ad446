//! Every kernel, as naga sees it: no adapter is needed.

use crate::{
    deep::groups::cooperative::PACK_TEXT,
    launch::Kernel,
    launch::WORKGROUP,
    linear::scan::COLUMN_SUM,
    primitives::{attention::ROWS, matmul_cooperative::ROLES},
    sources::ALL,
    stored::F16,
};
use naga::{
    front::wgsl,
    valid::{Capabilities, ValidationFlags, Validator},
};
use std::path::Path;

/// What a kernel may use that not every adapter has.
fn optional(kernel: &Kernel<'_>) -> Capabilities {
    let of =
        |part, capabilities| if kernel.source.parts.contains(&part) { capabilities } else { Capabilities::empty() };
    let matrices = Capabilities::SHADER_FLOAT16 | Capabilities::COOPERATIVE_MATRIX | Capabilities::SUBGROUP;
    of(F16, Capabilities::SHADER_FLOAT16)
        | of(PACK_TEXT, Capabilities::SUBGROUP | Capabilities::SHADER_FLOAT16_IN_FLOAT32)
        | of(ROLES[0], matrices)
        | of(ROLES[1], matrices)
        | of(WORKGROUP[1], Capabilities::SUBGROUP)
        | of(COLUMN_SUM[1], Capabilities::SUBGROUP)
        | of(ROWS[1], Capabilities::SUBGROUP)
}

/// Whether it is WGSL, has the entry point, and keeps to what every adapter can do, or what its texts are for.
fn check(kernel: &Kernel<'_>) -> Result<(), String> {
    let text = kernel.text();
    let module = wgsl::parse_str(&text).map_err(|error| error.emit_to_string(&text))?;
    // Capabilities are what WebGPU promises everywhere, and what this kernel's texts ask for.
    let mut validator = Validator::new(ValidationFlags::all(), optional(kernel));
    let info = validator.validate(&module).map_err(|error| error.emit_to_string(&text))?;
    let place = module.entry_points.iter().position(|entry| entry.name == kernel.entry);
    let place = place.ok_or_else(|| format!("there is no `{}`", kernel.entry))?;
    let invocations: u32 = module.entry_points[place].workgroup_size.iter().product();
    if invocations > 256 {
        return Err(format!("{invocations} invocations a workgroup, 256 at most"));
    }
    // Variables of this address space that the entry point reaches.
    let used = |space| {
        let all = module.global_variables.iter().filter(move |(_, variable)| variable.space == space);
        all.filter(|(handle, _)| !info.get_entry_point(place)[*handle].is_empty())
    };
    let sizes =
        used(naga::AddressSpace::WorkGroup).map(|(_, variable)| module.types[variable.ty].inner.size(module.to_ctx()));
    // Bytes of workgroup memory, by WebGPU's least limit.
    let shared: u32 = sizes.sum();
    if shared > 16 << 10 {
        return Err(format!("{shared} bytes of workgroup storage, 16384 at most"));
    }
    let storage =
        |(_, variable): &(_, &naga::GlobalVariable)| matches!(variable.space, naga::AddressSpace::Storage { .. });
    let buffers = module.global_variables.iter().filter(storage);
    // Storage buffers, by WebGPU's least limit.
    let buffers = buffers.filter(|(handle, _)| !info.get_entry_point(place)[*handle].is_empty()).count();
    if buffers > 8 {
        return Err(format!("{buffers} storage buffers, 8 at most"));
    }
    Ok(())
}

#[test]
fn every_kernel_is_portable() {
    let faults: Vec<_> = ALL
        .iter()
        .flat_map(|kernels| kernels.iter())
        .filter_map(|kernel| Some(format!("{}:\n{}", kernel.title(), check(kernel).err()?)))
        .map(|fault| fault.chars().filter(|c| *c != '\r').collect::<String>())
        .collect();
    assert!(faults.is_empty(), "{}", faults.join("\n\n"));
}

/// A file that no kernel of the list is made of would never be looked at.
#[test]
fn every_file_is_listed() {
    // Every file of WGSL under `src`.
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    let mut count = 0;
    while let Some(folder) = folders.pop() {
        for entry in folder.read_dir().expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "wgsl") {
                let text = std::fs::read_to_string(&path).expect("a file");
                let mut kernels = ALL.iter().flat_map(|kernels| kernels.iter());
                assert!(kernels.any(|kernel| kernel.source.parts.contains(&text.as_str())), "{}", path.display());
                for line in text.lines().filter(|line| line.starts_with("fn ")) {
                    let name = line[3..].split('(').next().unwrap_or_default();
                    // Functions with built-in arguments are entry points.
                    let entry =
                        ["@builtin", "own: Member)"].iter().any(|first| text.contains(&format!("\nfn {name}({first}")));
                    let mut kernels = ALL.iter().flat_map(|kernels| kernels.iter());
                    assert!(!entry || kernels.any(|kernel| kernel.entry == name), "{name} of {}", path.display());
                }
                count += 1;
            }
        }
    }
    assert!(count > 3);
}
