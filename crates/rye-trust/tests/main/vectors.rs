//! What the original made, reproduced byte for byte.

use std::ops::Range;

use lillux::{Digest, PublicKey, SecretKey, canonical};
use rye_item::{ItemType, Space};
use rye_trust::coverage::{Content, compare, whole_hash};
use rye_trust::signature::Layout;
use rye_trust::{Coverage, Identity, KeyRing, Signed, Verdict, Vouch, sign, source, verify};
use serde::Deserialize;
use serde_json::Value;

use crate::support::{File, Kind, document, judge, kind, noon, signed, signed_by, vector_key};

#[derive(Deserialize)]
struct Vectors {
    private_pem: String,
    public_pem: String,
    fingerprint: String,
    items: Vec<Item>,
    trusted_key_toml: String,
    canonical_json: Vec<Canonical>,
}

#[derive(Deserialize)]
struct Item {
    #[serde(rename = "type")]
    item_type: ItemType,
    path: String,
    unsigned: String,
    hashed_text: String,
    signed: String,
    hash: String,
    blob_hash: String,
    item_source_hash: String,
}

#[derive(Deserialize)]
struct Canonical {
    value: Value,
    canonical: String,
    sha256: String,
}

impl Item {
    fn kind(&self) -> Kind {
        let (_, extension) = self.path.rsplit_once('.').expect("an extension");
        kind(self.item_type, &format!(".{extension}"))
    }

    fn id(&self) -> &str {
        let below =
            self.path.strip_prefix(&format!(".ai/{}/", self.item_type.folder())).expect("a path of its type");
        below.rsplit_once('.').expect("an extension").0
    }

    /// Whether the original hashed the whole content.
    fn is_whole(&self) -> bool {
        let layout = Layout::of(self.unsigned.as_bytes(), &self.kind().format);
        self.hashed_text == self.unsigned[layout.content]
    }
}

fn vectors() -> Vectors {
    serde_json::from_str(include_str!("../fixtures/vectors.json")).expect("vectors")
}

/// Where `part` stands in `text`, once.
fn place_of(part: &str, text: &str) -> Range<usize> {
    assert_eq!(text.matches(part).count(), 1, "{part:?}");
    let start = text.find(part).expect("a part of the text");
    start..start + part.len()
}

#[test]
fn keys_read_and_write_as_the_original_wrote_them() {
    let vectors = vectors();
    let secret = SecretKey::from_pem(&vectors.private_pem).expect("private key");
    let public = PublicKey::from_pem(&vectors.public_pem).expect("public key");
    assert_eq!(secret.to_pem().expect("pem"), vectors.private_pem);
    assert_eq!(public.to_pem(), vectors.public_pem);
    assert_eq!(secret.public(), public);
    assert_eq!(public.fingerprint().as_str(), vectors.fingerprint);
    assert_eq!(vector_key().public(), public);
}

#[test]
fn the_vectors_have_every_kind_of_item() {
    let paths: Vec<_> = vectors().items.iter().map(|item| (item.path.clone(), item.is_whole())).collect();
    let expected = [
        (".ai/tools/demo/a.py", true),
        (".ai/tools/demo/sheb.py", true),
        (".ai/tools/demo/b.ts", true),
        (".ai/tools/demo/c.yaml", true),
        (".ai/directives/demo/d.md", false),
        (".ai/knowledge/demo/k.md", true),
        (".ai/knowledge/demo/dash.md", false),
        (".ai/config/demo/x.yaml", true),
    ];
    assert_eq!(paths, expected.map(|(path, is_whole)| (path.to_owned(), is_whole)));
}

#[test]
fn signature_lines_name_the_hash_of_the_hashed_text_and_verify() {
    let public = vector_key().public();
    for item in vectors().items {
        assert_eq!(Digest::of(item.hashed_text.as_bytes()).to_hex(), item.hash, "{}", item.path);
        let layout = Layout::of(item.signed.as_bytes(), &item.kind().format);
        let line = layout.signature.expect("a signature line");
        assert_eq!(line.hash.to_hex(), item.hash, "{}", item.path);
        assert_eq!(line.timestamp, noon());
        assert_eq!(line.fingerprint, public.fingerprint());
        assert!(public.verifies(&line.hash, &line.signature), "{}", item.path);
        assert!(!public.verifies(&Digest::of(b"other"), &line.signature), "{}", item.path);
    }
}

#[test]
fn signing_reproduces_what_the_original_hashed_whole() {
    for item in vectors().items.iter().filter(|item| item.is_whole()) {
        let kind = item.kind();
        let unsigned = item.unsigned.as_bytes();
        assert_eq!(
            whole_hash(unsigned, &Layout::of(unsigned, &kind.format)).to_hex(),
            item.hash,
            "{}",
            item.path
        );
        let ours = String::from_utf8(signed(unsigned, &kind.format)).expect("text");
        assert_eq!(ours, item.signed, "{}", item.path);
        let again = sign(item.signed.as_bytes(), &kind.format, vector_key(), &noon());
        assert!(matches!(again, Signed::Unchanged(_)), "{}", item.path);
        let report = judge(&kind, item.signed.as_bytes());
        assert_eq!((report.verdict, report.coverage), (Verdict::Full, Coverage::Full), "{}", item.path);
    }
}

