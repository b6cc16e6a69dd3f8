//! The walk of a tool: resolve → verify → validate → parameters → stage → lock → environment → sandbox → run → record.

use std::path::Path;
use std::time::Instant;

use rye_exec::parameters::{self, ParameterError};
use rye_exec::{Chain, Element, Invocation};
use rye_item::ItemRef;
use serde_json::{Map, Value, json};

use super::finder::HelperRun;
use super::run::{self, Ran};
use super::surroundings::{self, Surroundings};
use super::trace::Trace;
use super::{Answer, Caller, Mode, Request, config, first_use, packages};
use crate::chains;
use crate::engine::Engine;
use crate::error::{Code, Error, Result};
use crate::lockfiles::{self, Demand, Recorded, Resolved, State};
use crate::primaries;

/// What is told beside a result.
#[derive(Debug, Default)]
pub(super) struct Told {
    pub(super) warnings: Vec<String>,
    /// Who reads it.
    pub(super) caller: Caller,
    pub(super) notes: Vec<String>,
    /// What was run for the tool before the tool itself.
    pub(super) helpers: Vec<HelperRun>,
}

pub(super) fn execute(engine: &Engine, request: &Request) -> Result<Answer> {
    let started = Instant::now();
    let (chain, warnings) = chains::build_valid(engine, &request.item, None)?;
    walk(engine, request, started, &chain, warnings)
}

/// The same for a function that touches nothing, and for what is refused; `None` for what takes longer.
pub(super) fn execute_at_once(engine: &Engine, request: &Request) -> Option<Result<Answer>> {
    let started = Instant::now();
    match chains::build_valid(engine, &request.item, None) {
        Ok((chain, warnings)) if surroundings::touches_nothing(engine, &chain) => {
            Some(walk(engine, request, started, &chain, warnings))
        }
        Ok(_) => None,
        Err(error) => Some(Err(error)),
    }
}

fn walk(
    engine: &Engine,
    request: &Request,
    started: Instant,
    chain: &Chain,
    warnings: Vec<String>,
) -> Result<Answer> {
    let item = &request.item;
    let mut trace = Trace::new(request.wants_trace);
    let mut told = Told { warnings, caller: request.caller, ..Told::default() };
    tell_chain(engine, chain, &mut trace, &mut told);
    let parameters = checked_parameters(chain, request)?;
    let wanted_config = config::resolve(engine, chain, &mut told.warnings)?;
    let wanted = packages::wanted(engine, chain, request.demand)?;
    if wanted.is_some() {
        // Packages may have to come from far away.
        request.begins_to_wait();
    }
    let staged = surroundings::stage(engine, chain, wanted, &mut told)?;
    let mut resolved = resolution(engine, chain, &staged);
    // Before anything is installed: what is refused anyway costs nothing.
    let mut locks = check_locks(engine, request, &resolved, &mut trace, &mut told)?;
    let given = surroundings::Call { request, parameters: &parameters, config: wanted_config.as_ref() };
    let mut around = surroundings::surround(engine, chain, &staged, &given, &mut told)?;
    if let Some(packages) = around.packages.take() {
        trace.step("packages", || packages.shown());
        resolved.dependencies = packages.installed;
        locks = lockfiles::enforce(engine, &resolved, request.demand)?;
    }
    tell_surroundings(&around, &mut trace);
    let mut facts = Map::new();
    facts.insert("chain".to_owned(), shown_chain(chain));
    if request.mode == Mode::DryRun {
        facts.insert("validated_pairs".to_owned(), json!(chain.elements().len() - 1));
        facts.insert("message".to_owned(), json!("Tool chain validation passed (dry run)"));
        finish(&mut facts, trace, told);
        let data = json!({"parameters": parameters, "invocation": shown_invocation(&around)});
        if let Some(temporary) = around.temporary.take() {
            engine.host.temporaries.give_back(temporary);
        }
        return Ok(Answer { item: item.clone(), status: "validation_passed", data, facts });
    }
    let is_first_use = first_use::mark(engine, item);
    let ran = run::run(engine, &around, &parameters, wanted_config.as_ref(), request);
    if let Some(temporary) = around.temporary.take() {
        engine.host.temporaries.give_back(temporary);
    }
    let ran = ran?;
    trace.step("run", || ran.trace.clone());
    told.warnings.extend(ran.warnings.iter().cloned());
    facts.insert("duration_ms".to_owned(), json!(round_ms(started)));
    facts.insert("first_use".to_owned(), json!(is_first_use));
    if let Some(receipt) = &ran.receipt {
        facts.insert("sandbox".to_owned(), receipt.clone());
    }
    let mut lock = shown_lock(&locks);
    // What held before the run is there; whoever changed it meanwhile is noticed by the next.
    let is_pinned = matches!(locks, State::Held { .. }) && resolved.dependencies.is_none();
    if ran.outcome.failure.is_none() && !is_pinned && request.demand != Demand::Frozen {
        match lockfiles::record(engine, &resolved, request.demand) {
            Ok(recorded) => tell_recorded(&locks, recorded, item, &mut lock, &mut told),
            // The tool has run: its result counts, whatever becomes of the pin.
            Err(error) => told.warnings.push(format!("it ran, but is not pinned: {}", error.message)),
        }
    }
    facts.insert("lock".to_owned(), lock);
    told.warnings.extend(silent_function(chain, &ran));
    let hint = typescript_hint(chain, &ran);
    answer(item, ran, facts, trace, told).map_err(|error| match hint {
        Some(hint) => error.hint(hint),
        None => error,
    })
}

