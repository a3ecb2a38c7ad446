//! Steps captured as graphs.

use hecate_core::{DType, Error, Host, Result, Tensor, capture, capture_work, primitives as p};
use hecate_cuda::Cuda;
use hecate_models::{
    Config, LanguageModel,
    generate::generate,
    sampling::{Sampler, Sampling},
};

/// A stream for each test: while a step is recorded, everybody else on it waits.
fn backends() -> Vec<Cuda> {
    super::backends().into_iter().map(|device| device.with_poisoned_memory().unwrap()).collect()
}

/// `state ← weight (state + x)`, result `state + state`.
fn next(weight: &Tensor<Cuda>, state: &[Tensor<Cuda>], x: &Tensor<Cuda>) -> Result<(Vec<Tensor<Cuda>>, Tensor<Cuda>)> {
    let state = p::mul(&p::add(&state[0], x)?, weight)?;
    let result = p::add(&state, &state)?;
    Ok((vec![state], result))
}

fn tensor(device: &Cuda, x: [f32; 3]) -> Tensor<Cuda> {
    Tensor::from_f32(device, [3], x.to_vec()).unwrap()
}

#[test]
fn a_step_goes_on_from_the_one_before() {
    for device in backends() {
        let (weight, start, x) =
            (tensor(&device, [2.0, 0.5, 1.0]), tensor(&device, [1.0, 2.0, 3.0]), tensor(&device, [0.0; 3]));
        let mut step = |state: Vec<Tensor<Cuda>>, x: Tensor<Cuda>| next(&weight, &state, &x);
        let mut recording =
            capture(&device, std::slice::from_ref(&start), &x, &mut step).unwrap().graph().expect("a recording");
        // What a recording points to stays, whoever lets go of it.
        drop(weight);
        let others: Vec<_> = (0..50).map(|i| tensor(&device, [i as f32; 3])).collect();
        let mut state = [1.0f32, 2.0, 3.0];
        for i in 0..5 {
            let x = [i as f32, 1.0, -1.0];
            let found = recording.step(Host::F32(x.to_vec())).unwrap();
            state = [0, 1, 2].map(|n| [2.0, 0.5, 1.0][n] * (state[n] + x[n]));
            assert_eq!(found, Host::F32(state.map(|s| 2.0 * s).to_vec()), "step {i}");
        }
        assert_eq!(others[7].to_f32().unwrap(), [7.0; 3]);
        assert_eq!(start.to_f32().unwrap(), [1.0, 2.0, 3.0], "the state before the recording is nobody's to change");
        assert!(matches!(recording.step(Host::F32(vec![1.0])), Err(Error::Length { .. })));
        assert!(matches!(recording.step(Host::U32(vec![1, 2, 3])), Err(Error::DType { .. })));
    }
}

/// Work that was captured may be all that still uses an array: its memory is nobody else's as long as the graph is there.
#[test]
fn work_keeps_what_it_reads() {
    for device in backends() {
        let weight = tensor(&device, [2.0, 0.5, 1.0]);
        let mut made = None;
        let mut work = |inputs: &[Tensor<Cuda>]| {
            made = Some(p::mul(&inputs[0], &weight)?);
            Ok(())
        };
        // Once call by call, so that kernels are there.
        work(&[tensor(&device, [0.0; 3])]).unwrap();
        let graph = capture_work(&device, &[tensor(&device, [0.0; 3])], &mut work).unwrap().graph();
        let (mut graph, made) = (graph.expect("a graph"), made.expect("it ran"));
        drop(weight);
        // Of the same size, so that freed memory would be theirs.
        let others: Vec<_> = (0..50).map(|i| tensor(&device, [i as f32; 3])).collect();
        assert!(graph.replay(vec![Host::F32(vec![1.0, 2.0, 3.0])], &[]).unwrap());
        assert_eq!(made.to_f32().unwrap(), [2.0, 1.0, 3.0]);
        // A result outlives the graph that wrote it.
        drop(graph);
        assert_eq!(made.to_f32().unwrap(), [2.0, 1.0, 3.0]);
        assert_eq!(others[7].to_f32().unwrap(), [7.0; 3]);
    }
}

#[test]
fn states_that_change_places_are_not_mixed_up() {
    for device in backends() {
        let state = [tensor(&device, [1.0; 3]), tensor(&device, [2.0; 3])];
        let mut step = |mut state: Vec<Tensor<Cuda>>, x: Tensor<Cuda>| {
            state.reverse();
            let result = p::add(&state[0], &x)?;
            Ok((state, result))
        };
        let mut recording =
            capture(&device, &state, &tensor(&device, [0.0; 3]), &mut step).unwrap().graph().expect("a recording");
        let mut first = || recording.step(Host::F32(vec![0.0; 3])).unwrap().into_f32()[0];
        assert_eq!([first(), first(), first()], [2.0, 1.0, 2.0]);
    }
}

