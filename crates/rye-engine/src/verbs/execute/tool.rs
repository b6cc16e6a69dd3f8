//! The walk of a tool: resolve → verify → validate → parameters → stage → lock → environment → sandbox → run → record.

use std::path::Path;
use std::time::Instant;

use rye_exec::parameters::{self, ParameterError};
use rye_exec::{Chain, Element, Invocation};
use rye_item::ItemRef;
use serde_json::{Map, Value, json};

use super::program_finder::HelperRun;
use super::run::{self, RunOutput};
use super::run_plan::{self, RunPlan};
use super::trace::RunTrace;
use super::{
    Caller, ExecuteMode, ExecuteRequest, ExecuteResponse, config_resolve, first_use, missing_program,
    own_paths, packages, timeout_source,
};
use crate::agent_actions;
use crate::chain_cache;
use crate::engine::Engine;
use crate::error::{Code, Error, Result};
use crate::lockfiles::{self, LockMode, LockState, ResolvedTool, WrittenLockfile};

/// What is reported beside a result.
#[derive(Debug, Default)]
pub(super) struct RunMessages {
    pub(super) warnings: Vec<String>,
    /// Who reads it.
    pub(super) caller: Caller,
    pub(super) notes: Vec<String>,
    /// What was run for the tool before the tool itself.
    pub(super) helpers: Vec<HelperRun>,
}

pub(super) fn execute(engine: &Engine, request: &ExecuteRequest) -> Result<ExecuteResponse> {
    let started = Instant::now();
    let (chain, warnings) = chain_cache::build_valid_chain(engine, &request.item, request.source)?;
    execute_chain(engine, request, started, &chain, warnings)
}

/// The same for a function that touches nothing, and for what is refused; `None` for what takes longer.
pub(super) fn execute_without_access(
    engine: &Engine,
    request: &ExecuteRequest,
) -> Option<Result<ExecuteResponse>> {
    let started = Instant::now();
    match chain_cache::build_valid_chain(engine, &request.item, request.source) {
        Ok((chain, warnings)) if run_plan::needs_no_access(engine, &chain) => {
            Some(execute_chain(engine, request, started, &chain, warnings))
        }
        Ok(_) => None,
        Err(error) => Some(Err(error)),
    }
}

fn execute_chain(
    engine: &Engine,
    request: &ExecuteRequest,
    started: Instant,
    chain: &Chain,
    warnings: Vec<String>,
) -> Result<ExecuteResponse> {
    let item = &request.item;
    let mut trace = RunTrace::new(request.wants_trace);
    let mut messages = RunMessages { warnings, caller: request.caller, ..RunMessages::default() };
    report_chain(engine, chain, &mut trace, &mut messages);
    let parameters = check_parameters(chain, request)?;
    let resolved_config = config_resolve::resolve(engine, chain, &mut messages.warnings)?;
    let package_request = packages::package_request(engine, chain, request.lock_mode)?;
    if package_request.is_some() {
        // Packages may have to come from far away.
        request.notify_blocking();
    }
    let staged = run_plan::stage(engine, chain, package_request, &mut messages)?;
    let mut resolved = resolve_with_imports(engine, chain, &staged);
    // Before anything is installed: what is refused anyway costs nothing.
    let mut lock_state = check_locks(engine, request, &resolved, &mut trace, &mut messages)?;
    let call = run_plan::CallInputs { request, parameters: &parameters, config: resolved_config.as_ref() };
    let mut plan = run_plan::plan_run(engine, chain, &staged, &call, &mut messages)?;
    if let Some(packages) = plan.packages.take() {
        trace.add_step("packages", || packages.to_trace());
        resolved.dependencies = packages.installed;
        lock_state = lockfiles::enforce(engine, &resolved, request.lock_mode)?;
    }
    trace_plan(&plan, &mut trace);
    let mut extra = Map::new();
    extra.insert("chain".to_owned(), chain_summary(chain));
    if request.mode == ExecuteMode::DryRun {
        extra.insert("validated_pairs".to_owned(), json!(chain.elements().len() - 1));
        extra.insert("message".to_owned(), json!("Tool chain validation passed (dry run)"));
        add_messages(&mut extra, trace, messages);
        let data = json!({"parameters": parameters, "invocation": invocation_summary(chain, &plan)});
        if let Some(temporary) = plan.temporary.take() {
            engine.host.temporary_folders.release(temporary);
        }
        return Ok(ExecuteResponse { item: item.clone(), status: "validation_passed", data, extra });
    }
    let is_first_use = first_use::mark_used(engine, item);
    let output = run::run(engine, &plan, &parameters, resolved_config.as_ref(), request);
    if let Some(temporary) = plan.temporary.take() {
        engine.host.temporary_folders.release(temporary);
    }
    let mut output = output.map_err(|error| missing_program::name_element(chain, &plan, error))?;
    own_paths::name_own_files(&mut output, chain, &staged);
    trace.add_step("run", || output.trace.clone());
    messages.warnings.extend(output.warnings.iter().cloned());
    extra.insert("duration_ms".to_owned(), json!(elapsed_ms(started)));
    extra.insert("first_use".to_owned(), json!(is_first_use));
    if let Some(receipt) = &output.receipt {
        extra.insert("sandbox".to_owned(), receipt.clone());
    }
    let mut lock = lock_summary(&lock_state);
    // The lockfile matched before the run; a change since then is noticed by the next run.
    let is_pinned = matches!(lock_state, LockState::Matched { .. }) && resolved.dependencies.is_none();
    if output.outcome.failure.is_none() && !is_pinned && request.lock_mode != LockMode::Frozen {
        match lockfiles::record(engine, &resolved, request.lock_mode) {
            Ok(recorded) => report_recorded(&lock_state, recorded, item, &mut lock, &mut messages),
            // The tool has run: its result counts, whatever becomes of the pin.
            Err(error) => messages.warnings.push(format!("it ran, but is not pinned: {}", error.message)),
        }
    }
    extra.insert("lock".to_owned(), lock);
    messages.warnings.extend(silent_function_warning(chain, &output));
    let typescript = typescript_hint(chain, &output).map(str::to_owned);
    let hints = [typescript, timeout_source::hint(chain, &plan, &output)];
    build_response(item, output, extra, trace, messages)
        .map_err(|error| hints.into_iter().flatten().fold(error, Error::hint))
}

