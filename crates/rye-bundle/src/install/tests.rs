//! A space before and after a change, and what is left when the change stops at any of its steps.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use lillux::Digest;
use lillux::file::{FileMode, create_dirs, read_bounded, write_atomic};
use semver::Version;

use super::journal::{Journal, Phase};
use super::target_dir::PathLookup;
use super::transaction::{RecoveryOutcome, apply_changes, undo_changes};
use super::*;

type Tree = BTreeMap<String, Option<Vec<u8>>>;

/// A space with files, and what is remembered of it.
struct World {
    folder: tempfile::TempDir,
}

impl World {
    fn new(files: &[(&str, &str)]) -> Self {
        let world = Self { folder: tempfile::tempdir().expect("a folder") };
        create_dirs(&world.ai(), false).expect("folders");
        for (path, text) in files {
            world.write(path, text);
        }
        world
    }

    fn ai(&self) -> PathBuf {
        self.folder.path().join("project/.ai")
    }

    fn user(&self) -> PathBuf {
        self.folder.path().join("user/.ai")
    }

    fn dir(&self) -> TargetDir {
        TargetDir::open(&self.ai()).expect("a site")
    }

    fn state(&self) -> InstallState {
        InstallState::for_space(&self.user(), self.dir().path())
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.ai().join(path.strip_prefix(".ai/").expect("a path below .ai"));
        create_dirs(path.parent().expect("a folder"), false).expect("folders");
        write_atomic(&path, text.as_bytes(), FileMode::Preserve).expect("written");
    }

    /// Everything below the space's `.ai/`, folders too.
    fn tree(&self) -> Tree {
        tree(&self.ai())
    }
}

fn tree(root: &Path) -> Tree {
    let mut all = Tree::new();
    let mut pending = vec![root.to_owned()];
    while let Some(folder) = pending.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let name = path.strip_prefix(root).expect("below").display().to_string();
            if path.is_dir() {
                all.insert(name, None);
                pending.push(path);
            } else {
                all.insert(name, Some(read_bounded(&path, 1 << 20).expect("a file").0));
            }
        }
    }
    all
}

fn digest(text: &str) -> Digest {
    Digest::of(text.as_bytes())
}

fn change(path: &str, old: Option<&str>, new: Option<&str>) -> FileChange {
    FileChange {
        path: BundlePath::new(path).expect("a path"),
        old: old.map(digest),
        new: new.map(digest),
        keeps_backup: false,
    }
}

const INITIAL_FILES: [(&str, &str); 4] = [
    (".ai/tools/team/same.py", "same"),
    (".ai/tools/team/old.py", "old 1"),
    (".ai/tools/gone/deep/gone.py", "gone"),
    (".ai/bundles/gifts/manifest.yaml", "manifest 1"),
];

/// New contents, by place in the list of changes.
const NEW_CONTENTS: [&str; 5] = ["new", "old 2", "", "manifest 2", "lock 2"];

fn changes() -> Vec<FileChange> {
    vec![
        change(".ai/knowledge/team/new/new.md", None, Some(NEW_CONTENTS[0])),
        change(".ai/tools/team/old.py", Some("old 1"), Some(NEW_CONTENTS[1])),
        change(".ai/tools/gone/deep/gone.py", Some("gone"), None),
        change(".ai/bundles/gifts/manifest.yaml", Some("manifest 1"), Some(NEW_CONTENTS[3])),
        change(".ai/bundles/gifts/.bundle-lock.json", None, Some(NEW_CONTENTS[4])),
    ]
}

fn bundle() -> BundleId {
    BundleId::new("gifts").expect("an id")
}

fn transaction<'a>(dir: &'a TargetDir, state: &'a InstallState, bundle: &'a BundleId) -> Transaction<'a> {
    let history = vec![Generation {
        version: Version::new(2, 0, 0),
        manifest_hash: Digest::of(b"manifest 2"),
        source: None,
        source_digest: None,
    }];
    Transaction { dir, state, bundle, changes: changes(), backups: "b".to_owned(), history }
}

fn content(index: usize) -> Result<Vec<u8>, InstallError> {
    Ok(NEW_CONTENTS[index].as_bytes().to_vec())
}

/// The space after the change, and nothing left of the change itself.
fn expected_after() -> Tree {
    let world = World::new(&[
        (".ai/tools/team/same.py", "same"),
        (".ai/tools/team/old.py", NEW_CONTENTS[1]),
        (".ai/knowledge/team/new/new.md", NEW_CONTENTS[0]),
        (".ai/bundles/gifts/manifest.yaml", NEW_CONTENTS[3]),
        (".ai/bundles/gifts/.bundle-lock.json", NEW_CONTENTS[4]),
    ]);
    world.tree()
}

