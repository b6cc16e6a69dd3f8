//! Reading provider files: every key is known and has its type, or it is a problem with the key's name.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rye_item::{Diagnostic, merge};
use rye_thread::model::{FileKind, ModelSetting};
use serde_json::{Map, Value};

use super::{Auth, PerModel, Profile, ProviderFile, ProviderSettings};
use crate::TokenPrice;
use crate::protocol::{BodyOptions, ProviderProtocol, ReasoningStyle};

const DEFAULT_TIMEOUT_SECONDS: f64 = 300.0;
const MAX_TIMEOUT_SECONDS: f64 = 3600.0;

/// What describes the item and not the provider.
const ITEM_KEYS: [&str; 13] = [
    "tool_id",
    "tool_type",
    "name",
    "title",
    "version",
    "description",
    "executor_id",
    "category",
    "requires",
    "author",
    "parameters",
    "config_schema",
    "schema_version",
];

const PROVIDER_KEYS: [&str; 19] = [
    "protocol",
    "url",
    "auth",
    "headers",
    "timeout",
    "stream",
    "tier_mapping",
    "pricing",
    "priced",
    "context_window",
    "max_output_tokens",
    "max_tokens_field",
    "prompt_cache",
    "reasoning",
    "unsupported_settings",
    "files",
    "image_tokens",
    "body",
    "profiles",
];

const LEGACY_KEYS: [&str; 3] = ["config", "env_config", "tool_use"];

/// Fields of a body that are said elsewhere.
const RESERVED_BODY_KEYS: [&str; 10] = [
    "model",
    "messages",
    "contents",
    "system",
    "systemInstruction",
    "tools",
    "stream",
    "stream_options",
    "max_tokens",
    "max_completion_tokens",
];

/// Gathers what is wrong while values are taken out.
#[derive(Default)]
struct ProblemList(Vec<Diagnostic>);

impl ProblemList {
    fn add(&mut self, key: &str, message: &str) {
        self.0.push(Diagnostic::new(format!("`{key}` {message}")).with_field(key));
    }

    fn text(&mut self, key: &str, value: &Value) -> Option<String> {
        let text = value.as_str().filter(|text| !text.is_empty());
        if text.is_none() {
            self.add(key, "must be a text");
        }
        text.map(str::to_owned)
    }

    fn flag(&mut self, key: &str, value: Option<&Value>, default: bool) -> bool {
        match value {
            None => default,
            Some(Value::Bool(flag)) => *flag,
            Some(_) => {
                self.add(key, "must be true or false");
                default
            }
        }
    }

    fn map<'v>(&mut self, key: &str, value: Option<&'v Value>) -> Option<&'v Map<String, Value>> {
        let value = value?;
        if !value.is_object() {
            self.add(key, "must be a map");
        }
        value.as_object()
    }

    fn texts(&mut self, key: &str, value: Option<&Value>) -> BTreeMap<String, String> {
        let mut texts = BTreeMap::new();
        for (name, value) in self.map(key, value).into_iter().flatten() {
            if let Some(text) = self.text(&format!("{key}.{name}"), value) {
                texts.insert(name.clone(), text);
            }
        }
        texts
    }

    fn reject_unknown(&mut self, prefix: &str, map: &Map<String, Value>, known: &[&str]) {
        for key in map.keys().filter(|key| !known.contains(&key.as_str())) {
            self.add(&format!("{prefix}{key}"), "is not a key of a provider");
        }
    }
}

