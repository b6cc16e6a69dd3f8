//! Labels: what a thread needs of a worker, what a worker offers, and why a thread waits.

use std::collections::{BTreeMap, BTreeSet};

use rye_engine::{Code, Engine, Error, Result};
use rye_item::text::one_line;
use rye_item::{ItemRef, Space};
use rye_trust::Subject;
use serde::{Deserialize, Serialize};

use super::submission::SubmissionBody;
use crate::models::{OFFLINE_PROVIDER, Providers};
use crate::spec::ThreadTemplate;
use crate::store::{Owner, StoreHandle, ThreadRow, current_owner, is_owner_gone};

/// What stands before a worker's name where a machine's name would be in an owner.
pub const WORKER_HOST: &str = "worker:";
/// The longest label.
const MAX_LABEL_CHARS: usize = 100;
/// Workers that are named.
const MAX_NAMED: usize = 5;

/// What a worker says of itself. Values of secrets are not in it, only their names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerOffer {
    /// The release it runs.
    pub rye: String,
    /// Its machine.
    pub host: String,
    /// Its process there.
    #[serde(default)]
    pub process: Option<WorkerProcess>,
    /// What it offers.
    pub labels: BTreeSet<String>,
    /// How many trees it runs at once.
    pub max_threads: usize,
    /// How many threads it runs now.
    pub running: usize,
    /// Whether it takes no more.
    pub is_draining: bool,
    /// The keys of people whose submissions it accepts, by fingerprint.
    pub users: Vec<String>,
}

/// The process of a worker, told apart from a later one with the same number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerProcess {
    pid: u32,
    start: u64,
    boot: String,
}

impl WorkerProcess {
    /// This one.
    pub(super) fn current() -> Self {
        let Owner { pid, pid_start, boot_id, .. } = current_owner();
        Self { pid, start: pid_start, boot: boot_id }
    }

    /// Whether it is certainly gone, if it was one of this machine.
    pub(super) fn is_gone(&self) -> bool {
        let this = current_owner();
        let owner = Owner {
            pid: self.pid,
            pid_start: self.start,
            boot_id: self.boot.clone(),
            host: this.host.clone(),
        };
        is_owner_gone(&owner, &this)
    }
}

impl WorkerOffer {
    /// What of these it does not offer.
    #[must_use]
    pub fn missing(&self, needed: &[String]) -> Vec<String> {
        needed.iter().filter(|label| !self.labels.contains(*label)).cloned().collect()
    }
}

/// A label as people write it.
///
/// # Errors
/// When it is none.
pub(super) fn parse_label(text: &str) -> Result<String> {
    let is_plain = |character: char| character.is_ascii_alphanumeric() || "-_./:@+".contains(character);
    if !text.is_empty() && text.len() <= MAX_LABEL_CHARS && text.chars().all(is_plain) {
        return Ok(text.to_owned());
    }
    let message = format!("invalid label `{}`: letters, digits and -_./:@+ are", one_line(text));
    Err(Error::new(Code::InvalidArgument, message))
}

/// The label of a provider.
pub(super) fn provider_label(name: &str) -> String {
    format!("provider:{name}")
}

/// The label of a secret that is offered by name.
pub(super) fn secret_label(name: &str) -> String {
    format!("secret:{name}")
}

fn bundle_label(engine: &Engine, space: &Space) -> Option<String> {
    let Space::System(id) = space else { return None };
    let bundle = engine.workspace.spaces.bundles().iter().find(|bundle| bundle.id == *id)?;
    // What is inside the binary is everywhere.
    let is_embedded = bundle.trust == rye_space::bundle::BundleTrust::Embedded;
    (!is_embedded || bundle.is_opt_in()).then(|| format!("bundle:{id}@{}", bundle.version))
}

/// The variables whose values a project's own providers would be sent: a worker must offer them by name.
pub(super) fn project_keys(engine: &Engine, template: &ThreadTemplate) -> BTreeSet<String> {
    let providers = Providers::discover(&engine.workspace);
    let fallbacks = template.fallbacks.iter().map(|fallback| fallback.provider.as_str());
    let names = std::iter::once(template.provider.as_str()).chain(fallbacks);
    names.filter_map(|name| providers.project_key(&engine.workspace, name)).collect()
}

