//! Directives as authors write them, and as attackers do.

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn wrap(xml: &str) -> String {
    format!("<!-- rye:signed:x -->\n# Title\n\nBefore.\n\n```xml\n{xml}\n```\n\nDo {{input:a}}.\n")
}

fn metadata(inside: &str) -> ParsedItem {
    parse(&wrap(&format!(
        "<directive name=\"d\" version=\"1.0.0\">\n<metadata>{inside}</metadata></directive>"
    )))
}

fn messages(parsed: &ParsedItem) -> Vec<String> {
    parsed.problems.iter().map(ToString::to_string).collect()
}

fn capabilities(parsed: &ParsedItem) -> Vec<&str> {
    let list = parsed.fields["permissions"].as_array().unwrap();
    list.iter().map(|item| item["content"].as_str().unwrap()).collect()
}

#[test]
fn complete_directive_is_parsed() {
    let xml = r#"<directive name="d" version="1.0.0" extends="base/d">
  <metadata>
    <description>Does &lt;it&gt; &amp; more</description>
    <category>demo</category> <author>me</author>
    <model tier="fast" id="m"/>
    <limits turns="8" spend="0.10"><duration_seconds>60</duration_seconds></limits>
    <permissions><execute><tool>rye.file-system.*</tool></execute></permissions>
    <context><before>rules</before><suppress>x</suppress></context>
    <continuation_directive>next/one</continuation_directive>
  </metadata>
  <inputs>
    <input name="a" type="integer" required="True" default="3">How many</input>
    <input name="b" default="3"/>
  </inputs>
  <outputs><output name="path" required="true">Where</output></outputs>
  <process><execute item_type="tool" item_id="x"><param name="k" value="v"/><param name="t"> text </param></execute>
  <search query="q"><load item_id="y"/></search></process>
  <template>{a < b}</template>
</directive>"#;
    let text = wrap(xml);
    let parsed = parse(&text);
    assert_eq!(parsed.problems, []);
    assert_eq!(parsed.warnings, []);
    let expected = json!({
        "name": "d", "version": "1.0.0", "extends": "base/d",
        "description": "Does <it> & more", "category": "demo", "author": "me",
        "model": { "tier": "fast", "id": "m" },
        "limits": { "turns": 8, "spend": 0.1, "duration_seconds": 60 },
        "permissions": [{ "tag": "cap", "content": "rye.execute.tool.rye.file-system.*" }],
        "context": { "system": [], "before": ["rules"], "after": [], "suppress": ["x"] },
        "continuation_directive": "next/one",
        "inputs": [
            { "name": "a", "type": "integer", "required": true, "default": 3, "description": "How many" },
            { "name": "b", "type": "string", "required": false, "default": "3" },
        ],
        "outputs": [{ "name": "path", "type": "string", "required": true, "description": "Where" }],
        "actions": [
            { "primary": "execute", "item_type": "tool", "item_id": "x", "params": { "k": "v", "t": "text" } },
            { "primary": "search", "query": "q" },
            { "primary": "load", "item_id": "y" },
        ],
        "templates": { "__opaque_template_0__": "{a < b}" },
        "preamble": "# Title\n\nBefore.", "body": "Do {input:a}.", "content": xml, "raw": text,
    });
    assert_eq!(Value::Object(parsed.fields.clone()), expected);
    assert_eq!(parsed.fields.keys().next_back().map(String::as_str), Some("raw"));
    assert_eq!(parsed.positions["name"], SourcePosition { line: 7, column: 1 });
    assert_eq!(parsed.positions["author"], SourcePosition { line: 10, column: 31 });
    assert_eq!(parsed.positions["limits.duration_seconds"], SourcePosition { line: 12, column: 36 });
    assert_eq!(parsed.positions["body"], SourcePosition { line: 28, column: 1 });
}

#[test]
fn prompt_is_first_non_empty_text() {
    let fields = |body: &str, preamble: &str| {
        json!({ "body": body, "preamble": preamble, "description": "D" }).as_object().cloned().unwrap()
    };
    assert_eq!(prompt(&fields("B", "P")), "B");
    assert_eq!(prompt(&fields("", "# P")), "# P");
    assert_eq!(prompt(&fields(" \n", "")), "D");
    assert_eq!(prompt(&Map::new()), "");
}

