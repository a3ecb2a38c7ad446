//! CONTRIBUTING's limits: lengths of files and functions, what stands above functions of kernels, and how modules stand on each
//! other.

#[path = "limits/rooms.rs"]
mod rooms;

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Most lines of a file.
const FILE: usize = 600;
/// Lines of a function's body, between its braces, that nine in ten keep under.
const FUNCTION: usize = 30;
/// Most lines of the body of a function in CUDA C++ or WGSL.
const KERNEL: usize = 80;
/// Least characters of what stands above a function in CUDA C++ or WGSL.
const WORDS: usize = 8;
/// Macros of CUDA C++ that begin a function for the device and hide its `__global__`.
const ENTRIES: [&str; 2] = ["KERNEL", "CLUSTER_KERNEL"];

/// A file of code.
struct Source {
    /// Path from the repository's root.
    path: String,
    text: String,
}

impl Source {
    fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    fn is_kernel(&self) -> bool {
        [".cu", ".cuh", ".wgsl"].iter().any(|ending| self.path.ends_with(ending))
    }
}

/// All code of the repository.
fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut paths = Vec::new();
    ["crates", "tests"].iter().for_each(|folder| gather(&root.join(folder), &mut paths));
    paths.sort();
    let source = |path: PathBuf| Source {
        path: path.strip_prefix(&root).expect("a path under the root").display().to_string().replace('\\', "/"),
        text: fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())),
    };
    paths.into_iter().map(source).collect()
}

fn gather(folder: &Path, paths: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
        let path = entry.expect("an entry of a folder").path();
        let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
        if path.is_dir() && !path.ends_with("target") {
            gather(&path, paths);
        } else if ["rs", "cu", "cuh", "wgsl", "py", "cpp"].contains(&extension) {
            paths.push(path);
        }
    }
}

/// What of Rust's text is neither comment nor literal; the rest is blanks, and lines stay lines.
fn code(text: &str) -> String {
    let (mut rest, mut code) = (text, String::with_capacity(text.len()));
    while let Some(first) = rest.chars().next() {
        let length = skipped(rest);
        let (part, after) = rest.split_at(if length == 0 { first.len_utf8() } else { length });
        code.extend(part.chars().map(|c| if length > 0 && c != '\n' { ' ' } else { c }));
        rest = after;
    }
    code
}

/// How long the comment or literal is that `text` begins with; 0 for code.
fn skipped(text: &str) -> usize {
    let to = |end: &str, from: usize| text[from..].find(end).map_or(text.len(), |at| from + at + end.len());
    if text.starts_with("//") {
        return text.find('\n').unwrap_or(text.len());
    }
    if text.starts_with("/*") {
        return to("*/", 2);
    }
    if text.starts_with('"') {
        return quoted(text);
    }
    let hashes = text.strip_prefix('r').map_or(0, |rest| rest.len() - rest.trim_start_matches('#').len());
    if text.starts_with('r') && text[1 + hashes..].starts_with('"') {
        return to(&format!("\"{}", "#".repeat(hashes)), hashes + 2);
    }
    // A lifetime has no quote after its first character.
    let mut chars = text.char_indices().skip(1);
    match (text.starts_with('\''), chars.next(), chars.next()) {
        (true, Some((_, '\\')), Some((at, c))) => to("'", at + c.len_utf8()),
        (true, Some(_), Some((at, '\''))) => at + 1,
        _ => 0,
    }
}

/// Length of the string that `text` begins with.
fn quoted(text: &str) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Names of functions with the number of lines between the braces of their bodies.
fn functions(text: &str) -> Vec<(String, usize)> {
    let code = code(text);
    let starts =
        code.match_indices("fn ").filter(|(at, _)| !code[..*at].ends_with(|c: char| c.is_alphanumeric() || c == '_'));
    starts.filter_map(|(at, _)| body(&code[at + 3..])).collect()
}

/// Name and length of the function whose name `code` begins with; nothing without a body.
fn body(code: &str) -> Option<(String, usize)> {
    let name: String = code.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    let open = code.find(['{', ';']).filter(|at| code[*at..].starts_with('{') && !name.is_empty())?;
    let mut depth = 0;
    for (at, c) in code[open..].char_indices() {
        depth += i32::from(c == '{') - i32::from(c == '}');
        if depth == 0 {
            let lines = code[open..open + at].matches('\n').count();
            return Some((name, lines.saturating_sub(1)));
        }
    }
    None
}

#[test]
fn functions_are_found() {
    let text = "fn a() {\n    let s = \"fn b() {\"; // fn c() {\n    '{';\n}\ntrait T { fn d(&self); }\nfn e<'a>(x: &'a str) {}\n\
                const R: &str = r#\"fn f() {\"#;\n";
    assert_eq!(functions(text), [("a".to_owned(), 2), ("e".to_owned(), 0)]);
}

