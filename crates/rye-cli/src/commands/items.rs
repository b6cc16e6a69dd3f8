//! `search`, `load`, `fetch`, `why`.

use anstyle::Style;
use rye_engine::verbs::load::{self, ItemSigner, LoadedItem};
use rye_engine::verbs::search::{self, SearchResponse, parse_scope};
use rye_engine::verbs::why;
use rye_engine::{Code, Error};
use rye_item::space::SpaceTier;
use rye_item::text::{counted, one_line, quote_name};
use rye_item::{ItemRef, ItemType};
use serde_json::Value;

use super::{CommandContext, CommandResult, find_item};
use crate::arguments::{
    FetchArguments, ItemArguments, LoadArguments, SearchArguments, SpaceName, WritableSpace,
};
use crate::output::{DIM, ERROR, HEADING, NAME, SUCCESS, WARNING, display_path, paint};

/// The style of a verdict's word.
fn verdict_style(verdict: &str) -> Style {
    match verdict {
        "full" => SUCCESS,
        "partial" => WARNING,
        _ => ERROR,
    }
}

/// `rye search`
pub fn search(context: &CommandContext, arguments: &SearchArguments) -> CommandResult {
    let (item_type, prefix) = match (&arguments.scope, &arguments.item_type) {
        (Some(scope), _) => parse_scope(scope).map(|(item_type, prefix)| (Some(item_type), prefix))?,
        (None, Some(word)) => (Some(word.parse::<ItemType>().map_err(Error::from)?), String::new()),
        (None, None) => (None, String::new()),
    };
    let options = search::SearchOptions {
        query: join_words(&arguments.query),
        item_type,
        prefix,
        tier: arguments.space.and_then(SpaceName::tier),
        limit: arguments.limit,
        all: arguments.all,
    };
    show_search(context, &options)
}

/// Several arguments are one query; an argument with blanks was quoted in the shell and is a phrase.
pub(super) fn join_words(words: &[String]) -> String {
    match words {
        [one] => one.clone(),
        many => {
            many.iter()
                .map(|word| {
                    if word.contains(' ') && !word.contains('"') {
                        format!("\"{word}\"")
                    } else {
                        word.clone()
                    }
                })
                .collect::<Vec<_>>()
                .join(" ")
        }
    }
}

fn show_search(context: &CommandContext, options: &search::SearchOptions) -> CommandResult {
    let mut progress = context.output.progress("indexing");
    let response = search::search(&context.engine, options, &mut |done, total| progress.update(done, total))?;
    drop(progress);
    if context.print_if_json(None, None, &response)? {
        return Ok(());
    }
    print_search(context, &response)
}

fn print_search(context: &CommandContext, response: &SearchResponse) -> CommandResult {
    let output = &context.output;
    if response.results.is_empty() {
        output.note("nothing found");
        match response.suggestions.as_slice() {
            [] => output.note("all items are listed by: rye list --space all"),
            words => output.note(format_args!("did you mean: {}", words.join(", "))),
        }
        return Ok(());
    }
    for correction in &response.corrections {
        output.note(format_args!(
            "no item has `{}`; searched for {}",
            one_line(&correction.word),
            correction.searched.join(", ")
        ));
    }
    let mut table = output.table(&["", "type", "id", "space", "description"]);
    for row in &response.results {
        let text = if row.description.is_empty() { &row.title } else { &row.description };
        let mut space = row.space.clone();
        if !row.shadows.is_empty() {
            space = format!("{space} (hides {})", row.shadows.join(", "));
        }
        if let Some(winner) = &row.shadowed_by {
            space = format!("{space} (hidden by {winner})");
        }
        let mark = match row.verdict {
            "full" => "✓",
            "partial" => "◐",
            _ => "✗",
        };
        let flag = if row.verdict == "full" { String::new() } else { format!(" [{}]", row.verdict) };
        table.add_row([
            mark.to_owned(),
            row.item_type.to_string(),
            format!("{}{flag}", row.item_id),
            space,
            text.clone(),
        ]);
    }
    output.print(table.trim_fmt())?;
    let printed = response.results.len();
    output.detail(format_args!("{} in {:.1} ms", counted(response.total, "result"), response.took_ms));
    for row in &response.results {
        output.detail(format_args!(
            "{} {}",
            paint(NAME, &row.item_id),
            paint(DIM, format_args!("score {:.2}", row.score))
        ));
    }
    if response.total > printed {
        output.note(format_args!("{printed} of {} shown; use --limit or --all to show more", response.total));
    }
    Ok(())
}

/// `rye load`
pub fn load(context: &CommandContext, arguments: &LoadArguments) -> CommandResult {
    let from = arguments.from.and_then(SpaceName::tier);
    let item = find_item(context, &arguments.item, from)?;
    load_or_copy(context, &item, from, arguments.to, arguments.unverified)
}

