//! What a reader of the terminal sees: figures with names, text that does nothing to a terminal, runs and what they are.

use super::harness::{Outcome, Workspace};
use std::fs;

/// A workspace with a run of so many steps.
fn trained(steps: &str) -> (Workspace, Outcome) {
    let workspace = Workspace::new();
    let outcome = workspace.train(&["--steps", steps, "--measure", "all"]);
    outcome.succeeded();
    (workspace, outcome)
}

/// The line that begins so.
fn line<'a>(text: &'a str, start: &str) -> &'a str {
    text.lines().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("no `{start}` in {text}"))
}

/// Its numbers.
fn numbers(line: &str) -> Vec<f64> {
    line.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

/// What training prints at its end is what `eval` finds.
#[test]
fn both_figures_of_held_out_text_have_names() {
    let (workspace, run) = trained("6");
    let held_out = ["eval", "--text", "text.txt", "--tail", "0.1"];
    // The same tail that training held out.
    let found = workspace.run(&held_out);
    found.succeeded();
    // The window is that of the run; all figures are what training printed.
    let names = ["fresh windows of 24 ", "one pass "];
    let tokens = (workspace.text().len() as f64 * 0.1).round() - 1.0;
    for name in names {
        assert_eq!(numbers(line(&found.stdout, name)), numbers(line(&run.stdout, name)));
        assert!(line(&found.stdout, name).ends_with(&format!("{tokens} of {tokens}")), "{found:?}");
    }
    // Each is a figure of its own.
    let [fresh, pass] = names.map(|name| numbers(line(&found.stdout, name)));
    assert_ne!(fresh, pass);
    // What was measured on the way.
    let told = format!("bits/byte held out, one pass over {tokens} of {tokens} tokens");
    assert!(run.stderr.contains(&told), "{run:?}");
    // A window as long as the text is one pass.
    let found = workspace.run(&[&held_out[..], &["--fresh", "1000"]].concat());
    assert_eq!(numbers(line(&found.stdout, "fresh windows of 1000 "))[1..4], pass[..3]);
}

/// The text has some 3,400 tokens: two whole ranges and a part of the third.
#[test]
fn a_text_is_measured_by_position() {
    let (workspace, _) = trained("2");
    let found = workspace.run(&["eval", "--text", "text.txt", "--by-position"]);
    found.succeeded();
    // Tokens of each range are the last column.
    let counts: Vec<f64> =
        ["0-255 ", "256-1k ", "1k-4k "].map(|name| *numbers(line(&found.stdout, name)).last().unwrap()).into();
    assert_eq!(counts, [256.0, 768.0, (workspace.text().len() - 1 - 1024) as f64]);
    // The text reaches no further.
    assert!(!found.stdout.contains("4k-16k"), "{found:?}");
}

/// Twenty megabytes are held out and one step is learned; lines tell how far the measurement is.
#[test]
fn the_last_measurement_takes_the_time_it_is_given() {
    let workspace = Workspace::new();
    fs::write(workspace.path("text.txt"), workspace.text().repeat(8_000)).unwrap();
    // Without a limit it would take minutes.
    let began = std::time::Instant::now();
    let found = workspace.train(&["--steps", "1", "--holdout", "0.9", "--measure", "5"]);
    found.succeeded();
    assert!(began.elapsed().as_secs() < 30, "{found:?}");
    // Both are cut short, neither is left out.
    for name in ["fresh windows of 24 ", "one pass "] {
        let measured = numbers(line(&found.stdout, name));
        let [.., part, all] = measured.as_slice() else { panic!("{found:?}") };
        assert!(0.0 < *part && part < all && *all > 2e7, "{found:?}");
        assert!(found.stderr.contains(&format!("{name} ")), "{found:?}");
    }
    // No terminal is here, and a line comes all the same, with the time that is left.
    assert!(found.stderr.contains("tokens measured  0:0"), "{found:?}");
    workspace.train(&["--measure", "soon"]).failed(2, &["soon", "all", "seconds"]);
}

/// A model that has hardly learned writes every byte that there is.
#[test]
fn what_a_model_writes_does_nothing_to_a_terminal() {
    let workspace = Workspace::new();
    let run = workspace.train(&["--steps", "1", "--lr", "1e-6"]);
    run.succeeded();
    // What a terminal would act on.
    let harmless = |text: &str| text.chars().all(|c| !c.is_control() || c == '\n' || c == '\t');
    assert!(harmless(&run.stdout) && harmless(&run.stderr), "{run:?}");
    let generate = |flags: &[&str]| {
        let found = workspace.run(&[&["generate", "--prompt", "\u{1b}[2J", "--tokens", "300"], flags].concat());
        found.succeeded();
        found.stdout
    };
    // The prompt clears the screen, and so may the model.
    let (shown, raw) = (generate(&[]), generate(&["--raw"]));
    assert!(harmless(&shown) && shown.starts_with("␛[2J"), "{shown:?}");
    assert!(raw.starts_with("\u{1b}[2J") && !harmless(&raw[4..]), "{raw:?}");
    // Paths are told of too.
    let refused = workspace.run(&["train", "--text", "\u{1b}[31mred"]);
    refused.failed(1, &["␛[31mred", "no such file"]);
    assert!(harmless(&refused.stderr), "{refused:?}");
}

/// A prompt is the same text wherever it comes from.
#[test]
fn a_prompt_comes_from_a_file_or_from_standard_input() {
    let (workspace, _) = trained("3");
    fs::write(workspace.path("prompt.txt"), "1 plus 2").unwrap();
    let generate = |flags: &[&str], input: &str| {
        let found = workspace.run_fed(&[&["generate", "--tokens", "9", "--temperature", "0"], flags].concat(), input);
        found.succeeded();
        found.stdout
    };
    // Greedy: the same prompt has one continuation.
    let given = generate(&["--prompt", "1 plus 2"], "");
    assert_eq!(generate(&["--prompt-file", "prompt.txt"], ""), given);
    assert_eq!(generate(&["--prompt-file", "-"], "1 plus 2"), given);
    // One of them, and no more.
    workspace.run(&["generate", "--prompt", "a", "--prompt-file", "prompt.txt"]).failed(2, &["cannot be used with"]);
    workspace.run(&["generate", "--prompt-file", "nowhere"]).failed(1, &["nowhere", "no such file"]);
    workspace.run(&["generate", "--prompt", "a", "--continue"]).failed(2, &["cannot be used with"]);
    workspace.run(&["generate", "--continue"]).failed(2, &["--interactive"]);
}

/// With fresh memories, and with memories carried from line to line.
#[test]
fn lines_are_continued_one_after_another() {
    let (workspace, _) = trained("60");
    let flags = ["generate", "--tokens", "12", "--temperature", "0", "--raw"];
    let run = |more: &[&str], input: &str| {
        let found = workspace.run_fed(&[&flags, more].concat(), input);
        found.succeeded();
        found.stdout
    };
    // What follows a prompt, without the prompt and the newline at its end.
    let after = |prompt: &str| run(&["--prompt-file", "-"], prompt)[prompt.len()..].trim_end_matches('\n').to_owned();
    // The tiny model writes lines like those of its text.
    let (first, second) = ("1 plus 2 is\n", "3 plus 40 is\n");
    let one = after(first);
    let fresh = run(&["--interactive"], &format!("{first}{second}"));
    assert_eq!(fresh.replace('\n', ""), format!("{one}{}", after(second)).replace('\n', ""));
    // As if both lines and the first answer had been one prompt.
    let carried = run(&["--interactive", "--continue"], &format!("{first}{second}"));
    let whole = run(&["--prompt-file", "-"], first);
    let two = after(&format!("{}{second}", &whole[..whole.len() - 1]));
    assert_eq!(carried.replace('\n', ""), format!("{one}{two}").replace('\n', ""));
}

/// The text that ends it is not written.
#[test]
fn a_text_ends_where_it_is_told_to() {
    let (workspace, _) = trained("60");
    let generate = |flags: &[&str]| {
        let found = workspace.run(&[&["generate", "--prompt", "1 plus", "--tokens", "60"], flags].concat());
        found.succeeded();
        found.stdout
    };
    // Drawn with the same seed every time.
    let whole = generate(&[]);
    // Two characters of the continuation, where they come first.
    let stop: String = whole.chars().skip(20).take(2).collect();
    let end = "1 plus".len() + whole["1 plus".len()..].find(&stop).unwrap();
    assert_eq!(generate(&["--stop", "never there", "--stop", &stop]), format!("{}\n", &whole[..end]));
    workspace.run(&["generate", "--prompt", "a", "--stop", ""]).failed(1, &["--stop", "empty"]);
}

/// One value is meant, and it is the one that was typed last.
#[test]
fn the_last_of_a_repeated_flag_counts() {
    let workspace = Workspace::new();
    // As scripts do that add flags to a line of defaults.
    workspace.train(&["--steps", "9", "--layers", "2", "--steps", "2"]).succeeded();
    assert_eq!(workspace.recorded_steps("runs/text"), [1, 2]);
    workspace.run(&["eval", "--text", "text.txt", "--tail", "0.5", "--tail", "0.1"]).succeeded();
}

/// Bytes of a folder's files, each counted once however many names it has there.
#[cfg(unix)]
fn bytes_of(folder: &std::path::Path, seen: &mut std::collections::BTreeMap<u64, u64>) {
    use std::os::unix::fs::MetadataExt;
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let found = entry.metadata().unwrap();
        match found.is_dir() {
            true => bytes_of(&entry.path(), seen),
            false => drop(seen.insert(found.ino(), found.len())),
        }
    }
}

