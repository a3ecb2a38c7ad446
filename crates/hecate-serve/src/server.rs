//! The server: connections on one thread, the model on another.

use crate::{
    Limits,
    engine::{Engine, Writer},
    error::{Error, Result},
    http::{App, router},
    metrics::Metrics,
    schema::Schemas,
    template::Template,
};
use axum::Router;
use hecate_core::Backend;
use hecate_models::{Interrupt, LanguageModel, Vocabulary};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
    service::TowerToHyperService,
};
use std::{
    env, fmt,
    net::TcpListener,
    path::PathBuf,
    sync::{Arc, mpsc},
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tokio::{
    net,
    runtime::Builder,
    sync::Semaphore,
    time::{sleep, timeout},
};

/// The environment variable with the key that requests must have.
const KEY: &str = "HECATE_API_KEY";
/// How long the server waits for a connection before it looks whether it is to stop.
const TICK: Duration = Duration::from_millis(50);
/// How long the headers of a request may take, also those of the next one on a connection.
const HEADERS: Duration = Duration::from_secs(30);
/// Threads that make tokens of prompts.
const TOKENIZING: usize = 4;

/// A model to be served.
pub struct Served<B: Backend> {
    /// The model.
    pub model: LanguageModel<B>,
    /// What its tokens mean.
    pub vocabulary: Vocabulary,
    /// Tokens that end a text.
    pub ends: Vec<u32>,
    /// Its name for clients.
    pub id: String,
    /// How it reads conversations.
    pub template: Arc<dyn Template>,
}

impl<B: Backend> fmt::Debug for Served<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Served").field("id", &self.id).field("ends", &self.ends).finish_non_exhaustive()
    }
}

/// The key that requests must have, from the environment's `HECATE_API_KEY`; none where that is not set.
///
/// # Errors
/// [`Error::Key`] for one that is empty or is no text.
pub fn key_from_environment() -> Result<Option<String>> {
    match env::var(KEY) {
        Ok(key) if key.trim() == key && !key.is_empty() => Ok(Some(key)),
        Ok(_) => Err(Error::Key("HECATE_API_KEY is empty or has blanks around it; set a key, or unset it")),
        Err(env::VarError::NotPresent) => Ok(None),
        Err(env::VarError::NotUnicode(_)) => Err(Error::Key("HECATE_API_KEY is no text; set another key")),
    }
}

/// How a server runs.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// What requests may take.
    pub limits: Limits,
    /// Where sessions are kept that have no room in memory, and all of them when the server stops.
    pub sessions: Option<PathBuf>,
    /// What every request has to bring as `Authorization: Bearer KEY`; anybody may ask where there is none.
    pub key: Option<String>,
}

/// Serves a model to whoever connects, on this thread and one of its own, until `stop` is asked for. Texts then have
/// [`Limits::grace`] to end, and all sessions are saved where there is a folder for them.
///
/// # Errors
/// [`Error::Sessions`] for a folder that cannot be used; [`Error::Model`] for sessions that cannot be saved;
/// [`Error::Network`].
///
/// Returns when both threads have ended: nothing of the server runs on, and the port is free again.
pub fn serve<B: Backend>(served: Served<B>, listener: TcpListener, settings: Settings, stop: &Interrupt) -> Result<()> {
    let Served { model, vocabulary, ends, id, template } = served;
    let Settings { limits, sessions, key } = settings;
    let (vocabulary, metrics) = (Arc::new(vocabulary), Arc::new(Metrics::default()));
    // All that has a place, and as much again of what is done at once.
    let places = limits.texts.saturating_add(limits.waiting);
    let (orders, taken) = mpsc::sync_channel(places.saturating_mul(2).max(16));
    let writer = Writer { model: &model, vocabulary: &vocabulary, ends: &ends };
    let engine = Engine::new(writer, (limits.clone(), sessions), Arc::clone(&metrics), stop.clone(), taken)?;
    let app = App {
        id,
        created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        vocabulary: Arc::clone(&vocabulary),
        template,
        schemas: Arc::new(Schemas::new(Arc::clone(&vocabulary), &ends)),
        metrics,
        orders,
        places: Arc::new(Semaphore::new(places.min(Semaphore::MAX_PERMITS))),
        key: key.map(|key| blake3::hash(key.as_bytes())),
        is_local: listener.local_addr()?.ip().is_loopback(),
        stop: stop.clone(),
        limits: limits.clone(),
    };
    // Asked for where the model's thread ends, however that is: connections then end too.
    let ended = Ended(Interrupt::default());
    let seen = [stop.clone(), ended.0.clone()];
    thread::scope(|scope| {
        let connections = scope.spawn(move || connections(listener, router(Arc::new(app)), &limits, &seen));
        let worked = engine.run();
        drop(ended);
        let connected = connections.join().unwrap_or(Err(Error::Connections));
        worked.and(connected)
    })
}

/// Says so where it goes.
///
/// A panic of the model's thread unwinds through it, so that the other thread does not wait for ever.
struct Ended(Interrupt);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.ask();
    }
}

/// Answers connections until one of `seen` is asked for, and those that are open then for the time of grace.
///
/// All of it is one thread: what takes long, such as a tokenizer's work, goes to a few others. Connections beyond the limit
/// wait in the system's queue.
fn connections(listener: TcpListener, router: Router, limits: &Limits, seen: &[Interrupt; 2]) -> Result<()> {
    let runtime = Builder::new_current_thread().enable_all().max_blocking_threads(TOKENIZING).build()?;
    listener.set_nonblocking(true)?;
    runtime.block_on(async {
        let listener = net::TcpListener::from_std(listener)?;
        let (open, places) = (GracefulShutdown::new(), Arc::new(Semaphore::new(limits.connections)));
        while !seen.iter().any(Interrupt::asked) {
            let Ok(Ok(place)) = timeout(TICK, Arc::clone(&places).acquire_owned()).await else { continue };
            match timeout(TICK, listener.accept()).await {
                Err(_) => {}
                // Too many files are open, or the client left: neither is for ever.
                Ok(Err(_)) => sleep(TICK).await,
                Ok(Ok((stream, _))) => {
                    let connection = connection(stream, &router);
                    let watched = open.watch(connection);
                    tokio::spawn(async move {
                        // A client that breaks its connection is nobody's error.
                        let _ = watched.await;
                        drop(place);
                    });
                }
            }
        }
        drop(listener);
        // Longer than texts have, so that their ends arrive.
        let _ = timeout(limits.grace + Duration::from_secs(2), open.shutdown()).await;
        Ok(())
    })
}

/// A connection, to be driven.
fn connection(
    stream: net::TcpStream,
    router: &Router,
) -> http1::Connection<TokioIo<net::TcpStream>, TowerToHyperService<Router>> {
    // Tokens are small and many: each goes out at once.
    let _ = stream.set_nodelay(true);
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEADERS);
    http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router.clone()))
}
