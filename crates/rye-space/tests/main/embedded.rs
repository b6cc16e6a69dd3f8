//! Every item inside the binary: signed by its bundle's key, valid, at its place, and in the manifest.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use lillux::Digest;
use rye_item::{BundleId, Diagnostic, ItemId, ItemType, Space, yaml};
use rye_space::embedded::{BUNDLES, Embedded};
use rye_space::scan::split_extension;
use rye_space::{CandidatePath, ItemFile, Roots, Spaces, Workspace};
use rye_trust::coverage::compare_content;
use rye_trust::signature::FileLayout;
use rye_trust::verify::evaluate;
use rye_trust::{ContentStatus, Coverage, Identity, Subject, TrustBasis, TrustVerdict, object};
use serde_json::Value;

/// A workspace with nothing in it but what the binary brings, opt-in bundles too.
fn empty_workspace(folder: &Path) -> Workspace {
    let mut workspace = Workspace::open(Roots {
        project: None,
        user: folder.join("home"),
        home: folder.join("home"),
        cache: folder.join("cache"),
        signing_keys: folder.join("keys"),
        bundle_paths: Vec::new(),
    })
    .expect("a workspace");
    for bundle in &workspace.available_bundles {
        workspace.keys.add_bundle(&bundle.id, bundle.signers.iter().cloned());
    }
    let bundles = workspace.spaces.bundles().iter().chain(&workspace.available_bundles).cloned().collect();
    let extractors = Arc::clone(workspace.spaces.extractors());
    workspace.spaces = Spaces::new(&workspace.roots, bundles, extractors, 8 << 20);
    workspace
}

fn space_of(bundle: &Embedded) -> Space {
    Space::System(BundleId::new(bundle.id).expect("a bundle id"))
}

/// Every item of a bundle, whatever its type, read.
fn items(workspace: &Workspace, bundle: &Embedded) -> Vec<ItemFile> {
    let space = space_of(bundle);
    let scan = workspace.spaces.scan(&space, &ItemType::ALL);
    assert!(scan.invalid_files.is_empty(), "{:?}", scan.invalid_files);
    scan.entries
        .into_iter()
        .map(|entry| {
            let candidate = CandidatePath {
                space: space.clone(),
                path: entry.relative.into(),
                extension: entry.extension,
                is_found: true,
            };
            workspace.spaces.read(&entry.item, &candidate).expect("an item")
        })
        .collect()
}

/// `.ai/tools/a/b.py` → tool, `a/b`.
fn item_at(path: &str) -> Option<(ItemType, &str)> {
    let (folder, rest) = path.strip_prefix(".ai/")?.split_once('/')?;
    Some((ItemType::from_folder(folder)?, split_extension(rest)?.0))
}

fn manifest_path(bundle: &Embedded) -> String {
    format!(".ai/bundles/{}/manifest.yaml", bundle.id)
}

/// The one key that a bundle ships.
fn signer(bundle: &Embedded) -> Identity {
    let documents: Vec<_> =
        bundle.files.iter().filter(|(path, _)| path.starts_with(".ai/config/keys/trusted/")).collect();
    assert_eq!(documents.len(), 1, "{}", bundle.id);
    let (path, bytes) = documents[0];
    let identity = Identity::parse(bytes).expect("an identity document");
    assert_eq!(*path, format!(".ai/config/keys/trusted/{}.toml", identity.fingerprint));
    assert!(identity.is_self_signed());
    identity
}

#[test]
fn the_binary_has_a_core_bundle() {
    let ids: Vec<&str> = BUNDLES.iter().map(|bundle| bundle.id).collect();
    assert!(ids.contains(&"ryeos-core"), "{ids:?}");
}

#[test]
fn every_item_is_signed_by_bundle_key() {
    let folder = tempfile::tempdir().expect("a folder");
    let workspace = empty_workspace(folder.path());
    for bundle in BUNDLES {
        let fingerprint = signer(bundle).fingerprint;
        for located in items(&workspace, bundle).iter().map(|located| reread_as_file(&workspace, located)) {
            let report = evaluate(&located, &workspace.keys);
            assert_eq!(
                (report.verdict, report.basis, report.fingerprint()),
                (TrustVerdict::Full, Some(TrustBasis::Bundle), Some(fingerprint)),
                "{}: {:?}",
                located.item(),
                report.reason
            );
        }
    }
}

