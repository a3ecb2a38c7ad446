//! Names and short texts that users type.

use crate::{
    damage::{changes, damaged},
    hold, sound,
};
use hecate::Choose;
use hecate_conformance::record::Record;
use hecate_core::{Algorithm, rules::AnyRule};
use hecate_models::{Config, Precision};
use hecate_train::FirstStates;
use proptest::prelude::*;

/// Names that something has, and others.
fn words() -> impl Strategy<Value = String> {
    const KNOWN: [&str; 13] = [
        "auto",
        "scan",
        "chunk:64",
        "best",
        "reference",
        "cuda:1",
        "wgpu:radeon",
        "cpu",
        "bf16",
        "delta",
        "titans_mlp",
        "hope",
        "other",
    ];
    let known = (prop::sample::select(&KNOWN[..]), changes())
        .prop_map(|(word, changes)| String::from_utf8_lossy(&damaged(word.as_bytes(), &changes)).into_owned());
    prop_oneof![known, ".{0,24}"]
}

#[test]
fn names_are_known_or_refused() {
    hold(800, &words(), |word| {
        if let Ok(algorithm) = sound("Algorithm", || word.parse::<Algorithm>())? {
            prop_assert_eq!(algorithm.to_string().parse::<Algorithm>().ok(), Some(algorithm));
        }
        if let Ok(choice) = sound("Choose", || word.parse::<Choose>())? {
            prop_assert!(choice.to_string().parse::<Choose>().is_ok());
        }
        if let Ok(precision) = sound("Precision", || Precision::named(&word))? {
            prop_assert_eq!(precision.name(), &word);
        }
        if sound("FirstStates", || FirstStates::named(&word))?.is_ok() {
            prop_assert!(FirstStates::NAMES.contains(&word.as_str()));
        }
        if let Ok(rule) = sound("AnyRule", || AnyRule::named(&word))? {
            prop_assert_eq!(rule.name(), &word);
        }
        sound("Config::uniform", || Config::uniform(&word, 2, 16, 2))?.map_or(Ok(()), |config| {
            prop_assert!(config.validate().is_ok());
            Ok(())
        })
    });
}

#[test]
fn records_are_read_or_refused() {
    let whole = include_str!("../../docs/conformance.tsv");
    let head: String = whole.lines().take(12).flat_map(|line| [line, "\n"]).collect();
    assert!(Record::parse(whole).is_ok());
    hold(400, &changes(), |changes| {
        let text = String::from_utf8_lossy(&damaged(head.as_bytes(), &changes)).into_owned();
        sound("Record::parse", || Record::parse(&text))?.map_or(Ok(()), |record| {
            let written = sound("Record", || (record.table(), record.unrecorded("cuda").len(), record.to_string()))?.2;
            // Digits that are not written are lost once.
            let again = Record::parse(&written).map(|record| record.to_string());
            prop_assert_eq!(again, Ok(written));
            Ok(())
        })
    });
}
