//! Agents and commands of Claude Code and of clients that read the same files: directives.

use rye_item::ItemType;

use super::skill::{by_line_note, description, dynamic_commands};
use super::version;
use crate::detect::SourceFormat;
use crate::findings::findings;
use crate::front_matter::{self, FrontMatter, SplitText};
use crate::grants;
use crate::names::{segment, snake};
use crate::plan::{ImportNote, NoteKind, PlannedItem, UnitContext, UnitPlan};
use crate::provenance::{Provenance, replace_inputs};
use crate::render::{self, DirectivePage, item_ref};

const AGENT_KEYS: [&str; 22] = [
    "name",
    "description",
    "tools",
    "disallowedTools",
    "model",
    "permissionMode",
    "maxTurns",
    "skills",
    "mcpServers",
    "hooks",
    "memory",
    "background",
    "effort",
    "isolation",
    "color",
    "initialPrompt",
    "version",
    "target",
    "mcp-servers",
    "argument-hint",
    "handoffs",
    "infer",
];
const COMMAND_KEYS: [&str; 12] = [
    "name",
    "description",
    "argument-hint",
    "allowed-tools",
    "model",
    "effort",
    "disable-model-invocation",
    "hooks",
    "mode",
    "agent",
    "tools",
    "version",
];
/// Keys that become part of the directive.
const USED_KEYS: [&str; 12] = [
    "name",
    "description",
    "tools",
    "disallowedTools",
    "model",
    "maxTurns",
    "effort",
    "version",
    "allowed-tools",
    "argument-hint",
    "hooks",
    "color",
];
/// Most turns that are taken over.
const MAX_TURNS: u64 = 10_000;

/// Reads an agent.
pub(super) fn read_agent(context: &UnitContext<'_>) -> Result<UnitPlan, String> {
    let (parts, front) = open(context, &AGENT_KEYS)?;
    let stem = stem(context, &["agents"], &[".agent.md", ".md"]);
    let name = front.text("name").unwrap_or_else(|| stem.rsplit('/').next().unwrap_or(&stem).to_owned());
    let declared = front.list("tools");
    let denied = front.list("disallowedTools").unwrap_or_default();
    let mut source = Source::new(context, &front, parts)?;
    source.provenance(SourceFormat::Agent, &name);
    source.provenance.outro = "\n\n{input:task?}\n".to_owned();
    source.inputs.push(("task".to_owned(), "What the agent is to do".to_owned()));
    let granted = grants::translate(declared.as_deref(), &denied);
    // Folders of agents are categories.
    let folder = stem.rsplit_once('/').map(|(folder, _)| folder.to_owned());
    source.finish(&context.category("agents"), folder.as_deref(), &name, granted)
}

/// Reads a command.
pub(super) fn read_command(context: &UnitContext<'_>) -> Result<UnitPlan, String> {
    let (parts, front) = open(context, &COMMAND_KEYS)?;
    let stem = stem(context, &["commands", "prompts"], &[".prompt.md", ".md"]);
    let (folder, name) = match stem.rsplit_once('/') {
        Some((folder, name)) => (Some(folder.to_owned()), name.to_owned()),
        None => (None, stem.clone()),
    };
    let declared = front.list("allowed-tools").or_else(|| front.list("tools"));
    let mut source = Source::new(context, &front, parts)?;
    source.provenance(SourceFormat::Command, &stem);
    let (body, inputs) = arguments(&front, parts.body, &mut source.provenance, &mut source.notes);
    (source.body, source.inputs) = (body, inputs);
    source.notes.extend(dynamic_commands(parts.body));
    let granted = grants::translate(declared.as_deref(), &[]);
    source.finish(&context.category("commands"), folder.as_deref(), &name, granted)
}

fn open<'a>(context: &UnitContext<'a>, keys: &[&str]) -> Result<(SplitText<'a>, FrontMatter), String> {
    let bytes = context.text()?.len();
    let text = context.tree.bytes(&context.unit.path).and_then(|found| std::str::from_utf8(found).ok());
    let text = text.filter(|text| text.len() == bytes).ok_or("it could not be read")?;
    let parts = front_matter::split(text).map_err(|error| error.to_string())?;
    let front = front_matter::read(parts.keys, keys).map_err(|error| error.to_string())?;
    Ok((parts, front))
}

/// The path below a folder of this kind, without the ending.
fn stem(context: &UnitContext<'_>, kinds: &[&str], endings: &[&str]) -> String {
    let full = context.listing.full_path(context.unit.path.as_str());
    let parts: Vec<&str> = full.split('/').collect();
    let after = parts.iter().rposition(|part| kinds.contains(part)).map_or(parts.len() - 1, |at| at + 1);
    let path = parts[after.min(parts.len() - 1)..].join("/");
    endings.iter().find_map(|ending| path.strip_suffix(ending)).unwrap_or(&path).to_owned()
}

/// A directive in the making.
struct Source<'a> {
    context: &'a UnitContext<'a>,
    front: &'a FrontMatter,
    description: String,
    body: String,
    head: String,
    inputs: Vec<(String, String)>,
    provenance: Provenance,
    notes: Vec<ImportNote>,
}

