//! Which files beside an element may be imported with it: verified ones that belong to the same bundle as it does, or to
//! the user as it does. What a bundle puts beside a tool of the user's, or of another bundle, does not belong to that tool.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use lillux::file;
use rye_exec::Element;
use rye_exec::staging::VerifiedFile;
use rye_item::{ItemId, ItemRef, ItemType, Space};
use rye_space::bundle::{Bundle, BundleOrigin};
use rye_space::installed::FileOwners;
use rye_space::{AI_FOLDER, ItemFile};
use rye_trust::Subject;
use serde_json::Value;

use crate::engine::Engine;
use crate::error::{Code, Error, Result};

/// The largest file that is verified beside a tool.
const MAX_SOURCE_BYTES: u64 = 8 << 20;

/// Whose files may be imported with an element.
pub(super) struct Importable {
    /// The folder of the tools of its space.
    tools: PathBuf,
    /// The element's file, from `.ai/` on.
    file: String,
    owners: FileOwners,
}

impl Importable {
    /// The files of an element at `path`. Without an anchor nothing is imported, and nothing is read.
    ///
    /// # Errors
    /// When it is not known which files the bundles of its space brought.
    pub(super) fn of(
        engine: &Engine,
        element: &Element,
        path: &Path,
        anchor: Option<&Value>,
    ) -> Result<Self> {
        let space = element.space();
        let ai = match space {
            Space::Project | Space::User if anchor.is_some() => engine.workspace.spaces.folder(space),
            // What a bundle of system space does not list does not exist.
            Space::Project | Space::User | Space::System(_) => None,
        };
        let Some(ai) = ai else {
            return Ok(Self { tools: PathBuf::new(), file: String::new(), owners: FileOwners::default() });
        };
        let owners = FileOwners::read(&ai, space).map_err(|why| {
            Error::new(Code::DamagedInstall, format!("it is not known which files are the tool's own: {why}"))
                .for_item(element.item().item_ref())
                .hint("restore the lockfile from version control, or install the bundle again")
        })?;
        let tools = ai.join(ItemType::Tool.folder());
        let file = listed(&tools, path).unwrap_or_default();
        Ok(Self { tools, file, owners })
    }

    /// Whether a file belongs together with the element.
    pub(super) fn is_file_of_element(&self, path: &Path) -> bool {
        // What lies elsewhere is refused when it is verified.
        listed(&self.tools, path).is_none_or(|other| self.owners.are_together(&self.file, &other))
    }

    /// Whether all that bundles brought into a folder belongs together with the element.
    pub(super) fn is_folder_of_element(&self, path: &Path) -> bool {
        listed(&self.tools, path).is_none_or(|folder| self.owners.is_folder_together(&self.file, &folder))
    }
}

/// The path of a file of the folder `tools`, from `.ai/` on.
fn listed(tools: &Path, path: &Path) -> Option<String> {
    if tools.as_os_str().is_empty() {
        return None;
    }
    let relative = path.strip_prefix(tools).ok()?.to_str()?;
    Some(format!("{AI_FOLDER}/{}/{relative}", ItemType::Tool.folder()))
}

/// The folder of the tools of an element's space; a bundle inside the binary is laid out as files.
pub(super) fn tools_folder(engine: &Engine, element: &Element) -> Result<PathBuf> {
    let space = element.space();
    let spaces = &engine.workspace.spaces;
    let folder = match spaces.folder(space) {
        Some(folder) => folder,
        None => {
            let is_its = |bundle: &&Bundle| matches!(space, Space::System(id) if bundle.id == *id);
            match spaces.bundles().iter().find(is_its).map(|bundle| &bundle.origin) {
                Some(BundleOrigin::Embedded(embedded)) => {
                    embedded.materialise(&engine.workspace.roots.cache)?.join(AI_FOLDER)
                }
                Some(BundleOrigin::Folder(path)) => path.join(AI_FOLDER),
                None => {
                    return Err(
                        Error::new(Code::NotFound, "its bundle is gone").for_item(element.item().item_ref())
                    );
                }
            }
        }
    };
    Ok(folder.join(ItemType::Tool.folder()))
}

/// A file beside an element, if a trusted key signed it as an item of the same space.
pub(super) fn verified_file(
    engine: &Engine,
    element: &Element,
    path: &Path,
) -> std::result::Result<VerifiedFile, String> {
    let space = element.space();
    let spaces = &engine.workspace.spaces;
    let tools = tools_folder(engine, element).map_err(|error| error.message)?;
    let relative =
        path.strip_prefix(&tools).map_err(|_| "it is not a tool file of the same space".to_owned())?;
    let (bytes, _) =
        file::read_beneath(&tools, relative, MAX_SOURCE_BYTES).map_err(|error| error.to_string())?;
    let text = relative.to_str().ok_or("its name is not UTF-8")?;
    let listed = format!("{AI_FOLDER}/{}/{text}", ItemType::Tool.folder());
    if !spaces.has_file(space, &listed) {
        return Err("the manifest of its bundle does not list it".to_owned());
    }
    let (stem, extension) = text.rsplit_once('.').ok_or("it has no extension")?;
    let id = ItemId::new(stem).map_err(|error| error.to_string())?;
    let located = ItemFile::new(
        ItemRef::new(ItemType::Tool, id),
        space.clone(),
        path.to_owned(),
        format!(".{extension}"),
        bytes.into(),
        Arc::clone(spaces.extractors()),
    );
    let admitted = engine.admit_cached(located).map_err(|error| error.message)?;
    let integrity = lillux::Digest::of(admitted.bytes());
    Ok(VerifiedFile { covered: admitted.covered_form().into_owned(), integrity })
}
