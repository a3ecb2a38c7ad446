//! Networks as text: JSON, which the crate's README describes.
//!
//! Everything is checked where it is read, so that an error names its line. What a file announces in a few bytes, such as
//! a million equal neurons, is compared with the memory that is there before it is made.

use crate::{Area, Builder, Error, Kind, Mapping, Network, Neuron, Result, Stimulus, Synapse, state};
use hecate_core::memory::Bytes;
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{
        self, DeserializeSeed, MapAccess, SeqAccess, Visitor,
        value::{MapAccessDeserializer, SeqAccessDeserializer},
    },
};
use std::{
    fmt,
    fs::File,
    io::{self, Read},
    marker::PhantomData,
    path::Path,
    sync::Arc,
};

/// What the field `format` of a file says.
pub const FORMAT: &str = "hecate-spiking 1";

/// Most bytes of a file: 4 GiB.
const MOST: u64 = 4 << 30;

/// A network and what reaches it: what a file holds.
#[derive(Clone, Debug)]
pub struct Experiment {
    /// The network.
    pub network: Arc<Network>,
    /// Number of bursts to run.
    pub bursts: u64,
    /// Staged potentials by burst, ascending by it.
    inputs: Inputs,
    /// First and last burst of each time with fatigue.
    fatigue: Vec<(u64, u64)>,
}

/// Staged potentials, ascending by burst.
#[derive(Clone, Debug, Default)]
struct Inputs {
    /// The burst of each.
    bursts: Vec<u64>,
    /// Neuron and potential of each.
    staged: Vec<(u32, f32)>,
}

impl Experiment {
    /// An experiment of a network without stimulus.
    pub fn new(network: Arc<Network>, bursts: u64) -> Self {
        Self { network, bursts, inputs: Inputs::default(), fatigue: Vec::new() }
    }

    /// Stages potentials, as burst, neuron and potential, in any order of bursts.
    ///
    /// # Errors
    /// [`Error::MissingNeuron`], [`Error::Value`] with the index; [`Error::Overflow`] with the neuron, for a burst that has
    /// too much.
    pub fn stage(&mut self, mut inputs: Vec<(u64, u32, f32)>) -> Result<()> {
        inputs.sort_by_key(|&(burst, ..)| burst);
        let staged: Vec<_> = inputs.iter().map(|&(_, neuron, potential)| (neuron, potential)).collect();
        // The sort kept the order within a burst; sums do not depend on it anyway.
        let mut rest = &staged[..];
        for burst in inputs.chunk_by(|a, b| a.0 == b.0) {
            let (now, after) = rest.split_at(burst.len());
            state::check_staged(&self.network, now)?;
            rest = after;
        }
        self.inputs = Inputs { bursts: inputs.iter().map(|&(burst, ..)| burst).collect(), staged };
        Ok(())
    }

    /// Adds fatigue from burst `first` to burst `last`, both included.
    pub fn tire(&mut self, first: u64, last: u64) {
        self.fatigue.push((first, last));
    }

