//! Repositories that a tool makes or changes so that the user's next `git status` would run a program. Afterwards it runs none.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::support::{Run, User, run};

const IDENTITY: [&str; 8] = [
    "-c",
    "user.name=a",
    "-c",
    "user.email=a@b",
    "-c",
    "protocol.file.allow=always",
    "-c",
    "advice.addEmbeddedRepo=false",
];

/// A user with a repository in the project, and a program that leaves a trace when it runs.
pub(crate) struct GitUser {
    pub(crate) user: User,
}

impl GitUser {
    pub(crate) fn new() -> Self {
        let user = User::initialized();
        let world = Self { user };
        let program = world.root().join("evil.sh");
        let text = format!("#!/bin/sh\ntouch '{}'\nexit 1\n", world.trace().display());
        fs::write(&program, text).expect("a program");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("a mode");
        world
    }

    /// As new, with a repository in the project.
    pub(crate) fn with_repository() -> Self {
        let world = Self::new();
        world.git("project", &["init", "-q", "."]);
        fs::write(world.project().join(".gitignore"), ".ai\n").expect("a file");
        world.git("project", &["add", ".gitignore"]);
        world.git("project", &["commit", "-qm", "first"]);
        world
    }

    fn root(&self) -> PathBuf {
        self.user.context.path()
    }

    pub(crate) fn project(&self) -> PathBuf {
        self.user.project()
    }

    fn trace(&self) -> PathBuf {
        self.root().join("ran")
    }

    /// Settings that make git run the program.
    pub(crate) fn evil(&self) -> String {
        format!(
            "[core]\\n\\trepositoryformatversion = 0\\n\\tfsmonitor = {}/evil.sh\\n",
            self.root().display()
        )
    }

    /// Runs git as the user, in a folder of the world.
    pub(crate) fn git(&self, folder: &str, words: &[&str]) -> String {
        let mut command = self.user.program("git");
        let ran =
            command.current_dir(self.root().join(folder)).args(IDENTITY).args(words).output().expect("git");
        assert!(ran.status.success(), "{words:?} {}", String::from_utf8_lossy(&ran.stderr));
        String::from_utf8_lossy(&ran.stdout).into_owned()
    }

    /// Another repository beside the project.
    pub(crate) fn other(&self) -> String {
        let other = self.root().join("other");
        fs::create_dir(&other).expect("a folder");
        self.git("other", &["init", "-q", "."]);
        fs::write(other.join("file"), "1").expect("a file");
        self.git("other", &["add", "file"]);
        self.git("other", &["commit", "-qm", "first"]);
        other.display().to_string()
    }

    pub(crate) fn bash(&self, command: &str) -> Run {
        let params = json!({"command": command}).to_string();
        run(self.user.command().args(["--json", "execute", "rye/bash", "--params", &params]))
    }

    /// Whether what the user types next runs the program.
    pub(crate) fn runs_program(&self, folder: &str) -> bool {
        let _ = fs::remove_file(self.trace());
        for words in [["status", "--short"], ["diff", "--stat"]] {
            let mut command = self.user.program("git");
            command.current_dir(self.root().join(folder)).args(words).output().expect("git");
        }
        self.trace().exists()
    }

    /// The attack works without `rye`, so that the test can fail.
    fn assert_works_outside(&self, command: &str) {
        let mut shell = self.user.program("bash");
        let ran = shell.current_dir(self.project()).args(["-c", command]).output().expect("bash");
        assert!(self.runs_program("project"), "{command}: {}", String::from_utf8_lossy(&ran.stderr));
    }

    /// Tries each command, and then git.
    fn assert_all_stopped(&self, commands: &[String]) {
        for command in commands {
            let ran = self.bash(&format!("({command}) >/dev/null 2>&1; true"));
            assert!(!self.runs_program("project"), "{command}: {ran}");
        }
    }
}

/// Changes the repository of a project to another layout.
type MakeLayout = fn(&Path);

/// Makes a nested repository that runs the program.
pub(crate) fn nested(world: &GitUser, folder: &str) -> String {
    let commit = "git -c user.name=a -c user.email=a@b commit -q --allow-empty -m x";
    format!(
        "mkdir -p '{folder}' && git init -q '{folder}' && (cd '{folder}' && {commit}) && printf '{}' > '{folder}/.git/config'",
        world.evil()
    )
}

/// Names a folder as a repository in the index.
fn gitlink(folder: &str) -> String {
    format!("git update-index --add --cacheinfo 160000,1111111111111111111111111111111111111111,'{folder}'")
}

