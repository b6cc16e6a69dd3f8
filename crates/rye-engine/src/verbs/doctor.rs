//! `doctor`: what is wrong with this setup, each finding with its remedy.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use lillux::file::{self, LockedTempDir};
use lillux::sandbox;
use rye_exec::environment::unlisted_dotenv_names;
use rye_item::text::{counted, quote_name, shell_word};
use rye_item::{ItemRef, ItemType, Space};
use rye_space::AI_FOLDER;
use rye_space::bundle::BundleTrust;
use rye_space::installed::{self, BundleInstallation};
use rye_space::search::SearchIndex;
use rye_trust::TrustVerdict;
use serde::Serialize;

use crate::engine::{DevMode, Engine};
use crate::error::{Code, Error};
use crate::error_refused::phrase;
use crate::verbs::verify::{self, VerifyProgress};
use crate::verbs::{bundles, config, keys};

mod interpreters;
mod placeholders;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// As it should be.
    Ok,
    /// Worth knowing.
    Info,
    /// Should be changed.
    Warning,
    /// Does not work.
    Error,
}

/// One thing that was looked at.
#[derive(Clone, Debug, Serialize)]
pub struct DoctorFinding {
    /// What was looked at.
    pub check: &'static str,
    /// How bad it is.
    pub level: Severity,
    /// What was found.
    pub message: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
    /// The file it concerns.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(serialize_with = "rye_space::serde_path::option")]
    pub path: Option<PathBuf>,
}

/// The answer of a doctor.
#[derive(Clone, Debug, Default, Serialize)]
pub struct DoctorReport {
    /// Everything that was looked at.
    pub findings: Vec<DoctorFinding>,
    /// How many are errors.
    pub errors: usize,
    /// How many are warnings.
    pub warnings: usize,
}

impl DoctorReport {
    /// Adds what was found elsewhere.
    pub fn extend(&mut self, findings: impl IntoIterator<Item = DoctorFinding>) {
        for finding in findings {
            self.errors += usize::from(finding.level == Severity::Error);
            self.warnings += usize::from(finding.level == Severity::Warning);
            self.findings.push(finding);
        }
    }
}

#[derive(Default)]
struct FindingList(Vec<DoctorFinding>);

impl FindingList {
    fn add(
        &mut self,
        check: &'static str,
        level: Severity,
        message: impl Into<String>,
    ) -> &mut DoctorFinding {
        let index = self.0.len();
        self.0.push(DoctorFinding { check, level, message: message.into(), remedy: None, path: None });
        &mut self.0[index]
    }
}

impl DoctorFinding {
    fn remedy(&mut self, remedy: impl Into<String>) -> &mut Self {
        self.remedy = Some(remedy.into());
        self
    }

    fn path(&mut self, path: impl Into<PathBuf>) -> &mut Self {
        self.path = Some(path.into());
        self
    }
}

/// Looks at everything.
#[must_use]
pub fn doctor(engine: &Engine, progress: VerifyProgress<'_>) -> DoctorReport {
    let mut findings = FindingList::default();
    check_key(engine, &mut findings);
    check_trust(engine, &mut findings);
    check_project(engine, &mut findings);
    placeholders::check(engine, &mut findings);
    let verification = verify::verify_all(engine, verify::VerifyOptions::default(), progress);
    check_config(engine, &verification, &mut findings);
    check_item_files(engine, &mut findings);
    check_items(engine, &verification, &mut findings);
    interpreters::check(engine, &mut findings);
    check_index(engine, &mut findings);
    check_sandbox(engine, &mut findings);
    let count = |level| findings.0.iter().filter(|finding| finding.level == level).count();
    DoctorReport { errors: count(Severity::Error), warnings: count(Severity::Warning), findings: findings.0 }
}

