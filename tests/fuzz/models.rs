//! Models, tasks and settings that are told sizes which make no sense.

use crate::{
    device, hold,
    sizes::{size, sizes},
    sound,
};
use hecate_cpu::Cpu;
use hecate_models::{
    Config, Error, Footprint, Gradients, LanguageModel, Precision, Random,
    sampling::{Sampler, Sampling},
    text::{Identity, Stream, Windows},
};
use hecate_train::{
    FirstStates, RunPlan, Settings, Trainer,
    evaluate::{evaluate_afresh, evaluate_by_position},
    optimizer::{AdamW, Constants, Moments, norm_squared},
    schedule::Schedule,
    tasks::{Filler, Mad, Needle, Parity, Purpose, Questions, Recall, SpreadRecall, SymmetricGroup, TaskModel},
};
use proptest::{collection::vec, prelude::*};
use std::{ops::ControlFlow, sync::LazyLock};

/// Mixers of every kind.
const MIXERS: [&str; 10] = ["delta", "titans", "atlas", "attention", "mag", "mal", "mac", "cms", "tnt", "hope"];

/// Two layers of each mixer.
fn model(mixer: usize) -> &'static LanguageModel<Cpu> {
    static MODELS: LazyLock<Vec<LanguageModel<Cpu>>> = LazyLock::new(|| MIXERS.map(|name| made(name, 2)).into());
    &MODELS[mixer]
}

fn made(mixer: &str, layers: usize) -> LanguageModel<Cpu> {
    let config = Config { vocabulary_size: 7, ..Config::uniform(mixer, layers, 8, 2).expect("a configuration") };
    LanguageModel::new(&device(), &config, 1).expect("a model")
}

#[test]
fn models_read_or_refuse() {
    let token = prop_oneof![8 => 0..7u32, 1 => any::<u32>()];
    let draws = (0..MIXERS.len(), size(), vec(token.clone(), 0..9), vec(token, 0..9), size());
    hold(150, &draws, |(mixer, batch, tokens, targets, other)| {
        let model = model(mixer);
        let cache = sound("LanguageModel::cache", || model.cache(batch))?;
        if let Ok(mut cache) = cache {
            let before = cache.position();
            let read = sound("LanguageModel::infer", || model.infer(&tokens, batch, &mut cache))?;
            prop_assert_eq!(cache.position() > before, read.is_ok());
            let _ = sound("infer", || model.infer(&tokens, other, &mut cache).map(|_| ()))?;
            let learned = || model.loss_and_gradients_with_cache(&tokens, &targets, &mut cache).map(|_| ());
            let _ = sound("loss_and_gradients_with_cache", learned)?;
        }
        let _ = sound("LanguageModel::loss", || model.loss(&tokens, &targets, batch))?;
        let _ = sound("answer_scores", || model.answer_scores(&tokens, batch, &targets).map(|_| ()))?;
        let _ = sound("footprint", || model.footprint(batch, other).total())?;
        Ok(())
    });
}

#[test]
fn caches_of_other_models_are_refused() {
    let few = made("delta", 1);
    for (mixer, name) in MIXERS.iter().enumerate() {
        let (mut own, mut foreign) = (model(mixer).cache(1).expect("a cache"), few.cache(1).expect("a cache"));
        assert!(model(mixer).infer(&[1, 2], 1, &mut own).is_ok(), "{name}");
        let told = model(mixer).infer(&[1, 2], 1, &mut foreign).expect_err("another model's").to_string();
        assert!(told.contains("`cache` is one of another model, of 1 layers"), "{told}");
        assert!(model(mixer).loss_and_gradients_with_cache(&[1], &[2], &mut foreign).is_err());
        assert!(model(mixer).first_non_finite(&[1], &[2], 1, Some(&foreign)).is_err());
    }
}

