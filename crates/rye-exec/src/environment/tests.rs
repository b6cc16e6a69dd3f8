//! The environment against hostile projects, unapproved ones, and elements that ask for too much.

use std::cell::RefCell;
use std::os::unix::fs::symlink;
use std::sync::LazyLock;

use lillux::file;
use proptest::prelude::*;
use rye_test::TestContext;
use serde_json::json;

use super::*;

mod commands;
mod names;
mod programs;

fn settings() -> Value {
    rye_item::yaml::parse(include_str!("../../../../bundles/core/.ai/config/execution/environment.yaml"))
        .expect("YAML")
        .value
}

fn policy() -> EnvironmentPolicy {
    static POLICY: LazyLock<EnvironmentPolicy> =
        LazyLock::new(|| EnvironmentPolicy::from_settings(&settings()).expect("a policy"));
    POLICY.clone()
}

fn policy_passing(names: &[&str]) -> EnvironmentPolicy {
    let mut settings = settings();
    settings["pass"] = json!(names);
    EnvironmentPolicy::from_settings(&settings).expect("a policy")
}

/// Looks on the path, and answers every command with one text.
#[derive(Default)]
struct FakeFinder {
    command_output: Option<String>,
    is_dry_run: bool,
    /// A program of the project that the user has not recorded.
    not_recorded: Option<PathBuf>,
    commands: RefCell<Vec<Vec<String>>>,
    /// The variables of the last command.
    variables: RefCell<BTreeMap<String, String>>,
}

impl ProgramFinder for FakeFinder {
    fn check_recorded(&self, program: &Path) -> Result<(), String> {
        match self.not_recorded.as_ref().is_some_and(|known| *known == program) {
            true => Err(format!("`{}` is not used: it is not recorded", program.display())),
            false => Ok(()),
        }
    }

    fn find(&self, name: &str, path: &str) -> Option<PathBuf> {
        find_on_path(name, path)
    }

    fn run_command(&self, command: &[String], variables: &BTreeMap<String, String>) -> CommandOutput {
        if self.is_dry_run {
            return CommandOutput::DryRun;
        }
        self.commands.borrow_mut().push(command.to_vec());
        *self.variables.borrow_mut() = variables.clone();
        match &self.command_output {
            Some(answer) => CommandOutput::Printed(answer.clone()),
            None => CommandOutput::Failed("exit code 1".to_owned()),
        }
    }
}

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn program(world: &TestContext, relative: &str) -> PathBuf {
    let path = world.write(relative, "#!/bin/sh\n");
    file::set_mode(&path, 0o755).expect("mode");
    path
}

/// A run of `tool`, an item of the project or not, upon one runtime.
struct TestRun<'a> {
    process: BTreeMap<String, String>,
    project: Option<PathBuf>,
    is_approved: bool,
    is_project_tool: bool,
    uses_project_programs: bool,
    policy: EnvironmentPolicy,
    runtime: Value,
    tool: Value,
    programs: &'a FakeFinder,
}

impl<'a> TestRun<'a> {
    fn new(world: &TestContext, programs: &'a FakeFinder) -> Self {
        Self {
            process: BTreeMap::new(),
            project: Some(world.project()),
            is_approved: true,
            is_project_tool: true,
            uses_project_programs: true,
            policy: policy(),
            runtime: Value::Null,
            tool: Value::Null,
            programs,
        }
    }

    fn resolve(&self) -> Result<Environment, EnvironmentError> {
        let path_text = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
        let project_path = path_text(&self.project).unwrap_or_default();
        let context =
            TemplateContext { anchor_path: project_path.clone(), project_path, ..TemplateContext::default() };
        let inputs = EnvironmentInputs {
            host_variables: &self.process,
            project: self.project.as_deref(),
            user_space: Path::new("/nonexistent/user"),
            is_project_approved: self.is_approved,
            policy: &self.policy,
            allows_project_programs: self.uses_project_programs,
        };
        let contributions = [
            Contribution { item_id: "primitive", is_project: false, env_config: None },
            Contribution { item_id: "runtime", is_project: false, env_config: Some(&self.runtime) },
            Contribution { item_id: "tool", is_project: self.is_project_tool, env_config: Some(&self.tool) },
        ];
        resolve(&contributions, &context, &inputs, self.programs)
    }

