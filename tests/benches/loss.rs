//! What a loss over a large vocabulary, and its gradients, take of memory on the CPU, as a table in Markdown.
//!
//! `cargo bench -p hecate-tests --bench loss`; with `--profile dev` it takes as much memory. Bytes are those of the process's
//! allocator, beside the model's own. They depend on the number of threads by little.

#[path = "../memory/counting.rs"]
mod counting;

use counting::peak;
use hecate_cpu::Cpu;
use hecate_models::{Config, LanguageModel, Precision};
use std::time::Instant;

/// Tokens of the vocabulary.
const VOCABULARY: usize = 250_000;
/// Width of the stream.
const HIDDEN: usize = 64;

/// Peak of a pass in megabytes, and its seconds; of so many scores at once, or of as many as the model chooses.
fn measure(precision: Precision, tokens: usize, scores: Option<usize>) -> [f64; 2] {
    let config = Config { vocabulary_size: VOCABULARY, ..Config::uniform("delta", 1, HIDDEN, 1).expect("a model") };
    let model = LanguageModel::new(&Cpu::new(), &config, 1).expect("a model").with_precision(precision);
    let model = match scores {
        Some(most) => model.with_scores_at_once(most),
        None => model,
    };
    let text: Vec<u32> = (0..tokens).map(|i| (i * 7_919 % VOCABULARY) as u32).collect();
    let start = Instant::now();
    let bytes = peak(|| model.loss_and_gradients(&text, &text, 1).expect("gradients"));
    [bytes as f64 / 1e6, start.elapsed().as_secs_f64()]
}

fn main() {
    println!("a vocabulary of {VOCABULARY}, width {HIDDEN}, one layer; megabytes at most beside weights\n");
    println!("| activations | tokens | all scores in 32 bits | in pieces | all at once |");
    println!("|---|---|---|---|---|");
    for precision in [Precision::F32, Precision::Bf16] {
        for tokens in [256, 1024] {
            let all = (4 * VOCABULARY * tokens) as f64 / 1e6;
            let [pieces, whole] = [None, Some(usize::MAX)].map(|scores| {
                let [megabytes, seconds] = measure(precision, tokens, scores);
                format!("{megabytes:.0} ({seconds:.1} s)")
            });
            println!("| {} | {tokens} | {all:.0} | {pieces} | {whole} |", precision.name());
        }
    }
}
