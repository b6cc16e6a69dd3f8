//! `rye import`: shows what would become of what other clients keep, then writes and signs it after a yes.

mod apply;
mod source;

use rye_engine::verbs::bundles::{self, CreateRequest};
use rye_engine::{Code, Error};
use rye_import::{ImportNote, ImportOptions, ImportPlan, ItemChange, RefusedSource};
use rye_item::BundleId;
use rye_item::text::{counted, one_line};
use serde_json::{Value, json};

use self::apply::ImportSteps;
use self::source::ImportSource;
use super::{CommandContext, CommandError, CommandResult, confirm};
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
    let mut plan = read_plan(context, arguments, &options)?;
    let steps =
        ImportSteps::decide(&context.engine, arguments.to.tier(), &mut plan, arguments.conflict.theirs)?;
    let output = &context.output;
    if !output.is_json {
        show(output, &plan, &steps);
    }
    if steps.items.is_empty() {
        let data = to_value(&plan, &steps, false, None);
        return Err(nothing_error(&plan, data));
    }
    if arguments.dry_run {
        return report(context, &plan, &steps, false, None);
    }
    if steps.has_changes() {
        if !arguments.yes && !has_consent(context, &steps)? {
            let error = Error::new(Code::ConsentNeeded, "nothing was changed: importing needs a yes");
            let error = error.hint("read the plan, then add --yes");
            let data = to_value(&plan, &steps, false, None);
            return Err(CommandError::Engine(error, Some(Box::new(data))));
        }
        steps.write(&context.settings.roots.cache.join("import-backups"))?;
    }
    let made = match &bundle {
        Some(id) => Some(create_bundle(context, id, &plan)?),
        None => None,
    };
    report(context, &plan, &steps, true, made.as_deref())
}

fn bundle_id(arguments: &ImportArguments) -> Result<Option<BundleId>, Error> {
    match arguments.bundle.as_slice() {
        [] => Ok(None),
        [word, id] if word == "bundle" => Ok(Some(BundleId::new(id.as_str())?)),
        _ => Err(Error::new(Code::InvalidArgument, "what it is imported as must be a bundle")
            .hint("--as bundle ID")),
    }
}

/// The plans of all sources in one. The same item from two of them is refused unless it is the same.
fn read_plan(
    context: &CommandContext,
    arguments: &ImportArguments,
    options: &ImportOptions,
) -> Result<ImportPlan, Error> {
    let project = context.settings.roots.project.as_deref();
    let sources = match (arguments.all, project) {
        (true, Some(project)) => vec![ImportSource::of_project(project)?],
        (true, None) => return Err(rye_engine::verbs::new_item::no_project_error(&context.engine)),
        (false, _) => {
            let open = |path| ImportSource::open(path, &context.settings.working_dir, project);
            arguments.paths.iter().map(|path| open(path.as_path())).collect::<Result<Vec<_>, _>>()?
        }
    };
    let mut all = ImportPlan::default();
    for source in sources {
        let mut plan = source.plan(options)?;
        let mut refused = Vec::new();
        plan.items.retain(|item| {
            let other = all.items.iter().find(|other| other.item == item.item);
            if let Some(other) = other.filter(|other| other.provenance.sha256 != item.provenance.sha256) {
                let reason = format!("`{}` comes from `{}` already", item.item, other.provenance.source);
                refused.push(RefusedSource { source: item.provenance.source.clone(), reason });
            }
            other.is_none()
        });
        plan.assets.retain(|asset| !all.assets.iter().any(|other| other.path == asset.path));
        all.items.append(&mut plan.items);
        all.assets.append(&mut plan.assets);
        all.notes.append(&mut plan.notes);
        all.refused.append(&mut plan.refused);
        all.refused.append(&mut refused);
        all.plugins.append(&mut plan.plugins);
    }
    Ok(all)
}

fn has_consent(context: &CommandContext, steps: &ImportSteps) -> std::io::Result<bool> {
    if !context.settings.is_interactive || context.output.is_json {
        return Ok(false);
    }
    let count = steps.items.iter().filter(|step| step.change.is_written()).count();
    context.output.ask(format_args!("write and sign {} with your key? [y/N]", counted(count, "item")));
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

fn show(output: &Output, plan: &ImportPlan, steps: &ImportSteps) {
    for step in &steps.items {
        let style = match step.change {
            ItemChange::Create | ItemChange::Update | ItemChange::Replace => SUCCESS,
            ItemChange::Unchanged => DIM,
            ItemChange::Keep | ItemChange::Occupied => WARNING,
        };
        output.ask(format_args!(
            "{} {} {}",
            paint(style, format_args!("{:9}", step.change.as_str())),
            paint(NAME, &step.planned.item),
            paint(DIM, format_args!("from {}", one_line(&step.planned.provenance.source)))
        ));
        step.planned.notes.iter().for_each(|note| show_note(output, note));
    }
    for step in &steps.assets {
        let path = format!(".ai/{}", step.planned.path);
        output.ask(format_args!(
            "{} {}",
            paint(DIM, format_args!("{:9}", step.change.as_str())),
            one_line(&path)
        ));
    }
    for path in &steps.removed {
        output.ask(format_args!("{} .ai/{}", paint(WARNING, "remove   "), one_line(path)));
    }
    for (source, note) in &plan.notes {
        output.ask(one_line(source));
        show_note(output, note);
    }
    for refused in &plan.refused {
        output.ask(format_args!(
            "{} {}: {}",
            paint(ERROR, "refused  "),
            one_line(&refused.source),
            one_line(&refused.reason)
        ));
    }
}

fn show_note(output: &Output, note: &ImportNote) {
    output.ask(format_args!("          {} {}", paint(WARNING, note.kind.as_str()), one_line(&note.text)));
}

fn to_value(plan: &ImportPlan, steps: &ImportSteps, is_written: bool, bundle: Option<&str>) -> Value {
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
        "written": is_written && steps.has_changes(),
        "bundle": bundle,
    })
}

fn report(
    context: &CommandContext,
    plan: &ImportPlan,
    steps: &ImportSteps,
    is_written: bool,
    bundle: Option<&str>,
) -> CommandResult {
    if context.print_if_json(None, None, &to_value(plan, steps, is_written, bundle))? {
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
    let word = match (is_written, steps.has_changes()) {
        (true, true) => "imported and signed",
        (true, false) => "nothing changed",
        (false, _) => "would import",
    };
    context.output.print(format_args!("{}: {}", paint(SUCCESS, word), parts.join(", ")))?;
    if count(&[ItemChange::Keep]) > 0 {
        context.output.note("kept items were changed here and in the source: --theirs takes the source's");
    }
    match bundle {
        Some(bundle) => context.output.note(format_args!("bundle: {bundle}")),
        None => {
            for (name, version) in plan.plugins.iter().filter(|_| is_written) {
                context.output.note(format_args!(
                    "a bundle of it: rye bundle create {name} --version {version} --category {name}"
                ));
            }
        }
    }
    Ok(())
}