    fn environment(&self) -> Environment {
        self.resolve().expect("an environment")
    }
}

#[test]
fn only_allowed_variables_are_inherited() {
    let (world, programs) = (TestContext::new(), FakeFinder::default());
    let allowed = map(&[
        ("HOME", "/home/u"),
        ("LC_ALL", "C"),
        ("PATH", "/usr/bin"),
        ("XDG_DATA_HOME", "/d"),
        ("http_proxy", "p"),
    ]);
    let mut process = map(&[
        ("AWS_SECRET_ACCESS_KEY", "s"),
        ("BASH_ENV", "/x"),
        ("GITHUB_TOKEN", "t"),
        ("LC_API_KEY", "k"),
        ("LD_PRELOAD", "/evil.so"),
        ("PYTHONPATH", "/x"),
        ("RYE_PYTHON", "/x"),
        ("SSH_AUTH_SOCK", "/s"),
        ("UNKNOWN", "u"),
        ("XDG_RUNTIME_DIR", "/run"),
    ]);
    process.extend(allowed.clone());
    let run = TestRun { process, ..TestRun::new(&world, &programs) };
    assert_eq!(run.environment(), Environment { variables: allowed, ..Environment::default() });
}

#[test]
fn user_settings_pass_variables_by_name() {
    let (world, programs) = (TestContext::new(), FakeFinder::default());
    let process = map(&[("GITHUB_TOKEN", "t"), ("MY_TOKEN", "m"), ("MY_X", "x"), ("OTHER", "o")]);
    let policy = policy_passing(&["GITHUB_TOKEN", "MY_*"]);
    let run = TestRun { process, policy, ..TestRun::new(&world, &programs) };
    assert_eq!(run.environment().variables, map(&[("GITHUB_TOKEN", "t"), ("MY_X", "x")]));
}

#[test]
fn element_gets_only_the_secrets_it_names() {
    let (world, programs) = (TestContext::new(), FakeFinder::default());
    world.write("project/.env", "DB_PASSWORD=from-file\nGITHUB_TOKEN=weak\nAPP_PLAIN=p\nODD=o\n");
    let process = map(&[("GITHUB_TOKEN", "t"), ("OPENAI_API_KEY", "k"), ("AWS_REGION", "r")]);
    let tool = json!({"pass": ["GITHUB_TOKEN", "ABSENT"], "secrets": ["DB_PASSWORD"], "env": {"KEY": "${OPENAI_API_KEY}"}});
    let environment = TestRun { process, tool, ..TestRun::new(&world, &programs) }.environment();
    assert_eq!(
        environment.variables,
        map(&[("APP_PLAIN", "p"), ("DB_PASSWORD", "from-file"), ("GITHUB_TOKEN", "t"), ("KEY", "k")])
    );
    let keys = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    assert_eq!(
        environment.contributions,
        [
            (".env".to_owned(), keys(&["APP_PLAIN"])),
            ("tool".to_owned(), keys(&["DB_PASSWORD", "GITHUB_TOKEN", "KEY"]))
        ]
    );
}

#[test]
fn tool_overrides_runtime_overrides_process_overrides_dotenv() {
    let (world, programs) = (TestContext::new(), FakeFinder::default());
    world.write("project/.env", "A=file\nB=file\nC=file\nD=file\n");
    let process = map(&[("A", "process"), ("B", "process"), ("C", "process"), ("LANG", "process")]);
    let run = TestRun {
        process,
        policy: policy_passing(&["A", "B", "C", "D"]),
        runtime: json!({"env": {"A": "runtime", "B": "runtime", "LANG": "runtime", "SAW": "${B}${D}"}}),
        tool: json!({"env": {"A": "tool", "ALSO": "${A}", "NUMBER": 1, "FLAG": true, "LANG": null}}),
        ..TestRun::new(&world, &programs)
    };
    assert_eq!(
        run.environment().variables,
        map(&[
            ("A", "tool"),
            ("ALSO", "tool"),
            ("B", "runtime"),
            ("C", "process"),
            ("D", "file"),
            ("FLAG", "true"),
            ("NUMBER", "1"),
            ("SAW", "runtimefile"),
        ])
    );
}

