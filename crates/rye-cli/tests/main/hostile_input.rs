//! Bad input: a coded error with its place and a hint, and nothing changes on disk.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::ffi::OsStringExt;

use crate::support::{User, text};

const NESTING_DEPTH: usize = 100_000;

fn nested_brackets() -> String {
    format!("{}{}", "[".repeat(NESTING_DEPTH), "]".repeat(NESTING_DEPTH))
}

#[test]
fn an_unknown_type_is_refused() {
    let user = User::initialized();
    for words in [
        vec!["load", "gadget", "examples/hello"],
        vec!["why", "gadget", "examples/hello"],
        vec!["sign", "gadget", "examples/hello"],
        vec!["verify", "gadget", "examples/hello"],
        vec!["fetch", "gadget", "examples/hello"],
        vec!["search", "hello", "--type", "gadget"],
        vec!["load", "gadget:examples/hello"],
    ] {
        user.assert_refused(&words, 2, "RYE0102");
    }
}

#[test]
fn invalid_id_is_refused_before_any_io() {
    let user = User::initialized();
    let long_segment = "x".repeat(129);
    let long_id = format!("{}x", "abc/".repeat(128));
    let ids = [
        "..",
        "../../etc/passwd",
        "examples/../examples/hello",
        "/etc/passwd",
        "/",
        "",
        "examples/",
        "examples//hello",
        "examples\\hello",
        "./examples/hello",
        ".hidden",
        "~/x",
        "a b",
        "é",
        "-\u{1b}[31m",
        "tool:../x",
        &long_segment,
        &long_id,
    ];
    for id in ids {
        user.assert_refused(["load", "tool", "--", id], 2, "RYE0101");
    }
    for id in ["../../etc/passwd", "/etc/passwd", "a\\b", &long_id] {
        user.assert_refused(["why", "tool", id], 2, "RYE0101");
        user.assert_refused(["sign", "tool", id], 2, "RYE0101");
        user.assert_refused(["verify", "tool", id], 2, "RYE0101");
        user.assert_refused(["fetch", "tool", id], 2, "RYE0101");
    }
    user.assert_refused(["load", "tool:../x"], 2, "RYE0101");
    // A NUL cannot be passed to a process at all; `rye-item` refuses it where it could arrive otherwise.
    let invalid = OsString::from_vec(b"examples/\xff".to_vec());
    user.assert_refused(["load".into(), "tool".into(), invalid], 2, "RYE0104");
}

#[test]
fn patterns_cannot_escape_the_space() {
    let user = User::initialized();
    let outside = user.context.write("outside/.ai/tools/team/x.py", rye_test::tool("team", "Outside"));
    user.assert_refused(["sign", "tool", "../../../outside/.ai/tools/team/*"], 3, "RYE0201");
    user.assert_refused(["sign", "tool", "/etc/*"], 3, "RYE0201");
    user.assert_refused(["sign".as_ref(), outside.as_os_str()], 2, "RYE0206");
    user.assert_refused(["verify".as_ref(), outside.as_os_str()], 2, "RYE0206");
    user.assert_refused(["sign", "../outside/.ai/tools/team/x.py"], 2, "RYE0206");
    user.assert_refused(["sign", ".ai/tools/../../../outside/.ai/tools/team/x.py"], 2, "RYE0206");
    user.assert_refused(["sign", "/etc/passwd"], 2, "RYE0206");
    user.assert_refused(["sign", ".ai/tools/none.py"], 3, "RYE0202");
    user.assert_refused(["sign", ".ai/tools"], 2, "RYE0206");
    assert_eq!(fs::read(outside).expect("read"), rye_test::tool("team", "Outside").as_bytes());
}

