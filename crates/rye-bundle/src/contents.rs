//! What is in a bundle: its files as they are, with what the items among them say of themselves.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;

use lillux::{Digest, Fingerprint};
use rye_item::{ItemId, ItemRef, ItemType, Space};
use rye_space::{BundlePath, ItemFile};
use serde_json::{Map, Value};

use crate::object;
use crate::verify::{VerifyContext, VerifyTarget, read_file};

/// One file of a bundle.
#[derive(Clone, Debug)]
pub struct BundleFile {
    /// Its path.
    pub path: BundlePath,
    /// `directive`, `tool`, `knowledge`, `config`, or `asset`.
    pub kind: &'static str,
    /// The item it is, if it is one.
    pub item: Option<ItemRef>,
    /// Bytes.
    pub size: u64,
    /// The digest of its bytes.
    pub sha256: Digest,
    /// The key its own signature names.
    pub signer: Option<Fingerprint>,
    /// What the item says of itself.
    pub fields: Map<String, Value>,
    /// Everything its parser read.
    pub raw: Map<String, Value>,
}

impl BundleFile {
    /// A field that is a text.
    #[must_use]
    pub fn text(&self, field: &str) -> Option<&str> {
        self.fields.get(field).and_then(Value::as_str)
    }
}

/// The listed files that are there and are what the manifest says; others are passed over, `verify` names them.
#[must_use]
pub fn read_all(target: VerifyTarget<'_>, context: VerifyContext<'_>) -> Vec<BundleFile> {
    let Ok(manifest) = &target.manifest.parsed else {
        return Vec::new();
    };
    let files = manifest.files.iter().filter_map(|(path, entry)| {
        let bytes = read_file(target.origin, path, context.limit).ok()?;
        object::compare_entry(path, entry, &bytes, context.extractors).ok()?;
        Some(parse_file(path, bytes, context))
    });
    files.collect()
}

fn parse_file(path: &BundlePath, bytes: Vec<u8>, context: VerifyContext<'_>) -> BundleFile {
    let size = bytes.len() as u64;
    let sha256 = Digest::of(&bytes);
    let signer = object::signature(path, &bytes, context.extractors).map(|line| line.fingerprint);
    let item = object::item_type(path, context.extractors)
        .and_then(|item_type| Some(ItemRef::new(item_type, ItemId::new(object::object_name(path).1).ok()?)));
    let (fields, raw) = match (&item, object::extension(path)) {
        (Some(item), Some(extension)) => {
            let located = ItemFile::new(
                item.clone(),
                Space::Project,
                PathBuf::from(path.as_str()),
                extension.to_owned(),
                Cow::Owned(bytes),
                Arc::clone(context.extractors),
            );
            (located.fields().clone(), located.parsed().fields.clone())
        }
        _ => (Map::new(), Map::new()),
    };
    let kind = item.as_ref().map_or("asset", |item| item.item_type.as_str());
    BundleFile { path: path.clone(), kind, item, size, sha256, signer, fields, raw }
}

/// Whether a file is a tool.
#[must_use]
pub fn is_tool(file: &BundleFile) -> bool {
    file.item.as_ref().is_some_and(|item| item.item_type == ItemType::Tool)
}
