//! `web.fetch`: one page, in a form a model can read.

use rye_exec::native::{NativeCall, NativeError, NativeTool};
use serde_json::{Value, json};

use super::page::Page;
use super::{client, request, send, text_parameter, timeout, truncate, variables};

const DEFAULT_CHARS: usize = 50_000;
const MAX_CHARS: u64 = 1_000_000;

pub(super) struct Fetch;

#[derive(Clone, Copy, PartialEq, Eq)]
enum FetchFormat {
    Markdown,
    Text,
    Html,
    Raw,
}

impl FetchFormat {
    fn parse(word: Option<&str>) -> Result<Self, NativeError> {
        match word {
            None | Some("markdown") => Ok(Self::Markdown),
            Some("text") => Ok(Self::Text),
            Some("html") => Ok(Self::Html),
            Some("raw") => Ok(Self::Raw),
            Some(other) => {
                Err(NativeError::failed(format!("`format` is `{other}`; use markdown, text, html or raw")))
            }
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Markdown => "markdown",
            Self::Text => "text",
            Self::Html => "html",
            Self::Raw => "raw",
        }
    }
}

impl NativeTool for Fetch {
    fn name(&self) -> &'static str {
        "web.fetch"
    }

    fn may_block(&self) -> bool {
        true
    }

    fn call(&self, call: &NativeCall<'_>) -> Result<Value, NativeError> {
        let url = text_parameter(call, "url").ok_or_else(|| NativeError::failed("`url` is missing"))?;
        let format = FetchFormat::parse(text_parameter(call, "format"))?;
        let limit = match call.parameters.get("max_chars") {
            None | Some(Value::Null) => DEFAULT_CHARS,
            Some(value) => {
                let invalid = || NativeError::failed("`max_chars` must be a whole number above 0");
                let count = value.as_u64().filter(|count| *count > 0).ok_or_else(invalid)?;
                usize::try_from(count.min(MAX_CHARS)).unwrap_or(DEFAULT_CHARS)
            }
        };
        let accept = "text/html,application/xhtml+xml,text/markdown,text/plain;q=0.9,*/*;q=0.5";
        let client = client(call, &variables(call))?;
        let response = send(&client, &request(url, accept, timeout(call)?), call)?;

        let kind = response.header("content-type").unwrap_or_default().to_owned();
        let Some(source) = lillux::http::decode_text(&response.body, &kind) else {
            let size = response.body.len();
            let type_text = if kind.is_empty() { "of unknown type" } else { &kind };
            return Ok(json!({
                "url": response.url,
                "status_code": response.status,
                "content_type": kind,
                "title": null,
                "content": null,
                "description": format!("not text: {size} bytes {type_text}"),
                "truncated": response.is_truncated,
            }));
        };
        let is_html =
            kind.to_ascii_lowercase().contains("html") || (kind.is_empty() && looks_like_html(&source));
        let page = is_html.then(|| Page::parse(&source)).flatten();
        let content = match (&page, format) {
            (Some(page), FetchFormat::Markdown) => page.markdown(&response.url),
            (Some(page), FetchFormat::Text) => page.text(),
            (None, FetchFormat::Markdown | FetchFormat::Text) => {
                rye_item::text::strip_controls(&source).into_owned()
            }
            (_, FetchFormat::Html | FetchFormat::Raw) => source,
        };
        let (content, is_truncated) = truncate(&content, limit);
        let is_page_truncated =
            page.as_ref().is_some_and(|page| page.is_truncated && format != FetchFormat::Raw);
        Ok(json!({
            "url": response.url,
            "status_code": response.status,
            "content_type": kind,
            "title": page.as_ref().and_then(Page::title),
            "format": format.as_str(),
            "content": content,
            "truncated": is_truncated || is_page_truncated || response.is_truncated,
        }))
    }
}

fn looks_like_html(source: &str) -> bool {
    let start = source.trim_start().get(..15).unwrap_or_default().to_ascii_lowercase();
    start.starts_with("<!doctype html") || start.starts_with("<html")
}