#[test]
fn permissions_become_capabilities() {
    let table = [
        ("*", vec!["rye.*"]),
        ("<execute>*</execute><search>a.b</search>", vec!["rye.execute.*", "rye.search.a.b"]),
        (
            "<load><knowledge>a/*</knowledge><tool>t</tool></load><fetch><directive>*</directive></fetch>",
            vec!["rye.load.knowledge.a/*", "rye.load.tool.t", "rye.fetch.directive.*"],
        ),
        ("<sign><!-- why --><tool> x </tool></sign>", vec!["rye.sign.tool.x"]),
        ("", vec![]),
    ];
    for (inside, expected) in table {
        let parsed = metadata(&format!("<permissions>{inside}</permissions>"));
        assert_eq!(parsed.problems, [], "{inside}");
        assert_eq!(capabilities(&parsed), expected, "{inside}");
    }
}

#[test]
fn everything_may_be_granted_beside_an_acknowledgement() {
    for inside in [
        "*<acknowledge risk=\"unrestricted\">why</acknowledge>",
        "<acknowledge risk='unrestricted'>why</acknowledge> *",
    ] {
        let parsed = metadata(&format!("<permissions>{inside}</permissions>"));
        assert_eq!(parsed.problems, []);
        assert_eq!(capabilities(&parsed), ["rye.*"]);
        assert_eq!(parsed.fields["acknowledged_risks"], json!([{ "risk": "unrestricted", "reason": "why" }]));
    }
}

#[test]
fn unknown_permissions_are_reported_with_position() {
    let parsed = metadata("<permissions>\n  <cap>x</cap>\n  <write>y</write> </permissions>");
    assert_eq!(
        messages(&parsed),
        [
            "9:3: Unknown tag <cap> inside <permissions>. Valid tags: acknowledge, execute, fetch, load, search, sign",
            "10:3: Unknown tag <write> inside <permissions>. Valid tags: acknowledge, execute, fetch, load, search, sign",
        ]
    );
    assert_eq!(messages(&metadata("<permissions>rye.*</permissions>")).len(), 1);
}

#[test]
fn permissions_outside_metadata_are_rejected() {
    let parsed = parse(&wrap(
        "<directive name='d'>\n<process><permissions><execute>*</execute></permissions></process></directive>",
    ));
    assert_eq!(messages(&parsed), ["8:10: <permissions> belongs inside <metadata>"]);
    assert!(!parsed.fields.contains_key("actions") && !parsed.fields.contains_key("permissions"));
}

#[test]
fn limits_are_checked_and_old_names_translated() {
    let parsed =
        metadata("<limits max_turns=\"3\" spend_currency=\"USD\"><max_spend> 0.5 </max_spend></limits>");
    assert_eq!(parsed.problems, []);
    assert_eq!(parsed.fields["limits"], json!({ "turns": 3, "spend_currency": "USD", "spend": 0.5 }));
    assert_eq!(parsed.warnings.len(), 2);
    assert_eq!(parsed.warnings[0].position, Some(SourcePosition { line: 8, column: 19 }));
    let parsed = metadata(
        "<limits turns='x' tokens='-1' spawns='1.5' speed='1' spend='inf.'><depth>1</depth><max_depth>2</max_depth></limits>",
    );
    assert_eq!(
        parsed.problems.iter().map(|problem| problem.message.as_str()).collect::<Vec<_>>(),
        [
            "Limit `turns` is not a number: `x`",
            "Limit `tokens` is negative: `-1`",
            "Limit `spawns` is not a whole number: `1.5`",
            "Unknown limit `speed`. Known limits: turns, tokens, spend, spawns, depth, duration_seconds, spend_currency",
            "Limit `spend` is not a number: `inf.`",
            "Limit `depth` is set twice",
        ]
    );
}

#[test]
fn checkouts_are_checked() {
    assert_eq!(metadata("<checkout> snapshot </checkout>").fields["checkout"], json!("snapshot"));
    let parsed = metadata("<checkout>main</checkout>\n<checkout>none</checkout>");
    assert_eq!(
        messages(&parsed),
        [
            "8:11: invalid checkout `main`: expected none, snapshot or git+URL@COMMIT, the commit in full",
            "9:1: Duplicate <checkout> inside <metadata>"
        ]
    );
}

