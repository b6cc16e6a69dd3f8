//! `rye import`: shows what would become of what other clients keep, then writes and signs it after a yes.

mod apply;
mod gather;
mod source;

use rye_engine::verbs::bundles::{self, CreateRequest};
use rye_engine::{Code, Error};
use rye_import::{
    ImportNote, ImportOptions, ImportPlan, ItemChange, RefusedSource, SourceFormat, SourceOrigin,
};
use rye_item::BundleId;
use rye_item::space::SpaceTier;
use rye_item::text::{counted, one_line, shell_word};
use serde_json::{Value, json};

use self::apply::ImportSteps;
use self::gather::{BundleEntry, GatheredPlan};
use super::given_command::given_command_with;
use super::{CommandContext, CommandError, CommandResult, confirm, declined, export, project_bundles};
use crate::arguments::ImportArguments;
use crate::output::{DIM, ERROR, NAME, Output, SUCCESS, WARNING, display_path, paint};

/// The version of a bundle whose source has none.
const FIRST_VERSION: &str = "0.1.0";

/// `rye import`
pub fn import(context: &CommandContext, arguments: &ImportArguments) -> CommandResult {
    let bundle = bundle_id(arguments)?;
    let options = ImportOptions {
        prefix: bundle.as_ref().map(ToString::to_string),
        with_scripts: arguments.scripts,
        allow_hidden: arguments.allow_hidden,
        author: context.settings.owner.clone(),
    };
    let GatheredPlan { mut plan, fetched, bundles } = gather::gather(context, arguments, &options)?;
    let steps =
        ImportSteps::decide(&context.engine, arguments.to.tier(), &mut plan, arguments.conflict.theirs)?;
    let output = &context.output;
    if !output.is_json {
        for origin in &fetched {
            output.plan(
                arguments.dry_run,
                format_args!("fetched {} at {}", one_line(&origin.address), one_line(&origin.revision)),
            );
        }
        show(output, &plan, &steps, arguments.dry_run);
        for bundle in &bundles {
            output.plan(
                arguments.dry_run,
                format_args!(
                    "{} {}: an entry of .ai/bundles.toml, from {} at {}",
                    paint(SUCCESS, "bundle   "),
                    paint(NAME, &bundle.id),
                    one_line(&bundle.address),
                    one_line(bundle.fields.rev.as_deref().unwrap_or_default())
                ),
            );
        }
    }
    if steps.items.is_empty() && bundles.is_empty() {
        let data = to_value(&plan, &steps, &fetched, false, None);
        return Err(nothing_error(&plan, data));
    }
    if arguments.dry_run {
        return report(
            context,
            &plan,
            &steps,
            &fetched,
            Outcome { is_written: false, bundle: None, added: &[] },
        );
    }
    if steps.has_changes() || !bundles.is_empty() {
        if !arguments.yes && !has_consent(context, &steps, bundles.len())? {
            if context.settings.is_interactive && !context.output.is_json {
                return Err(declined(&context.output, Code::ConsentNeeded));
            }
            let error = Error::new(Code::ConsentNeeded, "nothing was changed: importing needs a yes");
            let error = error.hint(format!("read the plan, then: {}", given_command_with(&["--yes"])));
            let data = to_value(&plan, &steps, &fetched, false, None);
            return Err(CommandError::Engine(error, Some(Box::new(data))));
        }
        steps.write(&context.settings.roots.cache.join("import-backups"))?;
    }
    // The items are there: what is missing is a record that only saves a question later.
    if let Err(error) = record_sources(context, arguments, &steps) {
        context
            .output
            .warn(format!("the next export will ask before it replaces the sources: {}", error.message));
    }
    let added = add_bundles(context, arguments, &mut plan, bundles);
    let made = match &bundle {
        Some(id) => Some(create_bundle(context, id, &plan)?),
        None => None,
    };
    report(
        context,
        &plan,
        &steps,
        &fetched,
        Outcome { is_written: true, bundle: made.as_deref(), added: &added },
    )
}

/// Enters the files of the project that items came from, so that exports may replace them.
fn record_sources(
    context: &CommandContext,
    arguments: &ImportArguments,
    steps: &ImportSteps,
) -> Result<(), Error> {
    let engine = &context.engine;
    match (arguments.to.tier(), &engine.workspace.roots.project) {
        (SpaceTier::Project, Some(project)) => export::record_sources(engine, project, steps.sources()),
        (SpaceTier::Project | SpaceTier::User | SpaceTier::System, _) => Ok(()),
    }
}

/// The commands that make items of the tools of the servers that were imported.
fn next_commands(steps: &ImportSteps) -> Vec<String> {
    let written = steps.items.iter().filter(|step| step.change.is_written());
    let servers = written.filter(|step| step.planned.provenance.format == SourceFormat::McpServers);
    servers
        .map(|step| format!("rye execute rye/mcp/manager action=refresh server={}", step.planned.item.id))
        .collect()
}

