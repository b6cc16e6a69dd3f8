//! Resolving an id: project over user over system, first match wins, lower matches are remembered as shadows.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lillux::file::ReadError;
use rye_item::space::SpaceTier;
use rye_item::{ExtractorSet, ItemRef, ItemType, Space};

use crate::bundle::{Bundle, BundleOrigin};
use crate::embedded::Embedded;
use crate::file_stamp::{WatchSet, record};
use crate::item_file::ItemFile;
use crate::roots::{AI_FOLDER, Roots};
use crate::scan::{InvalidItemFile, ScanResult, hindrance, is_hindrance};

/// Why an item could not be located.
#[derive(Debug, thiserror::Error)]
pub enum LocateError {
    /// No space has it.
    #[error("{} not found: {}", .0.item_type, .0.id)]
    NotFound(ItemRef),
    /// It is there, but cannot be read.
    #[error("{item} in {space} space: {source}")]
    Unreadable {
        /// The item.
        item: ItemRef,
        /// Where it was found.
        space: Space,
        /// Why.
        source: ReadError,
    },
}

/// One place that was looked at.
#[derive(Clone, Debug)]
pub struct CandidatePath {
    /// The space.
    pub space: Space,
    /// The file that is there, or the one that would be looked for first.
    pub path: PathBuf,
    /// Its extension.
    pub extension: String,
    /// Whether a file is there.
    pub is_found: bool,
}

/// The spaces in order of precedence.
#[derive(Clone, Debug)]
pub struct Spaces {
    project: Option<PathBuf>,
    user: PathBuf,
    bundles: Vec<Bundle>,
    extractors: Arc<ExtractorSet>,
    max_bytes: u64,
}

impl Spaces {
    /// The spaces below `roots`, with these bundles. Nothing larger than `max_bytes` is read.
    #[must_use]
    pub fn new(roots: &Roots, bundles: Vec<Bundle>, extractors: Arc<ExtractorSet>, max_bytes: u64) -> Self {
        Self { project: roots.project_ai(), user: roots.user_ai(), bundles, extractors, max_bytes }
    }

    /// The bundles, in order.
    #[must_use]
    pub fn bundles(&self) -> &[Bundle] {
        &self.bundles
    }

    /// How items are parsed and signed here.
    #[must_use]
    pub fn extractors(&self) -> &Arc<ExtractorSet> {
        &self.extractors
    }

    /// All spaces, highest first.
    pub fn order(&self) -> impl Iterator<Item = Space> {
        self.project
            .iter()
            .map(|_| Space::Project)
            .chain([Space::User])
            .chain(self.bundles.iter().map(|bundle| Space::System(bundle.id.clone())))
    }

    /// The folder of a space that is one; an embedded bundle has none.
    #[must_use]
    pub fn folder(&self, space: &Space) -> Option<PathBuf> {
        match space {
            Space::Project => self.project.clone(),
            Space::User => Some(self.user.clone()),
            Space::System(id) => self.bundles.iter().find(|bundle| bundle.id == *id).and_then(Bundle::folder),
        }
    }

    /// Every place an item could be in, highest space first, at most one per space.
    #[must_use]
    pub fn candidate_paths(&self, item: &ItemRef) -> Vec<CandidatePath> {
        self.order().filter_map(|space| self.candidate_in(item, space)).collect()
    }