#[test]
fn a_reference_prefers_the_process_to_dotenv() {
    let (world, programs) = (TestContext::new(), FakeFinder::default());
    world.write("project/.env", "APP_FOO=file\nODD=odd\n");
    let tool = json!({"env": {"SAW": "${APP_FOO}", "NAMED": "${ODD}", "HOME_OR": "${HOME:-/nowhere}", "SET": "${CARGO_HOME:-${HOME}/x}"}});
    let process = map(&[("APP_FOO", "process"), ("HOME", "/home/u")]);
    let variables =
        TestRun { process, tool: tool.clone(), ..TestRun::new(&world, &programs) }.environment().variables;
    let expected = [
        ("APP_FOO", "file"),
        ("HOME", "/home/u"),
        ("HOME_OR", "/home/u"),
        ("NAMED", "odd"),
        ("SAW", "process"),
        ("SET", "/home/u/x"),
    ];
    assert_eq!(variables, map(&expected));
    let variables = TestRun { tool, ..TestRun::new(&world, &programs) }.environment().variables;
    assert_eq!(
        variables,
        map(&[
            ("APP_FOO", "file"),
            ("HOME_OR", "/nowhere"),
            ("NAMED", "odd"),
            ("SAW", "file"),
            ("SET", "/x")
        ])
    );
}

#[test]
fn reserved_or_malformed_variables_are_refused() {
    let (world, programs) = (TestContext::new(), FakeFinder::default());
    let reserved = |name: &str| EnvironmentError::Reserved { item: "tool".to_owned(), name: name.to_owned() };
    let name = |name: &str| EnvironmentError::InvalidName { item: "tool".to_owned(), name: name.to_owned() };
    let shape = |key: &str, expected| invalid_value("tool", key, expected);
    let cases = [
        (json!({"env": {"LD_PRELOAD": "/x"}}), reserved("LD_PRELOAD")),
        (json!({"env": {"ld_preload": "/x"}}), reserved("ld_preload")),
        (json!({"env": {"RYE_PYTHON": "/x"}}), reserved("RYE_PYTHON")),
        (json!({"env": {"USER_SPACE": "/x"}}), reserved("USER_SPACE")),
        (json!({"pass": ["DYLD_INSERT_LIBRARIES"]}), reserved("DYLD_INSERT_LIBRARIES")),
        (json!({"secrets": ["RYE_KEY"]}), reserved("RYE_KEY")),
        (json!({"env": {"A=B": "x"}}), name("A=B")),
        (json!({"env": {"": "x"}}), name("")),
        (json!({"env": {"1A": "x"}}), name("1A")),
        (json!({"env": {"BASH_FUNC_x%%": "() { evil; }"}}), name("BASH_FUNC_x%%")),
        (json!({"pass": ["*"]}), name("*")),
        (json!({"env": {"A": []}}), shape("env_config.env.A", "a text, a number or a boolean")),
        (json!({"env": []}), shape("env_config.env", "a map of names to values")),
        (json!({"pass": "A"}), shape("env_config.pass", "a list of variable names")),
        (json!({"interpreter": "python"}), shape("env_config.interpreter", "a map")),
        (json!([]), shape("env_config", "a map")),
        (
            json!({"interpreter": {"type": "local_binary", "binary": "x", "var": "LD_PRELOAD"}}),
            reserved("LD_PRELOAD"),
        ),
        (json!({"interpreter": {"type": "system_binary", "binary": "x", "var": "PATH"}}), reserved("PATH")),
        (json!({"interpreter": {"type": "system_binary", "binary": "x", "var": "A B"}}), name("A B")),
        (
            json!({"interpreter": {"type": "magic", "var": "RYE_X"}}),
            EnvironmentError::UnknownInterpreter { item: "tool".to_owned(), kind: "magic".to_owned() },
        ),
    ];
    for (tool, expected) in cases {
        let run = TestRun { tool: tool.clone(), ..TestRun::new(&world, &programs) };
        assert_eq!(run.resolve(), Err(expected), "{tool}");
    }
    let tool = json!({"env": {"A": "zero\0byte"}});
    assert!(matches!(
        TestRun { tool, ..TestRun::new(&world, &programs) }.resolve(),
        Err(EnvironmentError::InvalidVariable { .. })
    ));
    let doubling: Map<String, Value> = (0..40)
        .map(|index| (format!("A{index}"), json!(format!("${{A{0}:-x}}${{A{0}:-x}}", index.max(1) - 1))))
        .collect();
    let run = TestRun { tool: json!({"env": doubling}), ..TestRun::new(&world, &programs) };
    assert!(matches!(
        run.resolve(),
        Err(EnvironmentError::InvalidVariable { reason: "it is longer than 128 KiB", .. })
    ));
}

