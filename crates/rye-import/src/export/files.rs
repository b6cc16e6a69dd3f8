//! The files of one item for one client. What was imported comes out as it came in; everything else is written from the
//! item's own fields.

use rye_item::ItemType;
use rye_item::parse::{directive, knowledge};
use rye_item::text::{one_line, quote};
use serde_json::Value;

use super::allowed_keys::refusal;
use super::{ExportClient, ExportFile, ExportItem, RenderedItem, SourceFile};
use crate::detect::SourceFormat;
use crate::grants::tools_of;
use crate::names::{segment, segments};
use crate::provenance::ImportedItem;
use crate::tree::{SourcePath, join};

/// How deep a single file may lie for an import of it to find its item.
const MAX_SINGLE_DEPTH: usize = 3;

/// Renders an item.
///
/// # Errors
/// When its files are not as its signature says, or a name would leave the client's folder.
pub fn render_item(client: ExportClient, source: &ExportItem) -> Result<RenderedItem, String> {
    let imported = ImportedItem::read(source.item.item_type, &source.text);
    let mut rendered = match (&imported, source.item.item_type) {
        (Some(imported), _) => render_imported(client, source, imported)?,
        (None, ItemType::Knowledge) => render_knowledge(client, source),
        (None, ItemType::Directive) => render_directive(client, source),
        (None, ItemType::Tool | ItemType::Config) => {
            RenderedItem::NoPlace("clients reach tools over MCP: rye mcp install CLIENT".to_owned())
        }
    };
    if let (Some(imported), RenderedItem::Files(files)) = (&imported, &mut rendered) {
        enter_sources(imported, files);
    }
    if let RenderedItem::Files(files) = &rendered
        && let Some(file) = files.iter().find(|file| SourcePath::new(&file.path).is_err())
    {
        return Err(format!("`{}` is not a path inside the project", one_line(&file.path)));
    }
    if let RenderedItem::Files(files) = &rendered
        && let Some(reason) = files.iter().find_map(refusal)
    {
        return Ok(RenderedItem::NoPlace(reason));
    }
    Ok(rendered)
}

fn one_file(source: &ExportItem, path: String, text: String) -> RenderedItem {
    let item = source.item.to_string();
    let bytes = text.into_bytes();
    RenderedItem::Files(vec![ExportFile { path, bytes, is_executable: false, item, imported: None }])
}

/// Enters which files of the project the item was imported from. What was fetched, or is a part of a plugin, lay elsewhere.
fn enter_sources(imported: &ImportedItem, files: &mut [ExportFile]) {
    let provenance = &imported.provenance;
    if provenance.origin.is_some() || provenance.plugin.is_some() {
        return;
    }
    let source = &provenance.source;
    // SKILL.md is the first, and the others are in the order of their names.
    let others = provenance.files.iter().map(|(name, file)| (join(folder_of(source), name), &file.sha256));
    let all = std::iter::once((source.clone(), &provenance.sha256)).chain(others);
    let import = files.first().and_then(|file| import_of(imported, file));
    for (file, (path, sha256)) in files.iter_mut().zip(all) {
        file.imported = Some(SourceFile { path, sha256: sha256.clone(), import: import.clone() });
    }
}

/// What to import for the item to follow its exported file: an import finds the item by its format and its name.
fn import_of(imported: &ImportedItem, file: &ExportFile) -> Option<String> {
    let provenance = &imported.provenance;
    let is_at_source = file.path == provenance.source;
    let depth = file.path.matches('/').count();
    match provenance.format {
        SourceFormat::Skill if is_at_source || segment(&provenance.name) == provenance.name => {
            Some(folder_of(&file.path).to_owned())
        }
        SourceFormat::Skill => None,
        // A single file has its name from the folders above it, of which an import looks at a few.
        SourceFormat::Instructions => (is_at_source && depth == 0).then(|| file.path.clone()),
        _ => (is_at_source && depth <= MAX_SINGLE_DEPTH).then(|| file.path.clone()),
    }
}