impl<'a> Source<'a> {
    fn new(
        context: &'a UnitContext<'a>,
        front: &'a FrontMatter,
        parts: SplitText<'_>,
    ) -> Result<Self, String> {
        let mut notes = by_line_note(front);
        let description = description(front, parts.body, &mut notes)?;
        for key in front.fields.keys().filter(|key| !USED_KEYS.contains(&key.as_str())) {
            notes.push(ImportNote::new(
                NoteKind::Lost,
                format!("`{key}` has no meaning here; exports keep it"),
            ));
        }
        if let Some(hooks) = front.fields.get("hooks") {
            notes.extend(super::hooks::commands(hooks));
        }
        let text = context.text()?;
        notes.extend(findings(text).into_iter().map(|(kind, text)| ImportNote::new(kind, text)));
        let provenance = context.provenance(context.unit.format, "", &context.unit.path, text.as_bytes());
        let (body, head) = (parts.body.to_owned(), parts.head.to_owned());
        Ok(Self { context, front, description, body, head, inputs: Vec::new(), provenance, notes })
    }

    fn provenance(&mut self, format: SourceFormat, name: &str) {
        self.provenance.format = format;
        self.provenance.name = name.to_owned();
        self.provenance.head = self.head.clone();
    }

    fn finish(
        mut self,
        category: &str,
        folder: Option<&str>,
        name: &str,
        granted: grants::Grants,
    ) -> Result<UnitPlan, String> {
        let folder: String = folder
            .iter()
            .flat_map(|folder| folder.split('/'))
            .map(|part| format!("{}/", segment(part)))
            .collect();
        let item = item_ref(ItemType::Directive, &format!("{category}/{folder}{}", snake(name)))?;
        self.notes.extend(granted.notes);
        let (tier, effort) = model(self.front, &mut self.notes);
        let turns = turns(self.front, &mut self.notes);
        let page = DirectivePage {
            id: &item.id,
            description: &self.description,
            version: &version(self.front.text("version").as_deref()),
            author: &self.context.options.author,
            tier,
            effort: effort.as_deref(),
            turns,
            tools: &granted.tools,
            inputs: self.inputs.clone(),
            body: &self.body,
        };
        let text = render::directive(&page, &mut self.provenance);
        let planned =
            PlannedItem { item, extension: ".md", text, provenance: self.provenance, notes: self.notes };
        Ok(UnitPlan { items: vec![planned], ..UnitPlan::default() })
    }
}

/// How many turns the agent may take, where that is a number a directive can have.
fn turns(front: &FrontMatter, notes: &mut Vec<ImportNote>) -> Option<u64> {
    let stated = front.text("maxTurns")?;
    let turns = stated.parse().ok().filter(|turns| (1..=MAX_TURNS).contains(turns));
    if turns.is_none() {
        let stated = rye_item::text::one_line(&stated);
        let message =
            format!("maxTurns `{stated}` is not a number from 1 to {MAX_TURNS}: the default limit holds");
        notes.push(ImportNote::new(NoteKind::Lost, message));
    }
    turns
}

/// The tier and the effort that a model's name stands for.
pub(super) fn model(
    front: &FrontMatter,
    notes: &mut Vec<ImportNote>,
) -> (Option<&'static str>, Option<String>) {
    let tier = match front.text("model").map(|model| model.to_ascii_lowercase()) {
        None => None,
        Some(model) if model == "inherit" => None,
        Some(model) if model.contains("haiku") || model.contains("mini") || model.contains("flash") => {
            Some("fast")
        }
        Some(model) if model.contains("opus") => Some("high"),
        Some(model) if model.contains("sonnet") => Some("general"),
        Some(model) => {
            notes.push(ImportNote::new(
                NoteKind::Lost,
                format!("model `{model}`: the tier `general` is used"),
            ));
            Some("general")
        }
    };
    let effort = front.text("effort");
    let is_known = |effort: &String| ["minimal", "low", "medium", "high"].contains(&effort.as_str());
    if let Some(effort) = effort.as_ref().filter(|effort| !is_known(effort)) {
        notes.push(ImportNote::new(NoteKind::Lost, format!("effort `{effort}` is not one of a directive")));
    }
    (tier, effort.filter(is_known))
}

/// The body with the words for arguments as inputs, and the inputs.
pub(super) fn arguments(
    front: &FrontMatter,
    body: &str,
    provenance: &mut Provenance,
    notes: &mut Vec<ImportNote>,
) -> (String, Vec<(String, String)>) {
    let hint = front.text("argument-hint");
    let mut words = vec![("$ARGUMENTS", "arguments")];
    // Without a declared argument, `$1` is as likely a price.
    if hint.is_some() {
        words.extend([
            ("$1", "argument_1"),
            ("$2", "argument_2"),
            ("$3", "argument_3"),
            ("$4", "argument_4"),
        ]);
    }
    let Some((text, used)) = replace_inputs(body, &words) else {
        notes.push(ImportNote::new(
            NoteKind::Lost,
            "its arguments are not filled in: the text has inputs of the same form",
        ));
        return (body.to_owned(), Vec::new());
    };
    let purpose = hint.unwrap_or_else(|| "What follows the command".to_owned());
    let mut inputs: Vec<(String, String)> =
        used.values().map(|input| (input.clone(), purpose.clone())).collect();
    provenance.inputs = used;
    if inputs.is_empty() && front.fields.contains_key("argument-hint") {
        provenance.outro = "\n\n{input:arguments?}\n".to_owned();
        inputs.push(("arguments".to_owned(), purpose));
    }
    (text, inputs)
}
