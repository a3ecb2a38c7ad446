//! A trained model with the matrices of its linear maps in few bits a value.
//!
//! Quantized are the projections of memories and attention, the MLPs, and a head that is not the table of embeddings. A matrix
//! whose rows are no whole blocks of the format takes `q8_0`, or 16 bits where they are no blocks of that either. What stays in
//! 32 bits is small, or read a row at a time: tables, norms, convolutions, and the maps of gates.

use crate::{
    Config, Error, LanguageModel, Result,
    files::{CONFIG, MODEL, TOKENIZER, is_there, write_new},
    trained::Trained,
    weights::pack,
};
use hecate_core::{
    Backend,
    primitives::cast,
    quantized::{BlockFormat, Quantized},
};
use std::{fs, path::Path};

/// The model with its matrices in this format, or the next that fits, on the same device.
///
/// # Errors
/// [`Error::Config`] for a model that is quantized already, and naming the matrix for values that no block can hold; the
/// device's own failures.
pub fn quantize<B: Backend>(model: &LanguageModel<B>, format: BlockFormat) -> Result<LanguageModel<B>> {
    let config = model.config::<Config>()?;
    if let Some(format) = config.quantization {
        return Err(Error::config("quantization", format, "none: quantize the model that it was made of"));
    }
    let config = Config { quantization: Some(format), ..config.clone() };
    let device = model.device();
    let mut quantized = LanguageModel::blank(device, &config)?;
    let find = |name: &str| {
        let found = model.parameters().iter().find(|parameter| parameter.name == name);
        found.ok_or_else(|| Error::config("parameter", name, "one of the model"))
    };
    for parameter in quantized.parameters_mut().iter_mut() {
        // Of matrices that no block fits the type is one of 16 bits.
        parameter.value = cast(parameter.value.dtype(), &find(&parameter.name)?.value)?;
    }
    for own in quantized.parameters_mut().quantized_mut() {
        let values = find(&own.name)?.value.to_f32()?;
        let format = own.matrix.format();
        let refused = |error| Error::config(&own.name, error, format!("finite weights that {format} can hold"));
        let blocks = format.quantize(&values).map_err(refused)?;
        own.matrix = Quantized::new(device, format, [own.matrix.rows(), own.matrix.columns()], &blocks)?;
    }
    Ok(quantized)
}

/// Writes a model and its vocabulary to a folder, for [`Trained::load`]: `config.json`, `model.safetensors`, `tokenizer.json`
/// where its tokens are not bytes. The weights come last and know the checksums of the other files.
///
/// # Errors
/// [`Error::Checkpoint`] for a folder with one of these files in it; [`Error::Io`]; the device's own failures.
pub fn save<B: Backend>(trained: &Trained<B>, folder: &Path) -> Result<()> {
    if let Some(path) = [CONFIG, MODEL, TOKENIZER].map(|name| folder.join(name)).into_iter().find(|path| is_there(path))
    {
        return Err(Error::checkpoint(path, "is there already; name another folder"));
    }
    let (parameters, path) = (trained.model.parameters(), folder.join(MODEL));
    let config = trained.model.config_json();
    let tokenizer = trained.tokenizer.as_deref().map(|content| (TOKENIZER, content));
    let beside: Vec<(&str, &[u8])> = [(CONFIG, config)].into_iter().chain(tokenizer).collect();
    let weights = pack(&path, &parameters.by_name(), parameters.quantized(), &beside)?;
    fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
    let mut written = Vec::new();
    let files = beside.iter().map(|(name, content)| (folder.join(name), *content)).chain([(path, weights.as_slice())]);
    for (path, content) in files {
        if let Err(error) = write_new(&path, content) {
            // A part of a model would be in the way of the next attempt.
            written.iter().for_each(|path| drop(fs::remove_file(path)));
            return Err(error);
        }
        written.push(path);
    }
    Ok(())
}