#[test]
fn a_result_may_be_the_state_before() {
    for device in backends() {
        let mut step = |state: Vec<Tensor<Cuda>>, x: Tensor<Cuda>| Ok((vec![p::add(&state[0], &x)?], state[0].clone()));
        let (start, x) = (tensor(&device, [1.0; 3]), tensor(&device, [0.0; 3]));
        let mut recording =
            capture(&device, std::slice::from_ref(&start), &x, &mut step).unwrap().graph().expect("a recording");
        let mut first = || recording.step(Host::F32(vec![2.0; 3])).unwrap().into_f32()[0];
        assert_eq!([first(), first(), first()], [1.0, 3.0, 5.0]);
    }
}

#[test]
fn others_wait_for_a_recording() {
    for device in backends() {
        let model = LanguageModel::new(&device, &Config::uniform("delta", 1, 16, 2).unwrap(), 3).unwrap();
        let text = |seed| -> Vec<u32> {
            let sampler = Sampler::new(Sampling { seed, ..Sampling::default() }).unwrap();
            generate(&model, &[1, 2, 3], sampler).unwrap().take(16).map(|token| token.unwrap()).collect()
        };
        let alone = [1, 2, 3].map(&text);
        let together = std::thread::scope(|scope| {
            let text = &text;
            let started = [1, 2, 3].map(|seed| scope.spawn(move || text(seed)));
            started.map(|thread| thread.join().expect("no panic"))
        });
        assert_eq!(alone, together);
    }
}

#[test]
fn what_the_host_takes_part_in_is_not_recorded() {
    for device in backends() {
        let x = tensor(&device, [1.0; 3]);
        let mut reading = |state: Vec<Tensor<Cuda>>, x: Tensor<Cuda>| {
            let factor = x.to_f32()?[0];
            Ok((state, p::scale(factor, &x)?))
        };
        let why = capture(&device, &[], &x, &mut reading).unwrap().graph().map(drop).expect_err("no recording");
        assert!(why.contains("host") && why.contains("is part of it"), "{why}");
        let mut other = |_: Vec<Tensor<Cuda>>, x: Tensor<Cuda>| Ok((vec![x.clone()], x));
        let refused = capture(&device, &[Tensor::zeros(&device, [2], DType::F32).unwrap()], &x, &mut other);
        assert!(matches!(refused.map(drop), Err(Error::Config { option: "state", .. })));
        let elsewhere = super::another();
        let mut strays = |state: Vec<Tensor<Cuda>>, x: Tensor<Cuda>| Ok((state, x.to(&elsewhere)?));
        let refused = capture(&device, &[], &x, &mut strays);
        assert!(matches!(refused.map(drop), Err(Error::OtherDevice { slot: "result", .. })));
        // The stream goes on as if nothing had been.
        assert_eq!(p::scale(2.0, &x).unwrap().to_f32().unwrap(), [2.0; 3]);
    }
}

/// What draws tokens may be handed to another thread.
#[test]
fn generations_can_be_sent() {
    fn sent<T: Send>() {}
    sent::<hecate_models::generate::Generation<'_, Cuda>>();
    sent::<hecate_models::generate::Generation<'_, hecate_cpu::Cpu>>();
}

#[test]
fn decoding_by_heart_is_decoding() {
    for device in backends() {
        for mixer in ["delta", "titans", "lattice", "attention"] {
            let config = Config::uniform(mixer, 2, 32, 2).unwrap();
            let model = LanguageModel::new(&device, &config, 3).unwrap();
            let sampler = || Sampler::new(Sampling { seed: 5, ..Sampling::default() }).unwrap();
            let found: Vec<u32> = generate(&model, b"in the ".map(u32::from).as_slice(), sampler())
                .unwrap()
                .take(24)
                .map(|token| token.unwrap())
                .collect();
            let (mut cache, mut sampler) = (model.cache(1).unwrap(), sampler());
            let mut read = |tokens: &[u32]| {
                let logits = model.infer(tokens, 1, &mut cache).unwrap().to_f32().unwrap();
                sampler.draw(&logits[logits.len() - 256..]).unwrap()
            };
            let mut plain = vec![read(b"in the ".map(u32::from).as_slice())];
            while plain.len() < found.len() {
                plain.push(read(&plain[plain.len() - 1..]));
            }
            assert_eq!(found, plain, "{mixer}");
        }
    }
}
