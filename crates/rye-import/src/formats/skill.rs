//! Skills: a folder with `SKILL.md`. A page of knowledge, or a directive if it forks or takes arguments; texts of its
//! folder are knowledge too, everything else is kept as it is and named with its digest.

use std::collections::{BTreeMap, BTreeSet};

use lillux_hash::Digest;
use rye_item::repository::is_repository_path;
use rye_item::{ItemRef, ItemType};

use super::{first_words, heading, script, version};
use crate::detect::SourceFormat;
use crate::findings::{describe_hidden, findings};
use crate::front_matter::{self, FrontMatter};
use crate::names::{is_skill_name, segment, segments, snake};
use crate::plan::{ImportNote, NoteKind, PlannedAsset, PlannedItem, UnitContext, UnitPlan};
use crate::provenance::ImportedFile;
use crate::render::{self, DirectivePage, KnowledgePage, item_ref};
use crate::tree::{MAX_UNIT_FILES, SourceEntry, SourcePath, join};
use crate::{formats::agent, grants};

/// The longest description that the format allows.
const MAX_SKILL_DESCRIPTION: usize = 1_024;
/// The longest one that is taken all the same.
const MAX_DESCRIPTION_BYTES: usize = 8 << 10;

const KEYS: [&str; 18] = [
    "name",
    "description",
    "license",
    "compatibility",
    "metadata",
    "allowed-tools",
    "argument-hint",
    "arguments",
    "disable-model-invocation",
    "user-invocable",
    "model",
    "effort",
    "context",
    "agent",
    "hooks",
    "version",
    "when_to_use",
    "paths",
];
/// Keys that have no meaning here; an export gives them back.
const CLIENT_KEYS: [&str; 6] =
    ["disable-model-invocation", "user-invocable", "agent", "when_to_use", "paths", "shell"];

pub(super) fn read(context: &UnitContext<'_>) -> Result<UnitPlan, String> {
    let unit = context.unit;
    if unit.files.len() > MAX_UNIT_FILES {
        return Err(format!("its folder has {} files, more than {MAX_UNIT_FILES}", unit.files.len()));
    }
    let text = context.text()?;
    let parts = front_matter::split(text).map_err(|error| error.to_string())?;
    let front = front_matter::read(parts.keys, &KEYS).map_err(|error| error.to_string())?;
    let mut notes = by_line_note(&front);
    let folder = context.listing.full_path(&unit.root);
    let folder = folder.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or("skill");
    let name = front.text("name").unwrap_or_else(|| folder.to_owned());
    if !is_skill_name(&name) {
        notes.push(ImportNote::new(
            NoteKind::Warning,
            format!("`{name}` is not a skill's name: a-z, 0-9 and hyphens, at most 64"),
        ));
    } else if name != folder {
        notes.push(ImportNote::new(
            NoteKind::Warning,
            format!("its name `{name}` differs from its folder `{folder}`"),
        ));
    }
    let description = description(&front, parts.body, &mut notes)?;
    notes.extend(client_notes(&front, parts.body));
    notes.extend(findings(text).into_iter().map(|(kind, text)| ImportNote::new(kind, text)));
    let mut provenance = context.provenance(SourceFormat::Skill, &name, &unit.path, text.as_bytes());
    provenance.head = parts.head.to_owned();
    let category = context.category("skills");
    let home = format!("{category}/{}", segment(&name));
    let takes_arguments = front.fields.contains_key("argument-hint") || parts.body.contains("$ARGUMENTS");
    let forks = front.text("context").is_some_and(|context| context == "fork");
    let is_directive = forks || takes_arguments;
    let item = match is_directive {
        true => item_ref(ItemType::Directive, &format!("{category}/{}", snake(&name)))?,
        false => item_ref(ItemType::Knowledge, &home)?,
    };
    let mut plan = UnitPlan::default();
    let files = read_files(context, &item, &home, &mut plan, &mut notes)?;
    if !files.is_empty() {
        provenance.intro = format!("> Files of this skill: `.ai/knowledge/{home}/`\n\n");
    }
    provenance.files = files;
    let skill_version = front
        .fields
        .get("metadata")
        .and_then(|metadata| metadata.get("version"))
        .and_then(|text| text.as_str());
    let skill_version = version(skill_version.or(front.text("version").as_deref()));
    let rendered = if is_directive {
        let declared = front.list("allowed-tools");
        let granted = grants::translate(declared.as_deref(), &[]);
        notes.extend(granted.notes);
        let (tier, effort) = agent::model(&front, &mut notes);
        let (body, inputs) = agent::arguments(&front, parts.body, &mut provenance, &mut notes);
        let page = DirectivePage {
            id: &item.id,
            description: &description,
            version: &skill_version,
            author: &context.options.author,
            tier,
            effort: effort.as_deref(),
            turns: None,
            tools: &granted.tools,
            inputs,
            body: &body,
        };
        render::directive(&page, &mut provenance)
    } else {
        if let Some(tools) = front.list("allowed-tools").filter(|tools| !tools.is_empty()) {
            let tools = tools.join(", ");
            notes.push(ImportNote::new(
                NoteKind::Denied,
                format!("asks for {tools}: knowledge grants nothing; what runs it decides"),
            ));
        }
        let page = KnowledgePage {
            id: &item.id,
            title: heading(parts.body).unwrap_or(&name),
            description: &description,
            entry_type: "skill",
            version: &skill_version,
            extra: Vec::new(),
            body: parts.body,
        };
        render::knowledge(&page, &mut provenance)
    };
    let extension = ".md";
    plan.items.insert(0, PlannedItem { item, extension, text: rendered, provenance, notes });
    Ok(plan)
}

