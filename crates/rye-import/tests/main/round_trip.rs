//! What came in comes out, and a second import changes nothing.

use lillux_hash::Digest;
use proptest::prelude::*;
use rye_import::export::{ExportRecord, ExportState, compare_files};
use rye_import::{ExportClient, ExportFile, ImportedItem, ItemChange, decide_change};

use crate::support::{export, item, plan};

#[test]
fn skills_come_out_byte_for_byte() {
    for text in [
        "---\nname: s\ndescription: d\n---\n\n# S\n\nText\n",
        "\u{feff}---\r\nname: s\r\ndescription: \"é <x> & 'y'\"\r\n---\r\nBody\r\n",
        "---\nname: s\ndescription: d\n---",
        "---\nname: s\ndescription: d\ncontext: fork\n---\nDo $ARGUMENTS\n```xml\n<a/>\n```\n",
        "---\nname: s\ndescription: |\n  a\n  b\nargument-hint: x\n---\n$1 and $2\n\n\n",
        "no front matter at all",
    ] {
        let page = "---\ntitle: x\n---\n\nPage\r\n";
        let files = [
            ("s/SKILL.md", text),
            ("s/references/a b.md", page),
            ("s/data/x.yaml", "a: 1"),
            ("s/run.sh", "echo\n"),
        ];
        let plan = plan(&files);
        let name = plan.items[0].item.to_string();
        for client in [ExportClient::ClaudeCode, ExportClient::Codex, ExportClient::AgentPlugin] {
            let exported = export(&plan, &name, client);
            assert_eq!(exported.len(), files.len());
            for (path, bytes) in files {
                let found =
                    exported.iter().find(|file| file.path.ends_with(&path["s".len()..])).expect("the file");
                assert_eq!(String::from_utf8_lossy(&found.bytes), bytes, "{path}");
            }
        }
    }
}

#[test]
fn agents_commands_and_rules_come_out() {
    let agent = "---\nname: a-b\ndescription: d\ntools: Read\n---\n\nYou are.\n";
    let command = "---\nargument-hint: x\n---\nDo $ARGUMENTS, costs $1\n";
    let rule = "---\ndescription: d\nglobs: **/*\nalwaysApply: false\n---\n\n- x\n";
    let codex = "name = \"c\"\ndescription = \"d\"\ndeveloper_instructions = \"x\"\n";
    let plan = plan(&[
        (".claude/agents/a-b.md", agent),
        (".claude/commands/x/do.md", command),
        (".cursor/rules/r.mdc", rule),
        (".codex/agents/c.toml", codex),
        ("AGENTS.md", "# Hi\n"),
    ]);
    for (name, client, path, text) in [
        ("directive:agents/a_b", ExportClient::ClaudeCode, ".claude/agents/a-b.md", agent),
        ("directive:commands/x/do", ExportClient::ClaudeCode, ".claude/commands/x/do.md", command),
        ("knowledge:rules/r", ExportClient::Cursor, ".cursor/rules/r.mdc", rule),
        ("directive:agents/c", ExportClient::Codex, ".codex/agents/c.toml", codex),
        ("knowledge:instructions/agents", ExportClient::Codex, "AGENTS.md", "# Hi\n"),
        ("knowledge:instructions/agents", ExportClient::ClaudeCode, "CLAUDE.md", "# Hi\n"),
    ] {
        let files = export(&plan, name, client);
        assert_eq!((files[0].path.as_str(), String::from_utf8_lossy(&files[0].bytes).as_ref()), (path, text));
    }
    let other = export(&plan, "directive:agents/c", ExportClient::ClaudeCode);
    assert!(
        String::from_utf8_lossy(&other[0].bytes).contains("tools: []"),
        "omitted tools mean all of them there"
    );
    let toml = export(&plan, "directive:agents/a_b", ExportClient::Codex);
    assert!(String::from_utf8_lossy(&toml[0].bytes).contains("sandbox_mode = \"read-only\""));
}

/// Their own names say otherwise.
#[test]
fn exports_go_back_to_their_source() {
    let agent = "---\nname: Reader\ndescription: d\ntools: Read\n---\n\nRead.\n";
    let plan = plan(&[
        (".claude/skills/big/SKILL.md", "---\nname: Big Skill\ndescription: d\n---\nBig\n"),
        (".claude/skills/big/a.txt", "a"),
        (".claude/agents/team/one.md", agent),
        (".codex/agents/two.toml", "name = \"c\"\ndescription = \"d\"\ndeveloper_instructions = \"x\"\n"),
        (".cursor/commands/do it.md", "\nDo it\n"),
    ]);
    for (name, client, paths) in [
        (
            "knowledge:skills/Big-Skill",
            ExportClient::ClaudeCode,
            &[".claude/skills/big/SKILL.md", ".claude/skills/big/a.txt"][..],
        ),
        (
            "knowledge:skills/Big-Skill",
            ExportClient::Cursor,
            &[".cursor/skills/Big-Skill/SKILL.md", ".cursor/skills/Big-Skill/a.txt"][..],
        ),
        ("directive:agents/team/reader", ExportClient::ClaudeCode, &[".claude/agents/team/one.md"][..]),
        ("directive:agents/team/reader", ExportClient::Cursor, &[".cursor/agents/Reader.md"][..]),
        ("directive:agents/c", ExportClient::Codex, &[".codex/agents/two.toml"][..]),
        ("directive:commands/do_it", ExportClient::Cursor, &[".cursor/commands/do it.md"][..]),
    ] {
        let files = export(&plan, name, client);
        let found: Vec<&str> = files.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(found, paths, "{name}");
        let is_back =
            matches!(client, ExportClient::ClaudeCode | ExportClient::Codex) || name.contains("commands");
        assert!(files.iter().all(|file| file.is_at_source() == is_back), "{name}");
        assert!(files.iter().all(|file| file.is_as_imported(&Digest::of(&file.bytes))), "{name}");
    }
}

