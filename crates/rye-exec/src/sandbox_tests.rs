//! What settings and tools may and may not say of the sandbox.

use serde_json::json;

use super::*;

struct World {
    _folder: tempfile::TempDir,
    root: PathBuf,
}

impl World {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path().canonicalize().expect("a real path");
        for path in
            ["home/.ai/config/keys/signing", "home/.ssh", "home/data", "project/.ai/config", "project/out"]
        {
            lillux::file::create_dirs(&root.join(path), false).expect("folders");
        }
        for path in ["cache/run", "outside"] {
            lillux::file::create_dirs(&root.join(path), false).expect("folders");
        }
        Self { _folder: folder, root }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    fn paths(&self) -> SandboxPaths {
        SandboxPaths {
            project: self.at("project"),
            project_ai: self.at("project/.ai"),
            user_ai: self.at("home/.ai"),
            home: self.at("home"),
            approved_projects: Vec::new(),
            homes: HomeDirs { own: vec![self.at("home")], all: vec![self.at("home")] },
            program_folders: vec![
                self.at("home/.nvm/v20/bin"),
                self.at("project/.venv/bin"),
                "/usr/bin".into(),
            ],
            cache: self.at("cache"),
            key_files: vec![self.at("home/.ai/config/keys/signing")],
            temporary: Some(self.at("cache/run")),
            required: vec![self.at("home/.ai/tools")],
        }
    }

    fn plan(&self, settings: &Value, declared: Option<&Value>) -> Result<SandboxPlan, SandboxError> {
        let variables = BTreeMap::from([
            ("SSH_AUTH_SOCK".to_owned(), "/run/agent".to_owned()),
            ("ODD".to_owned(), "relative".to_owned()),
        ]);
        plan(&SandboxPolicy::from_settings(settings)?, declared, &self.paths(), &variables)
    }

    fn confinement(&self, settings: &Value, declared: &Value) -> Confinement {
        confinement_of(&self.plan(settings, Some(declared)).expect("a plan")).expect("confined")
    }
}

fn confinement_of(plan: &SandboxPlan) -> Option<Confinement> {
    plan.confine().expect("confined").map(|confined| confined.confinement)
}

fn settings() -> Value {
    json!({"network": true, "hidden": ["~/.ssh", "/etc/shadow"],
           "allow_sockets": ["$SSH_AUTH_SOCK", "$UNSET", "$ODD"], "home_read": ["~/.gitconfig"],
           "protected": [".git/config", ".envrc", ".vscode/"], "system_read": ["/usr"], "on_missing": "warn"})
}

#[test]
fn standard_level_opens_project_hides_keys() {
    let world = World::new();
    for path in ["home/.gitconfig", "home/.ai/tools", "home/.ai/directives", "home/.nvm/v20/bin"] {
        lillux::file::create_dirs(&world.at(path), false).expect("folders");
    }
    let plan = world.plan(&settings(), None).expect("a plan");
    assert_eq!(plan.level, SandboxLevel::Standard);
    let confinement = confinement_of(&plan).expect("confined");
    let expected = Confinement {
        read: ReadAccess::Everything,
        write: vec![world.at("cache/run"), world.at("project")],
        read_only: vec![
            world.at("project/.ai/threads"),
            world.at("project/.ai/config"),
            world.at("project/.ai/lockfiles"),
            world.at("project/.ai/bundles"),
        ],
        placeholders: vec![
            world.at("project/.git"),
            world.at("project/.envrc"),
            world.at("project/.vscode"),
            world.at("project/.ai/bundles.toml"),
            world.at("project/.ai/bundles.lock"),
            world.at("project/lockfiles"),
        ],
        hidden: vec![
            world.at("home/.ssh"),
            PathBuf::from("/etc/shadow"),
            world.at("home/.ai/config/keys/signing"),
        ],
        // The folder of the run's temporary folder has those of other runs.
        homes: vec![world.at("home"), world.at("cache")],
        visible: vec![
            world.at("home/.gitconfig"),
            world.at("home/.ai/tools"),
            // What does not exist, `knowledge` here, is left out.
            world.at("home/.ai/directives"),
            world.at("project"),
            world.at("home/.nvm/v20/bin"),
            world.at("home/.nvm/v20"),
        ],
        sockets: SocketAccess {
            own: vec![world.at("cache/run")],
            allowed: vec![PathBuf::from("/run/agent")],
        },
        network: NetworkAccess::Open,
        on_missing: MissingRulePolicy::Warn,
        ..Confinement::new()
    };
    assert_eq!(plan.access.write, expected.write);
    assert_eq!((&plan.access.hidden, plan.access.network), (&expected.hidden, true));
    assert_eq!(confinement, expected);
    assert!(!world.at("project/.envrc").exists(), "placeholders are gone with the run");
    assert_eq!(plan.limits, ProcessLimits::default());
}

