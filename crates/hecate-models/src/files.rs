//! Files that others may have written: they are plain, whole and as their checksums say, or refused.
//!
//! Models, and what trains them, read and write nothing by other means.

mod checksum;
mod json;
mod names;
mod plain;
mod whole;

pub(crate) use checksum::{Checksum, DIGITS, checksum_around};
pub use checksum::{checksum, checksum_of};
pub(crate) use json::{from_slice, unmarked};
pub use json::{parse_json, to_json};
pub use names::{BEST, CONFIG, MODEL, TOKENIZER, checkpoint_name, names, step_of};
pub use plain::{JSON, Links, is_folder, is_there, open, open_with, read};
pub use whole::{Unfinished, flush, read_file, write_whole};
pub(crate) use whole::{write_new, write_whole_with};
