//! `hecate chat`: a conversation with a model that others released, by the template that came with it.
//!
//! Each line of standard input is what the user says. It is added to the messages, the template writes all of them as a text, and
//! the model reads what of that text it has not read yet. What it then writes is the next message.

use crate::{
    device::{Choice, with_device},
    error::Result,
    generate::{SamplingArgs, Writer, ask, stored},
    progress,
    released::{self, Released},
    stop::Stop,
};
use clap::{Args, builder::PossibleValuesParser};
use hecate::{
    Backend, Job,
    models::{ChatTemplate, Message, Opened, Precision, Reading, generate::Generation},
};
use std::{
    path::PathBuf,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// Flags of `hecate chat`.
#[derive(Args, Debug)]
pub(crate) struct ChatArgs {
    /// Folder of the model, as Hugging Face has it
    ///
    /// Each line of standard input is a turn. Ctrl-C stops an answer; Ctrl-D ends the conversation.
    #[arg(long, value_name = "DIR")]
    model: PathBuf,
    /// What the model is told before the conversation
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    system: Option<String>,
    /// Tell the model's chat template this, in JSON, such as `enable_thinking=false`; may be given several times
    #[arg(long, value_name = "NAME=JSON", value_parser = told)]
    tell: Vec<(String, String)>,
    /// Most tokens of an answer
    #[arg(long, default_value_t = 4096, value_name = "N")]
    tokens: usize,
    #[command(flatten)]
    sampling: SamplingArgs,
    /// How the model's matrices are stored; bf16 takes half the memory and half the time of reading them
    #[arg(long, default_value = "f32", value_parser = PossibleValuesParser::new(Precision::STORED))]
    precision: String,
    /// Write control characters as they are; unless given they are made visible, so that they do nothing to a terminal
    #[arg(long)]
    raw: bool,
    #[command(flatten)]
    device: Choice,
}

/// A name, and what it stands for.
fn told(text: &str) -> Result<(String, String), String> {
    let parts = text.split_once('=').filter(|(name, _)| !name.is_empty());
    let (name, json) = parts.ok_or("expected a name, `=` and a value in JSON, such as `enable_thinking=false`")?;
    Ok((name.to_owned(), json.to_owned()))
}

/// Answers each line of standard input, until it ends.
pub(crate) fn run(arguments: ChatArgs) -> Result<ExitCode> {
    let choice = arguments.device.clone();
    with_device(&choice, arguments)
}

impl Job for ChatArgs {
    type Output = Result<ExitCode>;

    fn run<B: Backend>(self, device: &B) -> Result<ExitCode> {
        // What is cheap to refuse comes before what is slow to load.
        self.sampling.check()?;
        let (released, template) = released::open_with(device, &self.model, |opened| self.template(opened))?;
        self.sampling.check_bias(&released.vocabulary)?;
        let ends = ends(&released, &template)?;
        // The handler runs on a thread of its own, and says other things while nobody is answering.
        let answering = Arc::new(AtomicBool::new(false));
        let stop = listen(Arc::clone(&answering))?;
        let model = stored(released.model, &self.precision)?.with_interrupt(stop.interrupt());
        let released = Released { model, ends, ..released };
        let messages = self.system.iter().map(|text| Message::new("system", text)).collect();
        let reading = Reading::new(&released.model);
        let mut conversation = Conversation { released: &released, template, messages, reading, stop };
        for line in 0.. {
            let Some(said) = ask(line)? else { break };
            let said = said.trim_end_matches(['\r', '\n']);
            // Nothing was said.
            if said.trim().is_empty() {
                continue;
            }
            // A Ctrl-C from before is of nothing that is going on now.
            conversation.stop.forget();
            answering.store(true, Ordering::SeqCst);
            conversation.answer(said, &self, line)?;
            answering.store(false, Ordering::SeqCst);
            conversation.stop.forget();
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl ChatArgs {
    /// The model's template, which is told what flags say.
    fn template<B: Backend>(&self, opened: &Opened<B>) -> Result<ChatTemplate> {
        let template = opened.chat_template()?;
        Ok(self.tell.iter().try_fold(template, |template, (name, json)| template.told(name, json))?)
    }
}

/// Ctrl-C stops an answer. Where there is none, the first of two says what ends the program.
fn listen(answering: Arc<AtomicBool>) -> Result<Stop> {
    Stop::listen_to_ctrl_c(move || {
        if !answering.load(Ordering::SeqCst) {
            progress::say("Ctrl-D ends the conversation, and so does Ctrl-C once more");
        }
    })
}

/// Tokens that end an answer: those that end texts, and that which the template ends what the model says with.
pub(crate) fn ends<B: Backend>(released: &Released<B>, template: &ChatTemplate) -> Result<Vec<u32>> {
    let mut ends = released.ends.clone();
    if let Some(end) = template.end() {
        // One that is several tokens is no token.
        ends.extend(<[u32; 1]>::try_from(released.vocabulary.encode(end)?).ok().map(|[end]| end));
    }
    Ok(ends)
}

/// What was said, and what the model read of it.
struct Conversation<'a, B: Backend> {
    released: &'a Released<B>,
    template: ChatTemplate,
    messages: Vec<Message>,
    reading: Reading<'a, B>,
    stop: Stop,
}

impl<'a, B: Backend> Conversation<'a, B> {
    /// Writes the answer to what was said.
    fn answer(&mut self, said: &str, arguments: &ChatArgs, line: u64) -> Result<()> {
        let Released { model, vocabulary, sampling, .. } = self.released;
        self.messages.push(Message::new("user", said));
        // Templates write the tokens of a text's beginning themselves.
        let turn = vocabulary.encode(&self.template.prompt(&self.messages)?)?;
        let lasting = self.lasting(&turn);
        // Told where there is something to wait for: a new GPU, or a new version.
        if line == 0 {
            model.prepare(&turn, &mut |kernels| progress::say(&progress::compiling(kernels)))?;
        }
        let sampler = arguments.sampling.sampler(*sampling, line)?.of(vocabulary);
        match self.reading.read(&turn, lasting, sampler) {
            Ok(generation) => {
                let text = self.write(generation, &turn, arguments)?;
                self.messages.push(Message::new("assistant", &text));
                Ok(())
            }
            // Stopped before it spoke: it is as if nothing had been said.
            Err(hecate::models::Error::Stopped) => {
                self.messages.pop();
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Tokens of a turn before those that only open the answer: a template may write these otherwise later on.
    fn lasting(&self, turn: &[u32]) -> usize {
        // Without knowing, all of it is read again later, which is slower and the same.
        let text = self.template.text(&self.messages).unwrap_or_default();
        let tokens = self.released.vocabulary.encode(&text).unwrap_or_default();
        tokens.iter().zip(turn).take_while(|(said, token)| said == token).count()
    }

    /// Writes an answer until it ends, is long enough or is stopped; returns its text.
    fn write(&mut self, mut generation: Generation<'a, B>, turn: &[u32], arguments: &ChatArgs) -> Result<String> {
        let Released { vocabulary, ends, .. } = self.released;
        let (mut writer, mut decoder) = (Writer::new(vocabulary, arguments.raw, &[]), vocabulary.decoder());
        writer.after(turn)?;
        decoder.skip(turn)?;
        // The decoder keeps what the writer shows, control characters as they are: the template is to have them so.
        let (mut text, mut answer, mut ended) = (String::new(), Vec::new(), false);
        while !self.stop.asked() && !ended && answer.len() < arguments.tokens {
            let token = match generation.next() {
                Some(Ok(token)) => token,
                Some(Err(hecate::models::Error::Stopped)) | None => break,
                Some(Err(error)) => return Err(error.into()),
            };
            answer.push(token);
            // The template writes the end token again, behind the text.
            ended = ends.contains(&token);
            if !ended {
                writer.token(token)?;
                text.push_str(&decoder.push(token)?);
            }
        }
        writer.finish()?;
        text.push_str(&decoder.finish()?);
        // What was stopped may have ended inside of a token: it is read again.
        if self.stop.asked() {
            return Ok(text);
        }
        if !ended {
            progress::say(&format!("cut off after {} tokens; `--tokens N` allows more", answer.len()));
        }
        match self.reading.keep(generation, &answer) {
            Ok(()) | Err(hecate::models::Error::Stopped) => Ok(text),
            Err(error) => Err(error.into()),
        }
    }
}
