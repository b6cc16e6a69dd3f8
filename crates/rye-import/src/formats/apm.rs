//! Manifests of apm: its MCP servers are server items; its packages are repositories, which are named with the commit of
//! the lockfile and fetched only when that is asked for.

use rye_item::yaml;
use serde_json::{Map, Value};

use super::{remote, server};
use crate::front_matter;
use crate::plan::{ImportNote, NoteKind, RefusedSource, RemoteSource, UnitContext, UnitPlan};

/// Reads a manifest, with its lockfile if there is one.
pub(super) fn read(context: &UnitContext<'_>) -> Result<UnitPlan, String> {
    let text = context.text()?;
    // The same rule as for front matter: no anchors, no aliases.
    let document = front_matter::read(text, &[]).map_err(|error| error.to_string())?;
    let document = Value::Object(document.fields);
    let lock = context.unit.files.first().and_then(|path| context.text_of(path).ok());
    let lock = lock.and_then(|text| yaml::parse(text).ok()).map(|lock| lock.value).unwrap_or_default();
    let mut plan = UnitPlan::default();
    let source = context.listing.display_path(context.unit.path.as_str());
    for group in ["dependencies", "devDependencies"] {
        for entry in document[group]["apm"].as_array().into_iter().flatten() {
            let name =
                entry.as_str().or(entry["git"].as_str()).or(entry["path"].as_str()).unwrap_or("unnamed");
            let name = rye_item::text::one_line(name);
            if name.starts_with("./") || name.starts_with("../") || name.starts_with('/') {
                plan.notes.push(ImportNote::new(
                    NoteKind::AsksFor,
                    format!("the package `{name}`: rye import {name}"),
                ));
                continue;
            }
            match package(context, entry, &name, &lock) {
                Some(found) => plan.remotes.push(RemoteSource { source: source.clone(), ..found }),
                None => plan.refused.push(RefusedSource {
                    source: format!("{source} ({name})"),
                    reason: "its address is not one that is fetched: clone it, then rye import the folder"
                        .to_owned(),
                }),
            }
        }
        let mut servers = Map::new();
        for entry in document[group]["mcp"].as_array().into_iter().flatten() {
            match (entry.as_str(), entry["name"].as_str()) {
                (None, Some(name)) if entry.get("command").is_some() || entry.get("url").is_some() => {
                    let mut entry = entry.clone();
                    if let Value::Object(map) = &mut entry {
                        map.remove("name");
                        map.remove("registry");
                    }
                    servers.insert(name.to_owned(), entry);
                }
                (name, other) => {
                    let name = rye_item::text::one_line(name.or(other).unwrap_or("unnamed"));
                    plan.refused.push(RefusedSource {
                        source: format!("{source} ({name})"),
                        reason: "it is a server of a registry: add it with its command or url".to_owned(),
                    });
                }
            }
        }
        if !servers.is_empty() {
            let found = server::read_servers(context, &servers)?;
            plan.items.extend(found.items);
            plan.refused.extend(found.refused);
            plan.notes.extend(found.notes);
        }
    }
    for (name, command) in document["scripts"].as_object().into_iter().flatten() {
        if let Some(command) = command.as_str() {
            plan.notes.push(ImportNote::new(
                NoteKind::Hook,
                format!("the script {name} runs `{command}`: listed, not imported"),
            ));
        }
    }
    Ok(plan)
}

/// A package: `owner/name`, `owner/name/folder#ref`, `host/owner/name`, or a map with `git`, `path` and `ref`.
fn package(context: &UnitContext<'_>, entry: &Value, name: &str, lock: &Value) -> Option<RemoteSource> {
    let (plain, rev) = name.split_once('#').map_or((name, None), |(plain, rev)| (plain, Some(rev)));
    let (repository, path) = match plain.contains(':') {
        true => (plain.to_owned(), None),
        false => {
            let parts: Vec<&str> = plain.split('/').collect();
            let count = 2 + usize::from(parts.first().is_some_and(|first| first.contains('.')));
            let path = parts.get(count..).map(|rest| rest.join("/")).filter(|path| !path.is_empty());
            (parts.iter().take(count).copied().collect::<Vec<_>>().join("/"), path)
        }
    };
    let address = remote::address_for(context, &repository)?;
    let path = entry["path"].as_str().filter(|_| entry.get("git").is_some()).map(remote::plain_path).or(path);
    let rev = entry["ref"].as_str().or(rev).map(str::to_owned);
    Some(RemoteSource {
        name: plain.to_owned(),
        source: String::new(),
        rev: locked_commit(lock, &repository, path.as_deref()).or(rev),
        address,
        path,
    })
}

/// The commit that the lockfile has for a repository, and for a folder of it if it tells folders apart.
fn locked_commit(lock: &Value, repository: &str, path: Option<&str>) -> Option<String> {
    let entries = lock["dependencies"].as_array()?;
    let plain = |text: &str| {
        let text = text.split_once("://").map_or(text, |(_, rest)| rest);
        text.trim_end_matches('/').trim_end_matches(".git").trim_start_matches("github.com/").to_owned()
    };
    let wanted = plain(repository);
    let mut found = entries.iter().filter(|entry| {
        entry["repo_url"].as_str().is_some_and(|url| !url.is_empty() && plain(url) == wanted)
    });
    let of_path = found.clone().find(|entry| path.is_some() && entry["virtual_path"].as_str() == path);
    of_path.or_else(|| found.next())?["resolved_commit"].as_str().map(str::to_owned)
}