#[test]
fn hooks_are_read_with_conditions_and_actions() {
    let parsed = metadata(
        r#"<hooks>
      <hook id="warn" event="after_step"> note
        <condition path="cost.spend" op="gte" value="0.9" />
        <action primary="execute" item_id="w"><param name="spend">${cost.spend}</param></action>
        <inputs><input name="a">1</input><b>2</b></inputs><why>because</why>
      </hook>
      <hook event="limit">
        <condition path="code" op="in" value='["a"]'/>
        <action><execute item_id="x"/><search query="q"><param name="n">5</param><param name="m" value="6"/></search></action>
      </hook>
    </hooks>"#,
    );
    assert_eq!(parsed.problems, []);
    let expected = json!([
        {
            "id": "warn", "event": "after_step", "content": "note",
            "condition": { "path": "cost.spend", "op": "gte", "value": 0.9 },
            "action": { "primary": "execute", "item_id": "w", "params": { "spend": "${cost.spend}" } },
            "inputs": { "a": "1", "b": "2" }, "why": "because",
        },
        {
            "event": "limit",
            "condition": { "path": "code", "op": "in", "value": ["a"] },
            "actions": [
                { "item_id": "x", "primary": "execute" },
                { "query": "q", "params": { "n": "5", "m": "6" }, "primary": "search" },
            ],
        },
    ]);
    assert_eq!(parsed.fields["hooks"], expected);
}

#[test]
fn invalid_hook_condition_is_a_problem() {
    for condition in ["<condition path='a' op='equals' value='1'/>", "<condition/>", "<condition op='eq'/>"] {
        let parsed = metadata(&format!(
            "<hooks><hook event='limit'>{condition}<action primary='search'/></hook></hooks>"
        ));
        assert_eq!(parsed.problems.len(), 1, "{condition}");
    }
}

#[test]
fn every_mistake_of_a_hook_is_listed() {
    let parsed = metadata(
        "<hooks>\n<hook event='after_stepp' position='middle' wrap='yes'><action primary='run'/></hook>\n\
         <hook><condition path='a' op='equals' value='1'/></hook></hooks>",
    );
    assert_eq!(
        messages(&parsed),
        [
            "9:7: unknown event `after_stepp`: did you mean `after_step`?",
            "9:1: unknown action `run`: there are execute, fetch, load, search, sign",
            "9:27: position is `before` or `after`, not `middle`",
            "9:45: wrap is `true` or `false`, not `yes`",
            "10:7: Invalid <condition>: unknown operator `equals`: expected one of eq, ne, gt, gte, lt, lte, in, \
             contains, regex, exists",
            "10:1: the hook names no `event`",
            "10:1: a hook has one <action>, with `primary` or with action tags inside it",
        ]
    );
}

#[test]
fn invalid_inputs_are_problems() {
    let parsed = parse(&wrap(
        "<directive name='d'><inputs>\n<input name='a'/>\n<input name='a'/>\n<input/>\n\
         <input name='n' type='integer' default='many'/>\n<input name='l' type='array' default='[1]'/>\n\
         </inputs></directive>",
    ));
    assert_eq!(
        messages(&parsed),
        [
            "9:1: Duplicate input name `a`",
            "10:1: <input> has no name",
            "11:32: Default `many` is not of the declared type `integer`",
        ]
    );
    assert_eq!(parsed.fields["inputs"][2]["default"], json!([1]));
}

#[test]
fn start_tags_may_span_lines() {
    let parsed = parse(&wrap(
        "<directive\n  name=\"a>b\"\n  version='1.0.0'>\n<description><![CDATA[<x> & y]]></description></directive>",
    ));
    assert_eq!(parsed.problems, []);
    assert_eq!((parsed.text("name"), parsed.text("version")), (Some("a>b"), Some("1.0.0")));
    assert_eq!(parsed.text("description"), Some("<x> & y"));
}

#[test]
fn opaque_sections_stay_text_in_order() {
    let parsed = parse(&wrap(
        "<directive name='d'><raw a='1'>x < é</raw><template>\n```\n<execute/>\n</template><raw>x < é</raw>\n  <oops></directive>",
    ));
    assert_eq!(
        parsed.fields["templates"],
        json!({ "__opaque_raw_0__": "x < é", "__opaque_template_1__": "\n```\n<execute/>\n", "__opaque_raw_2__": "x < é" })
    );
    assert_eq!(messages(&parsed), ["11:9: Invalid XML: expected 'oops' tag, not 'directive'"]);
}

