//! Editing by line: ids that stay, changes that do not shift each other, bytes that are kept.

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::support::TestProject;

const EDIT: &str = "file_system.edit_lines";

fn line_ids(project: &TestProject, path: &str) -> Vec<String> {
    project.lines(path).into_iter().map(|(id, _)| id).collect()
}

#[test]
fn changes_refer_to_the_version_read() {
    let project = TestProject::new();
    project.write("f", "a\nb\nc\nd\ne\n");
    let ids = line_ids(&project, "f");
    let answer = project.ok(
        EDIT,
        json!({"path": "f", "changes": [
            {"insert_after": "end", "new_content": "last"},
            {"line_id": ids[3], "delete": true},
            {"line_id": ids[0], "new_content": "A1\nA2\nA3\n"},
            {"insert_before": ids[1], "new_content": "before b"},
            {"insert_after": ids[1], "new_content": ""},
        ]}),
    );
    assert_eq!(project.read("f"), "A1\nA2\nA3\nbefore b\nb\n\nc\ne\nlast\n");
    assert_eq!((&answer["total_lines"], &answer["changed"]), (&json!(9), &json!(true)));
    assert!(answer["diff"].as_str().expect("diff").contains("-d\n"), "{answer}");
    let after = project.lines("f");
    for (old, text) in [(1, "b"), (2, "c"), (4, "e")] {
        assert!(after.contains(&(ids[old].clone(), text.to_owned())), "{after:?}");
    }
    // The ids in the answer are the ids of the next read.
    let read = project.ok("file_system.read", json!({"path": "f"}));
    for line in answer["content"].as_str().expect("content").lines().filter(|line| *line != "…") {
        assert!(read["content"].as_str().expect("content").lines().any(|known| known == line), "{line}");
    }
    assert_eq!(answer["hash"], read["hash"]);
}

#[test]
fn duplicate_lines_have_distinct_ids() {
    let project = TestProject::new();
    project.write("f", "x\n\nx\n\nx\n");
    let ids = line_ids(&project, "f");
    project.ok(EDIT, json!({"path": "f", "changes": [{"line_id": ids[2], "new_content": "middle"}]}));
    assert_eq!(project.read("f"), "x\n\nmiddle\n\nx\n");
    project.ok(EDIT, json!({"path": "f", "changes": [{"insert_after": "start", "new_content": "x"}]}));
    project.ok(EDIT, json!({"path": "f", "changes": [{"line_id": ids[0], "new_content": "first"}]}));
    assert_eq!(project.read("f"), "x\nfirst\n\nmiddle\n\nx\n");
    project
        .ok(EDIT, json!({"path": "f", "changes": [{"start_id": ids[3], "end_id": ids[4], "delete": true}]}));
    assert_eq!(project.read("f"), "x\nfirst\n\nmiddle\n");
}

#[test]
fn ids_survive_external_edits() {
    let project = TestProject::new();
    project.write("f", "one\ntwo\n\nthree\n\nfour\n");
    let before = project.lines("f");
    project.write("f", "zero\none\n\nthree\nnew\n\nfour\n");
    let after = project.lines("f");
    for (id, text) in before.iter().filter(|(_, text)| text != "two") {
        assert!(after.contains(&(id.clone(), text.clone())), "{text}: {after:?}");
    }
    let error = project
        .call(EDIT, json!({"path": "f", "changes": [{"line_id": before[1].0, "new_content": "2"}]}))
        .expect_err("gone");
    assert!(error.message.contains("was changed or removed since (it was near line 2)"), "{error}");
    let candidates = &error.data.expect("facts")["problems"][0]["candidates"];
    assert_eq!(candidates[1], json!({"line": 2, "line_id": before[0].0, "text": "one"}));
    assert_eq!(project.read("f"), "zero\none\n\nthree\nnew\n\nfour\n");
}