#[test]
fn files_are_short() {
    let long = |source: &Source| Some(source.text.lines().count()).filter(|&lines| lines > FILE);
    let found: Vec<String> =
        sources().iter().filter_map(|source| Some(format!("{}: {} lines", source.path, long(source)?))).collect();
    assert!(found.is_empty(), "files of more than {FILE} lines: {}", found.join(", "));
}

#[test]
fn nine_functions_in_ten_are_short() {
    let all = sources();
    let mut lengths = Vec::new();
    for source in all.iter().filter(|source| source.is_rust()) {
        lengths.extend(
            functions(&source.text).into_iter().map(|(name, lines)| (lines, format!("{}: {name}", source.path))),
        );
    }
    lengths.sort();
    let long = lengths.iter().filter(|(lines, _)| *lines >= FUNCTION).count();
    let longest: Vec<String> = lengths.iter().rev().take(20).map(|(lines, name)| format!("{name} {lines}")).collect();
    println!("{long} of {} functions have {FUNCTION} lines or more; {}", lengths.len(), longest.join(", "));
    assert!(lengths.len() > 1000, "only {} functions were found", lengths.len());
    assert!(10 * long <= lengths.len(), "{long} of {}: {}", lengths.len(), longest.join(", "));
}

/// A function of a kernel, or a block inside of one with a condition.
struct Block {
    /// What stands before its brace.
    head: String,
    /// Where the head begins and where the block ends: lines, counted from 0.
    first: usize,
    last: usize,
    /// Lines between the braces.
    lines: usize,
}

/// Functions in code of kernels, and blocks with conditions, in the order of their ends.
fn kernel_functions(code: &str) -> Vec<Block> {
    let (mut from, mut open, mut found) = (0, Vec::new(), Vec::new());
    let newlines = |text: &str| text.matches('\n').count();
    for (at, c) in code.char_indices().filter(|(_, c)| ['{', '}', ';'].contains(c)) {
        match c {
            '{' => {
                let head = without_label(&code[from..at]);
                let first = newlines(&code[..at - head.trim_start().len()]);
                let head = head.split_whitespace().collect::<Vec<_>>().join(" ");
                open.push((at, Block { head, first, last: 0, lines: 0 }));
            }
            '}' => found.extend(open.pop().map(|(start, block)| {
                let lines = newlines(&code[start..at]);
                Block { last: newlines(&code[..at]), lines: lines.saturating_sub(1), ..block }
            })),
            _ => {}
        }
        from = at + 1;
    }
    let is_function = |head: &str| head.contains('(') && !head.split(' ').any(|word| word == "struct");
    found.retain(|block| is_function(&block.head));
    found
}

/// What a block's head is behind `public:` or `private:`.
fn without_label(head: &str) -> &str {
    let labels = ["public:", "private:"];
    labels.iter().find_map(|label| head.trim_start().strip_prefix(label)).unwrap_or(head)
}

/// Code without the preprocessor's lines: functions in a macro are those of whoever uses it. Lines stay lines.
fn without_macros(code: &str) -> String {
    let mut inside = false;
    let line = |line: &str| {
        let is_macro = inside || line.trim_start().starts_with('#');
        inside = is_macro && line.trim_end().ends_with('\\');
        format!("{}\n", if is_macro { "" } else { line })
    };
    code.lines().map(line).collect()
}

#[test]
fn functions_of_kernels_are_found() {
    let text = "struct S { u32 a; };\ntemplate <u32 N> __device__ void f(u32 a) { // {\n    if (a) {\n        g();\n    }\n}\n\
                @compute @workgroup_size(64)\nfn h(a: u32) {\n}\n";
    let found = kernel_functions(&code(text));
    let lengths: Vec<_> = found.iter().map(|block| (block.head.as_str(), block.lines)).collect();
    let [f, h] = ["template <u32 N> __device__ void f(u32 a)", "@compute @workgroup_size(64) fn h(a: u32)"];
    assert_eq!(lengths, [("if (a)", 1), (f, 3), (h, 0)]);
}

#[test]
fn functions_of_kernels_are_short() {
    let (mut count, mut long) = (0, Vec::new());
    for source in sources().iter().filter(|source| source.is_kernel()) {
        let functions = kernel_functions(&code(&source.text));
        count += functions.len();
        let over = functions.into_iter().filter(|block| block.lines > KERNEL);
        long.extend(over.map(|block| format!("{}: {} lines of `{}`", source.path, block.lines, block.head)));
    }
    assert!(count > 1000, "only {count} functions of kernels were found");
    assert!(long.is_empty(), "functions of more than {KERNEL} lines in kernels: {}", long.join(", "));
}

