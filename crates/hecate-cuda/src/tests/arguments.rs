//! Arguments of kernels, as Rust lays them out, beside the C of the kernels and the bytes of the embedded PTX.

mod macros;
mod structures;

use crate::{
    arguments::{Argument, Field, In, InPlace, Out, Row, Uint2, Words, arguments},
    ptx::Modules,
    source::KernelSource,
    sources::ALL,
};
use macros::Preprocessed;
use std::collections::{BTreeMap, HashMap};
use structures::{Laid, Structures};

/// Fields that C calls otherwise, by file: in a type whose `value` is a constant, the field beside it is `width`.
const CALLED_OTHERWISE: [(&str, &str, &str); 1] = [("lattice_pieces", "cell.width", "cell.value")];

/// All that launches hand over to kernels of a file.
fn arguments_of(source: &KernelSource) -> Vec<&'static Argument> {
    let all = inventory::iter::<Argument>.into_iter();
    all.filter(|argument| argument.source.name == source.name).collect()
}

/// Where what a launch hands over is not what the kernel takes.
fn difference(rust: &[Row], rust_bytes: usize, c: &Laid) -> Option<String> {
    let c_rows = c.shape.rows();
    let different = (0..rust.len().max(c_rows.len())).find(|&i| rust.get(i) != c_rows.get(i));
    let show =
        |row: Option<&Row>| row.map_or("nothing".to_owned(), |Row { path, c, at, .. }| format!("`{c} {path}` at {at}"));
    match different {
        Some(i) => Some(format!("Rust has {}, C has {}", show(rust.get(i)), show(c_rows.get(i)))),
        None if rust_bytes != c.bytes => Some(format!("Rust has {rust_bytes} bytes, C has {}", c.bytes)),
        None => None,
    }
}

/// Every kernel is declared in Rust, with the fields of the structure that it takes: names, types, order and places.
#[test]
fn rust_and_c_agree() {
    let mut different = Vec::new();
    for source in ALL {
        let code = Preprocessed::new(&source.texts());
        let kernels = Structures::new(&code).kernels();
        let arguments = arguments_of(source);
        for kernel in kernels.keys().filter(|kernel| arguments.iter().all(|argument| argument.kernel != **kernel)) {
            different.push(format!("{}: `{kernel}` is launched by nobody", source.name));
        }
        for argument in arguments {
            let mut rows = argument.rows();
            let others = CALLED_OTHERWISE.iter().filter(|other| other.0 == source.name);
            for &(_, c, rust) in others {
                rows.iter_mut().filter(|row| row.path == rust).for_each(|row| row.path = c.to_owned());
            }
            let why = match kernels.get(argument.kernel) {
                Some(laid) => difference(&rows, argument.bytes, laid),
                None => Some("there is no such kernel".to_owned()),
            };
            different.extend(why.map(|why| format!("{}: `{}`: {why}", source.name, argument.kernel)));
        }
    }
    assert!(different.is_empty(), "{different:#?}");
}

/// Bytes of the argument that a module's kernel takes: `.param .align 8 .b8 total_param_0[24]`.
fn parameter_bytes(module: &str, kernel: &str) -> Option<usize> {
    let start = format!("{kernel}_param_0[");
    let parameter = module.lines().filter(|line| line.starts_with(".param")).find_map(|line| line.split_once(&start));
    parameter?.1.split(']').next()?.parse().ok()
}

/// A read of the argument at a place that can be told.
#[derive(Clone, Copy, Debug)]
struct Read {
    /// Whether it reads floats.
    float: bool,
    at: usize,
    count: usize,
    /// Of each.
    bytes: usize,
}

