//! The documents are true: what they name is there, and their pictures are what the measured figures give.

mod features;
mod links;
mod pictures;
mod tutorial;