/// A tool that defines `execute` and was run as a program that printed nothing.
fn silent_function_warning(chain: &Chain, output: &RunOutput) -> Option<String> {
    let tool = chain.tool().item();
    let text = |key: &str| output.outcome.data.get(key).and_then(Value::as_str);
    let is_silent =
        output.outcome.failure.is_none() && text("stdout") == Some("") && text("stderr") == Some("");
    let language = if tool.extension == ".py" { "python" } else { "node" };
    (is_silent && tool.defines_execute()).then(|| {
        format!(
            "it printed nothing, and its function `execute` was not called: a tool that is a function names the executor \
             `rye/core/runtimes/{language}/function`"
        )
    })
}

/// What to install where this Node cannot read TypeScript.
fn typescript_hint(chain: &Chain, output: &RunOutput) -> Option<&'static str> {
    let is_typed = matches!(chain.tool().item().extension.as_str(), ".ts" | ".mts" | ".cts" | ".tsx");
    let is_unknown = output.outcome.logs.stderr.contains("ERR_UNKNOWN_FILE_EXTENSION");
    (is_typed && is_unknown && output.outcome.failure.is_some()).then_some(
        "this Node does not read TypeScript: install Node 22.18 or later; or, for a tool that is a program, add tsx to the \
         project and record it: npm install --save-dev tsx && rye trust .",
    )
}

/// Says what was written after a run, and which lockfile is still stale.
fn report_recorded(
    before: &LockState,
    recorded: Option<WrittenLockfile>,
    item: &ItemRef,
    lock: &mut Value,
    messages: &mut RunMessages,
) {
    let written = recorded.as_ref().map(|recorded| recorded.path.clone());
    if let Some(recorded) = recorded {
        let path = recorded.path.display().to_string();
        messages.notes.push(match recorded.replaced {
            Some(why) => format!("replaced the lockfile {path}: {why}"),
            None => format!("pinned in {path}"),
        });
        lock["created"] = json!(path);
    }
    if let LockState::Stale { path, why } = before
        && written.as_ref() != Some(path)
    {
        messages.notes.push(stale_note(path, why, item));
    }
}

fn stale_note(path: &Path, why: &str, item: &ItemRef) -> String {
    format!("the lockfile {} is stale: {why}; update it: rye lock update {}", path.display(), item.id)
}

fn add_messages(extra: &mut Map<String, Value>, trace: RunTrace, mut messages: RunMessages) {
    messages.warnings.extend(messages.helpers.iter().flat_map(HelperRun::warnings));
    if !messages.helpers.is_empty() {
        let helpers: Vec<Value> = messages.helpers.iter().map(HelperRun::to_value).collect();
        extra.insert("helpers".to_owned(), json!(helpers));
    }
    for (key, mut lines) in [("warnings", messages.warnings), ("notes", messages.notes)] {
        if messages.caller != Caller::Person {
            lines.iter_mut().for_each(agent_actions::address_user);
        }
        if !lines.is_empty() {
            extra.insert(key.to_owned(), json!(lines));
        }
    }
    trace.add_to(extra);
}

