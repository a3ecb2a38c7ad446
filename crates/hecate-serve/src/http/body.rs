//! Bodies of requests: JSON, short enough, and there in time.

use super::App;
use crate::{fields::Fields, refusal::Refusal};
use axum::{
    body,
    extract::Request,
    http::{HeaderMap, header},
};
use tokio::time::timeout;

/// The fields of a request's body.
///
/// # Errors
/// 400 for what is no JSON object; 408, 413, 415.
/// Nothing is kept of a body beyond the limit, whether it says its length or comes in pieces.
pub(super) async fn fields(app: &App, request: Request) -> Result<Fields, Refusal> {
    if !is_json(request.headers()) {
        return Err(Refusal::not_json());
    }
    let most = app.limits.body;
    // Refused before it is read where it says its length.
    let length = request.headers().get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    if length.is_some_and(|length: usize| length > most) {
        return Err(Refusal::large(most));
    }
    match timeout(app.limits.patience, body::to_bytes(request.into_body(), most)).await {
        Err(_) => Err(Refusal::slow()),
        // A connection that broke reads no answer.
        Ok(Err(_)) => Err(Refusal::large(most)),
        Ok(Ok(bytes)) => Fields::parse(&bytes),
    }
}

/// Browsers send such a body to another site only after asking it, which this server never allows.
fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    kind.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/json")
}