#[test]
fn gradients_of_another_length_are_refused() {
    let (two, one) = (made("delta", 2), made("delta", 1));
    let gradients = |model: &LanguageModel<Cpu>| model.loss_and_gradients(&[1, 2], &[2, 3], 1).expect("gradients").1;
    let mut sum = gradients(&two);
    for other in [gradients(&one), Gradients::new(Vec::new())] {
        let told = sum.accumulate(other).expect_err("another length").to_string();
        assert!(told.contains("`gradients`") && told.contains("one a parameter"), "{told}");
    }
    assert!(sum.accumulate(gradients(&two)).is_ok());
    let mut model = made("delta", 2);
    let before = bits(&model);
    let mut moments = Moments::new(&device(), model.parameters()).expect("moments");
    let norm = norm_squared(&device(), &sum).expect("a norm");
    let (parameters, constants) = (model.parameters_mut(), Constants::default());
    for rate in [f32::NAN, f32::INFINITY, -1.0] {
        let told = moments.update(parameters, &sum, &norm, &constants, (1, rate)).expect_err("no rate").to_string();
        assert!(told.contains("learning rate"), "{told}");
    }
    assert!(moments.update(parameters, &gradients(&one), &norm, &constants, (1, 0.1)).is_err());
    assert!(moments.update(parameters, &sum, &norm, &constants, (0, 0.1)).is_err());
    let mut few = Moments::new(&device(), one.parameters()).expect("moments");
    assert!(few.update(parameters, &sum, &norm, &constants, (1, 0.1)).is_err());
    assert_eq!(bits(&model), before, "what is refused changes nothing");
    assert!(moments.update(model.parameters_mut(), &sum, &norm, &constants, (1, 0.1)).is_ok());
    assert_ne!(bits(&model), before);
}

fn bits(model: &LanguageModel<Cpu>) -> Vec<u32> {
    model.parameters().iter().flat_map(|p| p.value.to_f32().expect("values")).map(f32::to_bits).collect()
}

#[test]
fn what_does_not_fit_is_refused_before_it_is_made() {
    let settings = |batch, tokens| Settings {
        batch,
        tokens,
        accumulate: 2,
        carry: 1,
        first_states: FirstStates::default(),
        schedule: Schedule { peak: 0.1, floor: 0.0, warmup: 0, steps: 1 },
        optimizer: Constants::default(),
        seed: 1,
        precision: Precision::F32,
    };
    for mixer in MIXERS {
        let config = Config::uniform(mixer, 2, 512, 4).expect("a configuration");
        assert!(settings(1, 8).check_fits(&device(), &config, 0).is_ok(), "{mixer}");
        let told = settings(1 << 20, 1 << 20).check_fits(&device(), &config, 0).expect_err("too much").to_string();
        for word in ["does not fit", " of ", "GB", "batch", "sequence length"] {
            assert!(told.contains(word), "{told}");
        }
    }
    // Before there is a model, and again for one that is there.
    let config = Config::uniform("delta", 2, 512, 4).expect("a configuration");
    let identity = Identity::of("a text");
    let (text, json_lines) = (Vec::new(), None);
    let plan = RunPlan { text, json_lines, identity, held_out: 0.1, evaluate_every: 1, save_every: 1, keep: 1 };
    let began = Trainer::new(&device(), &config, settings(1 << 12, 1 << 12), plan.clone(), None);
    assert!(matches!(began, Err(Error::DoesNotFit { .. })), "{began:?}");
    let model = LanguageModel::new(&device(), &config, 1).expect("a model");
    let began = Trainer::from_model(model, settings(1 << 12, 1 << 12), plan, None);
    assert!(matches!(began, Err(Error::DoesNotFit { .. })), "{began:?}");
    // Four billion weights, and three times as much to learn them; nothing of it is made.
    let config = Config::uniform("delta", 80, 1984, 16).expect("a configuration");
    let needed = Footprint::of(&device(), &config, Precision::F32, 1, 8).expect("a size").total();
    assert!(needed > 40 << 30, "{needed}");
}

