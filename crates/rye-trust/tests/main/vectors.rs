//! What the original made, reproduced byte for byte.

use std::ops::Range;

use lillux::{Digest, PublicKey, SecretKey, canonical};
use rye_item::{ItemType, Space};
use rye_trust::coverage::{ContentStatus, compare_content, content_hash};
use rye_trust::signature::FileLayout;
use rye_trust::{Coverage, Identity, KeyRing, SignOutcome, TrustBasis, TrustVerdict, object, sign, verify};
use serde::Deserialize;
use serde_json::Value;

use crate::support::{
    File, FileKind, file_kind, fixed_time, report_for, sign_bytes, sign_with_vector_key, signed_identity,
    vector_key,
};

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
    fn kind(&self) -> FileKind {
        let (_, extension) = self.path.rsplit_once('.').expect("an extension");
        file_kind(self.item_type, &format!(".{extension}"))
    }

    fn id(&self) -> &str {
        let below =
            self.path.strip_prefix(&format!(".ai/{}/", self.item_type.folder())).expect("a path of its type");
        below.rsplit_once('.').expect("an extension").0
    }

    /// Whether the original hashed the whole content.
    fn is_whole(&self) -> bool {
        let layout = FileLayout::parse(self.unsigned.as_bytes(), &self.kind().format);
        self.hashed_text == self.unsigned[layout.content]
    }
}

fn vectors() -> Vectors {
    serde_json::from_str(include_str!("../fixtures/vectors.json")).expect("vectors")
}

/// Where `part` stands in `text`, once.
fn range_of(part: &str, text: &str) -> Range<usize> {
    assert_eq!(text.matches(part).count(), 1, "{part:?}");
    let start = text.find(part).expect("a part of the text");
    start..start + part.len()
}

#[test]
fn keys_match_the_original_encoding() {
    let vectors = vectors();
    let secret = SecretKey::from_pem(&vectors.private_pem).expect("private key");
    let public = PublicKey::from_pem(&vectors.public_pem).expect("public key");
    assert_eq!(secret.to_pem().expect("pem"), vectors.private_pem);
    assert_eq!(public.to_pem(), vectors.public_pem);
    assert_eq!(secret.public_key(), public);
    assert_eq!(public.fingerprint().as_str(), vectors.fingerprint);
    assert_eq!(vector_key().public_key(), public);
}

