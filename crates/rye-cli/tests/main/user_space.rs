//! Which folder is taken for the user's own: not one that a project brings, that others own or may write to, and none
//! that cannot be read.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;

use crate::faults::as_ordinary_user;
use crate::support::{User, run, text};

const MALLORY: u32 = 4321;

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("mode");
}

#[test]
fn home_inside_a_checkout_is_refused() {
    let user = User::initialized();
    let clone = user.context.path().join("clone");
    fs::create_dir_all(clone.join(".git")).expect("folders");
    fs::create_dir_all(clone.join("deep/er")).expect("folders");
    // The clone brings a whole user space, key and approvals included.
    for home in ["home", "."] {
        let made = user.context.path().join("elsewhere");
        run(user.command().env("HOME", &made).current_dir(made_folder(&made)).args(["init"]));
        let target = clone.join(home);
        fs::create_dir_all(&target).expect("a folder");
        copy_tree(&made.join(".ai"), &target.join(".ai"));
        for start in [clone.clone(), clone.join("deep/er")] {
            for words in [&["search", "hello"][..], &["execute", "examples/hello"], &["init"], &["doctor"]] {
                let mut command = user.command();
                command.env("HOME", clone.join(home)).current_dir(&start).arg("--json").args(words);
                let refused = run(&mut command).error(4, "RYE0418");
                assert!(text(&refused["error"]).contains("HOME"), "{refused}");
                assert!(refused["hints"].to_string().contains("--user-space"), "{refused}");
            }
        }
        // From elsewhere, with the clone named as the project, it is the same.
        let mut command = user.command();
        command.env("HOME", clone.join(home)).args(["--json", "search", "hello", "--project"]).arg(&clone);
        run(&mut command).error(4, "RYE0418");
        fs::remove_dir_all(target.join(".ai")).expect("removed");
    }
    // A home that holds the project is what homes do.
    let project = user.home().join("work");
    fs::create_dir(&project).expect("a folder");
    let found = run(user.command().current_dir(&project).args(["search", "hello"]));
    assert_eq!(found.exit, 0, "{found}");
    let found = run(user.command().current_dir(user.home()).args(["search", "hello"]));
    assert_eq!(found.exit, 0, "{found}");
}

fn made_folder(path: &Path) -> std::path::PathBuf {
    fs::create_dir_all(path).expect("a folder");
    path.to_owned()
}

fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("an entry");
        let target = to.join(entry.file_name());
        if entry.file_type().expect("a type").is_dir() {
            copy_tree(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).expect("copied");
        }
    }
}

/// What of a user space decides whom the user trusts, below home: folders, and a file of each.
fn deciding_paths(user: &User) -> Vec<String> {
    let folders = ["", ".ai", ".ai/config", ".ai/config/keys"];
    let made =
        ["config/keys/trusted", "config/keys/revoked", "config/trust", "config/agent", "lockfiles/team"];
    let mut paths: Vec<String> = folders.map(str::to_owned).to_vec();
    for name in made {
        let folder = user.home().join(".ai").join(name);
        fs::create_dir_all(&folder).expect("folders");
        let file = folder.join("note.txt");
        fs::write(&file, "").expect("a file");
        paths.extend([format!(".ai/{name}"), format!(".ai/{name}/note.txt")]);
    }
    paths
}

#[test]
fn init_leaves_nothing_open_under_any_umask() {
    let user = User::new();
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "umask 000; exec \"$0\" init"]).arg(user.command().get_program());
    let like = user.command();
    command.env_clear().current_dir(user.project());
    command.envs(like.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let made = command.output().expect("the command runs");
    assert!(made.status.success(), "{made:?}");
    for root in [user.home().join(".ai"), user.project().join(".ai")] {
        let mut folders = vec![root];
        while let Some(folder) = folders.pop() {
            let mode = fs::metadata(&folder).expect("there").permissions().mode();
            assert_eq!(mode & 0o022, 0, "{}", folder.display());
            if folder.is_dir() {
                folders
                    .extend(fs::read_dir(&folder).expect("a folder").map(|entry| entry.expect("one").path()));
            }
        }
    }
}

#[test]
fn user_space_in_a_related_checkout_is_refused() {
    let user = User::initialized();
    let root = user.context.path().to_owned();
    let git = |folder: &Path, words: &[&str]| {
        let mut command = std::process::Command::new("git");
        command.current_dir(folder).env("HOME", user.home()).args([
            "-c",
            "user.name=a",
            "-c",
            "user.email=a@b",
        ]);
        let output = command.args(words).output().expect("git runs");
        assert!(output.status.success(), "{output:?}");
    };
    let main = made_folder(&root.join("main"));
    git(&main, &["init", "-q", "."]);
    git(&main, &["commit", "-q", "--allow-empty", "-m", "first"]);
    git(&main, &["worktree", "add", "-q", "../first"]);
    git(&main, &["worktree", "add", "-q", "../second"]);
    for (space, start) in
        [("main", "first"), ("second", "first"), ("first", "main"), ("main", "main"), ("main/.git", "first")]
    {
        let (space, start) = (root.join(space).join("h"), root.join(start));
        copy_tree(&user.home().join(".ai"), &space.join(".ai"));
        let mut command = user.command();
        command.current_dir(&start).env("USER_SPACE", &space).args(["--json", "search", "hello"]);
        run(&mut command).error(4, "RYE0418");
        let mut command = user.command();
        command.current_dir(&start).env("HOME", &space).args(["--json", "search", "hello"]);
        run(&mut command).error(4, "RYE0418");
        // From elsewhere it is a folder like another.
        let mut command = user.command();
        command.current_dir(user.project()).env("USER_SPACE", &space).args(["--json", "search", "hello"]);
        assert_eq!(run(&mut command).exit, 0);
        fs::remove_dir_all(&space).expect("removed");
    }
}

