//! The optimiser as a user holds it, and parameters in a file of their own.

use super::fixtures::*;
use approx::assert_relative_eq;
use hecate_core::{DType, Tensor};
use hecate_cpu::Cpu;
use hecate_models::{At, Error, Gradients, LanguageModel, Parameters};
use hecate_train::optimizer::{AdamW, Constants, Moments, norm_squared};
use std::fs;

type Model = LanguageModel<Cpu>;

fn gradients_of(model: &Model) -> Gradients<Cpu> {
    let text = corpus().train.tokens.to_vec().unwrap();
    model.loss_and_gradients(&text[..32], &text[1..33], 2).unwrap().1
}

#[test]
fn steps_are_those_of_the_moments() {
    let (mut by_hand, mut stepped, constants) = (model("delta"), model("delta"), Constants::default());
    let device = by_hand.device().clone();
    let mut moments = Moments::new(&device, by_hand.parameters()).unwrap();
    let mut adamw = AdamW::new(&device, stepped.parameters(), constants).unwrap();
    for step in 1..=3 {
        let gradients = gradients_of(&by_hand);
        let squared = norm_squared(&device, &gradients).unwrap();
        moments.update(by_hand.parameters_mut(), &gradients, &squared, &constants, (step, 0.01)).unwrap();
        let gradients = gradients_of(&stepped);
        let norm = adamw.step(stepped.parameters_mut(), gradients, 0.01).unwrap();
        assert_relative_eq!(norm, f64::from(squared.to_f32().unwrap()[0]).sqrt());
        assert_eq!((bits(&by_hand), adamw.steps()), (bits(&stepped), step));
    }
}

#[test]
fn what_would_spoil_the_weights_is_refused() {
    let mut model = model("delta");
    let device = model.device().clone();
    let mut adamw = AdamW::new(&device, model.parameters(), Constants::default()).unwrap();
    let gradients = gradients_of(&model);
    adamw.step(model.parameters_mut(), gradients, 0.01).unwrap();
    let (before, mean) = (bits(&model), adamw.moments().means[0].to_f32().unwrap());
    let spoiled = |at: usize, spoil: &dyn Fn(&Tensor<Cpu>) -> Option<Tensor<Cpu>>| {
        let all: Vec<_> = gradients_of(&model).iter().cloned().collect();
        let spoil = |(i, x): (usize, Option<Tensor<Cpu>>)| if i == at { x.as_ref().and_then(spoil) } else { x };
        Gradients::new(all.into_iter().enumerate().map(spoil).collect())
    };
    let nan = |x: &Tensor<Cpu>| {
        let mut values = x.to_f32().unwrap();
        values[1] = f32::NAN;
        Some(Tensor::from_f32(&device, x.shape().clone(), values).unwrap())
    };
    let name = model.parameters().iter().nth(2).expect("a parameter").name.clone();
    let other = Cpu::new();
    let cases = [
        (spoiled(2, &nan), 0.01, format!("the gradient of `{name}`")),
        (spoiled(0, &|x| Some(x.reshape([x.shape().count()]).unwrap())), 0.01, "grad".to_owned()),
        (spoiled(0, &|x| Some(x.to(&other).unwrap())), 0.01, "lies on".to_owned()),
        (Gradients::new(vec![None]), 0.01, "gradients".to_owned()),
        (Gradients::new(Vec::new()), 0.01, "gradients".to_owned()),
        (gradients_of(&model), f32::NAN, "learning rate".to_owned()),
        (gradients_of(&model), -0.1, "learning rate".to_owned()),
    ];
    for (gradients, rate, word) in cases {
        let error = adamw.step(model.parameters_mut(), gradients, rate).expect_err("refused");
        assert!(error.to_string().contains(&word), "`{word}` is not in: {error}");
        assert_eq!(word.contains("gradient of"), matches!(error, Error::NonFinite { at: At::Step(2), .. }), "{error}");
        assert_eq!((bits(&model), adamw.steps()), (before.clone(), 1), "{error}");
        assert_eq!(adamw.moments().means[0].to_f32().unwrap(), mean, "{error}");
    }
    let constants = Constants { beta1: 1.0, ..Constants::default() };
    assert!(AdamW::new(&device, model.parameters(), constants).is_err());
}

#[test]
fn parameters_come_back_from_their_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weights.safetensors");
    let (saved, mut loaded) = (model("titans"), LanguageModel::new(&Cpu::new(), &config("titans"), 9).unwrap());
    let fresh = bits(&loaded);
    saved.parameters().save(&path).unwrap();
    assert_ne!(fresh, bits(&saved));
    loaded.parameters_mut().load(&path).unwrap();
    assert_eq!(bits(&loaded), bits(&saved));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "a partial file was left");

    // Other parameters, and damage: told of, and nothing is changed.
    let mut other = LanguageModel::new(&Cpu::new(), &config("delta"), 9).unwrap();
    let before = bits(&other);
    let told = other.parameters_mut().load(&path).unwrap_err().to_string();
    assert!(told.contains("weights.safetensors") && told.contains("build the same model"), "{told}");
    let mut content = fs::read(&path).unwrap();
    *content.last_mut().unwrap() ^= 1;
    fs::write(&path, content).unwrap();
    assert!(loaded.parameters_mut().load(&path).unwrap_err().to_string().contains("damaged"));
    assert!(loaded.parameters_mut().load(folder.path().join("none")).is_err());
    assert_eq!((bits(&other), bits(&loaded)), (before, bits(&saved)));
}

#[test]
fn parameters_of_one_name_are_not_saved() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weights.safetensors");
    let mut parameters = Parameters::new();
    for _ in 0..2 {
        parameters.add("twice", Tensor::zeros(&Cpu::new(), [2], DType::F32).unwrap(), true);
    }
    let told = parameters.save(&path).unwrap_err().to_string();
    assert!(told.contains("`twice`") && !path.exists(), "{told}");
    assert!(Parameters::<Cpu>::new().load(&path).is_err());
}
