//! A server on a real socket, and what clients get from it.
//!
//! * `texts`: a text is what the library writes, in all the ways to ask for it
//! * `drawing`: how tokens are drawn, and how likely they were
//! * `schemas`: answers that are kept to a schema
//! * `tools`: functions that a model calls
//! * `responses`: conversations in OpenAI's newer form
//! * `prefixes`: prompts that begin as others did
//! * `sessions`: a text goes on later, and in another server
//! * `limits`: what is refused, and what is let go
//! * `malformed`: requests that nobody should send
//!
//! The command as a process is in the tests of `hecate-memory-cli`.

mod serving {
    mod drawing;
    mod harness;
    mod limits;
    mod malformed;
    mod prefixes;
    mod responses;
    mod schemas;
    mod sessions;
    mod texts;
    mod tools;
}