/// What lies there is what the import read, was changed since, or is unknown.
#[test]
fn sources_of_items_are_compared() {
    let text = |body: &str| format!("---\nname: s\ndescription: d\n---\n{body}\n");
    let path = ".claude/skills/s/SKILL.md";
    let plan = plan(&[(path, &text("one"))]);
    let mut files = export(&plan, "knowledge:skills/s", ExportClient::ClaudeCode);
    files[0].bytes = text("two").into_bytes();
    let state = |files: &[ExportFile], present: &str| {
        let present = [(files[0].path.clone(), Digest::of(present.as_bytes()))].into();
        compare_files(files, &ExportRecord::default(), &present)[0].state
    };
    assert_eq!(state(&files, &text("one")), ExportState::Stale);
    assert_eq!(state(&files, &text("two")), ExportState::Current);
    assert_eq!(state(&files, &text("three")), ExportState::Edited);
    let import = files[0].imported.as_ref().and_then(|from| from.import.as_deref());
    assert_eq!(import, Some(".claude/skills/s"));
    let mut elsewhere = export(&plan, "knowledge:skills/s", ExportClient::Codex);
    elsewhere[0].bytes = text("two").into_bytes();
    assert_eq!(state(&elsewhere, &text("three")), ExportState::Foreign);
}

#[test]
fn second_import_is_three_way() {
    let text = |body: &str| format!("---\nname: s\ndescription: d\n---\n{body}\n");
    let first = plan(&[("s/SKILL.md", &text("one"))]);
    let again = plan(&[("s/SKILL.md", &text("one"))]);
    let newer = plan(&[("s/SKILL.md", &text("two"))]);
    let other = plan(&[(".cursor/rules/skills/s.mdc", "x")]);
    let name = "knowledge:skills/s";
    let made = item(&first, name).text.clone();
    let signed = format!("<!-- rye:signed:2026-01-01T00:00:00Z:x:y:z -->\n{made}");
    let edited = signed.replace("one", "one and more");
    let decide = |plan: &rye_import::ImportPlan, existing: Option<&str>, theirs| {
        decide_change(item(plan, name), existing, theirs)
    };
    assert_eq!(decide(&first, None, false), ItemChange::Create);
    assert_eq!(decide(&again, Some(&signed), false), ItemChange::Unchanged);
    assert_eq!(decide(&again, Some(&edited), false), ItemChange::Unchanged);
    assert_eq!(decide(&newer, Some(&signed), false), ItemChange::Update);
    assert_eq!(decide(&newer, Some(&edited), false), ItemChange::Keep);
    assert_eq!(decide(&newer, Some(&edited), true), ItemChange::Replace);
    assert_eq!(decide(&newer, Some("---\nname: s\n---\nmine"), true), ItemChange::Occupied);
    assert_eq!(decide(&newer, Some(&other.items[0].text), false), ItemChange::Occupied);
    let exported = plan(&[("s/SKILL.md", &text("one and more"))]);
    assert_eq!(decide(&exported, Some(&edited), false), ItemChange::Unchanged);
    let grown = plan(&[("s/SKILL.md", &text("one")), ("s/a.txt", "x")]);
    assert_eq!(decide(&grown, Some(&signed), false), ItemChange::Update);
    let exported = ImportedItem::read(rye_item::ItemType::Knowledge, &edited).expect("imported");
    assert_eq!(exported.source_text(), text("one and more"));
    assert!(!exported.is_original() && !exported.is_untouched);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn any_skill_that_imports_comes_out(body in "(---\n|```xml\n|```\n|\\$ARGUMENTS|\\$1|\\{input:arguments\\?\\}|<x>|&|\"|\r\n|\n|é|.){0,30}", hint in any::<bool>()) {
        let hint = if hint { "argument-hint: x\n" } else { "" };
        let text = format!("---\nname: s\ndescription: d\n{hint}---\n{body}");
        let plan = plan(&[("s/SKILL.md", &text)]);
        if let Some(first) = plan.items.first() {
            let exported = export(&plan, &first.item.to_string(), ExportClient::ClaudeCode);
            prop_assert_eq!(String::from_utf8_lossy(&exported[0].bytes), text);
        }
    }
}