#[test]
fn lost_cache_never_moves_an_id() {
    let project = TestProject::new();
    project.write("f", "u\nx\nx\nv\n");
    let ids = line_ids(&project, "f");
    std::fs::remove_dir_all(project.cache()).expect("removed");
    // The same version: every id still holds.
    project.ok(EDIT, json!({"path": "f", "changes": [{"line_id": ids[2], "new_content": "y"}]}));
    assert_eq!(project.read("f"), "u\nx\ny\nv\n");
    // Another version: lines that looked alike are refused, unique ones hold.
    project.write("f", "u\nx\nx\nx\nv\n");
    std::fs::remove_dir_all(project.cache()).expect("removed");
    assert!(
        project
            .call(EDIT, json!({"path": "f", "changes": [{"line_id": ids[1], "new_content": "z"}]}))
            .is_err()
    );
    project.ok(EDIT, json!({"path": "f", "changes": [{"line_id": ids[3], "new_content": "V"}]}));
    assert_eq!(project.read("f"), "u\nx\nx\nx\nV\n");
}

#[test]
fn line_endings_and_bom_are_preserved() {
    let project = TestProject::new();
    for (before, line, new, after) in [
        ("a\r\nb\r\nc\r\n", 1, "B1\nB2", "a\r\nB1\r\nB2\r\nc\r\n"),
        ("a\r\nb\nc", 2, "C", "a\r\nb\nC"),
        ("a\nb", 1, "B1\nB2\n", "a\nB1\nB2"),
        ("\u{feff}a\nb\n", 0, "A", "\u{feff}A\nb\n"),
        ("grün\n日本\n", 1, "日本語 🦀", "grün\n日本語 🦀\n"),
        ("a\rb\nc\n", 0, "x", "x\nc\n"),
    ] {
        project.write("f", before);
        let ids = line_ids(&project, "f");
        project.ok(EDIT, json!({"path": "f", "changes": [{"line_id": ids[line], "new_content": new}]}));
        assert_eq!(project.read("f"), after);
    }
    project.write("f", "a\nb");
    project.ok(EDIT, json!({"path": "f", "changes": [{"insert_after": "end", "new_content": "c"}]}));
    assert_eq!(project.read("f"), "a\nb\nc");
    let ids = line_ids(&project, "f");
    project.ok(EDIT, json!({"path": "f", "changes": [{"line_id": ids[2], "delete": true}]}));
    assert_eq!(project.read("f"), "a\nb");
}

#[test]
fn files_can_be_filled_and_emptied() {
    let project = TestProject::new();
    project.write("f", "");
    project.ok(EDIT, json!({"path": "f", "changes": [{"insert_after": "start", "new_content": "a\nb"}]}));
    assert_eq!(project.read("f"), "a\nb\n");
    let ids = line_ids(&project, "f");
    project
        .ok(EDIT, json!({"path": "f", "changes": [{"start_id": ids[0], "end_id": ids[1], "delete": true}]}));
    assert_eq!(project.read("f"), "");
}

#[test]
fn line_numbers_need_the_expected_hash() {
    let project = TestProject::new();
    project.write("f", "a\nb\nc\n");
    let hash = project.ok("file_system.read", json!({"path": "f"}))["hash"].clone();
    let changes = json!([{"line": 2, "new_content": "B"}, {"insert_after_line": 0, "new_content": "top"}]);
    let error = project.call(EDIT, json!({"path": "f", "changes": changes})).expect_err("refused");
    assert!(error.message.contains("pass `expected_hash`"), "{error}");
    project.ok(EDIT, json!({"path": "f", "changes": changes, "expected_hash": hash}));
    assert_eq!(project.read("f"), "top\na\nB\nc\n");
    let error = project
        .call(EDIT, json!({"path": "f", "changes": changes, "expected_hash": hash}))
        .expect_err("stale");
    assert!(error.message.contains("not the version you expected"), "{error}");
    assert_eq!(project.read("f"), "top\na\nB\nc\n");
}

