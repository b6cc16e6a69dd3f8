//! Installations that fail half-way, and several at once: the space is unchanged or complete, never between.
//! What happens when the process is killed at any of its steps is reported by the tests of `rye-bundle` and, of the whole
//! program, by `scripts/check-install-faults`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use crate::faults::as_ordinary_user;
use crate::install::{BundleAuthor, install, installed_files};
use crate::support::{Run, User, copy_tree, differences, snapshot};

const RYE: &str = env!("CARGO_BIN_EXE_rye");

#[test]
fn install_on_full_disk_is_rolled_back() {
    let (maker, user) = (BundleAuthor::new(), User::initialized());
    maker.write_tool("large", &format!("\"{}\"", "x".repeat(40_000)));
    let source = maker.create("1.0.0");
    let before = snapshot(&user.project());
    let line = format!("install {} --trust {} --yes --json", source.display(), maker.fingerprint());
    for blocks in [0, 4, 16] {
        let output = user
            .program("bash")
            .arg("-c")
            .arg(format!("ulimit -f {blocks}; exec {RYE} {line}"))
            .output()
            .expect("bash");
        let run = Run::from_output(&output);
        assert_ne!(run.exit, 0, "{run}");
        assert_eq!(differences(&before, &snapshot(&user.project())), Vec::<String>::new(), "{run}");
    }
    install(&user, &source, &maker, &[]);
    user.ok(["bundle", "verify", "gifts"]);
}

#[test]
fn install_without_permission_is_rolled_back() {
    let (maker, user) = (BundleAuthor::new(), User::initialized());
    let source = user.context.path().join("gifts");
    copy_tree(&maker.create("1.0.0"), &source);
    let closed = user.project().join(".ai/tools");
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o555)).expect("mode");
    let fingerprint = maker.fingerprint();
    let line = ["install", source.to_str().expect("text"), "--trust", &fingerprint, "--yes", "--json"];
    let before = snapshot(&user.project());
    let Some(run) = as_ordinary_user(&user, &line) else { return };
    run.error(1, "RYE0901");
    assert_eq!(differences(&before, &snapshot(&user.project())), Vec::<String>::new(), "{run}");
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o755)).expect("mode");
    let done = as_ordinary_user(&user, &line).expect("as before");
    assert_eq!(done.exit, 0, "{done}");
}

#[test]
fn concurrent_installs_leave_one_complete_bundle() {
    let (maker, user) = (BundleAuthor::new(), User::initialized());
    let sources = [maker.create("1.0.0"), {
        maker.write_tool("hi", "2");
        maker.create("2.0.0")
    }];
    let fingerprint = maker.fingerprint();
    let children: Vec<_> = (0..6)
        .map(|number| {
            let mut command = user.program(RYE);
            command.arg("install").arg(&sources[number % 2]);
            command.args(["--trust", &fingerprint, "--yes", "--allow-downgrade"]).stdin(Stdio::null());
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("started")
        })
        .collect();
    let mut done = 0;
    for child in children {
        let run = Run::from_output(&child.wait_with_output().expect("finished"));
        // One that finds another plan than it showed says so, and changes nothing.
        assert!(run.exit == 0 || run.stderr.contains("RYE0613"), "{run}");
        done += usize::from(run.exit == 0);
    }
    assert!(done >= 1);
    let verified = user.data(["bundle", "verify", "gifts"]);
    assert_eq!(verified["status"], "verified", "{verified}");
    assert_eq!(installed_files(&user).len(), 7);
    let left: Vec<_> = snapshot(&user.home().join(".ai/installs"))
        .into_keys()
        .filter(|path| path.ends_with("journal.json"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}
