//! How the modules of a crate stand on each other.
//!
//! A *room* is a module of a crate's root: its file, and the folder of its name. `lib.rs` lists the rooms under `# Rooms`, and a
//! room imports those before it alone: an import of a later one is an *arrow up*. A *ring* is a set of files each of which
//! leads to all others by imports. Those between a file and what is below it in its own folder do not count. Nor do tests'.

use super::{Source, code, sources};
use std::collections::{BTreeMap, BTreeSet};

/// Crates whose rooms are in order, and between how many pairs of rooms an arrow may lead up.
const CRATES: [(&str, usize); 4] = [("hecate-core", 4), ("hecate-models", 0), ("hecate-serve", 0), ("hecate-train", 0)];
/// Most files of a ring.
const RING: usize = 3;

/// Names from the root of a crate: of a module, or of an item.
type Names = Vec<String>;

/// The modules of a crate, and the items that they import of each other.
struct Modules {
    /// Rooms in their order.
    rooms: Names,
    /// Code of each without tests.
    code: BTreeMap<Names, String>,
    /// Names that a module takes from elsewhere, for itself or for others, with the path of each.
    taken: BTreeMap<(Names, String), Names>,
}

impl Modules {
    /// Of files by their paths from the crate's `src`.
    fn of(files: &[(String, &str)]) -> Self {
        let rooms = files.iter().find(|(path, _)| path == "lib.rs").map_or_else(Vec::new, |(_, text)| listed(text));
        let mut all: BTreeMap<Names, String> = files.iter().map(|(path, text)| (module(path), code(text))).collect();
        let tests: Vec<Names> = all.iter().flat_map(|(module, code)| test_modules(module, code)).collect();
        all.retain(|module, _| !tests.iter().any(|test| module.starts_with(test)));
        all.values_mut().for_each(|code| *code = without_tests(code));
        let taken = all.iter().flat_map(|(module, code)| {
            let (uses, _) = uses(code);
            uses.into_iter().map(|(path, name)| ((module.clone(), name), path))
        });
        Self { rooms, taken: taken.collect(), code: all }
    }

    /// For each module those whose items it names.
    fn imports(&self) -> BTreeMap<&Names, BTreeSet<Names>> {
        let of = |(module, code): (_, &String)| {
            let (uses, rest) = uses(code);
            let named = uses.into_iter().map(|(path, _)| path).chain(inline(&rest));
            let owners = named.filter_map(|path| self.owner(module, &path, 0));
            (module, owners.filter(|owner| owner != module && !owner.is_empty()).collect())
        };
        self.code.iter().filter(|(module, _)| !module.is_empty()).map(of).collect()
    }

    /// The module that has what `at` calls `path`; none outside of the crate.
    fn owner(&self, at: &Names, path: &[String], depth: usize) -> Option<Names> {
        let up = path.iter().take_while(|name| *name == "super").count();
        let (mut found, rest) = match path.get(up).map(String::as_str) {
            Some("crate") => (Vec::new(), &path[up + 1..]),
            Some("self") => (at.clone(), &path[up + 1..]),
            // Without a word of where it begins, a path is of a module below or of another crate.
            Some(name) if up == 0 && !self.code.contains_key(&below(at, name)) => return None,
            _ => (at[..at.len().checked_sub(up)?].to_vec(), &path[up..]),
        };
        for (i, name) in rest.iter().enumerate() {
            let next = below(&found, name);
            if !self.code.contains_key(&next) {
                // An item, of this module or of where this takes it from.
                let Some(taken) = self.taken.get(&(found.clone(), name.clone())).filter(|_| depth < 9) else { break };
                return self.owner(&found, &[taken, &rest[i + 1..]].concat(), depth + 1).or(Some(found));
            }
            found = next;
        }
        Some(found)
    }

    /// Pairs of rooms of which the first imports the second, which stands after it.
    fn arrows_up(&self) -> BTreeSet<(String, String)> {
        let place = |module: &Names| self.rooms.iter().position(|room| *room == module[0]);
        let pairs = self.imports().into_iter().flat_map(|(from, to)| to.into_iter().map(move |to| (from, to)));
        let up = pairs.filter(|(from, to)| place(from) < place(to));
        up.map(|(from, to)| (from[0].clone(), to[0].clone())).collect()
    }

    /// Rings, each with its files.
    fn rings(&self) -> BTreeSet<BTreeSet<Names>> {
        let imports = self.imports();
        let mut all = BTreeMap::new();
        imports.keys().for_each(|at| drop(all.insert(*at, reached(&imports, at))));
        let ring = |at: &&Names| all[at].iter().filter(|to| all[**to].contains(at)).map(|to| (*to).clone()).collect();
        all.keys().map(ring).filter(|ring: &BTreeSet<_>| ring.len() > 1).collect()
    }
}

