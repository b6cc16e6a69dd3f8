//! Every item inside the binary: signed by its bundle's key, valid, at its place, and in the manifest.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use lillux::Digest;
use rye_item::{BundleId, ItemId, ItemType, Problem, Space, yaml};
use rye_space::embedded::{BUNDLES, Embedded};
use rye_space::walk::split_extension;
use rye_space::{Located, Place, Roots, Spaces, Workspace};
use rye_trust::coverage::compare;
use rye_trust::signature::Layout;
use rye_trust::verify::report;
use rye_trust::{Content, Coverage, Identity, Subject, Verdict, Vouch, source};
use serde_json::Value;

/// A workspace with nothing in it but what the binary brings, opt-in bundles too.
fn bare(folder: &Path) -> Workspace {
    let mut workspace = Workspace::open(Roots {
        project: None,
        user: folder.join("home"),
        home: folder.join("home"),
        cache: folder.join("cache"),
        signing_keys: folder.join("keys"),
        bundle_paths: Vec::new(),
    })
    .expect("a workspace");
    for bundle in &workspace.available {
        workspace.keys.add_bundle(&bundle.id, bundle.signers.iter().cloned());
    }
    let bundles = workspace.spaces.bundles().iter().chain(&workspace.available).cloned().collect();
    let extractors = Arc::clone(workspace.spaces.extractors());
    workspace.spaces = Spaces::new(&workspace.roots, bundles, extractors, 8 << 20);
    workspace
}

fn space_of(bundle: &Embedded) -> Space {
    Space::System(BundleId::new(bundle.id).expect("a bundle id"))
}

/// Every item of a bundle, whatever its type, read.
fn items(workspace: &Workspace, bundle: &Embedded) -> Vec<Located> {
    let space = space_of(bundle);
    let walk = workspace.spaces.walk(&space, &ItemType::ALL);
    assert!(walk.strays.is_empty(), "{:?}", walk.strays);
    walk.entries
        .into_iter()
        .map(|entry| {
            let place = Place {
                space: space.clone(),
                path: entry.relative.into(),
                extension: entry.extension,
                is_found: true,
            };
            workspace.spaces.read(&entry.item, &place).expect("an item")
        })
        .collect()
}

/// `.ai/tools/a/b.py` → tool, `a/b`.
fn place(path: &str) -> Option<(ItemType, &str)> {
    let (folder, rest) = path.strip_prefix(".ai/")?.split_once('/')?;
    Some((ItemType::of_folder(folder)?, split_extension(rest)?.0))
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
fn every_item_is_signed_whole_by_its_bundles_own_key() {
    let folder = tempfile::tempdir().expect("a folder");
    let workspace = bare(folder.path());
    for bundle in BUNDLES {
        let fingerprint = signer(bundle).fingerprint;
        for located in items(&workspace, bundle).iter().map(|located| as_a_file(&workspace, located)) {
            let report = report(&located, &workspace.keys);
            assert_eq!(
                (report.verdict, report.vouch, report.fingerprint()),
                (Verdict::Full, Some(Vouch::Bundle), Some(fingerprint)),
                "{}: {:?}",
                located.item(),
                report.reason
            );
        }
    }
}

/// The same, as if it were read from a file: its signature is verified, which the program spares its own bytes.
fn as_a_file(workspace: &Workspace, located: &Located) -> Located {
    assert!(located.is_sealed());
    let file = Located::new(
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
    let workspace = bare(folder.path());
    for bundle in BUNDLES {
        for located in items(&workspace, bundle) {
            let item = located.item();
            // An identity document follows its own format, which its reader checks.
            if !item.id.is_within("keys/trusted") {
                assert_eq!(located.problems(), Vec::<Problem>::new(), "{item}");
            }
            assert_eq!(located.parsed().warnings, Vec::<Problem>::new(), "{item}");
            if item.item_type == ItemType::Config
                && let Some(schema) = workspace.schema_for(&item.id)
            {
                assert_eq!(schema.problems(&located.parsed().fields), Vec::new(), "{item}");
            }
        }
    }
}

#[test]
fn every_file_is_an_item_within_the_categories_or_the_manifest() {
    let folder = tempfile::tempdir().expect("a folder");
    let workspace = bare(folder.path());
    for bundle in BUNDLES {
        let mut walked: Vec<String> = items(&workspace, bundle)
            .iter()
            .map(|located| {
                let item = located.item();
                format!(".ai/{}/{}{}", item.item_type.folder(), item.id, located.extension)
            })
            .collect();
        walked.push(manifest_path(bundle));
        walked.sort();
        let files: Vec<&str> = bundle.files.iter().map(|(path, _)| *path).collect();
        assert_eq!(files, walked, "{}", bundle.id);
        for (item_type, id) in files.iter().filter_map(|path| place(path)) {
            let id = ItemId::new(id).expect("an id");
            let is_admitted = bundle.categories.iter().any(|category| id.is_within(category));
            assert!(item_type == ItemType::Config || is_admitted, "{id} is not in {:?}", bundle.categories);
        }
    }
}

#[test]
fn the_manifest_lists_every_file_with_its_hash() {
    let folder = tempfile::tempdir().expect("a folder");
    let workspace = bare(folder.path());
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
                let (item_type, id) = place(path)?;
                let extension = split_extension(path)?.1;
                let format = workspace.spaces.extractors().of(item_type).format_for(extension);
                let signature = format.and_then(|format| Layout::of(bytes, format).signature);
                let hash = source::object_hash(item_type.as_str(), id, bytes, signature.as_ref());
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
fn the_manifest_is_signed_by_the_bundles_key_and_names_the_seal() {
    for bundle in BUNDLES {
        let bytes = bundle.file(&manifest_path(bundle)).expect("a manifest");
        let layout = Layout::of(bytes, &rye_trust::identity::format());
        assert!(matches!(
            compare(ItemType::Config, bytes, &layout),
            Content::Intact { coverage: Coverage::Full, .. }
        ));
        let line = layout.signature.expect("a signature");
        assert!(signer(bundle).key.verifies(&line.hash, &line.signature));
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
