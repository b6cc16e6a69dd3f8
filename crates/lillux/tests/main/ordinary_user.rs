//! The same attacks without root, where namespaces need a user namespace.

use std::os::unix::fs::PermissionsExt;
use std::process::Command as Bare;

use crate::support::{LAUNCHER, launcher};

const OVERFLOW_UID: u32 = 65534;

#[test]
fn confinement_works_for_ordinary_users() {
    if !rustix::process::geteuid().is_root() {
        // Then every other test of this binary has just shown it.
        return;
    }
    let folder = tempfile::Builder::new().prefix("lillux-nobody").tempdir().expect("a folder");
    let (tests, program) = (folder.path().join("tests"), folder.path().join("launcher"));
    let temporary = folder.path().join("temporary");
    std::fs::copy(std::env::current_exe().expect("this binary"), &tests).expect("copied");
    std::fs::copy(launcher().program(), &program).expect("copied");
    std::fs::create_dir(&temporary).expect("a folder");
    std::os::unix::fs::chown(&temporary, Some(OVERFLOW_UID), Some(OVERFLOW_UID)).expect("given");
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).expect("opened");
    let output = Bare::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all", "--inh-caps=-all"])
        .arg(tests)
        .args(["confinement::", "supervision::", "deaths::", "--test-threads=2"])
        .env(LAUNCHER, program)
        .env("TMPDIR", temporary)
        .current_dir("/")
        .output()
        .expect("it ran");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}