    fn candidate_in(&self, item: &ItemRef, space: Space) -> Option<CandidatePath> {
        let extensions = &self.extractors.for_type(item.item_type).extensions;
        let file = |extension: &str| format!("{}/{}{extension}", item.item_type.folder(), item.id);
        let first = extensions.first()?;
        let path_in_ai = |extension: &str| format!("{AI_FOLDER}/{}", file(extension));
        let mut owner = None;
        if let Space::System(id) = &space {
            let bundle = self.bundles.iter().find(|bundle| bundle.id == *id)?;
            owner = Some(bundle);
            if !bundle.allows(item.item_type, &item.id) {
                return None;
            }
            if let BundleOrigin::Embedded(embedded) = bundle.origin {
                let found =
                    extensions.iter().find(|extension| embedded.file(&path_in_ai(extension)).is_some());
                let extension = found.unwrap_or(first).clone();
                let path = embedded_path(embedded.id, &path_in_ai(&extension));
                return Some(CandidatePath { space, path, extension, is_found: found.is_some() });
            }
        }
        let folder = self.folder(&space)?;
        record(|reads| watch_category(&folder, item, reads));
        // One look spares one for each extension.
        let holder = category_dir(&folder, item);
        let is_closed = match fs_err::metadata(&holder) {
            Ok(found) if found.is_dir() => false,
            // What cannot be looked at may be there: found, and then refused with its reason.
            Err(error) if is_hindrance(&error) => true,
            Ok(_) | Err(_) => {
                let (path, extension) = (folder.join(file(first)), first.clone());
                return Some(CandidatePath { space, path, extension, is_found: false });
            }
        };
        if is_closed {
            let (path, extension) = (folder.join(file(first)), first.clone());
            return Some(CandidatePath { space, path, extension, is_found: true });
        }
        // `symlink_metadata`: a link that leads nowhere or outside is found, and then refused with its reason.
        let exists = |extension: &str| {
            owner.is_none_or(|bundle| bundle.has_file(&path_in_ai(extension)))
                && match fs_err::symlink_metadata(folder.join(file(extension))) {
                    Ok(metadata) => !metadata.is_dir(),
                    Err(error) => is_hindrance(&error),
                }
        };
        let found = extensions.iter().find(|extension| exists(extension));
        let extension = found.unwrap_or(first).clone();
        Some(CandidatePath {
            space,
            path: folder.join(file(&extension)),
            extension,
            is_found: found.is_some(),
        })
    }

    /// Watches every folder that decides in which space an item is found.
    pub fn watch_item(&self, item: &ItemRef, watch_set: &mut WatchSet) {
        for folder in self.order().filter_map(|space| self.folder(&space)) {
            watch_category(&folder, item, watch_set);
        }
    }

    /// Whether a space that is a folder has one of this category for items of a type; others may have it.
    #[must_use]
    pub fn may_have_category(&self, space: &Space, item_type: ItemType, category: &str) -> bool {
        let Some(folder) = self.folder(space) else { return true };
        let path = folder.join(item_type.folder()).join(category);
        record(|reads| reads.add(path.clone()));
        path.is_dir()
    }

    /// The winning file of an item, read; only in `from` if that is given.
    ///
    /// # Errors
    /// When no space has it, or the winner cannot be read.
    pub fn locate(&self, item: &ItemRef, from: Option<SpaceTier>) -> Result<ItemFile, LocateError> {
        let winner = self
            .order()
            .filter(|space| from.is_none_or(|tier| space.tier() == tier))
            .filter_map(|space| self.candidate_in(item, space))
            .find(|candidate| candidate.is_found)
            .ok_or_else(|| LocateError::NotFound(item.clone()))?;
        self.read(item, &winner)
    }

    /// The file that an element of `space` sees: nothing of higher precedence than its own space.
    ///
    /// # Errors
    /// As [`Spaces::locate`].
    pub fn locate_visible_from(&self, item: &ItemRef, space: &Space) -> Result<ItemFile, LocateError> {
        let winner = self
            .order()
            .filter(|candidate| candidate.precedence() <= space.precedence())
            .filter_map(|candidate| self.candidate_in(item, candidate))
            .find(|visible| visible.is_found)
            .ok_or_else(|| LocateError::NotFound(item.clone()))?;
        self.read(item, &winner)
    }

