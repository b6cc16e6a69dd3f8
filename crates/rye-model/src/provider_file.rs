//! Provider files: where a model is asked, in which protocol, with which key, at what price.
//!
//! A provider is a tool item, `rye/agent/providers/<name>/<name>.yaml`. The caller has verified and parsed it and passes the fields
//! in; nothing here reads a file or the environment.
//!
//! | key | meaning |
//! |---|---|
//! | `protocol` | `anthropic`, `openai`, `gemini`, `ollama` or `offline` |
//! | `url` | where requests go, in full; `{model}` stands for the model, `${VAR}` and `${VAR:-default}` for variables |
//! | `auth` | `{type: bearer, variable}`, `{type: api_key, variable, header}` or `{type: none}` |
//! | `headers` | further headers; variables as in `url` |
//! | `timeout` | seconds the server may say nothing; 300 if not given |
//! | `stream` | `false` for a server that cannot stream |
//! | `tier_mapping` | a model for each tier |
//! | `pricing` | for each model `{input, output, cached_input, cache_write}` in US dollars per million tokens, at most three decimals. Without `cached_input` or `cache_write` such a token costs as much as any other (with Anthropic, writing costs a quarter more) |
//! | `priced` | `false` if it costs nothing: only tokens are counted |
//! | `context_window`, `max_output_tokens` | a number, or one for each model with `default` for the others; 200000 and 16384 if not given |
//! | `max_tokens_field` | OpenAI: `max_completion_tokens`, or `max_tokens` for servers that know only that |
//! | `prompt_cache` | Anthropic: `true` asks for the prompt to be cached |
//! | `reasoning` | Anthropic: `budget` asks for reasoning by a number of tokens, `effort` by a word; `budget` if not given |
//! | `unsupported_settings` | settings of a directive's `<model>` that it cannot take: `temperature`, `reasoning_effort`, `stop`, `response_format` |
//! | `files` | what it can be shown besides text: a list of `image` and `pdf`; nothing if not given |
//! | `image_tokens` | the most tokens of one image: a number, or one for each model with `default`; 8000 if not given |
//! | `body` | further fields of the request's body, such as `temperature` |
//! | `profiles` | `{name: {match: [globs], …}}`: the first whose glob matches the model lies over the rest |
//!
//! The older layout is read too: `config` with `url`, `auth {type, token | key, header}`, `headers`, `timeout`, and
//! `env_config.env`. Its templates of bodies and answers are not needed: the protocol says it all. Where `protocol` is
//! missing, `tool_use.stream_schema.stream_mode` names it.

mod credentials;
mod parse;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use lillux::http::{HttpClient, HttpError};
use rye_item::Diagnostic;
use rye_thread::model::{FileKind, ModelSetting, ModelSettings};
use serde_json::{Map, Value};

use crate::TokenPrice;
use crate::endpoint::{EndpointParts, ModelEndpoint};
use crate::protocol::{BodyOptions, ProviderProtocol, SettingBounds};

const DEFAULT_CONTEXT_WINDOW: u64 = 200_000;
const DEFAULT_MAX_OUTPUT_TOKENS: u64 = 16_384;
const DEFAULT_IMAGE_TOKENS: u64 = 8000;

/// One provider.
#[derive(Clone, Debug, PartialEq)]
pub struct ProviderFile {
    base: ProviderSettings,
    profiles: Vec<Profile>,
    /// What works but is not used.
    pub warnings: Vec<Diagnostic>,
}

#[derive(Clone, Debug, PartialEq)]
struct Profile {
    name: String,
    patterns: Vec<String>,
    settings: ProviderSettings,
}

#[derive(Clone, Debug, PartialEq)]
struct ProviderSettings {
    protocol: ProviderProtocol,
    url: String,
    auth: Auth,
    headers: BTreeMap<String, String>,
    /// Variables that the file itself makes of others.
    variables: BTreeMap<String, String>,
    timeout: Duration,
    tiers: BTreeMap<String, String>,
    prices: BTreeMap<String, TokenPrice>,
    is_priced: bool,
    context_window: PerModel,
    max_output_tokens: PerModel,
    can_stream: bool,
    /// What it can be shown besides text.
    files: BTreeSet<FileKind>,
    image_tokens: PerModel,
    /// Settings of directives that it cannot take.
    unsupported: BTreeSet<ModelSetting>,
    options: BodyOptions,
}

/// Where the key comes from, with its variables, and where it goes.
#[derive(Clone, Debug, PartialEq)]
enum Auth {
    None,
    Bearer(String),
    Header { name: String, value: String },
}