#[test]
fn tasks_and_settings_are_drawn_or_refused() {
    hold(400, &(sizes(), any::<u64>()), |([a, b, c, d, e, f], seed)| {
        let random = &mut Random::new(seed);
        if let Ok(below) = sound("Random::below", || random.below(a))? {
            prop_assert!(below < a);
        }
        if let Ok(task) = sound("Recall::new", || Recall::new(a, b, c))? {
            sound("Recall::length", || task.length(d))?;
            let _ = sound("Recall::draw", || task.draw(random, e.min(9), d))?;
        }
        if let Ok(task) = sound("SpreadRecall::new", || SpreadRecall::new(a, Filler::Random))? {
            let _ = sound("SpreadRecall::draw", || task.draw(random, e.min(9), b.min(99), c))?;
            let _ = sound("SpreadRecall::check", || task.check(d, f))?;
        }
        if let Ok(task) = sound("Needle::new", || Needle::new(a, b, c))? {
            let _ = sound("Needle::draw", || task.draw(random, e.min(9), d.min(99)))?;
        }
        if let Ok(group) = sound("SymmetricGroup::new", || SymmetricGroup::new(a.min(9)))? {
            let _ = sound("SymmetricGroup::draw", || group.draw(random, b, c.min(9)))?;
            sound("SymmetricGroup::element", || group.element(d as u32).is_some())?;
        }
        let mad = Mad::ALL[a % 6];
        let _ = sound("Mad::draw", || mad.draw(random, b.min(9), Purpose::Testing))?;
        let _ = sound("Mad::draw_known", || mad.draw_known(random, c.min(9), d))?;
        let _ = sound("Parity::draw", || Parity.draw(random, a, b.min(9)))?;
        let schedule = Schedule { peak: 0.1, floor: 0.0, warmup: a as u64, steps: b as u64 };
        sound("Schedule", || (schedule.rate(c as u64), schedule.check().is_ok()))?;
        let settings = Settings {
            batch: a,
            tokens: b,
            accumulate: c,
            carry: d,
            first_states: if d % 2 == 0 { FirstStates::Fresh } else { FirstStates::Other },
            schedule,
            optimizer: Constants::default(),
            seed,
            precision: Precision::Bf16,
        };
        sound("Settings", || (settings.tokens_per_step(), settings.text(), settings.check().is_ok()))?;
        let _ =
            sound("check_fits", || settings.check_fits(&device(), model(0).config::<Config>().expect("blocks"), e))?;
        let text: Vec<u32> = (0..20).collect();
        let _ = sound("Windows::draw", || Windows::new(seed).draw(&text, e, f).map(|_| ()))?;
        let _ = sound("Windows::starts", || Windows::new(seed).starts(&text, e, f.min(30)).map(|_| ()))?;
        Ok(())
    });
}

#[test]
fn samplers_draw_or_refuse() {
    let float = || prop_oneof![any::<f32>(), 0.0..1.0f32];
    let logits = prop_oneof![vec(any::<f32>(), 0..6), vec(-3.0..3.0f32, 0..6)];
    let parts = (float(), float(), float(), float());
    hold(
        300,
        &(parts, size(), any::<u64>(), vec((0..7u32, float()), 0..3), logits),
        |(parts, top_k, seed, bias, logits)| {
            let (temperature, top_p, min_p, repetition_penalty) = parts;
            let sampling = Sampling { temperature, top_k, top_p, min_p, repetition_penalty, seed };
            let sampler = sound("Sampler::new", || Sampler::new(sampling))?.and_then(|sampler| sampler.biased(&bias));
            let Ok(mut sampler) = sampler else { return Ok(()) };
            sampler.read(&[0, 2, 9]);
            if let Ok(token) = sound("Sampler::draw", || sampler.draw(&logits))? {
                prop_assert!((token as usize) < logits.len());
            }
            Ok(())
        },
    );
}

#[test]
fn texts_are_measured_or_refused() {
    let draws = (0..MIXERS.len(), size(), size(), 0..20usize);
    hold(40, &draws, |(mixer, segment, length, count)| {
        let stream = Stream { tokens: (0..count as u32).map(|i| i % 7).collect::<Vec<_>>().into(), bytes: count };
        let on = |_| ControlFlow::Continue(());
        let score = sound("evaluate_afresh", || evaluate_afresh(model(mixer), &stream, (segment, length), on))?;
        prop_assert_eq!(score.is_ok(), count > 1 && segment > 0 && length > 0);
        let scores = sound("evaluate_by_position", || evaluate_by_position(model(mixer), &stream, segment, on))?;
        prop_assert_eq!(scores.is_ok(), count > 1 && segment > 0);
        let read: usize = scores.iter().flatten().map(|score| score.tokens).sum();
        prop_assert!(scores.is_err() || read == count - 1, "{}", read);
        Ok(())
    });
}

