//! Files that a signed manifest lists: the manifest's signer counts for them, at that path of that space, with exactly
//! that content.

use lillux::{Digest, SecretKey};
use rye_item::{BundleId, ItemType, Space};
use rye_trust::signature::Layout;
use rye_trust::source::{FileHash, object_hash};
use rye_trust::verify::report;
use rye_trust::{Forgiveness, Identity, KeyRing, Revocation, Verdict, Vouch, admit};

use crate::support::{File, Kind, document, kind, signed_by};

const PATH: &str = ".ai/tools/demo/a.py";

struct Case {
    maker: SecretKey,
    kind: Kind,
    bytes: Vec<u8>,
    ring: KeyRing,
}

impl Case {
    /// A tool signed by a bundle's maker, whom the user approved for what the manifest lists.
    fn new() -> Self {
        let (me, maker) = (SecretKey::generate().expect("a key"), SecretKey::generate().expect("a key"));
        let kind = kind(ItemType::Tool, ".py");
        let bytes = signed_by(b"x = 1\n", &kind.format, &maker);
        let own = document(&Identity::new(me.public(), "me"), &me);
        let mut ring = KeyRing::of_user(&[own], Some(&me.public()), None, Vec::new());
        let line = Layout::of(&bytes, &kind.format).signature;
        let hash = FileHash::Object(object_hash("tool", "demo/a", &bytes, line.as_ref()));
        let signer = Identity::new(maker.public(), "gifts");
        ring.add_listed(&Space::Project, &signer, [(PATH.to_owned(), hash)]);
        Self { maker, kind, bytes, ring }
    }

    fn file(&self, space: Space, path: &str, bytes: Vec<u8>) -> File {
        File { path: Some(path.to_owned()), ..File::new(&self.kind, space, bytes) }
    }

    fn verdict(&self, file: &File) -> Verdict {
        report(file, &self.ring).verdict
    }
}

#[test]
fn a_listed_file_counts_where_and_as_it_is_listed() {
    let case = Case::new();
    let good = case.file(Space::Project, PATH, case.bytes.clone());
    let judged = report(&good, &case.ring);
    assert_eq!(
        (judged.verdict, judged.vouch, judged.owner.as_deref()),
        (Verdict::Full, Some(Vouch::Bundle), Some("gifts"))
    );

    let bundle = Space::System(BundleId::new("gifts").expect("an id"));
    for space in [Space::User, bundle] {
        assert_eq!(case.verdict(&case.file(space, PATH, case.bytes.clone())), Verdict::Untrusted);
    }
    for path in [".ai/tools/demo/b.py", ".ai/tools/demo/a.yaml", ".ai/knowledge/demo/a.py", "a.py"] {
        assert_eq!(
            case.verdict(&case.file(Space::Project, path, case.bytes.clone())),
            Verdict::Untrusted,
            "{path}"
        );
    }
    assert_eq!(case.verdict(&File { path: None, ..good }), Verdict::Untrusted);
}

#[test]
fn other_content_by_the_same_signer_does_not_count() {
    let case = Case::new();
    let other = signed_by(b"x = 2\n", &case.kind.format, &case.maker);
    let judged = report(&case.file(Space::Project, PATH, other), &case.ring);
    assert_eq!(judged.verdict, Verdict::Untrusted);
    assert_eq!(judged.reason.as_deref(), Some("its bundle's manifest lists other content"));
    // The same content by another key.
    let stranger = SecretKey::generate().expect("a key");
    let stolen = signed_by(b"x = 1\n", &case.kind.format, &stranger);
    assert_eq!(case.verdict(&case.file(Space::Project, PATH, stolen)), Verdict::Untrusted);
    // Without its signature, or changed after it.
    assert_eq!(case.verdict(&case.file(Space::Project, PATH, b"x = 1\n".to_vec())), Verdict::Unsigned);
    let changed = [case.bytes.clone(), b"y = 1\n".to_vec()].concat();
    let file = case.file(Space::Project, PATH, changed);
    assert_eq!(case.verdict(&file), Verdict::Tampered);
    assert!(
        admit(file, &case.ring, Forgiveness::OwnDoing).is_err(),
        "development mode forgives the user's own doing"
    );
}

#[test]
fn a_listed_hash_lets_no_forged_signature_pass() {
    // A manifest may list anything; what carries a signature line must still carry a true one.
    let mut case = Case::new();
    let text = String::from_utf8(case.bytes.clone()).expect("text");
    let line = Layout::of(&case.bytes, &case.kind.format).signature.expect("a line");
    let forged = text
        .replace(&line.signature_text, &SecretKey::generate().expect("a key").sign(&line.hash).to_base64());
    let hash = FileHash::Bytes(Digest::of(forged.as_bytes()));
    let signer = Identity::new(case.maker.public(), "gifts");
    case.ring.add_listed(&Space::Project, &signer, [(PATH.to_owned(), hash)]);
    assert_eq!(case.verdict(&case.file(Space::Project, PATH, forged.into_bytes())), Verdict::Tampered);
}

#[test]
fn a_file_that_cannot_be_signed_is_covered_by_what_lists_it() {
    let mut case = Case::new();
    let bytes = b"{}".to_vec();
    let path = ".ai/tools/demo/a.json";
    let unsigned = |bytes: Vec<u8>| File {
        format: None,
        path: Some(path.to_owned()),
        ..File::new(&kind(ItemType::Tool, ".py"), Space::Project, bytes)
    };
    assert_eq!(case.verdict(&unsigned(bytes.clone())), Verdict::Unsigned);
    let hash = FileHash::Object(object_hash("tool", "demo/a", &bytes, None));
    let signer = Identity::new(case.maker.public(), "gifts");
    case.ring.add_listed(&Space::Project, &signer, [(path.to_owned(), hash)]);
    assert_eq!(case.verdict(&unsigned(bytes)), Verdict::Full);
    assert_eq!(case.verdict(&unsigned(b"{ }".to_vec())), Verdict::Unsigned);
}

#[test]
fn a_revoked_signer_lists_nothing() {
    let case = Case::new();
    let fingerprint = case.maker.public().fingerprint();
    let revoked = vec![Revocation { fingerprint, reason: "stolen".to_owned() }];
    let mut ring = KeyRing::of_user(&[], None, None, revoked);
    let hash = FileHash::Bytes(Digest::of(&case.bytes));
    ring.add_listed(&Space::Project, &Identity::new(case.maker.public(), "gifts"), [(PATH.to_owned(), hash)]);
    assert!(ring.listed(&Space::Project, PATH).is_empty());
    assert_eq!(report(&case.file(Space::Project, PATH, case.bytes.clone()), &ring).verdict, Verdict::Revoked);
}

#[test]
fn both_forms_of_the_object_are_known() {
    // As two generations of published packages write it.
    let (bytes, line) = (b"x = 1\n", None);
    let older = r#"{"content_blob_hash":"HASH","integrity":"HASH","item_id":"demo/a","item_type":"tool","kind":"item_source","schema":1,"signature_info":null}"#;
    let newer = r#"{"content_blob_hash":"HASH","integrity":"HASH","item_ref":"tool:demo/a","kind":"item_source","schema":2,"signature_info":null}"#;
    for form in [older, newer] {
        let text = form.replace("HASH", &Digest::of(bytes).to_hex());
        let hash = FileHash::Object(Digest::of(text.as_bytes()));
        assert!(hash.is_of("tool", "demo/a", bytes, line), "{form}");
        assert!(
            !hash.is_of("tool", "demo/b", bytes, line) && !hash.is_of("tool", "demo/a", b"x = 2\n", line)
        );
    }
}
