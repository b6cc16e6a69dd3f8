//! `keys rotate`: a new key in place of the own one, a hand-over that both signed, and everything signed again that the old
//! key had signed in user space and in the project.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use lillux::file::{self, FileMode};
use lillux::{Fingerprint, PublicKey, SecretKey};
use rye_item::{ItemRef, ItemType, Space};
use rye_space::handovers::{self, HANDOVERS_FOLDER};
use rye_space::installed::FileOwners;
use rye_space::keys::{self, TRUSTED_FOLDER};
use rye_space::{CandidatePath, Workspace};
use rye_trust::signature::{FileLayout, Timestamp};
use rye_trust::verify::evaluate;
use rye_trust::{Handover, Identity, SignOutcome, Subject, TrustVerdict, sign as sign_bytes};
use serde::Serialize;

use super::handover::store_handover;
use super::{publish, write_own_document};
use crate::engine::Engine;
use crate::error::{Code, Error, Result};
use crate::lockfiles::resigned;
use crate::verbs::sign;

/// Below the user's `.ai/`: signed records and config that are not items of a type folder.
const RECORDS_FOLDER: &str = "config/trust";
/// The largest record that is signed again.
const MAX_RECORD_BYTES: u64 = 8 << 20;

/// What was signed again.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ResignReport {
    /// Items of project and user space.
    pub items: Vec<String>,
    /// Records and identity documents of user space.
    #[serde(serialize_with = "rye_space::serde_path::list")]
    pub records: Vec<PathBuf>,
    /// Items that a former key signed and that were not signed again, with the reason.
    pub failed: Vec<String>,
    /// Hand-overs that lie in the project now.
    #[serde(serialize_with = "rye_space::serde_path::list")]
    pub handovers: Vec<PathBuf>,
    /// The own identity in the project.
    #[serde(serialize_with = "rye_space::serde_path::option")]
    pub identity: Option<PathBuf>,
}

/// The answer of a rotation.
#[derive(Clone, Debug, Serialize)]
pub struct RotatedKey {
    /// The key that was replaced; `None` if an earlier rotation was continued.
    pub old: Option<Fingerprint>,
    /// The own key.
    pub fingerprint: Fingerprint,
    /// What was signed again.
    #[serde(flatten)]
    pub resigned: ResignReport,
}

/// Replaces the own key by a new one. The steps are such that the old key counts until the new one does: after an
/// interruption, [`resign`] completes them.
///
/// # Errors
/// When there is no usable key, or something cannot be written.
pub fn replace_own_key(engine: &Engine) -> Result<Fingerprint> {
    let workspace = &engine.workspace;
    let folder = &workspace.roots.signing_keys;
    engine.signing_key()?;
    // Two rotations at once would lose one of the new keys.
    let _lock = file::Lock::acquire_dir(folder)?;
    let old = engine.signing_key()?;
    if workspace.own_key.as_ref() != Some(&old.public_key()) {
        return Err(Error::new(Code::InvalidKey, "public_key.pem is not the public half of private_key.pem")
            .hint("run rye init first: it writes the public half again"));
    }
    // The new key is as well protected as the old one.
    let passphrase = engine.own_passphrase()?;
    let new = SecretKey::generate().map_err(|error| Error::new(Code::Io, error.to_string()))?;
    let now = engine.now()?;
    let user_ai = workspace.roots.user_ai();
    let handovers = user_ai.join(HANDOVERS_FOLDER);
    file::create_dirs(&handovers, true)?;
    let old_fingerprint = old.public_key().fingerprint();
    let path = handovers.join(format!("{old_fingerprint}.toml"));
    file::write_atomic(&path, &Handover::document(&old, &new, &now), FileMode::Preserve)?;
    write_own_document(engine, &new, &own_owner(workspace, &old.public_key()))?;
    keys::replace_key_pair(folder, &new, passphrase.as_deref())?;
    Ok(old_fingerprint)
}

/// The name in the document of the own key.
fn own_owner(workspace: &Workspace, key: &PublicKey) -> String {
    let mut documents = workspace.user_documents.iter().filter_map(|found| found.identity.as_ref().ok());
    documents.find(|identity| identity.key == *key).map_or("local", |own| own.owner.as_str()).to_owned()
}

