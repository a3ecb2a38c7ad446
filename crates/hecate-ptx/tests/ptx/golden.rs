//! The text of kernels is that of files in `tests/golden`. `UPDATE=1` writes them.

use hecate_ptx::{Elementwise, GemmNaive, Module, Operation, Scalar, Softmax, Specification};
use std::{fs, path::Path};

/// One specification of every kind of text.
pub(crate) fn specifications() -> Vec<Specification> {
    vec![GemmNaive::new(100, 200, 300).expect("sizes").into(), Softmax::new(1024, 4096).expect("sizes").into()]
}

fn compare(file: &str, module: &Module) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(file);
    if std::env::var_os("UPDATE").is_some() {
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder of files");
        fs::write(&path, module.text()).expect("a file that can be written");
    }
    let text =
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}; UPDATE=1 writes it", path.display()));
    let lines = text.lines().zip(module.text().lines()).position(|(file, written)| file != written);
    assert!(
        text == module.text(),
        "{file} differs in line {:?} from what is written; UPDATE=1 takes that",
        lines.map(|at| at + 1)
    );
}

#[test]
fn specifications_have_the_same_text() {
    for specification in specifications() {
        let module = specification.write().expect("a kernel");
        assert_eq!(Ok(&module), specification.write().as_ref(), "the same specification, twice");
        compare(&format!("{}.ptx", file_name(&specification)), &module);
    }
}

/// Name of the kernel.
fn file_name(specification: &Specification) -> String {
    specification.name().to_owned()
}

#[test]
fn operations_have_the_same_text() {
    for (operation, scalar) in [
        (Operation::Add, Scalar::F32),
        (Operation::Div, Scalar::C128),
        (Operation::Abs, Scalar::C64),
        (Operation::Exp, Scalar::F64),
    ] {
        let kernel = Elementwise::new(operation, scalar).expect("a kernel");
        compare(&format!("{}.ptx", kernel.name()), &kernel.write().expect("a kernel"));
    }
}
