//! `doctor`: what is wrong with this setup, each finding with its remedy.

use std::collections::BTreeMap;
use std::path::PathBuf;

use lillux::confine;
use lillux::file::{self, TemporaryFolder};
use rye_item::text::{counted, shell_word};
use rye_item::{ItemRef, ItemType, Space};
use rye_space::bundle::Standing;
use rye_space::installed::{self, Installed};
use rye_space::search::Index;
use rye_trust::Verdict;
use serde::Serialize;

use crate::engine::{DevMode, Engine};
use crate::error::{Code, Error};
use crate::verbs::verify::{self, Progress};
use crate::verbs::{bundles, config, keys};

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
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
pub struct Finding {
    /// What was looked at.
    pub check: &'static str,
    /// How bad it is.
    pub level: Level,
    /// What was found.
    pub message: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
    /// The file it concerns.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(serialize_with = "rye_space::shown::option")]
    pub path: Option<PathBuf>,
}

/// The answer of a doctor.
#[derive(Clone, Debug, Serialize)]
pub struct Answer {
    /// Everything that was looked at.
    pub findings: Vec<Finding>,
    /// How many are errors.
    pub errors: usize,
    /// How many are warnings.
    pub warnings: usize,
}

#[derive(Default)]
struct Findings(Vec<Finding>);

impl Findings {
    fn add(&mut self, check: &'static str, level: Level, message: impl Into<String>) -> &mut Finding {
        let index = self.0.len();
        self.0.push(Finding { check, level, message: message.into(), remedy: None, path: None });
        &mut self.0[index]
    }
}

impl Finding {
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
pub fn doctor(engine: &Engine, progress: Progress<'_>) -> Answer {
    let mut findings = Findings::default();
    look_at_key(engine, &mut findings);
    look_at_trust(engine, &mut findings);
    look_at_project(engine, &mut findings);
    look_at_config(engine, &mut findings);
    look_at_places(engine, &mut findings);
    look_at_items(engine, progress, &mut findings);
    look_at_index(engine, &mut findings);
    look_at_sandbox(engine, &mut findings);
    let count = |level| findings.0.iter().filter(|finding| finding.level == level).count();
    Answer { errors: count(Level::Error), warnings: count(Level::Warning), findings: findings.0 }
}

/// What this machine offers to confine tools.
fn look_at_sandbox(engine: &Engine, findings: &mut Findings) {
    let receipt = match confine::probe(&engine.host.launcher) {
        Ok(receipt) => receipt,
        Err(error) => {
            findings
                .add("sandbox", Level::Error, format!("tools cannot be run here: {error}"))
                .remedy("see docs/sandbox.md: what a machine must offer");
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
    let Some(unmet) = receipt.shortfall() else {
        findings.add("sandbox", Level::Ok, format!("tools are confined in full: {mechanisms}"));
        return;
    };
    findings
        .add(
            "sandbox",
            Level::Warning,
            format!("tools are confined in part: not enforced here: {}; in force: {mechanisms}", unmet),
        )
        .remedy("a newer kernel, or user namespaces; `on_missing: refuse` in execution/sandbox.yaml runs nothing then");
}

fn look_at_key(engine: &Engine, findings: &mut Findings) {
    match engine.signing_key() {
        Ok(key) => {
            let public = key.public();
            let fingerprint = public.fingerprint();
            if engine.workspace.keys.is_general(&public) {
                findings.add("key", Level::Ok, format!("your key is {fingerprint}"));
            } else {
                findings
                    .add("key", Level::Error, format!("your key {fingerprint} has no valid identity document: what you sign is untrusted"))
                    .remedy("rye init");
            }
            if engine.workspace.own.as_ref() != Some(&public) {
                findings
                    .add("key", Level::Error, "public_key.pem is not the public half of private_key.pem")
                    .path(engine.workspace.roots.signing_keys.join("public_key.pem"))
                    .remedy(
                        "rye init writes it again; if private_key.pem is the wrong one, restore it first",
                    );
            }
        }
        Err(error) => add_error(findings, "key", &error),
    }
}

fn add_error(findings: &mut Findings, check: &'static str, error: &Error) {
    let level = if error.code == Code::NoKey { Level::Warning } else { Level::Error };
    let finding = findings.add(check, level, error.message.clone());
    if let Some(hint) = error.hints.first() {
        finding.remedy(hint.clone());
    }
    if let Some(path) = error.details.get("path").and_then(|path| path.as_str()) {
        finding.path(path);
    }
}

fn look_at_trust(engine: &Engine, findings: &mut Findings) {
    let listing = keys::list(engine);
    for broken in &listing.broken {
        findings
            .add("trust", Level::Warning, format!("an identity document does not count: {broken}"))
            .remedy("remove it, or ask its owner for a good one");
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
                        "nothing, unless items by it should run here; then compare the fingerprint with its owner, and let it \
                         vouch for items of this project alone: rye keys trust {path} --space project"
                    )
                };
                findings
                    .add(
                        "trust",
                        Level::Info,
                        format!("the key {} ({}) does not count: {reason}", key.fingerprint, key.owner),
                    )
                    .path(&key.path)
                    .remedy(remedy);
            }
            "revoked" => {
                findings
                    .add(
                        "trust",
                        Level::Info,
                        format!("the key {} ({}) is revoked", key.fingerprint, key.owner),
                    )
                    .path(&key.path)
                    .remedy("nothing to do; its document may be removed, the revocation stays");
            }
            _ => {}
        }
    }
    let trusted = listing.keys.iter().filter(|key| !matches!(key.trust, "none" | "revoked")).count();
    findings.add("trust", Level::Ok, counted(trusted, "trusted key"));
    for bundle in engine.workspace.spaces.bundles() {
        if bundle.standing == Standing::NotApproved {
            findings
                .add(
                    "bundles",
                    Level::Warning,
                    format!("the bundle `{}` is not approved: its items are refused", bundle.id),
                )
                .remedy(format!("rye verify --root it, then: rye bundle trust {}", bundle.id));
        }
    }
    let user_ai = engine.workspace.roots.user_ai();
    for id in installed::ids_in(&user_ai) {
        let bundle = Installed::read(&user_ai, &Space::User, &id);
        for item in bundles::hidden_items(engine, &bundle) {
            findings
                .add(
                    "bundles",
                    Level::Warning,
                    format!("{item} of the bundle `{id}` is hidden by project space"),
                )
                .remedy(format!("see which one runs here: rye why {} {}", item.item_type, item.id));
        }
    }
    for remark in &engine.workspace.remarks {
        findings
            .add("bundles", Level::Info, remark.clone())
            .remedy("if you do not want that: rye config show");
    }
    for notice in &engine.workspace.notices {
        findings.add("workspace", Level::Warning, notice.clone()).remedy(
            "correct or remove what it names; rye config show --origin tells where settings come from",
        );
    }
}