fn load_or_copy(
    context: &CommandContext,
    item: &ItemRef,
    from: Option<SpaceTier>,
    to: Option<WritableSpace>,
    unverified: bool,
) -> CommandResult {
    if let Some(to) = to {
        let copied = load::copy(&context.engine, item, from, to.tier())?;
        if !context.print_if_json(Some(item.item_type.as_str()), Some(item.id.as_str()), &copied)? {
            context.output.print(format_args!(
                "{} {} from {} to {}, signed by {}",
                paint(SUCCESS, "copied"),
                paint(NAME, item),
                copied.from,
                display_path(&copied.path),
                copied.signer
            ))?;
        }
        return Ok(());
    }
    if unverified && !context.settings.is_interactive {
        let error = Error::new(Code::ConsentNeeded, "--unverified works at a terminal only").for_item(item);
        return Err(error.hint("read the file itself instead").into());
    }
    let loaded = load::load(&context.engine, item, load::LoadOptions { from, unverified })?;
    for warning in &loaded.warnings {
        context.output.warn(rye_item::text::strip_controls(warning));
    }
    if context.print_if_json(Some(item.item_type.as_str()), Some(item.id.as_str()), &loaded)? {
        return Ok(());
    }
    print_item(context, item, &loaded)
}

fn print_item(context: &CommandContext, item: &ItemRef, loaded: &LoadedItem) -> CommandResult {
    context.output.detail(format_args!(
        "{} · {} · {} · {}",
        paint(HEADING, item),
        loaded.space,
        paint(verdict_style(loaded.verdict.as_str()), loaded.verdict.as_str()),
        display_path(&loaded.path)
    ));
    if item.item_type == ItemType::Directive {
        directive_summary(&loaded.metadata).iter().for_each(|line| context.output.note(paint(DIM, line)));
    }
    context.output.print_raw(&rye_item::text::strip_controls(&loaded.content))?;
    Ok(())
}

/// What a directive takes and may use, a line each; its text says so too, but as XML.
fn directive_summary(metadata: &Value) -> Vec<String> {
    let inputs = metadata.get("inputs").and_then(Value::as_array).into_iter().flatten();
    let mut lines: Vec<String> = inputs
        .map(|input| {
            let word = |key: &str| input.get(key).and_then(Value::as_str).map(one_line).unwrap_or_default();
            let default = input.get("default").filter(|default| !default.is_null());
            let note = match default {
                Some(Value::String(text)) => format!(", default {}", one_line(text)),
                Some(other) => format!(", default {}", one_line(&other.to_string())),
                None if input.get("required") == Some(&Value::Bool(true)) => ", required".to_owned(),
                None => String::new(),
            };
            format!("input {}: {}{note}", word("name"), word("type"))
        })
        .collect();
    if let Some(limits) =
        metadata.get("limits").and_then(Value::as_object).filter(|limits| !limits.is_empty())
    {
        let limits: Vec<String> = limits.iter().map(|(name, value)| format!("{name} {value}")).collect();
        lines.push(one_line(&format!("limits: {}", limits.join(", "))));
    }
    lines
}

/// `rye fetch`
pub fn fetch(context: &CommandContext, arguments: &FetchArguments) -> CommandResult {
    let from = arguments.from.and_then(SpaceName::tier);
    let (item_type, id) = match (&arguments.first, &arguments.second) {
        (Some(first), Some(id)) => (Some(first.as_str()), Some(id.as_str())),
        (Some(word), None) if arguments.query.is_some() => (Some(word.as_str()), None),
        (Some(word), None) => (None, Some(word.as_str())),
        (None, _) => (None, None),
    };
    match (id, &arguments.query) {
        (Some(id), None) => {
            let item = if item_type.is_some() || ItemRef::split_canonical(id).is_some() {
                ItemRef::parse(item_type, id)?
            } else {
                load::find_by_id(&context.engine, id, from)?
            };
            load_or_copy(context, &item, from, arguments.to, false)
        }
        (None, Some(query)) => {
            let (mut filter_type, mut prefix) =
                (item_type.map(str::parse::<ItemType>).transpose().map_err(Error::from)?, String::new());
            if let Some(scope) = &arguments.scope {
                let (scope_type, scope_prefix) = parse_scope(scope)?;
                (filter_type, prefix) = (Some(scope_type), scope_prefix);
            }
            let options = search::SearchOptions {
                query: query.clone(),
                item_type: filter_type,
                prefix,
                tier: from,
                limit: arguments.limit,
                all: false,
            };
            show_search(context, &options)
        }
        (Some(_), Some(_)) => {
            Err(Error::new(Code::InvalidArgument, "give an id or a query, not both").into())
        }
        (None, None) => Err(Error::new(Code::InvalidArgument, "give an id, or --query")
            .hint("rye fetch tool team/deploy")
            .into()),
    }
}