pub(crate) fn moved_aside(ran: &Run) -> Vec<String> {
    let answer: Value = ran.json();
    let paths = answer["sandbox"]["moved_aside"].as_array().cloned().unwrap_or_default();
    paths.iter().map(|path| path.as_str().unwrap_or_default().to_owned()).collect()
}

#[test]
fn planted_repository_is_moved_aside() {
    for prepare in [
        "true",
        "git update-index --index-version 4",
        "git update-index --split-index",
        "for i in $(seq 50); do echo $i > file-$i; done; git add .; git update-index --split-index",
    ] {
        let world = GitUser::with_repository();
        let command = format!("{prepare} && {} && {}", nested(&world, "sub"), gitlink("sub"));
        let ran = world.bash(&command);
        let error = ran.error(5, "RYE0806");
        assert!(error.to_string().contains("sub/.git"), "{prepare}: {error}");
        assert_eq!(moved_aside(&ran), [world.project().join("sub/.git").display().to_string()], "{prepare}");
        assert!(!world.runs_program("project"), "{prepare}");
        assert!(world.project().join("sub/.git.refused-by-rye/config").is_file());
        // The same command without the sandbox works.
        fs::remove_dir_all(world.project().join("sub")).expect("removed");
        world.assert_works_outside(&command);
    }
}

#[test]
fn other_ways_to_plant_are_refused() {
    let ways: [fn(&GitUser) -> String; 5] = [
        // In two runs, and below a folder.
        |world| format!("{} && {}", nested(world, "a/b"), gitlink("a/b")),
        // A repository elsewhere in the project.
        |world| {
            format!(
                "{} && mkdir sub && echo 'gitdir: ../gd/.git' > sub/.git && {}",
                nested(world, "gd"),
                gitlink("sub")
            )
        },
        |world| {
            format!("{} && mkdir sub && ln -s ../gd/.git sub/.git && {}", nested(world, "gd"), gitlink("sub"))
        },
        // A harmless repository that has one of its own.
        |world| {
            format!(
                "mkdir sub && git init -q sub && (cd sub && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m x && {} && {}) && {}",
                nested(world, "deep"),
                gitlink("deep"),
                gitlink("sub")
            )
        },
        // A hook instead of settings.
        |world| {
            format!(
                "mkdir sub && git init -q sub && (cd sub && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m x; echo 1 > f; git add f; \
                 mkdir -p .git/hooks; cp '{}/evil.sh' .git/hooks/post-index-change; touch f) && {}",
                world.root().display(),
                gitlink("sub")
            )
        },
    ];
    for (number, way) in ways.iter().enumerate() {
        let world = GitUser::with_repository();
        let command = way(&world);
        let ran = world.bash(&command);
        assert!(ran.exit != 0 && !moved_aside(&ran).is_empty(), "{number}: {ran}");
        assert!(!world.runs_program("project"), "{number}: {ran}");
        let world = GitUser::with_repository();
        world.assert_works_outside(&way(&world));
    }
}

#[test]
fn killed_run_is_checked_by_the_next() {
    let world = GitUser::with_repository();
    let planting = format!("{} && {} && touch planted", nested(&world, "sub"), gitlink("sub"));
    let command = format!("touch ready; until [ -e stopped ]; do sleep 0.01; done; {planting} && sleep 600");
    let params = json!({"command": command}).to_string();
    let mut child = world
        .user
        .program(env!("CARGO_BIN_EXE_rye"))
        .args(["execute", "rye/bash", "--params", &params])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("started");
    let wait_for = |name: &str, child: &mut std::process::Child| {
        while !world.project().join(name).exists() {
            assert!(child.try_wait().expect("a state").is_none(), "it ended");
            std::thread::yield_now();
        }
    };
    wait_for("ready", &mut child);
    // While `rye` stands still, it sees nothing of what the tool does.
    let stop = world.user.program("kill").args(["-STOP", &child.id().to_string()]).status();
    assert!(stop.expect("kill").success());
    fs::write(world.project().join("stopped"), "").expect("written");
    wait_for("planted", &mut child);
    child.kill().expect("killed");
    child.wait().expect("ended");
    let ran = world.bash("true");
    assert_eq!(moved_aside(&ran), [world.project().join("sub/.git").display().to_string()], "{ran}");
    assert_eq!(ran.exit, 0, "{ran}");
    assert!(!world.runs_program("project"));
    assert_eq!(moved_aside(&world.bash("true")), Vec::<String>::new());
}

