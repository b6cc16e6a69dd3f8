//! What the tests share: the vectors' key, the shipped signature formats, and a subject to be judged.

use std::ops::Range;
use std::sync::LazyLock;

use lillux::SecretKey;
use rye_item::{Extractor, ItemId, ItemRef, ItemType, SignatureFormat, Space};
use rye_trust::signature::Timestamp;
use rye_trust::{Identity, KeyRing, SignOutcome, Subject, TrustReport, TrustVerdict, sign, verify};

/// The key of the vectors: Ed25519 seed 00, 01, … 1f.
pub const VECTOR_KEY: &str = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f\n-----END PRIVATE KEY-----\n";

/// The extractors that the core bundle ships.
const EXTRACTORS: [(ItemType, &str); 4] = [
    (
        ItemType::Directive,
        include_str!(
            "../../../../bundles/core/.ai/tools/rye/core/extractors/directive/directive_extractor.yaml"
        ),
    ),
    (
        ItemType::Tool,
        include_str!("../../../../bundles/core/.ai/tools/rye/core/extractors/tool/tool_extractor.yaml"),
    ),
    (
        ItemType::Knowledge,
        include_str!(
            "../../../../bundles/core/.ai/tools/rye/core/extractors/knowledge/knowledge_extractor.yaml"
        ),
    ),
    (
        ItemType::Config,
        include_str!("../../../../bundles/core/.ai/tools/rye/core/extractors/config/config_extractor.yaml"),
    ),
];

/// A kind of file that can be signed.
#[derive(Clone, Debug)]
pub struct FileKind {
    pub item_type: ItemType,
    pub extension: String,
    pub format: SignatureFormat,
}

/// Every type with every extension that can carry a signature line.
pub fn file_kinds() -> Vec<FileKind> {
    let mut kinds = Vec::new();
    for (item_type, text) in EXTRACTORS {
        let value = rye_item::yaml::parse(text).expect("shipped extractor").value;
        let extractor = Extractor::from_value(item_type, &value).expect("shipped extractor");
        for extension in &extractor.extensions {
            if let Some(format) = extractor.format_for(extension) {
                kinds.push(FileKind { item_type, extension: extension.clone(), format: format.clone() });
            }
        }
    }
    kinds
}

/// The kind of files of `item_type` that end in `extension`.
pub fn file_kind(item_type: ItemType, extension: &str) -> FileKind {
    let mut kinds = file_kinds().into_iter();
    kinds
        .find(|kind| kind.item_type == item_type && kind.extension == extension)
        .expect("a kind that can be signed")
}

/// A content that fits the kind, with LF line ends.
pub fn sample(kind: &FileKind) -> &'static str {
    match (kind.item_type, kind.extension.as_str()) {
        (ItemType::Directive, _) => {
            "# T\n\n```xml\n<directive name=\"d\" version=\"1.0.0\">\n<metadata/>\n</directive>\n```\n\nDo it.\n"
        }
        (ItemType::Knowledge, ".md") => "---\nname: k\n---\n\n  # Hi\n\n",
        (_, ".js" | ".ts" | ".mjs" | ".cjs") => "export const __version__ = \"1.0.0\";\n",
        (_, ".toml") => "version = \"1.0.0\"\n\n[a]\nb = 1\n",
        (_, ".sh") => "# version: 1.0.0\necho \"é\"\n",
        (_, ".py") => "__version__ = \"1.0.0\"\nprint(\"é\")\n",
        _ => "version: \"1.0.0\"\nname: x\n",
    }
}

/// When everything here is signed.
pub fn fixed_time() -> Timestamp {
    Timestamp::new("2026-01-02T03:04:05Z").expect("a moment")
}

pub fn vector_key() -> &'static SecretKey {
    static KEY: LazyLock<SecretKey> =
        LazyLock::new(|| SecretKey::from_pem(VECTOR_KEY).expect("the vectors' key"));
    &KEY
}

/// The ring of a user who trusts the vectors' key everywhere and no other.
pub fn vector_ring() -> &'static KeyRing {
    static RING: LazyLock<KeyRing> = LazyLock::new(|| {
        let key = vector_key();
        let own = signed_identity(&Identity::new(key.public_key(), "me"), key);
        KeyRing::from_user_documents(&[own], Some(&key.public_key()), None, Vec::new())
    });
    &RING
}

/// The bytes of a file after signing.
pub fn sign_bytes(bytes: &[u8], format: &SignatureFormat, key: &SecretKey) -> Vec<u8> {
    match sign(bytes, format, key, &fixed_time()) {
        SignOutcome::Written { bytes, .. } => bytes,
        SignOutcome::Unchanged(_) => bytes.to_vec(),
    }
}

/// `bytes` signed with the vectors' key.
pub fn sign_with_vector_key(bytes: &[u8], format: &SignatureFormat) -> Vec<u8> {
    sign_bytes(bytes, format, vector_key())
}

/// A signed identity document, read back.
pub fn signed_identity(identity: &Identity, signer: &SecretKey) -> Identity {
    let bytes =
        sign_bytes(identity.to_document().as_bytes(), &rye_trust::identity::signature_format(), signer);
    Identity::parse(&bytes).expect("own document")
}

/// A file to be judged, in its right place.
pub struct File {
    pub item: ItemRef,
    pub space: Space,
    pub format: Option<SignatureFormat>,
    pub bytes: Vec<u8>,
    pub misplacement: Option<String>,
    pub path: Option<String>,
}

impl File {
    pub fn new(kind: &FileKind, space: Space, bytes: Vec<u8>) -> Self {
        let id = ItemId::new("demo/a").expect("an id");
        Self {
            item: ItemRef::new(kind.item_type, id),
            space,
            format: Some(kind.format.clone()),
            bytes,
            misplacement: None,
            path: None,
        }
    }
}

impl Subject for File {
    fn item(&self) -> &ItemRef {
        &self.item
    }

    fn space(&self) -> &Space {
        &self.space
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn format(&self) -> Option<&SignatureFormat> {
        self.format.as_ref()
    }

    fn misplacement(&self) -> Option<String> {
        self.misplacement.clone()
    }

    fn manifest_path(&self) -> Option<String> {
        self.path.clone()
    }
}

/// The report on `bytes` as a user-space file of this kind, by a user who trusts the vectors' key.
pub fn report_for(kind: &FileKind, bytes: &[u8]) -> TrustReport {
    verify::evaluate(&File::new(kind, Space::User, bytes.to_vec()), vector_ring())
}

pub fn is_good(verdict: TrustVerdict) -> bool {
    matches!(verdict, TrustVerdict::Full | TrustVerdict::Partial)
}

/// The bytes of a file that a user vouches for: all but the uncovered ranges.
pub fn covered_bytes(bytes: &[u8], uncovered: &[Range<usize>]) -> Vec<u8> {
    let is_covered = |index: &usize| !uncovered.iter().any(|range| range.contains(index));
    (0..bytes.len()).filter(is_covered).map(|index| bytes[index]).collect()
}
