//! Files that a signed manifest lists: the manifest's signer counts for them, at that path of that space, with exactly
//! that content.

use lillux::{Digest, SecretKey};
use rye_item::{BundleId, ItemType, Space};
use rye_trust::object::{FileHash, object_hash};
use rye_trust::signature::FileLayout;
use rye_trust::verify::evaluate;
use rye_trust::{DevModePolicy, Identity, KeyRing, Revocation, TrustBasis, TrustVerdict, admit};

use crate::support::{File, FileKind, file_kind, sign_bytes, signed_identity};

const PATH: &str = ".ai/tools/demo/a.py";

struct Case {
    maker: SecretKey,
    kind: FileKind,
    bytes: Vec<u8>,
    ring: KeyRing,
}

impl Case {
    /// A tool signed by a bundle's maker, whom the user approved for what the manifest lists.
    fn new() -> Self {
        let (me, maker) = (SecretKey::generate().expect("a key"), SecretKey::generate().expect("a key"));
        let kind = file_kind(ItemType::Tool, ".py");
        let bytes = sign_bytes(b"x = 1\n", &kind.format, &maker);
        let own = signed_identity(&Identity::new(me.public_key(), "me"), &me);
        let mut ring = KeyRing::from_user_documents(&[own], Some(&me.public_key()), None, Vec::new());
        let line = FileLayout::parse(&bytes, &kind.format).signature;
        let hash = FileHash::Object(object_hash("tool", "demo/a", &bytes, line.as_ref()));
        let signer = Identity::new(maker.public_key(), "gifts");
        ring.add_manifest_entries(&Space::Project, &signer, [(PATH.to_owned(), hash)]);
        Self { maker, kind, bytes, ring }
    }

    fn file(&self, space: Space, path: &str, bytes: Vec<u8>) -> File {
        File { path: Some(path.to_owned()), ..File::new(&self.kind, space, bytes) }
    }

    fn verdict(&self, file: &File) -> TrustVerdict {
        evaluate(file, &self.ring).verdict
    }
}

#[test]
fn listed_file_is_trusted_exactly_as_listed() {
    let case = Case::new();
    let good = case.file(Space::Project, PATH, case.bytes.clone());
    let report = evaluate(&good, &case.ring);
    assert_eq!(
        (report.verdict, report.basis, report.owner.as_deref()),
        (TrustVerdict::Full, Some(TrustBasis::Bundle), Some("gifts"))
    );

    let bundle = Space::System(BundleId::new("gifts").expect("an id"));
    for space in [Space::User, bundle] {
        assert_eq!(case.verdict(&case.file(space, PATH, case.bytes.clone())), TrustVerdict::Untrusted);
    }
    for path in [".ai/tools/demo/b.py", ".ai/tools/demo/a.yaml", ".ai/knowledge/demo/a.py", "a.py"] {
        assert_eq!(
            case.verdict(&case.file(Space::Project, path, case.bytes.clone())),
            TrustVerdict::Untrusted,
            "{path}"
        );
    }
    assert_eq!(case.verdict(&File { path: None, ..good }), TrustVerdict::Untrusted);
}

#[test]
fn other_content_by_same_signer_is_untrusted() {
    let case = Case::new();
    let other = sign_bytes(b"x = 2\n", &case.kind.format, &case.maker);
    let report = evaluate(&case.file(Space::Project, PATH, other), &case.ring);
    assert_eq!(report.verdict, TrustVerdict::Untrusted);
    assert_eq!(report.reason.as_deref(), Some("its bundle's manifest lists other content"));
    // The same content by another key.
    let stranger = SecretKey::generate().expect("a key");
    let stolen = sign_bytes(b"x = 1\n", &case.kind.format, &stranger);
    assert_eq!(case.verdict(&case.file(Space::Project, PATH, stolen)), TrustVerdict::Untrusted);
    // Without its signature, or changed after it.
    assert_eq!(case.verdict(&case.file(Space::Project, PATH, b"x = 1\n".to_vec())), TrustVerdict::Unsigned);
    let changed = [case.bytes.clone(), b"y = 1\n".to_vec()].concat();
    let file = case.file(Space::Project, PATH, changed);
    assert_eq!(case.verdict(&file), TrustVerdict::Tampered);
    assert!(
        admit(file, &case.ring, DevModePolicy::AllowOwnUnsigned).is_err(),
        "development mode forgives the user's own doing"
    );
}