/// Says that keys were read by line, if they were.
pub(super) fn by_line_note(front: &FrontMatter) -> Vec<ImportNote> {
    let note = front.by_line.as_ref();
    note.map(|why| {
        ImportNote::new(
            NoteKind::Warning,
            format!("its front matter is not YAML and was read by line ({why})"),
        )
    })
    .into_iter()
    .collect()
}

/// The description of a front matter, else the first words of the body.
pub(super) fn description(
    front: &FrontMatter,
    body: &str,
    notes: &mut Vec<ImportNote>,
) -> Result<String, String> {
    let Some(text) = front.text("description") else {
        notes.push(ImportNote::new(NoteKind::Warning, "it has no description: its first words are used"));
        let words = first_words(body);
        return Ok(if words.is_empty() { "Imported without a description".to_owned() } else { words });
    };
    if text.len() > MAX_DESCRIPTION_BYTES {
        return Err(format!("its description has {} bytes, more than {MAX_DESCRIPTION_BYTES}", text.len()));
    }
    if text.chars().count() > MAX_SKILL_DESCRIPTION {
        notes.push(ImportNote::new(
            NoteKind::Warning,
            "its description has more than 1024 characters: cut here, whole in exports",
        ));
    }
    Ok(text)
}

fn client_notes(front: &FrontMatter, body: &str) -> Vec<ImportNote> {
    let mut notes = Vec::new();
    for key in CLIENT_KEYS.iter().filter(|key| front.fields.contains_key(**key)) {
        notes.push(ImportNote::new(NoteKind::Lost, format!("`{key}` has no meaning here; exports keep it")));
    }
    if let Some(hooks) = front.fields.get("hooks") {
        notes.extend(super::hooks::commands(hooks));
    }
    notes.extend(dynamic_commands(body));
    notes
}

/// Commands that a client runs while it loads the text: !`git status`.
pub(super) fn dynamic_commands(body: &str) -> Vec<ImportNote> {
    let mut notes = Vec::new();
    for (start, _) in body.match_indices("!`").take(20) {
        let rest = &body[start + 2..];
        let is_command =
            body[..start].chars().next_back().is_none_or(|before| before.is_whitespace() || before == ':');
        if let Some(end) = rest.find(['`', '\n']).filter(|_| is_command)
            && rest[end..].starts_with('`')
        {
            let command = &rest[..end];
            notes.push(ImportNote::new(
                NoteKind::Hook,
                format!("`{command}` is run there while the text is loaded, and never here"),
            ));
        }
    }
    notes
}