fn build_response(
    item: &ItemRef,
    output: RunOutput,
    mut extra: Map<String, Value>,
    trace: RunTrace,
    messages: RunMessages,
) -> Result<ExecuteResponse> {
    let outcome = output.outcome;
    let has_output = !outcome.logs.stdout.is_empty() || !outcome.logs.stderr.is_empty();
    extra.insert("logs".to_owned(), json!(outcome.logs));
    extra.insert("truncated".to_owned(), json!(outcome.is_truncated));
    add_messages(&mut extra, trace, messages);
    let Some(failure) = outcome.failure else {
        return Ok(ExecuteResponse { item: item.clone(), status: "success", data: outcome.data, extra });
    };
    let error = match output.reported {
        Some(reported) => {
            let error = Error::new(reported.code, failure.message());
            reported.hints.into_iter().fold(error, Error::hint)
        }
        None => run::failure_error(&failure, has_output),
    };
    let error = error.for_item(item).detail("data", outcome.data).detail("type", "tool");
    let error = output.refusals.into_iter().fold(error, Error::hint);
    Err(extra.into_iter().fold(error, |error, (key, value)| error.detail(&key, value)))
}

fn check_parameters(chain: &Chain, request: &ExecuteRequest) -> Result<Map<String, Value>> {
    let tool = chain.tool();
    let schema = tool.schema();
    let mut values = request.parameters.clone();
    values.extend(parameters::parse_words(&request.words, schema));
    if values.contains_key(config_resolve::RESOLVED_PARAMETER) {
        let name = config_resolve::RESOLVED_PARAMETER;
        let message =
            format!("`{name}` is not a parameter of a call: it holds the settings that the tool asks for");
        return Err(Error::new(Code::InvalidParameters, message)
            .for_item(&request.item)
            .hint("leave it out, and set what the tool reads in .ai/config"));
    }
    let given: Vec<String> = values.keys().cloned().collect();
    parameters::check(values, schema).map_err(|error| {
        let message = error.to_string();
        match error {
            ParameterError::Invalid(violations) => {
                let properties =
                    schema.and_then(|schema| schema.get("properties")).and_then(Value::as_object);
                let declared: Vec<&str> =
                    properties.into_iter().flat_map(|map| map.keys()).map(String::as_str).collect();
                let error = Error::new(Code::InvalidParameters, format!("invalid parameters: {message}"))
                    .for_item(&request.item)
                    .detail("violations", json!(violations))
                    .detail("declared_inputs", schema.cloned().unwrap_or_default());
                crate::missing::hint_misspelled(error, &given, &declared)
                    .hint(format!("see what it takes: rye load tool {}", tool.id()))
            }
            ParameterError::Schema(_) => {
                Error::new(Code::Invalid, format!("tool {}: {message}", tool.id())).for_item(&request.item)
            }
        }
    })
}

/// What a lockfile pins of this chain, the files beside the tool included.
pub(crate) fn resolve_staged(engine: &Engine, chain: &Chain) -> Result<ResolvedTool> {
    let staged = run_plan::stage(engine, chain, None, &mut RunMessages::default())?;
    Ok(resolve_with_imports(engine, chain, &staged))
}

fn resolve_with_imports(engine: &Engine, chain: &Chain, staged: &run_plan::StagedRun) -> ResolvedTool {
    ResolvedTool {
        verified_deps: staged.verified_deps.clone(),
        ..crate::resolve::resolve_chain(engine, chain)
    }
}

fn check_locks(
    engine: &Engine,
    request: &ExecuteRequest,
    resolved: &ResolvedTool,
    trace: &mut RunTrace,
    messages: &mut RunMessages,
) -> Result<LockState> {
    let state = lockfiles::enforce(engine, resolved, request.lock_mode)?;
    match &state {
        LockState::None => messages.warnings.extend(lockfiles::moved_project_hint(engine, resolved)),
        // Nothing will be written: what is stale stays so.
        LockState::Stale { path, why }
            if request.mode == ExecuteMode::DryRun || request.lock_mode == LockMode::Frozen =>
        {
            messages.notes.push(stale_note(path, why, &request.item));
        }
        LockState::Mismatch(mismatch) => {
            let what = mismatch.differences.first().map(ToString::to_string).unwrap_or_default();
            messages.warnings.push(format!(
                "development mode: {} doesn't match its lockfile `{}`: {what}; signing it pins it again",
                mismatch.tool_id,
                mismatch.path.display()
            ));
        }
        LockState::Stale { .. } | LockState::Matched { .. } => {}
    }
    trace.add_step("lock", || lock_summary(&state));
    Ok(state)
}

