//! What is refused: each mistake by its flag or file, and with the way out.

use super::harness::Workspace;
use std::{
    fs,
    time::{Duration, Instant},
};

/// Exit status, command line, and what the message must contain: 1 for what the command refuses, 2 for flags that cannot
/// be read.
/// What the message contains is the flag or file, and then what to change.
#[test]
fn mistakes_are_named_with_a_way_out() {
    let workspace = Workspace::new();
    fs::write(workspace.path("empty.txt"), "").unwrap();
    // `é` in Latin-1: the fourth byte is no UTF-8.
    fs::write(workspace.path("latin.txt"), b"caf\xe9").unwrap();
    fs::write(workspace.path("list.json"), "[]").unwrap();
    fs::write(workspace.path("empty.json"), "{}").unwrap();
    // Fewer bytes than one sequence has.
    fs::write(workspace.path("short.txt"), "short").unwrap();
    fs::write(
        workspace.path("bad.json"),
        "{\"layers\": [{\"mixer\": {\"kind\": \"memory\", \"rule\": {\"name\": \"gamma\"}}}]}",
    )
    .unwrap();
    let cases: &[(i32, &str, &[&str])] = &[
        // Texts and files.
        (1, "train --text nowhere.txt", &["nowhere.txt", "no such file"]),
        (1, "train --text empty.txt", &["empty.txt", "empty"]),
        (1, "train --text latin.txt", &["latin.txt", "byte 3", "iconv"]),
        (1, "train --text short.txt", &["short.txt", "too short"]),
        (2, "train --text text.txt --config empty.json --mlp 32", &["--config", "--mlp"]),
        (1, "train --text text.txt --config bad.json", &["bad.json", "gamma", "titans"]),
        (1, "train --text text.txt --config nowhere.json", &["nowhere.json", "no such file"]),
        (1, "train --text text.txt --config empty.json", &["empty.json", "names no `layers`"]),
        (1, "train --text text.txt --config list.json", &["list.json", "the file is a list, expected an object"]),
        // Numbers out of their ranges, also those whose products would overflow.
        (1, "train --text text.txt --heads 3", &["--heads", "`--width` = 128", "`--key-dim`"]),
        (1, "train --text text.txt --lr 0", &["learning rate"]),
        (1, "train --text text.txt --lr nan", &["learning rate", "NaN"]),
        // In the configuration no limit is no number; on the command line it is 0.
        (1, "train --text text.txt --clip -1", &["--clip", "-1", "0 for no limit"]),
        (1, "train --text text.txt --clip nan", &["--clip", "NaN", "0 for no limit"]),
        (1, "train --text text.txt --holdout 1", &["held-out fraction"]),
        (1, "train --text text.txt --batch 0", &["batch", "at least 1"]),
        (1, "train --text text.txt --batch 1000000000000000000", &["batch", "at most"]),
        (1, "train --text text.txt --tokens 18446744073709551615", &["sequence length", "at most"]),
        (1, "train --text text.txt --accumulate 18446744073709551615", &["accumulate", "at most"]),
        (1, "train --text text.txt --layers 1000000000000", &["layers", "at most"]),
        (1, "train --text text.txt --width 2305843009213693952", &["--width (hidden_size)", "at most"]),
        (1, "train --text text.txt --width 1048576 --heads 1024", &["number of parameters", "at most"]),
        (1, "train --text text.txt --width 1048576 --heads 65536", &["elements of the gates", "at most"]),
        (1, "train --text text.txt --key-dim 18446744073709551615", &["--key-dim", "key_dim", "at most"]),
        // Sizes by the flags that were typed, also those that follow from other sizes.
        (1, "train --text text.txt --mlp 0", &["--mlp (intermediate_size)", "at least 1"]),
        (1, "train --text text.txt --mixer attention --key-dim 3", &["--key-dim", "head_dim", "even"]),
        (1, "train --text text.txt --mixer mag --width 12 --heads 4", &["--width, --heads", "head_dim", "even"]),
        (1, "bench recall --width 0", &["--width (hidden_size)", "at least 1"]),
        (1, "train --text text.txt --conv 18446744073709551615", &["conv", "at most 256"]),
        // A convolution that is not short takes minutes a step.
        (1, "train --text text.txt --conv 257", &["--conv", "at most 256"]),
        (1, "train --text text.txt --mixer attention --conv 100000", &["--conv", "at most 256"]),
        (1, "train --text text.txt --mixer attention --window 18446744073709551615", &["window", "at most"]),
        (1, "train --text text.txt --save-every 0", &["save every"]),
        (1, "train --text text.txt --dropout 1", &["attention_dropout", "under 1"]),
        // Options of another rule or mixer.
        (1, "train --text text.txt --rule titans --erase decayed", &["--rule titans", "erase", "frozen"]),
        (1, "train --text text.txt --mixer attention --frozen 4", &["--frozen", "--mixer memory"]),
        // The rule by default is named too: it would not be there.
        (1, "train --text text.txt --mixer attention --rule delta", &["--rule", "attention", "--mixer memory"]),
        (1, "train --text text.txt --mixer hope --rule titans", &["--rule", "hope", "--mixer memory"]),
        (1, "train --text text.txt --mixer hope --momentum 0.9", &["--momentum", "--mixer memory"]),
        // What forgets nothing.
        (1, "train --text text.txt --mixer attention --retain zero", &["--retain", "--mixer memory"]),
        // A rule without a start, one whose strengths would have to be divided, and one that reads what is neither old nor new.
        (1, "train --text text.txt --rule atlas --retain initial", &["mixer.retain", "initial", "zero", "atlas"]),
        (1, "train --text text.txt --rule dgd --frozen 4 --retain initial", &["mixer.retain", "without frozen groups"]),
        (1, "train --text text.txt --rule yaad --read before --retain initial", &["mixer.retain", "read after"]),
        (2, "train --text text.txt --retain nothing", &["--retain", "initial", "zero"]),
        (1, "train --text text.txt --rule delta --momentum 0.9", &["mixer.momentum", "only titans"]),
        (1, "train --text text.txt --frozen 0", &["frozen"]),
        (1, "train --text text.txt --window 5", &["--window", "--mixer attention"]),
        (1, "train --text text.txt --persistent 2", &["--persistent", "mag, mal and mac"]),
        (1, "train --text text.txt --mixer mag --segment 8", &["--segment", "--mixer mac"]),
        (1, "train --text text.txt --mixer mac --segment 8 --frozen 3", &["layers[0].mixer.segment", "multiple of 3"]),
        (1, "train --text text.txt --mixer mag --window 1", &["layers[0].mixer.attention.window", "at least 2"]),
        (1, "train --text text.txt --periods 2,4", &["--periods", "memory", "cms or conductor"]),
        (1, "train --text text.txt --mixer cms --shard 4", &["--shard", "cms", "tnt"]),
        (1, "train --text text.txt --mixer hope --read before", &["--read", "hope", "--mixer memory"]),
        (1, "train --text text.txt --mixer cms --periods 4,2", &["periods[1]", "more than", "4"]),
        (1, "train --text text.txt --mixer conductor --frozen 4", &["memory.rule.frozen", "null"]),
        (1, "train --text text.txt --mixer tnt --locals 3 --shard 8", &["locals[0]", "divisor of shard = 8"]),
        (1, "train --text text.txt --tokenizer nowhere.json", &["--tokenizer", "nowhere.json", "Hugging Face"]),
        // Files where folders are wanted, and below files.
        (1, "train --text text.txt --out text.txt", &["--out", "text.txt is a file", "folder"]),
        (1, "train --text text.txt --out text.txt/run --overwrite", &["--out", "text.txt is a file", "folder"]),
        (1, "train --resume text.txt", &["--resume", "text.txt is a file", "folder"]),
        (1, "generate --prompt-file nowhere.txt", &["nowhere.txt", "no such file"]),
        // Runs that are not there.
        (1, "train --resume", &["runs", "no trained run", "--resume DIR"]),
        (1, "train --resume nowhere", &["nowhere", "no such folder"]),
        (1, "generate --prompt a", &["runs", "hecate train", "--run DIR"]),
        (1, "generate --prompt a --run nowhere", &["nowhere", "no such folder"]),
        // Sampling and measuring.
        (1, "generate --prompt a --temperature -1", &["temperature"]),
        (1, "generate --prompt a --top-p 2", &["top-p"]),
        (1, "eval --tail 0", &["--tail"]),
        // What clap refuses: names, numbers, flags that exclude each other.
        (2, "train --rule gamma", &["gamma", "hebbian"]),
        (2, "train --steps 0", &["--steps"]),
        (2, "train --steps many", &["--steps", "many"]),
        (2, "train --resume x --lr 1", &["--resume", "--lr"]),
        (2, "train --resume x --layers 3", &["--resume", "--layers"]),
        (2, "train --resume x --shard 3", &["--resume", "--shard"]),
        (2, "train --device abacus", &["abacus", "cpu"]),
        (2, "generate", &["--prompt"]),
        (2, "juggle", &["juggle"]),
    ];
    // Said at once: nothing of such a size is made first.
    let start = Instant::now();
    let line = "train --text text.txt --layers 65536";
    workspace.run(&line.split(' ').collect::<Vec<_>>()).failed(1, &["number of parameters", "at most"]);
    assert!(start.elapsed() < Duration::from_secs(2), "it took {:?}", start.elapsed());
    // Only Linux says how much memory there is.
    if cfg!(target_os = "linux") {
        let line = "train --text text.txt --layers 2 --width 256 --batch 200000 --tokens 64";
        workspace.run(&line.split(' ').collect::<Vec<_>>()).failed(1, &["does not fit", "GB", "try"]);
    }
    // Some sixty starts of the program, each over in milliseconds.
    for (code, line, told) in cases {
        workspace.run(&line.split(' ').collect::<Vec<_>>()).failed(*code, told);
    }
    assert!(!workspace.path("runs").exists(), "a refused run leaves nothing behind");
}