/// By the configuration's widths, and by the files themselves; large ones have several names.
#[cfg(unix)]
#[test]
fn info_counts_parameters_and_bytes() {
    let workspace = Workspace::new();
    // Without convolutions, all parameters are matrices and norms; weights of 3.4 MB have several names.
    workspace.train(&["--steps", "2", "--mixer", "attention", "--conv", "0", "--width", "256"]).succeeded();
    let found = workspace.run(&["info"]);
    found.succeeded();
    let config: serde_json::Value =
        serde_json::from_slice(&fs::read(workspace.path("runs/text/config.json")).unwrap()).unwrap();
    let size = |name: &str| config[name].as_u64().unwrap();
    let (vocabulary, hidden, inner) = (size("vocabulary_size"), size("hidden_size"), 688);
    // Embeddings, queries, keys, values and outputs, three matrices of the MLP, and three norms.
    let expected = vocabulary * hidden + 4 * hidden * hidden + 3 * hidden * inner + 3 * hidden;
    let told = line(&found.stdout, "parameters ").split_whitespace().last().unwrap().replace(',', "");
    assert_eq!(told.parse::<u64>().unwrap(), expected, "{found:?} {config}");
    // By number of the file: as many names as it has are one.
    let mut files = std::collections::BTreeMap::new();
    bytes_of(&workspace.path("runs/text"), &mut files);
    let bytes: u64 = files.values().sum();
    assert!(bytes > 3_000_000, "too small to be linked: {bytes}");
    let told = line(&found.stdout, "on disk ");
    assert!(told.ends_with(&format!(" {:.1} MB", bytes as f64 / 1e6)), "{told}, and {bytes} bytes of {files:?}");
}