#[test]
fn unapproved_projects_dotenv_is_not_read() {
    let (world, programs) = (TestContext::new(), FakeFinder::default());
    world.write("project/.env", "PLAIN=p\nAPI_KEY=k\n");
    let run = TestRun {
        is_approved: false,
        tool: json!({"pass": ["PLAIN"], "secrets": ["API_KEY"], "env": {"SAW": "${PLAIN}${API_KEY}"}}),
        ..TestRun::new(&world, &programs)
    };
    let environment = run.environment();
    assert_eq!(environment.variables, map(&[("SAW", "")]));
    let notice = "the project's `.env` is not read: the project is not approved (rye join)";
    assert_eq!(environment.notices, [notice]);
}

#[test]
fn unusable_dotenv_is_ignored() {
    let (world, programs) = (TestContext::new(), FakeFinder::default());
    let dotenv = world.project().join(".env");
    let notices = || TestRun::new(&world, &programs).environment();
    let ignored = |reason: &str| Environment {
        notices: vec![format!("the project's `.env` is ignored: {reason}")],
        ..Environment::default()
    };
    symlink(world.write("secret", "A=1\n"), &dotenv).expect("link");
    assert_eq!(notices(), ignored("it is a link that leaves the project"));
    file::remove(&dotenv).expect("removed");
    file::create_dirs(&dotenv, false).expect("folder");
    assert_eq!(notices(), ignored("it is not a regular file"));
    file::remove_tree(&dotenv).expect("removed");
    world.write("project/.env", format!("A={}\n", "x".repeat(64 * 1024)));
    assert_eq!(notices(), ignored("it is larger than 64 KiB"));
    world.write("project/.env", b"A=\xff\n");
    assert_eq!(notices(), ignored("it is not UTF-8"));
}

fn python() -> Value {
    json!({"interpreter": {
        "type": "local_binary", "binary": "python", "candidates": ["python3"],
        "search_paths": [".venv/bin", "env/bin"], "search_roots": ["{project_path}/sub"],
        "var": "RYE_PYTHON", "fallback": "python3",
    }, "env": {"PROJECT_VENV_PYTHON": "${RYE_PYTHON}"}})
}

#[test]
fn interpreter_search_order_is_root_folder_name() {
    let (world, programs) = (TestContext::new(), FakeFinder::default());
    let bin = program(&world, "bin/python3");
    let path = world.path().join("bin").display().to_string();
    let run =
        || TestRun { process: map(&[("PATH", &path)]), runtime: python(), ..TestRun::new(&world, &programs) };
    let found = || run().environment().variables["PROJECT_VENV_PYTHON"].clone();
    assert_eq!(found(), bin.display().to_string());
    let order = [
        "project/env/bin/python3",
        "project/env/bin/python",
        "project/.venv/bin/python3",
        "project/.venv/bin/python",
        "project/sub/env/bin/python3",
        "project/sub/.venv/bin/python",
    ];
    for relative in order {
        let path = program(&world, relative);
        assert_eq!(found(), path.display().to_string());
    }
    assert_eq!(programs.commands.borrow().len(), 0);
}

