//! `web.search`: asks the search service that config describes. Which services there are, where they are, which
//! variables they need and where their results lie is data (`config/web/websearch.yaml`), not code.

use std::collections::BTreeMap;

use lillux::http::{HttpHeader, HttpResponse};
use rye_exec::http::{Secrets, fill_url, is_secret_name};
use rye_exec::native::{NativeCall, NativeError, NativeTool};
use serde_json::{Value, json};
use url::Url;

use super::page::{Page, attribute, has_class, inner_text, one_line};
use super::{client, request, send, text_parameter, timeout, truncate, variables};

const DEFAULT_LIMIT: u64 = 8;
const MAX_LIMIT: u64 = 50;
const MAX_SNIPPET: usize = 1000;

const SETUP_HINT: &str = "choose a provider in `.ai/config/web/websearch.yaml` of the user space \
    (`provider: NAME`, described below `providers`) and set the variable it needs; \
    `rye load knowledge rye/web/search` says more";

pub(super) struct Search;

/// One hit.
struct Hit {
    title: String,
    url: String,
    snippet: String,
}

impl NativeTool for Search {
    fn name(&self) -> &'static str {
        "web.search"
    }

    fn may_block(&self) -> bool {
        true
    }

    fn call(&self, call: &NativeCall<'_>) -> Result<Value, NativeError> {
        let query = text_parameter(call, "query").ok_or_else(|| NativeError::failed("`query` is missing"))?;
        let limit = match call.parameters.get("limit") {
            None | Some(Value::Null) => DEFAULT_LIMIT,
            Some(value) => value
                .as_u64()
                .filter(|limit| *limit > 0)
                .ok_or_else(|| NativeError::failed("`limit` must be a whole number above 0"))?
                .min(MAX_LIMIT),
        };
        let (name, provider) = choose_provider(call)?;
        let variables = variables(call);
        let response = send_query(call, &provider, &variables, query, limit)
            .map_err(|error| hide_secrets(error, &Secrets::from_environment(&variables)))?;
        let hits = match provider.text("kind").unwrap_or("json") {
            "json" => parse_json_hits(&provider, &response)?,
            "html" => parse_html_hits(&provider, &response)?,
            other => return Err(provider.invalid(&format!("`kind` is `{other}`; use json or html"))),
        };
        let hits_to_return = hits.iter().take(usize::try_from(limit).unwrap_or(usize::MAX));
        let results: Vec<Value> = hits_to_return
            .map(|hit| json!({"title": hit.title, "url": hit.url, "snippet": hit.snippet}))
            .collect();
        Ok(json!({"query": query, "provider": name, "count": results.len(), "results": results}))
    }
}

/// One provider's description.
struct Provider {
    name: String,
    settings: Value,
}

impl Provider {
    fn text(&self, key: &str) -> Option<&str> {
        self.settings.get(key).and_then(Value::as_str).filter(|word| !word.is_empty())
    }

    fn invalid(&self, problem: &str) -> NativeError {
        NativeError::failed(format!("the search provider `{}` cannot be used: {problem}", self.name))
    }

    fn required(&self, key: &str) -> Result<&str, NativeError> {
        self.text(key).ok_or_else(|| self.invalid(&format!("`{key}` is missing")))
    }
}

/// The provider that was asked for, or the configured one.
fn choose_provider(call: &NativeCall<'_>) -> Result<(String, Provider), NativeError> {
    let config = call.resolved_config.filter(|config| config.is_object());
    let setting = config.and_then(|config| config.get("provider")).and_then(Value::as_str);
    let providers = config.and_then(|config| config.get("providers")).and_then(Value::as_object);
    let name = text_parameter(call, "provider").or(setting).map(str::trim).filter(|name| !name.is_empty());
    let Some(name) = name else {
        return Err(NativeError::failed(format!("no search provider is configured; {SETUP_HINT}")));
    };
    let Some(settings) = providers.and_then(|all| all.get(name)).filter(|value| value.is_object()) else {
        let known: Vec<&str> = providers.into_iter().flatten().map(|(name, _)| name.as_str()).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        let name = one_line(name);
        let message = format!("unknown search provider `{name}` (known: {known}); {SETUP_HINT}");
        return Err(NativeError::failed(message));
    };
    Ok((name.to_owned(), Provider { name: name.to_owned(), settings: settings.clone() }))
}

fn send_query(
    call: &NativeCall<'_>,
    provider: &Provider,
    variables: &BTreeMap<String, String>,
    query: &str,
    limit: u64,
) -> Result<HttpResponse, NativeError> {
    let template = expand(provider, provider.required("url")?, variables)?;
    let fill = |name: &str| match name {
        "query" => Some(query.to_owned()),
        "limit" => Some(limit.to_string()),
        _ => None,
    };
    let url = fill_url(&template, fill, false).map_err(|error| provider.invalid(&error))?;
    let accept = if provider.text("kind") == Some("html") { "text/html" } else { "application/json" };
    let mut request = request(&url, accept, timeout(call)?);
    let secrets = Secrets::from_environment(variables);
    for (name, value) in provider.settings.get("headers").and_then(Value::as_object).into_iter().flatten() {
        let value =
            value.as_str().ok_or_else(|| provider.invalid(&format!("`headers.{name}` is not a string")))?;
        let value = expand(provider, value, variables)?;
        let is_secret = is_secret_name(name) || secrets.is_present_in(&value);
        request.headers.retain(|own| !own.name.eq_ignore_ascii_case(name));
        request.headers.push(HttpHeader { name: name.clone(), value, is_secret });
    }
    send(&client(call, variables)?, &request, call)
}

