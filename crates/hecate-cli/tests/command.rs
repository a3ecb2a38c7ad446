//! The `hecate` command from outside: what it writes, what it says, how it fails, and how it goes on.

mod command {
    mod bench;
    mod documents;
    mod harness;
    #[cfg(unix)]
    mod stopping;
    mod usage;
}