/// Plans the other files of the folder; what each became is named in the skill.
fn read_files(
    context: &UnitContext<'_>,
    owner: &ItemRef,
    home: &str,
    plan: &mut UnitPlan,
    notes: &mut Vec<ImportNote>,
) -> Result<BTreeMap<String, ImportedFile>, String> {
    let mut files = BTreeMap::new();
    let mut taken = BTreeSet::new();
    let skipped = context.listing.skipped.iter();
    for folder in skipped.filter(|folder| {
        SourcePath::new(folder).is_ok_and(|folder| folder.below(&context.unit.root).is_some())
    }) {
        notes.push(ImportNote::new(NoteKind::Lost, format!("`{folder}` is not imported")));
    }
    for path in &context.unit.files {
        let relative = path.below(&context.unit.root).unwrap_or(path.as_str()).to_owned();
        if is_repository_path(&relative) {
            return Err(format!(
                "`{relative}` could make a repository, and git and others run commands that a repository names"
            ));
        }
        let is_executable = match context.listing.entries.get(path) {
            Some(SourceEntry::File { is_executable, .. }) => *is_executable,
            Some(SourceEntry::Link) => {
                return Err(format!("`{relative}` is a link: put the file itself there"));
            }
            Some(SourceEntry::Other) | None => return Err(format!("`{relative}` is not a regular file")),
        };
        let bytes = context
            .tree
            .bytes(path)
            .ok_or_else(|| format!("`{relative}` is too large or could not be read"))?;
        let text = std::str::from_utf8(bytes).ok().filter(|text| !text.contains('\0'));
        let is_page = [".md", ".yaml", ".yml"].iter().any(|ending| relative.ends_with(ending));
        let is_program = text.is_some_and(|text| script::is_script(&relative, text, is_executable));
        // Bytes that only happen to be text are not read as text.
        let is_control = |character: char| character.is_control() && !"\n\r\t\u{c}\u{1b}".contains(character);
        let is_read = is_page || is_program || !text.is_some_and(|text| text.contains(is_control));
        let looked_at = text.filter(|_| is_read && !context.options.allow_hidden);
        if let Some(found) = looked_at.and_then(describe_hidden) {
            return Err(format!("`{relative}` has a {found}"));
        }
        let mut file = ImportedFile {
            sha256: Digest::of(bytes).to_hex(),
            item: None,
            path: None,
            executable: is_executable,
        };
        match text {
            Some(text) if is_page => {
                let item = page(context, home, &relative, path, text, plan)?;
                file.item = Some(item.id.to_string());
                taken_once(&mut taken, item.id.as_str(), &relative)?;
            }
            None if is_page => return Err(format!("`{relative}` is not UTF-8")),
            _ => {
                let kept = format!("knowledge/{home}/{}", segments(&relative));
                taken_once(&mut taken, &kept, &relative)?;
                if let Some(text) = text.filter(|_| is_program) {
                    let found =
                        findings(text).into_iter().map(|(_, text)| format!("; {text}")).collect::<String>();
                    notes.push(ImportNote::new(
                        NoteKind::Script,
                        format!("`{relative}` is a program, kept and not run{found}"),
                    ));
                    if context.options.with_scripts {
                        script::plan_tool(context, home, &relative, path, text, plan, notes)?;
                    }
                }
                let source = join(&context.listing.label, path.as_str());
                plan.assets.push(PlannedAsset {
                    owner: owner.clone(),
                    path: kept.clone(),
                    source,
                    bytes: bytes.to_vec(),
                    is_executable,
                });
                file.path = Some(kept);
            }
        }
        files.insert(relative, file);
    }
    Ok(files)
}

fn taken_once(taken: &mut BTreeSet<String>, name: &str, relative: &str) -> Result<(), String> {
    match taken.insert(name.to_ascii_lowercase()) {
        true => Ok(()),
        false => Err(format!("`{relative}` would have the name of another file of the folder")),
    }
}

/// A text of the folder as a page of knowledge.
fn page(
    context: &UnitContext<'_>,
    home: &str,
    relative: &str,
    path: &SourcePath,
    text: &str,
    plan: &mut UnitPlan,
) -> Result<ItemRef, String> {
    let stem = relative.strip_suffix(".md").unwrap_or(relative);
    let item = item_ref(ItemType::Knowledge, &format!("{home}/{}", segments(stem)))?;
    let mut provenance = context.provenance(SourceFormat::SkillFile, relative, path, text.as_bytes());
    let page = KnowledgePage {
        id: &item.id,
        title: heading(text).unwrap_or(relative),
        description: &first_words(text),
        entry_type: "reference",
        version: render::DEFAULT_VERSION,
        extra: Vec::new(),
        body: text,
    };
    let rendered = render::knowledge(&page, &mut provenance);
    let notes = findings(text).into_iter().map(|(kind, text)| ImportNote::new(kind, text)).collect();
    plan.items.push(PlannedItem { item: item.clone(), extension: ".md", text: rendered, provenance, notes });
    Ok(item)
}
