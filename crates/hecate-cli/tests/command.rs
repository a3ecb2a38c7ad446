//! The `hecate` command from outside: what it writes, what it says, how it fails, and how it goes on.

mod command {
    mod bench;
    mod bench_text;
    #[cfg(feature = "tokenizer")]
    mod chat;
    mod choices;
    mod documents;
    mod draft;
    mod finetune;
    // Links, pipes, limits of files and signals are those of Unix.
    #[cfg(unix)]
    mod foreign;
    #[cfg(unix)]
    mod full_disk;
    mod going_on;
    mod harness;
    mod mistakes;
    mod prepared;
    mod quantize;
    mod released;
    #[cfg(all(unix, feature = "serve"))]
    mod serving;
    mod settings;
    #[cfg(feature = "spikes")]
    mod spikes;
    #[cfg(unix)]
    mod stopping;
    #[cfg(unix)]
    mod surroundings;
    mod terminal;
    mod texts;
    #[cfg(feature = "tokenizer")]
    mod tokenizers;
    mod usage;
    #[cfg(target_os = "linux")]
    mod watching;
}
