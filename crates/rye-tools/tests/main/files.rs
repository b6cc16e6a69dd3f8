//! Reading, writing, listing, finding, searching.

use serde_json::{Value, json};

use crate::support::TestProject;

fn read(project: &TestProject, parameters: Value) -> Value {
    project.ok("file_system.read", parameters)
}

#[test]
fn read_shows_numbers_ids_and_hash() {
    let project = TestProject::new();
    project.write("f", "a\r\nb\r\n");
    let answer = read(&project, json!({"path": "./f"}));
    let content = answer["content"].as_str().expect("content");
    assert!(
        content.starts_with("1 L") && content.contains("|a\n2 L") && content.ends_with("|b\n"),
        "{content}"
    );
    let without = read(&project, json!({"path": "f", "line_ids": false}));
    assert_eq!(
        without,
        json!({"path": "f", "content": "1|a\n2|b\n", "total_lines": 2, "first_line": 1, "last_line": 2,
               "truncated": false, "bytes": 6, "hash": lillux::Digest::of(b"a\r\nb\r\n").to_hex(),
               "line_ids": false, "line_ending": "crlf", "final_newline": true})
    );
}

#[test]
fn a_part_of_a_file_can_be_read() {
    let project = TestProject::new();
    project.write("f", (1..=5000).map(|number| format!("line {number}\n")).collect::<String>());
    let answer = read(&project, json!({"path": "f", "offset": 10, "limit": 2, "line_ids": false}));
    assert_eq!(answer["content"], "10|line 10\n11|line 11\n");
    assert_eq!((&answer["next_offset"], &answer["truncated"]), (&json!(12), &json!(true)));
    let answer = read(&project, json!({"path": "f"}));
    assert_eq!((&answer["last_line"], &answer["next_offset"]), (&json!(2000), &json!(2001)));
    let answer = read(&project, json!({"path": "f", "offset": 4999, "line_ids": false}));
    assert_eq!((&answer["last_line"], &answer["truncated"]), (&json!(5000), &json!(false)));
    let answer = read(&project, json!({"path": "f", "offset": 6000}));
    assert_eq!(
        (&answer["content"], &answer["note"]),
        (&json!(""), &json!("line 6000 is out of range: the file has 5000 lines"))
    );
}

#[test]
fn read_output_is_bounded() {
    let project = TestProject::new();
    project.write("wide", "é".repeat(5000) + "\n");
    let content = read(&project, json!({"path": "wide", "line_ids": false}))["content"].clone();
    assert_eq!(content, json!(format!("1|{}… [3000 more characters]\n", "é".repeat(2000))));
    project.write("heavy", format!("{}\n", "x".repeat(1500)).repeat(1000));
    let answer = read(&project, json!({"path": "heavy"}));
    assert!(answer["content"].as_str().expect("content").len() < 203 * 1024);
    assert_eq!(answer["truncated"], true);
    assert_eq!(answer["total_lines"], 1000);
}

#[test]
fn a_huge_file_is_read_in_part() {
    let fixture = TestProject::new();
    fixture.write("huge", format!("{}\n", "x".repeat(99)).repeat(200_000));
    let answer = read(&fixture, json!({"path": "huge", "offset": 150_000, "limit": 1}));
    assert_eq!((&answer["total_lines"], &answer["line_ids"]), (&json!(200_000), &json!(false)));
    assert!(answer["content"].as_str().expect("content").starts_with("150000|xxx"));
    assert!(answer["note"].as_str().expect("note").contains("larger than 16 MiB"));
    assert!(
        fixture
            .call(
                "file_system.edit_lines",
                json!({"path": "huge", "changes": [{"insert_after": "end", "new_content": "x"}]})
            )
            .is_err()
    );
    // Sparse, and past what is looked through.
    let file = std::fs::OpenOptions::new().write(true).open(fixture.project().join("huge")).expect("open");
    file.set_len(300 * 1024 * 1024).expect("longer");
    let answer = read(&fixture, json!({"path": "huge", "limit": 1}));
    assert_eq!((&answer["total_lines"], &answer["truncated"]), (&Value::Null, &json!(true)));
}

#[test]
fn binary_files_are_described() {
    let project = TestProject::new();
    project.write("p.png", b"\x89PNG\r\n\x1a\n\0\0\0");
    assert_eq!(
        read(&project, json!({"path": "p.png"})),
        json!({"path": "p.png", "binary": true, "type": "PNG image", "bytes": 11,
               "content": "[binary file: PNG image, 11 bytes; not shown]", "truncated": false})
    );
    project.write("latin", b"gr\xfcn\n");
    let answer = read(&project, json!({"path": "latin"}));
    assert_eq!((&answer["content"], &answer["line_ids"]), (&json!("1|gr\u{fffd}n\n"), &json!(false)));
    assert!(answer["note"].as_str().expect("note").contains("not UTF-8"));
    project.write("empty", "");
    assert_eq!(read(&project, json!({"path": "empty"}))["total_lines"], 0);
}

