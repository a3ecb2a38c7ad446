//! What a language model is made of: Hecate's own blocks, or layers of one's own.

mod call;

pub use call::Call;

use crate::{
    Builder, Dropout, Error, Footprint, LayerCache, Parameters, Precision, Result, Tape, Var,
    files::{CONFIG, parse_json, to_json},
    layers::{Context, Linear, Mixer},
};
use hecate_core::{Backend, Tensor};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};
use std::{
    any::{Any, type_name},
    fmt,
    path::Path,
    sync::Arc,
};

/// The content of `config.json`, and how a model is built from it. [`Config`](crate::Config) is one; a type of one's own with
/// [`Architecture::build`] gives own models all that [`LanguageModel`](crate::LanguageModel) has.
///
/// # Example
///
/// ```
/// use hecate_cpu::Cpu;
/// use hecate_core::{Backend, Tensor, rules::Titans};
/// use hecate_models::{
///     Architecture, Builder, LanguageModel, MemoryConfig, Model, Result, Tape, Var,
///     layers::{Context, Embedding, Linear, Memory, Mixer},
/// };
/// use serde::{Deserialize, Serialize};
///
/// /// What `config.json` says.
/// #[derive(Clone, Serialize, Deserialize)]
/// struct Reader {
///     width: usize,
/// }
///
/// /// `head(x + memory(x))`, with `x` the embedding of each byte.
/// #[derive(Debug)]
/// struct Layers {
///     embedding: Embedding,
///     memory: Memory<Titans>,
///     head: Linear,
/// }
///
/// impl<B: Backend> Architecture<B> for Reader {
///     fn build(&self, build: &mut Builder<'_, B>) -> Result<Box<dyn Model<B>>> {
///         let memory = MemoryConfig { rule: Titans::default(), momentum: 0.9, ..MemoryConfig::default() };
///         let embedding = Embedding::new(build, "embedding", 256, self.width)?;
///         let memory = Memory::new(&mut build.within("memory"), &memory, self.width, 1e-6)?;
///         let head = embedding.head(build, "head", (256, self.width), true)?;
///         Ok(Box::new(Layers { embedding, memory, head }))
///     }
/// }
///
/// impl<B: Backend> Model<B> for Layers {
///     fn vocabulary_size(&self) -> usize {
///         256
///     }
///
///     fn mixers(&self) -> Vec<&dyn Mixer<B>> {
///         vec![&self.memory]
///     }
///
///     fn forward(&self, tape: &Tape<'_, B>, tokens: &Tensor<B>, context: &mut Context<'_, B>) -> Result<Var<B>> {
///         let x = self.embedding.forward(tape, tokens)?;
///         let read = self.memory.forward(tape, &x, &mut context.part(0))?;
///         self.head.forward(tape, &tape.add(&x, &read)?)
///     }
/// }
///
/// # fn main() -> Result<()> {
/// let model = LanguageModel::new(&Cpu::new(), &Reader { width: 16 }, 0)?;
/// assert!(model.loss(b"tick tac ".map(u32::from).as_slice(), b"ick tac t".map(u32::from).as_slice(), 1)? > 0.0);
/// # Ok(())
/// # }
/// ```
pub trait Architecture<B: Backend>: Clone + Serialize + DeserializeOwned + Send + Sync + 'static {
    /// Adds the model's parameters, and says where they are. Called again with the same configuration it adds the same ones in
    /// the same order: a checkpoint is loaded into a model built so.
    ///
    /// # Errors
    /// Sizes that no layer has; the device's own failures.
    fn build(&self, build: &mut Builder<'_, B>) -> Result<Box<dyn Model<B>>>;

    /// Refuses a configuration that no model can have, before anything is built.
    ///
    /// # Errors
    /// [`Error::Config`] naming the setting.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// Blocks that add to the residual stream, at least 1: [`Init::Residual`](crate::Init::Residual) depends on it.
    fn layers(&self) -> usize {
        1
    }

    /// Standard deviation of first values.
    fn initializer_range(&self) -> f32 {
        0.02
    }

    /// What layers drop while the model learns.
    fn dropout(&self) -> Dropout {
        Dropout::default()
    }

    /// Elements of all parameters, without a model.
    ///
    /// # Errors
    /// As [`Architecture::build`].
    fn elements(&self, device: &B) -> Result<u128> {
        self.check()?;
        let (mut parameters, mut count) = (Parameters::new(), 0);
        self.build(&mut Builder::counting(device, &mut parameters, &mut count))?;
        Ok(count)
    }

    /// What a step costs in memory with `elements` learned and passes of `batch` sequences of `tokens` tokens. Unless a
    /// configuration says more, activations count nothing.
    fn footprint(&self, elements: u128, precision: Precision, _: [usize; 2]) -> Footprint {
        Footprint::of_elements(elements, precision)
    }

    /// What the content of a `config.json` says; `path` is for messages.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] for content that says something else.
    fn read(path: &Path, content: &[u8]) -> Result<Self> {
        let config: Self = parse_json(path, content)?;
        config.check().map_err(|error| Error::checkpoint(path, error.to_string()))?;
        Ok(config)
    }
}

