//! Which tags a repository has.

use lillux::http::HttpMethod;
use serde::Deserialize;

use super::session::{RegistrySession, short_request};
use super::{Reference, RegistryAccess, RegistryError};

const PAGE_TAGS: usize = 1000;
/// How many pages are read: a repository with more tags than that is not listed to its end.
const MAX_PAGES: usize = 20;
const MAX_PAGE_BYTES: u64 = 1 << 20;

/// The tags of the reference's repository.
///
/// # Errors
/// When the registry is not reached, refuses, or does not behave like one.
pub fn list_tags(reference: &Reference, access: &RegistryAccess<'_>) -> Result<Vec<String>, RegistryError> {
    #[derive(Deserialize)]
    struct TagPage {
        tags: Option<Vec<String>>,
    }
    let mut session = RegistrySession::open(reference, access, false)?;
    let mut tags: Vec<String> = Vec::new();
    for _ in 0..MAX_PAGES {
        let mut url = session.url("tags", "list")?;
        url.query_pairs_mut().append_pair("n", &PAGE_TAGS.to_string());
        if let Some(last) = tags.last() {
            url.query_pairs_mut().append_pair("last", last);
        }
        let mut request = short_request(HttpMethod::Get, &url);
        request.max_body_bytes = MAX_PAGE_BYTES;
        let response = session.send(&request, &url, None)?;
        match response.status {
            200 if !response.is_truncated => {}
            404 => return Err(RegistryError::NotFound(reference.to_string())),
            _ => return Err(session.unexpected(&response, "it does not list the tags")),
        }
        let page: Option<TagPage> = serde_json::from_slice(&response.body).ok();
        let page = page.ok_or_else(|| session.unexpected(&response, "its list of tags cannot be read"))?;
        let found = page.tags.unwrap_or_default();
        let has_more = response.header("link").is_some_and(|link| link.contains("rel=\"next\""));
        let is_last = found.is_empty() || !has_more || found.last() == tags.last();
        tags.extend(found.into_iter().filter(|tag| reference.with_tag(tag).is_some()));
        if is_last {
            break;
        }
    }
    Ok(tags)
}
