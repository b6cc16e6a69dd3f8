//! `ci`: the checks of a project in one go: identities, items, bundles, lockfiles, tests. It asks nothing and changes nothing.

use lillux::CancelToken;
use rye_exec::NativeCall;
use rye_exec::native::{NativeErrorKind, ToolAccess};
use rye_item::space::SpaceTier;
use rye_item::text::{counted, one_line};
use rye_item::{ItemId, ItemRef, ItemType, Space};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::engine::Engine;
use crate::error::{Code, Error, ErrorKind, Result};
use crate::error_refused::phrase;
use crate::natives;
use crate::verbs::execute::{Caller, ExecuteRequest, LockMode};
use crate::verbs::lock::{self, ToolLockState};
use crate::verbs::verify::{self, VerifyReport};
use crate::verbs::{join, sync, trust};

/// How many problems of a check are named.
const MAX_NAMED_PROBLEMS: usize = 50;
/// The function that runs the tests of a project.
const TEST_FUNCTION: &str = "dev.test_runner";

/// What came of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckStatus {
    /// As it should be.
    Passed,
    /// Not as it should be.
    Failed,
    /// There was nothing to check.
    Empty,
}

impl CheckStatus {
    /// The word for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "failed",
            Self::Empty => "empty",
        }
    }
}

/// One check.
#[derive(Clone, Debug, Serialize)]
pub struct CiCheck {
    /// `identities`, `items`, `bundles`, `lockfiles` or `tests`.
    pub check: &'static str,
    /// What came of it.
    pub status: CheckStatus,
    /// What was found, in a line.
    pub summary: String,
    /// The code of the failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<&'static str>,
    /// Everything that is wrong.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
    /// What to do about it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hints: Vec<String>,
    #[serde(skip)]
    failure: Option<Code>,
}

impl CiCheck {
    fn passed(check: &'static str, summary: String) -> Self {
        let (status, code, failure) = (CheckStatus::Passed, None, None);
        Self { check, status, summary, code, problems: Vec::new(), hints: Vec::new(), failure }
    }

    fn empty(check: &'static str, summary: &str) -> Self {
        Self { status: CheckStatus::Empty, ..Self::passed(check, summary.to_owned()) }
    }

    fn failed(check: &'static str, error: &Error, mut problems: Vec<String>) -> Self {
        let more = problems.len().saturating_sub(MAX_NAMED_PROBLEMS);
        problems.truncate(MAX_NAMED_PROBLEMS);
        if more > 0 {
            problems.push(format!("and {more} more"));
        }
        Self {
            status: CheckStatus::Failed,
            code: Some(error.code.as_str()),
            problems,
            hints: error.hints.clone(),
            failure: Some(error.code),
            ..Self::passed(check, one_line(&error.message))
        }
    }
}

/// The answer of a CI run.
#[derive(Clone, Debug, Serialize)]
pub struct CiReport {
    /// Each check, in the order they were made.
    pub checks: Vec<CiCheck>,
}

impl CiReport {
    /// The failure it amounts to, if a check failed: with the code of the worst.
    #[must_use]
    pub fn failure(&self) -> Option<Error> {
        let failed: Vec<&CiCheck> =
            self.checks.iter().filter(|check| check.status == CheckStatus::Failed).collect();
        let worst =
            failed.iter().filter_map(|check| check.failure).min_by_key(|code| severity(code.kind()))?;
        let names = failed.iter().map(|check| check.check).collect::<Vec<_>>().join(", ");
        let verb = if failed.len() == 1 { "check" } else { "checks" };
        let error =
            Error::new(worst, format!("{} {verb} of {} failed: {names}", failed.len(), self.checks.len()));
        let hints = failed.iter().flat_map(|check| check.hints.iter().take(1));
        Some(hints.fold(error, |error, hint| error.hint(hint.clone())))
    }
}

/// Which of two failures decides the exit code: integrity before policy, before lockfiles, before the rest.
fn severity(kind: ErrorKind) -> u8 {
    match kind {
        ErrorKind::Integrity => 0,
        ErrorKind::Denied => 1,
        ErrorKind::Lock => 2,
        ErrorKind::Validation => 3,
        ErrorKind::NotFound => 4,
        ErrorKind::Limit => 5,
        ErrorKind::Cancelled => 6,
        ErrorKind::Usage => 7,
        ErrorKind::Failed => 8,
    }
}

