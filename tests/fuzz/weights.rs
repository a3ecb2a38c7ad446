//! Files of weights alone: those of Hecate, damaged, and headers that nobody checked before.

use crate::{
    damage::{changes, damaged},
    device, hold, sound,
};
use hecate_core::Tensor;
use hecate_cpu::Cpu;
use hecate_models::{Parameters, weights::count_parameters};
use proptest::{collection::vec, prelude::*};
use safetensors::SafeTensors;
use std::fs;

/// Two arrays with seven elements, all of this value.
fn parameters(value: f32) -> Parameters<Cpu> {
    let mut all = Parameters::new();
    for (name, shape) in [("a", vec![2, 3]), ("b", vec![1])] {
        let count = shape.iter().product();
        let array = Tensor::from_f32(&device(), shape, vec![value; count]).expect("a small array");
        all.add(name, array, false);
    }
    all
}

fn values(parameters: &Parameters<Cpu>) -> Vec<f32> {
    parameters.iter().flat_map(|parameter| parameter.value.to_f32().expect("values")).collect()
}

#[test]
fn damage_of_weights_is_noticed() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("weights.safetensors");
    parameters(0.5).save(&path).expect("room");
    let whole = fs::read(&path).expect("the file");
    assert_eq!(count_parameters(&path, None).expect("a header"), 7);
    hold(300, &changes(), |changes| {
        let bytes = damaged(&whole, &changes);
        fs::write(&path, &bytes).expect("room");
        let mut into = parameters(0.25);
        let loaded = sound("Parameters::load", || into.load(&path))?;
        prop_assert_eq!(loaded.is_ok(), bytes == whole, "{:?}", changes);
        // What is refused changes nothing.
        prop_assert_eq!(values(&into), vec![if loaded.is_ok() { 0.5 } else { 0.25 }; 7]);
        // Counting reads no array, so that it knows of damage in the header alone.
        let counted = sound("count_parameters", || count_parameters(&path, None))?;
        prop_assert_eq!(counted.is_ok(), SafeTensors::deserialize(&bytes).is_ok());
        Ok(())
    });
}

/// A file of another maker: its header, whose length is told rightly, and so many bytes after it.
fn file(header: &str, rest: usize) -> Vec<u8> {
    let length = (header.len() as u64).to_le_bytes();
    [&length[..], header.as_bytes(), &vec![0; rest]].concat()
}

#[test]
fn headers_of_others_are_read_or_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("weights.safetensors");
    let read = |bytes: &[u8]| -> Result<Option<u64>, TestCaseError> {
        fs::write(&path, bytes).expect("room");
        let _ = sound("Parameters::load", || Parameters::<Cpu>::load(&mut parameters(0.25), &path))?;
        Ok(sound("count_parameters", || count_parameters(&path, None))?.ok())
    };
    let size = prop_oneof![4 => 0..4u64, 1 => Just(u64::MAX / 8), 1 => any::<u64>()];
    let array = (vec(size.clone(), 0..3), size.clone(), size);
    hold(300, &(vec(array, 0..4), 0..40usize, changes()), |(arrays, rest, changes)| {
        let array = |(i, (shape, start, end)): (usize, &(Vec<u64>, u64, u64))| {
            format!(r#""{i}":{{"dtype":"F32","shape":{shape:?},"data_offsets":[{start},{end}]}}"#)
        };
        let arrays: Vec<String> = arrays.iter().enumerate().map(array).collect();
        let bytes = file(&format!("{{{}}}", arrays.join(",")), rest);
        read(&bytes)?;
        read(&damaged(&bytes, &changes))?;
        Ok(())
    });
    // Arrays of all 2^64 bytes: a sum of their ends and the header overflows.
    let most = u64::MAX / 8;
    let array =
        |i| format!(r#""{i}":{{"dtype":"U8","shape":[{most}],"data_offsets":[{},{}]}}"#, i * most, (i + 1) * most);
    let header = format!("{{{}}}", (0..8).map(array).collect::<Vec<_>>().join(","));
    assert_eq!(read(&file(&header, 0)).expect("no panic"), None);
    let one = r#"{"a":{"dtype":"F32","shape":[2,0,3],"data_offsets":[0,0]},"b":{"dtype":"U8","shape":[5],"data_offsets":[0,5]}}"#;
    assert_eq!(read(&file(one, 5)).expect("no panic"), Some(5));
    for rest in [4, 6] {
        assert_eq!(read(&file(one, rest)).expect("no panic"), None);
    }
    assert!(Parameters::<Cpu>::new().load(&path).is_err(), "no parameters");
}
