//! Interpreters that a command names.

use super::*;

#[test]
fn a_command_names_an_interpreter_but_a_projects_item_may_not_run_one() {
    let world = World::new();
    let (ruby, rbenv) = (program(&world, "opt/ruby"), program(&world, "bin/rbenv"));
    let programs = Programs { answer: Some(format!("{}\nmore\n", ruby.display())), ..Programs::default() };
    let config = json!({"interpreter": {"type": "version_manager", "manager": "rbenv", "binary": "ruby", "var": "RYE_RUBY"}});
    let process = map(&[("PATH", &world.path().join("bin").display().to_string())]);
    let run = Run { process: process.clone(), runtime: config.clone(), ..Run::new(&world, &programs) };
    assert_eq!(run.environment().variables["RYE_RUBY"], ruby.display().to_string());
    let asked = vec![rbenv.display().to_string(), "which".to_owned(), "ruby".to_owned()];
    assert_eq!(programs.asked.take(), [asked]);

    let environment = Run { process, tool: config, ..Run::new(&world, &programs) }.environment();
    assert_eq!(environment.variables.get("RYE_RUBY"), None);
    assert_eq!(programs.asked.take(), [] as [Vec<String>; 0]);
    assert!(
        environment.notices[0].contains("`resolve_cmd` of `tool` is not run"),
        "{:?}",
        environment.notices
    );
}

#[test]
fn resolve_cmd_sees_only_the_tools_variables() {
    let world = World::new();
    let ruby = program(&world, "opt/ruby");
    program(&world, "bin/rbenv");
    let programs = Programs { answer: Some(ruby.display().to_string()), ..Programs::default() };
    let config = json!({"interpreter": {"type": "version_manager", "manager": "rbenv", "binary": "ruby", "var": "RYE_RUBY"}});
    let path = world.path().join("bin").display().to_string();
    let process = map(&[("PATH", &path), ("OPENAI_API_KEY", "sk"), ("SSH_AUTH_SOCK", "/s"), ("ODD", "1")]);
    let run = Run { process, runtime: config, ..Run::new(&world, &programs) };
    assert_eq!(run.environment().variables["RYE_RUBY"], ruby.display().to_string());
    assert_eq!(programs.given.take(), map(&[("PATH", &path)]));
}

#[test]
fn resolve_cmd_does_not_run_in_dry_run() {
    let world = World::new();
    program(&world, "bin/rbenv");
    let programs = Programs { is_dry_run: true, ..Programs::default() };
    let mut config = json!({"interpreter": {"type": "version_manager", "manager": "rbenv", "binary": "ruby", "var": "RYE_RUBY"}});
    let process = map(&[("PATH", &world.path().join("bin").display().to_string())]);
    let run = |runtime: &Value| {
        Run { process: process.clone(), runtime: runtime.clone(), ..Run::new(&world, &programs) }
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
    let (world, programs) = (World::new(), Programs::default());
    program(&world, "bin/rbenv");
    let runtime = json!({"interpreter": {"type": "version_manager", "manager": "rbenv", "binary": "ruby", "var": "RYE_RUBY"}});
    let process = map(&[("PATH", &world.path().join("bin").display().to_string())]);
    let environment = Run { process, runtime, ..Run::new(&world, &programs) }.environment();
    assert_eq!(environment.variables.get("RYE_RUBY"), None);
    assert!(environment.notices[0].contains("found nothing: exit code 1"), "{:?}", environment.notices);
}