#[test]
fn metadata_cannot_replace_reserved_fields() {
    let parsed = metadata(
        "<body>evil</body><inputs><input name='x'/></inputs><name>other</name><version>1.0.0</version>",
    );
    assert_eq!(parsed.problems.len(), 3);
    assert_eq!((parsed.text("body"), parsed.text("name")), (Some("Do {input:a}."), Some("d")));
    let parsed = metadata("<permissions><sign>x</sign></permissions><permissions>*</permissions>");
    assert_eq!(messages(&parsed), ["8:52: Duplicate <permissions> inside <metadata>"]);
}

#[test]
fn unreadable_xml_keeps_the_body() {
    let table = [
        ("# Only words\n", "No XML code block found"),
        ("x\n```xml\n<directive/>\n", "2:1: unclosed code fence"),
        ("```xml\n<foo/>\n```\n", "2:1: Root element must be <directive>, found <foo>"),
        ("```xml\n```\n", "2:1: Invalid XML: the document does not have a root node"),
        ("```xml\n<directive>\n a & b</directive>\n```\n", "3:4: Invalid XML: malformed entity reference"),
        ("```xml\n<directive>\n&x;</directive>\n```\n", "3:1: Invalid XML: unknown entity reference 'x'"),
        ("```xml\n<directive>\n", "1:1: unclosed code fence"),
        ("```xml\n<directive><a>\n```\n", "2:1: Invalid XML: the root node was opened but never closed"),
        ("```xml\n<directive xmlns='u'/>\n```\n", "2:1: Invalid XML: namespaces are not supported"),
        ("```xml\n<a:directive/>\n```\n", "2:2: Invalid XML: an unknown namespace prefix 'a'"),
        (
            "```xml\n<?xml version='1.0'?>\n<!DOCTYPE d [<!ENTITY a 'b'>]>\n<directive>&a;</directive>\n```\n",
            "3:1: Invalid XML: document type declarations are not allowed",
        ),
    ];
    for (text, message) in table {
        let parsed = parse(text);
        assert_eq!(messages(&parsed), [message], "{text:?}");
        assert_eq!(parsed.text("raw"), Some(text));
        assert!(parsed.text("body").is_some());
    }
}

#[test]
fn carriage_returns_change_nothing_but_the_raw_text() {
    let text = wrap("<directive name='d'>\n<metadata><limits turns='x'/></metadata></directive>");
    let parsed = parse(&text.replace('\n', "\r\n"));
    assert_eq!(messages(&parsed), messages(&parse(&text)));
    assert_eq!(parsed.text("preamble"), Some("# Title\r\n\r\nBefore."));
}

#[test]
fn attacks_give_one_quick_problem() {
    let deep = "<a>".repeat(100_000);
    let balanced = format!("<directive>{deep}{}</directive>", "</a>".repeat(100_000));
    let attributes: String = (0..100_000).map(|number| format!(" a{number}=''")).collect();
    for xml in [
        deep,
        balanced,
        format!("<directive {attributes}/>"),
        "<directive>\u{0}</directive>".to_owned(),
        "<directive name='\u{0}'/>".to_owned(),
        "[".repeat(100_000),
        "<".repeat(100_000),
        "<raw>".repeat(200),
        "<directive a=\"".repeat(50_000),
        "<!DOCTYPE lolz [<!ENTITY a 'aaaa'><!ENTITY b '&a;&a;&a;'>]><directive>&b;</directive>".to_owned(),
    ] {
        assert_eq!(parse(&wrap(&xml)).problems.len(), 1, "{:.60}", xml);
    }
    let huge = "x".repeat(4 << 20);
    assert_eq!(parse(&wrap(&format!("<directive name='{huge}'/>"))).text("name"), Some(huge.as_str()));
    let many = "<x/>".repeat(200_000);
    assert_eq!(metadata(&format!("<permissions>{many}</permissions>")).problems.len(), MAX_PROBLEMS);
    let fields: String = (0..50_000).map(|number| format!("<f{number}>x</f{number}>")).collect();
    assert_eq!(metadata(&fields).problems, []);
}

proptest! {
    #[test]
    fn any_text_is_read(text in "(```xml\n|```|\n|<directive( name='a')?>|</directive>|<metadata>|</metadata>|<raw>|</raw>|<limits turns='1'/>|<permissions>|[<>&é\"' ]){0,24}") {
        let parsed = parse(&text);
        prop_assert_eq!(parsed.text("raw"), Some(text.as_str()));
        prop_assert!(!parsed.problems.is_empty() || text.contains("```xml\n"));
    }
}