/// A number for all models, or for each its own.
#[derive(Clone, Debug, Default, PartialEq)]
struct PerModel {
    default: Option<u64>,
    models: BTreeMap<String, u64>,
}

impl PerModel {
    fn get(&self, model: &str) -> Option<u64> {
        self.models.get(model).copied().or(self.default)
    }
}

/// What a model costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pricing {
    /// This.
    Known(TokenPrice),
    /// There is no charge.
    Unpriced,
    /// The file does not say.
    Unknown,
}

/// Why there is no endpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// A variable that the file names is not set.
    #[error("the environment variable `{0}` is not set")]
    Variable(String),
    /// The protocol has no endpoint.
    #[error("`offline` has no endpoint: a script answers")]
    Offline,
    /// The endpoint cannot be used.
    #[error("{0}")]
    Http(#[from] HttpError),
}

impl ProviderFile {
    /// Reads the fields of a provider item.
    ///
    /// # Errors
    /// Everything that is wrong, each with its key.
    pub fn from_fields(fields: &Map<String, Value>) -> Result<Self, Vec<Diagnostic>> {
        parse::parse_provider(fields)
    }

    fn settings(&self, model: &str) -> &ProviderSettings {
        let found = self.profiles.iter().find(|profile| profile.is_for(model));
        found.map_or(&self.base, |profile| &profile.settings)
    }

    /// The profile for a model. Models of one profile share an endpoint.
    #[must_use]
    pub fn profile(&self, model: &str) -> Option<&str> {
        self.profiles.iter().find(|profile| profile.is_for(model)).map(|profile| profile.name.as_str())
    }

    /// How the endpoint for a model is talked to.
    #[must_use]
    pub fn protocol(&self, model: &str) -> ProviderProtocol {
        self.settings(model).protocol
    }

    /// The model for each tier.
    #[must_use]
    pub fn tiers(&self) -> &BTreeMap<String, String> {
        &self.base.tiers
    }

    /// The models that have a price, in any profile.
    pub fn priced_models(&self) -> impl Iterator<Item = &str> {
        let all = std::iter::once(&self.base).chain(self.profiles.iter().map(|profile| &profile.settings));
        let mut models: Vec<&str> =
            all.flat_map(|settings| settings.prices.keys().map(String::as_str)).collect();
        models.sort_unstable();
        models.dedup();
        models.into_iter()
    }

    /// What a model costs.
    #[must_use]
    pub fn pricing(&self, model: &str) -> Pricing {
        let settings = self.settings(model);
        match settings.prices.get(model) {
            _ if settings.protocol == ProviderProtocol::Offline => Pricing::Known(TokenPrice::default()),
            _ if !settings.is_priced => Pricing::Unpriced,
            Some(price) => Pricing::Known(*price),
            None => Pricing::Unknown,
        }
    }

    /// How many tokens a model can look at.
    #[must_use]
    pub fn context_window(&self, model: &str) -> u64 {
        self.settings(model).context_window.get(model).unwrap_or(DEFAULT_CONTEXT_WINDOW)
    }

    /// How many tokens a model may answer.
    #[must_use]
    pub fn max_output_tokens(&self, model: &str) -> u64 {
        self.settings(model).max_output_tokens.get(model).unwrap_or(DEFAULT_MAX_OUTPUT_TOKENS)
    }

    /// Whether a model can be shown a file of this kind. Every model reads text, and a script is shown nothing.
    #[must_use]
    pub fn takes_file(&self, model: &str, kind: FileKind) -> bool {
        let own = self.settings(model);
        kind == FileKind::Text || own.protocol == ProviderProtocol::Offline || own.files.contains(&kind)
    }

    /// The most tokens that one image is counted as.
    #[must_use]
    pub fn image_tokens(&self, model: &str) -> u64 {
        self.settings(model).image_tokens.get(model).unwrap_or(DEFAULT_IMAGE_TOKENS)
    }

    /// Checks that a model takes a directive's settings, with answers of at most so many tokens. A script takes them all: it
    /// asks no model.
    ///
    /// # Errors
    /// Which setting it cannot take, in words that follow the model's name.
    pub fn check_settings(
        &self,
        model: &str,
        settings: &ModelSettings,
        max_output_tokens: u64,
    ) -> Result<(), String> {
        let own = self.settings(model);
        let Some(wire) = own.protocol.wire() else { return Ok(()) };
        if let Some(setting) = own.unsupported.iter().find(|setting| settings.has(**setting)) {
            return Err(format!("it does not take `{}`", setting.as_str()));
        }
        wire.check_settings(settings, &SettingBounds { max_output_tokens, reasoning: own.options.reasoning })
    }