#[test]
fn transaction_applies_and_cleans_up() {
    let world = World::new(&INITIAL_FILES);
    let (dir, state) = (world.dir(), world.state());
    let _lock = state.lock().expect("a lock");
    transaction(&dir, &state, &bundle()).run(&content, || Ok(()), &|_, _| {}).expect("made");
    assert_eq!(world.tree(), expected_after());
    assert!(!state.journal_path().exists());
    assert_eq!(generations::read_generations(&state, &bundle()).expect("read").len(), 1);
    assert_eq!(recover(&dir, &state).expect("nothing to do"), RecoveryOutcome::Nothing);
}

#[test]
fn failed_transaction_is_rolled_back() {
    for bad in [0, 1, 3, 4] {
        let world = World::new(&INITIAL_FILES);
        let (dir, state) = (world.dir(), world.state());
        let _lock = state.lock().expect("a lock");
        let before = world.tree();
        let wrong = move |index: usize| match index == bad {
            true => Ok(b"something else".to_vec()),
            false => content(index),
        };
        let failed = transaction(&dir, &state, &bundle()).run(&wrong, || Ok(()), &|_, _| {});
        assert!(matches!(failed, Err(InstallError::ChangedConcurrently { .. })), "{failed:?}");
        assert_eq!(world.tree(), before);
        assert!(!state.journal_path().exists());
    }
}

#[test]
fn concurrent_change_stops_the_transaction() {
    for (path, text) in [
        (".ai/tools/team/old.py", "edited"),
        (".ai/bundles/gifts/.bundle-lock.json", "came"),
        (".ai/tools/gone/deep/gone.py", "edited"),
    ] {
        let world = World::new(&INITIAL_FILES);
        world.write(path, text);
        let (dir, state) = (world.dir(), world.state());
        let _lock = state.lock().expect("a lock");
        let before = world.tree();
        assert!(transaction(&dir, &state, &bundle()).run(&content, || Ok(()), &|_, _| {}).is_err(), "{path}");
        assert_eq!(world.tree(), before, "{path}");
    }
}

/// A space with a change under way: everything staged, the first `applied` files in place.
fn interrupted(applied: usize, phase: Phase, in_one_step: bool) -> World {
    let world = World::new(&INITIAL_FILES);
    let (dir, state) = (world.dir(), world.state());
    drop(state.lock().expect("the folder"));
    let bundle = bundle();
    let transaction = transaction(&dir, &state, &bundle);
    let journal = Journal {
        phase,
        bundle: bundle.clone(),
        staging: ".staging-0123456789abcdef".to_owned(),
        created_folders: transaction.missing_folders().expect("folders"),
        changes: transaction.changes,
        backups: transaction.backups,
        history: transaction.history,
    };
    journal.write(&state).expect("written");
    let staging = transaction::stage_files(&dir, &journal, &content, &|_, _| {}).expect("prepared");
    apply_changes(&dir, &staging, &journal.changes[..applied], in_one_step).expect("applied");
    world
}

fn undone(different: &[&str]) -> RecoveryOutcome {
    let path = |path: &&str| BundlePath::new(*path).expect("a path");
    RecoveryOutcome::Undone { different: different.iter().map(path).collect() }
}

#[test]
fn interrupted_transaction_is_rolled_back() {
    let before = World::new(&INITIAL_FILES).tree();
    for in_one_step in [true, false] {
        for applied in 0..=changes().len() {
            let world = interrupted(applied, Phase::Applying, in_one_step);
            assert_ne!(world.tree(), before, "{applied}");
            let state = world.state();
            assert_eq!(recover(&world.dir(), &state).expect("recovered"), undone(&[]));
            assert_eq!(world.tree(), before, "{in_one_step} {applied}");
            assert_eq!(recover(&world.dir(), &state).expect("nothing"), RecoveryOutcome::Nothing);
        }
    }
}

#[test]
fn interrupted_recovery_is_restarted() {
    let before = World::new(&INITIAL_FILES).tree();
    for in_one_step in [true, false] {
        let world = interrupted(changes().len(), Phase::Applying, in_one_step);
        let (dir, state) = (world.dir(), world.state());
        let journal = Journal::read(&state).expect("read").expect("a journal");
        for first in (0..changes().len()).rev() {
            // What taking back the last files leaves.
            let part = Journal { changes: journal.changes.clone(), ..journal.clone() };
            let staging = dir.folder(&format!("bundles/{}", part.staging)).expect("asked");
            let PathLookup::Found(staging) = staging else { panic!("no staging folder") };
            transaction::undo_change(&dir, &staging, first, &part.changes[first]).expect("taken back");
            if first == 2 {
                break;
            }
        }
        undo_changes(&dir, &state, &journal).expect("taken back");
        assert_eq!(world.tree(), before);
    }
}

