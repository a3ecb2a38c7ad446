//! Runs of models of one's own layers: checkpoints, what is loaded from them, and who may go on.

use super::fixtures::*;
use crate::own::{Own, Scores};
use hecate_cpu::Cpu;
use hecate_models::{
    Config, Precision,
    trained::{Trained, WhichWeights},
};
use hecate_train::{Settings, Trainer, checkpoint::Run};

fn own(config: Config, scores: Scores) -> Own {
    Own { blocks: config, scores }
}

fn trainer_of(own: &Own, settings: Settings) -> Trainer<Cpu> {
    Trainer::new(&Cpu::new(), own, settings, plan(), None).unwrap()
}

/// Whole and stopped runs end alike.
fn check(own: &Own, settings: Settings, stops: &[u64]) {
    let mut whole = trainer_of(own, settings);
    train_to(&mut whole, 9);
    let folder = tempfile::tempdir().unwrap();
    let run = Run::new(folder.path());
    let mut stopped = trainer_of(own, settings);
    for &stop in stops {
        train_to(&mut stopped, stop);
        stopped.save(&run).unwrap();
        stopped = Trainer::resume_as::<Own>(&Cpu::new(), &run).unwrap();
        assert_eq!(stopped.steps(), stop);
    }
    train_to(&mut stopped, 9);
    stopped.note(1.0).unwrap();
    stopped.save(&run).unwrap();
    assert_eq!(bits(stopped.model()), bits(whole.model()), "{own:?} stopped at {stops:?}");
    for which in [WhichWeights::Last, WhichWeights::Best] {
        let trained = Trained::load_as::<Own>(&Cpu::new(), run.folder(), which).unwrap();
        assert_eq!(bits(&trained.model), bits(whole.model()));
        assert_eq!(trained.model.config::<Own>().unwrap().blocks, own.blocks);
    }
    // Its configuration is none of Hecate's own.
    let told = Trainer::<Cpu>::resume(&Cpu::new(), &run).unwrap_err().to_string();
    assert!(told.contains("config.json"), "{told}");
    let told = Trained::<Cpu>::load(&Cpu::new(), run.folder(), WhichWeights::Last).unwrap_err().to_string();
    assert!(told.contains("config.json"), "{told}");
}

#[test]
fn own_layers_resume_bit_for_bit() {
    for scores in [Scores::Head, Scores::BiasedHead, Scores::Forward] {
        check(&own(config("titans"), scores), settings(), &[0, 1, 5, 8]);
    }
    let narrow = Settings { precision: Precision::Bf16, accumulate: 2, ..settings() };
    check(&own(config("delta"), Scores::Forward), narrow, &[4]);
    // Memories that are carried, and elements that are dropped.
    let dropping = Config { attention_dropout: 0.2, hidden_dropout: 0.2, ..config("mag") };
    check(&own(dropping, Scores::Head), Settings { carry: 3, ..settings() }, &[1, 4, 8]);
}

#[test]
fn own_layers_learn_what_blocks_learn() {
    for (what, settings) in [("fresh", settings()), ("carried", Settings { carry: 2, ..settings() })] {
        for scores in [Scores::Head, Scores::Forward] {
            let mut trainer = trainer_of(&own(config("titans"), scores), settings);
            let mut reference = Trainer::new(&Cpu::new(), &config("titans"), settings, plan(), None).unwrap();
            let corpus = corpus();
            for _ in 0..9 {
                let [found, expected] =
                    [&mut trainer, &mut reference].map(|trainer| trainer.step(&corpus.train.tokens).unwrap());
                // Sums in another order move weights a little, which later steps see.
                assert!((found.loss - expected.loss).abs() <= 1e-4 * expected.loss, "{what}, {scores:?}: {found:?}");
            }
        }
    }
}

/// Elements are dropped where the configuration says so, and not else.
#[test]
fn own_layers_drop() {
    let losses = [0.0, 0.5].map(|hidden_dropout| {
        let config = Config { hidden_dropout, ..config("delta") };
        let mut trainer = trainer_of(&own(config, Scores::Forward), settings());
        trainer.step(&corpus().train.tokens).unwrap().loss
    });
    assert!((losses[0] - losses[1]).abs() > 1e-4, "{losses:?}");
}