/// All of a module: `ld.param.v2.u32 {%r1, %r2}, [total_param_0+16];`. A register may hold the place, and is then set once, by
/// `mov.b64 %rd1, total_param_0;` and `add.s64 %rd2, %rd1, 16;`.
fn reads(module: &str, kernel: &str) -> Vec<Read> {
    let mut places = HashMap::from([(format!("{kernel}_param_0"), 0)]);
    let mut reads = Vec::new();
    let shows = |line: &&str| ["ld.param", "mov.", "add.s64"].iter().any(|start| line.starts_with(start));
    for line in module.lines().filter(shows) {
        let words: Vec<_> = line.split([' ', '\t', ',', ';', '[', ']', '+']).filter(|word| !word.is_empty()).collect();
        match words.as_slice() {
            ["mov.b64" | "mov.u64", to, from] if places.contains_key(*from) => {
                places.insert((*to).to_owned(), places[*from]);
            }
            ["add.s64", to, from, by] if places.contains_key(*from) => {
                places.extend(by.parse::<usize>().ok().map(|by| ((*to).to_owned(), places[*from] + by)));
            }
            [load, .., place, further] if places.contains_key(*place) => {
                reads.extend(further.parse().ok().and_then(|by: usize| Read::new(load, places[*place] + by)));
            }
            [load, .., place] => reads.extend(places.get(*place).and_then(|&at| Read::new(load, at))),
            _ => {}
        }
    }
    reads
}

impl Read {
    /// Of `ld.param.v2.u32` and the like. Bytes by themselves are copied with what fills gaps between fields.
    fn new(load: &str, at: usize) -> Option<Self> {
        let of = load.strip_prefix("ld.param.")?;
        let (count, of) = of.strip_prefix('v').and_then(|of| of.split_once('.')).unwrap_or(("1", of));
        let (kind, bits) = of.split_at(1);
        let bytes = bits.parse::<usize>().ok()? / 8;
        (bytes > 1).then_some(Self { float: kind == "f", at, count: count.parse().ok()?, bytes })
    }
}

/// Whether each element that is read lies in one field, and floats in one of floats.
fn fits(read: Read, rows: &[Row]) -> bool {
    let field = |at| rows.iter().find(move |row| row.at <= at && at + read.bytes <= row.at + row.bytes);
    let of_floats = |row: &Row| (row.c == "float" || row.c == "double") && row.bytes == read.bytes;
    (0..read.count).all(|i| field(read.at + i * read.bytes).is_some_and(|row| !read.float || of_floats(row)))
}

/// The embedded PTX takes as many bytes as launches hand over, and reads whole fields of them.
#[test]
fn ptx_takes_what_rust_hands_over() {
    let (mut different, mut count) = (Vec::new(), 0);
    for source in ALL {
        let modules = Modules::of(source).expect("modules");
        let arguments = arguments_of(source);
        for (kernel, module) in modules.all() {
            let bytes = parameter_bytes(module, kernel).unwrap_or_else(|| panic!("`{kernel}` takes nothing"));
            let reads = reads(module, kernel);
            count += reads.len();
            let own: Vec<_> = arguments.iter().filter(|argument| argument.kernel == kernel).collect();
            assert!(!own.is_empty(), "{}: `{kernel}` is launched by nobody", source.name);
            for argument in own {
                if argument.bytes != bytes {
                    different.push(format!("`{kernel}`: Rust has {} bytes, the PTX {bytes}", argument.bytes));
                }
                let rows = argument.rows();
                let others = reads.iter().filter(|read| !fits(**read, &rows));
                different.extend(others.map(|read| format!("`{kernel}`: {read:?} is no field")));
            }
        }
    }
    assert!(different.is_empty(), "{different:#?}");
    assert!(count > 10_000, "{count} reads were found in all modules");
}

arguments! {
    /// An argument that has one of each kind of field.
    struct Some {
        x: Inner,
        a: InPlace<Pair>,
        each: [Pair; 2],
        key: Uint2,
        table: In<Words<2>>,
    }
    struct Inner {
        out: Out<f32>,
        count: u32,
        dtype: u32,
    }
    struct Pair {
        p: In<u16>,
        q: In<u16>,
        scale: f32,
        first: i32,
    }
}