    /// Reads the file at a place.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn read(&self, item: &ItemRef, candidate: &CandidatePath) -> Result<ItemFile, LocateError> {
        let bytes = self.read_bytes(item, candidate).map_err(|source| match source {
            source if source.is_absent() => LocateError::NotFound(item.clone()),
            source => LocateError::Unreadable { item: item.clone(), space: candidate.space.clone(), source },
        })?;
        Ok(ItemFile::new(
            item.clone(),
            candidate.space.clone(),
            candidate.path.clone(),
            candidate.extension.clone(),
            bytes,
            Arc::clone(&self.extractors),
        )
        .prepared(
            self.embedded(&candidate.space)
                .and_then(|embedded| embedded.fields(&Self::path_in_bundle(item, candidate))),
        ))
    }

    /// The path of a place inside its bundle: `.ai/tools/a/b.yaml`.
    fn path_in_bundle(item: &ItemRef, candidate: &CandidatePath) -> String {
        format!("{AI_FOLDER}/{}/{}{}", item.item_type.folder(), item.id, candidate.extension)
    }

    fn embedded(&self, space: &Space) -> Option<&'static Embedded> {
        let Space::System(id) = space else {
            return None;
        };
        match self.bundles.iter().find(|bundle| bundle.id == *id)?.origin {
            BundleOrigin::Embedded(embedded) => Some(embedded),
            BundleOrigin::Folder(_) => None,
        }
    }

    fn read_bytes(&self, item: &ItemRef, candidate: &CandidatePath) -> Result<Cow<'static, [u8]>, ReadError> {
        if let Some(embedded) = self.embedded(&candidate.space) {
            let absent = || std::io::Error::from(std::io::ErrorKind::NotFound);
            return Ok(Cow::Borrowed(
                embedded.file(&Self::path_in_bundle(item, candidate)).ok_or_else(absent)?,
            ));
        }
        let relative = format!("{}/{}{}", item.item_type.folder(), item.id, candidate.extension);
        let folder = self.folder(&candidate.space).unwrap_or_default();
        record(|reads| reads.add(folder.join(&relative)));
        let read = lillux::file::read_beneath(&folder, Path::new(&relative), self.max_bytes);
        let (bytes, _) = read.map_err(|error| match error {
            ReadError::Io(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                ReadError::Io(closed(&folder.join(&relative), &error))
            }
            other => other,
        })?;
        Ok(Cow::Owned(bytes))
    }

    /// Every item file of a space. Items a bundle may not hold are left out.
    #[must_use]
    pub fn scan(&self, space: &Space, types: &[ItemType]) -> ScanResult {
        match space {
            Space::System(id) => match self.bundles.iter().find(|bundle| bundle.id == *id) {
                Some(bundle) => self.scan_bundle(bundle, types),
                None => ScanResult::default(),
            },
            Space::Project | Space::User => match self.folder(space) {
                Some(folder) => crate::scan::scan(&folder, types, &self.extractors),
                None => ScanResult::default(),
            },
        }
    }

    /// As [`Spaces::scan`], for what must not miss an item.
    ///
    /// # Errors
    /// The first folder that could not be read.
    pub fn scan_strict(&self, space: &Space, types: &[ItemType]) -> Result<ScanResult, InvalidItemFile> {
        let mut walk = self.scan(space, types);
        match walk.unreadable.is_empty() {
            true => Ok(walk),
            false => Err(walk.unreadable.swap_remove(0)),
        }
    }

    /// Every item file a bundle may hold.
    #[must_use]
    pub fn scan_bundle(&self, bundle: &Bundle, types: &[ItemType]) -> ScanResult {
        let mut scan = match &bundle.origin {
            BundleOrigin::Embedded(embedded) => crate::embedded::scan(embedded, types, &self.extractors),
            BundleOrigin::Folder(path) => crate::scan::scan(&path.join(AI_FOLDER), types, &self.extractors),
        };
        scan.entries.retain(|entry| {
            bundle.allows(entry.item.item_type, &entry.item.id)
                && bundle.has_file(&format!("{AI_FOLDER}/{}", entry.relative))
        });
        scan
    }

    /// Whether the file at `path` (from `.ai/` on) is one of the space's: a bundle has no files but those its manifest
    /// lists.
    #[must_use]
    pub fn has_file(&self, space: &Space, path: &str) -> bool {
        self.bundle(space).is_none_or(|bundle| bundle.has_file(path))
    }

    /// The bundle that a space is, if it is one.
    #[must_use]
    pub fn bundle(&self, space: &Space) -> Option<&Bundle> {
        let Space::System(id) = space else {
            return None;
        };
        self.bundles.iter().find(|bundle| bundle.id == *id)
    }
}

/// Names the folder that keeps a file from being read, if it is one.
fn closed(path: &Path, error: &std::io::Error) -> std::io::Error {
    let InvalidItemFile { path: found, .. } = hindrance(path, error);
    if found == path {
        return std::io::Error::new(error.kind(), error.to_string());
    }
    let message = format!("the folder `{}` cannot be read: permission denied", found.display());
    std::io::Error::new(error.kind(), message)
}

/// Watches the folders of an item in one space.
fn watch_category(folder: &Path, item: &ItemRef, watch_set: &mut WatchSet) {
    let category_dir = category_dir(folder, item);
    // A folder on the way that becomes a link leads elsewhere, perhaps to the same files.
    let parents = category_dir.ancestors().take_while(|path| path.starts_with(folder));
    parents.for_each(|path| watch_set.add_folder(path.to_owned()));
    watch_set.add(category_dir);
}

/// The folder an item's file lies in, below a space's.
fn category_dir(folder: &Path, item: &ItemRef) -> PathBuf {
    folder.join(item.item_type.folder()).join(item.id.category())
}

/// How a file inside the binary is shown.
#[must_use]
pub fn embedded_path(bundle: &str, path: &str) -> PathBuf {
    PathBuf::from(format!("<{bundle}>/{path}"))
}
