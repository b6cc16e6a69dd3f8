//! `search`, `load`, `fetch`, `why`.

use anstyle::Style;
use rye_engine::verbs::load::{self, Loaded, Signer};
use rye_engine::verbs::search::{self, Answer, parse_scope};
use rye_engine::verbs::why;
use rye_engine::{Code, Error};
use rye_item::space::Tier;
use rye_item::{ItemRef, ItemType};

use super::{Context, Outcome, item_of};
use crate::arguments::{
    FetchArguments, ItemArguments, LoadArguments, SearchArguments, SpaceName, WritableSpace,
};
use crate::output::{BAD, CAUTION, DIM, GOOD, NAME, STRONG, paint, shown_path};

/// The style of a verdict's word.
fn verdict_style(verdict: &str) -> Style {
    match verdict {
        "full" => GOOD,
        "partial" => CAUTION,
        _ => BAD,
    }
}

/// `rye search`
pub fn search(context: &Context, arguments: &SearchArguments) -> Outcome {
    let (item_type, prefix) = match (&arguments.scope, &arguments.item_type) {
        (Some(scope), _) => parse_scope(scope).map(|(item_type, prefix)| (Some(item_type), prefix))?,
        (None, Some(word)) => (Some(word.parse::<ItemType>().map_err(Error::from)?), String::new()),
        (None, None) => (None, String::new()),
    };
    let options = search::Options {
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

fn show_search(context: &Context, options: &search::Options) -> Outcome {
    let mut progress = context.output.progress("indexing");
    let answer = search::search(&context.engine, options, &mut |done, total| progress.update(done, total))?;
    drop(progress);
    if context.answered(None, None, &answer)? {
        return Ok(());
    }
    draw_search(context, &answer)
}

fn draw_search(context: &Context, answer: &Answer) -> Outcome {
    let output = &context.output;
    if answer.results.is_empty() {
        output.note("nothing found");
        if !answer.suggestions.is_empty() {
            output.note(format_args!("did you mean: {}", answer.suggestions.join(", ")));
        }
        return Ok(());
    }
    let mut table = output.table(&["", "type", "id", "space", "description"]);
    for row in &answer.results {
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
    output.result(table.trim_fmt())?;
    let shown = answer.results.len();
    if answer.total > shown {
        output.note(format_args!("{shown} of {} shown; --limit or --all shows more", answer.total));
    }
    Ok(())
}

/// `rye load`
pub fn load(context: &Context, arguments: &LoadArguments) -> Outcome {
    let item = item_of(&arguments.item)?;
    let from = arguments.from.and_then(SpaceName::tier);
    load_or_copy(context, &item, from, arguments.to, arguments.unverified)
}

fn load_or_copy(
    context: &Context,
    item: &ItemRef,
    from: Option<Tier>,
    to: Option<WritableSpace>,
    unverified: bool,
) -> Outcome {
    if let Some(to) = to {
        let copied = load::copy(&context.engine, item, from, to.tier())?;
        if !context.answered(Some(item.item_type.as_str()), Some(item.id.as_str()), &copied)? {
            context.output.result(format_args!(
                "{} {} from {} to {}, signed by {}",
                paint(GOOD, "copied"),
                paint(NAME, item),
                copied.from,
                shown_path(&copied.path),
                copied.signer
            ))?;
        }
        return Ok(());
    }
    if unverified && !context.settings.is_interactive {
        let error = Error::new(Code::ConsentNeeded, "--unverified works at a terminal only").of(item);
        return Err(error.hint("read the file itself instead").into());
    }
    let loaded = load::load(&context.engine, item, load::Options { from, unverified })?;
    for warning in &loaded.warnings {
        context.output.warn(rye_item::text::without_controls(warning));
    }
    if context.answered(Some(item.item_type.as_str()), Some(item.id.as_str()), &loaded)? {
        return Ok(());
    }
    draw_loaded(context, item, &loaded)
}

fn draw_loaded(context: &Context, item: &ItemRef, loaded: &Loaded) -> Outcome {
    context.output.detail(format_args!(
        "{} · {} · {} · {}",
        paint(STRONG, item),
        loaded.space,
        paint(verdict_style(loaded.verdict.as_str()), loaded.verdict.as_str()),
        shown_path(&loaded.path)
    ));
    context.output.raw(&rye_item::text::without_controls(&loaded.content))?;
    Ok(())
}

/// `rye fetch`
pub fn fetch(context: &Context, arguments: &FetchArguments) -> Outcome {
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
                rye_engine::verbs::sign::parse_item(item_type, id)?
            } else {
                load::find_by_id(&context.engine, id, from)?
            };
            load_or_copy(context, &item, from, arguments.to, false)
        }
        (None, Some(query)) => {
            let (mut wanted, mut prefix) =
                (item_type.map(str::parse::<ItemType>).transpose().map_err(Error::from)?, String::new());
            if let Some(scope) = &arguments.scope {
                let (scope_type, scope_prefix) = parse_scope(scope)?;
                (wanted, prefix) = (Some(scope_type), scope_prefix);
            }
            let options = search::Options {
                query: query.clone(),
                item_type: wanted,
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
pub fn why(context: &Context, arguments: &ItemArguments) -> Outcome {
    let item = item_of(arguments)?;
    let answer = why::why(&context.engine, &item)?;
    if context.answered(Some(item.item_type.as_str()), Some(item.id.as_str()), &answer)? {
        return Ok(());
    }
    context.output.result(draw_why(&item, &answer))?;
    Ok(())
}

fn draw_why(item: &ItemRef, answer: &why::Answer) -> String {
    let mut lines = Vec::new();
    let version = answer.item.version.as_deref().map(|version| format!(" {version}")).unwrap_or_default();
    lines.push(format!("{}{}", paint(STRONG, item), paint(DIM, version)));
    lines.push(format!("├─ {}", paint(STRONG, "where")));
    let last = answer.tiers.len().saturating_sub(1);
    let winner = answer.tiers.iter().position(|tier| tier.found);
    for (index, tier) in answer.tiers.iter().enumerate() {
        let branch = if index == last { "└─" } else { "├─" };
        let (mark, note) = match (tier.found, Some(index) == winner) {
            (true, true) => (paint(GOOD, "●"), String::new()),
            (true, false) => (paint(CAUTION, "○"), paint(CAUTION, " hidden")),
            (false, _) => (paint(DIM, "·"), paint(DIM, " not there")),
        };
        let verdict = match tier.verdict {
            Some(verdict) if Some(index) != winner => {
                format!(" {}", paint(verdict_style(verdict.as_str()), verdict.as_str()))
            }
            _ => String::new(),
        };
        let path = if tier.found { shown_path(&tier.path) } else { paint(DIM, shown_path(&tier.path)) };
        lines.push(format!("│  {branch} {mark} {} {path}{note}{verdict}", paint(NAME, &tier.space)));
    }
    lines.push(format!("├─ {} {}", paint(STRONG, "signature"), signature_line(answer)));
    if answer.chain.is_empty() {
        lines.push(format!(
            "└─ {} {}",
            paint(STRONG, "runs on"),
            paint(DIM, "nothing: it is text for a model")
        ));
    } else {
        lines.push(format!("└─ {}", paint(STRONG, "runs on")));
        for (depth, element) in answer.chain.iter().enumerate() {
            let indent = "   ".repeat(depth + 1);
            let state = match (&element.space, element.verdict) {
                _ if element.problem.is_some() => paint(BAD, element.problem.unwrap_or_default()),
                (Some(space), Some(verdict)) => {
                    let hash =
                        element.hash.as_deref().map(|hash| format!(" {}", &hash[..12])).unwrap_or_default();
                    let signer = element.signer.as_ref().and_then(|signer| signer.owner.as_deref());
                    let signer = signer.map(|owner| format!(" by {owner}")).unwrap_or_default();
                    let lock = match element.lock {
                        Some("pinned") => paint(GOOD, " pinned"),
                        Some(other) => paint(BAD, format_args!(" {other} since it was pinned")),
                        None => String::new(),
                    };
                    format!(
                        "{} {}{signer}{}{lock}",
                        paint(NAME, space),
                        paint(verdict_style(verdict.as_str()), verdict.as_str()),
                        paint(DIM, hash)
                    )
                }
                _ => paint(BAD, "not found"),
            };
            lines.push(format!("{indent}└─ {} {state}", element.item_id));
        }
    }
    if let Some(lock) = &answer.lock {
        let text = |key: &str| lock.get(key).and_then(serde_json::Value::as_str).unwrap_or_default();
        let state = text("state");
        let style = if state == "held" { GOOD } else { CAUTION };
        let reason = rye_item::text::one_line(text("reason"));
        lines.push(format!("   {} {} {reason}", paint(STRONG, "lockfile"), paint(style, state)));
    }
    if let Some(problem) = &answer.chain_problem {
        lines.push(format!("   {} {}", paint(BAD, "cannot run:"), rye_item::text::one_line(problem)));
    }
    lines.join("\n")
}

fn signature_line(answer: &why::Answer) -> String {
    let verdict = answer.item.verdict.as_str();
    let verdict_text = paint(verdict_style(verdict), verdict);
    let reason = answer
        .item
        .reason
        .as_deref()
        .map(|reason| format!(": {}", rye_item::text::one_line(reason)))
        .unwrap_or_default();
    match &answer.signer {
        Some(Signer { fingerprint, owner, signed_at, .. }) => {
            let owner = owner.as_deref().unwrap_or("unknown");
            format!("{verdict_text}{reason}, by {owner} {} at {signed_at}", paint(DIM, fingerprint))
        }
        None => format!("{verdict_text}{reason}"),
    }
}
