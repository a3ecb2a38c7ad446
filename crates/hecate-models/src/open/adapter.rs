//! Adapters of a released model: which maps of its files have one, and which parameters those are.

use super::{
    Opened,
    arrays::Array,
    peft::{self, PeftFile},
    write,
};
use crate::{
    Error, LanguageModel, Lora, ParameterId, Parameters, Random, Result, lora::ends_with, parameters::Adapter,
};
use hecate_core::{Backend, Tensor};
use std::path::Path;

/// The map to scores: its products are made in pieces, without an adapter.
const HEAD: &str = "lm_head.weight";

/// `A [r, inputs]` and `B [outputs, r]` of a map as the files have it.
pub(super) struct Factors {
    pub(super) a: Vec<f32>,
    pub(super) b: Vec<f32>,
}

impl<B: Backend> Opened<B> {
    /// A model of this folder with a fresh adapter, which learns in its place: `A` uniform within `±1/√inputs`, `B` zeros, so it
    /// scores as before. Without targets all of [`Lora::TARGETS`] that the folder has are taken.
    ///
    /// # Errors
    /// [`Error::Config`] for a model of other parameters or with an adapter, as [`Lora::check`], and for a target that is no
    /// linear map of the folder. The device's own failures.
    pub fn adapt(&self, model: LanguageModel<B>, lora: &Lora, seed: u64) -> Result<LanguageModel<B>> {
        let lora = Lora { targets: self.targets(&lora.targets)?, ..lora.clone() };
        let mut random = Random::new(seed);
        self.attach(model, &lora, &mut |array| {
            let [outputs, inputs] = array.rows();
            let most = (inputs as f64).sqrt().recip();
            let a = (0..lora.rank * inputs).map(|_| (most * (2.0 * random.unit() - 1.0)) as f32).collect();
            Ok(Factors { a, b: vec![0.0; outputs * lora.rank] })
        })
    }

    /// A model of this folder with the adapter in another one, as PEFT writes it: `adapter_config.json` and
    /// `adapter_model.safetensors`. Nothing in it is trusted.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Checkpoint`] for files that are missing or damaged, arrays that are missing, left over, or of
    /// another shape than the model's maps, and for what is not built, by its name. As [`Opened::adapt`].
    pub fn read_adapter(&self, model: LanguageModel<B>, folder: &Path) -> Result<LanguageModel<B>> {
        let lora = peft::read_config(folder)?;
        let mut file = PeftFile::open(folder)?;
        let model = self.attach(model, &lora, &mut |array| file.factors(array, lora.rank))?;
        file.check_used()?;
        Ok(model)
    }

    /// Writes a model's adapter into an empty or new folder, as PEFT reads it: in 32 bits.
    ///
    /// # Errors
    /// [`Error::Config`] for a model without one; [`Error::Io`]; [`Error::Checkpoint`] for a folder with files in it; the device's
    /// own failures.
    pub fn save_adapter(&self, model: &LanguageModel<B>, folder: &Path) -> Result<()> {
        let lora =
            model.lora().ok_or_else(|| Error::config("model", "one without an adapter", "one with an adapter"))?;
        let mut arrays = Vec::new();
        for (number, array) in self.maps(lora) {
            let factors = self.factors(model.parameters(), number, array)?;
            arrays.extend(peft::arrays(array, factors, lora.rank));
        }
        write::make_empty(folder)?;
        peft::write(folder, (lora, &self.path), arrays)
    }