#[test]
fn write_reports_its_changes() {
    let fixture = TestProject::new();
    let write = |parameters: Value| fixture.call("file_system.write", parameters);
    let answer = write(json!({"path": "a/b/f", "content": "1\n"})).expect("written");
    let hash = lillux::Digest::of(b"1\n").to_hex();
    assert_eq!(
        answer,
        json!({"path": "a/b/f", "created": true, "changed": true, "bytes": 2, "hash": hash,
               "diff": "--- a/a/b/f\n+++ b/a/b/f\n@@ -0,0 +1 @@\n+1\n", "diff_truncated": false})
    );
    let answer = write(json!({"path": "a/b/f", "content": "1\n"})).expect("the same");
    assert_eq!(
        (&answer["created"], &answer["changed"], &answer["diff"]),
        (&json!(false), &json!(false), &json!(""))
    );
    let error =
        write(json!({"path": "a/b/f", "content": "2\n", "expected_hash": "absent"})).expect_err("there");
    assert_eq!(error.data, Some(json!({"expected_hash": "absent", "hash": hash})));
    write(json!({"path": "a/b/f", "content": "2\n", "expected_hash": hash})).expect("as expected");
    write(json!({"path": "a/b/f", "content": "3\n", "expected_hash": hash})).expect_err("changed since");
    assert_eq!(fixture.read("a/b/f"), "2\n");
    write(json!({"path": "n/f", "content": "", "expected_hash": hash})).expect_err("nothing there");
    write(json!({"path": "n/f", "content": "", "create_folders": false})).expect_err("no folder");
    assert!(!fixture.project().join("n").exists());
    write(json!({"path": "a/b/f/g", "content": ""})).expect_err("a file is not a folder");
    write(json!({"path": "new", "content": "x", "expected_hash": "absent"})).expect("new");
    assert_eq!(std::fs::read_dir(fixture.project().join("a/b")).expect("list").count(), 1);
}

#[test]
fn a_read_only_file_is_not_replaced() {
    use std::os::unix::fs::PermissionsExt;
    let fixture = TestProject::new();
    fixture.write("f", "a");
    std::fs::set_permissions(fixture.project().join("f"), std::fs::Permissions::from_mode(0o444))
        .expect("mode");
    let error =
        fixture.call("file_system.write", json!({"path": "f", "content": "b"})).expect_err("read-only");
    assert!(error.message.contains("read-only for everybody"), "{error}");
}

fn world_with_tree() -> TestProject {
    let project = TestProject::new();
    project.write("src/main.rs", "fn main() {}\n");
    project.write("src/deep/lib.rs", "pub fn lib() {}\n");
    project.write("README.md", "# Read\n");
    project.write(".gitignore", "target/\n*.log\n!keep.log\n/src/deep/gen.rs\n");
    project.write("target/out.rs", "fn out() {}\n");
    project.write("a.log", "fn log\n");
    project.write("keep.log", "fn keep\n");
    project.write("src/deep/gen.rs", "fn gen() {}\n");
    project.write("src/deep/.gitignore", "local.rs\n");
    project.write("src/deep/local.rs", "fn local() {}\n");
    project.write(".ai/tools/t.py", "def fn(): pass\n");
    project.write(".hidden/h.rs", "fn h() {}\n");
    project.write(".git/config", "fn git\n");
    project
}

fn file_paths(answer: &Value) -> Vec<String> {
    let mut files: Vec<String> = answer["files"]
        .as_array()
        .expect("files")
        .iter()
        .map(|file| file.as_str().or(file["path"].as_str()).expect("path").to_owned())
        .collect();
    files.sort();
    files
}