/// A tool that defines `execute` and was run as a program that printed nothing.
fn silent_function(chain: &Chain, ran: &Ran) -> Option<String> {
    let tool = chain.tool().item();
    let text = |key: &str| ran.outcome.data.get(key).and_then(Value::as_str);
    let is_silent = ran.outcome.failure.is_none() && text("stdout") == Some("") && text("stderr") == Some("");
    let language = if tool.extension == ".py" { "python" } else { "node" };
    (is_silent && tool.defines_execute()).then(|| {
        format!(
            "it printed nothing, and its function `execute` was not called: a tool that is a function names the executor \
             `rye/core/runtimes/{language}/function`"
        )
    })
}

/// What to install where this Node cannot read TypeScript.
fn typescript_hint(chain: &Chain, ran: &Ran) -> Option<&'static str> {
    let is_typed = matches!(chain.tool().item().extension.as_str(), ".ts" | ".mts" | ".cts" | ".tsx");
    let is_unknown = ran.outcome.logs.stderr.contains("ERR_UNKNOWN_FILE_EXTENSION");
    (is_typed && is_unknown && ran.outcome.failure.is_some()).then_some(
        "this Node does not read TypeScript: install Node 22.18 or later; or, for a tool that is a program, add tsx to the \
         project and record it: npm install --save-dev tsx && rye trust .",
    )
}

/// Says what was written after a run, and which lockfile is still stale.
fn tell_recorded(
    before: &State,
    recorded: Option<Recorded>,
    item: &ItemRef,
    lock: &mut Value,
    told: &mut Told,
) {
    let written = recorded.as_ref().map(|recorded| recorded.path.clone());
    if let Some(recorded) = recorded {
        let path = recorded.path.display().to_string();
        told.notes.push(match recorded.replaced {
            Some(why) => format!("replaced the lockfile {path}: {why}"),
            None => format!("pinned in {path}"),
        });
        lock["created"] = json!(path);
    }
    if let State::Stale { path, why } = before
        && written.as_ref() != Some(path)
    {
        told.notes.push(stale_note(path, why, item));
    }
}

fn stale_note(path: &Path, why: &str, item: &ItemRef) -> String {
    format!(
        "the lockfile {} is stale: {why}; bring it up to date: rye lock update {}",
        path.display(),
        item.id
    )
}

fn finish(facts: &mut Map<String, Value>, trace: Trace, mut told: Told) {
    told.warnings.extend(told.helpers.iter().flat_map(HelperRun::warnings));
    if !told.helpers.is_empty() {
        let helpers: Vec<Value> = told.helpers.iter().map(HelperRun::to_value).collect();
        facts.insert("helpers".to_owned(), json!(helpers));
    }
    for (key, mut lines) in [("warnings", told.warnings), ("notes", told.notes)] {
        if told.caller != Caller::Person {
            lines.iter_mut().for_each(primaries::address_user);
        }
        if !lines.is_empty() {
            facts.insert(key.to_owned(), json!(lines));
        }
    }
    trace.into_facts(facts);
}

fn answer(
    item: &ItemRef,
    ran: Ran,
    mut facts: Map<String, Value>,
    trace: Trace,
    told: Told,
) -> Result<Answer> {
    let outcome = ran.outcome;
    facts.insert("logs".to_owned(), json!(outcome.logs));
    facts.insert("truncated".to_owned(), json!(outcome.is_truncated));
    finish(&mut facts, trace, told);
    let Some(failure) = outcome.failure else {
        return Ok(Answer { item: item.clone(), status: "success", data: outcome.data, facts });
    };
    let error = run::error_of(&failure).of(item).detail("data", outcome.data).detail("type", "tool");
    let error = ran.refusals.into_iter().fold(error, Error::hint);
    Err(facts.into_iter().fold(error, |error, (key, value)| error.detail(&key, value)))
}

