//! Manifests of apm: its MCP servers are server items; its packages are repositories, which are named and not fetched.

use rye_item::yaml;
use serde_json::{Map, Value};

use super::server;
use crate::front_matter;
use crate::plan::{ImportNote, NoteKind, RefusedSource, UnitContext, UnitPlan};

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
            let locked =
                locked_commit(&lock, &name).map(|commit| format!(" at {commit}")).unwrap_or_default();
            plan.refused.push(RefusedSource {
                source: format!("{source} ({name})"),
                reason: format!(
                    "it is a repository, and nothing is fetched: clone it{locked}, then rye import the folder"
                ),
            });
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

/// The commit that the lockfile has for a package.
fn locked_commit(lock: &Value, name: &str) -> Option<String> {
    let name = name.split('#').next().unwrap_or(name);
    let entries = lock["dependencies"].as_array()?;
    let found = entries.iter().find(|entry| {
        entry["repo_url"]
            .as_str()
            .is_some_and(|url| !url.is_empty() && (url.contains(name) || name.starts_with(url)))
    })?;
    found["resolved_commit"].as_str().map(|commit| commit.chars().take(12).collect())
}
