//! `/v1/sessions`: texts that go on in a later request.
//!
//! All of it is done by the model's thread between two rounds, so that a session never changes while it is copied or written.

use super::{App, answered, body};
use crate::{
    name::Name,
    order::{Deed, Order},
    refusal::Refusal,
};
use axum::{
    extract::{FromRequestParts, Path, Request, State},
    http::{StatusCode, request::Parts},
    response::Response,
};
use std::sync::Arc;
use tokio::sync::oneshot;

/// The name in an address.
pub(super) struct Named(Name);

impl<S: Send + Sync> FromRequestParts<S> for Named {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let path = Path::<String>::from_request_parts(parts, state).await;
        // What cannot be decoded is no name either.
        let name = path.map_or_else(|_| "?".to_owned(), |Path(name)| name);
        Ok(Self(Name::parse("name", &name)?))
    }
}

/// Has the thread with the model do something.
async fn done(app: &App, deed: Deed, status: StatusCode) -> Result<Response, Refusal> {
    let (answer, answers) = oneshot::channel();
    app.order(Order::Sessions(deed, answer))?;
    let value = answers.await.map_err(|_| Refusal::stopping())??;
    Ok(answered(status, &value))
}

/// The name that a request's body gives, in a field `name` and nothing else.
async fn name_in(app: &App, request: Request) -> Result<Name, Refusal> {
    let mut fields = body::fields(app, request).await?;
    let name = fields.text("name")?.ok_or_else(|| Refusal::field("name", "missing", "a name for the session"))?;
    fields.finish()?;
    Name::parse("name", &name)
}

/// All sessions.
pub(super) async fn list(State(app): State<Arc<App>>) -> Result<Response, Refusal> {
    done(&app, Deed::List, StatusCode::OK).await
}

/// A new one.
pub(super) async fn create(State(app): State<Arc<App>>, request: Request) -> Result<Response, Refusal> {
    let name = name_in(&app, request).await?;
    done(&app, Deed::Create(name), StatusCode::CREATED).await
}

/// One of them.
pub(super) async fn show(State(app): State<Arc<App>>, Named(name): Named) -> Result<Response, Refusal> {
    done(&app, Deed::Show(name), StatusCode::OK).await
}

/// A new one that goes on from where another is.
pub(super) async fn fork(
    State(app): State<Arc<App>>,
    Named(from): Named,
    request: Request,
) -> Result<Response, Refusal> {
    let to = name_in(&app, request).await?;
    done(&app, Deed::Fork { from, to }, StatusCode::CREATED).await
}

/// Writes one to the disk.
pub(super) async fn save(State(app): State<Arc<App>>, Named(name): Named) -> Result<Response, Refusal> {
    done(&app, Deed::Save(name), StatusCode::OK).await
}

/// Forgets one.
pub(super) async fn delete(State(app): State<Arc<App>>, Named(name): Named) -> Result<Response, Refusal> {
    done(&app, Deed::Delete(name), StatusCode::OK).await
}
