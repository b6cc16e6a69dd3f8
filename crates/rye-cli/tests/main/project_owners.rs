//! Projects of other users. Giving a file away needs root; as an ordinary user these tests show nothing.

use std::os::unix::fs::chown;
use std::path::PathBuf;

use crate::support::{User, run, text};

const FOREIGN_UID: u32 = 4321;

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0)
}

/// A folder of the user's below one where another user has put an `.ai`.
fn project_below_foreign_ai(user: &User) -> (PathBuf, PathBuf) {
    let above = user.context.path().join("shared");
    let work = above.join("work");
    std::fs::create_dir_all(above.join(".ai/tools")).expect("folders");
    std::fs::create_dir_all(&work).expect("folders");
    chown(above.join(".ai"), Some(FOREIGN_UID), None).expect("given away");
    (above, work)
}

#[test]
fn foreign_parent_ai_folder_is_ignored() {
    if !is_root() {
        return;
    }
    let user = User::initialized();
    let (above, work) = project_below_foreign_ai(&user);
    for words in [&["search", "*"][..], &["execute", "rye/bash", "command=true"], &["doctor"]] {
        let mut command = user.command();
        let refused =
            user.assert_command_refused(command.current_dir(&work).args(words).arg("--json"), 4, "RYE0904");
        let output = above.join(".ai").display().to_string();
        assert!(text(&refused["error"]).contains(&output), "{refused}");
        assert!(refused["hints"].to_string().contains("rye trust"), "{refused}");
    }
    // A project of one's own below it is nearer.
    let made = run(user.command().current_dir(&work).args(["init", "--json"]));
    assert_eq!(made.exit, 0, "{made}");
    let found =
        run(user.command().current_dir(&work).args(["execute", "examples/hello", "name=Ada", "--json"]));
    assert_eq!(found.exit, 0, "{found}");
}

#[test]
fn trust_records_the_owner() {
    if !is_root() {
        return;
    }
    let user = User::initialized();
    let (above, work) = project_below_foreign_ai(&user);
    let search = || run(user.command().current_dir(&work).args(["search", "*", "--json"]));
    let trusted = user.data(["trust".as_ref(), above.as_os_str()]);
    assert_eq!(trusted["owners"], serde_json::json!([FOREIGN_UID]), "{trusted}");
    assert_eq!(search().exit, 0, "{}", search());
    chown(above.join(".ai"), Some(FOREIGN_UID + 1), None).expect("given away");
    search().error(4, "RYE0904");
    // Approving it again records who has it now.
    assert_eq!(user.data(["trust".as_ref(), above.as_os_str()])["changed"], true);
    assert_eq!(search().exit, 0, "{}", search());
    user.ok(["trust".as_ref(), above.as_os_str(), "--revoke".as_ref()]);
    search().error(4, "RYE0904");
}

#[test]
fn root_works_in_a_foreign_project_after_trust() {
    if !is_root() {
        return;
    }
    for words in [&["trust", "."][..], &["init"]] {
        let user = User::initialized();
        user.ok(["trust", ".", "--revoke"]);
        for path in [user.project(), user.project().join(".ai")] {
            chown(path, Some(FOREIGN_UID), None).expect("given away");
        }
        user.assert_refused(["execute", "examples/hello", "name=Ada"], 4, "RYE0904");
        user.ok(words);
        user.ok(["execute", "examples/hello", "name=Ada"]);
    }
}
