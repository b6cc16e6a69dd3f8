//! The crates of the workspace and the dependencies between them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand};

/// Which crate of the workspace may depend on which others, tests aside.
const EDGES: [(&str, &[&str]); 22] = [
    ("lillux-hash", &[]),
    ("lillux", &["lillux-hash"]),
    ("rye-item", &[]),
    ("rye-trust", &["lillux", "rye-item"]),
    ("rye-space", &["lillux", "rye-item", "rye-trust"]),
    ("rye-exec", &["lillux", "rye-item", "rye-space", "rye-trust"]),
    ("rye-tools", &["lillux", "rye-exec", "rye-item"]),
    ("rye-mcp", &["lillux", "rye-exec", "rye-item"]),
    ("rye-thread", &["lillux-hash", "rye-item"]),
    ("rye-store", &["lillux-hash", "rye-item", "rye-thread"]),
    ("rye-store-postgres", &["lillux", "rye-item", "rye-store", "rye-thread"]),
    ("rye-store-sqlite", &["lillux", "rye-item", "rye-store", "rye-thread"]),
    ("rye-restate", &["lillux", "rye-item", "rye-thread"]),
    ("rye-model", &["lillux", "rye-item", "rye-thread"]),
    ("rye-import", &["lillux-hash", "rye-item"]),
    ("rye-bundle", &["lillux", "rye-item", "rye-space", "rye-trust"]),
    (
        "rye-engine",
        &[
            "lillux",
            "rye-bundle",
            "rye-exec",
            "rye-item",
            "rye-mcp",
            "rye-space",
            "rye-store",
            "rye-thread",
            "rye-tools",
            "rye-trust",
        ],
    ),
    (
        "rye-agent",
        &[
            "lillux",
            "rye-engine",
            "rye-exec",
            "rye-item",
            "rye-model",
            "rye-restate",
            "rye-space",
            "rye-store",
            "rye-store-postgres",
            "rye-store-sqlite",
            "rye-thread",
            "rye-trust",
        ],
    ),
    ("rye-daemon", &["lillux", "rye-agent", "rye-engine", "rye-item", "rye-space"]),
    ("rye-server", &["lillux", "rye-agent", "rye-daemon", "rye-engine", "rye-item", "rye-space"]),
    (
        "rye-cli",
        &[
            "lillux",
            "rye-agent",
            "rye-daemon",
            "rye-engine",
            "rye-import",
            "rye-item",
            "rye-model",
            "rye-server",
            "rye-space",
        ],
    ),
    (
        "rye-test",
        &[
            "lillux",
            "lillux-hash",
            "rye-agent",
            "rye-engine",
            "rye-item",
            "rye-model",
            "rye-store",
            "rye-thread",
        ],
    ),
];

/// Names that gather everything and mean nothing.
const VAGUE_NAMES: [&str; 4] = ["core", "common", "utils", "types"];

const MAX_LINES: usize = 600;

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn metadata() -> Metadata {
    MetadataCommand::new()
        .cargo_path(env!("CARGO"))
        .manifest_path(workspace().join("Cargo.toml"))
        .no_deps()
        .other_options(vec!["--offline".to_owned()])
        .exec()
        .expect("cargo metadata")
}

#[test]
fn crates_depend_only_on_allowed_crates() {
    let metadata = metadata();
    let members: BTreeSet<&str> = metadata.packages.iter().map(|package| package.name.as_str()).collect();
    let mut found: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for package in &metadata.packages {
        let inner = package
            .dependencies
            .iter()
            .filter(|dependency| dependency.kind != DependencyKind::Development)
            .map(|dependency| dependency.name.as_str())
            .filter(|name| members.contains(name));
        found.insert(package.name.as_str(), inner.collect());
    }
    let allowed: BTreeMap<&str, BTreeSet<&str>> =
        EDGES.iter().map(|(name, below)| (*name, below.iter().copied().collect())).collect();
    for (name, below) in &found {
        let known = allowed
            .get(name)
            .unwrap_or_else(|| panic!("`{name}` is new: say in EDGES what it may depend on"));
        let forbidden: Vec<_> = below.difference(known).collect();
        assert_eq!(forbidden, Vec::<&&str>::new(), "`{name}` may not depend on these");
    }
    assert_eq!(found.len(), allowed.len(), "EDGES names a crate that is not there");
}

#[test]
fn test_helpers_are_for_tests_only() {
    for package in metadata().packages {
        for dependency in &package.dependencies {
            assert!(
                dependency.name != "rye-test" || dependency.kind == DependencyKind::Development,
                "{}",
                package.name
            );
        }
    }
}

#[test]
fn crate_names_are_specific() {
    for package in metadata().packages {
        let last = package.name.rsplit('-').next().unwrap_or_default().to_owned();
        assert!(!VAGUE_NAMES.contains(&last.as_str()), "{}", package.name);
    }
}

fn collect_sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            collect_sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn source_files_are_short() {
    let mut files = Vec::new();
    for package in metadata().packages {
        let folder = package.manifest_path.parent().expect("a folder");
        for part in ["src", "tests"].map(|name| folder.join(name)).iter().filter(|part| part.is_dir()) {
            collect_sources(part.as_std_path(), &mut files);
        }
    }
    assert!(files.len() > 300);
    let long: Vec<(PathBuf, usize)> = files
        .into_iter()
        .map(|path| {
            let lines = std::fs::read_to_string(&path).expect("a source").lines().count();
            (path, lines)
        })
        .filter(|(_, lines)| *lines > MAX_LINES)
        .collect();
    assert_eq!(long, Vec::<(PathBuf, usize)>::new());
}