    /// Arrays with an adapter, and their numbers: what is not used here has none.
    fn maps<'a>(&'a self, lora: &'a Lora) -> impl Iterator<Item = (usize, &'a Array)> {
        let all = self.arrays.all().iter().enumerate();
        let used = all.filter(|(number, _)| !self.plan.of_array(*number).is_empty());
        used.filter(|(_, array)| array.map().is_some_and(|map| lora.is_target(map)))
    }

    /// These targets, each of which is there; without any, those of [`Lora::TARGETS`] that are.
    fn targets(&self, asked: &[String]) -> Result<Vec<String>> {
        let maps: Vec<_> = self.arrays.all().iter().filter_map(Array::map).collect();
        let is_there = |target: &str| maps.iter().any(|map| ends_with(map, target));
        if asked.is_empty() {
            return Ok(Lora::TARGETS.iter().filter(|target| is_there(target)).map(ToString::to_string).collect());
        }
        match asked.iter().find(|target| !is_there(target)) {
            None => Ok(asked.to_vec()),
            Some(target) => {
                let known: Vec<_> = Lora::TARGETS.into_iter().filter(|target| is_there(target)).collect();
                let expected =
                    format!("last words of the name of a map in the model's files, such as {}", known.join(", "));
                Err(Error::config("targets", format!("`{target}`"), expected))
            }
        }
    }

    /// Freezes a model, and adds to each target what `give` has for it.
    fn attach(
        &self,
        model: LanguageModel<B>,
        lora: &Lora,
        give: &mut dyn FnMut(&Array) -> Result<Factors>,
    ) -> Result<LanguageModel<B>> {
        lora.check()?;
        if model.lora().is_some() {
            return Err(Error::config("model", "one with an adapter", "one without: merge it first"));
        }
        write::check_names(&self.plan, model.parameters())?;
        // A parameter's number is its number in the plan.
        let places: Vec<_> = model.parameters().ids().collect();
        let maps: Vec<_> = self.maps(lora).collect();
        if maps.is_empty() {
            let found = format!("`{}`", lora.targets.join("`, `"));
            return Err(Error::config("targets", found, "at least one map that the model's files have"));
        }
        maps.iter().try_for_each(|&(number, array)| self.check_map(model.parameters(), number, array))?;
        let mut model = model.frozen_for(lora)?;
        for (number, array) in maps {
            self.add(model.parameters_mut(), (number, array, give(array)?), &places, lora)?;
        }
        Ok(model)
    }

    /// Refuses an array that is no linear map, or whose parameters are made of others too.
    fn check_map(&self, parameters: &Parameters<B>, number: usize, array: &Array) -> Result<()> {
        let own = |parameter: usize| self.plan.of_parameter(parameter).iter().all(|piece| piece.array == number);
        // Norms have one axis and convolutions three; tables of embeddings and first states do not decay.
        let is_linear = |parameter: usize| parameters.iter().nth(parameter).is_some_and(|parameter| parameter.decay);
        let pieces = self.plan.of_array(number);
        let expected = match () {
            () if array.name == HEAD => "maps of blocks: the scores' map has no adapter yet",
            () if array.shape.len() != 2 || !pieces.iter().all(|piece| is_linear(piece.parameter)) => "linear maps",
            () if !pieces.iter().all(|piece| own(piece.parameter)) => "maps that are not joined with others here",
            () => return Ok(()),
        };
        Err(Error::config("targets", format!("`{}`", array.map().unwrap_or(&array.name)), expected))
    }

    /// Adds the factors of a map to the parameters that it is: `A` once, and to each its rows of `B`.
    fn add(
        &self,
        parameters: &mut Parameters<B>,
        (number, array, Factors { a, b }): (usize, &Array, Factors),
        places: &[ParameterId],
        lora: &Lora,
    ) -> Result<()> {
        let (map, rank) = (array.map().unwrap_or(&array.name), lora.rank);
        let a = Tensor::from_f32(&self.device, [rank, array.rows()[1]], a)?;
        let a = parameters.add(format!("{map}.lora_A.weight"), a, true);
        for parameter in self.parameters_of(number) {
            let (name, shape) = &self.plan.parameters()[parameter];
            let rows = shape.axes()[0];
            let mut own = vec![0.0; rows * rank];
            for piece in self.plan.of_array(number).iter().filter(|piece| piece.parameter == parameter) {
                let [from, to] = [piece.array_row * rank, piece.parameter_row * rank];
                own[to..to + piece.rows * rank].copy_from_slice(&b[from..from + piece.rows * rank]);
            }
            let own = Tensor::from_f32(&self.device, [rows, rank], own)?;
            let b = parameters.add(name_of_b(name), own, true);
            parameters.adapt(places[parameter], Adapter { a, b, scale: lora.scale() });
        }
        Ok(())
    }

    /// The factors of a map, out of the parameters that it is.
    fn factors(&self, parameters: &Parameters<B>, number: usize, array: &Array) -> Result<Factors> {
        let values = |name: String| match parameters.iter().find(|parameter| parameter.name == name) {
            Some(parameter) => Ok(parameter.value.to_f32()?),
            None => Err(Error::config("model", format!("one without `{name}`"), "one with an adapter of this folder")),
        };
        let mut b = Vec::new();
        let a = values(format!("{}.lora_A.weight", array.map().unwrap_or(&array.name)))?;
        for parameter in self.parameters_of(number) {
            let own = values(name_of_b(&self.plan.parameters()[parameter].0))?;
            let rank = own.len() / self.plan.parameters()[parameter].1.axes()[0].max(1);
            b.resize(array.rows()[0] * rank, 0.0);
            for piece in self.plan.of_array(number).iter().filter(|piece| piece.parameter == parameter) {
                let [to, from] = [piece.array_row * rank, piece.parameter_row * rank];
                b[to..to + piece.rows * rank].copy_from_slice(&own[from..from + piece.rows * rank]);
            }
        }
        Ok(Factors { a, b })
    }

    /// Numbers of the parameters that an array is, each once.
    fn parameters_of(&self, array: usize) -> Vec<usize> {
        let mut all: Vec<_> = self.plan.of_array(array).iter().map(|piece| piece.parameter).collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

/// What the rows of `B` are called that are this parameter's.
fn name_of_b(parameter: &str) -> String {
    format!("{}.lora_B.weight", parameter.strip_suffix(".weight").unwrap_or(parameter))
}