#[test]
fn files_that_cannot_run_are_skipped() {
    let (world, programs) = (TestContext::new(), FakeFinder::default());
    world.write("project/.venv/bin/python", "not executable");
    file::create_dirs(&world.project().join(".venv/bin/python3"), false).expect("folder");
    let environment = TestRun { runtime: python(), ..TestRun::new(&world, &programs) }.environment();
    assert_eq!(environment.variables, map(&[("PROJECT_VENV_PYTHON", "")]));
    assert_eq!(
        environment.notices,
        ["no interpreter for `RYE_PYTHON` of `runtime` was found: install `python3`"]
    );
    assert_eq!(environment.interpreters, [] as [PathBuf; 0]);
    let missing = MissingInterpreter {
        element: "runtime".to_owned(),
        variable: "RYE_PYTHON".to_owned(),
        program: "`python3`".to_owned(),
        places: "`.venv/bin`, `env/bin` of the project, then an empty PATH".to_owned(),
        unused: Vec::new(),
    };
    assert_eq!(environment.missing_interpreters, [missing]);
}

#[test]
fn venv_link_and_target_are_both_listed() {
    let (world, programs) = (TestContext::new(), FakeFinder::default());
    let real = program(&world, "opt/python3.14");
    let link = world.project().join(".venv/bin/python");
    file::create_dirs(link.parent().expect("folder"), false).expect("folder");
    symlink(&real, &link).expect("link");
    let environment = TestRun { runtime: python(), ..TestRun::new(&world, &programs) }.environment();
    assert_eq!(environment.variables["RYE_PYTHON"], link.display().to_string());
    assert_eq!(environment.interpreters, [link, real]);
}

#[test]
fn project_interpreter_needs_approval_and_own_tool() {
    let (world, programs) = (TestContext::new(), FakeFinder::default());
    let local = program(&world, "project/.venv/bin/python");
    let system = program(&world, "bin/python3");
    // The user's shell may have the project's own folders on its path.
    program(&world, "project/.venv/bin/python3");
    let path = format!(
        "{}:bin::{}",
        world.project().join(".venv/bin").display(),
        world.path().join("bin").display()
    );
    for (is_approved, is_project_tool) in [(false, true), (true, false), (false, false)] {
        let run = TestRun {
            process: map(&[("PATH", &path)]),
            runtime: python(),
            is_approved,
            is_project_tool,
            ..TestRun::new(&world, &programs)
        };
        let environment = run.environment();
        assert_eq!(environment.variables["RYE_PYTHON"], system.display().to_string());
        let notice = format!(
            "`{}` is not used: programs of a project serve only the project's own tools, once it is approved",
            local.display()
        );
        assert!(environment.notices.contains(&notice), "{:?}", environment.notices);
        assert_eq!(environment.variables["PATH"].contains("project"), is_approved);
    }
}

#[test]
fn tool_with_packages_ignores_project_interpreter() {
    let (world, programs) = (TestContext::new(), FakeFinder::default());
    program(&world, "project/.venv/bin/python");
    let system = program(&world, "bin/python3");
    let path = world.path().join("bin").display().to_string();
    let process = map(&[("PATH", &path)]);
    let new = TestRun::new(&world, &programs);
    let environment =
        TestRun { process, runtime: python(), uses_project_programs: false, ..new }.environment();
    assert_eq!(environment.variables["RYE_PYTHON"], system.display().to_string());
    assert_eq!(environment.notices, Vec::<String>::new());
}

