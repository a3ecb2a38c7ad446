//! Sessions by their names, in memory and on the disk.

use crate::{
    Limits,
    error::{Error, Result},
    name::Name,
    refusal::Refusal,
};
use hecate_core::Backend;
use hecate_models::{
    LanguageModel,
    generate::Session,
    sampling::{Sampler, Sampling},
};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

/// What files of sessions end with.
const ENDING: &str = ".safetensors";

/// All sessions of a server.
///
/// A session is in memory, in a file, or in both. What is in memory counts: a file may be of an earlier state, which
/// `saved` tells. A request works on a copy, which takes the session's place when the request is done.
#[derive(Debug)]
pub(crate) struct Sessions<'a, B: Backend> {
    model: &'a LanguageModel<B>,
    folder: Option<PathBuf>,
    kept: BTreeMap<Name, Kept<B>>,
    /// Uses so far, of all sessions.
    uses: u64,
    /// Most of them in memory.
    in_memory: usize,
    /// Most of them altogether.
    stored: usize,
}

/// A session that has a name.
#[derive(Debug)]
struct Kept<B: Backend> {
    /// None where it is on the disk alone.
    state: Option<Session<B>>,
    /// Whether its file has what is in memory.
    saved: bool,
    /// Whether a request goes on with it.
    busy: bool,
    /// The number of its last use.
    used: u64,
}

impl<'a, B: Backend> Sessions<'a, B> {
    /// Those in this folder, which is made where it is missing.
    ///
    /// # Errors
    /// [`Error::Sessions`] for a folder that cannot be made or read.
    pub(crate) fn open(model: &'a LanguageModel<B>, folder: Option<PathBuf>, limits: &Limits) -> Result<Self> {
        let names = folder.as_deref().map(names_in).transpose()?.unwrap_or_default();
        let on_disk = |name| (name, Kept { state: None, saved: true, busy: false, used: 0 });
        let kept = names.into_iter().map(on_disk).collect();
        Ok(Self { model, folder, kept, uses: 0, in_memory: limits.sessions, stored: limits.stored })
    }

    /// Those in memory, and those on the disk alone.
    pub(super) fn counts(&self) -> (usize, usize) {
        let in_memory = self.kept.values().filter(|kept| kept.state.is_some()).count();
        (in_memory, self.kept.len() - in_memory)
    }

    /// Descriptions of all, by name.
    pub(super) fn list(&self) -> Value {
        let all: Vec<_> = self.kept.iter().map(|(name, kept)| described(name, kept)).collect();
        json!({"object": "list", "data": all})
    }

    /// The description of one.
    ///
    /// # Errors
    /// 404.
    pub(super) fn show(&self, name: &Name) -> Result<Value, Refusal> {
        self.kept.get(name).map(|kept| described(name, kept)).ok_or_else(|| missing(name))
    }

    /// A session that has read nothing.
    ///
    /// # Errors
    /// 409 for a name that is taken, 507 where there is no room.
    pub(super) fn create(&mut self, name: Name) -> Result<Value, Refusal> {
        let session = Session::new(self.model, unused()?)?;
        self.insert(name, session)
    }

    /// A session that goes on from where another one is; of one that a request goes on with, from before that request.
    ///
    /// # Errors
    /// 404 for no such session, and as [`Sessions::create`].
    pub(super) fn fork(&mut self, from: &Name, to: Name) -> Result<Value, Refusal> {
        let session = self.state(from)?.fork();
        self.insert(to, session)
    }

    /// Writes one into the folder.
    ///
    /// # Errors
    /// 400 without a folder, 404, and 500 where the system refuses.
    pub(super) fn save(&mut self, name: &Name) -> Result<Value, Refusal> {
        if self.folder.is_none() {
            return Err(Refusal::request("this server saves no sessions; start it with `--sessions DIR`"));
        }
        self.show(name)?;
        self.write(name).map_err(|error| told(name, "saved", &error))?;
        self.show(name)
    }

