//! What is remembered is saved and loaded to the bit, and nothing else is taken for it.

use crate::column::{Column, device, is_missing};
use crate::configs;
use hecate_models::{Builder, Cache, Config, Error, LanguageModel, Parameters, Random, layers::mixer};
use safetensors::{SafeTensors, tensor::TensorView};
use std::{fs, path::PathBuf};

const BATCH: usize = 2;

fn model(config: &Config) -> LanguageModel<Column> {
    LanguageModel::new(&device(), config, 11).expect("a model")
}

/// Bits of all that is remembered, with its names.
fn bits(cache: &Cache<Column>) -> Vec<(&'static str, Vec<u32>)> {
    let arrays = cache.layers().iter().flat_map(|layer| layer.iter());
    arrays.map(|(name, x)| (name, x.to_f32().expect("an array").into_iter().map(f32::to_bits).collect())).collect()
}

/// Reads as many tokens of each text, and gives the bits of their scores.
fn read(model: &LanguageModel<Column>, tokens: usize, cache: &mut Cache<Column>) -> Vec<u32> {
    let tokens = configs::tokens(BATCH * tokens, tokens as u64);
    let scores = model.infer(&tokens, BATCH, cache).expect("scores").to_f32().expect("scores");
    scores.into_iter().map(f32::to_bits).collect()
}

/// A file in a folder of its own.
fn place() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("read.safetensors");
    (folder, path)
}

#[test]
fn what_is_loaded_goes_on_bit_for_bit() {
    if is_missing() {
        return;
    }
    let (_folder, path) = place();
    // Groups of frozen rules are whole; windows, shards and segments are not.
    for ((name, config), before) in
        configs::exact().into_iter().map(|x| (x, 13)).chain(configs::frozen(4).into_iter().map(|x| (x, 12)))
    {
        let model = model(&config);
        let mut cache = model.cache(BATCH).expect("a cache");
        read(&model, before, &mut cache);
        cache.save(&path).expect(name);
        let mut loaded = model.cache(BATCH).expect("a cache");
        loaded.load(&path).expect(name);
        assert_eq!((loaded.position(), bits(&loaded)), (before, bits(&cache)), "{name}");
        for more in [1, 4, 9] {
            if (cache.position() + more).is_multiple_of(model.group()) || more == 9 {
                assert_eq!(read(&model, more, &mut loaded), read(&model, more, &mut cache), "{name}");
                assert_eq!(bits(&loaded), bits(&cache), "{name} after {}", cache.position());
            }
        }
    }
}

#[test]
fn a_layer_alone_is_saved_and_loaded() {
    if is_missing() {
        return;
    }
    let (_folder, path) = place();
    for (name, config) in configs::exact() {
        let model = model(&config);
        let mut cache = model.cache(BATCH).expect("a cache");
        read(&model, 13, &mut cache);
        let layer = &cache.layers()[0];
        layer.save(&path).expect(name);
        let (device, mut parameters, mut random) = (device(), Parameters::new(), Random::new(1));
        let mut build = Builder::new(&device, &mut parameters, &mut random, 0.1, 1);
        let mixer = mixer(&mut build, &config.layers[0].mixer, config.hidden_size, 1e-6).expect(name);
        let mut loaded = mixer.cache(&device, &parameters, BATCH).expect(name);
        loaded.load(&path).expect(name);
        let all = |layer: &hecate_models::LayerCache<Column>| -> Vec<_> {
            layer.iter().map(|(name, x)| (name, x.to_f32().expect("an array"))).collect()
        };
        assert_eq!(all(&loaded), all(layer), "{name}");
        // Of another number of texts.
        let mut other = mixer.cache(&device, &parameters, BATCH + 1).expect(name);
        let told = other.load(&path).expect_err(name).to_string();
        assert!(told.contains("read.safetensors") && told.contains("shape"), "{name}: {told}");
    }
}

/// Refuses to load, changes nothing, and says why.
fn refused(what: &str, cache: &mut Cache<Column>, path: &std::path::Path) -> String {
    let before = (cache.position(), bits(cache));
    let error = cache.load(path).expect_err(what);
    assert_eq!((cache.position(), bits(cache)), before, "{what} changed the cache");
    assert!(matches!(error, Error::Checkpoint { .. } | Error::Io { .. }), "{what}: {error}");
    let told = error.to_string();
    assert!(told.contains("safetensors"), "{what}: {told}");
    told
}

#[test]
fn other_files_are_refused() {
    if is_missing() {
        return;
    }
    let (_folder, path) = place();
    let model = model(&configs::mixed());
    let mut cache = model.cache(BATCH).expect("a cache");
    refused("no file", &mut cache, &path);
    read(&model, 5, &mut cache);
    cache.save(&path).expect("saved");
    let told = refused("more texts", &mut model.cache(BATCH + 1).expect("a cache"), &path);
    assert!(told.contains("shape"), "{told}");
    // The same arrays, but another way to make them.
    let other = Config { norm_eps: 1e-3, ..configs::mixed() };
    let other = LanguageModel::new(&device(), &other, 11).expect("a model");
    let told = refused("another model", &mut other.cache(BATCH).expect("a cache"), &path);
    assert!(told.contains("another model"), "{told}");
    let content = fs::read(&path).expect("a file");
    for (what, damage) in [
        ("cut short", content[..content.len() - 1].to_vec()),
        ("empty", Vec::new()),
        ("one bit", content.iter().enumerate().map(|(i, &x)| x ^ u8::from(i == content.len() / 2)).collect()),
    ] {
        fs::write(&path, damage).expect("a file");
        refused(what, &mut cache, &path);
    }
    model.parameters().save(&path).expect("weights");
    refused("weights", &mut cache, &path);
    let layer = &cache.layers()[0];
    layer.save(&path).expect("a layer");
    refused("a layer", &mut cache, &path);
}

/// A file that nobody marked is taken for what it says, but for a position that no text has.
#[test]
fn positions_have_an_end() {
    if is_missing() {
        return;
    }
    let (_folder, path) = place();
    let model = model(&configs::mixed());
    let mut cache = model.cache(BATCH).expect("a cache");
    read(&model, 5, &mut cache);
    cache.save(&path).expect("saved");
    let content = fs::read(&path).expect("a file");
    let file = SafeTensors::deserialize(&content).expect("arrays");
    for (position, taken) in [(1 << 20, true), (u64::MAX, false)] {
        let position_bytes = position.to_le_bytes();
        let arrays = file.tensors().into_iter().map(|(name, array)| match name.as_str() {
            "position" => (name, TensorView::new(array.dtype(), vec![1], &position_bytes).expect("a position")),
            _ => (name, array),
        });
        fs::write(&path, safetensors::serialize(arrays, None).expect("a file")).expect("a file");
        let mut loaded = model.cache(BATCH).expect("a cache");
        if taken {
            loaded.load(&path).expect("a cache far on");
            assert_eq!((loaded.position(), bits(&loaded)), (1 << 20, bits(&cache)));
            read(&model, 1, &mut loaded);
        } else {
            let told = refused("no position", &mut loaded, &path);
            assert!(told.contains("position"), "{told}");
        }
    }
}