pub(super) fn parse_provider(fields: &Map<String, Value>) -> Result<ProviderFile, Vec<Diagnostic>> {
    let mut problems = ProblemList::default();
    let known: Vec<&str> = [ITEM_KEYS.as_slice(), &PROVIDER_KEYS, &LEGACY_KEYS].concat();
    problems.reject_unknown("", fields, &known);
    let mut warnings = Vec::new();
    let base = parse_settings(fields, &mut problems, &mut warnings);
    let mut profiles = Vec::new();
    for (name, profile) in problems.map("profiles", fields.get("profiles")).into_iter().flatten() {
        let path = format!("profiles.{name}");
        let Some(overrides) = problems.map(&path, Some(profile)) else {
            continue;
        };
        let patterns = parse_patterns(&path, overrides, &mut problems);
        let mut overrides = overrides.clone();
        overrides.remove("match");
        let allowed: Vec<&str> =
            PROVIDER_KEYS.into_iter().filter(|key| !matches!(*key, "profiles" | "tier_mapping")).collect();
        problems.reject_unknown(
            &format!("{path}."),
            &overrides,
            &[allowed.as_slice(), &["config", "tool_use"]].concat(),
        );
        let whole = merge::merge(&Value::Object(fields.clone()), &Value::Object(overrides));
        let mut own_problems = ProblemList::default();
        let settings =
            whole.as_object().and_then(|whole| parse_settings(whole, &mut own_problems, &mut Vec::new()));
        for problem in
            own_problems.0.into_iter().filter(|problem| !problems.0.contains(problem)).collect::<Vec<_>>()
        {
            let field = problem.field.as_deref().unwrap_or_default();
            problems.0.push(
                Diagnostic::new(format!("{path}: {}", problem.message)).with_field(format!("{path}.{field}")),
            );
        }
        if let Some(settings) = settings {
            profiles.push(Profile { name: name.clone(), patterns, settings });
        }
    }
    match base {
        Some(base) if problems.0.is_empty() => Ok(ProviderFile { base, profiles, warnings }),
        _ => Err(problems.0),
    }
}

fn parse_patterns(path: &str, profile: &Map<String, Value>, problems: &mut ProblemList) -> Vec<String> {
    let listed = profile.get("match").and_then(Value::as_array);
    let patterns: Option<Vec<String>> =
        listed.and_then(|list| list.iter().map(|pattern| pattern.as_str().map(str::to_owned)).collect());
    let patterns = patterns.filter(|patterns| !patterns.is_empty());
    if patterns.is_none() {
        problems.add(&format!("{path}.match"), "must be a list of patterns such as `claude-*`");
    }
    patterns.unwrap_or_default()
}

/// The fields with the older layout's `config` moved to where the keys stand now.
fn upgrade_legacy(
    fields: &Map<String, Value>,
    problems: &mut ProblemList,
    warnings: &mut Vec<Diagnostic>,
) -> Map<String, Value> {
    let mut upgraded = fields.clone();
    let config = problems.map("config", fields.get("config"));
    for (key, value) in config.into_iter().flatten() {
        let path = format!("config.{key}");
        match key.as_str() {
            "url" | "auth" | "headers" | "timeout" => {
                if upgraded.insert(key.clone(), value.clone()).is_some() {
                    problems.add(&path, &format!("and `{key}` are both given"));
                }
            }
            "method" if value.as_str().is_some_and(|method| method.eq_ignore_ascii_case("post")) => {}
            "method" => problems.add(&path, "must be POST"),
            "body" | "retry" | "stream_url" => {
                warnings.push(
                    Diagnostic::new(format!("`{path}` is not used: the protocol says it")).with_field(path),
                );
            }
            _ => problems.add(&path, "is not a key of a provider"),
        }
    }
    if let Some(Value::Object(schemas)) = fields.get("tool_use") {
        warnings.push(Diagnostic::new("`tool_use` is not used: the protocol says it").with_field("tool_use"));
        let mode = schemas.get("stream_schema").and_then(|schema| schema.get("stream_mode"));
        let protocol = match mode.and_then(Value::as_str) {
            Some("event_typed") => Some(ProviderProtocol::Anthropic),
            Some("delta_merge") => Some(ProviderProtocol::Openai),
            Some("complete_chunks") => Some(ProviderProtocol::Gemini),
            _ => None,
        };
        if let Some(protocol) = protocol {
            upgraded.entry("protocol").or_insert_with(|| protocol.as_str().into());
        }
    }
    upgraded
}

