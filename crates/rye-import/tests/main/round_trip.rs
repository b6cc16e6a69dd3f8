//! What came in comes out, and a second import changes nothing.

use proptest::prelude::*;
use rye_import::{ExportClient, ImportedItem, ItemChange, decide_change};

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
