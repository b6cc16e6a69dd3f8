//! Tags and attributes in the wrong place. What would change the thread is refused there, since it would be ignored in
//! silence; a word that means nothing is warned of, with the known word that is nearest to it.

use roxmltree::Node;

use super::xml::{elements, tag};
use super::{DirectiveReader, attributes};
use crate::text::nearest;

/// Tags that decide what a thread may do: they count directly inside `<metadata>` only.
const POLICY_TAGS: [&str; 5] = ["hooks", "limits", "model", "model_class", "permissions"];

/// The tags of `<metadata>`.
const METADATA_TAGS: [&str; 16] = [
    "author",
    "category",
    "checkout",
    "context",
    "continuation_directive",
    "description",
    "export",
    "extends",
    "hooks",
    "imported",
    "limits",
    "model",
    "model_class",
    "name",
    "permissions",
    "version",
];

/// The tags directly below `<directive>` that are read.
const ROOT_TAGS: [&str; 4] = ["description", "inputs", "metadata", "outputs"];

impl DirectiveReader<'_> {
    /// Refuses policy tags anywhere but directly inside the directive's `<metadata>`.
    pub(super) fn check_placement(&mut self, root: Node<'_, '_>) {
        for block in elements(root) {
            if tag(block) == "metadata" {
                self.check_metadata(block);
            } else {
                self.check_root_tag(block);
                self.refuse_policy_tags(block);
            }
        }
    }

    fn check_root_tag(&mut self, node: Node<'_, '_>) {
        let name = tag(node);
        if ROOT_TAGS.contains(&name) || POLICY_TAGS.contains(&name) {
            return;
        }
        if METADATA_TAGS.contains(&name) {
            self.push_warning(node, None, format!("<{name}> is ignored here: it belongs inside <metadata>"));
        } else if let Some(known) = nearest(name, POLICY_TAGS.into_iter().chain(ROOT_TAGS)) {
            self.push_warning(node, None, format!("<{name}> means nothing here: did you mean <{known}>?"));
        }
    }

    /// Problems for every policy tag at or below a node.
    fn refuse_policy_tags(&mut self, node: Node<'_, '_>) {
        for inner in node.descendants().filter(Node::is_element) {
            let name = tag(inner);
            if POLICY_TAGS.contains(&name) {
                self.push_problem(inner, Some(name), format!("<{name}> belongs inside <metadata>"));
            }
        }
    }

    fn check_metadata(&mut self, block: Node<'_, '_>) {
        self.warn_attributes(block, &[]);
        for node in elements(block) {
            let name = tag(node);
            match name {
                // Their own readers refuse what does not belong there.
                "model" | "model_class" | "limits" | "permissions" => {}
                "hooks" => self.check_hook_tags(node),
                _ => {
                    if !METADATA_TAGS.contains(&name) {
                        self.warn_unknown_tag(node, &METADATA_TAGS, "metadata");
                    }
                    self.warn_attributes(node, &[]);
                }
            }
            if !matches!(name, "limits" | "permissions" | "hooks") {
                elements(node).for_each(|inner| self.refuse_policy_tags(inner));
            }
        }
    }

    /// Inside `<action>` and `<inputs>` tags are names of parameters, which may be anything.
    fn check_hook_tags(&mut self, block: Node<'_, '_>) {
        self.warn_attributes(block, &[]);
        for hook in elements(block) {
            if tag(hook) != "hook" {
                self.warn_unknown_tag(hook, &["hook"], "hooks");
            }
            for part in elements(hook).filter(|part| !matches!(tag(*part), "action" | "inputs")) {
                self.refuse_policy_tags(part);
            }
        }
    }

    pub(super) fn warn_unknown_tag(&mut self, node: Node<'_, '_>, known: &[&str], parent: &str) {
        let name = tag(node);
        let hint = suggestion(name, known, |known| format!("<{known}>"));
        self.push_warning(node, None, format!("unknown tag <{name}> inside <{parent}>: {hint}"));
    }

    pub(super) fn warn_attributes(&mut self, node: Node<'_, '_>, known: &[&str]) {
        let unknown = attributes(node).map(|attribute| attribute.name()).filter(|name| !known.contains(name));
        for name in unknown.collect::<Vec<_>>() {
            let hint = match known {
                [] => "it takes no attributes".to_owned(),
                known => suggestion(name, known, |known| format!("`{known}`")),
            };
            let message = format!("unknown attribute `{name}` of <{}>: {hint}", tag(node));
            self.push_warning_at(self.attribute_position(node, name), tag(node), message);
        }
    }
}

