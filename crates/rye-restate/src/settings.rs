//! Settings of the dispatch: where Restate is, where it reaches workers, and whose requests count.

use std::net::SocketAddr;
use std::time::Duration;

use rye_item::text::one_line;
use serde_json::{Map, Value};
use url::Url;

use crate::identity::IdentityKey;

/// Where an endpoint listens that settings do not place.
const DEFAULT_LISTEN: &str = "127.0.0.1:9080";
/// How often a worker looks for threads that were not handed over, unless settings say something else.
const DEFAULT_POLL_SECONDS: u64 = 60;
/// The longest time between two such looks.
const MAX_POLL_SECONDS: u64 = 86_400;
/// Keys that are listed at most.
const MAX_IDENTITY_KEYS: usize = 16;

/// `threads.stores.NAME.restate` of the user's signed settings.
#[derive(Clone, Debug, PartialEq)]
pub struct RestateSettings {
    /// Where threads are sent: the address of Restate's ingress.
    pub ingress: Url,
    /// Where workers register their endpoint; without it a person does.
    pub admin: Option<Url>,
    /// Where Restate reaches the workers: one address for all.
    pub endpoint: Url,
    /// Where this worker listens.
    pub listen: SocketAddr,
    /// Whose requests the endpoint takes; any, where none is listed.
    pub identity_keys: Vec<IdentityKey>,
    /// How often workers look for what was not handed over; never, if it is not set.
    pub poll_interval: Option<Duration>,
}

impl RestateSettings {
    /// Reads the settings.
    ///
    /// # Errors
    /// Which of them is missing or wrong, by its name.
    pub fn from_value(value: &Value) -> Result<Self, String> {
        let fields = value.as_object().ok_or("it is not a mapping")?;
        let listen = text(fields, "listen")?.unwrap_or(DEFAULT_LISTEN);
        let listen: SocketAddr = listen
            .parse()
            .map_err(|_| format!("listen: `{}` is not an address with a port", one_line(listen)))?;
        let identity_keys = identity_keys(fields)?;
        if !listen.ip().is_loopback() && identity_keys.is_empty() {
            return Err("listen: an address that is not loopback needs identity_keys".to_owned());
        }
        let endpoint = match address(fields, "endpoint")? {
            Some(endpoint) => endpoint,
            None => parse_address("endpoint", &format!("http://{listen}"))?,
        };
        Ok(Self {
            ingress: address(fields, "ingress")?.ok_or("ingress is missing")?,
            admin: address(fields, "admin")?,
            endpoint,
            listen,
            identity_keys,
            poll_interval: poll_interval(fields)?,
        })
    }
}

fn text<'a>(fields: &'a Map<String, Value>, key: &str) -> Result<Option<&'a str>, String> {
    match fields.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if text.is_empty() => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(format!("{key} is not a text")),
    }
}

fn address(fields: &Map<String, Value>, key: &str) -> Result<Option<Url>, String> {
    text(fields, key)?.map(|text| parse_address(key, text)).transpose()
}

fn parse_address(key: &str, text: &str) -> Result<Url, String> {
    let url = Url::parse(text).ok().filter(|url| {
        matches!(url.scheme(), "http" | "https")
            && url.host_str().is_some()
            && url.query().is_none()
            && url.fragment().is_none()
    });
    let url =
        url.ok_or_else(|| format!("{key}: `{}` is not an address like http://host:port", one_line(text)))?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err(format!("{key}: an address has no user name and no password"));
    }
    Ok(url)
}

fn identity_keys(fields: &Map<String, Value>) -> Result<Vec<IdentityKey>, String> {
    let listed = match fields.get("identity_keys") {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(listed)) if listed.len() <= MAX_IDENTITY_KEYS => listed,
        Some(_) => return Err(format!("identity_keys is not a list of at most {MAX_IDENTITY_KEYS} keys")),
    };
    let key = |value: &Value| {
        let text = value.as_str().unwrap_or_default();
        let key = IdentityKey::parse(text);
        key.ok_or_else(|| format!("identity_keys: `{}` is not a key like publickeyv1_…", one_line(text)))
    };
    listed.iter().map(key).collect()
}

fn poll_interval(fields: &Map<String, Value>) -> Result<Option<Duration>, String> {
    let seconds = match fields.get("poll_seconds") {
        None | Some(Value::Null) => Some(DEFAULT_POLL_SECONDS),
        Some(value) => value.as_u64().filter(|seconds| *seconds <= MAX_POLL_SECONDS),
    };
    let seconds =
        seconds.ok_or_else(|| format!("poll_seconds is not a number from 0 to {MAX_POLL_SECONDS}"))?;
    Ok((seconds > 0).then(|| Duration::from_secs(seconds)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const KEY: &str = "publickeyv1_ChjENKeMvCtRnqG2mrBK1HmPKufgFUc98K8B3ononQvp";

    #[test]
    fn few_settings_are_enough() {
        let settings = RestateSettings::from_value(&json!({"ingress": "http://127.0.0.1:8080"}));
        let settings = settings.expect("settings");
        assert_eq!(settings.endpoint.as_str(), "http://127.0.0.1:9080/");
        assert!(settings.listen.ip().is_loopback());
        assert_eq!((settings.admin, settings.poll_interval), (None, Some(Duration::from_secs(60))));
    }

    #[test]
    fn wrong_settings_are_named() {
        let refused = |more: Value| {
            let mut fields = json!({"ingress": "http://127.0.0.1:8080"});
            let more = more.as_object().expect("fields").clone();
            fields.as_object_mut().expect("fields").extend(more);
            RestateSettings::from_value(&fields).expect_err("refused")
        };
        for (more, name) in [
            (json!({"ingress": ""}), "ingress"),
            (json!({"ingress": "ftp://host"}), "ingress"),
            (json!({"admin": "http://user:secret@host"}), "admin"),
            (json!({"endpoint": "http://host/?x=1"}), "endpoint"),
            (json!({"listen": "9080"}), "listen"),
            (json!({"listen": "0.0.0.0:9080"}), "identity_keys"),
            (json!({"identity_keys": ["publickeyv1_x"]}), "identity_keys"),
            (json!({"poll_seconds": -1}), "poll_seconds"),
        ] {
            let message = refused(more.clone());
            assert!(message.contains(name), "{more}: {message}");
            assert!(!message.contains("secret"), "{message}");
        }
        let open = json!({"ingress": "http://r:8080", "listen": "0.0.0.0:9080", "identity_keys": [KEY], "poll_seconds": 0});
        let settings = RestateSettings::from_value(&open).expect("settings");
        assert_eq!((settings.identity_keys.len(), settings.poll_interval), (1, None));
    }
}
