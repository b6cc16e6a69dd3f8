//! Bytes that no signature covers: none of them reaches an interpreter, a parser, a model, or decides what runs.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::support::{User, text};
use crate::tool_support::{
    execute, execute_data, execute_error, function_text, try_execute, write_function, write_script,
    write_shell_tool, write_signed_tool,
};

const NODE: &str = "export const __version__ = \"1.0.0\";\nexport const __tool_type__ = \"javascript\";\nexport const __executor_id__ = \"rye/core/runtimes/node/function\";\nexport const __category__ = \"team\";\nexport const __tool_description__ = \"Is run\";\nexport function execute() { return 'good'; }\n";

const PERL_RUNTIME: &str = "version: \"1.0.0\"\ntool_type: runtime\nexecutor_id: rye/core/primitives/subprocess\ncategory: team\nname: perl\ndescription: Runs Perl\nconfig:\n  command: perl\n  args: [\"{tool_path}\"]\n  result: last_json_line\n";

const PERL: &str = "# version: 1.0.0\n# tool_type: perl\n# executor_id: team/perl\n# category: team\n# name: pl\n# description: Is run\nprint \"\\\"good\\\"\\n\";\n";

const YAML: &str = "version: \"1.0.0\"\ntool_type: shell\nexecutor_id: rye/core/primitives/subprocess\ncategory: team\nname: yml\ndescription: Is run\nconfig:\n  command: echo\n  args: ['\"good\"']\n  result: last_json_line\n";

/// Puts `first` before a signed file.
fn prepend_line(path: &Path, first: &str) {
    let bytes = fs::read(path).expect("a signed file");
    fs::write(path, [first.as_bytes(), &bytes].concat()).expect("written");
}

fn marker_path(user: &User) -> PathBuf {
    user.project().join("evil")
}

/// Signed tools of every language by name, and code in it that leaves a mark.
fn write_tools(user: &User) -> Vec<(&'static str, PathBuf, String)> {
    let mark = marker_path(user).display().to_string();
    let mut tools = vec![
        ("py", write_function(user, "py", "return 'good'"), format!("open({mark:?}, 'w').close()")),
        ("main", write_script(user, "main", "print('\"good\"')"), format!("open({mark:?}, 'w').close()")),
        ("sh", write_shell_tool(user, "sh", "", "echo '\"good\"'"), format!("touch {mark}")),
        ("js", write_signed_tool(user, "team/js", "mjs", NODE), "process.exit(7)".to_owned()),
        (
            "yml",
            write_signed_tool(user, "team/yml", "yaml", YAML),
            format!("config: {{command: touch, args: [{mark}]}}"),
        ),
    ];
    if user.program("perl").arg("-v").output().is_ok_and(|output| output.status.success()) {
        write_signed_tool(user, "team/perl", "yaml", PERL_RUNTIME);
        let path = write_signed_tool(user, "team/pl", "pl", PERL);
        tools.push(("pl", path, format!("open(my $f, '>', '{mark}');")));
    }
    tools
}

#[test]
fn code_in_a_shebang_never_runs() {
    let user = User::initialized();
    for (name, path, code) in write_tools(&user) {
        assert_eq!(execute_data(&user, name, &[]), "good", "{name}");
        let good = fs::read(&path).expect("a signed file");
        for first in [
            format!("#!/usr/bin/env x\r{code}\n"),
            format!("#!/usr/bin/env x\r{code}\r\n"),
            format!("#!/usr/bin/env x\u{2028}{code}\n"),
            format!("#!/usr/bin/env x\u{2029}{code}\n"),
            format!("#!/usr/bin/env x\u{85}{code}\n"),
            format!("#!/usr/bin/env x\u{c}{code}\n"),
            format!("#!/usr/bin/env x\0{code}\n"),
            "#!/usr/bin/env x coding: raw_unicode_escape\n".to_owned(),
            format!("#!{}\n", "x".repeat(300)),
        ] {
            prepend_line(&path, &first);
            let refusal = execute_error(&user, name, &[], 4, "RYE0402");
            assert!(text(&refusal["error"]).contains("`#!` line"), "{name} {first:?}: {refusal}");
            assert_eq!(try_execute(&user, name, &["--locked"]).exit, 4, "{name} {first:?}");
            user.assert_refused(["load", "tool", &format!("team/{name}")], 4, "RYE0402");
            user.assert_refused(["sign", "tool", &format!("team/{name}")], 9, "RYE0301");
            assert!(!marker_path(&user).exists(), "{name} {first:?}");
            fs::write(&path, &good).expect("written");
        }
        assert_eq!(execute_data(&user, name, &[]), "good", "{name}");
    }
}