fn parse_settings(
    fields: &Map<String, Value>,
    problems: &mut ProblemList,
    warnings: &mut Vec<Diagnostic>,
) -> Option<ProviderSettings> {
    let fields = &upgrade_legacy(fields, problems, warnings);
    let name = fields.get("protocol").and_then(Value::as_str);
    let protocol = ProviderProtocol::ALL.into_iter().find(|protocol| name == Some(protocol.as_str()));
    if protocol.is_none() {
        let names = ProviderProtocol::ALL.map(ProviderProtocol::as_str).join(", ");
        problems.add("protocol", &format!("must be one of {names}"));
    }
    let url = match fields.get("url") {
        Some(url) => problems.text("url", url),
        None if protocol == Some(ProviderProtocol::Offline) => Some(String::new()),
        None => {
            problems.add("url", "is missing");
            None
        }
    };
    let auth = parse_auth(fields.get("auth"), protocol, problems);
    let environment = problems.map("env_config", fields.get("env_config"));
    if let Some(environment) = environment {
        problems.reject_unknown("env_config.", environment, &["env"]);
    }
    let prices = parse_prices(fields.get("pricing"), protocol, problems);
    let mut max_output_tokens =
        parse_per_model("max_output_tokens", fields.get("max_output_tokens"), problems);
    for (model, price) in fields.get("pricing").and_then(Value::as_object).into_iter().flatten() {
        if let Some(max) = price.get("max_output_tokens").and_then(Value::as_u64) {
            max_output_tokens.models.entry(model.clone()).or_insert(max);
        }
    }
    Some(ProviderSettings {
        auth: auth?,
        headers: problems.texts("headers", fields.get("headers")),
        variables: problems.texts("env_config.env", environment.and_then(|map| map.get("env"))),
        timeout: parse_timeout(fields.get("timeout"), problems),
        tiers: problems.texts("tier_mapping", fields.get("tier_mapping")),
        prices,
        is_priced: problems.flag("priced", fields.get("priced"), true),
        context_window: parse_per_model("context_window", fields.get("context_window"), problems),
        max_output_tokens,
        can_stream: problems.flag("stream", fields.get("stream"), true),
        files: parse_files(fields.get("files"), problems),
        image_tokens: parse_per_model("image_tokens", fields.get("image_tokens"), problems),
        unsupported: parse_unsupported(fields.get("unsupported_settings"), problems),
        options: parse_options(fields, protocol, problems),
        protocol: protocol?,
        url: url?,
    })
}

fn parse_options(
    fields: &Map<String, Value>,
    protocol: Option<ProviderProtocol>,
    problems: &mut ProblemList,
) -> BodyOptions {
    let mut check_only = |key: &str, owner: ProviderProtocol| {
        if fields.contains_key(key) && protocol.is_some_and(|protocol| protocol != owner) {
            problems.add(key, &format!("means nothing here: it is for `{}`", owner.as_str()));
        }
    };
    check_only("max_tokens_field", ProviderProtocol::Openai);
    check_only("prompt_cache", ProviderProtocol::Anthropic);
    check_only("reasoning", ProviderProtocol::Anthropic);
    let reasoning = match fields.get("reasoning").map(|style| style.as_str().unwrap_or_default()) {
        None | Some("budget") => ReasoningStyle::Budget,
        Some("effort") => ReasoningStyle::Effort,
        Some(_) => {
            problems.add("reasoning", "must be budget or effort");
            ReasoningStyle::Budget
        }
    };
    let uses_max_tokens = match fields.get("max_tokens_field").map(|field| field.as_str().unwrap_or_default())
    {
        None | Some("max_completion_tokens") => false,
        Some("max_tokens") => true,
        Some(_) => {
            problems.add("max_tokens_field", "must be max_tokens or max_completion_tokens");
            false
        }
    };
    let body = problems.map("body", fields.get("body")).cloned().unwrap_or_default();
    for key in body.keys().filter(|key| RESERVED_BODY_KEYS.contains(&key.as_str())) {
        problems.add(&format!("body.{key}"), "is set by the thread, not by the file");
    }
    let prompt_cache = problems.flag("prompt_cache", fields.get("prompt_cache"), false);
    BodyOptions { uses_max_tokens, prompt_cache, reasoning, context_window: None, body }
}