#[test]
fn listed_hash_does_not_excuse_forged_signature() {
    // A manifest may list anything; what carries a signature line must still carry a true one.
    let mut case = Case::new();
    let text = String::from_utf8(case.bytes.clone()).expect("text");
    let line = FileLayout::parse(&case.bytes, &case.kind.format).signature.expect("a line");
    let forged = text
        .replace(&line.signature_text, &SecretKey::generate().expect("a key").sign(&line.hash).to_base64());
    let hash = FileHash::Bytes(Digest::of(forged.as_bytes()));
    let signer = Identity::new(case.maker.public_key(), "gifts");
    case.ring.add_manifest_entries(&Space::Project, &signer, [(PATH.to_owned(), hash)]);
    assert_eq!(case.verdict(&case.file(Space::Project, PATH, forged.into_bytes())), TrustVerdict::Tampered);
}

#[test]
fn manifest_covers_unsignable_files() {
    let mut case = Case::new();
    let bytes = b"{}".to_vec();
    let path = ".ai/tools/demo/a.json";
    let unsigned = |bytes: Vec<u8>| File {
        format: None,
        path: Some(path.to_owned()),
        ..File::new(&file_kind(ItemType::Tool, ".py"), Space::Project, bytes)
    };
    assert_eq!(case.verdict(&unsigned(bytes.clone())), TrustVerdict::Unsigned);
    let hash = FileHash::Object(object_hash("tool", "demo/a", &bytes, None));
    let signer = Identity::new(case.maker.public_key(), "gifts");
    case.ring.add_manifest_entries(&Space::Project, &signer, [(path.to_owned(), hash)]);
    assert_eq!(case.verdict(&unsigned(bytes)), TrustVerdict::Full);
    assert_eq!(case.verdict(&unsigned(b"{ }".to_vec())), TrustVerdict::Unsigned);
}

#[test]
fn revoked_signer_adds_no_entries() {
    let case = Case::new();
    let fingerprint = case.maker.public_key().fingerprint();
    let revoked = vec![Revocation { fingerprint, reason: "stolen".to_owned() }];
    let mut ring = KeyRing::from_user_documents(&[], None, None, revoked);
    let hash = FileHash::Bytes(Digest::of(&case.bytes));
    ring.add_manifest_entries(
        &Space::Project,
        &Identity::new(case.maker.public_key(), "gifts"),
        [(PATH.to_owned(), hash)],
    );
    assert!(ring.listed(&Space::Project, PATH).is_empty());
    assert_eq!(
        evaluate(&case.file(Space::Project, PATH, case.bytes.clone()), &ring).verdict,
        TrustVerdict::Revoked
    );
}

#[test]
fn both_object_schemas_are_accepted() {
    // As two generations of published packages write it.
    let (bytes, line) = (b"x = 1\n", None);
    let older = r#"{"content_blob_hash":"HASH","integrity":"HASH","item_id":"demo/a","item_type":"tool","kind":"item_source","schema":1,"signature_info":null}"#;
    let newer = r#"{"content_blob_hash":"HASH","integrity":"HASH","item_ref":"tool:demo/a","kind":"item_source","schema":2,"signature_info":null}"#;
    for form in [older, newer] {
        let text = form.replace("HASH", &Digest::of(bytes).to_hex());
        let hash = FileHash::Object(Digest::of(text.as_bytes()));
        assert!(hash.matches("tool", "demo/a", bytes, line), "{form}");
        assert!(
            !hash.matches("tool", "demo/b", bytes, line) && !hash.matches("tool", "demo/a", b"x = 2\n", line)
        );
    }
}