/// Modules that `from` leads to.
fn reached<'a>(imports: &'a BTreeMap<&Names, BTreeSet<Names>>, from: &'a Names) -> BTreeSet<&'a Names> {
    let (mut reached, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(at) = next.pop() {
        let apart = |to: &&Names| !at.starts_with(to) && !to.starts_with(at);
        next.extend(imports[at].iter().filter(apart).filter(|to| reached.insert(*to)));
    }
    reached
}

/// The module of a file: `layers::memory` of `layers/memory.rs`, nothing of `lib.rs`.
fn module(path: &str) -> Names {
    let mut names: Names = path.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    names.pop_if(|name| name == "mod" || name == "lib");
    names
}

fn below(module: &[String], name: &str) -> Names {
    [module, &[name.to_owned()]].concat()
}

/// Rooms in the order of the list under `# Rooms`: what is quoted before the colon of each of its lines.
fn listed(lib: &str) -> Names {
    let list = lib.split("//! # Rooms").nth(1).unwrap_or_default().split("//! #").next().unwrap_or_default();
    let lines = list.lines().filter_map(|line| line.strip_prefix("//! * ")?.split(':').next());
    lines.flat_map(|line| line.split('`').skip(1).step_by(2).map(str::to_owned)).collect()
}

/// Modules below `module` that are for tests alone, in files of their own.
fn test_modules(module: &Names, code: &str) -> Vec<Names> {
    let attributed = code.split("#[cfg(").skip(1).filter(|rest| rest.split(']').next().unwrap_or("").contains("test"));
    let declared =
        attributed.filter_map(|rest| rest.split_once(']')?.1.trim_start().strip_prefix("mod ")?.split_once(';'));
    declared.filter(|(name, _)| word(name).len() == name.len()).map(|(name, _)| below(module, name)).collect()
}

/// The code up to its own tests, which stand at its end.
fn without_tests(code: &str) -> String {
    const BEGIN: &str = "#[cfg(test)]\nmod ";
    let own = |at: &usize| {
        let rest = &code[at + BEGIN.len()..];
        rest[word(rest).len()..].trim_start().starts_with('{')
    };
    let end = code.match_indices(BEGIN).map(|(at, _)| at).find(own);
    code[..end.unwrap_or(code.len())].to_owned()
}

/// The name that a text begins with.
fn word(text: &str) -> &str {
    &text[..text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len())]
}

/// Paths that are used, each with the name that it has here, and the code without these lines.
fn uses(code: &str) -> (Vec<(Names, String)>, String) {
    let (mut found, mut rest) = (Vec::new(), String::new());
    for statement in code.split_inclusive([';', '}']).collect::<Vec<_>>().chunk_by(|a, _| !a.ends_with(';')) {
        let statement = statement.concat();
        match statement.rsplit_once("use ").filter(|(before, _)| is_start(before)) {
            Some((before, tree)) => {
                rest.push_str(before);
                expand(&[], tree.trim_end_matches(';'), &mut found);
            }
            None => rest.push_str(&statement),
        }
    }
    (found, rest)
}

/// Whether a statement may begin after this text.
fn is_start(before: &str) -> bool {
    let visible = before.trim_end();
    let before = visible.strip_suffix("pub").or_else(|| visible.rsplit_once("pub(").map(|(before, _)| before));
    let before = before.unwrap_or(visible).trim_end();
    before.is_empty() || before.ends_with([';', '{', '}', ']'])
}

/// All paths of a tree of uses below `prefix`, with their names.
fn expand(prefix: &[String], tree: &str, found: &mut Vec<(Names, String)>) {
    let tree = tree.trim();
    if let Some(branches) = tree.strip_prefix('{').and_then(|tree| tree.strip_suffix('}')) {
        let (mut depth, mut start) = (0, 0);
        for (at, c) in branches.char_indices().chain([(branches.len(), ',')]) {
            depth += i32::from(c == '{') - i32::from(c == '}');
            if c == ',' && depth == 0 {
                expand(prefix, &branches[start..at], found);
                start = at + 1;
            }
        }
        return;
    }
    match tree.split_once("::") {
        Some((name, below)) if !name.contains(char::is_whitespace) => {
            expand(&[prefix, &[name.to_owned()]].concat(), below, found);
        }
        _ => {
            let (name, new) = tree.split_once(" as ").unwrap_or((tree, tree));
            let path = match name {
                "self" | "*" => prefix.to_vec(),
                name => [prefix, &[name.to_owned()]].concat(),
            };
            let new = if new == "self" { prefix.last().cloned().unwrap_or_default() } else { new.to_owned() };
            found.extend((!tree.is_empty()).then_some((path, new)));
        }
    }
}