#[test]
fn harmless_repositories_stay() {
    let world = GitUser::with_repository();
    let other = world.other();
    world.git("project", &["submodule", "--quiet", "add", &other, "libs/sub"]);
    world.git("project", &["commit", "-qm", "sub"]);
    world.git("project", &["checkout", "-q", "-b", "without", "HEAD~1"]);
    world.git("project", &["clone", "-q", &other, "vendor"]);
    // The first branch has the submodule, whose files are still there.
    let ran = world.bash("git checkout -q - && git add vendor 2>/dev/null; git ls-files -s");
    assert_eq!((ran.exit, moved_aside(&ran)), (0, Vec::new()), "{ran}");
    assert_eq!(ran.to_string().matches("160000").count(), 2, "{ran}");
    for folder in ["libs/sub/.git", "vendor/.git"] {
        assert!(world.project().join(folder).exists(), "{folder}");
    }
    // From now on both are protected, and can be committed to.
    let program = world.root().join("evil.sh").display().to_string();
    for folder in ["libs/sub", "vendor"] {
        let ran = world.bash(&format!(
            "cd {folder} && echo 2 > file && git -c user.name=a -c user.email=a@b commit -qam second && git log --oneline"
        ));
        assert!(ran.exit == 0 && ran.to_string().contains("second"), "{folder}: {ran}");
        world.assert_all_stopped(&[format!("git -C {folder} config core.fsmonitor {program}")]);
    }
}

#[test]
fn embedded_and_quoted_submodules_are_protected() {
    for name in ["emb", "a#b", "a;b", "a\"b", "a\\b", "a b ", "libs/deep"] {
        for is_embedded in [true, false] {
            let world = GitUser::with_repository();
            let other = world.other();
            if is_embedded {
                world.git("project", &["clone", "-q", &other, name]);
                world.git("project", &["add", name]);
            } else {
                world.git("project", &["submodule", "--quiet", "add", "--name", "sub", &other, name]);
            }
            let quoted = name.replace('\'', "'\\''");
            let git_dir = if is_embedded { format!("{quoted}/.git") } else { ".git/modules/sub".to_owned() };
            let evil = world.evil();
            let commands = [
                format!("printf '{evil}' >> '{git_dir}/config'"),
                format!("rm -f '{git_dir}/config'; printf '{evil}' > '{git_dir}/config'"),
                format!(
                    "mkdir x; printf '{evil}' > x/config; echo ../x > '{git_dir}/commondir'; cp -r '{git_dir}/.' x"
                ),
                format!("mv '{quoted}' aside && {}", nested(&world, &quoted)),
                format!("rm -rf '{quoted}/.git'; {}", nested(&world, &quoted)),
                format!(
                    "cp -r '{git_dir}' gd; printf '{evil}' > gd/config; echo \"gitdir: $PWD/gd\" > '{quoted}/.git'"
                ),
            ];
            world.assert_all_stopped(&commands);
            let entry = world.project().join(name).join(".git");
            assert!(entry.exists(), "{name} {is_embedded}");
        }
    }
}

#[test]
fn submodules_of_a_linked_worktree_are_protected() {
    let world = GitUser::new();
    let other = world.other();
    fs::create_dir(world.root().join("main")).expect("a folder");
    world.git("main", &["init", "-q", "."]);
    world.git("main", &["submodule", "--quiet", "add", &other, "sub"]);
    world.git("main", &["commit", "-qm", "first"]);
    fs::rename(world.project().join(".ai"), world.root().join("kept")).expect("moved");
    fs::remove_dir_all(world.project()).expect("removed");
    world.git("main", &["worktree", "add", "-q", &world.project().display().to_string()]);
    fs::rename(world.root().join("kept"), world.project().join(".ai")).expect("moved");
    world.git("project", &["submodule", "--quiet", "update", "--init"]);
    let module = world.root().join("main/.git/worktrees/project/modules/sub");
    assert!(module.join("config").is_file());
    let (module, evil) = (module.display(), world.evil());
    world.assert_all_stopped(&[
        format!("printf '{evil}' >> '{module}/config'"),
        format!("mv '{module}' '{module}-old'; mkdir '{module}'; cp -r '{module}-old/.' '{module}'; printf '{evil}' > '{module}/config'"),
        format!("rm -rf sub; {}", nested(&world, "sub")),
    ]);
    let ran = world.bash(
        "cd sub && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m made && git log --oneline",
    );
    assert!(ran.exit == 0 && ran.to_string().contains("made"), "{ran}");
}