/// What this machine offers to confine tools.
fn check_sandbox(engine: &Engine, findings: &mut FindingList) {
    let receipt = match sandbox::probe(&engine.host.launcher) {
        Ok(receipt) => receipt,
        Err(error) => {
            findings
                .add("sandbox", Severity::Error, format!("tools cannot be run here: {error}"))
                .remedy("see docs/sandbox.md for the requirements");
            return;
        }
    };
    let mut mechanisms: Vec<String> = receipt
        .rows
        .iter()
        .filter(|row| row.is_enforced)
        .map(|row| {
            let name = serde_json::to_value(row.mechanism).ok();
            let name = name.as_ref().and_then(|name| name.as_str()).unwrap_or_default().replace('_', " ");
            row.abi.map_or(name.clone(), |abi| format!("{name} (ABI {abi})"))
        })
        .collect();
    mechanisms.sort();
    mechanisms.dedup();
    let mechanisms = mechanisms.join(", ");
    let Some(unmet) = receipt.describe_unenforced() else {
        findings.add("sandbox", Severity::Ok, format!("tools are confined in full: {mechanisms}"));
        return;
    };
    findings
        .add(
            "sandbox",
            Severity::Warning,
            format!("tools are confined in part: not enforced here: {}; in force: {mechanisms}", unmet),
        )
        .remedy("use a newer kernel, or allow user namespaces; `on_missing: refuse` in execution/sandbox.yaml refuses to run instead");
}

fn check_key(engine: &Engine, findings: &mut FindingList) {
    match engine.signing_key() {
        Ok(key) => {
            let public = key.public_key();
            let fingerprint = public.fingerprint();
            if engine.workspace.keys.is_trusted_everywhere(&public) {
                findings.add("key", Severity::Ok, format!("your key is {fingerprint}"));
            } else {
                findings
                    .add("key", Severity::Error, format!("your key {fingerprint} has no valid identity document: what you sign is untrusted"))
                    .remedy("rye init");
            }
            if engine.workspace.own_key.as_ref() != Some(&public) {
                findings
                    .add("key", Severity::Error, "public_key.pem is not the public half of private_key.pem")
                    .path(engine.workspace.roots.signing_keys.join("public_key.pem"))
                    .remedy("rye init recreates it; if private_key.pem is the wrong one, restore it first");
            }
        }
        Err(error) => add_error(findings, "key", &error),
    }
}

fn add_error(findings: &mut FindingList, check: &'static str, error: &Error) {
    let level = if error.code == Code::NoKey { Severity::Warning } else { Severity::Error };
    let finding = findings.add(check, level, error.message.clone());
    if let Some(hint) = error.hints.first() {
        finding.remedy(hint.clone());
    }
    if let Some(path) = error.details.get("path").and_then(|path| path.as_str()) {
        finding.path(path);
    }
}

fn check_trust(engine: &Engine, findings: &mut FindingList) {
    let listing = keys::list(engine);
    for broken in &listing.broken {
        findings
            .add("trust", Severity::Warning, format!("an identity document is ignored: {broken}"))
            .remedy("remove it, or ask its owner for a valid one");
    }
    for key in &listing.keys {
        match key.trust {
            "none" => {
                let reason = key.reason.clone().unwrap_or_default();
                let remedy = if reason.contains("changed since it was signed") {
                    "ask its owner for it again: rye keys export".to_owned()
                } else {
                    let path = shell_word(&key.path.display().to_string());
                    format!(
                        "nothing, unless its items should run here; then compare the fingerprint with its owner, and \
                         see what it signed: rye join; to trust it in this project only: rye keys trust {path} --space project"
                    )
                };
                findings
                    .add(
                        "trust",
                        Severity::Info,
                        format!(
                            "the key {} of {} is not trusted: {reason}",
                            key.fingerprint,
                            quote_name(&key.owner)
                        ),
                    )
                    .path(&key.path)
                    .remedy(remedy);
            }
            "revoked" => {
                findings
                    .add(
                        "trust",
                        Severity::Info,
                        format!("the key {} of {} is revoked", key.fingerprint, quote_name(&key.owner)),
                    )
                    .path(&key.path)
                    .remedy("nothing to do; its document may be removed, the revocation stays");
            }
            _ => {}
        }
    }
    let trusted = listing.keys.iter().filter(|key| !matches!(key.trust, "none" | "revoked")).count();
    findings.add("trust", Severity::Ok, counted(trusted, "trusted key"));
    for bundle in engine.workspace.spaces.bundles() {
        if bundle.trust == BundleTrust::NotApproved {
            findings
                .add(
                    "bundles",
                    Severity::Warning,
                    format!("the bundle `{}` is not approved: its items are refused", bundle.id),
                )
                .remedy(format!("rye verify --root it, then: rye bundle trust {}", bundle.id));
        }
    }
    let user_ai = engine.workspace.roots.user_ai();
    for id in installed::installed_ids(&user_ai) {
        let bundle = BundleInstallation::read(&user_ai, &Space::User, &id);
        for item in bundles::hidden_items(engine, &bundle) {
            findings
                .add(
                    "bundles",
                    Severity::Warning,
                    format!("{item} of the bundle `{id}` is hidden by project space"),
                )
                .remedy(format!("see which one runs here: rye why {} {}", item.item_type, item.id));
        }
    }
    for note in &engine.workspace.hints {
        findings
            .add("bundles", Severity::Info, note.clone())
            .remedy("if you do not want that: rye config show");
    }
    for notice in &engine.workspace.notices {
        findings.add("workspace", Severity::Warning, notice.clone()).remedy(
            "correct or remove what it names; rye config show --origin shows where settings come from",
        );
    }
}

