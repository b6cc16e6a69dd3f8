//! Sign, verify, load, search, why: every type and every extension, with and without shebang, CRLF kept.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use serde_json::{Value, json};

use crate::support::{TOOLS, User, rows, text};

/// The bytes of a signed file without its signature line.
fn without_signature(bytes: &[u8]) -> Vec<u8> {
    let lines = bytes.split_inclusive(|byte| *byte == b'\n');
    let (signatures, rest): (Vec<&[u8]>, Vec<&[u8]>) =
        lines.partition(|line| line.windows(11).any(|window| window == b"rye:signed:"));
    assert_eq!(signatures.len(), 1, "one signature line");
    rest.concat()
}

/// Every tool as a file: name, extension, text.
fn variants() -> Vec<(String, &'static str, String)> {
    let mut all = Vec::new();
    for (extension, source) in TOOLS {
        let stem = &extension[1..];
        all.push((format!("plain_{stem}"), extension, source.to_owned()));
        all.push((format!("crlf_{stem}"), extension, source.replace('\n', "\r\n")));
        if !matches!(extension, ".yaml" | ".yml" | ".toml") {
            let shebang = "#!/usr/bin/env anything";
            all.push((format!("shebang_{stem}"), extension, format!("{shebang}\n{source}")));
            let windows = format!("{shebang}\n{source}").replace('\n', "\r\n");
            all.push((format!("both_{stem}"), extension, windows));
        }
    }
    all
}

#[test]
fn tools_of_every_extension_survive_the_round_trip() {
    let user = User::initialized();
    let variants = variants();
    for (name, extension, source) in &variants {
        user.write(&format!("tools/team/{name}{extension}"), source);
    }
    let signed = user.data(["sign", "tool", "team/*", "--yes"]);
    assert_eq!(signed["total"], variants.len(), "{signed}");

    for (name, extension, source) in &variants {
        let bytes = user.read(&format!("tools/team/{name}{extension}"));
        assert_eq!(without_signature(&bytes), source.as_bytes(), "{name}");
        let first = bytes.split(|byte| *byte == b'\n').next().expect("a line");
        assert_eq!(first.starts_with(b"#!/"), source.starts_with("#!/"), "a shebang stays first: {name}");
        let breaks = bytes.windows(2).filter(|pair| pair[1] == b'\n');
        assert!(
            breaks.into_iter().all(|pair| (pair[0] == b'\r') == source.contains('\r')),
            "line endings are the file's own: {name}"
        );
    }

    let verified = user.data(["verify"]);
    assert_eq!(verified["full"], verified["checked"], "{verified}");
    assert_eq!(verified["invalid"], 0);

    let found = user.data(["search", "wonders", "--limit", "100", "--type", "tool"]);
    let ids: BTreeSet<String> = rows(&found).iter().map(|row| text(&row["item_id"])).collect();
    let expected: BTreeSet<String> = variants.iter().map(|(name, ..)| format!("team/{name}")).collect();
    assert_eq!(ids, expected);
    assert!(rows(&found).iter().all(|row| row["coverage"] == "full" && row["signed"] == true));
}

#[test]
fn tools_of_every_extension_load() {
    let user = User::initialized();
    for (extension, source) in TOOLS {
        user.write(&format!("tools/team/t_{}{extension}", &extension[1..]), source);
    }
    user.ok(["sign", "tool", "team/*", "--yes"]);
    for (extension, source) in TOOLS {
        let id = format!("team/t_{}", &extension[1..]);
        let path = user.project().join(format!(".ai/tools/{id}{extension}"));
        let loaded = user.data(["load", "tool", &id]);
        assert_eq!(without_signature(text(&loaded["raw"]).as_bytes()), source.as_bytes());
        assert_eq!(loaded["path"], path.to_str().expect("text"));
        assert_eq!(
            (&loaded["space"], &loaded["coverage"], &loaded["verdict"]),
            (&json!("project"), &json!("full"), &json!("full"))
        );
        let executor = if extension == ".yml" { Value::Null } else { json!("team/runtime") };
        assert_eq!(loaded["metadata"]["version"], "1.0.0");
        assert_eq!(loaded["metadata"]["description"], "Does wonders");
        assert_eq!(loaded["metadata"]["executor_id"], executor);
        assert_eq!(loaded["signer"]["trusted_by"], "user");

        let why = user.data(["why", "tool", &id]);
        assert_eq!(
            (&why["item"]["verdict"], &why["item"]["space"], &why["shadows"]),
            (&json!("full"), &json!("project"), &json!([]))
        );
        assert_eq!(why["chain"][0]["item_id"], id.as_str());
    }
}