#[test]
fn every_step_to_the_repository_is_protected() {
    let layouts: [(&str, MakeLayout); 6] = [
        ("commondir", |project| {
            fs::create_dir(project.join("shared")).expect("a folder");
            for name in ["config", "objects", "refs", "info", "hooks", "packed-refs"] {
                let _ = fs::rename(project.join(".git").join(name), project.join("shared").join(name));
            }
            fs::write(project.join(".git/commondir"), "../shared\n").expect("a file");
        }),
        ("file and commondir", |project| {
            fs::rename(project.join(".git"), project.join("shared")).expect("moved");
            fs::create_dir(project.join("gd")).expect("a folder");
            fs::copy(project.join("shared/HEAD"), project.join("gd/HEAD")).expect("copied");
            fs::rename(project.join("shared/index"), project.join("gd/index")).expect("moved");
            fs::write(project.join("gd/commondir"), "../shared\n").expect("a file");
            fs::write(project.join(".git"), "gitdir: gd\n").expect("a file");
        }),
        ("link to a link", |project| {
            fs::rename(project.join(".git"), project.join("gd")).expect("moved");
            symlink("gd", project.join("one")).expect("a link");
            symlink("one", project.join(".git")).expect("a link");
        }),
        ("file through a link", |project| {
            fs::create_dir(project.join("real")).expect("a folder");
            fs::rename(project.join(".git"), project.join("real/gd")).expect("moved");
            symlink("real", project.join("lnk")).expect("a link");
            fs::write(project.join(".git"), "gitdir: lnk/gd\n").expect("a file");
        }),
        ("link to a file", |project| {
            fs::rename(project.join(".git"), project.join("gd")).expect("moved");
            fs::write(project.join("gitfile"), "gitdir: gd\n").expect("a file");
            symlink("gitfile", project.join(".git")).expect("a link");
        }),
        ("linked config", |project| {
            fs::rename(project.join(".git/config"), project.join("settings")).expect("moved");
            symlink("../one", project.join(".git/config")).expect("a link");
            symlink("settings", project.join("one")).expect("a link");
        }),
    ];
    for (layout, make) in layouts {
        let world = GitUser::with_repository();
        make(&world.project());
        world.git("project", &["status"]);
        let evil = world.evil();
        let mut commands = Vec::new();
        for folder in ["shared", "gd", "real/gd", ".git"] {
            commands.push(format!("printf '{evil}' >> {folder}/config"));
            commands
                .push(format!("cp -r {folder} x; printf '{evil}' > x/config; mv {folder} y; mv x {folder}"));
        }
        let copy = format!(
            "rm -rf x; cp -rL $(git rev-parse --absolute-git-dir) x; printf '{evil}' > x/config; mkdir -p z; cp -r x z/gd"
        );
        for name in [".git", "one", "lnk", "gitfile", "settings"] {
            commands.push(format!("{copy}; ln -sfn x {name}"));
            commands.push(format!("{copy}; rm -f {name}; ln -s z {name}"));
            commands.push(format!("{copy}; test -f {name} && echo 'gitdir: x' > {name}"));
            commands.push(format!("test -f {name} && printf '{evil}' >> {name}"));
        }
        for name in [".git/commondir", "gd/commondir"] {
            commands.push(format!("{copy}; echo ../x > {name}"));
        }
        let command = commands.iter().map(|command| format!("({command}) 2>/dev/null")).collect::<Vec<_>>();
        world.assert_all_stopped(&[command.join("; ")]);
        let printed = world.git("project", &["log", "--oneline"]);
        assert!(printed.contains("first"), "{layout}: {printed}");
        let ran = world.bash("git log --oneline");
        assert!(ran.to_string().contains("first"), "{layout}: {ran}");
    }
}

#[test]
fn native_tools_write_nothing_in_git_folders() {
    let world = GitUser::with_repository();
    for path in [".git/index", "sub/.git/config", ".git/new"] {
        let params = json!({"path": path, "content": "x"}).to_string();
        let ran = run(world.user.command().args([
            "--json",
            "execute",
            "rye/file-system/write",
            "--params",
            &params,
        ]));
        assert!(ran.exit != 0, "{path}: {ran}");
        assert!(path == ".git/index" || !world.project().join(path).exists(), "{path}");
    }
    assert!(world.git("project", &["ls-files"]).contains(".gitignore"));
}

