//! Source that means one thing as JavaScript and another as TypeScript, or one as a script and another as a module. Node
//! decides by a file's extension, which no signature covers.

use tree_sitter::{Language, Node};

use super::syntax;

mod type_arguments;

/// Kinds of nodes that only the grammar of TypeScript has, for what JavaScript has as well.
const SAME_IN_BOTH: [&str; 6] = [
    "extends_clause",
    "optional_chain",
    "predefined_type",
    "public_field_definition",
    "required_parameter",
    "type_identifier",
];

/// Kinds of nodes in which no comment begins.
const LITERAL_TEXT: [&str; 7] =
    ["comment", "hash_bang_line", "regex", "regex_pattern", "string", "string_fragment", "template_string"];

/// Words that begin a declaration in TypeScript and are plain names in JavaScript. Readers of TypeScript disagree about a line
/// break behind them.
const DECLARATION_WORDS: [&str; 8] =
    ["abstract", "asserts", "declare", "global", "interface", "module", "namespace", "type"];

/// As [`DECLARATION_WORDS`], before a member of a class.
const MODIFIERS: [&str; 9] =
    ["abstract", "accessor", "declare", "override", "private", "protected", "public", "readonly", "static"];

/// Why the text cannot be a file of either language: it is valid in both and does not mean the same.
#[must_use]
pub fn ambiguity(text: &str) -> Option<&'static str> {
    let javascript = Language::new(tree_sitter_javascript::LANGUAGE);
    let typescript = Language::new(tree_sitter_typescript::LANGUAGE_TYPESCRIPT);
    let untyped = syntax::parse_tree(text, &javascript).ok()?;
    let root = untyped.root_node();
    if has_html_comment(text, root) {
        return Some("`<!--` and `-->` begin a comment in a script, and not in a module");
    }
    if root.has_error() {
        // It runs as TypeScript at most.
        return None;
    }
    if has_node(root, &|node| is_bare_word(node, text)) {
        return Some(
            "a word alone on its line begins a declaration in TypeScript, and is a name in JavaScript",
        );
    }
    let reason = "what TypeScript reads as a type is an expression in JavaScript";
    // The grammar of TypeScript does not see all of what TypeScript does, and finds errors where it has none.
    if type_arguments::may_be_present(text, root) {
        return Some(reason);
    }
    let typed = syntax::parse_tree(text, &typescript).ok()?;
    let is_typed_only = |node: Node<'_>| {
        let kind = node.kind();
        node.is_named() && javascript.id_for_node_kind(kind, true) == 0 && !SAME_IN_BOTH.contains(&kind)
    };
    (!typed.root_node().has_error() && has_node(typed.root_node(), &is_typed_only)).then_some(reason)
}

/// Whether it is a statement or a member of a class that is one word of TypeScript's and ends without a semicolon.
fn is_bare_word(node: Node<'_>, text: &str) -> bool {
    let words: &[&str] = match node.kind() {
        "expression_statement" => &DECLARATION_WORDS,
        "field_definition" if node.next_sibling().is_none_or(|next| next.kind() != ";") => &MODIFIERS,
        _ => return false,
    };
    words.contains(&syntax::text_of(node, text).trim())
}

/// Whether a script would end its line at `<!--`, or at `-->` where nothing stands before it.
fn has_html_comment(text: &str, root: Node<'_>) -> bool {
    let is_code = |offset: usize, mark: &str| {
        let node = root.descendant_for_byte_range(offset, offset + mark.len());
        !node.is_some_and(|node| LITERAL_TEXT.contains(&node.kind()))
    };
    let begins_line = |offset: usize| {
        let line = text[..offset].rsplit(['\n', '\r', '\u{2028}', '\u{2029}']).next().unwrap_or_default();
        line.trim().is_empty() || line.trim_end().ends_with("*/")
    };
    text.match_indices("<!--").any(|(offset, mark)| is_code(offset, mark))
        || text.match_indices("-->").any(|(offset, mark)| begins_line(offset) && is_code(offset, mark))
}

/// Whether there is such a node in the tree; without recursion, because a tree may be deep.
fn has_node(root: Node<'_>, is_wanted: &dyn Fn(Node<'_>) -> bool) -> bool {
    let mut cursor = root.walk();
    loop {
        if is_wanted(cursor.node()) {
            return true;
        }
        if cursor.goto_first_child() {
            continue;
        }
        while !cursor.goto_next_sibling() {
            if !cursor.goto_parent() {
                return false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_sources_are_not_ambiguous() {
        for text in [
            "export const a = 1;\nexport async function execute(params, project) { return params?.x ?? [...a]; }\n",
            "module.exports = { execute(params) { return `${params.a < 1 && 2 > params.b}`; } };\n",
            "class A extends B { #x = 1; static y = 2; get z() { return this.#x; } }\nnew A();\n",
            "import fs from 'node:fs';\nfor (const [key, { a = 1, ...rest }] of Object.entries(x)) { label: while (1) break label; }\n",
            "const f = async (a, b = 2, ...c) => { try { await a } catch { } finally { } };\nif (a < b) { c > d; }\n",
            "const x: number = 1;\nfunction f<T>(a: T): T { return a as T; }\ninterface I { a?: string }\n",
            "type A = { b: string };\nexport default f<A>({ b: '' });\nenum E { A }\n",
            "if (a < b && c > (d)) { for (let i = 0; i < n; i++) f(i > (n / 2) ? a < f(b) : c > `d`); }\n",
            "const few = a < b\nconst many = c > (d)\nf(a < b, c > d, g(h < i), j > (k))\nx = a < b\ny(c)\nz > (d)\n",
            "f(a < b + 1, c > (d)); while (a < (b)) c >>= (d); if (a < b) { c > (d) } g(a < !b || c > (d));\n",
            "const type = 1, module = { type };\nmodule.exports = type;\nclass A { static { } static x; declare = 1; type\n y }\n",
            "function* g() { yield* g(); }\nconst r = /a<b>(c)/u, s = '<!-- no comment -->';\n/*\n--> <!-- */ while (x-->0) { `<!--\n-->${s}`; }\nswitch (r) { default: }\n",
        ] {
            assert_eq!(ambiguity(text), None, "{text}");
        }
    }

    #[test]
    fn sources_with_two_meanings_are_named() {
        for text in [
            "export const version = '1.0.0';\nconst x = f<T>(y);\n",
            "export const a = new B<C>(d);\n",
            "const a = 1;\nif (a<!--b\n) { evil(); }\n",
            "let x = 1;\nx\n--> evil()\n",
            "let x = 1;\n/* */ --> evil()\n",
            "let x = `${a<!--b\n}`;\n",
            "a<b>`x`;\n",
            "a<typeof b>`x${1}`;\n",
            "let x = a<b>\nevil();\n",
            "a<b>/evil()/c;\n",
            "a<b>/* a comment */\n/evil()/c;\n",
            "f(a<b,c>`x`);\n",
            "f(a<b,c>\nd);\n",
            "a<import('x')>(c);\n",
            "a<[...b]>(c);\n",
            "a<{ [k in b]: c }>(d);\n",
            "a<`${b}`>`c`;\n",
            "a<b<c>>`d`;\n",
            "a<b<c<d>>>\ne;\n",
            "a<keyof\nb>(evil);\n",
            "a\n<(b)>\nc;\n",
            "a<!b>`c`;\n",
            "a<-1>`c`;\n",
            "global\n{ evil() }\n",
            "namespace\nx\n{ evil() }\n",
            "class A { declare\nx = evil() }\n",
        ] {
            assert!(ambiguity(text).is_some(), "{text}");
        }
    }
}
