//! When things go wrong half-way: several writers, no room, no permission. A file is whole or unchanged.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Stdio};

use crate::support::{Run, User, differences, snapshot};

const RYE: &str = env!("CARGO_BIN_EXE_rye");

/// Starts one process per command line, all at once, and waits for all.
fn run_concurrently(user: &User, commands: impl IntoIterator<Item = Vec<String>>) -> Vec<Run> {
    let children: Vec<Child> = commands
        .into_iter()
        .map(|words| {
            let mut command = user.program(RYE);
            command.args(words).stdin(Stdio::null());
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("started")
        })
        .collect();
    children.into_iter().map(|child| Run::from_output(&child.wait_with_output().expect("finished"))).collect()
}

fn to_arguments(line: &[&str]) -> Vec<String> {
    line.iter().map(|word| (*word).to_owned()).collect()
}

fn temporary_files(folder: &Path) -> Vec<String> {
    snapshot(folder)
        .keys()
        .map(|path| path.display().to_string())
        .filter(|path| path.contains(".rye-") || path.ends_with(".tmp"))
        .collect()
}

#[test]
fn concurrent_signing_keeps_file_intact() {
    for count in [2, 16] {
        let user = User::initialized();
        let source = rye_test::tool("team", &"Long ".repeat(20_000));
        user.write("tools/team/one.py", &source);
        let runs = run_concurrently(&user, (0..count).map(|_| to_arguments(&["sign", "tool", "team/one"])));
        for run in &runs {
            assert_eq!(run.exit, 0, "{run}");
        }
        let bytes = user.read("tools/team/one.py");
        let line = bytes.iter().position(|byte| *byte == b'\n').expect("a line") + 1;
        assert_eq!(&bytes[line..], source.as_bytes());
        user.ok(["load", "tool", "team/one"]);
        assert_eq!(temporary_files(&user.project()), Vec::<String>::new());
    }
}

#[test]
fn concurrent_inits_share_one_key() {
    let user = User::new();
    let folders: Vec<_> = (0..6).map(|number| user.project().join(format!("p{number}"))).collect();
    for folder in &folders {
        fs::create_dir(folder).expect("folder");
    }
    let runs = run_concurrently(
        &user,
        folders.iter().map(|folder| to_arguments(&["-p", folder.to_str().expect("text"), "init", "--json"])),
    );
    for run in &runs {
        assert_eq!(run.exit, 0, "{run}");
        assert_eq!(run.json()["data"]["fingerprint"], runs[0].json()["data"]["fingerprint"]);
    }
    for folder in &folders {
        let approved = user.data(["trust".as_ref(), folder.as_os_str()]);
        assert_eq!(approved["changed"], false, "{approved}");
        let verified = user.data(["-p".as_ref(), folder.as_os_str(), "verify".as_ref()]);
        assert_eq!(verified["full"], verified["checked"]);
    }
}

#[test]
fn concurrent_approvals_are_all_recorded() {
    let user = User::initialized();
    let folders: Vec<_> = (0..8).map(|number| user.context.path().join(format!("q{number}"))).collect();
    for folder in &folders {
        fs::create_dir_all(folder.join(".ai")).expect("folder");
    }
    let runs = run_concurrently(
        &user,
        folders.iter().map(|folder| to_arguments(&["trust", folder.to_str().expect("text")])),
    );
    for run in &runs {
        assert_eq!(run.exit, 0, "{run}");
    }
    let record = fs::read_to_string(user.home().join(".ai/config/trust/projects.yaml")).expect("record");
    for folder in &folders {
        assert!(record.contains(folder.to_str().expect("text")), "{record}");
    }
}

/// Runs `rye` where no file may grow beyond `blocks` KiB.
fn run_with_full_disk(user: &User, blocks: u32, line: &str) -> Run {
    let output = user
        .program("bash")
        .arg("-c")
        .arg(format!("ulimit -f {blocks}; exec {RYE} {line}"))
        .output()
        .expect("bash");
    Run::from_output(&output)
}

#[test]
fn full_disk_leaves_files_unchanged() {
    let user = User::initialized();
    user.write("tools/team/fresh.py", rye_test::tool("team", "Fresh"));
    user.write("tools/team/long.py", rye_test::tool("team", &"Long ".repeat(2_000)));
    let signed = user.signed_tool("signed", "Before");
    let edited = fs::read_to_string(&signed).expect("read").replace("Before", "Behind");
    fs::write(&signed, edited).expect("written");
    for (blocks, line) in [
        (0, "sign tool team/fresh --json"),
        (0, "sign tool team/signed --json"),
        // Half-way: the first blocks of the new file fit, the rest does not.
        (4, "sign tool team/long --json"),
        (0, "keys revoke 0123456789abcdef --json"),
        (0, "trust --revoke --json"),
        (0, "load knowledge rye/core/signing --from system --to user --json"),
    ] {
        let before = user.snapshot();
        let run = run_with_full_disk(&user, blocks, line);
        run.error(1, "RYE0901");
        let changed: Vec<String> = differences(&before, &user.snapshot())
            .into_iter()
            .filter(|path| !Path::new(path).is_dir())
            .collect();
        assert_eq!(changed, Vec::<String>::new(), "{line}: {run}");
        assert_eq!(temporary_files(&user.context.path()), Vec::<String>::new());
    }
    user.ok(["sign", "tool", "team/*"]);
}