fn parse_unsupported(value: Option<&Value>, problems: &mut ProblemList) -> BTreeSet<ModelSetting> {
    let Some(value) = value else { return BTreeSet::new() };
    let find =
        |name: &Value| ModelSetting::ALL.into_iter().find(|known| name.as_str() == Some(known.as_str()));
    let found: Option<BTreeSet<ModelSetting>> =
        value.as_array().and_then(|list| list.iter().map(find).collect());
    found.unwrap_or_else(|| {
        let names: Vec<&str> = ModelSetting::ALL.into_iter().map(ModelSetting::as_str).collect();
        problems.add("unsupported_settings", &format!("must be a list of {}", names.join(", ")));
        BTreeSet::new()
    })
}

fn parse_files(value: Option<&Value>, problems: &mut ProblemList) -> BTreeSet<FileKind> {
    let Some(value) = value else { return BTreeSet::new() };
    let find = |name: &Value| match name.as_str() {
        Some("image") => Some(FileKind::Image),
        Some("pdf") => Some(FileKind::Pdf),
        _ => None,
    };
    let found: Option<BTreeSet<FileKind>> = value.as_array().and_then(|list| list.iter().map(find).collect());
    found.unwrap_or_else(|| {
        problems.add("files", "must be a list of image, pdf");
        BTreeSet::new()
    })
}

fn parse_auth(
    value: Option<&Value>,
    protocol: Option<ProviderProtocol>,
    problems: &mut ProblemList,
) -> Option<Auth> {
    let Some(value) = value else {
        return Some(Auth::None);
    };
    let map = problems.map("auth", Some(value))?;
    problems.reject_unknown("auth.", map, &["type", "variable", "token", "key", "header"]);
    let kind = map.get("type").and_then(Value::as_str);
    if kind == Some("none") {
        return Some(Auth::None);
    }
    let present: Vec<&str> =
        ["variable", "token", "key"].into_iter().filter(|key| map.contains_key(*key)).collect();
    let [key] = present.as_slice() else {
        problems.add("auth.variable", "must name the environment variable that holds the key");
        return None;
    };
    let path = format!("auth.{key}");
    let text = problems.text(&path, map.get(*key)?)?;
    let template = if *key == "variable" { format!("${{{text}}}") } else { text };
    // A literal key in a signed file would travel with it.
    if !(template.starts_with("${") && template.find('}') == Some(template.len() - 1)) {
        problems.add(&path, "must be `${VARIABLE}`: a key does not belong in a file that is shared");
        return None;
    }
    let wire = protocol.and_then(ProviderProtocol::wire);
    let default = wire.map_or("x-api-key", |wire| wire.key_header());
    match kind {
        Some("bearer") => Some(Auth::Bearer(template)),
        Some("api_key") => {
            let name = map
                .get("header")
                .map_or(Some(default.to_owned()), |name| problems.text("auth.header", name))?;
            Some(Auth::Header { name, value: template })
        }
        _ => {
            problems.add("auth.type", "must be bearer, api_key or none");
            None
        }
    }
}

fn parse_timeout(value: Option<&Value>, problems: &mut ProblemList) -> Duration {
    let seconds = value.map_or(Some(DEFAULT_TIMEOUT_SECONDS), Value::as_f64);
    let seconds = seconds.filter(|seconds| *seconds > 0.0 && *seconds <= MAX_TIMEOUT_SECONDS);
    if seconds.is_none() {
        problems.add("timeout", &format!("must be a number of seconds up to {MAX_TIMEOUT_SECONDS}"));
    }
    Duration::from_secs_f64(seconds.unwrap_or(DEFAULT_TIMEOUT_SECONDS))
}