#[test]
fn interrupted_exchange_is_rolled_back() {
    let before = World::new(&INITIAL_FILES).tree();
    let world = interrupted(1, Phase::Applying, false);
    let (target, aside) =
        (world.ai().join("tools/team/old.py"), world.ai().join("bundles/.staging-0123456789abcdef/1.old"));
    std::fs::hard_link(&target, &aside).expect("moved");
    lillux::file::remove(&target).expect("moved");
    assert_eq!(recover(&world.dir(), &world.state()).expect("recovered"), undone(&[]));
    assert_eq!(world.tree(), before);
}

#[test]
fn committed_transaction_is_finished() {
    for in_one_step in [true, false] {
        let world = interrupted(changes().len(), Phase::Committed, in_one_step);
        let state = world.state();
        assert_eq!(recover(&world.dir(), &state).expect("recovered"), RecoveryOutcome::Finished);
        assert_eq!(world.tree(), expected_after());
        assert_eq!(generations::read_generations(&state, &bundle()).expect("read").len(), 1);
        assert!(!state.journal_path().exists());
    }
}

#[test]
fn interrupted_staging_leaves_nothing() {
    let before = World::new(&INITIAL_FILES).tree();
    let world = interrupted(0, Phase::Staging, true);
    lillux::file::remove(&world.ai().join("bundles/.staging-0123456789abcdef/0")).expect("not written yet");
    recover(&world.dir(), &world.state()).expect("recovered");
    assert_eq!(world.tree(), before);
}

#[test]
fn recovery_keeps_later_local_changes() {
    let world = interrupted(changes().len(), Phase::Applying, true);
    world.write(".ai/tools/team/old.py", "mine");
    world.write(".ai/knowledge/team/new/new.md", "mine");
    world.write(".ai/tools/gone/deep/gone.py", "mine");
    let outcome = recover(&world.dir(), &world.state()).expect("recovered");
    let changed = [".ai/knowledge/team/new/new.md", ".ai/tools/team/old.py", ".ai/tools/gone/deep/gone.py"];
    assert_eq!(outcome, undone(&changed), "what is not as it was is named");
    for path in ["tools/team/old.py", "knowledge/team/new/new.md", "tools/gone/deep/gone.py"] {
        assert_eq!(read_bounded(&world.ai().join(path), 99).expect("a file").0, b"mine", "{path}");
    }
    assert!(!world.ai().join("bundles/.staging-0123456789abcdef").exists());
}

#[test]
fn recovery_leaves_a_replaced_project_alone() {
    let world = interrupted(changes().len(), Phase::Applying, true);
    let state = world.state();
    lillux::file::remove_tree(&world.ai()).expect("removed");
    // The same files, as a clone of the project would have them.
    for (path, text) in
        [(".ai/tools/team/old.py", NEW_CONTENTS[1]), (".ai/knowledge/team/new/new.md", NEW_CONTENTS[0])]
    {
        world.write(path, text);
    }
    let before = world.tree();
    recover(&world.dir(), &state).expect("recovered");
    assert_eq!(world.tree(), before);
    assert!(!state.journal_path().exists());
}

#[test]
fn transaction_and_recovery_follow_no_links() {
    let outside = tempfile::tempdir().expect("a folder");
    let secret = outside.path().join("old.py");
    write_atomic(&secret, b"old 1", FileMode::Preserve).expect("written");
    let world = World::new(&INITIAL_FILES);
    lillux::file::remove_tree(&world.ai().join("tools/team")).expect("removed");
    std::os::unix::fs::symlink(outside.path(), world.ai().join("tools/team")).expect("a link");
    let (dir, state) = (world.dir(), world.state());
    let _lock = state.lock().expect("a lock");
    assert!(transaction(&dir, &state, &bundle()).run(&content, || Ok(()), &|_, _| {}).is_err());
    assert_eq!(read_bounded(&secret, 99).expect("there").0, b"old 1");

    let world = interrupted(changes().len(), Phase::Applying, true);
    lillux::file::remove_tree(&world.ai().join("tools/team")).expect("removed");
    write_atomic(&secret, NEW_CONTENTS[1].as_bytes(), FileMode::Preserve).expect("written");
    std::os::unix::fs::symlink(outside.path(), world.ai().join("tools/team")).expect("a link");
    recover(&world.dir(), &world.state()).expect("recovered");
    assert_eq!(read_bounded(&secret, 99).expect("there").0, NEW_CONTENTS[1].as_bytes());
}