#[test]
fn what_the_original_left_out_is_reported_as_uncovered() {
    for item in vectors().items {
        let (kind, bytes) = (item.kind(), item.signed.as_bytes());
        let layout = Layout::of(bytes, &kind.format);
        let covered = place_of(&item.hashed_text, &item.signed);
        let mut uncovered = vec![
            layout.shebang.clone(),
            place_of(noon().as_str(), &item.signed),
            layout.content.start..covered.start,
            covered.end..bytes.len(),
        ];
        uncovered.retain(|range| !range.is_empty());
        let coverage = if item.is_whole() { Coverage::Full } else { Coverage::Partial };
        assert_eq!(
            compare(kind.item_type, bytes, &layout),
            Content::Intact { coverage, uncovered: uncovered.clone() }
        );
        let report = judge(&kind, bytes);
        let verdict = if item.is_whole() { Verdict::Full } else { Verdict::Partial };
        assert_eq!((report.verdict, report.uncovered), (verdict, uncovered), "{}", item.path);
    }
}

#[test]
fn the_uncovered_parts_are_the_known_ones() {
    let uncovered_text = |name: &str| {
        let vectors = vectors();
        let item = vectors.items.iter().find(|item| item.id() == name).expect("a vector");
        let report = judge(&item.kind(), item.signed.as_bytes());
        report.uncovered.into_iter().map(|range| item.signed[range].to_owned()).collect::<Vec<_>>()
    };
    let moment = "2026-01-02T03:04:05Z";
    assert_eq!(uncovered_text("demo/d"), [moment, "# T\n\n```xml\n", "\n```\n\nBody not covered\n"]);
    assert_eq!(uncovered_text("demo/dash"), [moment, "---\nname: k\n---\n\n  ", "\n\n"]);
    assert_eq!(uncovered_text("demo/sheb"), ["#!/usr/bin/env python3\n", moment]);
    assert_eq!(uncovered_text("demo/a"), [moment]);
}

#[test]
fn signing_again_covers_what_the_original_left_out() {
    for item in vectors().items.iter().filter(|item| !item.is_whole()) {
        let kind = item.kind();
        let ours = signed(item.signed.as_bytes(), &kind.format);
        assert_eq!(ours, signed(item.unsigned.as_bytes(), &kind.format), "{}", item.path);
        assert_eq!(judge(&kind, &ours).verdict, Verdict::Full, "{}", item.path);
    }
}

#[test]
fn objects_of_the_store_have_the_originals_hashes() {
    for item in vectors().items {
        let bytes = item.signed.as_bytes();
        let layout = Layout::of(bytes, &item.kind().format);
        assert_eq!(Digest::of(bytes).to_hex(), item.blob_hash, "{}", item.path);
        let item_type = item.item_type.as_str();
        let object_hash = source::object_hash(item_type, item.id(), bytes, layout.signature.as_ref());
        assert_eq!(object_hash.to_hex(), item.item_source_hash, "{}", item.path);
        let object = source::object(item_type, item.id(), bytes, layout.signature.as_ref());
        assert_eq!(canonical::digest(&object), object_hash);
    }
}

#[test]
fn canonical_json_is_the_originals() {
    for sample in vectors().canonical_json {
        assert_eq!(canonical::to_string(&sample.value), sample.canonical);
        assert_eq!(canonical::digest(&sample.value).to_hex(), sample.sha256);
    }
}

#[test]
fn the_identity_document_is_the_originals() {
    let (vectors, key) = (vectors(), vector_key());
    let identity = Identity::parse(vectors.trusted_key_toml.as_bytes()).expect("an identity document");
    assert_eq!(
        (identity.owner.as_str(), identity.version.as_str(), identity.fingerprint.as_str()),
        ("vector", "1.0.0", vectors.fingerprint.as_str())
    );
    assert_eq!((identity.may_introduce, &identity.projects), (false, &None));
    assert!(identity.is_self_signed() && identity.is_signed_by(&key.public()));

    let ours = Identity::new(key.public(), "vector");
    let text = signed_by(ours.to_document().as_bytes(), &rye_trust::identity::format(), key);
    assert_eq!(String::from_utf8(text).expect("text"), vectors.trusted_key_toml);
    assert_eq!(document(&ours, key), identity);
}

/// The key of the two signed seeds and of the published packages.
const PUBLISHED_KEY: &str = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAUbAHc8d2KetZE2I9eb+VaUpTLkNsDJtFaAsY0nTEm7I=\n-----END PUBLIC KEY-----\n";

#[test]
fn the_signed_seeds_verify_with_the_published_key() {
    let key = PublicKey::from_pem(PUBLISHED_KEY).expect("the published key");
    assert_eq!(key.fingerprint().as_str(), "6ea18199041a1ea8");
    let me = vector_key();
    let documents = [
        document(&Identity::new(me.public(), "me"), me),
        document(&Identity::new(key.clone(), "github-ci"), me),
    ];
    let ring = KeyRing::of_user(&documents, Some(&me.public()), None, Vec::new());
    let knowledge = kind(ItemType::Knowledge, ".md");
    for (seed, padding) in
        [(&include_bytes!("../fixtures/000.md")[..], ""), (&include_bytes!("../fixtures/002.md")[..], "==")]
    {
        let report = verify::report(&File::new(&knowledge, Space::User, seed.to_vec()), &ring);
        assert_eq!((report.verdict, report.coverage), (Verdict::Full, Coverage::Full));
        assert_eq!((report.owner.as_deref(), report.vouch), (Some("github-ci"), Some(Vouch::User)));
        let line = report.signature.expect("a signature line");
        assert!(key.verifies(&line.hash, &line.signature));
        assert_eq!(line.signature_text, format!("{}{padding}", line.signature.to_base64()));
        assert_eq!(judge(&knowledge, seed).verdict, Verdict::Untrusted);
    }
}
