//! A question as a person answers it: everything of it, and the digest that an answer names.

use rye_item::text::one_line;
use serde_json::{Value, json};

use super::detail::approval_value;
use crate::store::Approval;
use crate::threads::ApprovalText;

/// The digest of all of a question: who answers it names what they saw.
#[must_use]
pub fn question_digest(question: &Approval) -> String {
    let whole = json!([
        "rye question 1",
        question.id,
        question.thread,
        question.kind,
        question.prompt,
        question.reason,
        question.at_ms,
        question.detail,
    ]);
    lillux::canonical::digest(&whole).to_hex()
}

/// A question as JSON, with every argument to its end, its digest and the directive that asks.
#[must_use]
pub fn question_value(question: &Approval) -> Value {
    let text = ApprovalText::new(question, true);
    let chain = question.detail.get("chain").and_then(Value::as_array);
    let directive = chain.and_then(|chain| chain.first()?.get("directive")?.as_str()).unwrap_or_default();
    let mut value = approval_value(question);
    value["digest"] = json!(question_digest(question));
    value["directive"] = json!(one_line(directive));
    value["text"] = json!({"prompt": text.prompt, "rows": text.rows});
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::thread_id::ThreadId;

    #[test]
    fn digest_covers_every_part() {
        let question = Approval {
            id: "q".to_owned(),
            thread: ThreadId::parse("thread-000000000001").expect("an id"),
            kind: "tool".to_owned(),
            prompt: "write".to_owned(),
            reason: "risk".to_owned(),
            at_ms: 7,
            detail: json!({"action": {"params": {"path": "a"}}}),
        };
        let digest = question_digest(&question);
        let others = [
            Approval { id: "r".to_owned(), ..question.clone() },
            Approval { thread: ThreadId::parse("thread-000000000002").expect("an id"), ..question.clone() },
            Approval { kind: "limit".to_owned(), ..question.clone() },
            Approval { prompt: "read".to_owned(), ..question.clone() },
            Approval { reason: String::new(), ..question.clone() },
            Approval { at_ms: 8, ..question.clone() },
            Approval { detail: json!({"action": {"params": {"path": "b"}}}), ..question.clone() },
        ];
        assert_eq!(digest, question_digest(&question));
        for other in others {
            assert_ne!(digest, question_digest(&other), "{other:?}");
        }
    }
}