    /// Forgets one, and removes its file.
    ///
    /// # Errors
    /// 404, 409 while a request goes on with it, and 500 where the system refuses.
    pub(super) fn delete(&mut self, name: &Name) -> Result<Value, Refusal> {
        if self.kept.get(name).ok_or_else(|| missing(name))?.busy {
            return Err(busy(name));
        }
        // A session that was never saved has no file.
        let removed = self.file(name).map_or(Ok(()), fs::remove_file);
        if let Err(error) =
            removed.or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
        {
            return Err(told(name, "deleted", &error));
        }
        self.kept.remove(name);
        Ok(json!({"object": "session.deleted", "id": name.to_string(), "deleted": true}))
    }

    /// A copy for a request to go on with. Nobody else may until [`Sessions::end`] or [`Sessions::release`].
    ///
    /// # Errors
    /// 404, 409 while another request goes on with it, and 500 for a file that cannot be read.
    pub(super) fn begin(&mut self, name: &Name) -> Result<Session<B>, Refusal> {
        if self.kept.get(name).is_some_and(|kept| kept.busy) {
            return Err(busy(name));
        }
        let session = self.state(name)?.fork();
        if let Some(kept) = self.kept.get_mut(name) {
            kept.busy = true;
        }
        Ok(session)
    }

    /// The request is done, and this is what the session has become.
    pub(super) fn end(&mut self, name: &Name, mut session: Session<B>) {
        // What it remembers is then its own, and no longer a part of what all texts of a round share.
        if let Err(error) = session.feed(self.model, &[]) {
            tracing::warn!(session = %name, %error, "the last token cannot be read");
        }
        self.uses += 1;
        if let Some(kept) = self.kept.get_mut(name) {
            *kept = Kept { state: Some(session), saved: false, busy: false, used: self.uses };
        }
        self.make_room(0);
    }

    /// The request came to nothing; the session is as it was.
    pub(super) fn release(&mut self, name: &Name) {
        if let Some(kept) = self.kept.get_mut(name) {
            kept.busy = false;
        }
    }

    /// Writes all into the folder that have changed; without a folder they end here.
    ///
    /// # Errors
    /// The first of the failures; all others are tried all the same.
    pub(super) fn save_all(&mut self) -> Result<()> {
        if self.folder.is_none() {
            return Ok(());
        }
        let changed: Vec<Name> =
            self.kept.iter().filter(|(_, kept)| !kept.saved).map(|(name, _)| name.clone()).collect();
        let results: Vec<Result<()>> = changed.iter().map(|name| self.write(name)).collect();
        results.into_iter().collect()
    }

    /// Puts a session under a name that nobody has.
    fn insert(&mut self, name: Name, session: Session<B>) -> Result<Value, Refusal> {
        if self.kept.contains_key(&name) {
            return Err(Refusal::conflict(format!(
                "there is a session `{name}` already; delete it, or take another name"
            )));
        }
        if self.kept.len() >= self.stored {
            return Err(Refusal::no_room(format!(
                "there are {} sessions, and no more may be; delete some",
                self.stored
            )));
        }
        self.make_room(1);
        let in_memory = self.counts().0;
        if in_memory >= self.in_memory {
            let way_out =
                if self.folder.is_some() { "wait" } else { "delete some, or start the server with `--sessions DIR`" };
            return Err(Refusal::no_room(format!("all {in_memory} sessions in memory are in use; {way_out}")));
        }
        self.uses += 1;
        self.kept.insert(name.clone(), Kept { state: Some(session), saved: false, busy: false, used: self.uses });
        self.show(&name)
    }