#[test]
fn invalid_changes_are_all_reported() {
    let project = TestProject::new();
    project.write("f", "a\nb\nc\nd\n");
    let ids = line_ids(&project, "f");
    let hash = project.ok("file_system.read", json!({"path": "f"}))["hash"].clone();
    let problems = |changes: Value| -> Vec<String> {
        let error = project
            .call(EDIT, json!({"path": "f", "changes": changes, "expected_hash": hash}))
            .expect_err("refused");
        assert_eq!(project.read("f"), "a\nb\nc\nd\n");
        let data = error.data.expect("facts");
        let list = data["problems"].as_array().expect("problems");
        list.iter().map(|problem| problem["error"].as_str().expect("text").to_owned()).collect()
    };
    let typo = {
        let wrong = if ids[0].ends_with('0') { "1" } else { "0" };
        format!("{}{wrong}", &ids[0][..7])
    };
    assert_eq!(
        problems(json!([
            {"line_id": ids[0]},
            {"new_content": "x"},
            {"line_id": ids[0], "line": 1, "new_content": "x"},
            {"line_id": "nonsense", "new_content": "x"},
            {"line_id": typo, "new_content": "x"},
            {"start_id": ids[2], "end_id": ids[0], "new_content": "x"},
            {"insert_after": ids[2], "delete": true},
            {"line_id": ids[0], "new_content": "x", "delete": true},
            {"line": 9, "new_content": "x"},
            7,
        ])),
        [
            "give `new_content`, or `delete: true`".to_owned(),
            "it does not say where: give `line_id`, `start_id` and `end_id`, `insert_after` or `insert_before`"
                .to_owned(),
            "`line_id`, `line` do not go together: give `line_id`, or `start_id` and `end_id`, or `line`, or \
             `start_line` and `end_line`, or one of `insert_after`, `insert_before`, `insert_after_line`"
                .to_owned(),
            "`nonsense` is not a line id: they look like `L3fk2x9q`, from a read".to_owned(),
            format!("no line has the id `{typo}`: read the file again"),
            "its range ends (line 1) before it begins (line 3)".to_owned(),
            "an insertion needs `new_content`".to_owned(),
            "it has both `new_content` and `delete`: give one".to_owned(),
            "line 9 is out of range: the file has 4 lines".to_owned(),
            "it must be an object".to_owned(),
        ]
    );
    for overlap in [
        json!([{"start_id": ids[0], "end_id": ids[2], "new_content": "x"}, {"line_id": ids[1], "delete": true}]),
        json!([{"line_id": ids[1], "new_content": "x"}, {"line_id": ids[1], "new_content": "y"}]),
        json!([{"start_id": ids[0], "end_id": ids[1], "new_content": "x"}, {"insert_after": ids[0], "new_content": "y"}]),
        json!([{"insert_after": ids[0], "new_content": "x"}, {"insert_before": ids[1], "new_content": "y"}]),
    ] {
        assert_eq!(problems(overlap), ["it overlaps change 1: make them one"]);
    }
}

#[test]
fn binary_files_are_not_edited() {
    let project = TestProject::new();
    let change = json!([{"insert_after": "start", "new_content": "x"}]);
    project.write("latin", b"gr\xfcn\n");
    let error = project.call(EDIT, json!({"path": "latin", "changes": change})).expect_err("refused");
    assert!(error.message.contains("is not UTF-8 (byte 3)"), "{error}");
    project.write("binary", b"a\0b");
    let error = project.call(EDIT, json!({"path": "binary", "changes": change})).expect_err("refused");
    assert!(error.message.contains("is a binary file"), "{error}");
    let error = project.call(EDIT, json!({"path": "none", "changes": change})).expect_err("refused");
    assert!(error.message.contains("file or folder not found"), "{error}");
}

#[test]
fn edit_keeps_mode_and_leaves_no_files() {
    use std::os::unix::fs::PermissionsExt;
    let fixture = TestProject::new();
    fixture.write("run.sh", "a\n");
    let path = fixture.project().join("run.sh");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o750)).expect("mode");
    fixture.ok(EDIT, json!({"path": "run.sh", "changes": [{"insert_after": "end", "new_content": "b"}]}));
    assert_eq!(std::fs::metadata(&path).expect("metadata").permissions().mode() & 0o7777, 0o750);
    assert_eq!(std::fs::read_dir(fixture.project()).expect("list").count(), 1);
}

/// One line as a test knows it: a name no one else has, and a text others may have too.
#[derive(Clone, Debug)]
struct TrackedLine {
    id: String,
    text: String,
}

#[derive(Clone, Debug)]
enum EditStep {
    Replace(usize, usize, Vec<u8>),
    Delete(usize, usize),
    Insert(usize, Vec<u8>),
}

