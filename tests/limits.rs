//! CONTRIBUTING's limits: lengths of files and functions, the share of comments in each crate, and how its modules stand on each other.

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
/// Share of comments among the lines of a crate that are not empty, in percent, which every crate has.
const COMMENTS: usize = 20;

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

    /// `crates/hecate-core` of `crates/hecate-core/src/lib.rs`; nothing outside of crates.
    fn package(&self) -> Option<&str> {
        let end = self.path.strip_prefix("crates/")?.find('/')?;
        Some(&self.path[..end + "crates/".len()])
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

/// What stands before the braces of kernels' functions, and of blocks inside of them with a condition, and the number of
/// lines between.
fn kernel_functions(text: &str) -> Vec<(String, usize)> {
    let (code, mut from, mut open, mut found) = (code(text), 0, Vec::new(), Vec::new());
    for (at, c) in code.char_indices().filter(|(_, c)| ['{', '}', ';'].contains(c)) {
        let head = code[from..at].split_whitespace().collect::<Vec<_>>().join(" ");
        match c {
            '{' => open.push((at, head)),
            '}' => found.extend(open.pop().map(|(start, head)| (head, code[start..at].matches('\n').count()))),
            _ => {}
        }
        from = at + 1;
    }
    let is_function = |head: &str| head.contains('(') && !head.split(' ').any(|word| word == "struct");
    found.retain(|(head, _)| is_function(head));
    found.into_iter().map(|(head, lines)| (head, lines.saturating_sub(1))).collect()
}

#[test]
fn functions_of_kernels_are_found() {
    let text = "struct S { u32 a; };\ntemplate <u32 N> __device__ void f(u32 a) { // {\n    if (a) {\n        g();\n    }\n}\n\
                @compute @workgroup_size(64)\nfn h(a: u32) {\n}\n";
    let found = kernel_functions(text);
    let lengths: Vec<_> = found.iter().map(|(head, lines)| (head.as_str(), *lines)).collect();
    let [f, h] = ["template <u32 N> __device__ void f(u32 a)", "@compute @workgroup_size(64) fn h(a: u32)"];
    assert_eq!(lengths, [("if (a)", 1), (f, 3), (h, 0)]);
}

#[test]
fn functions_of_kernels_are_short() {
    let (mut count, mut long) = (0, Vec::new());
    for source in sources().iter().filter(|source| source.is_kernel()) {
        let functions = kernel_functions(&source.text);
        count += functions.len();
        let over = functions.into_iter().filter(|(_, lines)| *lines > KERNEL);
        long.extend(over.map(|(head, lines)| format!("{}: {lines} lines of `{head}`", source.path)));
    }
    assert!(count > 1000, "only {count} functions of kernels were found");
    assert!(long.is_empty(), "functions of more than {KERNEL} lines in kernels: {}", long.join(", "));
}

/// Lines of comments, and all that are not empty.
fn comments(source: &Source) -> (usize, usize) {
    let lines = source.text.lines().map(str::trim).filter(|line| !line.is_empty());
    let marks: &[&str] = if source.path.ends_with(".py") { &["#"] } else { &["//"] };
    lines.fold((0, 0), |(comments, all), line| {
        (comments + usize::from(marks.iter().any(|mark| line.starts_with(mark))), all + 1)
    })
}

#[test]
fn crates_explain_themselves() {
    let all = sources();
    let mut packages: Vec<&str> = all.iter().filter_map(Source::package).collect();
    packages.dedup();
    let share = |package: &&str| {
        let counts = all.iter().filter(|source| source.package() == Some(package)).map(comments);
        let (comments, lines) = counts.fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
        100 * comments / lines.max(1)
    };
    let shares: Vec<String> = packages.iter().map(|package| format!("{package} {} %", share(package))).collect();
    println!("{}", shares.join(", "));
    let few: Vec<&&str> = packages.iter().filter(|package| share(package) < COMMENTS).collect();
    assert!(few.is_empty(), "less than {COMMENTS} % of comments: {few:?} of {}", shares.join(", "));
}
