//! Everything that a tool's request is made with, put where hooks, permissions and the tool that is called look for it: among
//! the parameters.

use rye_item::ItemType;
use rye_item::parameters::parse_words;
use serde_json::{Map, Value, json};

use crate::action::{Action, PrimaryAction};
use crate::dispatch::Dispatcher;

/// The words of a command line, which `rye` in a tool sends as they were given.
const WORDS: &str = "words";

/// The request with the options of its verb, or the words of its command line, among its parameters. Words are typed by what
/// the item declares, and win over parameters of the same name, as they do outside a thread.
///
/// # Errors
/// When the words are no texts.
pub(super) fn collect(dispatcher: &dyn Dispatcher, mut action: Action) -> Result<Action, String> {
    if action.primary != PrimaryAction::Execute {
        let options = std::mem::take(&mut action.options);
        action.params.extend(options);
        return Ok(action);
    }
    let Some(words) = action.options.remove(WORDS) else { return Ok(action) };
    let words: Vec<(String, String)> =
        serde_json::from_value::<std::collections::BTreeMap<String, String>>(words)
            .map_err(|_| format!("`{WORDS}` is an object of texts"))?
            .into_iter()
            .collect();
    let typed: Map<String, Value> = match action.item() {
        Some(item) if item.item_type == ItemType::Tool => {
            parse_words(&words, dispatcher.parameter_schema(&item).as_ref())
        }
        // The inputs of a directive declare their types themselves.
        _ => words.into_iter().map(|(name, word)| (name, json!(word))).collect(),
    };
    action.params.extend(typed);
    Ok(action)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use lillux::CancelToken;
    use rye_item::ItemRef;
    use rye_thread::capability::PermittedAction;

    use super::*;
    use crate::tool_context::ThreadContext;

    /// Knows one tool, which takes a text and a number.
    struct OneTool;

    impl Dispatcher for OneTool {
        fn dispatch(&self, _: &PermittedAction, _: &Arc<ThreadContext>, _: &CancelToken) -> Value {
            Value::Null
        }

        fn parameter_schema(&self, item: &ItemRef) -> Option<Value> {
            let schema = json!({"properties": {"path": {"type": "string"}, "lines": {"type": "integer"}}});
            (item.id.as_str() == "team/cut").then_some(schema)
        }
    }

    fn collected(request: &Value) -> Result<Action, String> {
        collect(&OneTool, Action::from_value(request).expect("an action"))
    }

    #[test]
    fn words_become_typed_parameters() {
        let action = collected(&json!({
            "item_id": "team/cut", "params": {"path": "harmless", "deep": true}, "words": {"path": "1", "lines": "2"},
        }));
        let action = action.expect("an action");
        assert_eq!(Value::Object(action.params), json!({"path": "1", "lines": 2, "deep": true}));
        assert!(action.options.is_empty());
        let run = json!({"item_type": "directive", "item_id": "team/plan", "words": {"count": "2"}, "thread": "fork"});
        let run = collected(&run).expect("an action");
        assert_eq!((Value::Object(run.params), run.options.len()), (json!({"count": "2"}), 1));
    }

    #[test]
    fn options_of_verbs_become_parameters() {
        let search = collected(&json!({"primary": "search", "query": "keys", "params": {"query": "other"}}));
        let search = search.expect("an action");
        assert_eq!(Value::Object(search.params.clone()), json!({"query": "keys"}));
        assert_eq!(search.text_option("query"), Some("keys"));
    }

    #[test]
    fn words_that_are_no_texts_are_refused() {
        for words in [json!({"path": 1}), json!(["path"]), json!("path=1")] {
            assert!(collected(&json!({"item_id": "team/cut", "words": words})).is_err(), "{words}");
        }
    }
}
