//! Manifests, honest and hostile.

use proptest::prelude::*;

use super::*;

const HASH: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

fn manifest(files: &str) -> String {
    format!(
        "bundle:\n  id: gifts\n  version: 1.0.0\n  entrypoint: team/x\n  description: Gifts\nfiles:\n{files}"
    )
}

fn file(path: &str) -> String {
    format!("  \"{path}\":\n    object_hash: {HASH}\n    inline_signed: true\n")
}

fn problems(text: &str) -> String {
    let problems = Manifest::parse(text.as_bytes()).expect_err("refused");
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

#[test]
fn manifest_round_trips() {
    let manifest = Manifest {
        id: BundleId::new("gifts").expect("an id"),
        version: Version::new(1, 2, 3),
        entrypoint: Entrypoint::new("tool:team/x").ok(),
        description: "Gifts: \"for\" all\u{1b}[0m\n# rye:signed".to_owned(),
        created_at: Timestamp::new("2026-01-02T03:04:05Z"),
        categories: vec!["team".to_owned()],
        bundle_type: Some("package".to_owned()),
        files: [(".ai/tools/team/x.py", true), (".ai/lockfiles/yes", false), (".ai/tools/1e5.png", false)]
            .into_iter()
            .map(|(path, inline_signed)| {
                let path = BundlePath::new(path).expect("a path");
                let item_type = item_type_of(&path).filter(|_| inline_signed);
                (
                    path,
                    ManifestFileEntry { hash: FileHash::Object(Digest::of(b"")), inline_signed, item_type },
                )
            })
            .collect(),
    };
    assert_eq!(Manifest::parse(manifest.to_yaml().as_bytes()), Ok(manifest));
}

#[test]
fn older_and_foreign_manifests_are_read() {
    let text = manifest(&format!("  .ai/tools/team/x.py:\n    sha256: {HASH}\n    inline_signed: false\n"));
    let read = Manifest::parse(text.as_bytes()).expect("a manifest");
    let entry = read.files.values().next().expect("a file");
    assert_eq!((entry.hash, entry.item_type), (FileHash::Bytes(Digest::of(b"")), Some(ItemType::Tool)));
    let blank = text.replace("entrypoint: team/x", "entrypoint: ''\n  type: package");
    let read = Manifest::parse(blank.as_bytes()).expect("a manifest");
    assert_eq!((read.entrypoint, read.bundle_type.as_deref()), (None, Some("package")));
}

#[test]
fn hostile_paths_are_refused_all_at_once() {
    let bad = [
        "/etc/passwd",
        "../x",
        ".ai/../x",
        ".ai/tools/../../x",
        "tools/x.py",
        ".ai/bundles/gifts/manifest.yaml",
        ".ai/bundles/gifts/.bundle-lock.json",
        ".ai/bundles/other/manifest.yaml",
    ];
    let files: String = bad.iter().map(|path| file(path)).collect();
    let message = problems(&manifest(&files));
    for path in bad {
        assert!(message.contains(path), "{path}: {message}");
    }
}

#[test]
fn duplicate_paths_are_refused() {
    let twice = format!("{}{}", file(".ai/tools/x.py"), file(".ai/tools/x.py"));
    assert!(!problems(&manifest(&twice)).is_empty());
    let folded = format!("{}{}", file(".ai/tools/X.py"), file(".ai/tools/x.py"));
    assert!(problems(&manifest(&folded)).contains("case is ignored"));
    let nested = format!("{}{}", file(".ai/tools/x"), file(".ai/tools/X/y.py"));
    assert!(problems(&manifest(&nested)).contains("as a file and as a folder"));
}

#[test]
fn every_invalid_field_is_named() {
    let text = format!(
        "bundle:\n  id: ../x\n  version: one\n  entrypoint: a//b\n  description: [1]\n  created_at: now\n  categories: [\"a/../b\", 1]\nfiles:\n  .ai/tools/a.py: {{object_hash: {HASH}, inline_signed: maybe, item_type: directive}}\n  .ai/tools/b.py: {{object_hash: 12}}\n  .ai/tools/c.py: {{object_hash: zz}}\n"
    );
    let message = problems(&text);
    for part in [
        "bundle.id",
        "version",
        "entrypoint",
        "description",
        "created_at",
        "categories",
        "maybe",
        "a.py",
        "b.py",
        "c.py",
    ] {
        let part = if part == "maybe" { "inline_signed" } else { part };
        assert!(message.contains(part), "{part}: {message}");
    }
    for none in ["", "[]", "bundle: 1", "files: {}", "bundle: {id: x, version: 1.0.0}", "\u{0}", "a: &a [*a]"]
    {
        assert!(Manifest::parse(none.as_bytes()).is_err(), "{none:?}");
    }
    assert!(Manifest::parse(b"\xff").is_err());
}

#[test]
fn too_many_files_are_refused() {
    let mut text = manifest("");
    for number in 0..=MAX_MANIFEST_FILES {
        text.push_str(&format!("  .ai/tools/{number}.py: {{sha256: {HASH}}}\n"));
    }
    assert!(problems(&text).contains("more than"), "{}", problems(&text));
}

/// A manifest of which a few bytes were changed, left out or doubled.
fn broken_manifest() -> impl Strategy<Value = Vec<u8>> {
    let honest = manifest(&(file(".ai/tools/team/x.py") + &file(".ai/knowledge/team/y.md"))).into_bytes();
    let change = (0..honest.len(), any::<u8>(), 0..3_u8);
    proptest::collection::vec(change, 0..6).prop_map(move |changes| {
        let mut bytes = honest.clone();
        for (index, byte, kind) in changes {
            let index = index.min(bytes.len() - 1);
            match kind {
                0 => bytes[index] = byte,
                1 => drop(bytes.remove(index)),
                _ => bytes.insert(index, byte),
            }
        }
        bytes
    })
}

proptest! {
    #[test]
    fn parsed_manifests_are_safe_and_round_trip(bytes in prop_oneof![broken_manifest(), proptest::collection::vec(any::<u8>(), 0..200)]) {
        if let Ok(read) = Manifest::parse(&bytes) {
            for path in read.files.keys() {
                prop_assert!(path.as_str().starts_with(".ai/") && !path.as_str().contains("/../"));
                prop_assert!(!path.as_str().starts_with(".ai/bundles/"));
            }
            prop_assert_eq!(Manifest::parse(read.to_yaml().as_bytes()), Ok(read));
        }
    }
}