fn hide_secrets(mut error: NativeError, secrets: &Secrets) -> NativeError {
    error.message = secrets.redact(&error.message);
    error
}

/// `${NAME}` from the variables the signed descriptor hands over, and from nowhere else.
fn expand(
    provider: &Provider,
    template: &str,
    variables: &BTreeMap<String, String>,
) -> Result<String, NativeError> {
    let mut text = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once("${") {
        let (name, after) =
            after.split_once('}').ok_or_else(|| provider.invalid("a `${` has no end in its description"))?;
        let value = variables.get(name).ok_or_else(|| {
            let display = one_line(name);
            provider.invalid(&format!(
                "the variable `{display}` is not set, or the signed tool does not pass it on (`config.environment`)"
            ))
        })?;
        text.push_str(before);
        text.push_str(value);
        rest = after;
    }
    text.push_str(rest);
    Ok(text)
}

/// A value by a dotted path; numbers are places in a list.
fn value_at_path<'a>(value: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').filter(|key| !key.is_empty()).try_fold(value, |value, key| match value {
        Value::Array(list) => list.get(key.parse::<usize>().ok()?),
        other => other.get(key),
    })
}

fn parse_json_hits(provider: &Provider, response: &HttpResponse) -> Result<Vec<Hit>, NativeError> {
    let answer: Value = serde_json::from_slice(&response.body)
        .map_err(|_| provider.invalid("its response is not valid JSON"))?;
    let path = provider.text("results_path").unwrap_or_default();
    let results = match value_at_path(&answer, path) {
        Some(Value::Array(results)) => results.as_slice(),
        // A search without hits often leaves the list out.
        None | Some(Value::Null) => &[],
        Some(_) => return Err(provider.invalid("`results_path` leads to no list")),
    };
    let field = |result: &Value, key: &str, usual: &str| {
        let found = value_at_path(result, provider.text(key).unwrap_or(usual)).and_then(Value::as_str);
        found.unwrap_or_default().to_owned()
    };
    let hit = |result: &Value| {
        let snippet = field(result, "snippet_key", "snippet");
        build_hit(&field(result, "title_key", "title"), &field(result, "url_key", "url"), &snippet)
    };
    Ok(results.iter().filter_map(hit).collect())
}

fn parse_html_hits(provider: &Provider, response: &HttpResponse) -> Result<Vec<Hit>, NativeError> {
    let (link_class, snippet_class) = (provider.required("link_class")?, provider.text("snippet_class"));
    let source =
        lillux::http::decode_text(&response.body, response.header("content-type").unwrap_or("text/html"));
    let page = source.as_deref().and_then(Page::parse);
    let page = page.ok_or_else(|| provider.invalid("its response is not a page"))?;
    let base = Url::parse(&response.url).map_err(|_| provider.invalid("its answer has no address"))?;
    let mut found: Vec<(String, String, String)> = Vec::new();
    for node in page.elements() {
        if has_class(&node, link_class) {
            let url = attribute(&node, "href").and_then(|href| base.join(&href).ok());
            let url = url.map(|url| link_target(&url, provider.text("link_parameter"))).unwrap_or_default();
            found.push((inner_text(&node), url, String::new()));
        } else if snippet_class.is_some_and(|class| has_class(&node, class))
            && let Some((_, _, snippet)) = found.last_mut().filter(|(_, _, snippet)| snippet.is_empty())
        {
            *snippet = inner_text(&node);
        }
    }
    Ok(found.iter().filter_map(|(title, url, snippet)| build_hit(title, url, snippet)).collect())
}

/// Where a link leads that goes through the service's own counter.
fn link_target(url: &Url, parameter: Option<&str>) -> String {
    let inner = parameter.and_then(|name_wanted| url.query_pairs().find(|(name, _)| name == name_wanted));
    inner.map_or_else(|| url.to_string(), |(_, value)| value.into_owned())
}

/// A hit, if it leads to a web page.
fn build_hit(title: &str, url: &str, snippet: &str) -> Option<Hit> {
    let url = Url::parse(url.trim()).ok().filter(|url| matches!(url.scheme(), "http" | "https"))?;
    let snippet = match Page::parse(snippet) {
        Some(page) if snippet.contains('<') => page.text(),
        _ => snippet.to_owned(),
    };
    Some(Hit {
        title: one_line(title),
        url: url.to_string(),
        snippet: truncate(&one_line(&snippet), MAX_SNIPPET).0,
    })
}