#[test]
fn strict_level_opens_only_declared_paths() {
    let world = World::new();
    let declared = json!({"level": "strict", "read": ["~/data"], "write": ["{project_path}/out"]});
    let confinement = world.confinement(&settings(), &declared);
    assert_eq!(
        confinement.read,
        ReadAccess::Only(vec![PathBuf::from("/usr"), world.at("home/.ai/tools"), world.at("home/data")])
    );
    assert_eq!(confinement.write, [world.at("cache/run"), world.at("project/out")]);
    assert_eq!(confinement.network, NetworkAccess::Closed);
    let declared = json!({"level": "strict", "network": true});
    assert_eq!(world.confinement(&settings(), &declared).network, NetworkAccess::Open);
}

#[test]
fn tool_can_only_tighten_the_policy() {
    let world = World::new();
    let closed =
        json!({"level": "strict", "network": false, "limits": {"processes": 10, "memory_megabytes": 5}});
    let declared =
        json!({"level": "off", "network": true, "limits": {"processes": 99, "memory_megabytes": 9}});
    let plan = world.plan(&closed, Some(&declared)).expect("a plan");
    let confinement = confinement_of(&plan).expect("confined");
    assert_eq!((plan.level, confinement.network), (SandboxLevel::Strict, NetworkAccess::Closed));
    assert_eq!((plan.limits.processes, plan.limits.memory_bytes), (10, Some(5 << 20)));
    let tight = world.plan(&settings(), Some(&json!({"limits": {"processes": 3, "file_megabytes": 1}})));
    let tight = tight.expect("a plan").limits;
    assert_eq!((tight.processes, tight.file_bytes), (3, 1 << 20));
}

#[test]
fn only_settings_turn_the_sandbox_off() {
    let world = World::new();
    let off = json!({"level": "off"});
    assert!(confinement_of(&world.plan(&off, None).expect("a plan")).is_none());
    let strict = world.plan(&off, Some(&json!({"level": "strict"}))).expect("a plan");
    assert!(confinement_of(&strict).is_some());
}

#[test]
fn hidden_and_read_only_paths_are_denied() {
    let world = World::new();
    for (field, path) in [
        ("write", "~/.ssh"),
        ("write", "~/.ssh/config"),
        ("write", "~/.ai"),
        ("write", "{project_path}/.ai/config/x"),
        ("write", "{project_path}/.ai/threads/registry.db"),
        ("write", "{project_path}/../outside"),
        ("write", "{project_path}x"),
        ("write", "relative"),
        ("write", "~root/x"),
        ("write", "/a/../b"),
        ("write", "$HOME/x"),
        ("write", ""),
        ("read", "~/.ssh/key"),
        ("read", "~/.ai/config/keys/signing"),
        ("read", "~/.ai/config/keys/signing/thread_secret"),
    ] {
        let declared = json!({"level": "strict", field: [path]});
        assert!(
            matches!(world.plan(&settings(), Some(&declared)), Err(SandboxError::Denied { .. })),
            "{field} {path}"
        );
    }
}

#[test]
fn declared_paths_cannot_escape_through_links() {
    let world = World::new();
    std::os::unix::fs::symlink(world.at("outside"), world.at("project/link")).expect("a link");
    std::os::unix::fs::symlink(world.at("home/.ssh"), world.at("home/alias")).expect("a link");
    for path in ["{project_path}/link", "{project_path}/link/deeper", "~/alias"] {
        let declared = json!({"write": [path]});
        assert!(
            matches!(world.plan(&settings(), Some(&declared)), Err(SandboxError::Denied { .. })),
            "{path}"
        );
    }
}

