//! Before the first token is bought: everything the thread is known to need is there, verified, and can run.
//!
//! All problems at once. What only might be needed, as a hook's item that is nowhere, is a warning.

use rye_engine::agent_actions::SpaceFilter;
use rye_engine::verbs::execute::{self, ExecuteRequest, LockMode};
use rye_engine::verbs::{load, search};
use rye_engine::{Code, Engine, Error, ErrorKind, chain_cache};
use rye_item::{ItemId, ItemRef, ItemType};
use serde::Serialize;
use serde_json::{Value, json};

use crate::action::{Action, PrimaryAction};
use crate::capability::Capabilities;

/// What a thread will need.
#[derive(Clone, Copy, Debug)]
pub struct ThreadNeeds<'a> {
    /// Its grants: those that name one item must have it.
    pub capabilities: &'a Capabilities,
    /// Knowledge that the directive takes as context.
    pub context: &'a [ItemRef],
    /// What hooks do when the thread starts.
    pub start_actions: &'a [Action],
    /// The provider's item, unless it is the binary's own.
    pub provider: Option<&'a ItemRef>,
}

/// Something that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PreflightFinding {
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
    error_code: Code,
}

/// Looks up and verifies everything; what was found wrong, in the order it is needed.
#[must_use]
pub fn check(engine: &Engine, needs: &ThreadNeeds<'_>) -> Vec<PreflightFinding> {
    let mut findings = Vec::new();
    let mut record = |needed_by: &'static str, item: String, result: Result<(), Error>| {
        if let Err(error) = result {
            let is_fatal = needed_by != "hook" || error.code.kind() != ErrorKind::NotFound;
            findings.push(PreflightFinding {
                item,
                needed_by,
                message: error.message.clone(),
                code: error.code.as_str(),
                hints: error.hints.clone(),
                is_fatal,
                error_code: error.code,
            });
        }
    };
    for grant in needs.capabilities.iter().filter(|grant| !grant.contains('*')) {
        if let Some(result) = check_grant(engine, grant) {
            record("grant", grant.to_owned(), result);
        }
    }
    for item in needs.context {
        record("context", item.to_string(), check_usable(engine, item));
    }
    for action in needs.start_actions {
        record("hook", action.summary(), check_start_action(engine, action));
    }
    if let Some(provider) = needs.provider {
        record("provider", provider.to_string(), check_usable(engine, provider));
    }
    findings
}

