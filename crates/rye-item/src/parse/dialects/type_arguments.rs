//! Where a comparison in JavaScript may be a list of type arguments in TypeScript: `a < b > (c)`.
//!
//! The grammar of TypeScript decides otherwise than TypeScript in some of these cases, and its readers differ among themselves.
//! So nothing is parsed here: a `<` that a `>` follows is taken for such a list, unless something that no type contains stands
//! between them, or behind the `>` something that makes a comparison of it.

use tree_sitter::Node;

use crate::parse::syntax;

/// Names in JavaScript that are operators before a type.
const TYPE_OPERATORS: [&str; 7] = ["abstract", "asserts", "infer", "is", "keyof", "readonly", "unique"];

/// Nodes whose parts are not tokens.
const ATOMS: [&str; 3] = ["string", "regex", "hash_bang_line"];

/// Tokens that stand in no type.
const NEVER_IN_TYPES: [&str; 59] = [
    "&&", "||", "??", "+", "++", "--", "*", "**", "/", "%", "^", "~", "==", "!=", "===", "!==", "<=", ">=",
    "=", "+=", "-=", "*=", "/=", "%=", "**=", "<<=", ">>=", ">>>=", "&=", "|=", "^=", "&&=", "||=", "??=",
    "?", "?.", ";", "regex", "if", "else", "for", "while", "do", "return", "const", "var", "let", "class",
    "switch", "case", "break", "continue", "throw", "try", "catch", "delete", "void", "await", "yield",
];

/// Tokens that are, or end, an operand.
const OPERANDS: [&str; 15] = [
    "identifier",
    "property_identifier",
    "private_property_identifier",
    "shorthand_property_identifier",
    "number",
    "string",
    "this",
    "super",
    "null",
    "true",
    "false",
    "undefined",
    ")",
    "]",
    "}",
];

/// How many `<` wait for their `>`, for each bracket that is open.
struct OpenLists {
    counts: Vec<usize>,
}

impl OpenLists {
    fn open_bracket(&mut self) {
        self.counts.push(0);
    }

    fn close_bracket(&mut self) {
        self.counts.pop();
        if self.counts.is_empty() {
            self.counts.push(0);
        }
    }

    fn begin(&mut self) {
        if let Some(count) = self.counts.last_mut() {
            *count += 1;
        }
    }

    /// All that are open hold the token that was just read.
    fn give_up(&mut self) {
        self.counts.iter_mut().for_each(|count| *count = 0);
    }

    fn may_end(&self) -> bool {
        self.counts.last().is_some_and(|count| *count > 0)
    }
}

/// Whether TypeScript may read a comparison of the tree, which is JavaScript's, as type arguments.
pub(super) fn may_be_present(text: &str, root: Node<'_>) -> bool {
    let tokens = tokens(root);
    let mut lists = OpenLists { counts: vec![0] };
    for (index, token) in tokens.iter().enumerate() {
        let kind = token.kind();
        let previous = index.checked_sub(1).and_then(|before| tokens.get(before));
        if NEVER_IN_TYPES.contains(&kind)
            || previous.is_some_and(|previous| ends_type(*previous, *token, text))
        {
            lists.give_up();
        }
        match kind {
            "(" | "[" | "{" | "${" => lists.open_bracket(),
            ")" | "]" | "}" => lists.close_bracket(),
            "<" => lists.begin(),
            // The last of several closes a list in which there are others.
            ">" | ">>" | ">>>" if lists.may_end() && can_follow(*token, tokens.get(index + 1), text) => {
                return true;
            }
            _ => {}
        }
    }
    false
}

/// Whether two tokens that follow each other show that no type is being read.
fn ends_type(previous: Node<'_>, token: Node<'_>, text: &str) -> bool {
    let is_operand =
        OPERANDS.contains(&previous.kind()) && !TYPE_OPERATORS.contains(&syntax::text_of(previous, text));
    // Two operands, a call, a block after the end of a statement, a difference.
    let begins = matches!(token.kind(), "(" | "{" | "-")
        || (OPERANDS.contains(&token.kind()) && !matches!(token.kind(), ")" | "]" | "}"));
    is_operand && begins
}

/// Whether type arguments may end before `next`: what begins an operand on the same line makes it a comparison.
fn can_follow(closing: Node<'_>, next: Option<&Node<'_>>, text: &str) -> bool {
    let Some(next) = next else { return true };
    let between = text.get(closing.end_byte()..next.start_byte()).unwrap_or_default();
    matches!(next.kind(), "(" | "`" | "regex" | "/") || between.contains(['\n', '\r', '\u{2028}', '\u{2029}'])
}

/// The tokens of the tree in their order, without comments.
fn tokens(root: Node<'_>) -> Vec<Node<'_>> {
    let mut tokens = Vec::new();
    let mut cursor = root.walk();
    loop {
        let node = cursor.node();
        let is_atom = ATOMS.contains(&node.kind());
        if !node.is_extra() && !is_atom && cursor.goto_first_child() {
            continue;
        }
        if !node.is_extra() {
            tokens.push(node);
        }
        while !cursor.goto_next_sibling() {
            if !cursor.goto_parent() {
                return tokens;
            }
        }
    }
}