/// Unless told otherwise, as long as training took: all of its steps, those before it was resumed too.
#[test]
fn the_last_measurement_takes_no_longer_than_training_did() {
    let workspace = Workspace::new();
    fs::write(workspace.path("text.txt"), workspace.text().repeat(3_000)).unwrap();
    let part = |found: &Outcome| {
        found.succeeded();
        ["fresh windows of 24 ", "one pass "].map(|name| {
            let measured = numbers(line(&found.stdout, name));
            let [.., part, all] = measured.as_slice() else { panic!("{found:?}") };
            assert!(0.0 < *part && part < all && *all > 7e6, "{found:?}");
            *part
        })
    };
    // Both figures are cut short after milliseconds.
    let short = part(&workspace.train(&["--steps", "2", "--holdout", "0.9"]));
    // As if each of the two steps had taken two seconds.
    let record = workspace.path("runs/text/metrics.jsonl");
    // Each step has 48 tokens.
    let lines = workspace.record("runs/text").into_iter().map(|mut line| {
        line["tokens_per_second"] = 24.into();
        format!("{line}\n")
    });
    fs::write(&record, lines.collect::<String>()).unwrap();
    let began = std::time::Instant::now();
    let long = part(&workspace.run(&["train", "--resume"]));
    let took = began.elapsed().as_secs_f64();
    assert!((4.0..12.0).contains(&took), "{took} s");
    // Milliseconds before, seconds now.
    assert!(long[0] > 4.0 * short[0] && long[1] > 4.0 * short[1], "{short:?} {long:?}");
}