fn check_project(engine: &Engine, findings: &mut FindingList) {
    for path in rye_space::ownership::group_writable(&engine.workspace.roots) {
        let word = shell_word(&path.display().to_string());
        findings
            .add(
                "user_space",
                Severity::Warning,
                "its group can change a folder that decides which keys you trust",
            )
            .path(path)
            .remedy(format!("chmod g-w {word}"));
    }
    match (&engine.workspace.roots.project, engine.workspace.is_project_approved) {
        (None, _) => {
            findings.add("project", Severity::Info, "not inside a project").remedy("rye init in its folder");
        }
        (Some(project), true) => {
            findings.add("project", Severity::Ok, "the project is approved").path(project);
            let unlisted =
                engine.policies().map(|policies| unlisted_dotenv_names(project, &policies.environment));
            let unlisted = unlisted.unwrap_or_default();
            if !unlisted.is_empty() {
                let names: Vec<String> = unlisted.iter().take(20).map(|name| format!("`{name}`")).collect();
                let message =
                    format!("only tools that name them get these from its `.env`: {}", names.join(", "));
                findings
                    .add("project", Severity::Info, message)
                    .remedy("in a tool: ENV_CONFIG {\"pass\": [NAME]}; for all tools: `pass` in ~/.ai/config/execution/environment.yaml");
            }
        }
        (Some(project), false) if !project.join(AI_FOLDER).is_dir() => {
            findings
                .add("project", Severity::Info, "the folder is not a project")
                .path(project)
                .remedy("make it one: rye init");
        }
        (Some(project), false) => {
            findings
                .add("project", Severity::Info, "the project is not approved: its `.env`, local interpreters and unsafe config are ignored")
                .path(project)
                .remedy("if others made it: rye join (shows who signed what, and asks); if you did: rye trust");
        }
    }
    match engine.dev_mode {
        DevMode::Off => {}
        DevMode::On => {
            findings
                .add(
                    "dev_mode",
                    Severity::Warning,
                    "development mode is on: unsigned and edited items of this project may run",
                )
                .remedy("unset RYE_DEV_MODE when you are done");
        }
        DevMode::Refused => {
            findings
                .add("dev_mode", Severity::Warning, "RYE_DEV_MODE is set, but ignored here")
                .remedy("approve the project and list it in `dev_mode.projects` of your signed user config, or unset it");
        }
    }
}

/// Whether another key than the user's signed the file at `path`: what it says is for its author to change.
fn is_foreign(engine: &Engine, verification: &verify::VerifyReport, path: &Path) -> bool {
    let row = verification.items.iter().find(|row| row.path == path);
    row.is_some_and(|row| is_signed_by_other(engine, row))
}

fn is_signed_by_other(engine: &Engine, row: &verify::VerifyRow) -> bool {
    let own = engine.workspace.own_key.as_ref().map(lillux::PublicKey::fingerprint);
    row.fingerprint.is_some() && row.fingerprint != own
}