/// Layers that make scores of tokens: the inside of a [`LanguageModel`](crate::LanguageModel). They hold no arrays, only the
/// places of their parameters.
pub trait Model<B: Backend>: fmt::Debug + Send + Sync {
    /// Number of different tokens, `V`.
    fn vocabulary_size(&self) -> usize;

    /// All that carries something from token to token, in the order of their parts in the context of [`Model::forward`].
    fn mixers(&self) -> Vec<&dyn Mixer<B>>;

    /// Scores `[N,T,V]` of the token that follows each of `tokens [N,T]`; where there is a [`Model::head`], the stream
    /// `[N,T,hidden]` that it makes them of. Mixer `i` runs in `context.part(i)`, where it remembers.
    ///
    /// # Errors
    /// The layers' own.
    fn forward(&self, tape: &Tape<'_, B>, tokens: &Tensor<B>, context: &mut Context<'_, B>) -> Result<Var<B>>;

    /// The last map `[V, hidden]`. A model that tells it never holds the scores of all tokens of a long batch at once.
    fn head(&self) -> Option<Linear> {
        None
    }

    /// Scores `[N,T,V]`, for no gradient.
    ///
    /// # Errors
    /// As [`Model::forward`].
    fn scores(&self, tape: &Tape<'_, B>, tokens: &Tensor<B>, context: &mut Context<'_, B>) -> Result<Var<B>> {
        let x = self.forward(tape, tokens, context)?;
        self.head().map_or_else(|| Ok(x.clone()), |head| head.forward(tape, &x))
    }

    /// Scores `[1,T,V]` of several calls of one text in their order: bit for bit what [`Model::scores`] makes of one after the other.
    /// A model that goes through each layer with all calls at once reads its weights while they are near.
    ///
    /// # Errors
    /// As [`Model::forward`].
    fn scores_each(&self, tape: &Tape<'_, B>, calls: &mut [Call<B>]) -> Result<Vec<Var<B>>> {
        (0..calls.len()).map(|i| self.scores(tape, &calls[i].tokens.clone(), &mut Call::context(calls, i))).collect()
    }

    /// As [`Model::forward`], of some `rows` among the `N T` tokens alone: `[rows, ..]`.
    ///
    /// # Errors
    /// As [`Model::forward`].
    fn forward_rows(
        &self,
        tape: &Tape<'_, B>,
        tokens: &Tensor<B>,
        rows: &Tensor<B>,
        context: &mut Context<'_, B>,
    ) -> Result<Var<B>> {
        tape.rows(&self.forward(tape, tokens, context)?, rows)
    }
}

/// A configuration of whatever type, as a model keeps it.
trait AnyArchitecture<B: Backend>: Send + Sync {
    fn dropout(&self) -> Dropout;
    fn footprint(&self, elements: u128, precision: Precision, sizes: [usize; 2]) -> Footprint;
    fn as_any(&self) -> &dyn Any;
}

impl<B: Backend, A: Architecture<B>> AnyArchitecture<B> for A {
    fn dropout(&self) -> Dropout {
        Architecture::dropout(self)
    }