/// Checks the project. Each check is made, whatever came of those before it.
///
/// # Errors
/// When there is no project. What is wrong with it is in the answer.
pub fn ci(engine: &Engine, cancel: &CancelToken, progress: verify::VerifyProgress<'_>) -> Result<CiReport> {
    let ai = engine.workspace.roots.project_ai().filter(|ai| ai.is_dir());
    if ai.is_none() {
        return Err(Error::new(Code::PathNotFound, "no project here: the folder has no `.ai`")
            .hint("run it where `.ai` is, or name the project with --project"));
    }
    let checks = vec![
        check_identities(engine),
        check_items(engine, progress),
        check_bundles(engine),
        check_lockfiles(engine),
        check_tests(engine, cancel),
    ];
    Ok(CiReport { checks })
}

fn check_identities(engine: &Engine) -> CiCheck {
    let forged = join::forged_identities(engine);
    let count = engine.workspace.project_documents().len();
    if let Some(error) = join::forged_error(&forged) {
        let problems = forged.iter().map(|one| format!("{}: {}", one.path, one.reason)).collect();
        return CiCheck::failed("identities", &error, problems);
    }
    match (join::unpublished_error(engine), count) {
        (Some(error), _) => CiCheck::failed("identities", &error, Vec::new()),
        (None, 0) => CiCheck::empty("identities", "the project has none"),
        (None, _) => CiCheck::passed("identities", format!("{} of its signers", counted_identities(count))),
    }
}

fn counted_identities(count: usize) -> String {
    if count == 1 { "1 identity".to_owned() } else { format!("{count} identities") }
}

fn check_items(engine: &Engine, progress: verify::VerifyProgress<'_>) -> CiCheck {
    let report = verify::verify_space(engine, &Space::Project, verify::VerifyOptions::default(), progress);
    if report.checked == 0 {
        return CiCheck::empty("items", "the project has none");
    }
    let bad = report.checked - report.full;
    let files = counted(report.checked, "file");
    if bad == 0 && report.invalid == 0 {
        return CiCheck::passed("items", format!("{files} signed and trusted"));
    }
    let mut problems: Vec<String> = report
        .items
        .iter()
        .filter(|row| row.verdict != rye_trust::TrustVerdict::Full)
        .map(|row| {
            let reason = row.reason.as_deref().unwrap_or("the signature covers only a part");
            format!("{}:{} {}: {}", row.kind, row.item_id, phrase(row.verdict, reason), one_line(reason))
        })
        .collect();
    problems.extend(report.items.iter().filter_map(|row| {
        let problem = row.problems.first()?;
        Some(format!("{}:{} does not parse: {}", row.kind, row.item_id, one_line(&problem.to_string())))
    }));
    problems.extend(
        report.unreadable.iter().map(|file| format!("{}: {}", file.path.display(), one_line(&file.reason))),
    );
    let error = if bad == 0 {
        Error::new(Code::Invalid, format!("{} of {files} cannot be parsed", report.invalid))
            .hint("correct them, then sign them")
    } else {
        let error =
            Error::new(report.most_severe_code(), format!("{bad} of {files} not fully signed and trusted"));
        items_hint(engine, &report, error)
    };
    CiCheck::failed("items", &error, problems)
}

fn items_hint(engine: &Engine, report: &VerifyReport, error: Error) -> Error {
    let is_trusted_somewhere = engine.workspace.own_key.is_some() || report.full > 0;
    match (report.untrusted > 0, is_trusted_somewhere) {
        (true, true) => error.hint("see who signed them, and decide: rye join"),
        (true, false) => {
            error.hint("say whose signatures this machine trusts: rye join --yes --only FINGERPRINT")
        }
        (false, _) => error.hint("see what changed: rye verify; their authors sign them again"),
    }
}

/// Compares the project's manifest, its lock and what is installed. Nothing is fetched.
fn check_bundles(engine: &Engine) -> CiCheck {
    let check = match sync::check_installed(engine) {
        Ok(Some(check)) => check,
        Ok(None) => return CiCheck::empty("bundles", "the project has no `bundles.toml`"),
        Err(error) => return CiCheck::failed("bundles", &error, Vec::new()),
    };
    if check.problems.is_empty() {
        return CiCheck::passed("bundles", format!("{} as locked", counted(check.count, "bundle")));
    }
    let problems = counted(check.problems.len(), "difference");
    let error = Error::new(Code::ProjectLockStale, format!("{problems} between manifest, lock and project"))
        .hint("install what the lock names: rye sync --locked; after a change of bundles.toml: rye sync");
    CiCheck::failed("bundles", &error, check.problems)
}