/// Type, file below `.ai/`, id, text.
fn texts() -> Vec<(&'static str, String, &'static str, String)> {
    let front = "---\nname: front\ntitle: Wonders\nentry_type: reference\ncategory: team\nversion: \"1.0.0\"\n---\n\n# Body\n\nwonders\n";
    let whole = |name: &str| {
        format!(
            "name: {name}\ntitle: Wonders\nentry_type: reference\ncategory: team\nversion: \"1.0.0\"\nbody: all wonders\n"
        )
    };
    let fenced = rye_test::knowledge("team", "fenced", "Wonders", "wonders");
    let directive = rye_test::directive("team", "act", "Do wonders");
    vec![
        ("directive", "directives/team/act.md".to_owned(), "team/act", directive),
        ("knowledge", "knowledge/team/fenced.md".to_owned(), "team/fenced", fenced),
        ("knowledge", "knowledge/team/front.md".to_owned(), "team/front", front.to_owned()),
        ("knowledge", "knowledge/team/whole.yaml".to_owned(), "team/whole", whole("whole")),
        ("knowledge", "knowledge/team/other.yml".to_owned(), "team/other", whole("other")),
    ]
}

#[test]
fn texts_survive_the_round_trip() {
    for line_break in ["\n", "\r\n"] {
        let user = User::initialized();
        for (item_type, file, id, source) in texts() {
            let source = source.replace('\n', line_break);
            user.write(&file, &source);
            user.ok(["sign", item_type, id]);
            assert_eq!(without_signature(&user.read(&file)), source.as_bytes(), "{file}");
            let loaded = user.data(["load", item_type, id]);
            assert_eq!(
                (&loaded["verdict"], &loaded["metadata"]["version"]),
                (&json!("full"), &json!("1.0.0")),
                "{loaded}"
            );
            let content = text(&loaded["content"]);
            assert!(content.contains("wonders") || content.contains("Do it."), "{content}");
            assert!(!content.contains("rye:signed"), "{content}");
        }
        assert_eq!(user.search_ids("wonders").len(), 5);
        let verified = user.data(["verify"]);
        assert_eq!((&verified["full"], &verified["invalid"]), (&verified["checked"], &json!(0)));
        let why = user.data(["why", "directive:team/act"]);
        assert_eq!(why["chain"], json!([]));
    }
}

#[test]
fn config_is_signed_but_not_searched() {
    let user = User::initialized();
    let yaml = "version: \"1.0.0\"\ncategory: team\ndescription: Wonders\nwonders: 1\n";
    user.write("config/team/a.yaml", yaml);
    user.write("config/team/b.yml", yaml);
    user.write(
        "config/team/c.toml",
        "version = \"1.0.0\"\ncategory = \"team\"\ndescription = \"Wonders\"\nwonders = 1\n",
    );
    for id in ["team/a", "team/b", "team/c"] {
        user.ok(["sign", "config", id]);
        let verified = user.data(["verify", "config", id]);
        assert_eq!(verified["full"], 1, "{verified}");
        user.ok(["why", "config", id]);
        user.ok(["load", "config", id]);
    }
    assert_eq!(user.search_ids("wonders"), Vec::<String>::new());
}

#[test]
fn a_json_tool_cannot_carry_a_signature() {
    let user = User::initialized();
    user.write(
        "tools/team/data.json",
        r#"{"version": "1.0.0", "tool_type": "data", "executor_id": null, "category": "team", "description": "x"}"#,
    );
    user.assert_refused(["sign", "tool", "team/data"], 9, "RYE0302");
    user.assert_refused(["sign", ".ai/tools/team/data.json"], 9, "RYE0302");
    user.assert_refused(["load", "tool", "team/data"], 4, "RYE0401");
}

