//! What a plan changes in a space, and changing it: everything is signed before anything is written.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use lillux::Digest;
use lillux::file::{self, FileMode};
use rye_engine::verbs::{new_item, sign};
use rye_engine::{Engine, Error};
use rye_import::{
    ImportPlan, ImportedItem, ItemChange, PlannedAsset, PlannedItem, RefusedSource, decide_change,
};
use rye_item::space::SpaceTier;
use rye_item::text::one_line;
use rye_item::{ItemId, ItemRef, ItemType};

/// The largest item that is compared.
const MAX_EXISTING_BYTES: u64 = 16 << 20;

/// An item of the plan with what becomes of it.
pub struct ItemStep {
    pub planned: PlannedItem,
    pub change: ItemChange,
    /// The file it has now.
    existing: Option<PathBuf>,
    signed: Vec<u8>,
}

/// A file of the plan with what becomes of it.
pub struct AssetStep {
    pub planned: PlannedAsset,
    pub change: ItemChange,
}

/// Everything an import changes.
#[derive(Default)]
pub struct ImportSteps {
    pub items: Vec<ItemStep>,
    pub assets: Vec<AssetStep>,
    /// Files of earlier imports that the source does not have any more, relative to `.ai/`.
    pub removed: BTreeSet<String>,
    ai: PathBuf,
}

/// Why an item is not replaced by one from elsewhere, and what helps.
fn occupied_reason(planned: &PlannedItem, old: Option<&ImportedItem>) -> String {
    let item = &planned.item;
    let old = old.map(|old| &old.provenance).filter(|old| old.origin != planned.provenance.origin);
    let Some(old) = old else { return format!("`{item}` is there already and did not come from here") };
    let place = match &old.origin {
        Some(address) => one_line(address),
        None => format!("the folder of `{}`", one_line(&old.source)),
    };
    format!("`{item}` is there already and came from {place}: import it from there, or remove it first")
}

impl ImportSteps {
    /// Decides what becomes of everything in the plan. What cannot be signed or would hide another item is refused.
    ///
    /// # Errors
    /// When the space cannot be written, or there is no key.
    pub fn decide(
        engine: &Engine,
        tier: SpaceTier,
        plan: &mut ImportPlan,
        takes_theirs: bool,
    ) -> Result<Self, Error> {
        let ai = new_item::space_folder(engine, tier)?;
        // Before anything else: what cannot be signed is not imported.
        engine.signing_key()?;
        let mut steps = Self { ai, ..Self::default() };
        let mut recorded: BTreeMap<ItemRef, ImportedItem> = BTreeMap::new();
        let mut dropped: BTreeSet<ItemRef> = BTreeSet::new();
        for planned in std::mem::take(&mut plan.items) {
            if dropped.contains(&planned.item) {
                continue;
            }
            let mut refuse = |planned: &PlannedItem, reason: String| {
                plan.refused.push(RefusedSource { source: planned.provenance.source.clone(), reason });
                dropped.insert(planned.item.clone());
                // The pages of a skill go with it.
                let pages = planned.provenance.files.values().filter_map(|file| file.item.as_deref());
                let pages = pages.filter_map(|id| ItemId::new(id).ok());
                dropped.extend(pages.map(|id| ItemRef::new(ItemType::Knowledge, id)));
            };
            let candidates = engine.workspace.spaces.candidate_paths(&planned.item);
            let found = |wanted: SpaceTier| {
                candidates.iter().find(|candidate| candidate.is_found && candidate.space.tier() == wanted)
            };
            if let Some(hidden) = found(SpaceTier::System) {
                refuse(&planned, format!("`{}` would hide the item of {}", planned.item, hidden.space));
                continue;
            }
            let existing = found(tier).map(|candidate| candidate.path.clone());
            let text = existing.as_ref().map(|path| read_text(&steps.ai, path)).transpose()?;
            let change = decide_change(&planned, text.as_deref(), takes_theirs);
            if change == ItemChange::Occupied {
                let old = text.as_deref().and_then(|text| ImportedItem::read(planned.item.item_type, text));
                refuse(&planned, occupied_reason(&planned, old.as_ref()));
                continue;
            }
            if let Some(imported) =
                text.as_deref().and_then(|text| ImportedItem::read(planned.item.item_type, text))
            {
                recorded.insert(planned.item.clone(), imported);
            }
            let signed = match change.is_written() {
                true => {
                    sign::sign_unwritten(engine, &planned.item, tier, planned.extension, planned.text.clone())
                }
                false => Ok(Vec::new()),
            };
            match signed {
                Ok(signed) => steps.items.push(ItemStep { planned, change, existing, signed }),
                Err(error) => refuse(&planned, problem_text(&error)),
            }
        }
        steps.items.retain(|step| !dropped.contains(&step.planned.item));
        for planned in std::mem::take(&mut plan.assets) {
            let owner = steps.items.iter().find(|step| step.planned.item == planned.owner);
            let Some(owner) = owner.filter(|owner| owner.change != ItemChange::Keep) else { continue };
            let old = recorded.get(&owner.planned.item).and_then(|imported| {
                let files = imported.provenance.files.values();
                files
                    .filter(|file| file.path.as_deref() == Some(planned.path.as_str()))
                    .map(|file| file.sha256.clone())
                    .next()
            });
            let change = asset_change(&steps.ai, &planned, old.as_deref(), takes_theirs);
            steps.assets.push(AssetStep { planned, change });
        }
        steps.find_removed(&recorded);
        Ok(steps)
    }

    /// Whether anything is written or removed.
    pub fn has_changes(&self) -> bool {
        self.items.iter().any(|step| step.change.is_written())
            || self.assets.iter().any(|step| step.change.is_written())
            || !self.removed.is_empty()
    }