/// Constants that need not make sense.
fn constants() -> impl Strategy<Value = Constants> {
    let float = || prop_oneof![2 => 0.0..1.0f32, 1 => any::<f32>()];
    let clip = prop_oneof![Just(None), float().prop_map(Some)];
    (float(), float(), float(), float(), clip).prop_map(|(beta1, beta2, epsilon, weight_decay, clip)| Constants {
        beta1,
        beta2,
        epsilon,
        weight_decay,
        clip,
    })
}

#[test]
fn optimisers_step_or_refuse() {
    let (model, one) = (made("delta", 2), made("delta", 1));
    let rate = prop_oneof![2 => 0.0..0.1f32, 1 => any::<f32>()];
    hold(100, &(constants(), rate, 0..4usize), |(constants, rate, kind)| {
        let adamw = sound("AdamW::new", || AdamW::new(&device(), model.parameters(), constants))?;
        prop_assert_eq!(adamw.is_ok(), constants.check().is_ok());
        let Ok(mut adamw) = adamw else { return Ok(()) };
        let gradients = match kind {
            0 => Gradients::new(Vec::new()),
            1 => Gradients::new(model.parameters().iter().map(|_| None).collect()),
            2 => one.loss_and_gradients(&[1, 2], &[2, 3], 1).expect("gradients").1,
            _ => model.loss_and_gradients(&[1, 2], &[2, 3], 1).expect("gradients").1,
        };
        let mut other = made("delta", 2);
        let stepped = sound("AdamW::step", || adamw.step(other.parameters_mut(), gradients, rate))?;
        prop_assert_eq!(stepped.is_ok(), kind == 3 && rate >= 0.0 && rate.is_finite());
        prop_assert_eq!(adamw.steps(), u32::from(stepped.is_ok()));
        Ok(())
    });
}

#[test]
fn tasks_are_learned_or_refused() {
    let token = || prop_oneof![8 => 0..7u32, 1 => any::<u32>()];
    let float = || prop_oneof![2 => 0.0..0.1f32, 1 => any::<f32>()];
    let schedule = (float(), float(), any::<u64>(), any::<u64>());
    let config = Config { vocabulary_size: 7, ..Config::uniform("delta", 1, 8, 2).expect("a configuration") };
    let draws = (schedule, constants(), size(), (size(), vec(token(), 0..7), vec(token(), 0..4), vec(token(), 0..4)));
    hold(150, &draws, |((peak, floor, warmup, steps), constants, width, (batch, inputs, rows, answers))| {
        let questions = Questions { batch, inputs, rows, answers };
        let usual = Schedule { peak: 0.1, floor: 0.0, warmup: 1, steps: 5 };
        let told = Schedule { peak, floor, warmup, steps };
        let odd = Config { hidden_size: width, ..config.clone() };
        for (config, schedule, constants) in [
            (&config, usual, Constants::default()),
            (&config, told, Constants::default()),
            (&config, usual, constants),
            (&odd, usual, constants),
        ] {
            let made = sound("TaskModel::new", || TaskModel::new(&device(), config, schedule, constants, steps))?;
            let sensible = schedule.check().is_ok() && constants.check().is_ok() && config.validate().is_ok();
            prop_assert_eq!(made.is_ok(), sensible);
            let Ok(mut model) = made else { continue };
            if let Ok(loss) = sound("TaskModel::learn", || model.learn(&questions))? {
                prop_assert!(loss.is_finite());
            }
            if let Ok(right) = sound("TaskModel::right", || model.right(&questions))? {
                prop_assert_eq!(right.len(), questions.rows.len());
            }
        }
        Ok(())
    });
}