/// Paths from the root or from above that code names where it needs them.
fn inline(code: &str) -> Vec<Names> {
    let mut found = Vec::new();
    for begin in ["crate::", "super::"] {
        for (at, _) in code.match_indices(begin) {
            let whole = !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':');
            let names = code[at..].split("::").map(|part| (word(part), word(part).len() == part.len()));
            let mut path = Vec::new();
            for (name, goes_on) in names {
                path.push(name.to_owned());
                if !goes_on {
                    break;
                }
            }
            found.extend(Some(path).filter(|_| whole));
        }
    }
    found
}

/// Modules of a crate of the repository.
fn modules(all: &[Source], name: &str) -> Modules {
    let folder = format!("crates/{name}/src/");
    let files = all.iter().filter(|source| source.is_rust());
    let files = files.filter_map(|source| Some((source.path.strip_prefix(&folder)?.to_owned(), source.text.as_str())));
    Modules::of(&files.collect::<Vec<_>>())
}

#[test]
fn rooms_are_in_order() {
    let all = sources();
    for (name, most) in CRATES {
        let modules = modules(&all, name);
        let found: BTreeSet<&String> = modules.code.keys().filter_map(|module| module.first()).collect();
        assert!(found.len() > 5, "{name}: {found:?}");
        assert_eq!(
            found,
            modules.rooms.iter().collect(),
            "{name}: `# Rooms` in src/lib.rs lists its modules, each once"
        );
        assert_eq!(found.len(), modules.rooms.len(), "{name}: `# Rooms` in src/lib.rs names one twice");
        let up = modules.arrows_up();
        println!("{name}: {} rooms, {} arrows up: {up:?}", found.len(), up.len());
        assert!(up.len() <= most, "{name}: at most {most} arrows up, not {}: {up:?}", up.len());
    }
}

#[test]
fn rings_are_short() {
    let all = sources();
    for (name, _) in CRATES {
        let modules = modules(&all, name);
        let rings = modules.rings();
        println!("{name}: {} rings, of {:?} files", rings.len(), rings.iter().map(BTreeSet::len).collect::<Vec<_>>());
        let long: Vec<_> = rings.iter().filter(|ring| ring.len() > RING).collect();
        assert!(long.is_empty(), "{name}: files that import each other in a ring of more than {RING}: {long:?}");
    }
}

#[test]
fn imports_are_found() {
    let lib = "//! # Rooms\n//!\n//! * `a`, `b`: x, `no`\n//! * `c`: y\n//!\n//! # End\n//! * `z`: no\npub use c::C;\n";
    let a = "use std::fmt;\nuse crate::{C as D, b::{self, B}};\n#[cfg(test)]\nmod tests {\n    use crate::z::Z;\n}\n";
    let b = "mod inner;\n#[cfg(test)]\nmod other;\npub(crate) use inner::I;\nfn f() { let x = super::a::f(\"crate::c::C\"); } // crate::c\n";
    let files = [
        ("lib.rs", lib),
        ("a.rs", a),
        ("b/mod.rs", b),
        ("b/inner.rs", "use super::B;\nfn f() -> crate::C {}\n"),
        ("b/other.rs", "use crate::c::C;\n"),
        ("c.rs", "use crate::b::I;\npub struct C;\n"),
    ];
    let modules = Modules::of(&files.map(|(path, text)| (path.to_owned(), text)));
    let of = |name: &str| modules.imports()[&module(name)].iter().map(|to| to.join("/")).collect::<Vec<_>>();
    assert_eq!(modules.rooms, ["a", "b", "c"]);
    assert_eq!(
        [of("a.rs"), of("b/mod.rs"), of("b/inner.rs"), of("c.rs")].map(|to| to.join(" ")),
        ["b c", "a b/inner", "b c", "b/inner"]
    );
    let up: Vec<_> = modules.arrows_up().into_iter().map(|(from, to)| from + &to).collect();
    assert_eq!(up, ["ab", "ac", "bc"]);
    // What leads from `b` to `a` leads not back by `b/inner`.
    let rings: Vec<Vec<String>> =
        modules.rings().iter().map(|ring| ring.iter().map(|file| file.join("/")).collect()).collect();
    assert_eq!(rings, [vec!["a".to_owned(), "b".to_owned()], vec!["b/inner".to_owned(), "c".to_owned()]]);
}
