//! Before the first token is bought: everything the thread is known to need is there, verified, and can run.
//!
//! All problems at once. What only might be needed, as a hook's item that is nowhere, is a warning.

use rye_engine::primaries::Source;
use rye_engine::verbs::execute::{self, Caller, Demand, Mode, Request};
use rye_engine::verbs::{load, search};
use rye_engine::{Code, Engine, Error, Kind, chains};
use rye_item::{ItemId, ItemRef, ItemType};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::action::{Action, Primary};
use crate::capability::Capabilities;

/// What a thread will need.
#[derive(Clone, Copy, Debug)]
pub struct Needs<'a> {
    /// Its grants: those that name one item must have it.
    pub capabilities: &'a Capabilities,
    /// Knowledge that the directive takes as context.
    pub context: &'a [ItemRef],
    /// What hooks do when the thread starts.
    pub starting: &'a [Action],
    /// The provider's item, unless it is the binary's own.
    pub provider: Option<&'a ItemRef>,
}

/// Something that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The item, or the grant.
    pub item: String,
    /// Who needs it: `grant`, `context`, `hook`, `provider`.
    pub needed_by: &'static str,
    /// What is wrong.
    pub message: String,
    /// The code of the error.
    pub code: &'static str,
    /// What to do.
    pub hints: Vec<String>,
    /// Whether the thread may not start.
    pub is_fatal: bool,
    #[serde(skip)]
    kind: Code,
}

/// Looks up and verifies everything; what was found wrong, in the order it is needed.
#[must_use]
pub fn check(engine: &Engine, needs: &Needs<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut note = |needed_by: &'static str, item: String, result: Result<(), Error>| {
        if let Err(error) = result {
            let is_fatal = needed_by != "hook" || error.code.kind() != Kind::NotFound;
            findings.push(Finding {
                item,
                needed_by,
                message: error.message.clone(),
                code: error.code.as_str(),
                hints: error.hints.clone(),
                is_fatal,
                kind: error.code,
            });
        }
    };
    for grant in needs.capabilities.iter().filter(|grant| !grant.contains('*')) {
        if let Some(result) = granted(engine, grant) {
            note("grant", grant.to_owned(), result);
        }
    }
    for item in needs.context {
        note("context", item.to_string(), usable(engine, item));
    }
    for action in needs.starting {
        note("hook", action.shown(), startable(engine, action));
    }
    if let Some(provider) = needs.provider {
        note("provider", provider.to_string(), usable(engine, provider));
    }
    findings
}

/// The failure the findings amount to, if a thread may not start.
///
/// # Errors
/// When one of them is fatal: with its own code if it is the only one.
pub fn judge(findings: &[Finding]) -> Result<(), Error> {
    let fatal: Vec<&Finding> = findings.iter().filter(|finding| finding.is_fatal).collect();
    let error = match fatal.as_slice() {
        [] => return Ok(()),
        [only] => {
            let error =
                Error::new(only.kind, format!("{} ({}): {}", only.item, only.needed_by, only.message));
            only.hints.iter().fold(error, |error, hint| error.hint(hint))
        }
        many => {
            let lines: Vec<String> = many
                .iter()
                .map(|finding| format!("{} ({}): {}", finding.item, finding.needed_by, finding.message))
                .collect();
            let message = format!("{} things the thread will need:\n{}", many.len(), lines.join("\n"));
            Error::new(Code::PreflightFailed, message).hint("nothing was started and nothing spent")
        }
    };
    Err(error.detail("problems", json!(fatal)))
}

/// The item that a grant without a wildcard names; `None` if it names none, as `rye.search.tool` does.
fn granted(engine: &Engine, grant: &str) -> Option<Result<(), Error>> {
    let mut parts = grant.splitn(4, '.').skip(1);
    let primary: Primary = parts.next()?.parse().ok()?;
    let item_type: ItemType = parts.next()?.parse().ok()?;
    let dotted = parts.next()?;
    if primary != Primary::Execute || !ItemType::FINDABLE.contains(&item_type) {
        return None;
    }
    Some(match named(engine, item_type, dotted) {
        Some(item) => usable(engine, &item),
        None => Err(Error::new(Code::NotFound, format!("there is no such {item_type}"))
            .hint(format!("look for it: rye search {}", dotted.rsplit('.').next().unwrap_or_default()))),
    })
}

/// The item behind a dotted id. Dots may stand for slashes or for themselves: whichever item there is, slashes first.
pub(crate) fn named(engine: &Engine, item_type: ItemType, dotted: &str) -> Option<ItemRef> {
    let likely = ItemId::new(dotted.replace('.', "/")).ok().map(|id| ItemRef::new(item_type, id));
    let is_there = |item: &ItemRef| engine.workspace.spaces.places(item).iter().any(|place| place.is_found);
    likely.filter(is_there).or_else(|| {
        let all = search::ids(engine, Some(item_type), "");
        all.into_iter().find(|item| item.id.as_str().replace('/', ".") == dotted)
    })
}