fn look_at_project(engine: &Engine, findings: &mut Findings) {
    for path in rye_space::ownership::group_writable(&engine.workspace.roots) {
        let word = shell_word(&path.display().to_string());
        findings
            .add("user_space", Level::Warning, "its group may change a folder that decides whom you trust")
            .path(path)
            .remedy(format!("chmod g-w {word}"));
    }
    match (&engine.workspace.roots.project, engine.workspace.is_project_approved) {
        (None, _) => {
            findings.add("project", Level::Info, "there is no project here").remedy("rye init in its folder");
        }
        (Some(project), true) => {
            findings.add("project", Level::Ok, "the project is approved").path(project);
        }
        (Some(project), false) => {
            findings
                .add("project", Level::Info, "the project is not approved: its `.env`, local interpreters and unsafe config are ignored")
                .path(project)
                .remedy("if you trust its authors: rye trust (it says what that allows, and asks)");
        }
    }
    match engine.dev_mode {
        DevMode::Off => {}
        DevMode::On => {
            findings
                .add(
                    "dev_mode",
                    Level::Warning,
                    "development mode is on: unsigned and edited items of this project are forgiven",
                )
                .remedy("unset RYE_DEV_MODE when you are done");
        }
        DevMode::Refused => {
            findings
                .add("dev_mode", Level::Warning, "RYE_DEV_MODE is set, and ignored here")
                .remedy("approve the project and list it in `dev_mode.projects` of your signed user config, or unset it");
        }
    }
}

fn look_at_config(engine: &Engine, findings: &mut Findings) {
    let Ok(answer) = config::show(engine, None) else {
        return;
    };
    for ignored in &answer.ignored {
        findings
            .add(
                "config",
                Level::Warning,
                format!("`{}` in {} config is ignored: {}", ignored.key, ignored.space, ignored.reason),
            )
            .path(&ignored.path)
            .remedy("correct or remove it; or read the file, then sign it: rye sign config ID");
    }
    for flat in &answer.flat {
        let shown = flat.path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        findings
            .add("config", Level::Info, format!("`{shown}` in {} config: {}", flat.space, flat.reason))
            .path(&flat.path)
            .remedy("move it; if it is signed, change its `category` and sign it again: rye sign config ID");
    }
    for unsigned in &answer.unsigned {
        findings
            .add(
                "config",
                Level::Info,
                format!("`{}` in {} config counts, but should be signed", unsigned.key, unsigned.space),
            )
            .path(&unsigned.path)
            .remedy("read it, then sign it: rye sign config ID");
    }
}