/// The nearest known word, or all of them.
pub(super) fn suggestion(word: &str, known: &[&str], write: impl Fn(&str) -> String) -> String {
    match nearest(word, known.iter().copied()) {
        Some(known) => format!("did you mean {}?", write(known)),
        None => format!("there are {}", known.iter().map(|word| write(word)).collect::<Vec<_>>().join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use crate::diagnostic::{Diagnostic, ParsedItem};
    use crate::parse::directive::parse;

    fn directive(inside: &str) -> ParsedItem {
        parse(&format!("```xml\n<directive name='d' version='1.0.0'>\n{inside}\n</directive>\n```\nDo it.\n"))
    }

    fn lines(diagnostics: &[Diagnostic]) -> Vec<String> {
        diagnostics.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn misplaced_policy_tags_are_all_refused() {
        let parsed = directive(
            "<hooks><hook event='limit'/></hooks>\n<limits turns='1'/>\n<process><permissions>*</permissions>\
             <model tier='fast'/></process>\n<metadata><context><before>x</before><limits turns='2'/></context>\
             <hooks><hook event='limit'><when><model/></when><action primary='search'><model>fast</model></action>\
             </hook></hooks></metadata>",
        );
        assert_eq!(
            lines(&parsed.problems),
            [
                "3:1: <hooks> belongs inside <metadata>",
                "4:1: <limits> belongs inside <metadata>",
                "5:10: <permissions> belongs inside <metadata>",
                "5:38: <model> belongs inside <metadata>",
                "6:38: <limits> belongs inside <metadata>",
                "6:100: <model> belongs inside <metadata>",
            ]
        );
        assert!(!parsed.fields.contains_key("limits"));
    }

    #[test]
    fn unknown_words_name_the_nearest_known() {
        let parsed = directive(
            "<metadata owner='me'>\n<permisions><execute>*</execute></permisions>\n<model teir='fast' tier='x'/>\n\
             <hooks><hok event='limit' wrapp='true'><action primary='search'/></hok></hooks>\n\
             <colour>blue</colour>\n</metadata>\n<imputs/><context/><process/><steps/>",
        );
        assert_eq!(
            lines(&parsed.problems),
            ["5:8: unknown attribute `teir` of <model>: did you mean `tier`?"]
        );
        assert_eq!(
            lines(&parsed.warnings),
            [
                "3:11: unknown attribute `owner` of <metadata>: it takes no attributes",
                "4:1: unknown tag <permisions> inside <metadata>: did you mean <permissions>?",
                "6:8: unknown tag <hok> inside <hooks>: did you mean <hook>?",
                "7:1: unknown tag <colour> inside <metadata>: there are <author>, <category>, <checkout>, \
                 <context>, <continuation_directive>, <description>, <export>, <extends>, <hooks>, <imported>, <limits>, <model>, \
                 <model_class>, <name>, <permissions>, <version>",
                "9:1: <imputs> means nothing here: did you mean <inputs>?",
                "9:10: <context> is ignored here: it belongs inside <metadata>",
                "6:27: unknown attribute `wrapp` of <hok>: did you mean `wrap`?",
            ]
        );
    }

    #[test]
    fn unknown_attributes_are_reported_everywhere() {
        let parsed = parse(
            "```xml\n<directive name='d' version='1.0.0' extend='x'>\n\
             <inputs all='1'><input name='a' requird='true'/></inputs>\n\
             <outputs><output name='b' typ='string'/></outputs>\n\
             <metadata><permissions only='a'><execute item='x'><tool id='y'>z</tool></execute>\
             <acknowledge risk='high' why='z'>w</acknowledge></permissions>\n\
             <context><before wrap='1'>k</before></context>\n\
             <hooks><hook event='limit'><conditon path='a'/><condition path='a' op='eq' value='1'/>\
             <action primary='search'/></hook></hooks></metadata>\n\
             <process><search query='x'><param name='a' vale='b'/></search></process>\n</directive>\n```\nDo it.\n",
        );
        assert_eq!(lines(&parsed.problems), [] as [&str; 0]);
        let mut reported = lines(&parsed.warnings);
        reported.sort();
        assert_eq!(
            reported,
            [
                "2:37: unknown attribute `extend` of <directive>: did you mean `extends`?",
                "3:33: unknown attribute `requird` of <input>: did you mean `required`?",
                "3:9: unknown attribute `all` of <inputs>: it takes no attributes",
                "4:27: unknown attribute `typ` of <output>: did you mean `type`?",
                "5:107: unknown attribute `why` of <acknowledge>: there are `risk`",
                "5:24: unknown attribute `only` of <permissions>: it takes no attributes",
                "5:42: unknown attribute `item` of <execute>: it takes no attributes",
                "5:57: unknown attribute `id` of <tool>: it takes no attributes",
                "6:18: unknown attribute `wrap` of <before>: it takes no attributes",
                "7:28: unknown tag <conditon> inside <hook>: did you mean <condition>?",
                "8:44: unknown attribute `vale` of <param>: did you mean `value`?",
            ]
        );
    }
}