#[test]
fn oversized_file_is_refused() {
    let user = User::initialized();
    let path = user.write("tools/team/big.py", "");
    let file = File::options().write(true).open(&path).expect("opened");
    file.set_len(1 << 30).expect("a sparse file");
    drop(file);
    for words in [
        vec!["sign", "tool", "team/big"],
        vec!["sign", ".ai/tools/team/big.py"],
        vec!["load", "tool", "team/big"],
        vec!["why", "tool", "team/big"],
        vec!["verify", "tool", "team/big"],
    ] {
        let refusal = user.assert_refused(&words, 9, "RYE0204");
        assert!(text(&refusal["expected"]).contains("8388608"), "{refusal}");
    }
    let glob = user.assert_refused(["sign", "tool", "team/*"], 9, "RYE0204");
    assert_eq!(glob["data"]["failed"][0]["code"], "RYE0204");
    let all = user.run(["verify", "--json"]);
    assert_eq!(all.exit, 4, "{all}");
    assert_eq!(all.json()["data"]["unreadable"][0]["code"], "RYE0204");
    let found = user.data(["search", "big"]);
    assert_eq!(found["results"][0]["verdict"], "unreadable", "{found}");
    user.run(["doctor", "--json"]).error(1, "RYE0701");
}

/// Type, file below `.ai/`, id, bytes.
type InvalidItem = (&'static str, &'static str, &'static str, Vec<u8>);

/// Signing each of these must fail with a place; no command may fall over any of them.
fn assert_all_refused(bad: &[InvalidItem]) {
    let user = User::initialized();
    for (item_type, file, id, bytes) in bad {
        user.write(file, bytes);
        let refusal = user.assert_refused(["sign", item_type, id], 9, "RYE0301");
        assert!(
            refusal["line"].as_u64() > Some(0) && refusal["column"].as_u64() > Some(0),
            "{file}: no place: {refusal}"
        );
        assert!(text(&refusal["path"]).ends_with(file), "{refusal}");
        let problem = &refusal["problems"][0];
        assert!(!text(&problem["message"]).is_empty(), "{refusal}");
        assert!(text(&problem["message"]).len() < 1000, "{file}: a message is for people");
    }
    let findable = bad.iter().filter(|(item_type, ..)| *item_type != "config");
    assert_eq!(
        user.data(["search", "*", "--space", "project", "--limit", "100"])["total"],
        findable.count() + 3,
    );
    user.run(["verify", "--json", "--metadata"]).error(4, "RYE0401");
    let (item_type, _, id, _) = &bad[0];
    user.assert_refused(["load", item_type, id], 4, "RYE0401");
    user.ok(["why", item_type, id]);
}

#[test]
fn invalid_utf8_error_names_the_position() {
    let broken = |text: &str| {
        let mut bytes = text.as_bytes().to_vec();
        bytes.extend_from_slice(b"\xc3\x28\n");
        bytes
    };
    assert_all_refused(&[
        ("tool", "tools/team/a.py", "team/a", broken("x = 1\ny = '")),
        ("tool", "tools/team/b.yaml", "team/b", broken("a: 1\nb: ")),
        ("tool", "tools/team/c.js", "team/c", broken("// x\n")),
        ("tool", "tools/team/d.sh", "team/d", broken("# version: 1.0.0\n# ")),
        ("tool", "tools/team/e.toml", "team/e", broken("a = 1\n# ")),
        ("directive", "directives/team/f.md", "team/f", broken("# T\n")),
        ("knowledge", "knowledge/team/g.md", "team/g", broken("# T\n")),
        ("config", "config/team/h.yaml", "team/h", broken("a: 1\n# ")),
        ("tool", "tools/team/i.ts", "team/i", b"\xff\xfe\0\0".to_vec()),
    ]);
}

#[test]
fn an_alias_bomb_is_refused() {
    let mut bomb = String::from("a: &a [x, x, x, x, x, x, x, x, x]\n");
    for (from, to) in ["ab", "bc", "cd", "de", "ef", "fg", "gh", "hi"].map(|pair| pair.split_at(1)) {
        bomb.push_str(&format!(
            "{to}: &{to} [*{from}, *{from}, *{from}, *{from}, *{from}, *{from}, *{from}, *{from}, *{from}]\n"
        ));
    }
    let fenced = format!("```yaml\nname: c\n{bomb}```\n\nbody\n");
    let front = format!("---\nname: d\n{bomb}---\n\nbody\n");
    assert_all_refused(&[
        ("tool", "tools/team/a.yaml", "team/a", bomb.clone().into_bytes()),
        ("config", "config/team/b.yaml", "team/b", bomb.clone().into_bytes()),
        ("knowledge", "knowledge/team/c.md", "team/c", fenced.into_bytes()),
        ("knowledge", "knowledge/team/d.md", "team/d", front.into_bytes()),
        ("knowledge", "knowledge/team/e.yaml", "team/e", bomb.into_bytes()),
        ("tool", "tools/team/f.yaml", "team/f", b"a: &a [*a]\n".to_vec()),
    ]);
}

#[test]
fn deep_nesting_is_refused_in_data() {
    let (deep, open) = (nested_brackets(), "[".repeat(NESTING_DEPTH));
    let directive = |inner: &str| {
        format!("# T\n\n```xml\n<directive name=\"x\" version=\"1.0.0\">{inner}</directive>\n```\n\nDo it.\n")
    };
    let tags = format!("{}{}", "<a>".repeat(NESTING_DEPTH), "</a>".repeat(NESTING_DEPTH));
    let staircase: String = (0..2_000).map(|depth| format!("{}a:\n", " ".repeat(depth))).collect();
    let bad = [
        ("tool", "tools/team/a.yaml", "team/a", format!("a: {deep}\n")),
        ("tool", "tools/team/b.yaml", "team/b", format!("a: {open}\n")),
        ("tool", "tools/team/c.yaml", "team/c", format!("a: {}1\n", "{x: ".repeat(NESTING_DEPTH))),
        ("tool", "tools/team/d.yaml", "team/d", staircase),
        ("tool", "tools/team/e.toml", "team/e", format!("a = {deep}\n")),
        ("tool", "tools/team/f.toml", "team/f", format!("a = {open}\n")),
        ("tool", "tools/team/g.sh", "team/g", format!("# version: 1.0.0\n# config_schema: {deep}\n")),
        ("directive", "directives/team/h.md", "team/h", directive(&tags)),
        ("directive", "directives/team/i.md", "team/i", directive(&"<a>".repeat(NESTING_DEPTH))),
        ("knowledge", "knowledge/team/j.md", "team/j", format!("```yaml\na: {deep}\n```\n")),
        ("config", "config/team/k.yaml", "team/k", format!("a: {deep}\n")),
        ("config", "config/team/l.toml", "team/l", format!("a = {deep}\n")),
    ];
    assert_all_refused(&bad.map(|(item_type, file, id, source)| (item_type, file, id, source.into_bytes())));
}

#[test]
fn deep_nesting_is_refused_in_programs() {
    let (deep, open) = (nested_brackets(), "[".repeat(NESTING_DEPTH));
    let round = format!("{}1{}", "(".repeat(NESTING_DEPTH), ")".repeat(NESTING_DEPTH));
    let bad = [
        ("tool", "tools/team/a.py", "team/a", format!("X = {deep}\n")),
        ("tool", "tools/team/b.py", "team/b", format!("X = {open}\n")),
        ("tool", "tools/team/c.py", "team/c", format!("X = {round}\n")),
        ("tool", "tools/team/d.py", "team/d", format!("X = {}1\n", "-".repeat(NESTING_DEPTH))),
        ("tool", "tools/team/e.js", "team/e", format!("export const CONFIG_SCHEMA = {deep};\n")),
        ("tool", "tools/team/f.js", "team/f", format!("export const X = {open};\n")),
        (
            "tool",
            "tools/team/g.js",
            "team/g",
            format!("export const __version__ = {}1;\n", "!".repeat(NESTING_DEPTH)),
        ),
        ("tool", "tools/team/h.ts", "team/h", format!("export const CONFIG_SCHEMA = {deep};\n")),
    ];
    assert_all_refused(&bad.map(|(item_type, file, id, source)| (item_type, file, id, source.into_bytes())));
}

#[test]
fn deep_json_is_not_signed() {
    let user = User::initialized();
    user.write("tools/team/deep.json", format!("{{\"a\": {}}}", nested_brackets()));
    user.assert_refused(["sign", "tool", "team/deep"], 9, "RYE0302");
    user.assert_refused(["load", "tool", "team/deep"], 4, "RYE0401");
    assert_eq!(user.search_ids("deep"), ["team/deep"]);
    user.run(["doctor", "--json"]).json();
}

#[test]
fn deeply_nested_project_files_are_skipped() {
    let user = User::initialized();
    user.write("config/config.yaml", format!("a: {}\n", nested_brackets()));
    user.write("config/keys/trusted/0123456789abcdef.toml", format!("a = {}\n", nested_brackets()));
    user.write("tools/rye/core/extractors/tool/tool_extractor.yaml", format!("a: {}\n", nested_brackets()));
    let run = user.ok(["load", "tool", "examples/hello"]);
    assert!(run.stderr.contains("project config is ignored"), "{run}");
}

#[test]
fn unclosed_fence_error_names_the_line() {
    let user = User::initialized();
    user.write(
        "directives/team/open.md",
        "# T\n\nText.\n\n```xml\n<directive name=\"open\" version=\"1.0.0\">\n</directive>\n",
    );
    user.write("knowledge/team/open.md", "# T\n\n```yaml\nname: open\n");
    for (item_type, line) in [("directive", 5), ("knowledge", 3)] {
        let refusal = user.assert_refused(["sign", item_type, "team/open"], 9, "RYE0301");
        assert_eq!((&refusal["line"], &refusal["column"]), (&line.into(), &1.into()), "{refusal}");
    }
}

#[test]
fn duplicate_key_error_names_the_line() {
    let user = User::initialized();
    let twice = "version: \"1.0.0\"\ntool_type: x\nexecutor_id: null\ncategory: team\ndescription: a\ncategory: team\n";
    user.write("tools/team/twice.yaml", twice);
    user.write("config/team/twice.yaml", "version: \"1.0.0\"\ncategory: team\nx:\n  y: 1\n  y: 2\n");
    user.write("knowledge/team/twice.md", "```yaml\nname: twice\nname: twice\n```\n\nx\n");
    for (item_type, line) in [("tool", 6), ("config", 5), ("knowledge", 3)] {
        let refusal = user.assert_refused(["sign", item_type, "team/twice"], 9, "RYE0301");
        assert_eq!(refusal["line"], line, "{refusal}");
        assert!(text(&refusal["problems"][0]["message"]).contains("duplicate"), "{refusal}");
    }
}

#[test]
fn entities_and_doctypes_are_not_expanded() {
    let laughs = "# T\n\n```xml\n<!DOCTYPE d [<!ENTITY a \"ha\"><!ENTITY b \"&a;&a;&a;&a;\"><!ENTITY x SYSTEM \"file:///etc/passwd\">]>\n<directive name=\"x\" version=\"1.0.0\">&b;&x;</directive>\n```\n\nDo it.\n";
    assert_all_refused(&[
        ("directive", "directives/team/x.md", "team/x", laughs.as_bytes().to_vec()),
        (
            "directive",
            "directives/team/y.md",
            "team/y",
            b"# T\n\n```xml\n<directive name=\"y\" version=\"1.0.0\">&nosuch;</directive>\n```\n".to_vec(),
        ),
        ("tool", "tools/team/z.py", "team/z", b"x = 1\n\0\n".to_vec()),
    ]);
}

#[test]
fn an_empty_file_is_refused() {
    let user = User::initialized();
    for (file, item_type) in [
        ("tools/team/void.py", "tool"),
        ("directives/team/void.md", "directive"),
        ("knowledge/team/void.md", "knowledge"),
        ("config/team/void.yaml", "config"),
    ] {
        user.write(file, " \n\n");
        user.assert_refused(["sign", item_type, "team/void"], 9, "RYE0301");
    }
}

#[test]
fn fifo_as_item_does_not_hang() {
    let user = User::initialized();
    user.write("tools/team/real.py", rye_test::tool("team", "Real"));
    for location in [
        "project/.ai/tools/team/pipe.py",
        "project/.ai/config/config.yaml",
        "project/.ai/config/keys/trusted/0123456789abcdef.toml",
        "home/.ai/config/config.yaml",
        "home/.ai/config/keys/trusted/0123456789abcdef.toml",
    ] {
        let path = user.context.path().join(location);
        fs::create_dir_all(path.parent().expect("a folder")).expect("folders");
        let made = user.program("mkfifo").arg(&path).status().expect("mkfifo");
        assert!(made.success());
    }
    for words in [
        vec!["load", "tool", "team/pipe"],
        vec!["sign", "tool", "team/pipe"],
        vec!["sign", ".ai/tools/team/pipe.py"],
        vec!["why", "tool", "team/pipe"],
        vec!["verify", "tool", "team/pipe"],
        vec!["verify", ".ai/tools/team/pipe.py"],
    ] {
        let before = user.snapshot();
        let run = user.run(words.iter().chain(&["--json"]));
        assert_eq!(before, user.snapshot());
        assert_ne!(run.exit, 0, "{run}");
        assert_ne!(run.exit, -1, "it hung: {run}");
        assert_eq!(run.json()["status"], "error");
    }
    user.assert_refused(["load", "tool", "team/pipe"], 2, "RYE0206");
    assert_eq!(user.search_ids("real"), ["team/real"]);
    user.ok(["keys", "list"]);
    user.run(["doctor", "--json"]).json();
}

#[test]
fn fifo_as_key_does_not_hang() {
    let user = User::initialized();
    user.write("tools/team/a.py", rye_test::tool("team", "A"));
    for name in ["private_key.pem", "public_key.pem"] {
        let path = user.home().join(".ai/config/keys/signing").join(name);
        fs::remove_file(&path).expect("removed");
        let made = user.program("mkfifo").arg("-m").arg("600").arg(&path).status().expect("mkfifo");
        assert!(made.success());
    }
    user.assert_refused(["sign", "tool", "team/a"], 2, "RYE0206");
}

#[test]
fn folder_as_item_is_ignored() {
    let user = User::initialized();
    fs::create_dir_all(user.project().join(".ai/tools/team/folder.py")).expect("folder");
    user.assert_refused(["load", "tool", "team/folder"], 3, "RYE0201");
    user.assert_refused(["sign", "tool", "team/folder"], 3, "RYE0201");
    let refusal = user.assert_refused(["sign", ".ai/tools/team/folder.py"], 2, "RYE0206");
    assert!(text(&refusal["error"]).contains("not a regular file"), "{refusal}");
}

#[test]
fn a_missing_item_suggests_a_search() {
    let user = User::initialized();
    for verb in ["load", "why", "sign", "verify"] {
        let refusal = user.assert_refused([verb, "tool", "examples/helo"], 3, "RYE0201");
        assert!(refusal["hints"].to_string().contains("rye search helo"), "{refusal}");
    }
}

#[test]
fn unverified_load_needs_a_terminal() {
    let user = User::initialized();
    user.write("tools/team/raw.py", rye_test::tool("team", "Raw"));
    user.assert_refused(["load", "tool", "team/raw", "--unverified"], 2, "RYE0105");
}

#[test]
fn type_without_id_gets_a_hint() {
    let user = User::initialized();
    user.assert_refused(["sign", "config"], 2, "RYE0104");
    user.assert_refused(["verify", "tool"], 2, "RYE0104");
}