fn look_at_places(engine: &Engine, findings: &mut Findings) {
    let spaces = &engine.workspace.spaces;
    let mut by_item: BTreeMap<ItemRef, Vec<Space>> = BTreeMap::new();
    for space in spaces.order() {
        let walk = spaces.walk(&space, &ItemType::ALL);
        let mut in_space: BTreeMap<ItemRef, Vec<String>> = BTreeMap::new();
        for entry in walk.entries {
            in_space.entry(entry.item).or_default().push(entry.relative);
        }
        for (item, files) in &in_space {
            if files.len() > 1 {
                let order = &spaces.extractors().of(item.item_type).extensions;
                let mut files = files.clone();
                files.sort_by_key(|file| {
                    order.iter().position(|extension| file.ends_with(extension.as_str()))
                });
                findings
                    .add(
                        "duplicates",
                        Level::Warning,
                        format!("{item} has {} files in {space} space; `{}` wins", files.len(), files[0]),
                    )
                    .remedy("remove or rename the others");
            }
        }
        for stray in walk.strays {
            findings
                .add(
                    "places",
                    Level::Warning,
                    format!("a file is passed over: {}", rye_item::text::one_line(&stray.reason)),
                )
                .path(stray.path)
                .remedy("rename it, or put the file itself where the link is");
        }
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
            .add("shadowing", Level::Info, format!("{item} of {} space hides the one in {hidden}", found[0]))
            .remedy(format!("rye why {} {}", item.item_type, item.id));
    }
}

fn look_at_items(engine: &Engine, progress: Progress<'_>, findings: &mut Findings) {
    let answer = verify::verify_all(engine, verify::Options::default(), progress);
    for row in &answer.items {
        let is_config = row.kind == "config";
        let level = match row.verdict {
            Verdict::Full => continue,
            Verdict::Partial => Level::Info,
            Verdict::Unsigned if is_config => Level::Info,
            Verdict::Unsigned | Verdict::Misplaced => Level::Warning,
            Verdict::Tampered | Verdict::Untrusted | Verdict::Revoked => Level::Error,
        };
        let reason = row.reason.clone().unwrap_or_else(|| "the signature covers only a part".to_owned());
        findings
            .add(
                "items",
                level,
                format!("{}:{} is {}: {reason}", row.kind, row.item_id, row.verdict.as_str()),
            )
            .path(&row.path)
            .remedy(remedy(row));
    }
    for row in answer.items.iter().filter(|row| !row.problems.is_empty()) {
        findings
            .add(
                "items",
                Level::Error,
                format!("{}:{} does not parse: {}", row.kind, row.item_id, row.problems[0]),
            )
            .path(&row.path)
            .remedy("correct it, then sign it");
    }
    for unreadable in &answer.unreadable {
        findings
            .add("items", Level::Error, unreadable.reason.clone())
            .path(&unreadable.path)
            .remedy(format!("rye explain {}", unreadable.code));
    }
    findings.add(
        "items",
        Level::Ok,
        format!(
            "{} of {} of project and user space signed and trusted",
            answer.full,
            counted(answer.checked, "file")
        ),
    );
}

/// What to do about an item that does not verify; what lets in the least comes first.
fn remedy(row: &verify::Row) -> String {
    let sign = format!("rye sign {} {}", row.kind, row.item_id);
    match row.verdict {
        Verdict::Tampered => {
            format!("see what changed (git diff); if it was you: {sign}; if not, take the signed one back")
        }
        Verdict::Untrusted | Verdict::Revoked => format!(
            "leave it refused, or read it, then vouch for this item alone: {sign}; who signed it: rye why {} {}",
            row.kind, row.item_id
        ),
        Verdict::Full | Verdict::Partial | Verdict::Unsigned | Verdict::Misplaced => {
            format!("read it, then: {sign}")
        }
    }
}

fn look_at_index(engine: &Engine, findings: &mut Findings) {
    let path = engine.index_path();
    let cache = &engine.workspace.roots.cache;
    let is_written = file::create_folders(cache, true).and_then(|()| TemporaryFolder::new(cache, "doctor-"));
    if let Err(error) = is_written {
        let message = format!("the cache cannot be written: {error}; tools are not run without it");
        findings
            .add("cache", Level::Error, message)
            .path(cache)
            .remedy("make it writable, or name another folder with XDG_CACHE_HOME");
        return;
    }
    if !path.exists() {
        findings
            .add("index", Level::Info, "there is no search index yet")
            .remedy("the first search makes it");
        return;
    }
    match Index::open(&path).and_then(|index| index.staleness(&engine.workspace.spaces)) {
        Ok(0) => {
            findings.add("index", Level::Ok, "the search index is current");
        }
        Ok(stale) => {
            findings
                .add(
                    "index",
                    Level::Info,
                    format!("the search index does not know {} yet", counted(stale, "change")),
                )
                .path(path)
                .remedy("the next search brings it up to date");
        }
        Err(error) => {
            findings
                .add("index", Level::Warning, format!("the search index cannot be read: {error}"))
                .path(path)
                .remedy("the next search makes it anew");
        }
    }
}