#[test]
fn user_space_of_another_user_is_refused() {
    let user = User::initialized();
    for given_away in deciding_paths(&user) {
        let path = user.home().join(given_away);
        if chown(&path, Some(MALLORY), None).is_err() {
            return;
        }
        for words in [&["search", "hello"][..], &["execute", "examples/hello"], &["init"], &["doctor"]] {
            let refused = user.assert_refused(words, 4, "RYE0418");
            assert!(text(&refused["error"]).contains("another user (uid 4321)"), "{refused}");
        }
        chown(&path, Some(0), None).expect("given back");
    }
    let space = user.context.path().join("space");
    fs::create_dir(&space).expect("a folder");
    chown(&space, Some(MALLORY), None).expect("given away");
    let mut command = user.command();
    user.assert_command_refused(
        command.env("USER_SPACE", &space).args(["--json", "search", "hello"]),
        4,
        "RYE0418",
    );
}

#[test]
fn user_space_open_to_all_is_refused() {
    let user = User::initialized();
    for open in deciding_paths(&user) {
        let path = user.home().join(&open);
        let before = fs::metadata(&path).expect("there").permissions().mode() & 0o7777;
        for mode in [0o777, 0o1777, 0o702] {
            set_mode(&path, mode);
            let refused = user.assert_refused(["search", "hello"], 4, "RYE0418");
            assert!(refused["hints"].to_string().contains("chmod go-w"), "{refused}");
        }
        // A group that has the number of its user is that user.
        set_mode(&path, 0o770);
        user.ok(["search", "hello"]);
        if ["", ".ai", ".ai/config", ".ai/config/keys"].contains(&open.as_str()) {
            let findings = user.data(["doctor"])["findings"].to_string();
            assert!(findings.contains("chmod g-w"), "{findings}");
        }
        // Only root can give it to another group.
        if chown(&path, None, Some(MALLORY)).is_ok() {
            user.assert_refused(["search", "hello"], 4, "RYE0418");
            chown(&path, None, Some(0)).expect("given back");
        }
        set_mode(&path, before);
    }
}

#[test]
fn unreadable_folders_are_named() {
    for (folder, mode) in [
        ("project/.ai", 0o000),
        ("project/.ai", 0o600),
        ("project/.ai/tools", 0o000),
        ("project/.ai/tools/examples", 0o000),
        ("project/.ai/tools/examples", 0o600),
        ("home/.ai", 0o000),
        ("home/.ai/tools/team", 0o000),
        ("home/.ai/config/keys/revoked", 0o000),
    ] {
        let user = User::initialized();
        fs::create_dir_all(user.home().join(".ai/tools/team")).expect("folders");
        fs::create_dir_all(user.home().join(".ai/config/keys/revoked")).expect("folders");
        // The user's own tool of that id must not take the place of what cannot be seen.
        user.ok(["load", "tool", "examples/hello", "--to", "user"]);
        let path = user.context.path().join(folder);
        if as_ordinary_user(&user, &["search", "hello"]).is_none_or(|ran| ran.exit != 0) {
            return;
        }
        let is_of_item = !folder.ends_with("team");
        set_mode(&path, mode);
        let mut lines = vec![&["search", "hello"][..], &["verify"], &["doctor"]];
        if is_of_item {
            lines.extend([&["execute", "examples/hello"][..], &["load", "tool", "examples/hello"]]);
        }
        let ran: Vec<_> = lines
            .iter()
            .filter_map(|line| as_ordinary_user(&user, &[&["--json"], *line].concat()).map(|ran| (line, ran)))
            .collect();
        set_mode(&path, 0o755);
        assert_eq!(ran.len(), lines.len());
        for (line, ran) in ran {
            let shown = path.display().to_string();
            assert!(ran.exit != 0 && ran.stdout.contains(&shown), "{folder} {mode:o} {line:?}: {ran}");
            assert!(ran.stdout.contains("cannot be read"), "{folder} {mode:o} {line:?}: {ran}");
        }
    }
}

#[test]
fn cache_of_others_is_refused() {
    let user = User::initialized();
    let shared = user.context.path().join("shared");
    fs::create_dir(&shared).expect("a folder");
    set_mode(&shared, 0o1777);
    let command = || {
        let mut command = user.command();
        command.env("XDG_CACHE_HOME", &shared).args(["--json", "execute", "examples/hello"]);
        command
    };
    assert_eq!(run(&mut command()).exit, 0);
    let made = fs::metadata(shared.join("rye")).expect("made").permissions().mode();
    assert_eq!(made & 0o7777, 0o700);
    // In a folder that others may write to, what is there can be replaced.
    set_mode(&shared, 0o777);
    let refused = run(&mut command()).error(4, "RYE0418");
    assert!(refused["hints"].to_string().contains("XDG_CACHE_HOME"), "{refused}");
    set_mode(&shared, 0o1777);
    set_mode(&shared.join("rye"), 0o777);
    run(&mut command()).error(4, "RYE0418");
    set_mode(&shared.join("rye"), 0o755);
    set_mode(&shared.join("rye/run"), 0o777);
    run(&mut command()).error(4, "RYE0418");
    set_mode(&shared.join("rye/run"), 0o700);
    assert_eq!(run(&mut command()).exit, 0);
    // Only root gives folders away.
    for given in ["rye", "rye/run"] {
        let path = shared.join(given);
        if chown(&path, Some(MALLORY), None).is_err() {
            return;
        }
        let refused = run(&mut command()).error(4, "RYE0418");
        assert!(text(&refused["error"]).contains("another user (uid 4321)"), "{refused}");
        chown(&path, Some(0), None).expect("given back");
    }
}
