//! What `doctor` says of the store that machines share.

use lillux::PublicKey;
use rye_agent::cluster::WorkerOffer;
use rye_agent::store::{SharedStoreConfig, key_text};
use rye_agent::views::ThreadIndex;
use rye_engine::verbs::doctor::{DoctorFinding, Severity};
use rye_item::text::{counted, one_line};

use crate::commands::CommandContext;
use crate::settings;

/// Clocks may differ by this much without a word.
const MAX_SKEW_MS: u64 = 2_000;
/// Workers and keys that are named.
const MAX_NAMED: usize = 20;

fn finding(level: Severity, message: String, remedy: Option<&str>) -> DoctorFinding {
    DoctorFinding { check: "store", level, message, remedy: remedy.map(str::to_owned), path: None }
}

/// What is to be said of the store that the settings name, and of those who work with it.
pub fn check_shared_store(context: &CommandContext, is_asked: bool) -> Vec<DoctorFinding> {
    let config = match SharedStoreConfig::current(&context.engine) {
        Ok(Some(config)) => config,
        Ok(None) if is_asked => {
            let message = "no store that machines share is set: each project has its own files".to_owned();
            let mut findings =
                vec![finding(Severity::Info, message, Some("docs/cluster.md says how to set one up"))];
            findings.extend(own_key_finding(context));
            return findings;
        }
        Ok(None) => return Vec::new(),
        Err(error) => {
            let remedy = error.hints.first().cloned();
            return vec![finding(Severity::Error, error.message, remedy.as_deref())];
        }
    };
    let mut findings = Vec::new();
    let known = check_database(&config, &mut findings);
    findings.extend(check_dispatch(&config));
    findings.extend(own_key_finding(context));
    if let Some(signers) = known {
        check_signers(context, &config, &signers, &mut findings);
        match ThreadIndex::open_shared(&context.engine, &config) {
            Ok(index) => check_workers(context, &index, &mut findings),
            Err(error) => {
                let remedy = error.hints.first().cloned();
                findings.push(finding(Severity::Error, error.message, remedy.as_deref()));
            }
        }
    }
    findings
}

/// Whether what calls workers answers, where settings name it.
fn check_dispatch(config: &SharedStoreConfig) -> Option<DoctorFinding> {
    let dispatch = config.dispatch()?;
    Some(match dispatch.inspect() {
        Ok(message) => finding(Severity::Ok, message, None),
        Err(error) => {
            let remedy = "is the server up, and is its address right in threads.stores.NAME.restate.ingress?";
            finding(Severity::Error, one_line(&error.message), Some(remedy))
        }
    })
}

/// Whether the database can be reached and used; gives the keys that its rows name if it can.
fn check_database(config: &SharedStoreConfig, findings: &mut Vec<DoctorFinding>) -> Option<Vec<String>> {
    let condition = match config.inspect(settings::now_ms()) {
        Ok(condition) => condition,
        Err(error) => {
            let remedy = "is the server up, and are address, role and password right? the password comes from the variable in \
                          password_env, PGPASSWORD or ~/.pgpass";
            findings.push(finding(Severity::Error, one_line(&error.message), Some(remedy)));
            return None;
        }
    };
    let threads = counted(usize::try_from(condition.threads).unwrap_or(usize::MAX), "thread");
    let message = format!("{}: PostgreSQL {}, {threads}", config.address(), one_line(&condition.server));
    findings.push(finding(Severity::Ok, message, None));
    if condition.version > condition.known {
        let message =
            format!("its schema has version {}; this rye knows {}", condition.version, condition.known);
        findings.push(finding(Severity::Error, message, Some("use the newer rye")));
        return None;
    }
    if condition.version < condition.known {
        let message = match condition.version {
            0 => "it has no schema yet".to_owned(),
            version => format!("its schema has version {version}, of an older rye"),
        };
        let remedy = "nothing to do: the next command about threads brings it to this version";
        findings.push(finding(Severity::Info, message, Some(remedy)));
    }
    if !condition.has_rights {
        let message = "the role may not read and change all tables of the schema".to_owned();
        findings.push(finding(
            Severity::Error,
            message,
            Some("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA …; USAGE on its sequences; docs/cluster.md"),
        ));
        return None;
    }
    if condition.skew_ms.unsigned_abs() > MAX_SKEW_MS {
        let message =
            format!("the database's clock differs from this machine's by {} s", condition.skew_ms / 1000);
        let remedy =
            "leases follow the database's clock, so nothing breaks; set the clocks for readable times";
        findings.push(finding(Severity::Warning, message, Some(remedy)));
    }
    Some(condition.signers)
}

/// The own key, as settings of others list it.
fn own_key_finding(context: &CommandContext) -> Option<DoctorFinding> {
    let key = context.engine.workspace.own_key.as_ref()?;
    let message = format!("your key, for threads.stores.NAME.users or workers of others: {}", key_text(key));
    Some(finding(Severity::Info, message, None))
}

/// Rows of keys that are not listed are shown as forged: whose they are is for the user to know.
fn check_signers(
    context: &CommandContext,
    config: &SharedStoreConfig,
    signers: &[String],
    findings: &mut Vec<DoctorFinding>,
) {
    let own = context.engine.workspace.own_key.clone();
    let known: Vec<String> =
        config.keys.current().signers().iter().chain(own.as_ref()).map(fingerprint).collect();
    for signer in signers.iter().filter(|signer| !known.contains(signer)).take(MAX_NAMED) {
        let message = format!("threads are signed by {}, a key that is not listed", one_line(signer));
        let remedy = "if you know whose it is, list its public key in threads.stores.NAME.users or workers";
        findings.push(finding(Severity::Warning, message, Some(remedy)));
    }
}

fn fingerprint(key: &PublicKey) -> String {
    key.fingerprint().to_string()
}

/// The workers at work, and those that do not know this user's key.
fn check_workers(context: &CommandContext, index: &ThreadIndex, findings: &mut Vec<DoctorFinding>) {
    let Ok(workers) = index.store.workers() else { return };
    let own = context.engine.workspace.own_key.as_ref().map(fingerprint).unwrap_or_default();
    for worker in workers.iter().take(MAX_NAMED) {
        let name = one_line(&worker.name);
        let offer = serde_json::from_str::<WorkerOffer>(&worker.body);
        let (Some(signer), Ok(offer)) = (&worker.signer, offer) else {
            let message = format!("worker {name} is signed by a key that is not listed");
            let remedy = "if it is one of yours, list its public key in threads.stores.NAME.workers";
            findings.push(finding(Severity::Warning, message, Some(remedy)));
            continue;
        };
        let labels: Vec<String> = offer.labels.iter().map(|label| one_line(label)).collect();
        let message = format!(
            "worker {name} on {}: rye {}, {} at work, offers {}",
            one_line(&offer.host),
            one_line(&offer.rye),
            counted(offer.running, "thread"),
            labels.join(", ")
        );
        findings.push(finding(Severity::Ok, message, None));
        if !offer.users.contains(&own) && *signer != own {
            let message = format!("worker {name} does not list your key: it refuses what you submit");
            let remedy = "list your public key in threads.stores.NAME.users on the worker";
            findings.push(finding(Severity::Warning, message, Some(remedy)));
        }
    }
    if workers.is_empty() {
        let message = "no worker is running".to_owned();
        findings.push(finding(Severity::Info, message, Some("start one: rye worker --on NAME")));
    }
}
