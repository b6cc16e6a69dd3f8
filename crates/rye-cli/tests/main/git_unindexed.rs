//! Repositories that a tool leaves in the project without naming them in an index: the user's next `git add .`, checkout or `cd`
//! would have git look into them.

use std::fs;

use crate::git_planted::{GitUser, moved_aside, nested};
use crate::support::Run;

/// What a tool leaves, what the user does next, and the folder that is moved aside.
fn assert_moved_aside(plant: &str, user: &[&[&str]], folder: &str) {
    let world = GitUser::with_repository();
    let ran = world.bash(plant);
    assert_eq!(moved_aside(&ran), [world.project().join(folder).display().to_string()], "{plant}: {ran}");
    for words in user {
        // It fails where there is nothing to add or to check out any more.
        let _ = world.user.program("git").current_dir(world.project()).args(*words).output().expect("git");
    }
    assert!(!world.runs_program("project"), "{plant}");
}

#[test]
fn unindexed_repository_is_moved_aside() {
    let world = GitUser::with_repository();
    let plant = nested(&world, "sub");
    assert_moved_aside(&plant, &[&["add", "."]], "sub/.git");
    assert_moved_aside(&nested(&world, "a/b/c"), &[&["add", "."]], "a/b/c/.git");
    // The same without the sandbox works.
    let mut shell = world.user.program("bash");
    shell.current_dir(world.project()).args(["-c", &plant]).output().expect("bash");
    world.git("project", &["add", "."]);
    assert!(world.runs_program("project"));
}

#[test]
fn repository_named_by_a_commit_is_moved_aside() {
    let world = GitUser::with_repository();
    let commit = "T=$( (git ls-tree HEAD; printf '160000 commit 1111111111111111111111111111111111111111\\tsub\\n') | \
                  git mktree --missing) && C=$(git -c user.name=a -c user.email=a@b commit-tree $T -p HEAD -m x) && \
                  git update-ref refs/heads/feature $C";
    let plant = format!("{} && {commit}", nested(&world, "sub"));
    assert_moved_aside(&plant, &[&["checkout", "-q", "feature"]], "sub/.git");
    assert_moved_aside(&plant, &[&["merge", "-q", "feature"]], "sub/.git");
}

#[test]
fn repository_without_git_folder_is_moved_aside() {
    let world = GitUser::with_repository();
    let plant = format!("{} && mv sub/.git bare && rm -r sub", nested(&world, "sub"));
    assert_moved_aside(&plant, &[], "bare/HEAD");
}

#[test]
fn repository_shared_with_another_folder_is_moved_aside() {
    let world = GitUser::with_repository();
    let split = |own: &str, common: &str| {
        format!(
            "mkdir -p {own} {common}/objects {common}/refs && echo 'ref: refs/heads/main' > {own}/HEAD && \
             echo ../{common} > {own}/commondir && \
             printf '{}[extensions]\n\tworktreeConfig = true\n' > {common}/config && \
             printf '[core]\n\tbare = false\n\tworktree = %s\n' \"$PWD/{own}\" > {own}/config.worktree",
            world.evil()
        )
    };
    assert_moved_aside(&split("src", "var"), &[], "src/HEAD");
    // The rest of it stood there before the run, or comes later.
    let (own, rest) = (split("lib", "x"), "mkdir -p y/objects y/refs && echo ../y > lib/commondir");
    assert_eq!(moved_aside(&world.bash(&format!("{own} && rm lib/commondir"))), Vec::<String>::new());
    let ran = world.bash(rest);
    assert_eq!(moved_aside(&ran), [world.project().join("lib/HEAD").display().to_string()], "{ran}");
}

#[test]
fn repositories_of_other_programs_are_moved_aside() {
    let world = GitUser::with_repository();
    for folder in [".hg", ".jj", ".sl"] {
        let plant = format!("mkdir -p src/{folder}/store && echo '[alias]' > src/{folder}/hgrc");
        let ran = world.bash(&plant);
        let expected = world.project().join("src").join(folder).display().to_string();
        assert_eq!(moved_aside(&ran), [expected], "{ran}");
    }
    // One of the user's stays as long as what it obeys does.
    fs::create_dir_all(world.project().join("own/.hg/store")).expect("folders");
    let ran = world.bash("echo x > own/.hg/store/x && mkdir empty && mkdir empty/.hg");
    assert_eq!(moved_aside(&ran), Vec::<String>::new(), "{ran}");
    let ran = world.bash("echo '[alias]' > own/.hg/hgrc");
    assert_eq!(moved_aside(&ran), [world.project().join("own/.hg").display().to_string()], "{ran}");
}

#[test]
fn very_deep_folders_are_named_and_not_searched() {
    let world = GitUser::with_repository();
    let ran = world.bash("for i in $(seq 600); do mkdir d && cd d || exit; done");
    let answer = ran.json();
    assert_eq!((ran.exit, answer["code"].as_str()), (5, Some("RYE0806")), "{ran}");
    let left = answer["sandbox"]["left_in_place"].as_array().expect("folders");
    let path = left.first().and_then(|path| path.as_str()).unwrap_or_default();
    assert!(left.len() == 1 && path.matches("/d").count() >= 512, "{left:?}");
    // They are known to the next run.
    assert_eq!(world.bash("true").exit, 0);
}