fn parse_per_model(key: &str, value: Option<&Value>, problems: &mut ProblemList) -> PerModel {
    let mut number = |path: &str, value: &Value| {
        let number = value.as_u64().filter(|number| *number > 0);
        if number.is_none() {
            problems.add(path, "must be a whole number above 0");
        }
        number
    };
    match value {
        None => PerModel::default(),
        Some(Value::Object(map)) => {
            let mut per_model = PerModel::default();
            for (model, value) in map {
                let Some(number) = number(&format!("{key}.{model}"), value) else {
                    continue;
                };
                match model.as_str() {
                    "default" => per_model.default = Some(number),
                    model => {
                        per_model.models.insert(model.to_owned(), number);
                    }
                }
            }
            per_model
        }
        Some(value) => PerModel { default: number(key, value), models: BTreeMap::new() },
    }
}

fn parse_prices(
    value: Option<&Value>,
    protocol: Option<ProviderProtocol>,
    problems: &mut ProblemList,
) -> BTreeMap<String, TokenPrice> {
    let mut prices = BTreeMap::new();
    for (model, value) in problems.map("pricing", value).into_iter().flatten() {
        let path = format!("pricing.{model}");
        let Some(map) = problems.map(&path, Some(value)) else {
            continue;
        };
        const KEYS: [&str; 5] = ["input", "output", "cached_input", "cache_write", "max_output_tokens"];
        problems.reject_unknown(&format!("{path}."), map, &KEYS);
        let mut price = |key: &str| {
            let value = map.get(key)?;
            let price = parse_nano_dollars(value);
            if price.is_none() {
                let message = "must be US dollars per million tokens: not negative, at most three decimals";
                problems.add(&format!("{path}.{key}"), message);
            }
            price
        };
        let (input, output) = (price("input"), price("output"));
        let (cached_input, cache_write) = (price("cached_input"), price("cache_write"));
        for key in ["input", "output"].into_iter().filter(|key| !map.contains_key(*key)) {
            problems.add(&format!("{path}.{key}"), "is missing");
        }
        if map.get("max_output_tokens").is_some_and(|max| max.as_u64().is_none_or(|max| max == 0)) {
            problems.add(&format!("{path}.max_output_tokens"), "must be a whole number above 0");
        }
        if let (Some(input), Some(output)) = (input, output) {
            let wire = protocol.and_then(ProviderProtocol::wire);
            let writing = wire.map_or(input, |wire| wire.cache_write_price(input));
            let (cached_input, cache_write) = (cached_input.unwrap_or(input), cache_write.unwrap_or(writing));
            prices.insert(model.clone(), TokenPrice { input, cached_input, cache_write, output });
        }
    }
    prices
}

/// US dollars per million tokens as nano-dollars per token, if that is a whole number.
pub(super) fn parse_nano_dollars(value: &Value) -> Option<u64> {
    let text = match value {
        Value::String(text) => text.trim().to_owned(),
        // Without an exponent, with the fewest digits that mean this number.
        Value::Number(number) => {
            number.as_u64().map_or_else(|| number.as_f64().map(|n| n.to_string()), |n| Some(n.to_string()))?
        }
        _ => return None,
    };
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let fraction = fraction.trim_end_matches('0');
    let is_decimal = !whole.is_empty() && whole.len() <= 9 && is_digits(whole) && is_digits(fraction);
    if !is_decimal || fraction.len() > 3 {
        return None;
    }
    let thousandths: u64 = format!("{fraction:0<3}").parse().ok()?;
    Some(whole.parse::<u64>().ok()? * 1000 + thousandths)
}