fn lock_summary(state: &LockState) -> Value {
    let (word, paths): (_, Vec<String>) = match state {
        LockState::None => ("none", Vec::new()),
        LockState::Matched { lockfiles } => {
            ("held", lockfiles.iter().map(|path| path.display().to_string()).collect())
        }
        LockState::Stale { path, .. } => ("stale", vec![path.display().to_string()]),
        LockState::Mismatch(mismatch) => ("mismatch", vec![mismatch.path.display().to_string()]),
    };
    json!({"state": word, "paths": paths})
}

fn report_chain(engine: &Engine, chain: &Chain, trace: &mut RunTrace, messages: &mut RunMessages) {
    for element in chain.elements() {
        let item = element.item();
        if item.is_forgiven() {
            let verdict = item.report().verdict.as_str();
            messages.warnings.push(format!("development mode: {} is {verdict}", element.id()));
        }
        trace.add_step("resolve", || {
            let candidates = engine.workspace.spaces.candidate_paths(item.item_ref());
            // Only what lies below it: a space above may hold an item of this id that this element may not use.
            let shadows: Vec<String> = candidates
                .iter()
                .skip_while(|candidate| candidate.space != *element.space())
                .skip(1)
                .filter(|candidate| candidate.is_found)
                .map(|candidate| candidate.space.to_string())
                .collect();
            json!({
                "item_id": element.id().to_string(),
                "space": element.space(),
                "path": item.path.display().to_string(),
                "shadowed": shadows,
            })
        });
        trace.add_step("verify", || {
            json!({
                "item_id": element.id().to_string(),
                "verdict": item.report().verdict.as_str(),
                "coverage": item.report().coverage.as_str(),
                "key": item.report().fingerprint().map(|key| key.to_string()),
                "integrity": element.integrity(),
            })
        });
    }
    trace.add_step("validate", || json!({"valid": true, "pairs": chain.elements().len() - 1}));
}

fn trace_plan(plan: &RunPlan, trace: &mut RunTrace) {
    for (item, keys) in &plan.environment.contributions {
        trace.add_step("environment", || json!({"contributed_by": item, "keys": keys}));
    }
    trace.add_step("sandbox", || plan.sandbox_summary());
}

fn chain_summary(chain: &Chain) -> Value {
    let row = |element: &Element| {
        json!({
            "item_id": element.id().to_string(),
            "space": element.space(),
            "path": element.item().path.display().to_string(),
            "integrity": element.integrity(),
        })
    };
    Value::Array(chain.elements().iter().map(row).collect())
}

/// A runtime's own program is named instead of shown when it is longer than this.
const MAX_SHOWN_PROGRAM: usize = 200;

/// The arguments as they will be passed; a long program that a runtime brings along is named only.
fn shown_arguments(chain: &Chain, arguments: &[String]) -> Vec<String> {
    let programs: Vec<(&Element, &str)> = chain
        .elements()
        .iter()
        .skip(1)
        .filter_map(|element| Some((element, element.object("config")?.get("args")?.as_array()?)))
        .flat_map(|(element, args)| args.iter().filter_map(move |arg| Some((element, arg.as_str()?))))
        .filter(|(_, program)| program.len() > MAX_SHOWN_PROGRAM)
        .collect();
    let shown = |argument: &String| {
        let program = programs.iter().find(|(_, program)| program.trim() == argument.trim());
        program.map_or_else(|| argument.clone(), |(element, _)| format!("<program of {}>", element.id()))
    };
    arguments.iter().map(shown).collect()
}

fn invocation_summary(chain: &Chain, plan: &RunPlan) -> Value {
    match &plan.invocation {
        Invocation::Process(process) => json!({
            "command": process.command,
            "arguments": shown_arguments(chain, &process.arguments),
            "timeout_seconds": process.timeout.as_secs_f64(),
        }),
        Invocation::Http(http) => json!({"url": http.url_template, "method": http.config.get("method")}),
        Invocation::Native(native) => json!({"function": native.function}),
    }
}

fn elapsed_ms(started: Instant) -> f64 {
    (started.elapsed().as_secs_f64() * 1e6).round() / 1e3
}