/// A run that learned more, a younger one of another kind, and what becomes of a damaged one.
#[test]
fn runs_are_listed_and_described() {
    let (workspace, run_told) = trained("6");
    workspace.train(&["--steps", "3", "--mixer", "mag", "--rule", "titans", "--out", "runs/other"]).succeeded();
    let listed = workspace.run(&["runs"]);
    listed.succeeded();
    // A figure of held-out text says of which kind it is.
    assert!(listed.stdout.lines().next().unwrap().contains("  bits/byte, one pass  age"), "{listed:?}");
    // After the heading and the line below it.
    let rows: Vec<Vec<&str>> = listed.stdout.lines().skip(2).map(|line| line.split_whitespace().collect()).collect();
    assert_eq!((rows[0][0], rows[0][1], rows[0][3]), ("text", "delta", "6/6"), "{listed:?}");
    assert_eq!((rows[1][0], rows[1][1], rows[1][2]), ("other", "mag", "(titans)"), "{listed:?}");
    // Seconds.
    assert!(
        rows[0].len() == 6 && rows[0][5].strip_suffix('s').is_some_and(|age| age.parse::<u32>().is_ok()),
        "{listed:?}"
    );
    // The lowest entry of the record is the best.
    let record = fs::read_to_string(workspace.path("runs/text/metrics.jsonl")).unwrap();
    let values: Vec<serde_json::Value> = record.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let best = values.iter().filter_map(|value| value["held_out_bits_per_byte"].as_f64()).fold(f64::INFINITY, f64::min);
    assert_eq!(rows[0][4], format!("{best:.3}"), "{listed:?}");

    // One of them in full.
    let found = workspace.run(&["info", "runs/text"]);
    found.succeeded();
    assert!(line(&found.stdout, "model ").contains("delta in 1 layer of width 16, of bytes"), "{found:?}");
    assert!(line(&found.stdout, "steps ").contains("6 of 6, each of 48 tokens"), "{found:?}");
    assert!(line(&found.stdout, "text ").contains("text.txt"), "{found:?}");
    assert!(line(&found.stdout, "best ").contains(&format!("{best:.4} bits/byte")), "{found:?}");
    assert!(line(&found.stdout, "last loss ").ends_with("(fresh windows of 24), in step 6"), "{found:?}");
    assert!(run_told.stderr.contains("losses of steps are of fresh windows of 24\n"), "{run_told:?}");
    assert!(line(&found.stdout, "picture ").contains("runs/text/loss.svg"), "{found:?}");
    // Without a name it is the run trained last.
    assert!(line(&workspace.run(&["info"]).stdout, "run ").ends_with("runs/other"));
    // A run that is damaged is a row, and an error where it is asked for.
    fs::write(workspace.path("runs/other/config.json"), "{").unwrap();
    assert!(line(&workspace.run(&["runs"]).stdout, "other ").contains("damaged"));
    workspace.run(&["info", "runs/other"]).failed(1, &["config.json"]);
    // By a flag, as other commands are told; not both ways at once.
    assert!(line(&workspace.run(&["info", "--run", "runs/text"]).stdout, "run ").ends_with("runs/text"));
    workspace.run(&["info", "runs/text", "--run", "runs/text"]).failed(2, &["cannot be used with"]);
    workspace.run(&["info", "nowhere"]).failed(1, &["nowhere", "hecate runs"]);
    workspace.run(&["runs", "nowhere"]).failed(1, &["nowhere", "hecate train"]);
}