fn checked_parameters(chain: &Chain, request: &Request) -> Result<Map<String, Value>> {
    let tool = chain.tool();
    let schema = tool.schema();
    let mut given = request.parameters.clone();
    given.extend(parameters::typed(&request.words, schema));
    if given.contains_key(config::RESOLVED_PARAMETER) {
        let name = config::RESOLVED_PARAMETER;
        let message =
            format!("`{name}` is not a parameter of a call: it holds the settings that the tool asks for");
        return Err(Error::new(Code::InvalidParameters, message)
            .of(&request.item)
            .hint("leave it out, and set what the tool reads in .ai/config"));
    }
    parameters::check(given, schema).map_err(|error| {
        let message = error.to_string();
        match error {
            ParameterError::Invalid(violations) => {
                Error::new(Code::InvalidParameters, format!("the parameters do not fit: {message}"))
                    .of(&request.item)
                    .detail("violations", json!(violations))
                    .detail("declared_inputs", schema.cloned().unwrap_or_default())
                    .hint(format!("see what it takes: rye load tool {}", tool.id()))
            }
            ParameterError::Schema(_) => {
                Error::new(Code::Invalid, format!("tool {}: {message}", tool.id())).of(&request.item)
            }
        }
    })
}

/// What a lockfile pins of this chain, the files beside the tool included.
pub(crate) fn resolution_of(engine: &Engine, chain: &Chain) -> Result<Resolved> {
    let staged = surroundings::stage(engine, chain, None, &mut Told::default())?;
    Ok(resolution(engine, chain, &staged))
}

fn resolution(engine: &Engine, chain: &Chain, staged: &surroundings::Staged) -> Resolved {
    Resolved { verified_deps: staged.verified_deps.clone(), ..crate::resolved::of_chain(engine, chain) }
}

fn check_locks(
    engine: &Engine,
    request: &Request,
    resolved: &Resolved,
    trace: &mut Trace,
    told: &mut Told,
) -> Result<State> {
    let state = lockfiles::enforce(engine, resolved, request.demand)?;
    match &state {
        State::None => told.warnings.extend(lockfiles::moved_pin(engine, resolved)),
        // Nothing will be written: what is stale stays so.
        State::Stale { path, why } if request.mode == Mode::DryRun || request.demand == Demand::Frozen => {
            told.notes.push(stale_note(path, why, &request.item));
        }
        State::Stale { .. } | State::Held { .. } | State::Mismatch(_) => {}
    }
    trace.step("lock", || shown_lock(&state));
    Ok(state)
}

fn shown_lock(state: &State) -> Value {
    let (word, paths): (_, Vec<String>) = match state {
        State::None => ("none", Vec::new()),
        State::Held { lockfiles } => {
            ("held", lockfiles.iter().map(|path| path.display().to_string()).collect())
        }
        State::Stale { path, .. } => ("stale", vec![path.display().to_string()]),
        State::Mismatch(mismatch) => ("mismatch", vec![mismatch.path.display().to_string()]),
    };
    json!({"state": word, "paths": paths})
}

fn tell_chain(engine: &Engine, chain: &Chain, trace: &mut Trace, told: &mut Told) {
    for element in chain.elements() {
        let item = element.item();
        if item.is_forgiven() {
            let verdict = item.report().verdict.as_str();
            told.warnings.push(format!("development mode forgives that {} is {verdict}", element.id()));
        }
        trace.step("resolve", || {
            let places = engine.workspace.spaces.places(item.item_ref());
            // Only what lies below it: a space above may hold an item of this id that this element may not use.
            let shadows: Vec<String> = places
                .iter()
                .skip_while(|place| place.space != *element.space())
                .skip(1)
                .filter(|place| place.is_found)
                .map(|place| place.space.to_string())
                .collect();
            json!({
                "item_id": element.id().to_string(),
                "space": element.space(),
                "path": item.path.display().to_string(),
                "shadowed": shadows,
            })
        });
        trace.step("verify", || {
            json!({
                "item_id": element.id().to_string(),
                "verdict": item.report().verdict.as_str(),
                "coverage": item.report().coverage.as_str(),
                "key": item.report().fingerprint().map(|key| key.to_string()),
                "integrity": element.integrity(),
            })
        });
    }
    trace.step("validate", || json!({"valid": true, "pairs": chain.elements().len() - 1}));
}

fn tell_surroundings(around: &Surroundings, trace: &mut Trace) {
    for (item, keys) in &around.environment.contributed {
        trace.step("environment", || json!({"contributed_by": item, "keys": keys}));
    }
    trace.step("sandbox", || around.shown_sandbox());
}

fn shown_chain(chain: &Chain) -> Value {
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

fn shown_invocation(around: &Surroundings) -> Value {
    match &around.invocation {
        Invocation::Process(process) => json!({
            "command": process.command,
            "arguments": process.arguments,
            "timeout_seconds": process.timeout.as_secs_f64(),
        }),
        Invocation::Http(http) => json!({"url": http.url_template, "method": http.config.get("method")}),
        Invocation::Native(native) => json!({"function": native.function}),
    }
}

fn round_ms(started: Instant) -> f64 {
    (started.elapsed().as_secs_f64() * 1e6).round() / 1e3
}