#[test]
fn a_search_cannot_leave_its_root() {
    let (world, programs) = (TestContext::new(), FakeFinder::default());
    program(&world, "outside/python");
    for (folder, name) in
        [("../outside", "python"), (".", "../outside/python"), ("/outside", "python"), ("", "..")]
    {
        let runtime = json!({"interpreter": {
            "type": "local_binary", "binary": name, "search_paths": [folder], "var": "RYE_PYTHON",
        }});
        let environment = TestRun { runtime, ..TestRun::new(&world, &programs) }.environment();
        assert_eq!(environment.variables, BTreeMap::new(), "{folder} {name}");
    }
}

#[test]
fn preset_interpreter_variable_needs_policy() {
    let (world, programs) = (TestContext::new(), FakeFinder::default());
    let (own, system) = (program(&world, "own/python"), program(&world, "bin/python3"));
    let path = world.path().join("bin").display().to_string();
    let process = |value: &Path| map(&[("PATH", &path), ("RYE_PYTHON", &value.display().to_string())]);
    let run =
        |policy, process| TestRun { process, runtime: python(), policy, ..TestRun::new(&world, &programs) };
    let found = |run: TestRun<'_>| run.environment().variables["RYE_PYTHON"].clone();
    assert_eq!(found(run(policy(), process(&own))), system.display().to_string());
    let passing = || policy_passing(&["RYE_PYTHON"]);
    assert_eq!(found(run(passing(), process(&own))), own.display().to_string());
    for wrong in ["python3", "/no/such", "/"] {
        assert_eq!(found(run(passing(), process(Path::new(wrong)))), system.display().to_string());
    }
    let local = program(&world, "project/.venv/bin/python");
    let unapproved = TestRun { is_approved: false, ..run(passing(), process(&local)) };
    assert_eq!(found(unapproved), system.display().to_string());
}

#[test]
fn dotenv_cannot_choose_an_interpreter() {
    let (world, programs) = (TestContext::new(), FakeFinder::default());
    let evil = program(&world, "project/evil");
    world.write("project/.env", format!("LILLUX={0}\nRYE_PYTHON={0}\n", evil.display()));
    let runtime = json!({"interpreter": {"type": "system_binary", "binary": "lillux", "var": "LILLUX"}});
    let environment = TestRun { runtime, ..TestRun::new(&world, &programs) }.environment();
    assert_eq!(environment.variables, BTreeMap::new());
    assert!(environment.notices[0].contains("`LILLUX`, `RYE_PYTHON`"), "{:?}", environment.notices);
}

#[test]
fn older_interpreter_names_come_from_the_policy() {
    let (world, programs) = (TestContext::new(), FakeFinder::default());
    let python = program(&world, "project/envs/dev/bin/python");
    let tsx = program(&world, "project/node_modules/.bin/tsx");
    let run = TestRun {
        runtime: json!({"interpreter": {"type": "venv_python", "venv_path": "envs/dev"}}),
        tool: json!({"interpreter": {"type": "node_modules"}}),
        ..TestRun::new(&world, &programs)
    };
    let path_text = |path: PathBuf| path.display().to_string();
    assert_eq!(
        run.environment().variables,
        map(&[("RYE_NODE", &path_text(tsx)), ("RYE_PYTHON", &path_text(python))])
    );
}

#[test]
fn interpreter_without_variable_is_not_searched() {
    let (world, programs) = (TestContext::new(), FakeFinder::default());
    let tool = json!({"interpreter": {"type": "system_binary", "binary": "sh"}});
    let environment = TestRun { tool, ..TestRun::new(&world, &programs) }.environment();
    assert_eq!(environment.notices, ["the interpreter of `tool` has no `var`: not looked for"]);
}

#[test]
fn home_as_project_keeps_its_path_programs() {
    let (world, programs) = (TestContext::new(), FakeFinder::default());
    let local = program(&world, "project/.local/bin/python3");
    let project = world.project().display().to_string();
    let path = format!("{project}/.local/bin");
    let run = TestRun {
        process: map(&[("HOME", &project), ("PATH", &path)]),
        runtime: python(),
        is_approved: false,
        is_project_tool: false,
        ..TestRun::new(&world, &programs)
    };
    assert_eq!(run.environment().variables["RYE_PYTHON"], local.display().to_string());
}
