//! A signature covers neither the type nor the extension of a file: a file that reads as two things is refused as either
//! one that could run.

use std::fs;

use crate::support::User;

const ENTRY: &str =
    "```yaml\nname: howto\ntitle: How\nentry_type: reference\ncategory: team\nversion: \"1.0.0\"\n```\n\n";
const QUOTED: &str = "```xml\n<directive name=\"NAME\" version=\"1.0.0\"><metadata><description>x</description>\
    <category>team</category><author>a</author></metadata></directive>\n```\n";

#[test]
fn a_knowledge_entry_is_not_run_as_directive() {
    let user = User::initialized();
    for name in ["howto", "other"] {
        let text = format!("{ENTRY}{}", QUOTED.replace("NAME", name));
        user.write("knowledge/team/howto.md", text);
        user.ok(["sign", "knowledge", "team/howto"]);
        user.ok(["load", "knowledge", "team/howto"]);
        let ai = user.project().join(".ai");
        fs::create_dir_all(ai.join("directives/team")).expect("a folder");
        fs::copy(ai.join("knowledge/team/howto.md"), ai.join(format!("directives/team/{name}.md")))
            .expect("copied");
        user.run(["run", &format!("team/{name}"), "--json"]).error(4, "RYE0403");
    }
}

#[test]
fn a_knowledge_entry_is_not_run_as_tool() {
    let user = User::initialized();
    let head = "# version: 1.0.0\n# tool_type: shell\n# executor_id: rye/core/runtimes/bash/bash\n# category: team\n\
        # description: d\n# name: howto\necho ran; exit 0\n\n";
    user.write("knowledge/team/howto.md", format!("{head}{ENTRY}"));
    user.ok(["sign", "knowledge", "team/howto"]);
    let ai = user.project().join(".ai");
    let signed = fs::read_to_string(ai.join("knowledge/team/howto.md")).expect("signed");
    let (line, rest) = signed.split_once('\n').expect("a signature");
    let line = line.replace("<!-- ", "# ").replace(" -->", "");
    user.write("tools/team/howto.sh", format!("{line}\n{rest}"));
    user.run(["execute", "team/howto", "--json"]).error(4, "RYE0403");
}

#[test]
fn a_python_tool_is_not_run_as_shell() {
    let user = User::initialized();
    let text = "# version: 1.0.0\n# tool_type: shell\n# executor_id: rye/core/runtimes/bash/bash\n# category: team\n\
        # description: d\n\"\"\"true\"\necho ran; exit 0\n\"\"\"\n__version__ = \"1.0.0\"\n__tool_type__ = \"python\"\n\
        __executor_id__ = \"rye/core/runtimes/python/function\"\n__category__ = \"team\"\n\
        __tool_description__ = \"d\"\n__tool_name__ = \"two\"\n\n\ndef execute(params, project_path):\n    return 1\n";
    user.write("tools/team/two.py", text);
    user.run(["sign", "tool", "team/two"]);
    let ai = user.project().join(".ai/tools/team");
    fs::rename(ai.join("two.py"), ai.join("two.sh")).expect("moved");
    let run = user.run(["execute", "team/two", "--json"]);
    assert_eq!(run.exit, 4, "{run}");
}

const SCRIPT: &str = "export const version = \"1.0.0\";\nexport const tool_type = \"script\";\n\
    export const executor_id = \"rye/core/runtimes/node/node\";\nexport const category = \"team\";\n\
    export const description = \"Is renamed\";\nexport const __tool_name__ = \"two\";\n";

/// Signs a tool, gives it another extension, and tells whether it verifies.
fn verifies_renamed(text: &str, from: &str, to: &str) -> bool {
    let user = User::initialized();
    user.write(&format!("tools/team/two.{from}"), text);
    user.run(["sign", "tool", "team/two"]);
    let ai = user.project().join(".ai/tools/team");
    fs::rename(ai.join(format!("two.{from}")), ai.join(format!("two.{to}"))).expect("moved");
    user.run(["verify", "tool", "team/two"]).exit == 0
}

#[test]
fn renamed_script_keeps_its_runtime_and_settings() {
    let user = User::initialized();
    user.write("tools/team/two.js", SCRIPT);
    user.ok(["sign", "tool", "team/two"]);
    let shown = |extension: &str| {
        let why = user.data(["why", "tool", "team/two"]);
        let loaded = user.data(["load", "tool", "team/two"]);
        assert!(why["item"]["path"].to_string().contains(&format!("two.{extension}")), "{why}");
        (why["chain"][1]["item_id"].clone(), why["chain"][2]["item_id"].clone(), loaded["metadata"].clone())
    };
    let before = shown("js");
    assert_eq!(before.0, "rye/core/runtimes/node/node");
    let ai = user.project().join(".ai/tools/team");
    let mut name = "js";
    for extension in ["ts", "mjs", "cjs"] {
        fs::rename(ai.join(format!("two.{name}")), ai.join(format!("two.{extension}"))).expect("moved");
        name = extension;
        assert_eq!(shown(extension), before, "{extension}");
    }
}