fn edit_step() -> impl Strategy<Value = EditStep> {
    let texts = || prop::collection::vec(0_u8..4, 1..4);
    prop_oneof![
        (any::<usize>(), 1_usize..4, texts())
            .prop_map(|(at, length, new)| EditStep::Replace(at, length, new)),
        (any::<usize>(), 1_usize..3).prop_map(|(at, length)| EditStep::Delete(at, length)),
        (any::<usize>(), texts()).prop_map(|(at, new)| EditStep::Insert(at, new)),
    ]
}

fn texts(new: &[u8]) -> Vec<String> {
    new.iter().map(|letter| ["", "x", "}", "long line"][usize::from(*letter)].to_owned()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn surviving_lines_keep_their_ids(
        start in prop::collection::vec(0_u8..4, 0..10),
        calls in prop::collection::vec(prop::collection::vec(edit_step(), 1..3), 1..6),
        ending in prop::sample::select(vec!["\n", "\r\n"]),
    ) {
        let world = TestProject::new();
        world.write("f", texts(&start).iter().map(|line| format!("{line}{ending}")).collect::<String>());
        let mut model: Vec<TrackedLine> =
            world.lines("f").into_iter().map(|(id, text)| TrackedLine { id, text }).collect();
        let mut was_empty = false;
        for steps in calls {
            let mut changes = Vec::new();
            let mut used = vec![false; model.len() + 1];
            let mut planned: Vec<(usize, usize, Vec<String>)> = Vec::new();
            for step in steps {
                let (at, length, new) = match step {
                    EditStep::Insert(at, new) => (at % (model.len() + 1), 0, texts(&new)),
                    EditStep::Replace(at, length, new) if !model.is_empty() => {
                        let at = at % model.len();
                        (at, length.min(model.len() - at), texts(&new))
                    }
                    EditStep::Delete(at, length) if !model.is_empty() => {
                        let at = at % model.len();
                        (at, length.min(model.len() - at), Vec::new())
                    }
                    EditStep::Replace(..) | EditStep::Delete(..) => continue,
                };
                if used[at..=(at + length).min(model.len())].contains(&true) {
                    continue;
                }
                used[at..=at + length].fill(true);
                let mut change = match (length, at) {
                    (0, 0) => json!({"insert_after": "start"}),
                    (0, _) => json!({"insert_after": model[at - 1].id}),
                    (1, _) => json!({"line_id": model[at].id}),
                    _ => json!({"start_id": model[at].id, "end_id": model[at + length - 1].id}),
                };
                if new.is_empty() {
                    change["delete"] = json!(true);
                } else {
                    change["new_content"] = json!(new.join("\n") + "\n");
                }
                changes.push(change);
                planned.push((at, length, new));
            }
            if changes.is_empty() {
                continue;
            }
            world.ok(EDIT, json!({"path": "f", "changes": changes}));
            planned.sort_by_key(|(at, ..)| std::cmp::Reverse(*at));
            let mut expected: Vec<(Option<String>, String)> =
                model.iter().map(|known| (Some(known.id.clone()), known.text.clone())).collect();
            for (at, length, new) in planned {
                expected.splice(at..at + length, new.into_iter().map(|text| (None, text)));
            }
            let after = world.lines("f");
            prop_assert_eq!(after.len(), expected.len());
            for ((id, text), (expected_id, expected_text)) in after.iter().zip(&expected) {
                prop_assert_eq!(text, expected_text);
                if let Some(expected_id) = expected_id {
                    prop_assert_eq!(id, expected_id);
                }
                // A new line never takes the name of a line with another text.
                if let Some(old) = model.iter().find(|known| known.id == *id) {
                    prop_assert_eq!(&old.text, text);
                }
            }
            let raw = world.read("f");
            let whole: String = expected.iter().map(|(_, text)| format!("{text}{ending}")).collect();
            // A file that was empty once has forgotten what its endings were.
            was_empty |= model.is_empty();
            if was_empty {
                prop_assert_eq!(raw.replace("\r\n", "\n"), whole.replace("\r\n", "\n"));
            } else {
                prop_assert_eq!(raw, whole);
            }
            model = after.into_iter().map(|(id, text)| TrackedLine { id, text }).collect();
        }
    }
}