/// The failure the findings amount to, if a thread may not start.
///
/// # Errors
/// When one of them is fatal: with its own code if it is the only one.
pub fn findings_to_result(findings: &[PreflightFinding]) -> Result<(), Error> {
    let fatal: Vec<&PreflightFinding> = findings.iter().filter(|finding| finding.is_fatal).collect();
    let error = match fatal.as_slice() {
        [] => return Ok(()),
        [only] => {
            let error =
                Error::new(only.error_code, format!("{} ({}): {}", only.item, only.needed_by, only.message));
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
fn check_grant(engine: &Engine, grant: &str) -> Option<Result<(), Error>> {
    let mut parts = grant.splitn(4, '.').skip(1);
    let primary: PrimaryAction = parts.next()?.parse().ok()?;
    let item_type: ItemType = parts.next()?.parse().ok()?;
    let dotted = parts.next()?;
    if primary != PrimaryAction::Execute || !ItemType::SEARCHABLE.contains(&item_type) {
        return None;
    }
    Some(match resolve_dotted(engine, item_type, dotted) {
        Some(item) => check_usable(engine, &item),
        None => Err(Error::new(Code::NotFound, format!("there is no such {item_type}"))
            .hint(format!("look for it: rye search {}", dotted.rsplit('.').next().unwrap_or_default()))),
    })
}

/// The item behind a dotted id. Dots may stand for slashes or for themselves: whichever item there is, slashes first.
pub(crate) fn resolve_dotted(engine: &Engine, item_type: ItemType, dotted: &str) -> Option<ItemRef> {
    let likely = ItemId::new(dotted.replace('.', "/")).ok().map(|id| ItemRef::new(item_type, id));
    let is_there = |item: &ItemRef| {
        engine.workspace.spaces.candidate_paths(item).iter().any(|candidate| candidate.is_found)
    };
    likely.filter(is_there).or_else(|| {
        let all = search::complete_ids(engine, Some(item_type), "");
        all.into_iter().find(|item| item.id.as_str().replace('/', ".") == dotted)
    })
}

/// Whether an item can be used as a thread uses it.
fn check_usable(engine: &Engine, item: &ItemRef) -> Result<(), Error> {
    match item.item_type {
        ItemType::Tool => chain_cache::build_valid_chain(engine, item, None).map(|_| ()),
        ItemType::Knowledge => {
            let request = ExecuteRequest::new(item.clone(), lillux::CancelToken::new()?)
                .with_dry_run(true)
                .with_lock_mode(LockMode::Frozen);
            execute::execute(engine, &request).map(|_| ())
        }
        // Its inputs are not known yet; that it may be read is what can be said.
        ItemType::Directive | ItemType::Config => {
            load::load(engine, item, load::LoadOptions::default()).map(|_| ())
        }
    }
}

fn check_start_action(engine: &Engine, action: &Action) -> Result<(), Error> {
    match (action.primary, action.item()) {
        (PrimaryAction::Execute, Some(item)) => check_usable(engine, &item),
        (PrimaryAction::Load | PrimaryAction::Fetch, Some(item)) => {
            let source = action.option("source").cloned().unwrap_or(Value::from("all"));
            let source: SpaceFilter = serde_json::from_value(source)
                .map_err(|_| Error::new(Code::InvalidArgument, "source is project, user, system or all"))?;
            load::load(engine, &item, load::LoadOptions { from: source.tier(), unverified: false })
                .map(|_| ())
        }
        (PrimaryAction::Execute | PrimaryAction::Load, None) => {
            Err(Error::new(Code::InvalidArgument, "it names no item"))
        }
        (PrimaryAction::Search | PrimaryAction::Sign, _) | (PrimaryAction::Fetch, None) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::{engine, init_world, item, signed_knowledge, signed_native, write_native};

    fn capabilities(list: &[&str]) -> Capabilities {
        Capabilities::parse(list).expect("grants")
    }

    #[test]
    fn available_grants_have_no_findings() {
        let world = init_world();
        signed_native(&world, "team/look", "file_system.ls", "{type: object}");
        signed_knowledge(&world, "team/rules", "Be kind.");
        let capabilities = capabilities(&[
            "rye.execute.tool.team.look",
            "rye.execute.tool.rye.file-system.*",
            "rye.search.tool",
        ]);
        let start = Action::from_value(
            &json!({"primary": "load", "item_type": "knowledge", "item_id": "team/rules"}),
        );
        let needs = ThreadNeeds {
            capabilities: &capabilities,
            context: &[item(ItemType::Knowledge, "team/rules")],
            start_actions: &[start.expect("an action")],
            provider: None,
        };
        assert_eq!(check(&engine(&world), &needs), []);
    }

    #[test]
    fn all_findings_are_reported_at_once() {
        let world = init_world();
        write_native(&world, "team/unsigned", "file_system.ls", "{type: object}");
        signed_native(&world, "team/broken", "file_system.ls", "{type: object}");
        let text = world.text("project/.ai/tools/team/broken.yaml");
        world.write("project/.ai/tools/team/broken.yaml", text.replace("The tool", "Another tool"));
        let capabilities = capabilities(&[
            "rye.execute.tool.team.nowhere",
            "rye.execute.tool.team.unsigned",
            "rye.execute.tool.team.broken",
        ]);
        let start = |id: &str| {
            Action::from_value(&json!({"primary": "load", "item_type": "knowledge", "item_id": id}))
                .expect("an action")
        };
        let needs = ThreadNeeds {
            capabilities: &capabilities,
            context: &[item(ItemType::Knowledge, "team/absent")],
            start_actions: &[start("project/rules")],
            provider: Some(&item(ItemType::Tool, "team/provider")),
        };
        let findings = check(&engine(&world), &needs);
        let summary: Vec<(&str, &str, bool)> =
            findings.iter().map(|finding| (finding.needed_by, finding.code, finding.is_fatal)).collect();
        assert_eq!(
            summary,
            [
                ("grant", "RYE0201", true),
                ("grant", "RYE0401", true),
                ("grant", "RYE0402", true),
                ("context", "RYE0201", true),
                ("hook", "RYE0201", false),
                ("provider", "RYE0201", true),
            ]
        );
        let error = findings_to_result(&findings).expect_err("refused");
        assert_eq!(error.code, Code::PreflightFailed);
        assert!(error.message.contains("team.nowhere") && error.message.contains("tool:team/provider"));
    }

    #[test]
    fn grant_dots_match_slashes_or_dots() {
        let world = init_world();
        signed_native(&world, "team/look.twice", "file_system.ls", "{type: object}");
        let engine = engine(&world);
        let found =
            |dotted: &str| resolve_dotted(&engine, ItemType::Tool, dotted).map(|item| item.id.to_string());
        assert_eq!(found("team.look.twice").as_deref(), Some("team/look.twice"));
        assert_eq!(found("rye.file-system.read").as_deref(), Some("rye/file-system/read"));
        assert_eq!(found("team.look"), None);
    }

    #[test]
    fn single_finding_keeps_its_code() {
        let world = init_world();
        write_native(&world, "team/unsigned", "file_system.ls", "{type: object}");
        let capabilities = capabilities(&["rye.execute.tool.team.unsigned"]);
        let needs =
            ThreadNeeds { capabilities: &capabilities, context: &[], start_actions: &[], provider: None };
        let error = findings_to_result(&check(&engine(&world), &needs)).expect_err("refused");
        assert_eq!((error.code, error.code.kind()), (Code::Unsigned, ErrorKind::Integrity));
        assert!(findings_to_result(&[]).is_ok());
    }
}