fn folder_of(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

/// Where a file goes: back to where it was imported from, if that is below this folder, else to `otherwise` in it.
fn place_of(imported: &ImportedItem, folder: &str, otherwise: &str) -> String {
    let provenance = &imported.provenance;
    let ending = |path: &str| path.rsplit_once('.').map(|(_, ending)| ending.to_owned());
    let is_back = provenance.origin.is_none()
        && provenance.plugin.is_none()
        && SourcePath::new(&provenance.source).is_ok_and(|path| path.below(folder).is_some())
        && ending(&provenance.source) == ending(otherwise);
    match is_back {
        true => provenance.source.clone(),
        false => join(folder, otherwise),
    }
}

fn no_place(client: ExportClient, what: &str) -> RenderedItem {
    RenderedItem::NoPlace(format!("{} has no place for {what}", client.as_str()))
}

fn render_imported(
    client: ExportClient,
    source: &ExportItem,
    imported: &ImportedItem,
) -> Result<RenderedItem, String> {
    let name = imported.provenance.name.as_str();
    Ok(match imported.provenance.format {
        SourceFormat::Skill => RenderedItem::Files(skill_files(client, source, imported)?),
        SourceFormat::Agent | SourceFormat::CodexAgent => render_agent(client, source, imported),
        SourceFormat::Command => render_command(client, source, imported),
        SourceFormat::CursorRule | SourceFormat::PathRule => render_rule(client, source, imported),
        SourceFormat::Instructions => match client.instructions() {
            Some(file) => {
                let folder = name.rsplit_once('/').map_or("", |(folder, _)| folder);
                let folder = folder.trim_end_matches(".github").trim_end_matches('/');
                one_file(source, join(folder, file), imported.source_text())
            }
            None => no_place(client, "instructions"),
        },
        SourceFormat::SkillFile
        | SourceFormat::SkillScript
        | SourceFormat::McpServers
        | SourceFormat::ClaudePlugin
        | SourceFormat::AgentPlugin
        | SourceFormat::Marketplace
        | SourceFormat::Hooks
        | SourceFormat::ApmManifest => RenderedItem::Nothing,
    })
}

/// SKILL.md and every other file of the folder, under the names they had.
fn skill_files(
    client: ExportClient,
    source: &ExportItem,
    imported: &ImportedItem,
) -> Result<Vec<ExportFile>, String> {
    let item = source.item.to_string();
    let name = segment(&imported.provenance.name);
    let page = place_of(imported, client.skills(), &format!("{name}/SKILL.md"));
    let folder = folder_of(&page).to_owned();
    let mut files = vec![ExportFile {
        path: page,
        bytes: imported.source_text().into_bytes(),
        is_executable: false,
        item: item.clone(),
        imported: None,
    }];
    for (relative, file) in &imported.provenance.files {
        SourcePath::new(relative).map_err(|error| format!("`{}`: {error}", one_line(relative)))?;
        let bytes = match (&file.item, &file.path) {
            (Some(id), _) => {
                let text =
                    source.pages.get(id).ok_or_else(|| format!("`{relative}` is missing: knowledge {id}"))?;
                let page = ImportedItem::read(ItemType::Knowledge, text)
                    .ok_or_else(|| format!("knowledge {id} was not imported"))?;
                page.source_text().into_bytes()
            }
            (None, Some(path)) => {
                let bytes =
                    source.assets.get(path).ok_or_else(|| format!("`{relative}` is missing: .ai/{path}"))?;
                if lillux_hash::Digest::of(bytes).to_hex() != file.sha256 {
                    return Err(format!("`.ai/{path}` changed since the skill was signed: import it again"));
                }
                bytes.clone()
            }
            (None, None) => return Err(format!("`{relative}` has no file")),
        };
        files.push(ExportFile {
            path: format!("{folder}/{relative}"),
            bytes,
            is_executable: file.executable,
            item: item.clone(),
            imported: None,
        });
    }
    Ok(files)
}

fn render_agent(client: ExportClient, source: &ExportItem, imported: &ImportedItem) -> RenderedItem {
    let provenance = &imported.provenance;
    let name = segment(&provenance.name);
    let fields = directive::parse(&source.text).fields;
    let text = |key: &str| fields.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let is_codex = provenance.format == SourceFormat::CodexAgent;
    let folder = match client {
        ExportClient::ClaudeCode => ".claude/agents",
        ExportClient::Cursor => ".cursor/agents",
        ExportClient::Gemini => ".gemini/agents",
        ExportClient::Codex if is_codex && imported.is_untouched => {
            let path = place_of(imported, ".codex/agents", &format!("{name}.toml"));
            return one_file(source, path, provenance.original.clone());
        }
        ExportClient::Codex => {
            let toml = codex_agent(&provenance.name, &text("description"), &imported.body, &fields);
            return one_file(source, place_of(imported, ".codex/agents", &format!("{name}.toml")), toml);
        }
        ExportClient::Agents | ExportClient::AgentPlugin => return no_place(client, "agents"),
    };
    let markdown = match is_codex {
        false => imported.source_text(),
        // Without `tools` an agent may use all of them there.
        true => format!(
            "---\nname: {}\ndescription: {}\ntools: {}\n---\n\n{}",
            quote(&name),
            quote(&one_line(&text("description"))),
            serde_json::to_string(&tools_of(&granted(&fields))).unwrap_or_default(),
            imported.body
        ),
    };
    one_file(source, place_of(imported, folder, &format!("{name}.md")), markdown)
}

/// The capabilities a directive grants.
fn granted(fields: &serde_json::Map<String, Value>) -> Vec<String> {
    let grants = fields.get("permissions").and_then(Value::as_array).into_iter().flatten();
    grants.filter_map(|grant| grant.get("content").and_then(Value::as_str).map(str::to_owned)).collect()
}

fn codex_agent(name: &str, description: &str, body: &str, fields: &serde_json::Map<String, Value>) -> String {
    let tools = tools_of(&granted(fields));
    let writes = tools.iter().any(|tool| ["Write", "Edit"].contains(tool));
    let mut table = toml::Table::new();
    table.insert("name".to_owned(), name.into());
    table.insert("description".to_owned(), one_line(description).into());
    table.insert("sandbox_mode".to_owned(), if writes { "workspace-write" } else { "read-only" }.into());
    table.insert("developer_instructions".to_owned(), body.trim_start_matches('\n').into());
    toml::to_string(&table).unwrap_or_default()
}

fn render_command(client: ExportClient, source: &ExportItem, imported: &ImportedItem) -> RenderedItem {
    let name = segments(&imported.provenance.name);
    let folder = match client {
        ExportClient::ClaudeCode => ".claude/commands",
        ExportClient::Cursor => ".cursor/commands",
        ExportClient::Codex | ExportClient::Gemini | ExportClient::Agents | ExportClient::AgentPlugin => "",
    };
    // It goes back as it came in.
    let place = place_of(imported, folder, &format!("{name}.md"));
    if !folder.is_empty() && place == imported.provenance.source {
        return one_file(source, place, imported.source_text());
    }
    let description = directive::parse(&source.text).text("description").unwrap_or_default().to_owned();
    command_file(client, source, &name, &description, &imported.source_text(), &imported.body)
}

/// A command: `whole` where its keys are read, `body` where it is plain text.
fn command_file(
    client: ExportClient,
    source: &ExportItem,
    name: &str,
    description: &str,
    whole: &str,
    body: &str,
) -> RenderedItem {
    match client {
        ExportClient::ClaudeCode => one_file(source, format!(".claude/commands/{name}.md"), whole.to_owned()),
        ExportClient::Cursor => {
            one_file(source, format!(".cursor/commands/{name}.md"), body.trim_start_matches('\n').to_owned())
        }
        ExportClient::Gemini => {
            let mut table = toml::Table::new();
            table.insert("description".to_owned(), one_line(description).into());
            table.insert(
                "prompt".to_owned(),
                body.trim_start_matches('\n').replace("$ARGUMENTS", "{{args}}").into(),
            );
            one_file(
                source,
                format!(".gemini/commands/{name}.toml"),
                toml::to_string(&table).unwrap_or_default(),
            )
        }
        ExportClient::Codex | ExportClient::Agents | ExportClient::AgentPlugin => {
            no_place(client, "commands")
        }
    }
}

fn render_rule(client: ExportClient, source: &ExportItem, imported: &ImportedItem) -> RenderedItem {
    let provenance = &imported.provenance;
    let name = segments(&provenance.name);
    let parsed = knowledge::parse(&source.text);
    let triggers = parsed.fields.get("triggers").cloned().unwrap_or_default();
    let globs: Vec<&str> =
        triggers["globs"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let body = imported.body.trim_start_matches('\n');
    match client {
        ExportClient::Cursor if provenance.format == SourceFormat::CursorRule => one_file(
            source,
            place_of(imported, ".cursor/rules", &format!("{name}.mdc")),
            imported.source_text(),
        ),
        ExportClient::Cursor => {
            let is_always = triggers["always"] == true;
            let description = one_line(parsed.text("description").unwrap_or_default());
            let head = format!(
                "---\ndescription: {description}\nglobs: {}\nalwaysApply: {is_always}\n---\n\n",
                globs.join(",")
            );
            one_file(source, format!(".cursor/rules/{name}.mdc"), format!("{head}{body}"))
        }
        ExportClient::ClaudeCode if provenance.source.contains(".claude/rules/") => one_file(
            source,
            place_of(imported, ".claude/rules", &format!("{name}.md")),
            imported.source_text(),
        ),
        ExportClient::ClaudeCode => {
            let head = match globs.is_empty() {
                true => String::new(),
                false => {
                    let lines: String = globs.iter().map(|glob| format!("  - {}\n", quote(glob))).collect();
                    format!("---\npaths:\n{lines}---\n\n")
                }
            };
            one_file(source, format!(".claude/rules/{name}.md"), format!("{head}{body}"))
        }
        ExportClient::Codex | ExportClient::Gemini | ExportClient::Agents | ExportClient::AgentPlugin => {
            no_place(client, "rules")
        }
    }
}

/// Knowledge of one's own is a skill.
fn render_knowledge(client: ExportClient, source: &ExportItem) -> RenderedItem {
    let parsed = knowledge::parse(&source.text);
    let text = |key: &str| parsed.text(key).unwrap_or_default().trim().to_owned();
    let description = if text("description").is_empty() { text("title") } else { text("description") };
    own_skill(client, source, &description, &text("body"))
}

fn own_skill(client: ExportClient, source: &ExportItem, description: &str, body: &str) -> RenderedItem {
    let name = skill_name(source.item.id.name());
    let head = format!("---\nname: {name}\ndescription: {}\n---\n\n", quote(&one_line(description)));
    one_file(source, format!("{}/{name}/SKILL.md", client.skills()), format!("{head}{body}\n"))
}

/// A directive of one's own is a command where there are commands, else a skill.
fn render_directive(client: ExportClient, source: &ExportItem) -> RenderedItem {
    let parsed = directive::parse(&source.text);
    let description = one_line(parsed.text("description").unwrap_or_default());
    let mut body = directive::prompt(&parsed.fields).trim().to_owned();
    let inputs: Vec<&str> = parsed
        .fields
        .get("inputs")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(|input| input["name"].as_str())
        .collect();
    if let [input] = inputs.as_slice() {
        for form in [format!("{{input:{input}}}"), format!("{{input:{input}?}}")] {
            body = body.replace(&form, "$ARGUMENTS");
        }
    }
    if matches!(client, ExportClient::Codex | ExportClient::Agents | ExportClient::AgentPlugin) {
        return own_skill(client, source, &description, &body);
    }
    let whole = format!("---\ndescription: {}\n---\n\n{body}\n", quote(&description));
    command_file(client, source, &segment(source.item.id.name()), &description, &whole, &format!("{body}\n"))
}

/// An item's name as a skill's: a-z, 0-9 and single hyphens.
fn skill_name(name: &str) -> String {
    let name = crate::names::snake(name).replace('_', "-");
    name.chars().take(64).collect::<String>().trim_end_matches('-').to_owned()
}