    fn footprint(&self, elements: u128, precision: Precision, sizes: [usize; 2]) -> Footprint {
        Architecture::footprint(self, elements, precision, sizes)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Footprint {
    /// Of a step of a model of this configuration with `batch` sequences of `tokens` tokens a pass. Nothing is made on the
    /// device. Of more texts or tokens than any memory holds it says that they are more than any memory holds.
    ///
    /// # Errors
    /// As [`Architecture::elements`].
    pub fn of<B: Backend, A: Architecture<B>>(
        device: &B,
        config: &A,
        precision: Precision,
        batch: usize,
        tokens: usize,
    ) -> Result<Self> {
        Ok(config.footprint(config.elements(device)?, precision, [batch, tokens]))
    }
}

/// The configuration that a model was built from.
pub(crate) struct KeptConfig<B: Backend> {
    /// As `config.json` has it.
    content: Vec<u8>,
    value: Arc<dyn AnyArchitecture<B>>,
}

impl<B: Backend> KeptConfig<B> {
    /// A copy of the configuration, with what its file will say.
    pub(crate) fn new<A: Architecture<B>>(config: &A) -> Result<Arc<Self>> {
        let content = to_json(Path::new(CONFIG), config)?;
        Ok(Arc::new(Self { content, value: Arc::new(config.clone()) }))
    }

    /// The same configuration, in whose file more is said under this name.
    pub(crate) fn with<T: Serialize>(&self, name: &str, more: &T) -> Result<Arc<Self>> {
        let (path, wrong) = (Path::new(CONFIG), |why: serde_json::Error| Error::checkpoint(CONFIG, why.to_string()));
        let mut all: Map<String, Value> = serde_json::from_slice(&self.content).map_err(wrong)?;
        all.insert(name.to_owned(), serde_json::to_value(more).map_err(wrong)?);
        // Some builds have objects that keep their order. The same model has the same content in all of them.
        let mut all = Value::Object(all);
        all.sort_all_objects();
        Ok(Arc::new(Self { content: to_json(path, &all)?, value: Arc::clone(&self.value) }))
    }

    /// Content of `config.json`.
    pub(crate) fn content(&self) -> &[u8] {
        &self.content
    }

    /// What layers drop while the model learns.
    pub(crate) fn dropout(&self) -> Dropout {
        self.value.dropout()
    }

    /// [`Architecture::footprint`].
    pub(crate) fn footprint(&self, elements: u128, precision: Precision, sizes: [usize; 2]) -> Footprint {
        self.value.footprint(elements, precision, sizes)
    }

    /// The configuration, where it is of this type.
    pub(crate) fn of<A: Architecture<B>>(&self) -> Result<&A> {
        let wrong = || Error::config("configuration", "one of another type", type_name::<A>());
        self.value.as_any().downcast_ref().ok_or_else(wrong)
    }
}

impl<B: Backend> fmt::Debug for KeptConfig<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.content))
    }
}

impl<B: Backend> PartialEq for KeptConfig<B> {
    fn eq(&self, other: &Self) -> bool {
        self.content == other.content
    }
}

/// Refuses what a model made of tokens `[N,T]`, unless it is of these axes before the last.
pub(crate) fn check_rows<B: Backend>(x: &Var<B>, rows: &[usize], last: Option<usize>) -> Result<()> {
    let axes = x.axes();
    if axes.len() == rows.len() + 1 && axes.starts_with(rows) && last.is_none_or(|last| axes.last() == Some(&last)) {
        return Ok(());
    }
    let last = last.map_or_else(|| "hidden".to_owned(), |last| format!("{last} (vocabulary_size)"));
    let expected = rows.iter().map(ToString::to_string).chain([last]).collect::<Vec<_>>().join(", ");
    Err(Error::config("what the model's forward made", x.value().shape(), format!("[{expected}]")))
}

/// Refuses to go on after a forward whose mixers remember elsewhere than in a part of their own, where nobody looks again.
pub(crate) fn check_parts<B: Backend>(cache: Option<&mut LayerCache<B>>, mixers: usize) -> Result<()> {
    let found = match cache {
        Some(cache) if cache.lacks_part() => format!("{mixers}, and its forward asks for the part of another"),
        Some(cache) if cache.has_own_arrays() => format!("{mixers}, and one runs in the context of the whole model"),
        _ => return Ok(()),
    };
    let expected = "all that `forward` runs, each in its `context.part(i)`: others would forget";
    Err(Error::config("mixers of the model", found, expected))
}