#[test]
fn patterns_find_files() {
    let project = world_with_tree();
    let glob = |parameters: Value| file_paths(&project.ok("file_system.glob", parameters));
    assert_eq!(glob(json!({"pattern": "**/*.rs"})), ["src/deep/lib.rs", "src/main.rs"]);
    assert_eq!(glob(json!({"pattern": "*.{md,log}"})), ["README.md", "keep.log"]);
    assert_eq!(glob(json!({"pattern": "src/*.rs"})), ["src/main.rs"]);
    assert_eq!(glob(json!({"pattern": "**/*.rs", "path": "src/deep"})), ["src/deep/lib.rs"]);
    assert_eq!(glob(json!({"pattern": "**/*.py"})), [".ai/tools/t.py"]);
    assert_eq!(glob(json!({"pattern": ".hidden/*"})), [".hidden/h.rs"]);
    assert_eq!(glob(json!({"pattern": "target/*.rs"})), ["target/out.rs"]);
    assert_eq!(glob(json!({"pattern": "none/*.rs"})), Vec::<String>::new());
    assert_eq!(
        glob(json!({"pattern": "**/*.rs", "respect_gitignore": false, "include_hidden": true})),
        [
            ".hidden/h.rs",
            "src/deep/gen.rs",
            "src/deep/lib.rs",
            "src/deep/local.rs",
            "src/main.rs",
            "target/out.rs"
        ]
    );
    assert!(
        !glob(json!({"pattern": "**/*", "include_hidden": true}))
            .iter()
            .any(|path| path.starts_with(".git/"))
    );
    assert_eq!(glob(json!({"pattern": ".git/*"})), [".git/config"]);
    assert!(project.call("file_system.glob", json!({"pattern": "a[", "path": "src"})).is_err());
    assert!(project.call("file_system.glob", json!({"pattern": "*", "path": "none"})).is_err());
}

#[test]
fn newest_file_comes_first() {
    let fixture = TestProject::new();
    for (name, age) in [("old", 30), ("new", 10), ("middle", 20)] {
        fixture.write(name, "");
        let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000 - age);
        let file = std::fs::File::options().write(true).open(fixture.project().join(name)).expect("open");
        file.set_modified(time).expect("time");
    }
    let answer = fixture.ok("file_system.glob", json!({"pattern": "*", "limit": 2}));
    assert_eq!(
        answer,
        json!({"pattern": "*", "files": ["new", "middle"], "count": 2, "total": 3, "truncated": true,
               "sorted_by": "modification time, newest first"})
    );
}

#[test]
fn lines_are_searched() {
    let project = world_with_tree();
    let grep = |parameters: Value| project.ok("file_system.grep", parameters);
    assert_eq!(
        grep(json!({"pattern": r"^(pub )?fn \w+"})),
        json!({"pattern": r"^(pub )?fn \w+", "files": [
                   {"path": "keep.log", "count": 1}, {"path": "src/deep/lib.rs", "count": 1}, {"path": "src/main.rs", "count": 1}],
               "file_count": 3, "truncated": false,
               "content": "keep.log\n1:fn keep\n\nsrc/deep/lib.rs\n1:pub fn lib() {}\n\nsrc/main.rs\n1:fn main() {}\n",
               "matches": 3})
    );
    assert_eq!(
        file_paths(&grep(json!({"pattern": "fn", "include": "*.rs", "output_mode": "files"}))),
        ["src/deep/lib.rs", "src/main.rs"]
    );
    assert_eq!(
        file_paths(&grep(json!({"pattern": "fn", "include": "deep/*.rs", "path": "src"}))),
        ["src/deep/lib.rs"]
    );
    assert_eq!(file_paths(&grep(json!({"pattern": "fn", "path": "src/main.rs"}))), ["src/main.rs"]);
    assert_eq!(
        file_paths(&grep(json!({"pattern": "FN MAIN()", "fixed": true, "case_insensitive": true}))),
        ["src/main.rs"]
    );
    assert_eq!(grep(json!({"pattern": "fn", "output_mode": "count"}))["matches"], 4);
    assert_eq!(grep(json!({"pattern": "nowhere"}))["content"], "");
    assert!(project.call("file_system.grep", json!({"pattern": "x", "path": "none"})).is_err());
}

#[test]
fn context_lines_are_not_repeated() {
    let project = TestProject::new();
    project.write("f", "1\n2\nhit a\n4\nhit b\n6\n7\n8\n9\nhit c\nhit d\n");
    let show = |context: usize| {
        let answer = project.ok("file_system.grep", json!({"pattern": "hit", "context": context}));
        answer["content"].as_str().expect("content").to_owned()
    };
    assert_eq!(show(0), "f\n3:hit a\n5:hit b\n10:hit c\n11:hit d\n");
    assert_eq!(show(1), "f\n2-2\n3:hit a\n4-4\n5:hit b\n6-6\n--\n9-9\n10:hit c\n11:hit d\n");
    assert_eq!(show(3), "f\n1-1\n2-2\n3:hit a\n4-4\n5:hit b\n6-6\n7-7\n8-8\n9-9\n10:hit c\n11:hit d\n");
}

