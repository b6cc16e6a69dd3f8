//! `object_hash`: the digest of the object that stands for a file in the content-addressed store.
//!
//! The object names the file's type, its id, the digest of its bytes and its signature. A file that is no item of a type
//! (an image among tools, a file of another folder) has an object too, without a signature: bytes are bytes, text or not.

use lillux::Digest;
use rye_item::{ExtractorSet, ItemType};
use rye_space::FilePath;
use rye_space::manifest::{Entry, FileHash, type_of};
use rye_space::walk::split_extension;
use rye_trust::signature::{Layout, SignatureLine};
use rye_trust::source;

/// The type and id a file has in its object: `tool` and `team/x` for `.ai/tools/team/x.py`; `asset` and the bare name
/// below no type's folder.
#[must_use]
pub fn name(path: &FilePath) -> (&'static str, &str) {
    let relative = path.as_str().strip_prefix(".ai/").unwrap_or(path.as_str());
    match (type_of(path), relative.split_once('/')) {
        (Some(item_type), Some((_, rest))) => (item_type.as_str(), without_extension(rest)),
        _ => ("asset", without_extension(relative.rsplit('/').next().unwrap_or(relative))),
    }
}

fn without_extension(path: &str) -> &str {
    let start = path.rfind('/').map_or(0, |slash| slash + 1);
    match split_extension(&path[start..]) {
        Some((stem, _)) => &path[..start + stem.len()],
        None => path,
    }
}

/// The file's extension with the dot, if it has one.
#[must_use]
pub fn extension(path: &FilePath) -> Option<&str> {
    let name = path.as_str().rsplit('/').next().unwrap_or(path.as_str());
    split_extension(name).map(|(_, extension)| extension)
}

/// The signature the file carries, if it is of a kind that can.
#[must_use]
pub fn signature(path: &FilePath, bytes: &[u8], extractors: &ExtractorSet) -> Option<SignatureLine> {
    let format = extractors.of(type_of(path)?).format_for(extension(path)?)?;
    Layout::of(bytes, format).signature
}

/// The file's `object_hash`.
#[must_use]
pub fn hash(path: &FilePath, bytes: &[u8], extractors: &ExtractorSet) -> Digest {
    let (item_type, id) = name(path);
    source::object_hash(item_type, id, bytes, signature(path, bytes, extractors).as_ref())
}

/// What a manifest says of the file.
#[must_use]
pub fn entry(path: &FilePath, bytes: &[u8], extractors: &ExtractorSet) -> Entry {
    let signature = signature(path, bytes, extractors);
    let (word, id) = name(path);
    Entry {
        hash: FileHash::Object(source::object_hash(word, id, bytes, signature.as_ref())),
        inline_signed: signature.is_some(),
        item_type: item_type(path, extractors),
    }
}

/// Whether these bytes are what a manifest says of the file, and if not, in which way.
///
/// # Errors
/// Both digests, for showing.
pub fn compare(
    path: &FilePath,
    entry: &Entry,
    bytes: &[u8],
    extractors: &ExtractorSet,
) -> Result<(), String> {
    let (item_type, id) = name(path);
    let signature = signature(path, bytes, extractors);
    if entry.hash.is_of(item_type, id, bytes, signature.as_ref()) {
        return Ok(());
    }
    let (what, wanted, found) = match entry.hash {
        FileHash::Object(wanted) => ("object hash", wanted, hash(path, bytes, extractors)),
        FileHash::Bytes(wanted) => ("SHA-256", wanted, Digest::of(bytes)),
    };
    Err(format!("its {what} is {}…, the manifest says {}…", found.short(), wanted.short()))
}

/// The type of a file that is an item by its place and extension.
#[must_use]
pub fn item_type(path: &FilePath, extractors: &ExtractorSet) -> Option<ItemType> {
    let (item_type, extension) = (type_of(path)?, extension(path)?);
    extractors.of(item_type).extensions.iter().any(|known| known == extension).then_some(item_type)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> FilePath {
        FilePath::new(text).expect("a path")
    }

    #[test]
    fn a_file_is_named_by_its_folder_and_loses_one_extension() {
        for (file, named) in [
            (".ai/tools/team/x.py", ("tool", "team/x")),
            (".ai/tools/team/x.config.yaml", ("tool", "team/x.config")),
            (".ai/tools/te.am/x", ("tool", "te.am/x")),
            (".ai/tools/team/.hidden", ("tool", "team/.hidden")),
            (".ai/config/keys/trusted/0a.toml", ("config", "keys/trusted/0a")),
            (".ai/plans/a/b.json", ("asset", "b")),
            (".ai/note.txt", ("asset", "note")),
        ] {
            assert_eq!(name(&path(file)), named, "{file}");
        }
    }
}