    /// What reaches the network in a burst; they are counted from 1.
    pub fn stimulus(&self, burst: u64) -> Stimulus<'_> {
        let Inputs { bursts, staged } = &self.inputs;
        let (start, end) = (bursts.partition_point(|&at| at < burst), bursts.partition_point(|&at| at <= burst));
        let fatigue = self.fatigue.iter().any(|&(first, last)| (first..=last).contains(&burst));
        Stimulus { staged: &staged[start..end], fatigue }
    }

    /// Reads a file.
    ///
    /// # Errors
    /// [`Error::Read`] for what is no plain file, is too large or no UTF-8; what [`Experiment::parse`] refuses.
    pub fn read(path: &Path) -> Result<Self> {
        let fault = |source| Error::Read { path: path.to_owned(), source };
        Self::parse(&text(path).map_err(fault)?)
    }

    /// Reads a text.
    ///
    /// # Errors
    /// [`Error::File`] with line, column and reason.
    pub fn parse(text: &str) -> Result<Self> {
        // Windows' editors begin files with a byte-order mark.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut reader = serde_json::Deserializer::from_str(text);
        let experiment = reader.deserialize_map(Whole);
        experiment.and_then(|experiment| reader.end().map(|()| experiment)).map_err(|error| {
            let (line, column, reason) = (error.line(), error.column(), error.to_string());
            // serde_json says the place in its message too.
            let place = format!(" at line {line} column {column}");
            Error::File { line, column, reason: reason.strip_suffix(&place).unwrap_or(&reason).to_owned() }
        })
    }

    /// The text of a file: one line an area, group of equal neurons, synapse or staged potential.
    pub fn to_json(&self) -> String {
        let network = &self.network;
        let first = network.neuron_count();
        let alike = network.sort.chunk_by(|a, b| a == b);
        let neurons = alike.map(|of| (of.len(), &network.sorts[of[0] as usize]));
        let places = network.place[first..].chunk_by(|a, b| a == b);
        let memory = places.map(|of| (of.len(), network.areas[of[0] as usize].id));
        let Inputs { bursts, staged } = &self.inputs;
        let inputs = bursts.iter().zip(staged).map(|(burst, (neuron, potential))| (burst, neuron, potential));
        let fields = [
            ("format", json(&FORMAT)),
            ("areas", lines(network.areas())),
            ("power", json(&network.power())),
            ("neurons", lines(neurons)),
            ("memory", lines(memory)),
            ("synapses", lines(network.synapses())),
            ("plasticity", lines(network.mappings())),
            ("inputs", lines(inputs)),
            ("fatigue", lines(&self.fatigue)),
            ("bursts", json(&self.bursts)),
        ];
        // serde_json writes floats with the fewest digits that read as the same float.
        // What is empty is left out.
        let fields = fields.into_iter().filter(|(_, value)| value != "[\n]");
        let fields: Vec<_> = fields.map(|(name, value)| format!("\"{name}\": {value}")).collect();
        format!("{{\n{}\n}}\n", fields.join(",\n"))
    }
}

/// The text of a plain file that is not too large.
fn text(path: &Path) -> io::Result<String> {
    let file = File::open(path)?;
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no plain file; name a file of JSON"));
    }
    let mut text = String::new();
    // A file may grow while it is read.
    file.take(MOST + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MOST {
        let reason = format!("it has more than {}; make it of fewer synapses", Bytes(MOST.into()));
        return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
    }
    Ok(text)
}

/// A value on one line.
fn json(value: &impl Serialize) -> String {
    // Finite numbers, texts and lists of them have a text.
    serde_json::to_string(value).unwrap_or_default()
}

/// A list, one element a line.
fn lines(elements: impl IntoIterator<Item: Serialize>) -> String {
    let elements: Vec<_> = elements.into_iter().map(|element| format!("\n{}", json(&element))).collect();
    format!("[{}\n]", elements.join(","))
}

// What follows is serde's way to read fields one by one, so that each element is checked where it stands.
/// Reads a whole file.
struct Whole;

impl<'de> Visitor<'de> for Whole {
    type Value = Experiment;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a network: an object that begins with `\"format\"`")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Experiment, M::Error> {
        let mut parts = Parts::default();
        while let Some(name) = map.next_key::<String>()? {
            if parts.seen.contains(&name) {
                return Err(de::Error::custom(format!("`{name}` is there twice, expected once")));
            }
            // The format decides what the rest means.
            if parts.seen.is_empty() != (name == "format") {
                return Err(de::Error::custom(format!(
                    "`{name}` was found, expected `\"format\": \"{FORMAT}\"` first"
                )));
            }
            parts.field(&name, &mut map)?;
            parts.seen.push(name);
        }
        parts.finish().map_err(de::Error::custom)
    }
}

/// What of a file was read.
#[derive(Default)]
struct Parts {
    /// Names of fields so far.
    seen: Vec<String>,
    builder: Builder,
    inputs: Vec<(u64, u32, f32)>,
    fatigue: Vec<(u64, u64)>,
    bursts: u64,
}