#[test]
fn signing_again_leaves_the_file_alone() {
    let user = User::initialized();
    let path = user.signed_tool("same", "Same");
    let stamp = |path: &std::path::Path| {
        let metadata = fs::metadata(path).expect("there");
        (metadata.ino(), metadata.mtime(), metadata.mtime_nsec(), metadata.ctime_nsec())
    };
    let (before, bytes) = (stamp(&path), fs::read(&path).expect("read"));
    for words in [
        vec!["sign", "tool", "team/same"],
        vec!["sign", "tool:team/same"],
        vec!["sign", ".ai/tools/team/same.py"],
    ] {
        assert_eq!(user.data(&words)["unchanged"], true, "{words:?}");
    }
    assert_eq!(user.data(["sign", "tool", "team/*"])["unchanged"], 1);
    assert_eq!((stamp(&path), fs::read(&path).expect("read")), (before, bytes));
}

#[test]
fn edited_item_is_refused_until_signed() {
    let user = User::initialized();
    let path = user.signed_tool("edited", "Before");
    let edited = fs::read_to_string(&path).expect("read").replace("Before", "Behind");
    fs::write(&path, edited).expect("written");
    let refusal = user.assert_refused(["load", "tool", "team/edited"], 4, "RYE0402");
    assert_eq!(refusal["verdict"], "tampered");
    user.ok(["sign", "tool", "team/edited"]);
    user.ok(["load", "tool", "team/edited"]);
}

#[test]
fn changed_line_endings_error_has_a_remedy() {
    let user = User::initialized();
    let path = user.signed_tool("windows", "Endings");
    let windows = fs::read_to_string(&path).expect("read").replace('\n', "\r\n");
    fs::write(&path, windows).expect("written");
    let refusal = user.assert_refused(["load", "tool", "team/windows"], 4, "RYE0402");
    assert!(text(&refusal["error"]).contains("only line endings"), "{refusal}");
    assert!(text(&refusal["hints"][0]).contains(".gitattributes"), "{refusal}");
}

#[test]
fn one_bad_file_does_not_stop_a_glob() {
    let user = User::initialized();
    for name in ["a", "b", "d"] {
        user.write(&format!("tools/team/{name}.py"), rye_test::tool("team", name));
    }
    let bad = rye_test::tool("elsewhere", "c").replace("1.0.0", "1.0");
    user.write("tools/team/c.py", &bad);
    let answer = user.run(["sign", "tool", "team/*", "--json"]).error(9, "RYE0301");
    let data = &answer["data"];
    assert_eq!(data["signed"].as_array().map(Vec::len), Some(3), "{answer}");
    assert_eq!(data["failed"].as_array().map(Vec::len), Some(1), "{answer}");
    let failed = &data["failed"][0];
    assert_eq!((&failed["item"], &failed["code"]), (&json!("tool:team/c"), &json!("RYE0301")));
    let messages: Vec<String> = failed["problems"]
        .as_array()
        .expect("problems")
        .iter()
        .map(|problem| text(&problem["message"]))
        .collect();
    assert_eq!(
        messages,
        [
            "Field 'version' must be semver format (X.Y.Z), got '1.0'",
            "Field 'category' value 'elsewhere' must match path category 'team'",
        ]
    );
    assert_eq!(user.read("tools/team/c.py"), bad.as_bytes());
    for name in ["a", "b", "d"] {
        user.ok(["load", "tool", &format!("team/{name}")]);
    }
}

