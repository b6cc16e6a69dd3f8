//! Interpreters that a command names.

use super::*;

#[test]
fn project_item_cannot_run_resolve_cmd() {
    let world = TestContext::new();
    let (ruby, rbenv) = (program(&world, "opt/ruby"), program(&world, "bin/rbenv"));
    let programs =
        FakeFinder { command_output: Some(format!("{}\nmore\n", ruby.display())), ..FakeFinder::default() };
    let config = json!({"interpreter": {"type": "version_manager", "manager": "rbenv", "binary": "ruby", "var": "RYE_RUBY"}});
    let process = map(&[("PATH", &world.path().join("bin").display().to_string())]);
    let run =
        TestRun { process: process.clone(), runtime: config.clone(), ..TestRun::new(&world, &programs) };
    assert_eq!(run.environment().variables["RYE_RUBY"], ruby.display().to_string());
    let expected = vec![rbenv.display().to_string(), "which".to_owned(), "ruby".to_owned()];
    assert_eq!(programs.commands.take(), [expected]);

    let environment = TestRun { process, tool: config, ..TestRun::new(&world, &programs) }.environment();
    assert_eq!(environment.variables.get("RYE_RUBY"), None);
    assert_eq!(programs.commands.take(), [] as [Vec<String>; 0]);
    assert!(
        environment.notices[0].contains("`resolve_cmd` of `tool` is not run"),
        "{:?}",
        environment.notices
    );
}

#[test]
fn resolve_cmd_sees_only_the_tools_variables() {
    let world = TestContext::new();
    let ruby = program(&world, "opt/ruby");
    program(&world, "bin/rbenv");
    let programs = FakeFinder { command_output: Some(ruby.display().to_string()), ..FakeFinder::default() };
    let config = json!({"interpreter": {"type": "version_manager", "manager": "rbenv", "binary": "ruby", "var": "RYE_RUBY"}});
    let path = world.path().join("bin").display().to_string();
    let process = map(&[("PATH", &path), ("OPENAI_API_KEY", "sk"), ("SSH_AUTH_SOCK", "/s"), ("ODD", "1")]);
    let run = TestRun { process, runtime: config, ..TestRun::new(&world, &programs) };
    assert_eq!(run.environment().variables["RYE_RUBY"], ruby.display().to_string());
    assert_eq!(programs.variables.take(), map(&[("PATH", &path)]));
}

#[test]
fn resolve_cmd_does_not_run_in_dry_run() {
    let world = TestContext::new();
    program(&world, "bin/rbenv");
    let programs = FakeFinder { is_dry_run: true, ..FakeFinder::default() };
    let mut config = json!({"interpreter": {"type": "version_manager", "manager": "rbenv", "binary": "ruby", "var": "RYE_RUBY"}});
    let process = map(&[("PATH", &world.path().join("bin").display().to_string())]);
    let run = |runtime: &Value| {
        TestRun { process: process.clone(), runtime: runtime.clone(), ..TestRun::new(&world, &programs) }
            .environment()
    };
    let environment = run(&config);
    assert!(environment.variables["RYE_RUBY"].starts_with("(what `"), "{:?}", environment.variables);
    assert!(environment.interpreters.is_empty());
    assert!(environment.notices[0].contains("not run in a dry run"), "{:?}", environment.notices);
    let fallback = program(&world, "bin/ruby");
    config["interpreter"]["fallback"] = json!("ruby");
    assert_eq!(run(&config).variables["RYE_RUBY"], fallback.display().to_string());
}

#[test]
fn failed_resolve_cmd_is_reported() {
    let (world, programs) = (TestContext::new(), FakeFinder::default());
    program(&world, "bin/rbenv");
    let runtime = json!({"interpreter": {"type": "version_manager", "manager": "rbenv", "binary": "ruby", "var": "RYE_RUBY"}});
    let process = map(&[("PATH", &world.path().join("bin").display().to_string())]);
    let environment = TestRun { process, runtime, ..TestRun::new(&world, &programs) }.environment();
    assert_eq!(environment.variables.get("RYE_RUBY"), None);
    assert!(environment.notices[0].contains("found nothing: exit code 1"), "{:?}", environment.notices);
}