/// What a thread needs: its provider, and the bundles whose tools it is offered.
pub(super) fn needed_labels(engine: &Engine, template: &ThreadTemplate) -> BTreeSet<String> {
    let mut labels: BTreeSet<String> =
        project_keys(engine, template).iter().map(|variable| secret_label(variable)).collect();
    let providers = Providers::discover(&engine.workspace);
    let is_own = |name: &str| providers.project_key(&engine.workspace, name).is_none();
    if template.provider != OFFLINE_PROVIDER
        && is_own(&template.provider)
        && providers.needs_key(&template.provider, &template.model)
    {
        labels.insert(provider_label(&template.provider));
    }
    for tool in template.definitions.tools.iter() {
        let item = tool.target.get("item_id").and_then(serde_json::Value::as_str);
        let item = item.and_then(|id| ItemRef::parse(Some("tool"), id).ok());
        let located = item.and_then(|item| engine.workspace.spaces.locate(&item, None).ok());
        labels.extend(located.and_then(|located| bundle_label(engine, located.space())));
    }
    labels
}

/// What this machine offers by itself: providers whose keys are set, and bundles.
pub(super) fn offered_labels(engine: &Engine, environment: &BTreeMap<String, String>) -> BTreeSet<String> {
    let providers = Providers::discover(&engine.workspace);
    let mut labels: BTreeSet<String> =
        providers.configured(environment).into_iter().map(|name| provider_label(&name)).collect();
    let bundles = engine.workspace.spaces.bundles().iter();
    labels.extend(bundles.filter_map(|bundle| bundle_label(engine, &Space::System(bundle.id.clone()))));
    labels
}

/// Why a submitted thread is not running yet; `None` for any other.
#[must_use]
pub fn placement_reason(store: &StoreHandle, row: &ThreadRow) -> Option<String> {
    if !row.is_submitted || !row.status.is_at_work() {
        return None;
    }
    let submission = store.submission(&row.id).ok()??;
    let bytes = store.blob(&submission.digest).ok()?;
    let (body, submitter) = (SubmissionBody::peek(&bytes)?, SubmissionBody::peek_signer(&bytes)?);
    let offers: Vec<(String, WorkerOffer)> = store
        .workers()
        .ok()?
        .into_iter()
        .filter_map(|worker| {
            let mut offer: WorkerOffer = serde_json::from_str(&worker.body).ok()?;
            // What a worker's own key submits counts there too.
            offer.users.push(worker.signer?);
            Some((worker.name, offer))
        })
        .collect();
    Some(explain(&body.labels, &submitter, &offers))
}

fn explain(needed: &[String], submitter: &str, offers: &[(String, WorkerOffer)]) -> String {
    if offers.is_empty() {
        return "no worker is running; start one: rye worker --on NAME".to_owned();
    }
    let mut lacking = Vec::new();
    for (name, offer) in offers {
        if !offer.users.iter().any(|user| user == submitter) {
            lacking.push(format!("{} does not list the key {}", one_line(name), one_line(submitter)));
            continue;
        }
        let missing = offer.missing(needed);
        match (missing.as_slice(), offer.is_draining) {
            ([], false) => return format!("waits for a free place on {}", one_line(name)),
            ([], true) => lacking.push(format!("{} is draining", one_line(name))),
            (missing, _) => {
                let missing: Vec<String> = missing.iter().map(|label| one_line(label)).collect();
                lacking.push(format!("{} lacks {}", one_line(name), missing.join(", ")));
            }
        }
    }
    lacking.truncate(MAX_NAMED);
    format!("no worker fits: {}", lacking.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(name: &str, labels: &[&str], is_draining: bool) -> (String, WorkerOffer) {
        let labels = labels.iter().map(|label| (*label).to_owned()).collect();
        let users = vec!["ada".to_owned()];
        (name.to_owned(), WorkerOffer { labels, is_draining, users, ..WorkerOffer::default() })
    }

    #[test]
    fn missing_labels_are_named() {
        let needed = ["gpu".to_owned(), "provider:anthropic".to_owned()];
        let small = offer("small", &["provider:anthropic"], false);
        let ending = offer("ending", &["gpu", "provider:anthropic"], true);
        let fitting = offer("big", &["gpu", "provider:anthropic", "eu"], false);
        assert_eq!(explain(&needed, "ada", &[]), "no worker is running; start one: rye worker --on NAME");
        assert_eq!(
            explain(&needed, "ada", &[small.clone(), ending.clone()]),
            "no worker fits: small lacks gpu; ending is draining"
        );
        assert_eq!(
            explain(&needed, "carl", std::slice::from_ref(&fitting)),
            "no worker fits: big does not list the key carl"
        );
        assert_eq!(explain(&needed, "ada", &[small, ending, fitting]), "waits for a free place on big");
    }

    #[test]
    fn labels_are_plain_words() {
        for label in ["gpu", "bundle:ryeos-web@1.2.0", "region.eu-1"] {
            assert_eq!(parse_label(label).ok().as_deref(), Some(label));
        }
        for label in ["", "two words", "a\nb", "ü"] {
            assert!(parse_label(label).is_err(), "{label}");
        }
    }
}
