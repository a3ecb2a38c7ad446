//! A memory reads an endless stream piece by piece, is saved, and goes on in another place exactly as if it had not been.

use hecate::prelude::*;
use std::{fs, io};

/// Memories side by side.
const HEADS: usize = 2;
/// Width of keys and values: K = V.
const WIDTH: usize = 8;
/// Tokens that arrive at once.
const PIECE: usize = 5;

/// What is remembered: one matrix a head, `[1, HEADS, WIDTH, WIDTH]`, of the same size however much was read.
type State = Matrix<Tensor<Cpu>>;

/// Numbers between -0.3 and 0.3, other ones for each seed.
fn array(cpu: &Cpu, axes: &[usize], seed: usize) -> hecate::Result<Tensor<Cpu>> {
    let count = axes.iter().product::<usize>();
    let values = (0..count).map(|i| ((i + 31 * seed) as f32 * 0.618).fract() * 0.6 - 0.3).collect();
    Tensor::from_f32(cpu, axes, values)
}

/// Reads the piece of this number: what was read of the memory, and the memory after it.
fn read(cpu: &Cpu, piece: usize, state: State) -> hecate::Result<(Vec<f32>, State)> {
    let (tokens, gate) = ([1, PIECE, HEADS, WIDTH], [1, PIECE, HEADS]);
    let inputs = Inputs {
        q: array(cpu, &tokens, 3 * piece)?,
        k: array(cpu, &tokens, 3 * piece + 1)?,
        v: array(cpu, &tokens, 3 * piece + 2)?,
        gates: WriteGates {
            log_a: Tensor::from_f32(cpu, gate, vec![0.99f32.ln(); PIECE * HEADS])?,
            theta: Tensor::from_f32(cpu, gate, vec![0.5; PIECE * HEADS])?,
        },
        state,
        anchor: None,
    };
    let outputs = infer(cpu, Delta::default(), &inputs)?;
    Ok((outputs.out.to_f32()?, outputs.state))
}

/// Every element as it is in memory: loading gives back the same bits.
fn save(path: &std::path::Path, state: &State) -> Result<(), Box<dyn std::error::Error>> {
    let bytes: Vec<u8> = state.m.to_f32()?.iter().flat_map(|x| x.to_le_bytes()).collect();
    Ok(fs::write(path, bytes)?)
}

/// What [`save`] wrote, as a state `[1, HEADS, WIDTH, WIDTH]`.
fn load(path: &std::path::Path, cpu: &Cpu) -> Result<State, Box<dyn std::error::Error>> {
    let bytes = fs::read(path)?;
    let (words, rest) = bytes.as_chunks::<4>();
    if !rest.is_empty() {
        return Err(io::Error::other(format!("{}: cut short", path.display())).into());
    }
    let values = words.iter().map(|word| f32::from_le_bytes(*word)).collect();
    // A file of another size is refused here, with the shape that was expected.
    Ok(Matrix { m: Tensor::from_f32(cpu, [1, HEADS, WIDTH, WIDTH], values)? })
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cpu = Cpu::new();
    let path = std::env::temp_dir().join(format!("hecate-streaming-{}.f32", std::process::id()));
    let mut state = Matrix { m: Tensor::zeros(&cpu, [1, HEADS, WIDTH, WIDTH], DType::F32)? };
    for piece in 0..20 {
        (_, state) = read(&cpu, piece, state)?;
    }
    save(&path, &state)?;

    let (here, _) = read(&cpu, 20, state)?;
    let loaded = load(&path, &cpu)?;
    fs::remove_file(&path)?;
    let (there, _) = read(&cpu, 20, loaded)?;
    assert_eq!(here, there, "to the bit");
    println!("{} tokens in {} bytes; after loading it goes on to the bit", 21 * PIECE, HEADS * WIDTH * WIDTH * 4);
    Ok(())
}
