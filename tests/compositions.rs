//! Memories composed with attention.

#[path = "compositions/reading.rs"]
mod reading;
