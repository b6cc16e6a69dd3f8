//! What a thread records of the receipt of a tool's run: how much was enforced, by what, and which rules were not.

use std::collections::BTreeMap;

use lillux::sandbox::{Mechanism, Receipt, ReceiptRow, SandboxRule};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::redact::Redactor;

/// The word of a rule, a mechanism or a level in JSON.
fn word(value: impl Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

fn mechanism(row: &ReceiptRow) -> String {
    match row.abi {
        Some(abi) => format!("{} {abi}", word(row.mechanism)),
        None => word(row.mechanism),
    }
}

/// The receipt without what is the same for every run; `None` if it is none.
pub(crate) fn receipt_summary(receipt: &Value, redactor: &Redactor) -> Option<Map<String, Value>> {
    let receipt = serde_json::from_value::<Receipt>(receipt.clone()).ok()?;
    let mut rules: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for row in receipt.rows.iter().filter(|row| row.is_enforced && row.mechanism != Mechanism::None) {
        let (mechanisms, mechanism) = (rules.entry(word(row.rule)).or_default(), mechanism(row));
        if !mechanisms.contains(&mechanism) {
            mechanisms.push(mechanism);
        }
    }
    let unenforced: Vec<SandboxRule> = receipt.unenforced();
    let mut summary = Map::new();
    summary.insert("level".to_owned(), json!(receipt.level));
    summary.insert("rules".to_owned(), json!(rules));
    if !unenforced.is_empty() {
        summary.insert("unenforced".to_owned(), json!(unenforced));
    }
    for (name, paths) in [
        ("replaced", &receipt.replaced),
        ("moved_aside", &receipt.moved_aside),
        ("left_in_place", &receipt.left_in_place),
    ] {
        if !paths.is_empty() {
            let paths: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
            let mut paths = json!(paths);
            redactor.redact_value(&mut paths);
            summary.insert(name.to_owned(), paths);
        }
    }
    Some(summary)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redactor() -> Redactor {
        Redactor::new(&BTreeMap::new(), |_| false)
    }

    #[test]
    fn receipts_are_summed_up_by_rule() {
        let row = |rule: &str, mechanism: &str, abi: Option<u32>, is_enforced: bool| json!({"rule": rule, "mechanism": mechanism, "abi": abi, "is_enforced": is_enforced, "detail": "x"});
        let receipt = json!({"level": "partial", "replaced": ["/p/.mcp.json"], "rows": [
            row("writes", "landlock", Some(4), true),
            row("writes", "mount_namespace", None, true),
            row("network", "seccomp", None, true),
            row("network", "seccomp", None, true),
            row("metadata", "mount_namespace", None, false),
        ]});
        let summary = receipt_summary(&receipt, &redactor()).map(Value::Object);
        let expected = json!({
            "level": "partial",
            "rules": {"writes": ["landlock 4", "mount_namespace"], "network": ["seccomp"]},
            "unenforced": ["metadata"],
            "replaced": ["/p/.mcp.json"],
        });
        assert_eq!(summary, Some(expected));
        assert_eq!(receipt_summary(&json!({"level": "none of these"}), &redactor()), None);
    }
}