/// Macros without arguments that stand for `__device__`.
fn device_macros<'a>(texts: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let macros = texts.flat_map(str::lines).filter_map(|line| line.strip_prefix("#define ")?.split_once(' '));
    macros
        .filter(|(name, stands_for)| !name.contains('(') && stands_for.contains("__device__"))
        .map(|(name, _)| name)
        .collect()
}

/// Whether a head begins with one of these words, after the parameters of a template.
fn begins_with(head: &str, words: &[&str]) -> bool {
    let parameters = |head: &str| {
        let mut depth = 0;
        let end = head.find(|c: char| {
            depth += i32::from(c == '<') - i32::from(c == '>');
            c == '>' && depth == 0
        });
        end.map_or(head.len(), |end| end + 1)
    };
    let head = head.strip_prefix("template ").map_or(head, |rest| rest[parameters(rest)..].trim_start());
    words.contains(&head.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default())
}

/// Whether a function runs on a device: all of WGSL do.
fn is_for_device(head: &str, macros: &[&str]) -> bool {
    let named = head.split(' ').any(|word| ["__device__", "__global__", "fn"].contains(&word));
    named || begins_with(head, &ENTRIES) || begins_with(head, macros)
}

/// Whether comments of some length stand directly above line `first`.
fn is_explained(lines: &[&str], first: usize) -> bool {
    let above = lines[..first].iter().rev().map_while(|line| line.trim().strip_prefix("//"));
    above.map(|comment| comment.trim().chars().count()).sum::<usize>() >= WORDS
}

/// Lines with functions for a device above which nothing says what they compute, and the number of all such functions.
///
/// Kernels one directly below the other are those of one template, and what stands above the first is of all.
fn unexplained(text: &str, macros: &[&str]) -> (Vec<usize>, usize) {
    let lines: Vec<&str> = text.lines().collect();
    let mut all = kernel_functions(&without_macros(&code(text)));
    all.retain(|block| is_for_device(&block.head, macros));
    all.sort_by_key(|block| block.first);
    let (mut found, mut last) = (Vec::new(), None);
    for block in &all {
        let is_entry = begins_with(&block.head, &ENTRIES);
        let follows = is_entry && block.first > 0 && last == Some(block.first - 1);
        if !follows && !is_explained(&lines, block.first) {
            found.push(block.first + 1);
        }
        last = is_entry.then_some(block.last);
    }
    (found, all.len())
}

#[test]
fn what_is_not_explained_is_found() {
    let text = "#include \"a.cuh\"\n#define TOGETHER __device__ __noinline__\n\
                // y [N] = 2 * x\n__device__ float a(float x) { return 2.0f * x; }\n\
                __device__ float b(float x) { return x; }\n\
                // Over a template: x [N] += 1\ntemplate <u32 N>\nTOGETHER void c(float* x) {\n    if (x) {\n    }\n}\n\
                template <u32 N>\nTOGETHER void d(float* x) {}\n\
                // Too far away from it.\n\n__device__ void e();\nKERNEL(f, Args, 256) {}\n// x\nKERNEL(g, Args, 256) {}\n\
                KERNEL(h, Args, 256) {}\n\
                #define OF(name) \\\n    KERNEL(name, Args, 256) { \\\n        work(args); \\\n    }\n\
                int host(int x) { return x; }\n\
                struct S {\n  private:\n    __device__ S(int x) : x{x} {}\n    // Another number.\n    __device__ S() : x{1} {}\n};\n";
    let macros = device_macros([text].into_iter());
    assert_eq!(macros, ["TOGETHER"]);
    let place = |what: &str| text[..text.find(what).expect("a part of the text")].matches('\n').count() + 1;
    let wanted =
        ["__device__ float b", "template <u32 N>\nTOGETHER void d", "KERNEL(f", "KERNEL(g", "__device__ S(int"];
    assert_eq!(unexplained(text, &macros), (wanted.map(place).to_vec(), 9));
    let text =
        "// out [N] = 2 * x\n@compute @workgroup_size(64)\nfn a(x: u32) {\n}\n\nfn b() -> u32 {\n    return 1u;\n}\n";
    assert_eq!(unexplained(text, &[]), (vec![6], 2));
}

#[test]
fn functions_of_kernels_say_what_they_compute() {
    let all = sources();
    let kernels = || all.iter().filter(|source| source.is_kernel());
    let macros = device_macros(kernels().map(|source| source.text.as_str()));
    let (mut count, mut silent) = (0, Vec::new());
    for source in kernels() {
        let (lines, functions) = unexplained(&source.text, &macros);
        count += functions;
        silent.extend(lines.iter().map(|line| format!("{}:{line}", source.path)));
    }
    println!("{count} functions for devices");
    assert!(count > 2000, "only {count} functions for devices were found");
    assert!(
        silent.is_empty(),
        "{} functions for devices without a line above them that says what they compute, with shapes: {}",
        silent.len(),
        silent.join(", ")
    );
}