fn check_config(engine: &Engine, verification: &verify::VerifyReport, findings: &mut FindingList) {
    let Ok(response) = config::show(engine, None) else {
        return;
    };
    for ignored in &response.ignored {
        findings
            .add(
                "config",
                Severity::Warning,
                format!("`{}` in {} config is ignored: {}", ignored.key, ignored.space, ignored.reason),
            )
            .path(&ignored.path)
            .remedy(if is_foreign(engine, verification, &ignored.path) {
                "see who signed it, and what joining the project allows: rye join".to_owned()
            } else {
                format!("correct or remove it; or read the file, then sign it: {}", ignored.sign_command())
            });
    }
    for flat in &response.misplaced {
        let file_name =
            flat.path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        findings
            .add("config", Severity::Info, format!("`{file_name}` in {} config: {}", flat.space, flat.reason))
            .path(&flat.path)
            .remedy(if is_foreign(engine, verification, &flat.path) {
                "ask its author to move it".to_owned()
            } else {
                let command = flat.sign_command();
                format!("move it; if it is signed, change its `category` and sign it again: {command}")
            });
    }
    for unsigned in &response.unsigned {
        findings
            .add(
                "config",
                Severity::Info,
                format!("`{}` in {} config is used, but should be signed", unsigned.key, unsigned.space),
            )
            .path(&unsigned.path)
            .remedy(format!("read it, then sign it: {}", unsigned.sign_command()));
    }
}

/// Temporary files beside items, of commands that were killed.
fn check_leftovers(engine: &Engine, space: &Space, folders: &BTreeSet<PathBuf>, findings: &mut FindingList) {
    let roots = &engine.workspace.roots;
    let root = match space {
        Space::Project => roots.project.as_ref().map(|project| project.join(AI_FOLDER)),
        Space::User => Some(roots.user_ai()),
        Space::System(_) => None,
    };
    let Some(root) = root else { return };
    let found = folders.iter().flat_map(|folder| {
        // A folder that cannot be read is reported as such.
        file::leftovers(&root.join(folder), engine.unix_seconds()).unwrap_or_default()
    });
    for path in found {
        findings
            .add("places", Severity::Warning, "a temporary file is left of a command that was killed")
            .remedy(format!("rm {}", shell_word(&path.display().to_string())))
            .path(path);
    }
}

fn check_item_files(engine: &Engine, findings: &mut FindingList) {
    let spaces = &engine.workspace.spaces;
    let mut by_item: BTreeMap<ItemRef, Vec<Space>> = BTreeMap::new();
    for space in spaces.order() {
        let walk = spaces.scan(&space, &ItemType::ALL);
        let mut in_space: BTreeMap<ItemRef, Vec<String>> = BTreeMap::new();
        let item_folders: BTreeSet<PathBuf> = walk
            .entries
            .iter()
            .filter_map(|entry| Path::new(&entry.relative).parent().map(Path::to_owned))
            .collect();
        for entry in walk.entries {
            in_space.entry(entry.item).or_default().push(entry.relative);
        }
        for (item, files) in &in_space {
            if files.len() > 1 {
                let order = &spaces.extractors().for_type(item.item_type).extensions;
                let mut files = files.clone();
                files.sort_by_key(|file| {
                    order.iter().position(|extension| file.ends_with(extension.as_str()))
                });
                findings
                    .add(
                        "duplicates",
                        Severity::Warning,
                        format!("{item} has {} files in {space} space; `{}` wins", files.len(), files[0]),
                    )
                    .remedy("remove or rename the others");
            }
        }
        for invalid in walk.invalid_files {
            findings
                .add(
                    "places",
                    Severity::Warning,
                    format!("a file is ignored: {}", rye_item::text::one_line(&invalid.reason)),
                )
                .path(invalid.path)
                .remedy("rename it, or put the file itself where the link is");
        }
        check_leftovers(engine, &space, &item_folders, findings);
        for folder in &walk.unreadable {
            add_error(findings, "places", &Error::unreadable_folder(folder));
        }
        for item in in_space.into_keys().filter(|item| item.item_type != ItemType::Config) {
            by_item.entry(item).or_default().push(space.clone());
        }
    }
    for (item, found) in by_item.iter().filter(|(_, found)| found.len() > 1) {
        let hidden = found[1..].iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        findings
            .add(
                "shadowing",
                Severity::Info,
                format!("{item} of {} space hides the one in {hidden}", found[0]),
            )
            .remedy(format!("rye why {} {}", item.item_type, item.id));
    }
}

