//! `thread rebuild`: lists the threads of a lost store again. And what `doctor` says of the store.

use rye_agent::models::Providers;
use rye_agent::store::{LedgerSpec, StoreCondition, check_rolling_budgets, inspect_store};
use rye_agent::threads::{RebuildSetup, rebuild_store};
use rye_engine::verbs::doctor::{DoctorFinding, Severity};
use rye_item::Space;
use rye_item::text::{counted, one_line};
use serde_json::json;

use super::thread_index::threads_dir;
use crate::commands::{CommandContext, CommandResult};
use crate::output::display_path;
use crate::settings;

/// The command that lists the threads of a lost store again.
const REBUILD_REMEDY: &str =
    "restore it from a backup; without one, list the threads again from their folders: rye thread rebuild";

/// `rye thread rebuild`
pub fn rebuild(context: &CommandContext) -> CommandResult {
    let folder = threads_dir(&context.settings);
    let ring = &context.engine.workspace.keys;
    let keys = |fingerprint: &lillux::Fingerprint| {
        ring.find(fingerprint, &Space::User).map(|known| known.key.clone())
    };
    let report = rebuild_store(&RebuildSetup {
        folder: &folder,
        signing_keys: &context.settings.roots.signing_keys,
        spec: &LedgerSpec::default(),
        keys: &keys,
        now_ms: settings::now_ms(),
    })?;
    let Some(report) = report else {
        if !context.print_if_json(Some("thread"), None, &json!({"is_rebuilt": false}))? {
            context.output.print("nothing is lost: the store of threads can be read")?;
        }
        return Ok(());
    };
    let data = json!({"is_rebuilt": true, "report": report});
    if context.print_if_json(Some("thread"), None, &data)? {
        return Ok(());
    }
    let output = &context.output;
    output.print(format_args!("listed {} again", counted(report.threads.len(), "thread")))?;
    let cut_short = report.threads.iter().filter(|thread| thread.is_cut_short).count();
    if cut_short > 0 {
        output.warn(format_args!(
            "{} had not ended: marked as failed, because the journal to resume from is lost",
            counted(cut_short, "thread")
        ));
    }
    for (id, reason) in &report.skipped {
        output.warn(format_args!("{id} was left out: {}", one_line(reason)));
    }
    if let Some(kept) = &report.kept {
        output.note(format_args!("the old database is kept: {}", display_path(kept)));
    }
    if report.is_new_secret {
        output.warn("there is a new secret: threads of your other projects need the same command there");
    }
    Ok(())
}

/// Says when what was spent of the budgets of days and months is lost: no call that they limit is made.
pub fn check_budgets(context: &CommandContext) -> Option<DoctorFinding> {
    let keys = &context.settings.roots.signing_keys;
    let failure = rye_engine::Error::from(check_rolling_budgets(keys).err()?);
    Some(DoctorFinding {
        check: "budgets",
        level: Severity::Error,
        message: failure.message,
        remedy: failure.hints.first().cloned(),
        path: Some(keys.clone()),
    })
}

/// Which models can be asked.
pub fn check_models(context: &CommandContext) -> Option<DoctorFinding> {
    let providers = Providers::discover(&context.engine.workspace);
    let environment = context.settings.host().variables;
    let with_key = providers.with_key(&environment);
    let (level, message, remedy) = match providers.key_hint(&environment) {
        None if with_key.is_empty() => return None,
        None => (Severity::Ok, format!("a key is set for {}", with_key.join(", ")), None),
        hint => (Severity::Info, "no key of a model is set: threads run offline".to_owned(), hint),
    };
    Some(DoctorFinding { check: "models", level, message, remedy, path: None })
}

/// What is to be said of the store of threads, if there is one.
pub fn check_store(context: &CommandContext) -> Option<DoctorFinding> {
    let folder = threads_dir(&context.settings);
    let finding = |level: Severity, message: String, remedy: Option<&str>| DoctorFinding {
        check: "threads",
        level,
        message,
        remedy: remedy.map(str::to_owned),
        path: Some(folder.clone()),
    };
    let error = |message: String, remedy: &str| finding(Severity::Error, message, Some(remedy));
    Some(match inspect_store(&folder, &context.settings.roots.signing_keys) {
        Ok(StoreCondition::Absent) => return None,
        Ok(StoreCondition::Ready { threads }) => {
            finding(Severity::Ok, format!("the store holds {}", counted(threads, "thread")), None)
        }
        Ok(StoreCondition::Older { found }) => finding(
            Severity::Info,
            format!("the store has version {found}, of an older rye"),
            Some("nothing to do: the next command about threads brings it to this version"),
        ),
        Ok(StoreCondition::Newer { found, known }) => error(
            format!("the store has version {found}; this rye knows versions up to {known}"),
            "use the newer rye",
        ),
        Ok(StoreCondition::Damaged { reason }) => {
            error(format!("the store is damaged: {reason}"), REBUILD_REMEDY)
        }
        Ok(StoreCondition::Lost { folders }) => error(
            format!("the store is missing or empty, beside {}", counted(folders, "thread folder")),
            REBUILD_REMEDY,
        ),
        Ok(StoreCondition::SecretLost { path }) => error(
            format!("the secret that seals your threads is missing: {}", display_path(&path)),
            REBUILD_REMEDY,
        ),
        Ok(StoreCondition::OtherSecret { threads }) => error(
            format!(
                "{} here not sealed with your secret",
                match threads {
                    1 => "the thread is".to_owned(),
                    threads => format!("all {threads} threads are"),
                }
            ),
            "restore the secret they were sealed with; without it, list them again from their folders: rye thread rebuild",
        ),
        Err(failure) => {
            let failure = rye_engine::Error::from(failure);
            let remedy = failure.hints.first().cloned().unwrap_or_default();
            error(failure.message, &remedy)
        }
    })
}