#[test]
fn all_item_problems_are_listed_together() {
    let user = User::initialized();
    user.write(
        "directives/team/odd.md",
        "# Odd\n\n```xml\n<directive name=\"Odd-Name\" version=\"1\">\n  <metadata>\n    <description>x</description>\n    <category>other</category>\n  </metadata>\n</directive>\n```\n\nDo it.\n",
    );
    let refusal = user.assert_refused(["sign", "directive", "team/odd"], 9, "RYE0301");
    let problems = refusal["problems"].as_array().expect("problems");
    assert!(problems.len() >= 4, "{refusal}");
    assert_eq!(
        (&refusal["line"], &refusal["path"]),
        (&json!(4), &json!(user.project().join(".ai/directives/team/odd.md").to_str()),)
    );
    let human = user.run(["sign", "directive", "team/odd"]);
    assert_eq!((human.exit, human.stdout.as_str()), (9, ""));
    assert!(human.stderr.contains("error[RYE0301]") && human.stderr.contains("odd.md:4:"), "{human}");
    assert_eq!(human.stderr.matches('•').count(), problems.len(), "{human}");
}

#[test]
fn unmatched_glob_is_not_found() {
    let user = User::initialized();
    user.assert_refused(["sign", "tool", "nowhere/*"], 3, "RYE0201");
    user.assert_refused(["sign", "tool", "team/["], 2, "RYE0104");
}

#[test]
fn signing_warns_of_ambiguous_yaml_words() {
    let user = User::initialized();
    user.write(
        "tools/team/warned.yaml",
        "version: \"1.0.0\"\ntool_type: x\nexecutor_id: null\ncategory: team\ndescription: yes\n",
    );
    let run = user.ok(["sign", "tool", "team/warned"]);
    assert!(run.stderr.contains("YAML 1.1") && run.stderr.contains(":5:14"), "{run}");
}

#[test]
fn signing_keeps_the_mode_of_a_file() {
    let user = User::initialized();
    let path = user.write("tools/team/run.sh", TOOLS[7].1);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o750)).expect("mode");
    user.ok(["sign", "tool", "team/run"]);
    assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o750);
}

#[test]
fn partly_signed_item_is_not_copied() {
    let user = User::initialized();
    // What the original signed of knowledge: the text behind its front matter, without outer white space.
    let key = fs::read_to_string(user.home().join(".ai/config/keys/signing/private_key.pem")).expect("key");
    let line = format!("<!-- {} -->", rye_test::signature(&key, b"Text"));
    let front =
        "---\nname: part\ntitle: Part\nentry_type: reference\ncategory: team\nversion: \"1.0.0\"\n---\n";
    user.write("knowledge/team/part.md", format!("{line}\n{front}\nText\n"));

    let loaded = user.run(["load", "knowledge", "team/part", "--json"]);
    assert_eq!(loaded.exit, 0, "{loaded}");
    let data = &loaded.json()["data"];
    assert_eq!((&data["verdict"], &data["coverage"]), (&json!("partial"), &json!("partial")), "{loaded}");
    assert!(loaded.stderr.contains("only a part"), "{loaded}");
    let verified = user.assert_refused(["verify", "knowledge", "team/part"], 4, "RYE0406");
    assert_eq!(verified["data"]["partial"], 1);
    assert!(!verified["data"]["items"][0]["uncovered"].as_array().expect("ranges").is_empty());
    let found = user.data(["search", "Part"]);
    assert_eq!(found["results"][0]["coverage"], "partial", "{found}");
    user.assert_refused(["load", "knowledge", "team/part", "--to", "user"], 4, "RYE0406");
    user.ok(["sign", "knowledge", "team/part"]);
    assert_eq!(user.data(["load", "knowledge", "team/part"])["coverage"], "full");
}

#[test]
fn front_matter_before_signature_is_tampering() {
    let user = User::initialized();
    let whole = rye_test::knowledge("team", "whole", "Whole", "Text").trim_end().to_owned();
    user.write("knowledge/team/whole.md", &whole);
    user.ok(["sign", "knowledge", "team/whole"]);
    let signed = String::from_utf8(user.read("knowledge/team/whole.md")).expect("text");
    let line = signed.lines().next().expect("a signature");
    let front =
        "---\nname: evil\ntitle: Evil\nentry_type: reference\ncategory: team\nversion: \"1.0.0\"\n---\n";
    user.write("knowledge/team/evil.md", format!("{line}\n{front}\n{whole}\n"));
    user.assert_refused(["load", "knowledge", "team/evil"], 4, "RYE0402");
}
