//! The object that stands for a signed file in the content-addressed store and in manifests.

use lillux::{Digest, canonical};
use serde_json::{Value, json};

use crate::signature::SignatureLine;

/// The `item_source` object of a file: what it is, the digest of its bytes, and its signature.
#[must_use]
pub fn item_source_object(
    item_type: &str,
    item_id: &str,
    bytes: &[u8],
    signature: Option<&SignatureLine>,
) -> Value {
    let hash = Digest::of(bytes).to_hex();
    json!({
        "schema": 1,
        "kind": "item_source",
        "item_type": item_type,
        "item_id": item_id,
        "content_blob_hash": hash,
        "integrity": hash,
        "signature_info": signature.map(signature_info),
    })
}

/// The digest of [`item_source_object`]: a manifest's `object_hash`.
#[must_use]
pub fn object_hash(
    item_type: &str,
    item_id: &str,
    bytes: &[u8],
    signature: Option<&SignatureLine>,
) -> Digest {
    canonical::digest(&item_source_object(item_type, item_id, bytes, signature))
}

/// The same as newer makers write it: type and id in one `item_ref`.
fn item_source_object_v2(
    item_type: &str,
    item_id: &str,
    bytes: &[u8],
    signature: Option<&SignatureLine>,
) -> Value {
    let hash = Digest::of(bytes).to_hex();
    json!({
        "schema": 2,
        "kind": "item_source",
        "item_ref": format!("{item_type}:{item_id}"),
        "content_blob_hash": hash,
        "integrity": hash,
        "signature_info": signature.map(signature_info),
    })
}

/// What a manifest says of a file's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileHash {
    /// `object_hash`: the digest of the file's object in the content-addressed store.
    Object(Digest),
    /// `sha256`, the older form: the digest of the file's bytes.
    Bytes(Digest),
}

impl FileHash {
    /// Whether it is that of a file with this type, id, content and signature.
    #[must_use]
    pub fn matches(
        &self,
        item_type: &str,
        item_id: &str,
        bytes: &[u8],
        signature: Option<&SignatureLine>,
    ) -> bool {
        match self {
            Self::Bytes(hash) => *hash == Digest::of(bytes),
            Self::Object(hash) => {
                *hash == object_hash(item_type, item_id, bytes, signature)
                    || *hash
                        == canonical::digest(&item_source_object_v2(item_type, item_id, bytes, signature))
            }
        }
    }
}

fn signature_info(line: &SignatureLine) -> Value {
    let mut info = json!({
        "timestamp": line.timestamp.as_str(),
        "hash": line.hash.to_hex(),
        "ed25519_sig": line.signature_text,
        "pubkey_fp": line.fingerprint.as_str(),
    });
    if let Some((provider, user)) = line.registry.as_ref().and_then(|registry| registry.split_once('@')) {
        info["registry_provider"] = provider.into();
        info["registry_username"] = user.into();
    }
    info
}