/// The hand-overs that lead to the own key, recorded in user space.
fn own_handovers(engine: &Engine) -> Vec<Handover> {
    let recorded = handovers::handovers_in(&engine.workspace.roots.user_ai().join(HANDOVERS_FOLDER));
    let own = engine.workspace.own_key.as_ref();
    let is_own = |handover: &Handover| handovers::leads_to_own(handover, &recorded, own);
    recorded.iter().filter(|(_, handover)| is_own(handover)).map(|(_, handover)| handover.clone()).collect()
}

/// Signs everything again that the user's former keys signed in user space and in the project, and puts the hand-overs into
/// the project. Running it again changes nothing.
///
/// # Errors
/// When there is no usable key, or something cannot be written.
pub fn resign(engine: &Engine) -> Result<RotatedKey> {
    let (key, now) = (engine.signing_key()?, engine.now()?);
    let own = own_handovers(engine);
    let former: Vec<PublicKey> = own.iter().map(|handover| handover.old.clone()).collect();
    let mut report = ResignReport::default();
    resign_records(engine, &former, &key, &now, &mut report)?;
    resign_items(engine, &former, &mut report)?;
    if let Some(ai) = engine.workspace.roots.project_ai().filter(|ai| ai.is_dir()) {
        share_handovers(engine, &ai, &own, &mut report)?;
    }
    Ok(RotatedKey { old: None, fingerprint: key.public_key().fingerprint(), resigned: report })
}

/// Signs the records and the identity documents of user space again, each as it is.
fn resign_records(
    engine: &Engine,
    former: &[PublicKey],
    key: &SecretKey,
    now: &Timestamp,
    report: &mut ResignReport,
) -> Result<()> {
    let user_ai = engine.workspace.roots.user_ai();
    let _lock = keys::lock_records(&user_ai)?;
    for (folder, extension) in [(RECORDS_FOLDER, "yaml"), (TRUSTED_FOLDER, "toml")] {
        let Ok(entries) = fs_err::read_dir(user_ai.join(folder)) else { continue };
        let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        paths.retain(|path| path.extension().is_some_and(|found| found == extension));
        paths.sort();
        for path in paths {
            let Ok((bytes, _)) = file::read_bounded(&path, MAX_RECORD_BYTES) else { continue };
            let format = rye_trust::identity::signature_format();
            // A key vouches for its own document; the former keys' documents stay as they are.
            let is_own_document =
                Identity::parse(&bytes).is_ok_and(|identity| former.contains(&identity.key));
            if is_own_document || !is_signed_by(&bytes, &format, former) {
                continue;
            }
            if let SignOutcome::Written { bytes, .. } = sign_bytes(&bytes, &format, key, now) {
                file::write_atomic(&path, &bytes, FileMode::Preserve)?;
                report.records.push(path);
            }
        }
    }
    Ok(())
}

/// Whether one of these keys signed all of a config file, as it is.
fn is_signed_by(bytes: &[u8], format: &rye_item::SignatureFormat, keys: &[PublicKey]) -> bool {
    use rye_trust::coverage::{ContentStatus, Coverage, compare_content};
    let layout = FileLayout::parse(bytes, format);
    let content = compare_content(ItemType::Config, bytes, &layout);
    let is_intact = matches!(content, ContentStatus::Intact { coverage: Coverage::Full, .. });
    let line = layout.signature.filter(|_| is_intact);
    line.is_some_and(|line| keys.iter().any(|key| key.verify(&line.hash, &line.signature)))
}