/// Whether an item can be used as a thread uses it.
fn usable(engine: &Engine, item: &ItemRef) -> Result<(), Error> {
    match item.item_type {
        ItemType::Tool => chains::build_valid(engine, item, None).map(|_| ()),
        ItemType::Knowledge => {
            let request = Request {
                item: item.clone(),
                parameters: Map::new(),
                words: Vec::new(),
                mode: Mode::DryRun,
                wants_trace: false,
                demand: Demand::Frozen,
                cancel: lillux::Cancel::new()?,
                progress: None,
                waits: None,
                caller: Caller::Agent,
                thread: None,
                door: None,
                grants: None,
            };
            execute::execute(engine, &request).map(|_| ())
        }
        // Its inputs are not known yet; that it may be read is what can be said.
        ItemType::Directive | ItemType::Config => {
            load::load(engine, item, load::Options::default()).map(|_| ())
        }
    }
}

fn startable(engine: &Engine, action: &Action) -> Result<(), Error> {
    match (action.primary, action.item()) {
        (Primary::Execute, Some(item)) => usable(engine, &item),
        (Primary::Load | Primary::Fetch, Some(item)) => {
            let source = action.option("source").cloned().unwrap_or(Value::from("all"));
            let source: Source = serde_json::from_value(source)
                .map_err(|_| Error::new(Code::InvalidArgument, "source is project, user, system or all"))?;
            load::load(engine, &item, load::Options { from: source.tier(), unverified: false }).map(|_| ())
        }
        (Primary::Execute | Primary::Load, None) => {
            Err(Error::new(Code::InvalidArgument, "it names no item"))
        }
        (Primary::Search | Primary::Sign, _) | (Primary::Fetch, None) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_world::{engine, item, knowledge, native, world, write_native};

    fn grants(list: &[&str]) -> Capabilities {
        Capabilities::parse(list).expect("grants")
    }

    #[test]
    fn what_is_granted_and_there_raises_nothing() {
        let world = world();
        native(&world, "team/look", "file_system.ls", "{type: object}");
        knowledge(&world, "team/rules", "Be kind.");
        let capabilities =
            grants(&["rye.execute.tool.team.look", "rye.execute.tool.rye.file-system.*", "rye.search.tool"]);
        let start = Action::from_value(
            &json!({"primary": "load", "item_type": "knowledge", "item_id": "team/rules"}),
        );
        let needs = Needs {
            capabilities: &capabilities,
            context: &[item(ItemType::Knowledge, "team/rules")],
            starting: &[start.expect("an action")],
            provider: None,
        };
        assert_eq!(check(&engine(&world), &needs), []);
    }

    #[test]
    fn all_problems_are_told_at_once_before_anything_is_bought() {
        let world = world();
        write_native(&world, "team/unsigned", "file_system.ls", "{type: object}");
        native(&world, "team/broken", "file_system.ls", "{type: object}");
        let text = world.text("project/.ai/tools/team/broken.yaml");
        world.write("project/.ai/tools/team/broken.yaml", text.replace("The tool", "Another tool"));
        let capabilities = grants(&[
            "rye.execute.tool.team.nowhere",
            "rye.execute.tool.team.unsigned",
            "rye.execute.tool.team.broken",
        ]);
        let start = |id: &str| {
            Action::from_value(&json!({"primary": "load", "item_type": "knowledge", "item_id": id}))
                .expect("an action")
        };
        let needs = Needs {
            capabilities: &capabilities,
            context: &[item(ItemType::Knowledge, "team/absent")],
            starting: &[start("project/rules")],
            provider: Some(&item(ItemType::Tool, "team/provider")),
        };
        let findings = check(&engine(&world), &needs);
        let told: Vec<(&str, &str, bool)> =
            findings.iter().map(|finding| (finding.needed_by, finding.code, finding.is_fatal)).collect();
        assert_eq!(
            told,
            [
                ("grant", "RYE0201", true),
                ("grant", "RYE0401", true),
                ("grant", "RYE0402", true),
                ("context", "RYE0201", true),
                ("hook", "RYE0201", false),
                ("provider", "RYE0201", true),
            ]
        );
        let error = judge(&findings).expect_err("refused");
        assert_eq!(error.code, Code::PreflightFailed);
        assert!(error.message.contains("team.nowhere") && error.message.contains("tool:team/provider"));
    }

    #[test]
    fn dots_of_a_grant_stand_for_slashes_or_for_themselves() {
        let world = world();
        native(&world, "team/look.twice", "file_system.ls", "{type: object}");
        let engine = engine(&world);
        let found = |dotted: &str| named(&engine, ItemType::Tool, dotted).map(|item| item.id.to_string());
        assert_eq!(found("team.look.twice").as_deref(), Some("team/look.twice"));
        assert_eq!(found("rye.file-system.read").as_deref(), Some("rye/file-system/read"));
        assert_eq!(found("team.look"), None);
    }

    #[test]
    fn one_problem_keeps_its_own_code() {
        let world = world();
        write_native(&world, "team/unsigned", "file_system.ls", "{type: object}");
        let capabilities = grants(&["rye.execute.tool.team.unsigned"]);
        let needs = Needs { capabilities: &capabilities, context: &[], starting: &[], provider: None };
        let error = judge(&check(&engine(&world), &needs)).expect_err("refused");
        assert_eq!((error.code, error.code.kind()), (Code::Unsigned, Kind::Integrity));
        assert!(judge(&[]).is_ok());
    }
}