#[test]
fn script_with_two_meanings_is_refused() {
    let typed = format!("{SCRIPT}const f = 1, T = 2, y = 3;\nconsole.log(f<T>(y));\n");
    let comment = format!("{SCRIPT}let f = 1;\nif (f<!--f\n) {{ }}\n");
    let template = format!("{SCRIPT}const f = 1, T = 2;\nconsole.log(f<T>`x`);\n");
    let line = format!("{SCRIPT}const f = 1, T = 2;\nlet a = f<T>\nconsole.log(a);\n");
    for text in [&typed, &comment, &template, &line] {
        for (from, to) in [("js", "ts"), ("ts", "js"), ("js", "mjs"), ("mjs", "cjs"), ("js", "js")] {
            assert!(!verifies_renamed(text, from, to), "{from} {to}: {text}");
        }
    }
    assert!(verifies_renamed(SCRIPT, "js", "js"));
    // Types make no JavaScript: such a file runs as TypeScript only.
    assert!(verifies_renamed(&format!("{SCRIPT}const a: number = 1;\n"), "ts", "ts"));
}

#[test]
fn tool_in_two_languages_is_refused() {
    // TOML that is YAML as well: what the one takes for a text is the other's mapping.
    let yaml_in_toml = "x.'y: z' = \"\"\"\nversion: \"1.0.0\"\ntool_type: script\nexecutor_id: team/evil\n\
        category: team\ndescription: d\nname: two\nw: |\n  # \"\"\"\n  version = \"1.0.0\"\n  tool_type = \"script\"\n  \
        executor_id = \"rye/core/runtimes/bash/bash\"\n  category = \"team\"\n  description = \"d\"\n  name = \"two\"\n";
    // Python that is JavaScript as well: to the one `//` divides, to the other it begins a comment.
    let script_in_python = format!(
        "__version__ = \"1.0.0\"\n__tool_type__ = \"python\"\n__executor_id__ = \"rye/core/runtimes/python/function\"\n\
         __category__ = \"team\"\n__tool_description__ = \"d\"\n__tool_name__ = \"two\"\nx = 1 // \"\"\"\n{}/* \"\"\" # */\n",
        SCRIPT.replace("export ", "")
    );
    for (text, from, to) in [(yaml_in_toml, "toml", "yaml"), (&script_in_python, "py", "js")] {
        assert!(!verifies_renamed(text, from, from), "{from}");
        assert!(!verifies_renamed(text, from, to), "{from} as {to}");
    }
}

const KEY_TABLE: &str = "[public_key]\npem = \"\"\"\n-----BEGIN PUBLIC KEY-----\n\"\"\"\n";

/// What signing says of a tool's text.
fn sign_refusal(path: &str, text: &str) -> String {
    let user = User::initialized();
    user.write(path, text);
    let run = user.run(["sign", "tool", "**", "--json"]);
    assert_eq!(run.exit, 9, "{text}: {run}");
    run.stdout
}

#[test]
fn documents_about_trust_are_signed_as_nothing_else() {
    let tool = "tool_type = \"x\"\ndescription = \"d\"\nversion = \"1.0.0\"\n";
    let at = |category: &str, rest: &str| format!("{tool}category = \"{category}\"\nname = \"two\"\n{rest}");
    let handover = KEY_TABLE.replace("public_key", "old_key");
    for (path, text, document) in [
        ("tools/keys/trusted/two.toml", at("keys/trusted", KEY_TABLE), "an identity document"),
        ("tools/team/two.toml", at("team", KEY_TABLE), "an identity document"),
        ("tools/keys/handovers/two.toml", at("keys/handovers", &handover), "a key hand-over"),
        (
            "tools/team/two.py",
            format!(
                "__version__ = \"1.0.0\"\n__tool_type__ = \"python\"\n__category__ = \"team\"\n__tool_description__ = \"d\"\n\
                 __executor_id__ = \"rye/core/runtimes/python/script\"\n{KEY_TABLE}"
            ),
            "an identity document",
        ),
        (
            "tools/team/two.yaml",
            "tool_type: x\ndescription: d\nversion: \"1.0.0\"\ncategory: team\nname: two\nbundle: {id: gifts}\nfiles: {}\n"
                .to_owned(),
            "a bundle's manifest",
        ),
    ] {
        let refusal = sign_refusal(path, &text);
        assert!(refusal.contains(document), "{path}: {refusal}");
    }
}

#[test]
fn source_that_reads_as_config_is_not_signed() {
    let head = "# version: 1.0.0\n# tool_type: shell\n# executor_id: rye/core/runtimes/bash/bash\n# category: team\n# description: d\n";
    for text in ["category: mcp\nsign: allow\n", "{\"category\": \"mcp\", \"sign\": \"allow\"}\n"] {
        let refusal = sign_refusal("tools/team/two.sh", &format!("{head}\n{text}"));
        assert!(refusal.contains("reads as a config as well"), "{refusal}");
    }
    let user = User::initialized();
    user.write("tools/team/two.sh", format!("{head}\necho '{{\"deployed\": true}}'\n"));
    user.ok(["sign", "tool", "team/two"]);
}
