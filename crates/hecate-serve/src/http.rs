//! What is answered at which address.
//!
//! A handler reads the fields of a request, makes an order of them, and waits for what becomes of it. It holds the only
//! receiver: when a client leaves, the handler is dropped, and the model's thread sees that nobody reads.

mod answer;
mod body;
mod calls;
mod chat;
mod completions;
mod drawing;
mod format;
mod guard;
mod likelihoods;
mod messages;
mod responses;
mod sessions;
mod tools;
mod writing;

use crate::{Limits, metrics::Metrics, order::Order, refusal::Refusal, schema::Schemas, template::Template};
use axum::{
    Router,
    extract::{Path, State},
    http::{StatusCode, header},
    middleware,
    response::{Html, IntoResponse, Response},
    routing::{get, post},
};
use hecate_models::{Interrupt, Vocabulary};
use serde_json::{Value, json};
use std::{
    fmt,
    sync::{
        Arc,
        mpsc::{SyncSender, TrySendError},
    },
};
use tokio::sync::Semaphore;

/// What handlers share. Of the model they know its name and its tokens alone.
pub(crate) struct App {
    /// The model's name for clients.
    pub(crate) id: String,
    /// When the server began, seconds since 1970.
    pub(crate) created: u64,
    pub(crate) vocabulary: Arc<Vocabulary>,
    pub(crate) template: Arc<dyn Template>,
    pub(crate) schemas: Arc<Schemas>,
    pub(crate) limits: Limits,
    pub(crate) metrics: Arc<Metrics>,
    /// To the thread with the model.
    pub(crate) orders: SyncSender<Order>,
    /// For texts that run or wait.
    pub(crate) places: Arc<Semaphore>,
    /// Of the key that every request needs.
    pub(crate) key: Option<blake3::Hash>,
    /// Whether only this machine can reach the server.
    pub(crate) is_local: bool,
    pub(crate) stop: Interrupt,
}

impl fmt::Debug for App {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("App").field("id", &self.id).field("limits", &self.limits).finish_non_exhaustive()
    }
}

impl App {
    /// Hands an order to the thread with the model.
    ///
    /// # Errors
    /// 429 where too many are on their way, 503 where that thread has ended.
    fn order(&self, order: Order) -> Result<(), Refusal> {
        self.orders.try_send(order).map_err(|error| match error {
            TrySendError::Full(_) => Refusal::full(),
            TrySendError::Disconnected(_) => Refusal::stopping(),
        })
    }
}

/// Addresses and who answers there.
///
/// The guard stands before all of them, also before addresses that are not there.
pub(crate) fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/", get(page))
        .route("/health", get(health))
        .route("/metrics", get(metrics))
        .route("/v1/models", get(models))
        .route("/v1/models/{id}", get(model))
        .route("/v1/completions", post(completions::completions))
        .route("/v1/chat/completions", post(chat::completions))
        .route("/v1/responses", post(responses::responses))
        .route("/v1/sessions", get(sessions::list).post(sessions::create))
        .route("/v1/sessions/{name}", get(sessions::show).delete(sessions::delete))
        .route("/v1/sessions/{name}/fork", post(sessions::fork))
        .route("/v1/sessions/{name}/save", post(sessions::save))
        .fallback(nowhere)
        .method_not_allowed_fallback(async || Refusal::method())
        .layer(middleware::from_fn_with_state(Arc::clone(&app), guard::guard))
        .with_state(app)
}

/// A JSON answer.
fn answered(status: StatusCode, value: &Value) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], value.to_string()).into_response()
}

/// The page to write with the model. It loads nothing, and no other page may frame it.
async fn page() -> impl IntoResponse {
    let policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; \
                  img-src data:; \
                  frame-ancestors 'none'; base-uri 'none'; form-action 'none'";
    ([(header::CONTENT_SECURITY_POLICY, policy)], Html(include_str!("page.html")))
}

/// Whether requests are taken.
async fn health(State(app): State<Arc<App>>) -> Result<Response, Refusal> {
    if app.stop.asked() { Err(Refusal::stopping()) } else { Ok(answered(StatusCode::OK, &json!({"status": "ok"}))) }
}

/// All numbers, for Prometheus.
async fn metrics(State(app): State<Arc<App>>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], app.metrics.text())
}

/// The one model.
fn described(app: &App) -> Value {
    json!({"id": app.id, "object": "model", "created": app.created, "owned_by": "hecate"})
}

/// A list of one model.
async fn models(State(app): State<Arc<App>>) -> Response {
    answered(StatusCode::OK, &json!({"object": "list", "data": [described(&app)]}))
}

/// The model, by its name.
async fn model(State(app): State<Arc<App>>, Path(id): Path<String>) -> Result<Response, Refusal> {
    writing::check_model(&app, &id)?;
    Ok(answered(StatusCode::OK, &described(&app)))
}

/// 404 for all other addresses.
async fn nowhere() -> Refusal {
    Refusal::missing("there is nothing at this address; docs/serving.md lists what there is", "not_found")
}