#[test]
fn a_plain_shebang_reaches_no_interpreter() {
    let user = User::initialized();
    let evil = user.context.write("evil.sh", format!("#!/bin/sh\ntouch {}\n", marker_path(&user).display()));
    fs::set_permissions(&evil, fs::Permissions::from_mode(0o755)).expect("mode");
    for (name, path, _) in write_tools(&user) {
        assert_eq!(execute_data(&user, name, &[]), "good", "{name}");
        prepend_line(&path, &format!("#!{} -Mevil ruby -revil\n", evil.display()));
        // The pin of the first run still matches: lockfiles pin what a signature covers.
        assert_eq!(execute_data(&user, name, &["--locked"]), "good", "{name}");
        assert!(!marker_path(&user).exists(), "{name}");
        let output = user.data(["load", "tool", &format!("team/{name}")]);
        for field in ["content", "raw"] {
            assert!(!text(&output[field]).contains("evil"), "{name} {field}: {output}");
        }
    }
    let found = user.data(["search", "Mevil"]);
    assert_eq!(found["total"], 0, "{found}");
}

#[test]
fn metadata_in_a_shebang_is_not_read() {
    let user = User::initialized();
    let path = write_function(&user, "greedy", "return 'good'");
    prepend_line(
        &path,
        "#!/x\rSANDBOX = {\"write\": [\"~\"]}\rENV_CONFIG = {\"env\": {\"A\": \"${HOME}\"}}\n",
    );
    execute_error(&user, "greedy", &[], 4, "RYE0402");
    execute_error(&user, "greedy", &["--dry-run"], 4, "RYE0402");
}

#[test]
fn shebang_cannot_change_encoding() {
    let user = User::initialized();
    let mark = marker_path(&user).display().to_string();
    let comment = format!("# \\u000aopen({mark:?}, 'w').close()\n");
    let source = format!("# uses coding: utf-8\n{comment}{}", function_text("", "return 'é'"));
    let path = write_signed_tool(&user, "team/enc", "py", &source);
    let good = fs::read(&path).expect("a signed file");
    for first in ["", "#!/usr/bin/env python3\n", "#!\n"] {
        fs::write(&path, [first.as_bytes(), &good].concat()).expect("written");
        assert_eq!(execute_data(&user, "enc", &[]), "é", "{first:?}");
        assert!(!Path::new(&mark).exists());
    }
    let other = source.replace("utf-8", "raw_unicode_escape");
    user.write("tools/team/other.py", &other);
    let refusal = user.assert_refused(["sign", "tool", "team/other"], 9, "RYE0301");
    assert!(refusal.to_string().contains("raw_unicode_escape"), "{refusal}");
}

#[test]
fn an_imported_file_is_staged_without_its_shebang() {
    let user = User::initialized();
    let helper = |value: &str| {
        format!(
            "__version__ = \"1.0.0\"\n__tool_type__ = \"python\"\n__executor_id__ = \"rye/core/runtimes/python/function\"\n__category__ = \"team/pack\"\n__tool_name__ = \"helper\"\n__tool_description__ = \"Is imported\"\nVALUE = {value}\n\n\ndef execute(params, project_path):\n    return VALUE\n"
        )
    };
    let path = write_signed_tool(&user, "team/pack/helper", "py", &helper("'good'"));
    write_signed_tool(&user, "team/pack/__init__", "py", &helper("0").replace("\"helper\"", "\"__init__\""));
    let tool = function_text(
        "",
        "from helper import VALUE\nimport helper\nreturn [VALUE, open(helper.__file__).read()]",
    );
    write_signed_tool(&user, "team/pack/tool", "py", &tool.replace("\"team\"", "\"team/pack\""));
    let run = || execute(&user, "pack/tool", &[])["data"].clone();
    assert_eq!(run()[0], "good");
    let good = fs::read(&path).expect("a signed file");
    prepend_line(&path, "#!/x\rVALUE = 1\rraise SystemExit\n");
    assert_ne!(try_execute(&user, "pack/tool", &[]).exit, 0);
    fs::write(&path, &good).expect("written");
    // A lockfile pins an imported file as it is.
    prepend_line(&path, "#!/x evil\n");
    execute_error(&user, "pack/tool", &[], 8, "RYE0501");
    user.ok(["lock", "update", "team/pack/tool"]);
    let staged: Value = run();
    assert_eq!(staged[0], "good");
    assert!(!text(&staged[1]).contains("evil"), "{staged}");
    assert_eq!(staged, json!([staged[0], staged[1]]));
}
