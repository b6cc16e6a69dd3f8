//! What may be shown of a request: everything but its secrets.

use std::collections::BTreeMap;

use lillux::http::HttpHeader;
use serde_json::{Map, Value, json};
use url::Url;

use super::prepare::{BodyKind, PreparedRequest, ResponseMode};
use super::url_template::percent_encode;

const REDACTED: &str = "[redacted]";

/// Values shorter than this would blank out half of every text.
const MIN_SECRET_LENGTH: usize = 6;

/// The largest body a trace shows.
const MAX_TRACED_BODY_BYTES: usize = 4096;

/// The words that make a name secret.
#[rustfmt::skip]
const SECRET_WORDS: [&str; 25] = [
    "key", "apikey", "accesskey", "token", "accesstoken", "secret", "password", "passwd", "pwd", "pass",
    "passphrase", "credential", "credentials", "signature", "sig", "authorization", "auth", "bearer", "cookie",
    "session", "sessionid", "sid", "jwt", "private", "code",
];

/// Whether a variable, header or parameter of this name holds a secret.
#[must_use]
pub fn is_secret_name(name: &str) -> bool {
    let mut words = vec![String::new()];
    let mut was_lower = false;
    for character in name.chars() {
        if !character.is_alphanumeric() || (was_lower && character.is_uppercase()) {
            words.push(String::new());
        }
        was_lower = character.is_lowercase();
        if let Some(word) = words.last_mut().filter(|_| character.is_alphanumeric()) {
            word.extend(character.to_lowercase());
        }
    }
    words.iter().any(|word| SECRET_WORDS.contains(&word.as_str()))
}

/// Values that must not be shown.
#[derive(Clone, Default)]
pub struct Secrets {
    values: Vec<String>,
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} secrets", self.values.len())
    }
}

impl Secrets {
    /// The values of the variables whose names say that they are secret.
    #[must_use]
    pub fn from_environment(environment: &BTreeMap<String, String>) -> Self {
        let mut secrets = Self::default();
        for (_, value) in environment.iter().filter(|(name, _)| is_secret_name(name)) {
            secrets.add(value);
        }
        secrets
    }

    /// Hides one more value, also as it stands in a URL.
    pub fn add(&mut self, value: &str) {
        if value.len() < MIN_SECRET_LENGTH {
            return;
        }
        let form: String = url::form_urlencoded::byte_serialize(value.as_bytes()).collect();
        for text in [value.to_owned(), percent_encode(value), form] {
            if !self.values.contains(&text) {
                self.values.push(text);
            }
        }
        // The longer first: one secret may hold another.
        self.values.sort_by_key(|value| std::cmp::Reverse(value.len()));
    }

    /// Whether the text holds one of them.
    #[must_use]
    pub fn is_present_in(&self, text: &str) -> bool {
        self.values.iter().any(|value| text.contains(value.as_str()))
    }

    /// The text without them.
    #[must_use]
    pub fn redact(&self, text: &str) -> String {
        self.values.iter().fold(text.to_owned(), |text, value| text.replace(value.as_str(), REDACTED))
    }

    /// A URL without them, and without the values of query parameters that are secret by name.
    #[must_use]
    pub fn redact_url(&self, url: &str) -> String {
        let Ok(mut parsed) = Url::parse(url) else {
            return "[unreadable]".to_owned();
        };
        // A fragment is never sent, but may hold a token.
        parsed.set_fragment(None);
        let query = parsed.query().map(|query| {
            let pairs = query.split('&').map(|pair| match pair.split_once('=') {
                Some((name, _)) if is_secret_name(name) => format!("{name}={REDACTED}"),
                _ => pair.to_owned(),
            });
            pairs.collect::<Vec<_>>().join("&")
        });
        parsed.set_query(None);
        let query = query.map(|query| format!("?{query}")).unwrap_or_default();
        self.redact(&format!("{parsed}{query}"))
    }

    fn redact_value(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => Value::from(self.redact(text)),
            Value::Array(list) => list.iter().map(|value| self.redact_value(value)).collect(),
            Value::Object(map) => {
                let hide = |(name, value): (&String, &Value)| {
                    let is_hidden = is_secret_name(name) && (value.is_string() || value.is_number());
                    (name.clone(), if is_hidden { Value::from(REDACTED) } else { self.redact_value(value) })
                };
                Value::Object(map.iter().map(hide).collect::<Map<_, _>>())
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
        }
    }
}

/// The request as a trace shows it.
#[must_use]
pub fn redact_request(prepared: &PreparedRequest) -> Value {
    let request = &prepared.request;
    let secrets = &prepared.secrets;
    let header = |header: &HttpHeader| {
        let value = if header.is_secret { REDACTED.to_owned() } else { secrets.redact(&header.value) };
        (header.name.to_ascii_lowercase(), Value::from(value))
    };
    let size = request.body.as_ref().map_or(0, Vec::len);
    let body = match &prepared.body {
        BodyKind::None => Value::Null,
        BodyKind::Json(value) if size <= MAX_TRACED_BODY_BYTES => secrets.redact_value(value),
        BodyKind::Json(_) | BodyKind::Form | BodyKind::Text => Value::from(format!("[{size} bytes]")),
    };
    json!({
        "method": request.method.as_str(),
        "url": secrets.redact_url(&request.url),
        "headers": request.headers.iter().map(header).collect::<Map<_, _>>(),
        "body": body,
        "timeout": request.timeout.as_secs_f64(),
        "mode": match prepared.mode { ResponseMode::Sync => "sync", ResponseMode::Stream => "stream" },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_names_are_recognized() {
        for name in [
            "API_KEY",
            "OPENAI_API_KEY",
            "apiKey",
            "access_token",
            "accessToken",
            "X-Api-Key",
            "key",
            "DB_PASSWORD",
            "Authorization",
            "Set-Cookie",
            "client_secret",
            "sig",
            "AWS_SESSION_TOKEN",
        ] {
            assert!(is_secret_name(name), "{name}");
        }
        for name in ["PATH", "keyword", "max_tokens", "author", "Content-Type", "page", "monkey", "q"] {
            assert!(!is_secret_name(name), "{name}");
        }
    }

    #[test]
    fn secret_is_redacted_in_every_url_encoding() {
        let environment = BTreeMap::from([("MY_TOKEN".to_owned(), "s3cr/t value".to_owned())]);
        let secrets = Secrets::from_environment(&environment);
        assert_eq!(
            secrets.redact_url("https://a.example/s3cr%2Ft%20value/x?a=s3cr%2Ft+value&key=short&b=1#t=s3cr"),
            "https://a.example/[redacted]/x?a=[redacted]&key=[redacted]&b=1"
        );
        assert_eq!(secrets.redact("x s3cr/t value y"), "x [redacted] y");
        assert_eq!(format!("{secrets:?}"), "3 secrets");
    }
}