/// What is printed is cleaned there: nothing else of the command line has a stream in hand.
#[test]
fn only_one_module_prints() {
    let mut files = Vec::new();
    collect_sources(&workspace().join("crates/rye-cli/src"), &mut files);
    assert!(files.len() > 50, "{files:?}");
    for path in files.iter().filter(|path| !path.ends_with("rye-cli/src/output.rs")) {
        let source = std::fs::read_to_string(path).expect("a source");
        // To ask whether it is a terminal, or to flush it, prints nothing.
        let rest = source.replace("stderr().is_terminal()", "").replace("stdout().flush()", "");
        for stream in ["stdout()", "stderr()", "println!", "print!(", "/dev/tty", "/dev/stdout"] {
            let is_there =
                rest.lines().any(|line| line.contains(stream) && !line.trim_start().starts_with("//"));
            assert!(!is_there, "{} has `{stream}`: print with crate::output", path.display());
        }
    }
}

#[test]
fn every_crate_has_a_readme() {
    for package in metadata().packages {
        let readme = package.manifest_path.with_file_name("README.md");
        let text = std::fs::read_to_string(&readme).unwrap_or_else(|error| panic!("{readme}: {error}"));
        assert!(text.contains("Start reading at"), "{readme}");
    }
}

/// The names of files and folders of ours in one paragraph, list item or row: what is in backticks and ends like a path.
fn named_paths(block: &str) -> impl Iterator<Item = &str> {
    let is_path = |name: &&str| {
        !name.starts_with('.')
            && !name.contains(['*', '<', '…', ' ', '{'])
            && (name.ends_with(".rs") || name.ends_with('/') && name.contains("src"))
    };
    block.split('`').skip(1).step_by(2).filter(is_path)
}

#[test]
fn paths_in_documents_exist() {
    let mut missing = Vec::new();
    let mut checked = 0;
    let readmes = metadata().packages.into_iter().map(|package| format!("crates/{}/README.md", package.name));
    let pages = ["ARCHITECTURE.md", "GLOSSARY.md", "CONTRIBUTING.md"].map(str::to_owned);
    for document in pages.into_iter().chain(readmes) {
        let document = workspace().join(document);
        let text = std::fs::read_to_string(&document).expect("a document");
        let beside = document.parent().expect("a folder");
        let text = ["\n- ", "\n| ", "\n1. ", "\n2. ", "\n3. ", "\n4. "]
            .iter()
            .fold(text, |text, start| text.replace(start, &format!("\n{start}")));
        for block in text.split("\n\n").filter(|block| !block.starts_with("```")) {
            // A name without a folder is a neighbour of the path before it.
            let mut folder = None::<PathBuf>;
            for name in named_paths(block) {
                let places = [Some(workspace().join("crates")), Some(beside.to_owned()), folder.clone()];
                let found =
                    places.into_iter().flatten().map(|place| place.join(name)).find(|path| path.exists());
                match found {
                    Some(path) if name.contains('/') => {
                        folder = if path.is_dir() { Some(path) } else { path.parent().map(Path::to_owned) };
                    }
                    Some(_) => {}
                    None => missing.push(format!("{}: {name}", document.display())),
                }
                checked += 1;
            }
        }
    }
    assert!(checked > 200, "{checked}");
    assert_eq!(missing, Vec::<String>::new());
}

/// What the pure crates may not depend on, however far down.
const IMPURE: [&str; 5] = ["tokio", "rusqlite", "reqwest", "hyper", "fs-err"];

#[test]
fn pure_crates_depend_on_no_runtime() {
    // Without it, packages of other platforms are wanted, which were never downloaded.
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let metadata = MetadataCommand::new()
        .cargo_path(env!("CARGO"))
        .manifest_path(workspace().join("Cargo.toml"))
        .other_options(vec![
            "--offline".to_owned(),
            "--locked".to_owned(),
            "--filter-platform".to_owned(),
            platform,
        ])
        .exec()
        .expect("cargo metadata");
    let resolve = metadata.resolve.as_ref().expect("a resolved graph");
    let names: BTreeMap<_, _> =
        metadata.packages.iter().map(|package| (&package.id, package.name.as_str())).collect();
    for root in ["lillux-hash", "rye-item", "rye-thread", "rye-store"] {
        let mut reached = BTreeSet::new();
        let mut queue: Vec<_> = names.iter().filter(|(_, name)| **name == root).map(|(id, _)| *id).collect();
        assert_eq!(queue.len(), 1, "{root}");
        while let Some(id) = queue.pop() {
            if !reached.insert(names[id]) {
                continue;
            }
            let node = resolve.nodes.iter().find(|node| node.id == *id).expect("a node");
            let is_normal = |kind: &cargo_metadata::DepKindInfo| kind.kind == DependencyKind::Normal;
            queue.extend(
                node.deps.iter().filter(|dep| dep.dep_kinds.iter().any(is_normal)).map(|dep| &dep.pkg),
            );
        }
        let impure: Vec<_> = IMPURE.iter().filter(|name| reached.contains(**name)).collect();
        assert!(impure.is_empty(), "{root} depends on {impure:?}");
    }
}

/// What is in the binary only if it is asked for.
#[test]
fn restate_is_off_by_default() {
    let optional = |package: &str, dependency: &str| {
        let metadata = metadata();
        let package = metadata.packages.iter().find(|one| one.name.as_str() == package).expect("a package");
        assert!(!package.features.contains_key("default"), "{}", package.name);
        package.dependencies.iter().find(|one| one.name == dependency).is_none_or(|one| one.optional)
    };
    assert!(optional("rye-agent", "rye-restate"));
    assert!(optional("rye-cli", "rye-restate"));
}