    /// Makes the endpoint for a model. Proxies and certificates are those of `client`; its address policy is not used: the file
    /// names the one host that is reached.
    ///
    /// # Errors
    /// When a variable is not set, or the endpoint cannot be used.
    pub fn connect(
        &self,
        model: &str,
        environment: &BTreeMap<String, String>,
        client: &HttpClient,
    ) -> Result<ModelEndpoint, ConnectError> {
        let settings = self.settings(model);
        let wire = settings.protocol.wire().ok_or(ConnectError::Offline)?;
        let variables = Variables { own: &settings.variables, environment };
        let mut secrets = Vec::new();
        let mut headers = Vec::new();
        for (name, template) in &settings.headers {
            let value = variables.interpolate(template)?;
            if value != *template {
                secrets.push(value.clone());
            }
            headers.push((name.clone(), value));
        }
        match &settings.auth {
            Auth::None => {}
            Auth::Bearer(template) => {
                let key = variables.interpolate(template)?;
                headers.push(("authorization".to_owned(), format!("Bearer {key}")));
                secrets.push(key);
            }
            Auth::Header { name, value } => {
                let key = variables.interpolate(value)?;
                headers.push((name.clone(), key.clone()));
                secrets.push(key);
            }
        }
        if let Some((name, value)) = wire.default_header()
            && !settings.headers.keys().any(|own| own.eq_ignore_ascii_case(name))
        {
            headers.push((name.to_owned(), value.to_owned()));
        }
        let context_window = settings.context_window.get(model);
        let parts = EndpointParts {
            protocol: wire,
            url: variables.interpolate(&settings.url)?,
            headers,
            secrets,
            timeout: settings.timeout,
            can_stream: settings.can_stream,
            options: BodyOptions { context_window, ..settings.options.clone() },
        };
        Ok(ModelEndpoint::new(parts, client)?)
    }
}

impl Profile {
    fn is_for(&self, model: &str) -> bool {
        self.patterns.iter().any(|pattern| is_match(pattern, model))
    }
}

/// Whether `text` is what `pattern` means, where `*` matches anything.
fn is_match(pattern: &str, text: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else {
        return pattern == text;
    };
    let Some(mut text) = text.strip_prefix(start) else {
        return false;
    };
    let mut parts: Vec<&str> = rest.split('*').collect();
    let end = parts.pop().unwrap_or_default();
    for part in parts {
        match text.find(part) {
            Some(index) => text = &text[index + part.len()..],
            None => return false,
        }
    }
    text.ends_with(end)
}

struct Variables<'a> {
    own: &'a BTreeMap<String, String>,
    environment: &'a BTreeMap<String, String>,
}

impl Variables<'_> {
    /// Fills `${VAR}` and `${VAR:-default}` in. What is filled in is not looked at again.
    fn interpolate(&self, template: &str) -> Result<String, ConnectError> {
        interpolate(template, &|name| match self.own.get(name) {
            Some(template) => {
                interpolate(template, &|name| Ok(self.environment.get(name).cloned())).map(Some)
            }
            None => Ok(self.environment.get(name).cloned()),
        })
    }
}

type Lookup<'a> = &'a dyn Fn(&str) -> Result<Option<String>, ConnectError>;

fn interpolate(template: &str, variable: Lookup<'_>) -> Result<String, ConnectError> {
    let mut output = String::new();
    let mut rest = template;
    while let Some((before, inside)) = rest.split_once("${") {
        output.push_str(before);
        let Some((expression, after)) = inside.split_once('}') else {
            output.push_str("${");
            rest = inside;
            continue;
        };
        let (name, default) = match expression.split_once(":-") {
            Some((name, default)) => (name, Some(default)),
            None => (expression, None),
        };
        let found = match (variable(name), default) {
            (Ok(found), _) => found,
            (Err(_), Some(_)) => None,
            (Err(error), None) => return Err(error),
        };
        match (found.filter(|value| !value.is_empty()), default) {
            (Some(value), _) => output.push_str(&value),
            (None, Some(default)) => output.push_str(default),
            (None, None) => return Err(ConnectError::Variable(name.to_owned())),
        }
        rest = after;
    }
    output.push_str(rest);
    Ok(output)
}

#[cfg(test)]
mod tests;