    /// The files on this machine that the items came from, as the items are with them now: their paths and digests.
    pub fn sources(&self) -> impl Iterator<Item = (String, &str)> {
        let steps = self.items.iter().filter(|step| match step.change {
            ItemChange::Create | ItemChange::Unchanged | ItemChange::Update | ItemChange::Replace => true,
            ItemChange::Keep | ItemChange::Occupied => false,
        });
        let provenances = steps.map(|step| &step.planned.provenance);
        provenances.filter(|provenance| provenance.origin.is_none()).flat_map(|provenance| {
            let source = &provenance.source;
            let folder = source.rsplit_once('/').map_or("", |(folder, _)| folder);
            let others = provenance.files.iter().map(move |(name, file)| match folder {
                "" => (name.clone(), file.sha256.as_str()),
                folder => (format!("{folder}/{name}"), file.sha256.as_str()),
            });
            std::iter::once((source.clone(), provenance.sha256.as_str())).chain(others)
        })
    }

    /// Writes it all.
    ///
    /// # Errors
    /// When a file cannot be written; what was written before stays, signed.
    pub fn write(&self, backups: &Path) -> Result<(), Error> {
        for step in self.assets.iter().filter(|step| step.change.is_written()) {
            let path = self.write_file(&step.planned.path, &step.planned.bytes, step.change, backups)?;
            if step.planned.is_executable {
                file::set_mode(&path, 0o755)?;
            }
        }
        for step in self.items.iter().filter(|step| step.change.is_written()) {
            let item = &step.planned.item;
            let relative = format!("{}/{}{}", item.item_type.folder(), item.id, step.planned.extension);
            self.write_file(&relative, &step.signed, step.change, backups)?;
        }
        for relative in &self.removed {
            file::remove_beneath(&self.ai, Path::new(relative))?;
        }
        Ok(())
    }

    fn write_file(
        &self,
        relative: &str,
        bytes: &[u8],
        change: ItemChange,
        backups: &Path,
    ) -> Result<PathBuf, Error> {
        let path = self.ai.join(relative);
        file::create_dirs(&self.ai, false)?;
        file::create_folders_beneath(&self.ai, Path::new(relative).parent().unwrap_or(Path::new("")), false)?;
        if path.symlink_metadata().is_ok_and(|found| found.is_symlink()) {
            return Err(Error::linked_folder(&file::LinkedFolder { path }));
        }
        if change == ItemChange::Replace {
            let (old, _) =
                file::read_bounded(&path, MAX_EXISTING_BYTES).map_err(|error| Error::read(&error))?;
            file::create_dirs(backups, true)?;
            let name = format!("{}-{}", Digest::of(&old).short(), relative.replace('/', "-"));
            file::write_atomic(&backups.join(name), &old, FileMode::Private)?;
        }
        file::write_atomic(&path, bytes, FileMode::Preserve)?;
        Ok(path)
    }

    /// Files of the last import that the source has lost, if they are as the import left them.
    fn find_removed(&mut self, recorded: &BTreeMap<ItemRef, ImportedItem>) {
        for step in self.items.iter().filter(|step| step.change.is_written() && step.existing.is_some()) {
            let Some(old) = recorded.get(&step.planned.item) else { continue };
            for (name, file) in &old.provenance.files {
                if step.planned.provenance.files.contains_key(name) {
                    continue;
                }
                let relative = match (&file.item, &file.path) {
                    (Some(id), _) => format!("knowledge/{id}.md"),
                    (None, Some(path)) => path.clone(),
                    (None, None) => continue,
                };
                let Ok((bytes, _)) =
                    file::read_beneath_no_symlinks(&self.ai, Path::new(&relative), MAX_EXISTING_BYTES)
                else {
                    continue;
                };
                let is_untouched = match &file.item {
                    Some(_) => std::str::from_utf8(&bytes)
                        .ok()
                        .and_then(|text| ImportedItem::read(ItemType::Knowledge, text))
                        .is_some_and(|page| page.is_untouched),
                    None => Digest::of(&bytes).to_hex() == file.sha256,
                };
                if is_untouched {
                    self.removed.insert(relative);
                }
            }
        }
    }
}

fn read_text(ai: &Path, path: &Path) -> Result<String, Error> {
    let relative = path.strip_prefix(ai).unwrap_or(path);
    let (bytes, _) = file::read_beneath_no_symlinks(ai, relative, MAX_EXISTING_BYTES)
        .map_err(|error| Error::read(&error))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn asset_change(ai: &Path, planned: &PlannedAsset, old: Option<&str>, takes_theirs: bool) -> ItemChange {
    let found = file::read_beneath_no_symlinks(ai, Path::new(&planned.path), MAX_EXISTING_BYTES);
    let found = match found {
        Ok((bytes, _)) => Digest::of(&bytes),
        Err(error) if error.is_absent() => return ItemChange::Create,
        Err(_) => return ItemChange::Keep,
    };
    if found == Digest::of(&planned.bytes) {
        ItemChange::Unchanged
    } else if old == Some(found.to_hex().as_str()) {
        ItemChange::Update
    } else if takes_theirs {
        ItemChange::Replace
    } else {
        ItemChange::Keep
    }
}

/// The failure of signing with the first problems it lists.
fn problem_text(error: &Error) -> String {
    let problems = error.details.get("problems").and_then(|problems| problems.as_array());
    let first = problems.and_then(|problems| problems.first()).map(|problem| {
        problem
            .get("message")
            .and_then(|text| text.as_str())
            .map_or_else(|| problem.to_string(), str::to_owned)
    });
    match first {
        Some(first) => format!("{}: {first}", error.message),
        None => error.message.clone(),
    }
}