/// `rye why`
pub fn why(context: &CommandContext, arguments: &ItemArguments) -> CommandResult {
    let item = find_item(context, arguments, None)?;
    let response = why::why(&context.engine, &item)?;
    if context.print_if_json(Some(item.item_type.as_str()), Some(item.id.as_str()), &response)? {
        return Ok(());
    }
    context.output.print(render_why(&item, &response))?;
    Ok(())
}

fn render_why(item: &ItemRef, response: &why::WhyResponse) -> String {
    let mut lines = Vec::new();
    let version = response.item.version.as_deref().map(|version| format!(" {version}")).unwrap_or_default();
    lines.push(format!("{}{}", paint(HEADING, item), paint(DIM, version)));
    lines.push(format!("├─ {}", paint(HEADING, "where")));
    let last = response.tiers.len().saturating_sub(1);
    let winner = response.tiers.iter().position(|tier| tier.found);
    for (index, tier) in response.tiers.iter().enumerate() {
        let branch = if index == last { "└─" } else { "├─" };
        let (mark, note) = match (tier.found, Some(index) == winner) {
            (true, true) => (paint(SUCCESS, "●"), String::new()),
            (true, false) => (paint(WARNING, "○"), paint(WARNING, " hidden")),
            (false, _) => (paint(DIM, "·"), paint(DIM, " not there")),
        };
        let verdict = match tier.verdict {
            Some(verdict) if Some(index) != winner => {
                format!(" {}", paint(verdict_style(verdict.as_str()), verdict.as_str()))
            }
            _ => String::new(),
        };
        let path = if tier.found { display_path(&tier.path) } else { paint(DIM, display_path(&tier.path)) };
        lines.push(format!("│  {branch} {mark} {} {path}{note}{verdict}", paint(NAME, &tier.space)));
    }
    lines.push(format!("├─ {} {}", paint(HEADING, "signature"), signature_line(response)));
    if response.chain.is_empty() {
        lines.push(format!("└─ {} {}", paint(HEADING, "runs on"), paint(DIM, "nothing: it is text")));
    } else {
        lines.push(format!("└─ {}", paint(HEADING, "runs on")));
        for (depth, element) in response.chain.iter().enumerate() {
            let indent = "   ".repeat(depth + 1);
            let state = match (&element.space, element.verdict) {
                _ if element.problem.is_some() => paint(ERROR, element.problem.unwrap_or_default()),
                (Some(space), Some(verdict)) => {
                    let hash =
                        element.hash.as_deref().map(|hash| format!(" {}", &hash[..12])).unwrap_or_default();
                    let signer = element.signer.as_ref().and_then(|signer| signer.owner.as_deref());
                    let signer = signer.map(|owner| format!(" by {}", quote_name(owner))).unwrap_or_default();
                    let lock = match element.lock {
                        Some("pinned") => paint(SUCCESS, " pinned"),
                        Some(other) => paint(ERROR, format_args!(" {other} since it was pinned")),
                        None => String::new(),
                    };
                    format!(
                        "{} {}{signer}{}{lock}",
                        paint(NAME, space),
                        paint(verdict_style(verdict.as_str()), verdict.as_str()),
                        paint(DIM, hash)
                    )
                }
                _ => paint(ERROR, "not found"),
            };
            lines.push(format!("{indent}└─ {} {state}", element.item_id));
        }
    }
    if let Some(lock) = &response.lock {
        let text = |key: &str| lock.get(key).and_then(Value::as_str).unwrap_or_default();
        let state = text("state");
        let style = if state == "held" { SUCCESS } else { WARNING };
        let reason = one_line(text("reason"));
        lines.push(format!("   {} {} {reason}", paint(HEADING, "lockfile"), paint(style, state)));
    }
    if let Some(problem) = &response.chain_problem {
        lines.push(format!("   {} {}", paint(ERROR, "cannot run:"), one_line(problem)));
    }
    lines.join("\n")
}

fn signature_line(response: &why::WhyResponse) -> String {
    let verdict = response.item.verdict.as_str();
    let verdict_text = paint(verdict_style(verdict), verdict);
    let reason =
        response.item.reason.as_deref().map(|reason| format!(": {}", one_line(reason))).unwrap_or_default();
    match &response.signer {
        Some(ItemSigner { fingerprint, owner, signed_at, .. }) => {
            let owner = owner.as_deref().map_or_else(|| "unknown".to_owned(), quote_name);
            format!("{verdict_text}{reason}, by {owner} {} at {signed_at}", paint(DIM, fingerprint))
        }
        None => format!("{verdict_text}{reason}"),
    }
}