/// Makes packages that are bundles entries of the project's manifest. One that cannot be added is refused by name.
fn add_bundles(
    context: &CommandContext,
    arguments: &ImportArguments,
    plan: &mut ImportPlan,
    bundles: Vec<BundleEntry>,
) -> Vec<String> {
    let mut added = Vec::new();
    for bundle in bundles {
        let command = project_bundles::add_command(&bundle.address, &bundle.fields);
        let done = match arguments.to.tier() {
            SpaceTier::Project => {
                project_bundles::add_commit(context, &bundle.address, &bundle.fields, arguments.yes)
            }
            SpaceTier::User | SpaceTier::System => {
                Err(Error::new(Code::InvalidArgument, "a manifest is a project's").into())
            }
        };
        let reason = match done {
            Ok(_) => {
                added.push(bundle.id.to_string());
                continue;
            }
            Err(CommandError::Engine(error, _)) => {
                let signer = error.hints.iter().find(|hint| hint.contains("rye add "));
                match signer {
                    Some(hint) => format!("{}; {hint}", error.message),
                    None => format!("{}; try it on its own: {command}", error.message),
                }
            }
            Err(CommandError::Output(error)) => error.to_string(),
            Err(CommandError::Exit(code)) => format!("it ended with {code}"),
        };
        plan.refused.push(RefusedSource { source: format!("{} ({})", bundle.address, bundle.id), reason });
    }
    added
}

fn bundle_id(arguments: &ImportArguments) -> Result<Option<BundleId>, Error> {
    match arguments.bundle.as_slice() {
        [] => Ok(None),
        [word, id] if word == "bundle" => Ok(Some(BundleId::new(id.as_str())?)),
        _ => Err(Error::new(Code::InvalidArgument, "what it is imported as must be a bundle")
            .hint("--as bundle ID")),
    }
}

fn has_consent(context: &CommandContext, steps: &ImportSteps, bundles: usize) -> std::io::Result<bool> {
    if !context.settings.is_interactive || context.output.is_json {
        return Ok(false);
    }
    let count = steps.items.iter().filter(|step| step.change.is_written()).count();
    let bundles = match bundles {
        0 => String::new(),
        count => format!(", and add {} to .ai/bundles.toml", counted(count, "bundle")),
    };
    context
        .output
        .ask(format_args!("write and sign {} with your key{bundles}? [y/N]", counted(count, "item")));
    confirm()
}

/// The failure of an import that has nothing to import.
fn nothing_error(plan: &ImportPlan, data: Value) -> CommandError {
    let error = match plan.refused.first() {
        Some(first) => {
            let what = counted(plan.refused.len(), "source");
            let message =
                format!("nothing was imported: {what} refused, first `{}`: {}", first.source, first.reason);
            Error::new(Code::Invalid, message).hint("correct the source, or import a part of it")
        }
        None if !plan.remotes.is_empty() => {
            let count = counted(plan.remotes.len(), "source");
            Error::new(
                Code::NotFound,
                format!("nothing to import was found here: {count} in other repositories"),
            )
            .hint("fetch them: --fetch NAME, or --fetch all")
        }
        None => Error::new(Code::NotFound, "nothing to import was found")
            .hint("name a folder with SKILL.md, .claude, .cursor, .codex, .mcp.json, AGENTS.md or a plugin"),
    };
    CommandError::Engine(error, Some(Box::new(data)))
}

fn create_bundle(context: &CommandContext, id: &BundleId, plan: &ImportPlan) -> Result<String, Error> {
    let version = plan.plugins.values().next().map_or(FIRST_VERSION, String::as_str);
    let out = context.settings.working_dir.join(format!("{id}-{version}"));
    let request = CreateRequest {
        id: id.to_string(),
        version: version.to_owned(),
        description: String::new(),
        entrypoint: None,
        categories: vec![id.to_string()],
        out,
        sign: false,
        with_lockfiles: false,
    };
    let created = bundles::create(&context.engine, &request)?;
    Ok(display_path(&created.path))
}

fn show(output: &Output, plan: &ImportPlan, steps: &ImportSteps, is_result: bool) {
    for step in &steps.items {
        let style = match step.change {
            ItemChange::Create | ItemChange::Update | ItemChange::Replace => SUCCESS,
            ItemChange::Unchanged => DIM,
            ItemChange::Keep | ItemChange::Occupied => WARNING,
        };
        output.plan(
            is_result,
            format_args!(
                "{} {} {}",
                paint(style, format_args!("{:9}", step.change.as_str())),
                paint(NAME, &step.planned.item),
                paint(DIM, format_args!("from {}", one_line(&step.planned.provenance.source)))
            ),
        );
        if step.change != ItemChange::Unchanged {
            step.planned.notes.iter().for_each(|note| show_note(output, note, is_result));
        }
    }
    for step in &steps.assets {
        let path = format!(".ai/{}", step.planned.path);
        output.plan(
            is_result,
            format_args!("{} {}", paint(DIM, format_args!("{:9}", step.change.as_str())), one_line(&path)),
        );
    }
    for path in &steps.removed {
        output.plan(is_result, format_args!("{} .ai/{}", paint(WARNING, "remove   "), one_line(path)));
    }
    // What was said of a source before is not repeated as long as its items are unchanged.
    let is_known = |source: &str| {
        let mut of_source =
            steps.items.iter().filter(|step| step.planned.provenance.source == source).peekable();
        of_source.peek().is_some() && of_source.all(|step| step.change == ItemChange::Unchanged)
    };
    for (source, note) in plan.notes.iter().filter(|(source, _)| !is_known(source)) {
        output.plan(is_result, one_line(source));
        show_note(output, note, is_result);
    }
    for remote in &plan.remotes {
        let rev = remote.rev.as_deref().map(|rev| format!(" at {}", one_line(rev))).unwrap_or_default();
        output.plan(
            is_result,
            format_args!(
                "{} {} of {}: {}{}; fetch it with --fetch {}",
                paint(WARNING, "elsewhere"),
                one_line(&remote.name),
                one_line(&remote.source),
                one_line(&remote.address),
                rev,
                one_line(&shell_word(&remote.name)),
            ),
        );
    }
    for refused in &plan.refused {
        output.plan(
            is_result,
            format_args!(
                "{} {}: {}",
                paint(ERROR, "refused  "),
                one_line(&refused.source),
                one_line(&refused.reason)
            ),
        );
    }
}