#[test]
fn inner_projects_keep_their_files() {
    let world = GitUser::with_repository();
    let inner = world.project().join("inner");
    fs::create_dir_all(inner.join(".ai/tools")).expect("folders");
    world.user.ok(["trust", "inner"]);
    let names = [
        ".ai/config/agent/x.yaml",
        ".ai/lockfiles/x.json",
        ".ai/bundles/x/y",
        ".ai/threads/x",
        "lockfiles/x",
        ".mcp.json",
        ".claude/settings.json",
        ".envrc",
        ".git/config",
    ];
    for name in names {
        let (path, folder) = (format!("inner/{name}"), format!("inner/{name}/.."));
        world.bash(&format!(
            "(mkdir -p {folder}; mkdir -p $(dirname {path}); echo x > {path}) 2>/dev/null; true"
        ));
        assert!(!world.project().join(&path).exists(), "{name}");
    }
    let ran = world.bash("echo x > inner/file && mkdir -p inner/.ai/tools/t && cat inner/file");
    assert_eq!(ran.exit, 0, "{ran}");
    // One that git knows is protected as far as it exists.
    let tracked = world.project().join("tracked");
    fs::create_dir_all(tracked.join(".ai/config")).expect("folders");
    fs::write(tracked.join(".ai/config/c.yaml"), "a: 1\n").expect("a file");
    fs::write(tracked.join(".mcp.json"), "{}").expect("a file");
    world.git("project", &["add", "-f", "tracked"]);
    for name in [".ai/config/c.yaml", ".mcp.json"] {
        let before = fs::read(tracked.join(name)).expect("a file");
        world.bash(&format!(
            "(echo x >> tracked/{name}; rm -rf tracked/{name}; mv tracked moved) 2>/dev/null; true"
        ));
        assert_eq!(fs::read(tracked.join(name)).expect("a file"), before, "{name}");
    }
}

#[test]
fn repository_around_the_project_is_regarded() {
    let world = GitUser::new();
    let other = world.other();
    let part = world.root().join("big/part");
    fs::create_dir_all(&part).expect("folders");
    world.git("big", &["init", "-q", "."]);
    run(world.user.command().current_dir(&part).args(["init"]));
    world.git("big/part", &["clone", "-q", &other, "emb"]);
    world.git("big/part", &["add", "emb"]);
    let link = format!("160000,{},part/made", "1".repeat(40));
    world.git("big", &["update-index", "--add", "--cacheinfo", &link]);
    let evil = world.evil();
    let commands = [
        format!("printf '{evil}' > emb/.git/config"),
        format!("rm -rf emb; {}", nested(&world, "emb")),
        nested(&world, "made"),
    ];
    for command in &commands {
        let params = json!({"command": format!("({command}) >/dev/null 2>&1; true")}).to_string();
        let ran = run(world
            .user
            .command()
            .current_dir(&part)
            .args(["--json", "execute", "rye/bash", "--params", &params]));
        assert!(!world.runs_program("big"), "{command}: {ran}");
    }
    // The tool has broken the other one, which git says before it looks at this one.
    fs::remove_dir_all(part.join("emb")).expect("removed");
    assert!(!world.runs_program("big"));
    fs::rename(part.join("made/.git.refused-by-rye"), part.join("made/.git")).expect("moved back");
    assert!(world.runs_program("big"));
}

#[test]
fn run_ends_when_it_plants_a_repository() {
    // Named first and made afterwards, or made first: while the run lasts, an editor's `git status` must find nothing.
    for order in [true, false] {
        let world = GitUser::with_repository();
        let (name, make) = (gitlink("sub"), nested(&world, "other"));
        let planting = match order {
            true => format!("{name} && {make} && mv other sub"),
            false => format!("{make} && mv other sub && {name}"),
        };
        let cleaning = "rm -rf sub && git update-index --force-remove sub";
        let ran = world.bash(&format!("{planting} && sleep 100 && {cleaning}"));
        ran.error(5, "RYE0806");
        assert!(world.project().join("sub/.git.refused-by-rye").is_dir(), "{order}: {ran}");
        assert!(!world.runs_program("project"), "{order}");
    }
}

#[test]
fn closed_folder_does_not_keep_a_repository() {
    for close in ["chmod 555 sub", "chmod 000 sub"] {
        let world = GitUser::with_repository();
        let ran = world.bash(&format!("{} && {close} && {}", nested(&world, "sub"), gitlink("sub")));
        ran.error(5, "RYE0806");
        assert!(!world.project().join("sub/.git").exists(), "{close}: {ran}");
        assert!(!world.runs_program("project"), "{close}");
    }
}

#[test]
fn start_files_in_linked_worktrees_are_protected() {
    let world = GitUser::with_repository();
    world.git("project", &["worktree", "add", "-q", ".worktrees/one"]);
    let ran = world.bash(
        "cd .worktrees/one; echo {} > .mcp.json; mkdir -p .vscode && echo {} > .vscode/tasks.json; true",
    );
    assert_eq!(ran.exit, 0, "{ran}");
    let worktree = world.project().join(".worktrees/one");
    assert!(!worktree.join(".mcp.json").exists() && !worktree.join(".vscode").exists(), "{ran}");
}
