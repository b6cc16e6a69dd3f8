//! `object_hash`: the digest of the object that stands for a file in the content-addressed store.
//!
//! The object names the file's type, its id, the digest of its bytes and its signature. A file that is not an item of a type
//! (an image among tools, a file of another folder) has an object too, without a signature: bytes are bytes, text or not.

use lillux::Digest;
use rye_item::{ExtractorSet, ItemType};
use rye_space::BundlePath;
use rye_space::manifest::{FileHash, ManifestFileEntry, item_type_of};
use rye_space::scan::split_extension;
use rye_trust::object;
use rye_trust::signature::{FileLayout, SignatureLine};

/// The type and id a file has in its object: `tool` and `team/x` for `.ai/tools/team/x.py`; `asset` and the bare name
/// below no type's folder.
#[must_use]
pub fn object_name(path: &BundlePath) -> (&'static str, &str) {
    let relative = path.as_str().strip_prefix(".ai/").unwrap_or(path.as_str());
    match (item_type_of(path), relative.split_once('/')) {
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
pub fn extension(path: &BundlePath) -> Option<&str> {
    let name = path.as_str().rsplit('/').next().unwrap_or(path.as_str());
    split_extension(name).map(|(_, extension)| extension)
}

/// The signature the file carries, if it is of a kind that can.
#[must_use]
pub fn signature(path: &BundlePath, bytes: &[u8], extractors: &ExtractorSet) -> Option<SignatureLine> {
    let format = extractors.for_type(item_type_of(path)?).format_for(extension(path)?)?;
    FileLayout::parse(bytes, format).signature
}

/// The file's `object_hash`.
#[must_use]
pub fn object_hash(path: &BundlePath, bytes: &[u8], extractors: &ExtractorSet) -> Digest {
    let (item_type, id) = object_name(path);
    object::object_hash(item_type, id, bytes, signature(path, bytes, extractors).as_ref())
}

/// What a manifest says of the file.
#[must_use]
pub fn manifest_entry(path: &BundlePath, bytes: &[u8], extractors: &ExtractorSet) -> ManifestFileEntry {
    let signature = signature(path, bytes, extractors);
    let (word, id) = object_name(path);
    ManifestFileEntry {
        hash: FileHash::Object(object::object_hash(word, id, bytes, signature.as_ref())),
        inline_signed: signature.is_some(),
        item_type: item_type(path, extractors),
    }
}

/// Whether these bytes are what a manifest says of the file, and if not, in which way.
///
/// # Errors
/// Both digests, for showing.
pub fn compare_entry(
    path: &BundlePath,
    entry: &ManifestFileEntry,
    bytes: &[u8],
    extractors: &ExtractorSet,
) -> Result<(), String> {
    let (item_type, id) = object_name(path);
    let signature = signature(path, bytes, extractors);
    if entry.hash.matches(item_type, id, bytes, signature.as_ref()) {
        return Ok(());
    }
    let (what, expected, found) = match entry.hash {
        FileHash::Object(expected) => ("object hash", expected, object_hash(path, bytes, extractors)),
        FileHash::Bytes(expected) => ("SHA-256", expected, Digest::of(bytes)),
    };
    Err(format!("its {what} is {}…, the manifest says {}…", found.short(), expected.short()))
}

/// The type of a file that is an item by its place and extension.
#[must_use]
pub fn item_type(path: &BundlePath, extractors: &ExtractorSet) -> Option<ItemType> {
    let (item_type, extension) = (item_type_of(path)?, extension(path)?);
    extractors.for_type(item_type).extensions.iter().any(|known| known == extension).then_some(item_type)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> BundlePath {
        BundlePath::new(text).expect("a path")
    }

    #[test]
    fn object_name_comes_from_folder_and_stem() {
        for (file, named) in [
            (".ai/tools/team/x.py", ("tool", "team/x")),
            (".ai/tools/team/x.config.yaml", ("tool", "team/x.config")),
            (".ai/tools/te.am/x", ("tool", "te.am/x")),
            (".ai/tools/team/.hidden", ("tool", "team/.hidden")),
            (".ai/config/keys/trusted/0a.toml", ("config", "keys/trusted/0a")),
            (".ai/plans/a/b.json", ("asset", "b")),
            (".ai/note.txt", ("asset", "note")),
        ] {
            assert_eq!(object_name(&path(file)), named, "{file}");
        }
    }
}