/// The same, as if it were read from a file: its signature is verified, which the program spares its own bytes.
fn reread_as_file(workspace: &Workspace, located: &ItemFile) -> ItemFile {
    assert!(located.is_sealed());
    let file = ItemFile::new(
        located.item().clone(),
        located.space().clone(),
        located.path.clone(),
        located.extension.clone(),
        located.bytes().to_vec().into(),
        Arc::clone(workspace.spaces.extractors()),
    );
    assert!(!file.is_sealed());
    file
}

#[test]
fn every_item_is_valid() {
    let folder = tempfile::tempdir().expect("a folder");
    let workspace = empty_workspace(folder.path());
    for bundle in BUNDLES {
        for located in items(&workspace, bundle) {
            let item = located.item();
            // An identity document follows its own format, which its reader checks.
            if !item.id.is_within("keys/trusted") {
                assert_eq!(located.problems(), Vec::<Diagnostic>::new(), "{item}");
            }
            assert_eq!(located.parsed().warnings, Vec::<Diagnostic>::new(), "{item}");
            if item.item_type == ItemType::Config
                && let Some(schema) = workspace.schema_for(&item.id)
            {
                assert_eq!(schema.problems(&located.parsed().fields), Vec::new(), "{item}");
            }
        }
    }
}

#[test]
fn every_file_is_item_or_manifest() {
    let folder = tempfile::tempdir().expect("a folder");
    let workspace = empty_workspace(folder.path());
    for bundle in BUNDLES {
        let mut scanned: Vec<String> = items(&workspace, bundle)
            .iter()
            .map(|located| {
                let item = located.item();
                format!(".ai/{}/{}{}", item.item_type.folder(), item.id, located.extension)
            })
            .collect();
        scanned.push(manifest_path(bundle));
        scanned.sort();
        let files: Vec<&str> = bundle.files.iter().map(|(path, _)| *path).collect();
        assert_eq!(files, scanned, "{}", bundle.id);
        for (item_type, id) in files.iter().filter_map(|path| item_at(path)) {
            let id = ItemId::new(id).expect("an id");
            let is_admitted = bundle.categories.iter().any(|category| id.is_within(category));
            assert!(item_type == ItemType::Config || is_admitted, "{id} is not in {:?}", bundle.categories);
        }
    }
}

#[test]
fn manifest_lists_every_file_hash() {
    let folder = tempfile::tempdir().expect("a folder");
    let workspace = empty_workspace(folder.path());
    for bundle in BUNDLES {
        let bytes = bundle.file(&manifest_path(bundle)).expect("a manifest");
        let document = yaml::parse(std::str::from_utf8(bytes).expect("text")).expect("YAML").value;
        assert_eq!(document["bundle"]["id"], bundle.id);
        assert_eq!(document["bundle"]["version"], bundle.version);
        let listed: BTreeMap<String, Value> =
            document["files"].as_object().expect("files").clone().into_iter().collect();
        let expected: BTreeMap<String, Value> = bundle
            .files
            .iter()
            .filter_map(|(path, bytes)| {
                let (item_type, id) = item_at(path)?;
                let extension = split_extension(path)?.1;
                let format = workspace.spaces.extractors().for_type(item_type).format_for(extension);
                let signature = format.and_then(|format| FileLayout::parse(bytes, format).signature);
                let hash = object::object_hash(item_type.as_str(), id, bytes, signature.as_ref());
                let row = serde_json::json!({
                    "object_hash": hash.to_string(),
                    "inline_signed": signature.is_some(),
                    "item_type": item_type.as_str(),
                });
                Some(((*path).to_owned(), row))
            })
            .collect();
        assert_eq!(listed, expected, "{}", bundle.id);
        assert_eq!(listed.len(), bundle.files.len() - 1, "all but the manifest itself");
    }
}

#[test]
fn manifest_is_signed_and_names_the_seal() {
    for bundle in BUNDLES {
        let bytes = bundle.file(&manifest_path(bundle)).expect("a manifest");
        let layout = FileLayout::parse(bytes, &rye_trust::identity::signature_format());
        assert!(matches!(
            compare_content(ItemType::Config, bytes, &layout),
            ContentStatus::Intact { coverage: Coverage::Full, .. }
        ));
        let line = layout.signature.expect("a signature");
        assert!(signer(bundle).key.verify(&line.hash, &line.signature));
        assert_eq!(bundle.seal, Digest::of(bytes).short());
    }
}

#[test]
fn no_private_key_is_inside_the_binary() {
    for bundle in BUNDLES {
        for (path, bytes) in bundle.files {
            let is_secret = bytes.windows(11).any(|window| window == b"PRIVATE KEY");
            assert!(!is_secret, "{path}");
        }
    }
}