    /// A session, read from its file where it is on the disk alone.
    fn state(&mut self, name: &Name) -> Result<&Session<B>, Refusal> {
        let on_disk = self.kept.get(name).ok_or_else(|| missing(name))?.state.is_none();
        let mut restored = None;
        if let Some(file) = self.file(name).filter(|_| on_disk) {
            self.make_room(1);
            let read = Session::restore(self.model, file, unused()?);
            restored = Some(read.map_err(|error| told(name, "read", &error))?);
        }
        self.uses += 1;
        let kept = self.kept.get_mut(name).ok_or_else(|| missing(name))?;
        kept.used = self.uses;
        kept.state = restored.or_else(|| kept.state.take());
        kept.state.as_ref().ok_or_else(|| missing(name))
    }

    /// Sends sessions to the disk until so many more fit into memory: those first that were not used for longest.
    ///
    /// Sessions that a request goes on with stay, so that memory may hold a few more than it should for a while.
    fn make_room(&mut self, more: usize) {
        while self.folder.is_some() && self.counts().0 + more > self.in_memory {
            let idle = self.kept.iter().filter(|(_, kept)| kept.state.is_some() && !kept.busy);
            let Some(name) = idle.min_by_key(|(_, kept)| kept.used).map(|(name, _)| name.clone()) else { return };
            if let Err(error) = self.write(&name) {
                // It stays in memory, where nothing is lost.
                tracing::warn!(session = %name, %error, "cannot be saved");
                return;
            }
            if let Some(kept) = self.kept.get_mut(&name) {
                kept.state = None;
            }
        }
    }

    /// Writes a session into the folder, if it has changed.
    fn write(&mut self, name: &Name) -> Result<()> {
        let Some(file) = self.file(name) else { return Ok(()) };
        if let Some(kept) = self.kept.get_mut(name).filter(|kept| !kept.saved)
            && let Some(session) = &kept.state
        {
            session.save(self.model, file)?;
            kept.saved = true;
        }
        Ok(())
    }

    /// Its file, where there is a folder.
    fn file(&self, name: &Name) -> Option<PathBuf> {
        self.folder.as_ref().map(|folder| folder.join(format!("{name}{ENDING}")))
    }
}

/// Names of sessions that have files in a folder, which is made where it is missing.
fn names_in(folder: &Path) -> Result<Vec<Name>> {
    let failed = |error: io::Error| Error::Sessions {
        path: folder.to_owned(),
        why: format!("{error}; name a folder that can be written with `--sessions DIR`"),
    };
    fs::create_dir_all(folder).map_err(failed)?;
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let file = entry.map_err(failed)?.file_name();
        // Whatever else is in there is somebody else's.
        let name = file.to_str().and_then(|file| file.strip_suffix(ENDING));
        names.extend(name.and_then(|name| Name::parse("file", name).ok()));
    }
    Ok(names)
}

/// As clients see a session.
fn described<B: Backend>(name: &Name, kept: &Kept<B>) -> Value {
    let (position, bytes) = (kept.state.as_ref().map(Session::position), kept.state.as_ref().map(Session::bytes));
    let place = if kept.state.is_some() { "memory" } else { "disk" };
    json!({
        "object": "session", "id": name.to_string(), "position": position, "bytes": bytes, "place": place,
        "saved": kept.saved, "busy": kept.busy,
    })
}

/// A sampler for sessions that draw nothing before they are given another.
pub(super) fn unused() -> Result<Sampler, Refusal> {
    Ok(Sampler::new(Sampling::default())?)
}

/// 404.
fn missing(name: &Name) -> Refusal {
    Refusal::missing(format!("there is no session `{name}`; `POST /v1/sessions` makes one"), "session_not_found")
}

/// 409.
fn busy(name: &Name) -> Refusal {
    Refusal::conflict(format!("another request goes on with session `{name}`; wait for it, or fork the session"))
}

/// 500, without the paths that the log has.
fn told(name: &Name, done: &str, error: &dyn std::fmt::Display) -> Refusal {
    tracing::warn!(session = %name, %error, "cannot be {done}");
    Refusal::failed(format!("session `{name}` cannot be {done}; the server's log says why"))
}