fn check_items(engine: &Engine, verification: &verify::VerifyReport, findings: &mut FindingList) {
    for row in &verification.items {
        let is_config = row.kind == "config";
        let level = match row.verdict {
            TrustVerdict::Full => continue,
            TrustVerdict::Partial => Severity::Info,
            TrustVerdict::Unsigned if is_config => Severity::Info,
            TrustVerdict::Unsigned | TrustVerdict::Misplaced => Severity::Warning,
            TrustVerdict::Tampered | TrustVerdict::Untrusted | TrustVerdict::Revoked => Severity::Error,
        };
        let reason = row.reason.clone().unwrap_or_else(|| "the signature covers only a part".to_owned());
        findings
            .add(
                "items",
                level,
                format!("{}:{} {}: {reason}", row.kind, row.item_id, phrase(row.verdict, &reason)),
            )
            .path(&row.path)
            .remedy(remedy(row, is_signed_by_other(engine, row)));
    }
    for row in verification.items.iter().filter(|row| !row.problems.is_empty()) {
        findings
            .add(
                "items",
                Severity::Error,
                format!("{}:{} does not parse: {}", row.kind, row.item_id, row.problems[0]),
            )
            .path(&row.path)
            .remedy("correct it, then sign it");
    }
    for unreadable in &verification.unreadable {
        findings
            .add("items", Severity::Error, unreadable.reason.clone())
            .path(&unreadable.path)
            .remedy(format!("rye explain {}", unreadable.code));
    }
    findings.add(
        "items",
        Severity::Ok,
        format!(
            "{} of {} of project and user space signed and trusted",
            verification.full,
            counted(verification.checked, "file")
        ),
    );
}

/// What to do about an item that does not verify; what lets in the least comes first. What another key signed is not for
/// the user to sign.
fn remedy(row: &verify::VerifyRow, is_foreign: bool) -> String {
    let (sign, why) = (
        format!("rye sign {} {}", row.kind, row.item_id),
        format!("who signed it: rye why {} {}", row.kind, row.item_id),
    );
    let is_project = row.space == Some(Space::Project);
    match (row.verdict, is_foreign) {
        (TrustVerdict::Tampered, false) => {
            format!("see what changed (git diff); if it was you: {sign}; if not, restore the signed version")
        }
        (TrustVerdict::Tampered | TrustVerdict::Misplaced | TrustVerdict::Partial, true) => {
            format!(
                "restore the version that its author signed (git diff), or ask them to sign this one; {why}"
            )
        }
        (TrustVerdict::Untrusted, _) if is_project => {
            format!("see who signed this project's items, and decide: rye join; {why}")
        }
        (TrustVerdict::Untrusted, _) => {
            format!("leave it, or trust its key everywhere: rye keys trust FILE --space user; {why}")
        }
        (TrustVerdict::Revoked, _) => format!("ask its author to sign it with another key; {why}"),
        (
            TrustVerdict::Full | TrustVerdict::Partial | TrustVerdict::Unsigned | TrustVerdict::Misplaced,
            _,
        ) => format!("read it, then: {sign}"),
    }
}

fn check_index(engine: &Engine, findings: &mut FindingList) {
    let path = engine.index_path();
    let cache = &engine.workspace.roots.cache;
    let is_written = file::create_dirs(cache, true).and_then(|()| LockedTempDir::new(cache, "doctor-"));
    if let Err(error) = is_written {
        let message = format!("the cache cannot be written: {error}; tools are not run without it");
        findings
            .add("cache", Severity::Error, message)
            .path(cache)
            .remedy("make it writable, or name another folder with XDG_CACHE_HOME");
        return;
    }
    if !path.exists() {
        findings.add("index", Severity::Info, "no search index yet").remedy("the first search creates it");
        return;
    }
    match SearchIndex::open(&path).and_then(|index| index.count_stale(&engine.workspace.spaces)) {
        Ok(0) => {
            findings.add("index", Severity::Ok, "the search index is current");
        }
        Ok(stale) => {
            findings
                .add(
                    "index",
                    Severity::Info,
                    format!("the search index does not have {} yet", counted(stale, "change")),
                )
                .path(path)
                .remedy("the next search updates it");
        }
        Err(error) => {
            findings
                .add("index", Severity::Warning, format!("the search index cannot be read: {error}"))
                .path(path)
                .remedy("the next search rebuilds it");
        }
    }
}