fn check_lockfiles(engine: &Engine) -> CiCheck {
    let resolve = |item: &ItemRef| crate::resolve::resolve_tool(engine, item);
    let report = match lock::check(engine, Some(SpaceTier::Project), &resolve) {
        Ok(report) => report,
        Err(error) => return CiCheck::failed("lockfiles", &error, Vec::new()),
    };
    // They are signed, and others may import them: named, not refused.
    let unrunnable: Vec<String> = lock::tools_without_executor(engine)
        .into_iter()
        .map(|(id, line)| format!("{id} can never run, nothing says what runs it; add the line: {line}"))
        .collect();
    let with_count = |summary: String| match unrunnable.len() {
        0 => summary,
        count => format!("{summary}; {} without executor", counted(count, "tool")),
    };
    if report.checked == 0 {
        let check =
            CiCheck::empty("lockfiles", &with_count("the project has no tools that can be run".to_owned()));
        return CiCheck { problems: unrunnable, ..check };
    }
    let Some(error) = report.failure() else {
        let summary = format!("{} pinned", counted(report.checked, "tool"));
        return CiCheck { problems: unrunnable.clone(), ..CiCheck::passed("lockfiles", with_count(summary)) };
    };
    let bad = report.tools.iter().filter(|tool| tool.state != ToolLockState::Ok);
    let problems = bad.map(|tool| {
        let reason = tool.why.as_deref().map(|reason| format!(": {}", one_line(reason))).unwrap_or_default();
        format!("{} {}{reason}", tool.tool_id, tool.state.as_str())
    });
    CiCheck::failed("lockfiles", &error, problems.chain(unrunnable).collect())
}

/// Runs the tests of the project's tools. The function is called directly: an item of the project could stand in for the
/// tool that names it.
fn check_tests(engine: &Engine, cancel: &CancelToken) -> CiCheck {
    let Ok(id) = ItemId::new("rye/dev/test_runner") else { return CiCheck::empty("tests", "no test runner") };
    let request = ExecuteRequest::new(ItemRef::new(ItemType::Tool, id), cancel.clone())
        .with_lock_mode(LockMode::Frozen)
        // A person's run: files that they have not agreed to are held back.
        .with_caller(Caller::Person);
    let (parameters, config) = (Map::new(), Map::new());
    let access = ToolAccess::default();
    let project = engine.workspace.roots.project.clone().unwrap_or_default();
    let call = NativeCall {
        parameters: &parameters,
        config: &config,
        resolved_config: None,
        space: &Space::Project,
        project: &project,
        cache: &engine.workspace.roots.cache,
        access: &access,
        cancel,
        now: engine.unix_seconds(),
        thread: None,
    };
    let answer = match natives::call(engine, TEST_FUNCTION, &call, &request) {
        Ok(Some(answer)) => answer,
        Ok(None) => return CiCheck::empty("tests", "no test runner"),
        Err(error) => return CiCheck::failed("tests", &error, Vec::new()),
    };
    let failure = match answer {
        Ok(summary) => {
            let total = summary.get("total").and_then(Value::as_u64).unwrap_or(0);
            return match total {
                0 => CiCheck::empty("tests", "the project has none"),
                total => CiCheck::passed("tests", format!("{} passed", counted(total, "test"))),
            };
        }
        Err(failure) => failure,
    };
    let code = match failure.kind {
        _ if cancel.is_cancelled() => Code::ToolCancelled,
        NativeErrorKind::Denied => Code::ToolDenied,
        NativeErrorKind::TimedOut => Code::ToolTimedOut,
        NativeErrorKind::Failed => Code::ToolFailed,
    };
    let mut error = Error::new(code, failure.message);
    error = match code {
        Code::ToolDenied => error.hint(trust::APPROVAL_HINT),
        _ => error.hint("run them alone: rye test"),
    };
    let results = failure.data.as_ref().and_then(|data| data.get("results")).and_then(Value::as_array);
    let problems = results.into_iter().flatten().filter_map(failed_case).collect();
    CiCheck::failed("tests", &error, problems)
}

/// A case that failed, in a line.
fn failed_case(case: &Value) -> Option<String> {
    let field = |name: &str| case.get(name).and_then(Value::as_str).unwrap_or_default();
    if case.get("passed") == Some(&Value::Bool(true)) {
        return None;
    }
    let reasons = case.get("problems").and_then(Value::as_array).into_iter().flatten();
    let reasons = reasons.filter_map(Value::as_str).collect::<Vec<_>>().join("; ");
    let name = [field("tool"), field("name")].join(" ");
    Some(one_line(&format!("{} {}: {reasons}", field("file"), name.trim())))
}