/// Signs the items again that former keys signed whole. Files of installed bundles stay: their manifests list them as they
/// are.
fn resign_items(engine: &Engine, former: &[PublicKey], report: &mut ResignReport) -> Result<()> {
    let spaces = &engine.workspace.spaces;
    let fingerprints: Vec<Fingerprint> = former.iter().map(PublicKey::fingerprint).collect();
    let mut targets: Vec<(ItemRef, CandidatePath)> = Vec::new();
    // By the `.ai` folder and the key: the signature lines that are replaced.
    let mut former_lines: BTreeMap<(PathBuf, Fingerprint), Vec<(String, String)>> = BTreeMap::new();
    for space in [Space::Project, Space::User] {
        let Some(folder) = spaces.folder(&space) else { continue };
        let owners = FileOwners::read(&folder, &space)
            .map_err(|reason| Error::new(Code::DamagedInstall, reason).hint("rye bundle list"))?;
        for entry in spaces.scan(&space, &ItemType::ALL).entries {
            if entry.item.is_key_document() || owners.is_of_bundle(&format!(".ai/{}", entry.relative)) {
                continue;
            }
            let candidate = CandidatePath {
                space: space.clone(),
                path: folder.join(&entry.relative),
                extension: entry.extension,
                is_found: true,
            };
            let is_tool = entry.item.item_type == ItemType::Tool;
            let Ok(located) = spaces.read(&entry.item, &candidate) else { continue };
            if located.format().is_none() {
                continue;
            }
            let verdict = evaluate(&located, &engine.workspace.keys);
            if !verdict.fingerprint().is_some_and(|signer| fingerprints.contains(&signer)) {
                continue;
            }
            let line = located.format().and_then(|format| resigned::signature_line(located.bytes(), format));
            match verdict.verdict {
                TrustVerdict::Full => {
                    if let Some((line, signer)) = line.zip(verdict.fingerprint()).filter(|_| is_tool) {
                        let lines = former_lines.entry((folder.clone(), signer)).or_default();
                        lines.push((entry.relative.clone(), line));
                    }
                    targets.push((entry.item, candidate));
                }
                _ => {
                    let reason =
                        verdict.reason.unwrap_or_else(|| "its signature covers only a part".to_owned());
                    report.failed.push(format!("{}: {reason}", entry.item));
                }
            }
        }
    }
    // Before anything is signed: a list may hold more than was replaced, not less.
    for ((ai, signer), lines) in &former_lines {
        resigned::add_former_lines(ai, signer.as_str(), lines)?;
    }
    targets.sort_by(|left, right| left.1.path.cmp(&right.1.path));
    let response = sign::sign_targets(engine, &targets, sign::OthersItems::TakeOver.into(), &mut |_, _| {})?;
    report
        .items
        .extend(response.signed.iter().map(|signed| format!("{}:{}", signed.item_type, signed.item_id)));
    let failed =
        response.failed.into_iter().map(|failed| format!("{}: {}", failed.name, failed.error.message));
    report.failed.extend(failed);
    Ok(())
}

/// Puts the hand-overs and the new identity into the project, and takes the former identities away: their keys sign nothing
/// any more.
fn share_handovers(engine: &Engine, ai: &Path, own: &[Handover], report: &mut ResignReport) -> Result<()> {
    let documents = engine.workspace.project_documents();
    let is_former = |identity: &Identity| own.iter().any(|handover| handover.old == identity.key);
    let has_former = documents.iter().any(|found| found.identity.as_ref().is_ok_and(&is_former));
    let is_used = has_former || !report.items.is_empty();
    let present = handovers::handovers_in(&ai.join(HANDOVERS_FOLDER));
    // A project that none of the keys has anything to do with needs no hand-over.
    if !is_used && !own.iter().any(|handover| present.iter().any(|(_, known)| known.old == handover.old)) {
        return Ok(());
    }
    file::create_folders_beneath(ai, Path::new(HANDOVERS_FOLDER), false)?;
    let source = engine.workspace.roots.user_ai().join(HANDOVERS_FOLDER);
    for handover in own.iter().filter(|handover| !present.iter().any(|(_, known)| known == *handover)) {
        report.handovers.push(store_handover(&source, &ai.join(HANDOVERS_FOLDER), handover)?);
    }
    report.identity = Some(publish(engine, None)?.path);
    for found in documents.iter().filter(|found| found.identity.as_ref().is_ok_and(&is_former)) {
        file::remove(&found.path)?;
    }
    Ok(())
}
