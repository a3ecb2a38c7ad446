//! Who may ask: what every request passes first.
//!
//! A server without a key is for the programs of one machine. Its browsers are among them, with pages from anywhere.

use super::App;
use crate::refusal::Refusal;
use axum::{
    extract::{MatchedPath, Request, State},
    http::{HeaderMap, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use std::sync::Arc;

/// Addresses without a key: the page has nothing secret, and whoever looks whether the server lives learns no more than that.
const OPEN: [&str; 2] = ["/", "/health"];

/// Refuses whoever may not ask, and counts answers.
pub(super) async fn guard(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    // Addresses that nobody knows are counted as one: clients could make up any number.
    let route = route.unwrap_or_else(|| "other".to_owned());
    let response = match check(&app, &route, request.headers()) {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    };
    app.metrics.answered(&route, response.status().as_u16());
    response
}

/// Whoever has the key may ask from anywhere: a page of another site does not know it.
fn check(app: &App, route: &str, headers: &HeaderMap) -> Result<(), Refusal> {
    match app.key {
        Some(key) if !OPEN.contains(&route) => check_key(key, headers),
        Some(_) => Ok(()),
        None => check_site(app, headers),
    }
}

/// Compares keys by their hashes, in a time that says nothing about either.
fn check_key(key: blake3::Hash, headers: &HeaderMap) -> Result<(), Refusal> {
    let given = headers.get(header::AUTHORIZATION).and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
    match given {
        // Hashes are compared in constant time.
        Some(given) if blake3::hash(given) == key => Ok(()),
        _ => Err(Refusal::key()),
    }
}

/// Without a key: a page of another site must not ask by way of a browser on this machine, under whatever name it knows it.
fn check_site(app: &App, headers: &HeaderMap) -> Result<(), Refusal> {
    let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let host = text(header::HOST);
    if let Some(origin) = text(header::ORIGIN) {
        let site = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        if site.is_none() || site != host {
            return Err(Refusal::foreign("this server answers no pages of other sites"));
        }
    }
    match host {
        Some(host) if app.is_local && !is_loopback(host) => {
            Err(Refusal::foreign("this server is for this machine; ask for it as 127.0.0.1 or localhost"))
        }
        _ => Ok(()),
    }
}

/// Whether a host, with or without a port, is this machine for itself.
///
/// Another name that leads to this machine is another site's: its owner may have pointed it here.
fn is_loopback(host: &str) -> bool {
    let port = |rest: &str| rest.is_empty() || rest.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok());
    ["127.0.0.1", "localhost", "[::1]"].iter().any(|name| host.strip_prefix(name).is_some_and(port))
}