#[test]
fn tampered_journal_is_refused() {
    let world = interrupted(2, Phase::Applying, true);
    let state = world.state();
    let good =
        String::from_utf8(read_bounded(&state.journal_path(), 1 << 20).expect("a journal").0).expect("text");
    let before = world.tree();
    for (from, to) in [
        (".ai/tools/team/old.py", ".ai/../../secret"),
        (".ai/tools/team/old.py", "/etc/passwd"),
        (".staging-0123456789abcdef", "../../.staging-x"),
        (".staging-0123456789abcdef", "gifts"),
        ("applying", "dancing"),
        ("knowledge/team/new", "../../x"),
        ("project/.ai", "elsewhere/.ai"),
        ("\"journal\":1", "\"journal\":2"),
        ("{", "["),
    ] {
        let bad = good.replacen(from, to, 1);
        assert_ne!(bad, good, "{from}");
        write_atomic(&state.journal_path(), bad.as_bytes(), FileMode::Preserve).expect("written");
        let refused = recover(&world.dir(), &state);
        assert!(matches!(refused, Err(InstallError::DamagedJournal { .. })), "{to}: {refused:?}");
        assert_eq!(world.tree(), before, "{to}");
    }
}

#[test]
fn leftovers_of_killed_process_are_removed() {
    let world = World::new(&INITIAL_FILES);
    let (dir, state) = (world.dir(), world.state());
    drop(state.lock().expect("the folder"));
    assert!(!state.has_pending_change());
    // The journal was being written; nothing had happened yet.
    write_atomic(&state.journal_path().with_file_name(".rye-half.tmp"), b"{", FileMode::Preserve)
        .expect("written");
    assert!(state.has_pending_change());
    assert_eq!(recover(&dir, &state).expect("recovered"), RecoveryOutcome::Nothing);
    assert!(!state.has_pending_change());
    // A version was being packed.
    let failing = || {
        create_dirs(&state.generations_folder(&bundle()), true)?;
        write_atomic(&state.generations_folder(&bundle()).join(".rye-half.tmp"), b"x", FileMode::Preserve)?;
        Err(std::io::Error::other("no room").into())
    };
    assert!(transaction(&dir, &state, &bundle()).run(&content, failing, &|_, _| {}).is_err());
    assert!(!state.generations_folder(&bundle()).exists());
}

#[test]
fn forced_overwrite_keeps_a_backup() {
    let world = World::new(&INITIAL_FILES);
    let (dir, state) = (world.dir(), world.state());
    let _lock = state.lock().expect("a lock");
    let bundle = bundle();
    let mut transaction = transaction(&dir, &state, &bundle);
    transaction.changes.iter_mut().for_each(|change| change.keeps_backup = true);
    transaction.run(&content, || Ok(()), &|_, _| {}).expect("made");
    assert_eq!(world.tree(), expected_after());
    let backups = tree(&state.backups_folder("b"));
    let backups: Vec<_> =
        backups.iter().filter_map(|(path, bytes)| Some((path.as_str(), bytes.as_ref()?))).collect();
    assert_eq!(
        backups,
        [
            (".ai/bundles/gifts/manifest.yaml", &b"manifest 1".to_vec()),
            (".ai/tools/gone/deep/gone.py", &b"gone".to_vec()),
            (".ai/tools/team/old.py", &b"old 1".to_vec()),
        ]
    );
}

#[test]
fn folder_copy_accepts_only_plain_files() {
    let source = tempfile::tempdir().expect("a folder");
    let ai = source.path().join(".ai");
    create_dirs(&ai.join("tools/team"), false).expect("folders");
    write_atomic(&ai.join("tools/team/a.py"), b"a", FileMode::Preserve).expect("written");
    let copied = |limits: &crate::archive::ArchiveLimits| {
        let into = tempfile::tempdir().expect("a folder");
        let files = copy_source::copy_folder(source.path(), limits, into.path());
        files.map(|files| (files.iter().map(ToString::to_string).collect::<Vec<_>>(), tree(into.path())))
    };
    let limits = crate::archive::ArchiveLimits::default();
    let (files, copy) = copied(&limits).expect("copied");
    assert_eq!(files, [".ai/tools/team/a.py"]);
    assert_eq!(copy[".ai/tools/team/a.py"], Some(b"a".to_vec()));
    for small in [
        crate::archive::ArchiveLimits { entries: 2, ..limits },
        crate::archive::ArchiveLimits { file_bytes: 0, ..limits },
        crate::archive::ArchiveLimits { total_bytes: 0, ..limits },
    ] {
        assert!(matches!(copied(&small), Err(InstallError::InvalidFile { .. })), "{small:?}");
    }
    std::os::unix::fs::symlink("a.py", ai.join("tools/team/b.py")).expect("a link");
    let refused = copied(&limits).expect_err("refused").to_string();
    assert!(refused.contains("b.py") && refused.contains("symbolic link"), "{refused}");
    lillux::file::remove(&ai.join("tools/team/b.py")).expect("removed");
    write_atomic(&ai.join("tools/team/A.py"), b"a", FileMode::Preserve).expect("written");
    assert!(copied(&limits).expect_err("refused").to_string().contains("other case"));
}