#[test]
fn repository_renamed_into_place_is_moved_aside() {
    let world = GitUser::with_repository();
    // Without `HEAD`, git does not take it for a repository.
    let prepare = format!("{} && mv sub/.git x && rm -r sub && mv x/HEAD head", nested(&world, "sub"));
    assert_eq!(moved_aside(&world.bash(&prepare)), Vec::<String>::new());
    let ran = world.bash("mkdir sub && mv head x/HEAD && mv x sub/.git");
    assert_eq!(moved_aside(&ran), [world.project().join("sub/.git").display().to_string()], "{ran}");
}

#[test]
fn old_repository_at_a_new_place_is_refused() {
    let world = GitUser::with_repository();
    let (project, other) = (world.project(), world.other());
    let refused = |ran: &Run, path: &str| {
        assert_eq!(moved_aside(ran), [project.join(path).display().to_string()], "{ran}");
    };
    for folder in ["first", "fourth"] {
        world.git("project", &["clone", "-q", &other, folder]);
        world.git(&format!("project/{folder}"), &["config", "core.fsmonitor", "./script"]);
    }
    assert_eq!(moved_aside(&world.bash("mv first/.git x && mv x/HEAD head")), Vec::<String>::new());
    refused(&world.bash("mkdir second && mv head x/HEAD && mv x second/.git"), "second/.git");
    // A folder above it is renamed.
    refused(&world.bash("mkdir -p third && mv fourth third/inner"), "third/inner/.git");
}

#[test]
fn repository_of_links_is_moved_aside() {
    let world = GitUser::with_repository();
    for name in ["config", "commondir", "hooks"] {
        let link = format!(
            "git init -q {name} && rm -rf {name}/.git/{name} && ln -s ../../later {name}/.git/{name}"
        );
        let ran = world.bash(&link);
        assert_eq!(
            moved_aside(&ran),
            [world.project().join(name).join(".git").display().to_string()],
            "{ran}"
        );
    }
}

#[test]
fn repository_named_before_it_exists_is_refused() {
    let world = GitUser::with_repository();
    let prepare = format!(
        "{} && mv x/.git prepared && mv prepared/HEAD head && mkdir sub && echo 'gitdir: ../store' > sub/.git",
        nested(&world, "x")
    );
    assert_eq!(moved_aside(&world.bash(&prepare)), Vec::<String>::new());
    let ran = world.bash("mv head prepared/HEAD && mv prepared store");
    let names = ["store/HEAD", "sub/.git"].map(|name| world.project().join(name).display().to_string());
    assert_eq!(moved_aside(&ran), names, "{ran}");
}

#[test]
fn repository_at_a_long_path_is_refused() {
    let world = GitUser::with_repository();
    let plant = format!(
        "n=$(printf '%0200d' 0) && for i in $(seq 30); do mkdir $n && cd $n || exit; done && \
         mkdir -p .git/objects .git/refs && echo 'ref: refs/heads/main' > .git/HEAD && printf '{}' > .git/config",
        world.evil()
    );
    let ran = world.bash(&plant);
    let moved = moved_aside(&ran);
    assert!(moved.len() == 1 && moved[0].len() > 6000 && moved[0].ends_with("/.git"), "{ran}");
}

#[test]
fn project_itself_becomes_no_repository() {
    let world = GitUser::new();
    let plant = format!(
        "mkdir objects refs && echo 'ref: refs/heads/main' > HEAD && printf '{}' > config",
        world.evil()
    );
    let ran = world.bash(&plant);
    assert_eq!(moved_aside(&ran), [world.project().join("HEAD").display().to_string()], "{ran}");
}

#[test]
fn repositories_of_the_user_stay() {
    let world = GitUser::with_repository();
    let other = world.other();
    let program = world.project().join("../evil.sh").display().to_string();
    // One from before the first run, and one from between two runs: both run the user's programs.
    for folder in ["first", "second"] {
        world.git("project", &["clone", "-q", &other, folder]);
        world.git(&format!("project/{folder}"), &["config", "alias.mine", &format!("!{program}")]);
        fs::write(world.project().join(folder).join(".git/hooks/pre-push"), "#!/bin/sh\n").expect("a hook");
        let commit = format!(
            "cd {folder} && echo 2 > file && git -c user.name=a -c user.email=a@b commit -qam second && git log --oneline"
        );
        let ran = world.bash(&commit);
        assert!(ran.exit == 0 && ran.to_string().contains("second"), "{folder}: {ran}");
        assert_eq!(moved_aside(&ran), Vec::<String>::new(), "{folder}");
    }
    // What a tool writes there is noticed.
    let ran = world.bash("printf '[core]\\n\\tfsmonitor = x\\n' >> first/.git/config");
    assert_eq!(moved_aside(&ran), [world.project().join("first/.git").display().to_string()], "{ran}");
    assert!(world.project().join("second/.git").is_dir());
}
