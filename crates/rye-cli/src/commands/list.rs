//! `list`: items as a table.

use rye_engine::verbs::list::{self, ListOptions, ListedItem};
use rye_engine::{Code, Error};
use rye_item::ItemType;
use rye_item::space::SpaceTier;
use rye_item::text::counted;

use super::{CommandContext, CommandResult};
use crate::arguments::{ListItemsArguments, SpaceName};

/// `rye list`
pub fn list(context: &CommandContext, arguments: &ListItemsArguments) -> CommandResult {
    let (item_type, pattern) = match arguments.words.as_slice() {
        [] => (None, None),
        [word] => match word.parse::<ItemType>() {
            Ok(item_type) => (Some(item_type), None),
            Err(_) => (None, Some(word.clone())),
        },
        [word, pattern, ..] => (Some(word.parse::<ItemType>().map_err(Error::from)?), Some(pattern.clone())),
    };
    let tiers = match arguments.space {
        None => Vec::new(),
        Some(SpaceName::All) => vec![SpaceTier::Project, SpaceTier::User, SpaceTier::System],
        Some(space) => space.tier().into_iter().collect(),
    };
    let options = ListOptions { item_type, pattern, tiers };
    let response = list::list(&context.engine, &options)?;
    if context.print_if_json(None, None, &response)? {
        return Ok(());
    }
    if response.items.is_empty() {
        let what = match (&options.item_type, &options.pattern) {
            (Some(item_type), Some(pattern)) => format!("no {item_type} matches `{pattern}`"),
            (None, Some(pattern)) => format!("no item matches `{pattern}`"),
            (Some(item_type), None) => format!("no {item_type} yet"),
            (None, None) => "no items yet".to_owned(),
        };
        let next = match &options.pattern {
            Some(pattern) => {
                let words = pattern.replace(['*', '?', '/'], " ");
                format!("; ask in plain words: rye search {}", rye_item::text::shell_word(words.trim()))
            }
            None => String::new(),
        };
        context.output.note(rye_item::text::one_line(&format!("{what}{next}")));
    } else {
        let mut table =
            context.output.table(&["", "type", "id", "version", "space", "signed", "description"]);
        for item in &response.items {
            table.add_row(row(item));
        }
        context.output.print(table.trim_fmt())?;
    }
    if response.in_bundles > 0 && options.tiers.is_empty() {
        let more = counted(response.in_bundles, "item");
        context.output.note(format_args!("{more} of bundles not shown; --space all shows them"));
    }
    if response.items.is_empty() && response.in_bundles == 0 && options.pattern.is_none() {
        return Err(Error::new(Code::NotFound, "nothing to list")
            .hint("make an item: rye new tool team/greet")
            .into());
    }
    Ok(())
}

fn row(item: &ListedItem) -> [String; 7] {
    let mark = match item.verdict {
        "full" => "✓",
        "partial" => "◐",
        _ => "✗",
    };
    let mut space = item.space.to_string();
    if !item.shadows.is_empty() {
        let hidden = item.shadows.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        space = format!("{space} (hides {hidden})");
    }
    if let Some(winner) = &item.shadowed_by {
        space = format!("{space} (hidden by {winner})");
    }
    let signed = match (item.verdict, &item.signer) {
        ("full", Some(owner)) => format!("by {owner}"),
        ("full", None) => "yes".to_owned(),
        (verdict, _) => verdict.to_owned(),
    };
    [
        mark.to_owned(),
        item.item_type.to_string(),
        item.item_id.clone(),
        item.version.clone(),
        space,
        signed,
        item.description.clone(),
    ]
}