impl Parts {
    /// Reads the value of one field.
    fn field<'de, M: MapAccess<'de>>(&mut self, name: &str, map: &mut M) -> Result<(), M::Error> {
        let builder = &mut self.builder;
        match name {
            "format" => match map.next_value::<String>()? {
                format if format == FORMAT => Ok(()),
                other => Err(de::Error::custom(format!("`format` is `{other}`, expected `{FORMAT}`"))),
            },
            "areas" => map.next_value_seed(each(|area: Area| builder.area(area))),
            "power" => builder.power(map.next_value()?).map_err(de::Error::custom),
            "neurons" => map.next_value_seed(each(|(count, of): (usize, Neuron)| builder.neurons(count, of).map(drop))),
            "memory" => map.next_value_seed(each(|(count, area): (usize, u32)| builder.memory(count, area).map(drop))),
            "synapses" => map.next_value_seed(each(|of: (u32, u32, u8, u8, Kind)| builder.synapse(Synapse::from(of)))),
            "plasticity" => map.next_value_seed(each(|mapping: Mapping| builder.mapping(mapping))),
            "inputs" => {
                let inputs = &mut self.inputs;
                map.next_value_seed(each(|input: (u64, u32, f32)| {
                    builder.check_staged(inputs.len(), input.1, input.2)?;
                    inputs.push(input);
                    Ok(())
                }))
            }
            "fatigue" => {
                let fatigue = &mut self.fatigue;
                map.next_value_seed(each(|of: (u64, u64)| {
                    fatigue.push(of);
                    Ok(())
                }))
            }
            "bursts" => {
                self.bursts = map.next_value()?;
                Ok(())
            }
            // Its value is not read: the error names the line of the name.
            other => {
                Err(de::Error::custom(format!("there is no field `{other}`, expected one of {}", FIELDS.join(", "))))
            }
        }
    }

    /// The experiment, after the last field.
    fn finish(self) -> Result<Experiment> {
        let mut experiment = Experiment::new(self.builder.build()?, self.bursts);
        experiment.stage(self.inputs)?;
        experiment.fatigue = self.fatigue;
        Ok(experiment)
    }
}

/// Fields of a file.
const FIELDS: [&str; 10] =
    ["format", "areas", "power", "neurons", "memory", "synapses", "plasticity", "inputs", "fatigue", "bursts"];

/// Reads a list and gives each element to `add`, whose errors are the file's, at the element's line.
struct Each<T, F>(F, PhantomData<T>);

fn each<T, F: FnMut(T) -> Result<()>>(add: F) -> Each<T, F> {
    Each(add, PhantomData)
}

impl<'de, T: Deserialize<'de>, F: FnMut(T) -> Result<()>> DeserializeSeed<'de> for Each<T, F> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, list: D) -> Result<(), D::Error> {
        list.deserialize_seq(self)
    }
}

impl<'de, T: Deserialize<'de>, F: FnMut(T) -> Result<()>> Visitor<'de> for Each<T, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<S: SeqAccess<'de>>(mut self, mut list: S) -> Result<(), S::Error> {
        while list.next_element_seed(Element(&mut self.0, PhantomData))?.is_some() {}
        Ok(())
    }
}

/// Reads one element. It is added before its last bracket is passed: an error then names the line of this one.
struct Element<'a, T, F>(&'a mut F, PhantomData<T>);

impl<'de, T: Deserialize<'de>, F: FnMut(T) -> Result<()>> Element<'_, T, F> {
    fn add<D: Deserializer<'de>>(self, element: D) -> Result<(), D::Error> {
        T::deserialize(element).and_then(|element| (self.0)(element).map_err(de::Error::custom))
    }
}

impl<'de, T: Deserialize<'de>, F: FnMut(T) -> Result<()>> DeserializeSeed<'de> for Element<'_, T, F> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, element: D) -> Result<(), D::Error> {
        element.deserialize_any(self)
    }
}

impl<'de, T: Deserialize<'de>, F: FnMut(T) -> Result<()>> Visitor<'de> for Element<'_, T, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object or a list")
    }

    fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<(), M::Error> {
        self.add(MapAccessDeserializer::new(map))
    }

    fn visit_seq<S: SeqAccess<'de>>(self, list: S) -> Result<(), S::Error> {
        self.add(SeqAccessDeserializer::new(list))
    }
}
