//! Tokens drawn a second: `cargo bench -p hecate-tests --bench decode -- DEVICE [MIXER [BITS [TEXTS..]]]`.
//!
//! A fresh model of 12 layers of width 768 with 12 heads and 50,257 tokens, of which so many texts are drawn side by side, as
//! `hecate generate` draws one.

use hecate::{Choose, Job, devices_of, select};
use hecate_core::Backend;
use hecate_models::{
    Config, LanguageModel, Result,
    generate::generate_all,
    sampling::{Sampler, Sampling},
};
use std::time::Instant;

/// Tokens of a text that are timed, after as many that are not.
const TOKENS: usize = 512;

/// What is drawn.
struct Draws {
    mixer: String,
    /// Of stored matrices, 16 or 32.
    bits: usize,
    texts: Vec<usize>,
}

fn main() {
    // Cargo adds a flag of its own.
    let mut words = std::env::args().skip(1).filter(|word| !word.starts_with('-'));
    let choose: Choose = words.next().unwrap_or_else(|| "cuda".into()).parse().expect("a device");
    let mixer = words.next().unwrap_or_else(|| "delta".into());
    let bits = words.next().map_or(16, |word| word.parse().expect("bits"));
    let texts: Vec<usize> = words.map(|word| word.parse().expect("a number of texts")).collect();
    let texts = if texts.is_empty() { vec![1, 64] } else { texts };
    let found = devices_of(&choose.backends().expect("a backend"));
    select(&found, &choose).expect("a device").run(Draws { mixer, bits, texts }).expect("a device").expect("tokens");
}

impl Job for Draws {
    type Output = Result<()>;

    fn run<B: Backend>(self, device: &B) -> Result<()> {
        let config = Config { vocabulary_size: 50_257, ..Config::uniform(&self.mixer, 12, 768, 12)? };
        let model = LanguageModel::new(device, &config, 1)?;
        let model = if self.bits == 16 { model.stored_in_16_bits()? } else { model };
        let parameters: usize = model.parameters().iter().map(|parameter| parameter.value.shape().count()).sum();
        println!(
            "{device:?}\n{} of {parameters} parameters in {} bits: texts, sampling, whether captured, tokens/s, a mark of the texts",
            self.mixer, self.bits
        );
        for texts in self.texts {
            let ways = [(0.0, 0, 1.0), (0.8, 0, 1.0), (0.8, 0, 0.95), (0.8, 50, 1.0), (0.8, 50, 0.95)];
            for (temperature, top_k, top_p) in ways {
                let sampler = |text| {
                    Sampler::new(Sampling { temperature, top_k, top_p, seed: text as u64, ..Sampling::default() })
                };
                let samplers = (0..texts).map(sampler).collect::<Result<Vec<_>>>()?;
                let prompt: &[u32] = &[464, 1573];
                let mut drawn = generate_all(&model, &vec![prompt; texts], samplers)?;
                // Of tokens and their order: builds that draw the same have the same.
                let mut mark = 0x811c_9dc5u32;
                let mut draw = || {
                    drawn.by_ref().take(TOKENS).try_for_each(|tokens| {
                        tokens.map(|tokens| {
                            tokens.iter().for_each(|token| mark = (mark ^ token).wrapping_mul(0x0100_0193))
                        })
                    })
                };
                draw()?;
                let start = Instant::now();
                draw()?;
                let rate = (texts * TOKENS) as f64 / start.elapsed().as_secs_f64();
                println!(
                    "{texts:>5} temperature {temperature} top-k {top_k} top-p {top_p} {} {rate:.0} {mark:08x}",
                    drawn.is_captured()
                );
            }
        }
        Ok(())
    }
}
