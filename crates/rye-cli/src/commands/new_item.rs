//! `new`: items from templates, which run at once.

use rye_engine::verbs::new_item::{self, NewItemRequest, NewItemResponse};
use rye_engine::{Code, Error};
use rye_item::{BundleId, ItemId, ItemRef, ItemType};
use serde_json::json;

use super::{CommandContext, CommandResult};
use crate::arguments::{NewArguments, NewKind};
use crate::output::{DIM, SUCCESS, display_path, paint};

/// The version that a new bundle is packed as.
const FIRST_VERSION: &str = "0.1.0";

/// `rye new`
pub fn new_item(context: &CommandContext, arguments: &NewArguments) -> CommandResult {
    let item_type = match arguments.kind {
        NewKind::Tool | NewKind::Bundle => ItemType::Tool,
        NewKind::Directive => ItemType::Directive,
        NewKind::Knowledge => ItemType::Knowledge,
    };
    let language = arguments.lang.as_deref().map(str::parse).transpose()?;
    if language.is_some() && item_type != ItemType::Tool {
        return Err(Error::new(Code::InvalidArgument, format!("a {item_type} has no language"))
            .hint(format!("rye new {item_type} {}", rye_item::text::one_line(&arguments.id)))
            .into());
    }
    let request = NewItemRequest {
        item: item_named(arguments, item_type)?,
        language,
        tier: arguments.space.tier(),
        author: context.settings.owner.clone(),
    };
    let made = match arguments.kind {
        NewKind::Bundle => {
            let category = ItemId::new(arguments.id.as_str()).map_err(Error::from)?;
            new_item::create_bundle_items(&context.engine, &category, &request)?
        }
        NewKind::Tool | NewKind::Directive | NewKind::Knowledge => {
            vec![new_item::create(&context.engine, &request)?]
        }
    };
    if context.output.is_json {
        match (arguments.kind, made.first()) {
            (NewKind::Bundle, _) | (_, None) => {
                context.print_if_json(Some("bundle"), Some(&arguments.id), &json!({ "items": made }))?
            }
            (_, Some(one)) => context.print_if_json(Some(item_type.as_str()), Some(&one.item_id), one)?,
        };
        return Ok(());
    }
    for item in &made {
        print_made(context, item)?;
    }
    context.output.note(format_args!("next: {}", next_commands(arguments, item_type).join(" · ")));
    Ok(())
}

/// The item that is named; `tool:team/greet` is an id too. A bundle's id is one name.
fn item_named(arguments: &NewArguments, item_type: ItemType) -> Result<ItemRef, Error> {
    match arguments.kind {
        NewKind::Bundle => {
            let id = BundleId::new(arguments.id.as_str())?;
            Ok(ItemRef::new(item_type, ItemId::new(id.to_string())?))
        }
        NewKind::Tool | NewKind::Directive | NewKind::Knowledge => {
            Ok(ItemRef::parse(Some(item_type.as_str()), &arguments.id)?)
        }
    }
}

fn print_made(context: &CommandContext, item: &NewItemResponse) -> std::io::Result<()> {
    let language = item.language.map(|language| format!(" {}", paint(DIM, language.as_str())));
    context.output.print(format_args!(
        "{} {}{}",
        paint(SUCCESS, "+"),
        display_path(&item.path),
        language.unwrap_or_default()
    ))?;
    if let Some(test) = &item.test {
        context.output.print(format_args!("{} {}", paint(SUCCESS, "+"), display_path(test)))?;
    }
    for note in &item.notes {
        context.output.warn(note);
    }
    Ok(())
}

fn next_commands(arguments: &NewArguments, item_type: ItemType) -> Vec<String> {
    let id = &arguments.id;
    match arguments.kind {
        NewKind::Bundle => vec![
            format!("rye execute {id}/hello"),
            format!(
                "rye bundle create {id} --version {FIRST_VERSION} --category {id} --entrypoint {id}/hello"
            ),
        ],
        NewKind::Tool => {
            let mut commands = vec![format!("rye execute {id} name=Ada")];
            if arguments.space == crate::arguments::WritableSpace::Project {
                commands.push(format!("rye test {id}"));
            }
            commands.push(format!("after an edit: rye sign {item_type} {id}"));
            commands
        }
        NewKind::Directive => {
            vec![format!("rye run {id}"), format!("after an edit: rye sign {item_type} {id}")]
        }
        NewKind::Knowledge => {
            vec![format!("rye load {item_type} {id}"), format!("after an edit: rye sign {item_type} {id}")]
        }
    }
}