#[test]
fn full_disk_signs_what_fits() {
    let user = User::initialized();
    user.write("tools/team/a.py", rye_test::tool("team", "Small"));
    let long = rye_test::tool("team", &"Long ".repeat(2_000));
    user.write("tools/team/b.py", &long);
    user.write("tools/team/c.py", rye_test::tool("team", "Small"));
    let answer = run_with_full_disk(&user, 4, "sign tool 'team/*' --json").error(1, "RYE0901");
    assert_eq!(answer["data"]["signed"].as_array().map(Vec::len), Some(2), "{answer}");
    assert_eq!(user.read("tools/team/b.py"), long.as_bytes());
}

#[test]
fn search_works_without_space_for_index() {
    let user = User::initialized();
    let run = run_with_full_disk(&user, 0, "search hello --json");
    assert_eq!(run.exit, 0, "{run}");
    assert_eq!(run.json()["data"]["total"], 2);
}

#[test]
fn init_on_full_disk_can_be_completed() {
    let user = User::new();
    run_with_full_disk(&user, 0, "init --json").error(1, "RYE0901");
    assert_eq!(temporary_files(&user.context.path()), Vec::<String>::new());
    user.ok(["init"]);
    let verified = user.data(["verify"]);
    assert_eq!(verified["full"], verified["checked"]);
    assert!(verified["full"].as_u64() >= Some(3), "{verified}");
}

#[test]
fn an_interrupted_init_is_completed_by_the_next() {
    // The key was written, its public half and its document were not.
    let user = User::initialized();
    let document = user.identity_document();
    fs::remove_file(document).expect("removed");
    fs::remove_file(user.public_key()).expect("removed");
    fs::remove_dir_all(user.project().join(".ai")).expect("removed");
    fs::remove_dir_all(user.home().join(".ai/config/trust")).expect("removed");
    user.ok(["init"]);
    assert_eq!(user.data(["doctor"])["errors"], 0);
    user.ok(["keys", "export"]);
}

/// Gives the world to an ordinary user and runs `rye` as them; `None` where that is not possible.
pub fn as_ordinary_user(user: &User, line: &[&str]) -> Option<Run> {
    const OVERFLOW_UID: u32 = 65_534;
    let mut command = user.program(RYE);
    command.args(line);
    let world = user.context.path();
    if std::os::unix::fs::chown(&world, Some(OVERFLOW_UID), Some(OVERFLOW_UID)).is_ok() {
        for path in snapshot(&world).keys() {
            std::os::unix::fs::lchown(path, Some(OVERFLOW_UID), Some(OVERFLOW_UID)).ok()?;
        }
        command.uid(OVERFLOW_UID).gid(OVERFLOW_UID);
    } else if fs::metadata(&world).ok()?.uid() == 0 {
        // Nothing is closed to the superuser, and we cannot stop being it.
        return None;
    }
    // The binary may lie where an ordinary user cannot reach it.
    let output = command.output().ok()?;
    Some(Run::from_output(&output))
}

#[test]
fn read_only_folder_is_unchanged() {
    let user = User::initialized();
    user.write("tools/team/a.py", rye_test::tool("team", "A"));
    let folder = user.project().join(".ai/tools/team");
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o555)).expect("mode");
    let before = user.snapshot();
    let Some(run) = as_ordinary_user(&user, &["sign", "tool", "team/a", "--json"]) else {
        return;
    };
    run.error(1, "RYE0901");
    assert_eq!(differences(&before, &user.snapshot()), Vec::<String>::new());
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).expect("mode");
}

#[test]
fn search_works_with_read_only_cache() {
    let user = User::initialized();
    let cache = user.context.cache();
    for state in ["empty", "with an index"] {
        if state != "empty" && as_ordinary_user(&user, &["search", "hello"]).is_none() {
            return;
        }
        for path in snapshot(&cache).keys().filter(|path| path.is_dir()) {
            fs::set_permissions(path, fs::Permissions::from_mode(0o555)).expect("mode");
        }
        let Some(run) = as_ordinary_user(&user, &["search", "hello", "--json"]) else {
            return;
        };
        assert_eq!(run.exit, 0, "{state}: {run}");
        assert_eq!(run.json()["data"]["total"], 2, "{state}: {run}");
        for path in snapshot(&cache).keys().filter(|path| path.is_dir()) {
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("mode");
        }
    }
}

#[test]
fn unreadable_item_is_reported_and_skipped() {
    let user = User::initialized();
    let path = user.signed_tool("closed", "Closed");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).expect("mode");
    let Some(run) = as_ordinary_user(&user, &["load", "tool", "team/closed", "--json"]) else {
        return;
    };
    run.error(1, "RYE0901");
    let Some(run) = as_ordinary_user(&user, &["search", "hello", "--json"]) else {
        return;
    };
    assert_eq!(run.json()["data"]["total"], 2, "{run}");
    let Some(run) = as_ordinary_user(&user, &["verify", "--json"]) else {
        return;
    };
    assert_eq!(run.exit, 4, "{run}");
}