#[test]
fn invalid_settings_and_declarations_are_refused() {
    let world = World::new();
    for settings in
        [json!({"levle": "off"}), json!({"level": "loose"}), json!({"hidden": ["a/b"]}), json!([])]
    {
        assert!(matches!(world.plan(&settings, None), Err(SandboxError::InvalidPolicy { .. })), "{settings}");
    }
    for declared in
        [json!({"hidden": []}), json!({"level": 1}), json!({"limits": {"processes": 0}}), json!("off")]
    {
        let refused = world.plan(&settings(), Some(&declared));
        assert!(matches!(refused, Err(SandboxError::InvalidDeclaration { .. })), "{declared}");
    }
    assert!(matches!(
        world.plan(&json!({"limits": {"open_files": 1}}), None),
        Err(SandboxError::InvalidPolicy { .. })
    ));
}

#[test]
fn empty_settings_refuse_missing_mechanisms() {
    let world = World::new();
    let plan = confinement_of(&world.plan(&json!({}), None).expect("a plan")).expect("confined");
    assert_eq!((plan.on_missing, plan.network), (MissingRulePolicy::Refuse, NetworkAccess::Closed));
}

#[test]
fn protected_names_need_an_explicit_declaration() {
    let world = World::new();
    let protected = |declared: &Value| {
        let confinement = world.confinement(&settings(), declared);
        confinement.placeholders.contains(&world.at("project/.vscode"))
    };
    assert!(protected(&json!({})));
    assert!(protected(&json!({"write": ["{project_path}"]})));
    assert!(!protected(&json!({"write": ["{project_path}/.vscode"]})));
    let denied = world.plan(&settings(), Some(&json!({"write": ["{project_path}/.ai/config"]})));
    assert!(matches!(denied, Err(SandboxError::Denied { .. })));
}

#[test]
fn a_home_as_project_is_not_writable() {
    let world = World::new();
    for folder in ["home", "", "home/.."] {
        let paths =
            SandboxPaths { project: world.at(folder), project_ai: world.at("home/.ai"), ..world.paths() };
        let policy = SandboxPolicy::from_settings(&settings()).expect("a policy");
        let plan = plan(&policy, None, &paths, &BTreeMap::new()).expect("a plan");
        assert_eq!(plan.access.write, [world.at("cache/run")], "{folder}");
        assert!(!plan.visible.contains(&world.at("home")), "{folder}");
    }
}

#[test]
fn old_socket_settings_are_refused_by_name() {
    let refused = SandboxPolicy::from_settings(&json!({"sockets": ["/run/docker.sock"]}));
    assert!(
        matches!(refused, Err(SandboxError::InvalidPolicy { reason }) if reason.contains("allow_sockets"))
    );
}

#[test]
fn strict_level_refuses_missing_mechanisms() {
    let confinement = World::new().confinement(&settings(), &json!({"level": "strict"}));
    assert_eq!(confinement.on_missing, MissingRulePolicy::Refuse);
}

#[test]
fn denied_path_is_explained_with_a_fix() {
    let world = World::new();
    lillux::file::write_atomic(&world.at("home/data/token"), b"x", lillux::file::FileMode::Private)
        .expect("a file");
    let plan = world.plan(&settings(), None).expect("a plan");
    let home = world.at("home/data/token").display().to_string();
    let lines = plan.explain(&format!(
        "error: could not lock config file .git/config: busy\ncat: {home}: No such file or directory\n\
         cat: {home}: again\ncat: /etc/nothing: no; ~/.gitconfig src/a.rs",
    ));
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(
        lines[0].contains("`.git/config` is protected") && lines[0].contains("{project_path}/.git/config")
    );
    assert!(lines[1].contains(&home) && lines[1].contains("home_read"));
}

#[test]
fn path_outside_the_project_has_a_plain_hint() {
    let world = World::new();
    let write = |path: &str, text: &str| {
        lillux::file::create_dirs(world.at(path).parent().expect("a folder"), false).expect("folders");
        lillux::file::write_atomic(&world.at(path), text.as_bytes(), lillux::file::FileMode::Private)
            .expect("a file");
    };
    let root = world.root.display().to_string();
    lillux::file::create_dirs(&world.at("main/.git/objects"), false).expect("folders");
    write("main/.git/HEAD", "ref: refs/heads/main\n");
    write("main/.git/config", "");
    write("main/.git/worktrees/w/commondir", "../..\n");
    write("main/.git/worktrees/w/gitdir", &format!("{root}/project/.git\n"));
    write("project/.git", &format!("gitdir: {root}/main/.git/worktrees/w\n"));
    let plan = world.plan(&settings(), None).expect("a plan");
    let lines = plan.explain(&format!("error: could not lock config file {root}/main/.git/config"));
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("/main/.git/config` is protected") && !lines[0].contains("{project_path}"));
}