#[test]
fn a_match_never_spans_lines() {
    let project = TestProject::new();
    project.write("f", "a\nb\r\n\r\na b\n");
    let numbers = |pattern: &str| -> Vec<String> {
        let answer = project.ok("file_system.grep", json!({"pattern": pattern}));
        let content = answer["content"].as_str().expect("content").to_owned();
        content.lines().skip(1).map(|line| line.split(':').next().unwrap_or_default().to_owned()).collect()
    };
    assert_eq!(numbers(r"a\sb"), ["4"]);
    assert_eq!(numbers(r"a[^x]*b"), ["4"]);
    assert_eq!(numbers(r"^$"), ["3"]);
    assert_eq!(numbers(r"b$"), ["2", "4"]);
    assert_eq!(numbers(r"\Aa"), ["1", "4"]);
    assert_eq!(numbers(r"(?s)a.b"), ["4"]);
    assert_eq!(numbers(r"x*"), ["1", "2", "3", "4"]);
}

#[test]
fn search_is_bounded_and_skips_binaries() {
    let project = TestProject::new();
    project.write("binary", b"hit\0hit\n");
    project.write("long", format!("{}hit\n", "x".repeat(10_000)));
    project.write("many", "hit\n".repeat(1000));
    let answer = project.ok("file_system.grep", json!({"pattern": "hit", "limit": 5}));
    assert_eq!((&answer["matches"], &answer["truncated"]), (&json!(5), &json!(true)));
    let content = answer["content"].as_str().expect("content");
    assert!(
        content.contains("more characters]") && content.len() < 1000 && !content.contains("binary"),
        "{content}"
    );
    // Larger than one piece: numbers continue.
    project.write("many", format!("{}\n", "y".repeat(999)).repeat(20_000) + "needle\n");
    let answer = project.ok("file_system.grep", json!({"pattern": "needle"}));
    assert_eq!(answer["content"], "many\n20001:needle\n");
}

#[test]
fn a_bad_pattern_is_explained() {
    let project = TestProject::new();
    let error = project.call("file_system.grep", json!({"pattern": "ab(c"})).expect_err("bad");
    assert!(error.message.contains("unclosed group"), "{error}");
    assert_eq!(error.data, Some(json!({"pattern": "ab(c", "column": 3})));
    let error = project.call("file_system.grep", json!({"pattern": r"\w{1000}{1000}"})).expect_err("big");
    assert!(error.message.contains("cannot be used"), "{error}");
}

#[test]
fn a_folder_is_listed() {
    let project = world_with_tree();
    project.symlink("src", "link");
    let answer = project.ok("file_system.ls", json!({"depth": 2, "path": "src"}));
    assert_eq!(
        answer,
        json!({"path": "src", "count": 5, "entries": [
                   {"path": "src/deep", "type": "folder"},
                   {"path": "src/deep/gen.rs", "type": "file", "size": 12},
                   {"path": "src/deep/lib.rs", "type": "file", "size": 16},
                   {"path": "src/deep/local.rs", "type": "file", "size": 14},
                   {"path": "src/main.rs", "type": "file", "size": 13}],
               "content": "src/\n  deep/\n    gen.rs  12\n    lib.rs  16\n    local.rs  14\n  main.rs  13\n",
               "truncated": false})
    );
    let answer = project.ok("file_system.ls", json!({}));
    assert_eq!(
        answer["content"],
        "./\n  .ai/\n  README.md  7\n  a.log  7\n  keep.log  8\n  link -> src\n  src/\n  target/\n"
    );
    let answer = project.ok("file_system.ls", json!({"limit": 2}));
    assert_eq!((&answer["count"], &answer["truncated"]), (&json!(2), &json!(true)));
    assert!(project.call("file_system.ls", json!({"path": "README.md"})).is_err());
}

#[test]
fn non_utf8_names_are_displayed() {
    use std::os::unix::ffi::OsStrExt;
    let fixture = TestProject::new();
    let name = std::ffi::OsStr::from_bytes(b"gr\xfcn");
    std::fs::File::options()
        .create(true)
        .write(true)
        .truncate(true)
        .open(fixture.project().join(name))
        .expect("made");
    assert_eq!(fixture.ok("file_system.ls", json!({}))["entries"][0]["path"], "gr\u{fffd}n");
    assert_eq!(fixture.ok("file_system.glob", json!({"pattern": "*"}))["files"], json!(["gr\u{fffd}n"]));
}

#[test]
fn facts_can_be_requested_individually() {
    let project = TestProject::new();
    let keys = |parameters: Value| -> Vec<String> {
        project.ok("system.facts", parameters).as_object().expect("an object").keys().cloned().collect()
    };
    assert_eq!(keys(json!({"item": "paths"})), ["item", "paths"]);
    assert_eq!(keys(json!({"item": "time"})), ["item", "time"]);
    assert_eq!(keys(json!({"item": "runtime"})), ["item", "runtime"]);
    assert_eq!(keys(json!({})), ["item", "paths", "time", "runtime"]);
    assert!(project.call("system.facts", json!({"item": "secrets"})).is_err());
}
