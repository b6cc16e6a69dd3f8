//! The five tools, one function each: arguments in, one call of a verb, the answer of the command line out.

use rye_engine::verbs::{load, search, sign};
use rye_engine::{Code, Engine, Error, Result, success};
use rye_item::{ItemRef, ItemType};
use serde::Serialize;
use serde_json::Value;

use crate::arguments::{self, Fetch, Load, Search, Sign, Source};
use crate::consent::{Consents, Refusal};

/// What a tool comes to: an answer, a failure, or a question first.
pub(crate) type Outcome = std::result::Result<Value, Refusal>;

pub(crate) fn search(engine: &Engine, given: &Search) -> Outcome {
    let (item_type, prefix) = arguments::narrowed(given.item_type.as_deref(), given.scope.as_deref())?;
    let options = search::Options {
        query: given.query.clone(),
        item_type,
        prefix,
        tier: given.source.and_then(Source::tier),
        limit: given.limit.map(usize::from),
        all: false,
    };
    let answer = search::search(engine, &options, &mut |_, _| {})?;
    Ok(success(None, None, shown(&answer)?))
}

pub(crate) fn load(engine: &Engine, given: &Load, consents: &Consents) -> Outcome {
    let item = arguments::item(given.item_type.as_deref(), &given.item_id)?;
    load_item(engine, &item, given, consents)
}

fn load_item(engine: &Engine, item: &ItemRef, given: &Load, consents: &Consents) -> Outcome {
    let from = given.source.and_then(Source::tier);
    let result = match given.destination {
        Some(destination) => {
            // The copy is signed with the user's key.
            may_sign(engine, item.item_type, item.id.as_str(), consents)?;
            load::copy(engine, item, from, destination.tier()).and_then(|copied| shown(&copied))
        }
        None => load::load(engine, item, load::Options { from, unverified: false })
            .and_then(|loaded| shown(&loaded)),
    };
    let data = result.map_err(|error| consents.or_trust(engine, error))?;
    Ok(success(Some(item.item_type.as_str()), Some(item.id.as_str()), data))
}

pub(crate) fn fetch(engine: &Engine, given: Fetch, consents: &Consents) -> Outcome {
    match (given.item_id, given.query) {
        (Some(id), None) => {
            let is_typed = given.item_type.is_some() || ItemRef::split_canonical(&id).is_some();
            let item = if is_typed {
                arguments::item(given.item_type.as_deref(), &id)?
            } else {
                load::find_by_id(engine, &id, given.source.and_then(Source::tier))?
            };
            let given = Load {
                item_type: None,
                item_id: id,
                source: given.source,
                destination: given.destination,
                project_path: None,
            };
            load_item(engine, &item, &given, consents)
        }
        (None, Some(query)) => {
            let given = Search {
                query,
                item_type: given.item_type,
                scope: given.scope,
                source: given.source,
                limit: given.limit,
                project_path: None,
            };
            search(engine, &given)
        }
        (Some(_), Some(_)) => {
            Err(Error::new(Code::InvalidArgument, "give item_id or query, not both").into())
        }
        (None, None) => Err(Error::new(Code::InvalidArgument, "give item_id, or query")
            .hint("item_id reads one item, query searches")
            .into()),
    }
}

pub(crate) fn sign(engine: &Engine, given: &Sign, consents: &Consents) -> Outcome {
    let (item_type, id) = match (&given.item_type, ItemRef::split_canonical(&given.item_id)) {
        (None, Some((item_type, id))) => (item_type, id),
        (Some(word), Some((item_type, id))) if word == item_type.as_str() => (item_type, id),
        (Some(word), _) => (word.parse().map_err(Error::from)?, given.item_id.as_str()),
        (None, None) => {
            return Err(Error::new(Code::InvalidArgument, "item_type is missing")
                .hint("give item_type, or a canonical id such as `tool:team/deploy`")
                .into());
        }
    };
    may_sign(engine, item_type, id, consents)?;
    let tier = given.source.and_then(Source::tier);
    if sign::is_glob(id) {
        let answer = sign::sign_glob(engine, item_type, id, tier, &mut |_, _| {})?;
        return match answer.failure() {
            Some(error) => Err(Refusal::Failed(error, Some(Box::new(answer.to_value())))),
            None => Ok(success(None, None, answer.to_value())),
        };
    }
    let item = sign::parse_item(Some(item_type.as_str()), id)?;
    // No lockfile follows: only a person's signing is consent to what will run.
    let signed = sign::sign_item(engine, &item, tier)?;
    Ok(success(Some(item_type.as_str()), Some(&signed.item_id), shown(&signed)?))
}

/// Whether an agent may have this signed: `mcp.sign`, and never what decides about trust.
fn may_sign(
    engine: &Engine,
    item_type: ItemType,
    id: &str,
    consents: &Consents,
) -> std::result::Result<(), Refusal> {
    let yourself = format!("sign it yourself: rye sign {item_type} {}", rye_item::text::one_line(id));
    if item_type == ItemType::Config {
        let error = Error::new(Code::SigningDenied, "config is never signed over MCP").hint(yourself);
        return Err(error.into());
    }
    match engine.workspace.settings.get("mcp.sign").and_then(Value::as_str) {
        Some("allow") => Ok(()),
        Some("ask") => Ok(consents.to_sign(engine, item_type, id)?),
        _ => {
            let error = Error::new(Code::SigningDenied, "`mcp.sign` does not let agents sign").hint(yourself);
            Err(error.into())
        }
    }
}

/// An answer as JSON.
fn shown(answer: &impl Serialize) -> Result<Value> {
    serde_json::to_value(answer)
        .map_err(|error| Error::new(Code::Io, format!("the answer cannot be shown: {error}")))
}
