//! C++ as words, and its macros: as much as it takes to find what each kernel takes.

use std::collections::BTreeMap;

/// A macro with parameters.
struct Macro {
    parameters: Vec<String>,
    body: Vec<String>,
}

/// A kernel's text without its lines for the preprocessor, which are kept by themselves.
pub(super) struct Preprocessed {
    /// Words of each text, macros not expanded.
    pub(super) texts: Vec<Vec<String>>,
    /// Macros that are written like functions.
    macros: BTreeMap<String, Macro>,
    /// Macros that stand for a whole number.
    pub(super) numbers: BTreeMap<String, usize>,
}

/// Macros that declare a kernel. They are left as they are, with the name and the argument's type in front.
const DECLARE: [&str; 2] = ["KERNEL", "CLUSTER_KERNEL"];

/// Names, numbers and single characters, without spaces.
pub(super) fn words(text: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut inside = false;
    for c in text.chars() {
        let of_name = c == '_' || c.is_ascii_alphanumeric();
        match words.last_mut().filter(|_| inside && of_name) {
            Some(word) => word.push(c),
            None if c.is_whitespace() => {}
            None => words.push(c.into()),
        }
        inside = of_name;
    }
    words
}

/// What stands between the bracket at `open` and the one that closes it, divided at commas, and where it ends.
/// Between braces there are statements, where `<` compares.
pub(super) fn between(words: &[String], open: usize) -> (Vec<Vec<String>>, usize) {
    let (mut parts, mut depth) = (vec![Vec::new()], 0);
    let (opening, closing) = if words[open] == "{" { ("{", "}") } else { ("(<[{", ")>]}") };
    for (i, word) in words.iter().enumerate().skip(open) {
        depth += usize::from(opening.contains(word.as_str()));
        depth -= usize::from(closing.contains(word.as_str()));
        match word.as_str() {
            _ if depth == 0 => return (parts, i + 1),
            "," if depth == 1 => parts.push(Vec::new()),
            _ if i > open => parts.last_mut().expect("one at least").push(word.clone()),
            _ => {}
        }
    }
    panic!("nothing closes `{}`", words[open..words.len().min(open + 9)].join(" "))
}

impl Preprocessed {
    /// Of a file and the headers that it reaches.
    pub(super) fn new(texts: &[&str]) -> Self {
        let mut whole = Self { texts: Vec::new(), macros: BTreeMap::new(), numbers: BTreeMap::new() };
        for text in texts {
            let lines = text.lines().map(|line| line.split("//").next().unwrap_or_default().trim_end());
            // A line goes on after a backslash.
            let joined = lines.flat_map(|line| [line, "\n"]).collect::<String>().replace("\\\n", " ");
            let (commands, code): (Vec<_>, Vec<_>) = joined.lines().partition(|line| line.starts_with('#'));
            commands.into_iter().filter_map(|line| line.strip_prefix("#define ")).for_each(|line| whole.define(line));
            whole.texts.push(words(&code.join("\n")));
        }
        whole
    }

    /// Takes in what follows `#define`.
    fn define(&mut self, line: &str) {
        let end = line.find(|c: char| c != '_' && !c.is_ascii_alphanumeric()).unwrap_or(line.len());
        let (name, rest) = line.split_at(end);
        let body = words(rest);
        if rest.starts_with('(') {
            let (parameters, at) = between(&body, 0);
            let parameters = parameters.iter().map(|parameter| parameter.concat()).collect();
            self.macros.insert(name.to_owned(), Macro { parameters, body: body[at..].to_vec() });
        } else if let [number] = body.as_slice()
            && let Ok(number) = number.parse()
        {
            self.numbers.insert(name.to_owned(), number);
        }
    }

    /// The words with macros in place, but for those that declare a kernel.
    pub(super) fn expanded(&self, words: &[String]) -> Vec<String> {
        let (mut out, mut at) = (Vec::new(), 0);
        while let Some(word) = words.get(at) {
            let called = words.get(at + 1).is_some_and(|next| next == "(") && !DECLARE.contains(&word.as_str());
            match self.macros.get(word).filter(|_| called) {
                Some(found) => {
                    let (arguments, end) = between(words, at + 1);
                    out.extend(self.expanded(&found.with(arguments)));
                    at = end;
                }
                None => {
                    out.push(word.clone());
                    at += 1;
                }
            }
        }
        out
    }

    /// Kernels of the first text, and the types that they take.
    pub(super) fn kernels(&self) -> BTreeMap<String, Vec<String>> {
        let words = self.expanded(&self.texts[0]);
        let (mut kernels, mut types) = (BTreeMap::new(), BTreeMap::new());
        for (at, word) in words.iter().enumerate() {
            if DECLARE.contains(&word.as_str()) {
                let (mut arguments, _) = between(&words, at + 1);
                kernels.insert(arguments.remove(0).concat(), arguments.remove(0));
            } else if word == "typedef" {
                let declared: Vec<_> = words[at + 1..].iter().take_while(|word| *word != ";").cloned().collect();
                let (name, of) = declared.split_last().expect("a type and its name");
                types.insert(vec![name.clone()], of.to_vec());
            }
        }
        kernels.into_iter().map(|(kernel, of)| (kernel, types.get(&of).cloned().unwrap_or(of))).collect()
    }
}

impl Macro {
    /// The body with arguments in place of parameters, and words joined where `##` stands between them.
    fn with(&self, mut arguments: Vec<Vec<String>>) -> Vec<String> {
        let variadic = self.parameters.last().is_some_and(|last| last == "...");
        let named = self.parameters.len() - usize::from(variadic);
        let rest = arguments.split_off(named.min(arguments.len())).join(&",".to_owned());
        let value = |word: &String| match self.parameters.iter().position(|parameter| parameter == word) {
            Some(i) => arguments.get(i).cloned().unwrap_or_default(),
            None if word == "__VA_ARGS__" => rest.clone(),
            None => vec![word.clone()],
        };
        let mut out: Vec<String> = Vec::new();
        let mut words = self.body.iter().flat_map(value).peekable();
        while let Some(word) = words.next() {
            if word != "#" {
                out.push(word);
                continue;
            }
            // The second half of `##`; an empty argument leaves nothing to be joined with.
            words.next();
            if let Some(next) = words.next_if(|next| next != "#") {
                out.last_mut().expect("a word to join with").push_str(&next);
            }
        }
        out
    }
}