fn show_note(output: &Output, note: &ImportNote, is_result: bool) {
    output.plan(
        is_result,
        format_args!("          {} {}", paint(WARNING, note.kind.as_str()), one_line(&note.text)),
    );
}

fn to_value(
    plan: &ImportPlan,
    steps: &ImportSteps,
    fetched: &[SourceOrigin],
    is_written: bool,
    bundle: Option<&str>,
) -> Value {
    let items: Vec<Value> = steps
        .items
        .iter()
        .map(|step| {
            json!({
                "type": step.planned.item.item_type, "item_id": step.planned.item.id.as_str(),
                "source": step.planned.provenance.source, "format": step.planned.provenance.format,
                "change": step.change, "notes": step.planned.notes,
            })
        })
        .collect();
    let files = steps.assets.iter().map(|step| json!({"path": format!(".ai/{}", step.planned.path), "source": step.planned.source, "change": step.change}));
    let notes = plan
        .notes
        .iter()
        .map(|(source, note)| json!({"source": source, "kind": note.kind, "text": note.text}));
    json!({
        "items": items,
        "files": files.collect::<Vec<_>>(),
        "removed": steps.removed,
        "notes": notes.collect::<Vec<_>>(),
        "refused": plan.refused,
        "elsewhere": plan.remotes,
        "fetched": fetched,
        "written": is_written && steps.has_changes(),
        "bundle": bundle,
    })
}

/// What an import came to.
#[derive(Clone, Copy)]
struct Outcome<'a> {
    is_written: bool,
    bundle: Option<&'a str>,
    /// Bundles that were added to the project's manifest.
    added: &'a [String],
}

fn report(
    context: &CommandContext,
    plan: &ImportPlan,
    steps: &ImportSteps,
    fetched: &[SourceOrigin],
    outcome: Outcome<'_>,
) -> CommandResult {
    let Outcome { is_written, bundle, added } = outcome;
    let mut data = to_value(plan, steps, fetched, is_written, bundle);
    data["added"] = json!(added);
    let next = if is_written { next_commands(steps) } else { Vec::new() };
    data["next"] = json!(next);
    if context.print_if_json(None, None, &data)? {
        return Ok(());
    }
    let count =
        |wanted: &[ItemChange]| steps.items.iter().filter(|step| wanted.contains(&step.change)).count();
    let mut parts = vec![counted(count(&[ItemChange::Create]), "new item")];
    for (word, number) in [
        ("updated", count(&[ItemChange::Update, ItemChange::Replace])),
        ("unchanged", count(&[ItemChange::Unchanged])),
        ("kept", count(&[ItemChange::Keep])),
        ("refused", plan.refused.len()),
    ] {
        if number > 0 {
            parts.push(format!("{number} {word}"));
        }
    }
    let word = match (is_written, steps.has_changes() || !added.is_empty()) {
        (true, true) => "imported and signed",
        (true, false) => "nothing changed",
        (false, _) => "would import",
    };
    context.output.print(format_args!("{}: {}", paint(SUCCESS, word), parts.join(", ")))?;
    if count(&[ItemChange::Keep]) > 0 {
        context.output.note("kept items were changed here and in the source: --theirs takes the source's");
    }
    if !next.is_empty() {
        context.output.note("next, make items of the tools of these servers:");
        next.iter().for_each(|command| context.output.note(format_args!("  {command}")));
    }
    for id in added {
        context.output.note(format_args!("added {id} to .ai/bundles.toml"));
    }
    match bundle {
        Some(bundle) => context.output.note(format_args!("bundle: {bundle}")),
        None => {
            let has_items =
                |name: &str| plan.items.iter().any(|item| item.provenance.plugin.as_deref() == Some(name));
            let plugins = plan.plugins.iter().filter(|(name, _)| is_written && has_items(name));
            for (name, version) in plugins {
                context.output.note(format_args!(
                    "a bundle of it: rye bundle create {name} --version {version} --category {name}"
                ));
            }
        }
    }
    Ok(())
}
