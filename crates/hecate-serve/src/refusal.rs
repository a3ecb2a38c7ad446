//! Why a request gets no answer, as OpenAI's clients read it.

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use hecate_models::Error;
use serde_json::{Value, json};

/// A status and an error object: `{"error": {"message", "type", "param", "code"}}`.
///
/// Messages say what was found, what was expected, and the way out. They repeat no more than the beginning of what was
/// sent, and no path of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    /// The field that is wrong.
    /// `param` in the object: a client knows by it what to change.
    field: Option<String>,
    /// A word that programs compare, where the status does not say all.
    code: Option<&'static str>,
    message: String,
    /// Seconds after which another try makes sense.
    again: Option<u32>,
}

impl Refusal {
    /// Without a field, a code, or a time to come again.
    fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, field: None, code: None, message: message.into(), again: None }
    }

    /// The same, with a word for programs.
    fn code(self, code: &'static str) -> Self {
        Self { code: Some(code), ..self }
    }

    /// 400: something is wrong with the request as a whole.
    pub(crate) fn request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// 400: this field has a value that it cannot have.
    pub(crate) fn field(field: &str, found: impl ToString, expected: impl AsRef<str>) -> Self {
        let message = format!("`{field}` is {}, expected {}", found.to_string(), expected.as_ref());
        Self { field: Some(field.to_owned()), ..Self::request(message) }
    }

    /// 400: this field would change the answer, and is not understood.
    pub(crate) fn unsupported(field: &str, way_out: &str) -> Self {
        let message = format!("`{field}` is not supported; {way_out}");
        Self { field: Some(field.to_owned()), ..Self::request(message) }.code("unsupported_field")
    }

    /// 401: there is no key, or another one.
    pub(crate) fn key() -> Self {
        let message = "wrong or missing API key; send the server's own as `Authorization: Bearer KEY`";
        Self::new(StatusCode::UNAUTHORIZED, message).code("invalid_api_key")
    }

    /// 403: a page of another site asks, by way of its reader's browser.
    pub(crate) fn foreign(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, message)
    }

    /// 404: there is no such thing.
    pub(crate) fn missing(message: impl Into<String>, code: &'static str) -> Self {
        Self::new(StatusCode::NOT_FOUND, message).code(code)
    }

    /// 405: the address is there, and not for this method.
    pub(crate) fn method() -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "this address does not take this method; docs/serving.md lists them")
    }

    /// 408: the request did not arrive in time.
    pub(crate) fn slow() -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, "the request's body did not arrive in time; send it at once")
    }

    /// 409: the thing is there already, or somebody works with it.
    pub(crate) fn conflict(message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, message)
    }

    /// 413: the body has too many bytes.
    pub(crate) fn large(most: usize) -> Self {
        let message = format!("the request's body has more than {most} bytes; send a shorter one");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, message)
    }

    /// 415: the body is not announced as JSON.
    pub(crate) fn not_json() -> Self {
        let message = "the request's body has to be JSON, with the header `Content-Type: application/json`";
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message)
    }

    /// 429: there is no room for another request now.
    pub(crate) fn full() -> Self {
        let message = "all places are taken, also those for waiting; try again in a second";
        Self { again: Some(1), ..Self::new(StatusCode::TOO_MANY_REQUESTS, message).code("rate_limit_exceeded") }
    }

    /// 500: the model or a file failed.
    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, message)
    }

    /// 503: the server ends.
    pub(crate) fn stopping() -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "the server is stopping; try another one")
    }

    /// 503: nothing became free in time.
    pub(crate) fn waited(seconds: u64) -> Self {
        let message = format!("no place became free within {seconds} seconds; try again later");
        Self { again: Some(5), ..Self::new(StatusCode::SERVICE_UNAVAILABLE, message) }
    }

    /// 504: it took too long.
    pub(crate) fn endless(seconds: u64) -> Self {
        let message = format!("not done within {seconds} seconds; ask for fewer tokens");
        Self::new(StatusCode::GATEWAY_TIMEOUT, message)
    }

    /// 507: there is no room for another session.
    pub(crate) fn no_room(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INSUFFICIENT_STORAGE, message).code("sessions_full")
    }

    /// The error object.
    pub(crate) fn object(&self) -> Value {
        let kind = match self.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        };
        json!({"error": {"message": self.message, "type": kind, "param": self.field, "code": self.code}})
    }
}

/// Settings that a request has wrong are its own; all else is the server's.
impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        match error {
            // Flags have the same names as fields, but for their dashes.
            Error::Config { field, found, expected } => Self::field(&field.replace('-', "_"), found, expected),
            error => Self::failed(error.to_string()),
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let json = [(header::CONTENT_TYPE, "application/json")];
        let mut response = (self.status, json, self.object().to_string()).into_response();
        if let Some(seconds) = self.again {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}