/// The same in C, with what else stands in structures of kernels.
const C: &str = "\
const u32 TWO = 2;
template <class T> struct Outer {
    T x;  // a comment
    const u16 *p, *q;
    float scale;
    int first;
    Pair each[TWO];
    uint2 key;
    const Entry* table;
    static constexpr u32 SHARED = 3;
    __device__ __forceinline__ u32 size() const { return x.count; }
};
struct Inner { float* out; u32 count, type; };
struct Pair { const u16 *p, *q; float scale; int first; };
struct Entry { u64 count; u32 first; };
#define KERNELS(kind, number, ...) \\
    KERNEL(some_##kind##number, Outer<__VA_ARGS__>, 256, 1) {}
KERNELS(, 1, Inner)
KERNELS(other_, 2, Inner)
";

/// The difference that a change of the C above makes.
fn changed(from: &str, to: &str) -> Option<String> {
    let text = C.replacen(from, to, 1);
    assert!(from == to || text != C, "{from}");
    let code = Preprocessed::new(&[&text]);
    let kernels = Structures::new(&code).kernels();
    assert_eq!(kernels.keys().collect::<Vec<_>>(), ["some_1", "some_other_2"]);
    difference(&Some::shape().rows(), size_of::<Some>(), &kernels["some_1"])
}

/// Fields that are swapped, renamed, retyped, added, left out, or as many others are found on either side.
#[test]
fn differences_are_found() {
    assert_eq!(changed("", ""), None);
    let found = BTreeMap::from([
        (("count, type", "type, count"), "`u32 x.count` at 8, C has `u32 x.type` at 8"),
        (("*p, *q; float", "*q, *p; float"), "`const u16* each[0].p` at 40, C has `const u16* each[0].q` at 40"),
        (("uint2 key", "uint2 keys"), "`uint2 key` at 88, C has `uint2 keys` at 88"),
        (("float* out", "const float* out"), "`float* x.out` at 0, C has `const float* x.out` at 0"),
        (("float* out", "double* out"), "`float* x.out` at 0, C has `double* x.out` at 0"),
        (("int first", "u32 first"), "`int first` at 36, C has `u32 first` at 36"),
        (("float scale;\n", "double scale;\n"), "`float scale` at 32, C has `double scale` at 32"),
        (("    float scale;\n", ""), "`float scale` at 32, C has `int first` at 32"),
        (("each[TWO]", "each[3]"), "`uint2 key` at 88, C has `const u16* each[2].p` at 88"),
        (
            ("u64 count", "u64 count, more"),
            "`const entry of 16 bytes* table` at 96, C has `const entry of 24 bytes* table` at 96",
        ),
        (("table;", "table; u32 last;"), "nothing, C has `u32 last` at 104"),
        (("struct Outer", "struct __align__(64) Outer"), "104 bytes, C has 128"),
    ]);
    for ((from, to), why) in found {
        assert_eq!(changed(from, to), Option::Some(format!("Rust has {why}")), "{from}");
    }
}

/// Bytes and reads of PTX that are not those of the fields.
#[test]
fn other_bytes_are_found() {
    let module = ".visible .entry some(\n.param .align 8 .b8 some_param_0[104]\n)\n\
                  ld.param.v2.u32 {%r1, %r2}, [some_param_0+8];\nld.param.f32 %f1, [some_param_0+32];\n\
                  ld.param.u64 %rd1, [some_param_0];\nld.param.u32 %r3, [other_param_0+2];\n";
    let rows = Some::shape().rows();
    assert_eq!(parameter_bytes(module, "some"), Option::Some(104));
    assert_eq!(parameter_bytes(module, "other"), None);
    let reads = reads(module, "some");
    assert_eq!(reads.len(), 3);
    assert!(reads.iter().all(|read| fits(*read, &rows)));
    // Across two fields, behind the end, a float where there is none.
    for (float, at, bytes) in [(false, 12, 8), (false, 104, 4), (true, 36, 4), (true, 88, 4)] {
        assert!(!fits(Read { float, at, count: 1, bytes }, &rows), "{at}");
    }
}