#[test]
fn vectors_cover_every_item_type() {
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
fn signature_lines_verify_hashed_text() {
    let public = vector_key().public_key();
    for item in vectors().items {
        assert_eq!(Digest::of(item.hashed_text.as_bytes()).to_hex(), item.hash, "{}", item.path);
        let layout = FileLayout::parse(item.signed.as_bytes(), &item.kind().format);
        let line = layout.signature.expect("a signature line");
        assert_eq!(line.hash.to_hex(), item.hash, "{}", item.path);
        assert_eq!(line.timestamp, fixed_time());
        assert_eq!(line.fingerprint, public.fingerprint());
        assert!(public.verify(&line.hash, &line.signature), "{}", item.path);
        assert!(!public.verify(&Digest::of(b"other"), &line.signature), "{}", item.path);
    }
}

#[test]
fn signing_reproduces_original_signatures() {
    for item in vectors().items.iter().filter(|item| item.is_whole()) {
        let kind = item.kind();
        let unsigned = item.unsigned.as_bytes();
        assert_eq!(
            content_hash(unsigned, &FileLayout::parse(unsigned, &kind.format)).to_hex(),
            item.hash,
            "{}",
            item.path
        );
        let ours = String::from_utf8(sign_with_vector_key(unsigned, &kind.format)).expect("text");
        assert_eq!(ours, item.signed, "{}", item.path);
        let again = sign(item.signed.as_bytes(), &kind.format, vector_key(), &fixed_time());
        assert!(matches!(again, SignOutcome::Unchanged(_)), "{}", item.path);
        let report = report_for(&kind, item.signed.as_bytes());
        assert_eq!((report.verdict, report.coverage), (TrustVerdict::Full, Coverage::Full), "{}", item.path);
    }
}

#[test]
fn uncovered_ranges_match_the_original() {
    for item in vectors().items {
        let (kind, bytes) = (item.kind(), item.signed.as_bytes());
        let layout = FileLayout::parse(bytes, &kind.format);
        let covered = range_of(&item.hashed_text, &item.signed);
        let mut uncovered = vec![
            layout.shebang.clone(),
            range_of(fixed_time().as_str(), &item.signed),
            layout.content.start..covered.start,
            covered.end..bytes.len(),
        ];
        uncovered.retain(|range| !range.is_empty());
        let coverage = if item.is_whole() { Coverage::Full } else { Coverage::Partial };
        assert_eq!(
            compare_content(kind.item_type, bytes, &layout),
            ContentStatus::Intact { coverage, uncovered: uncovered.clone() }
        );
        let report = report_for(&kind, bytes);
        let verdict = if item.is_whole() { TrustVerdict::Full } else { TrustVerdict::Partial };
        assert_eq!((report.verdict, report.uncovered), (verdict, uncovered), "{}", item.path);
    }
}

#[test]
fn uncovered_parts_are_as_expected() {
    let uncovered_text = |name: &str| {
        let vectors = vectors();
        let item = vectors.items.iter().find(|item| item.id() == name).expect("a vector");
        let report = report_for(&item.kind(), item.signed.as_bytes());
        report.uncovered.into_iter().map(|range| item.signed[range].to_owned()).collect::<Vec<_>>()
    };
    let timestamp = "2026-01-02T03:04:05Z";
    assert_eq!(uncovered_text("demo/d"), [timestamp, "# T\n\n```xml\n", "\n```\n\nBody not covered\n"]);
    assert_eq!(uncovered_text("demo/dash"), [timestamp, "---\nname: k\n---\n\n  ", "\n\n"]);
    assert_eq!(uncovered_text("demo/sheb"), ["#!/usr/bin/env python3\n", timestamp]);
    assert_eq!(uncovered_text("demo/a"), [timestamp]);
}

#[test]
fn resigning_covers_the_whole_file() {
    for item in vectors().items.iter().filter(|item| !item.is_whole()) {
        let kind = item.kind();
        let ours = sign_with_vector_key(item.signed.as_bytes(), &kind.format);
        assert_eq!(ours, sign_with_vector_key(item.unsigned.as_bytes(), &kind.format), "{}", item.path);
        assert_eq!(report_for(&kind, &ours).verdict, TrustVerdict::Full, "{}", item.path);
    }
}

#[test]
fn object_hashes_match_the_original() {
    for item in vectors().items {
        let bytes = item.signed.as_bytes();
        let layout = FileLayout::parse(bytes, &item.kind().format);
        assert_eq!(Digest::of(bytes).to_hex(), item.blob_hash, "{}", item.path);
        let item_type = item.item_type.as_str();
        let object_hash = object::object_hash(item_type, item.id(), bytes, layout.signature.as_ref());
        assert_eq!(object_hash.to_hex(), item.item_source_hash, "{}", item.path);
        let object = object::item_source_object(item_type, item.id(), bytes, layout.signature.as_ref());
        assert_eq!(canonical::digest(&object), object_hash);
    }
}

#[test]
fn canonical_json_matches_the_original() {
    for sample in vectors().canonical_json {
        assert_eq!(canonical::to_string(&sample.value), sample.canonical);
        assert_eq!(canonical::digest(&sample.value).to_hex(), sample.sha256);
    }
}

#[test]
fn identity_document_matches_the_original() {
    let (vectors, key) = (vectors(), vector_key());
    let identity = Identity::parse(vectors.trusted_key_toml.as_bytes()).expect("an identity document");
    assert_eq!(
        (identity.owner.as_str(), identity.version.as_str(), identity.fingerprint.as_str()),
        ("vector", "1.0.0", vectors.fingerprint.as_str())
    );
    assert_eq!((identity.may_introduce, &identity.projects), (false, &None));
    assert!(identity.is_self_signed() && identity.is_signed_by(&key.public_key()));

    let ours = Identity::new(key.public_key(), "vector");
    let text = sign_bytes(ours.to_document().as_bytes(), &rye_trust::identity::signature_format(), key);
    assert_eq!(String::from_utf8(text).expect("text"), vectors.trusted_key_toml);
    assert_eq!(signed_identity(&ours, key), identity);
}

/// The key of the two signed seeds and of the published packages.
const PUBLISHED_KEY: &str = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAUbAHc8d2KetZE2I9eb+VaUpTLkNsDJtFaAsY0nTEm7I=\n-----END PUBLIC KEY-----\n";

#[test]
fn signed_seeds_verify_with_published_key() {
    let key = PublicKey::from_pem(PUBLISHED_KEY).expect("the published key");
    assert_eq!(key.fingerprint().as_str(), "6ea18199041a1ea8");
    let me = vector_key();
    let documents = [
        signed_identity(&Identity::new(me.public_key(), "me"), me),
        signed_identity(&Identity::new(key.clone(), "github-ci"), me),
    ];
    let ring = KeyRing::from_user_documents(&documents, Some(&me.public_key()), None, Vec::new());
    let knowledge = file_kind(ItemType::Knowledge, ".md");
    for (seed, padding) in
        [(&include_bytes!("../fixtures/000.md")[..], ""), (&include_bytes!("../fixtures/002.md")[..], "==")]
    {
        let report = verify::evaluate(&File::new(&knowledge, Space::User, seed.to_vec()), &ring);
        assert_eq!((report.verdict, report.coverage), (TrustVerdict::Full, Coverage::Full));
        assert_eq!((report.owner.as_deref(), report.basis), (Some("github-ci"), Some(TrustBasis::User)));
        let line = report.signature.expect("a signature line");
        assert!(key.verify(&line.hash, &line.signature));
        assert_eq!(line.signature_text, format!("{}{padding}", line.signature.to_base64()));
        assert_eq!(report_for(&knowledge, seed).verdict, TrustVerdict::Untrusted);
    }
}