#[test]
fn link_to_folders_of_settings_is_denied() {
    let world = World::new();
    for folder in ["project/.git/hooks", "project/.ai/tools", "project/sub/.git"] {
        lillux::file::create_dirs(&world.at(folder), false).expect("folders");
    }
    let project = world.at("project").display().to_string();
    for (target, is_open) in [
        (".git", false),
        (".git/objects", false),
        (".ai", false),
        (".ai/tools", false),
        ("sub/.git", false),
        (".", false),
        ("out", true),
        ("sub", true),
    ] {
        let link = world.at("project/build");
        lillux::file::symlink_if_absent(&world.at("project").join(target), &link).expect("a link");
        for text in ["{project_path}/build".to_owned(), format!("{project}/build")] {
            let plan = world.plan(&settings(), Some(&json!({"level": "strict", "write": [text]})));
            assert_eq!(plan.is_ok(), is_open, "{target}: {plan:?}");
        }
        lillux::file::remove(&link).expect("removed");
    }
    // By its own name a signed tool may ask for it.
    world
        .plan(&settings(), Some(&json!({"level": "strict", "write": ["{project_path}/.ai/tools"]})))
        .expect("a plan");
}

#[test]
fn link_to_protected_name_is_denied() {
    let world = World::new();
    lillux::file::create_dirs(&world.at("project/.git/hooks"), false).expect("folders");
    lillux::file::symlink_if_absent(&world.at("project/.vscode"), &world.at("project/build"))
        .expect("a link");
    lillux::file::create_dirs(&world.at("project/.vscode"), false).expect("a folder");
    let denied = world.plan(&settings(), Some(&json!({"write": ["{project_path}/build"]})));
    assert!(matches!(denied, Err(SandboxError::Denied { .. })), "{denied:?}");
}

#[test]
fn project_limits_follow_the_settings() {
    let world = World::new();
    let settings = json!({
        "hidden": ["~/.ssh", world.at("project/secrets").display().to_string()],
        "protected": [".vscode/", ".git/hooks/", ".envrc"],
        "read_only": ["{project_path}/vendor/", world.at("project/docs/law").display().to_string()],
    });
    let policy = SandboxPolicy::from_settings(&settings).expect("a policy");
    let limits = ProjectLimits::new(&policy, &world.paths(), &BTreeMap::new()).expect("limits");
    for (path, expected) in [
        ("secrets/key", Some(ProjectLimit::Hidden)),
        ("SECRETS", Some(ProjectLimit::Hidden)),
        (".vscode/tasks.json", Some(ProjectLimit::Protected)),
        ("inner/.VSCode/tasks.json", Some(ProjectLimit::Protected)),
        (".vs\u{200d}code", Some(ProjectLimit::Protected)),
        ("inner/.envrc", Some(ProjectLimit::Protected)),
        (".git", Some(ProjectLimit::Protected)),
        ("vendor/a.c", Some(ProjectLimit::ReadOnly)),
        ("docs", Some(ProjectLimit::ReadOnly)),
        ("docs/law/1", Some(ProjectLimit::ReadOnly)),
        (".ai/config/x.yaml", Some(ProjectLimit::ReadOnly)),
        ("lockfiles/x", Some(ProjectLimit::ReadOnly)),
        ("docs/page", None),
        (".vscode-notes/x", None),
        ("hooks/x", None),
        ("src/a.rs", None),
    ] {
        assert_eq!(limits.change_limit(path), expected, "{path}");
    }
    assert!(limits.is_hidden("secrets/key") && !limits.is_hidden("docs/law/1"));
    // A project in a hidden folder is hidden as a whole.
    let settings = json!({"hidden": [world.root.display().to_string()]});
    let policy = SandboxPolicy::from_settings(&settings).expect("a policy");
    let limits = ProjectLimits::new(&policy, &world.paths(), &BTreeMap::new()).expect("limits");
    assert!(limits.is_hidden("src/a.rs"));
}
