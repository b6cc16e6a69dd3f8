//! The rules between a chain's elements: space order, inputs and outputs, versions. Plain values in, messages out.

use std::cmp::Ordering;

use rye_item::space::SpaceTier;
use serde_json::{Map, Value};

/// What the rules look at in one element.
#[derive(Clone, Debug, PartialEq)]
pub struct ChainLink {
    /// Its id.
    pub item_id: String,
    /// Its space.
    pub tier: SpaceTier,
    /// Its version.
    pub version: Option<String>,
    /// The names it needs from the element that delegates to it.
    pub inputs: Vec<String>,
    /// The names it gives to what it delegates to.
    pub outputs: Vec<String>,
    /// By the id of who delegates to it: the versions it accepts.
    pub child_constraints: Map<String, Value>,
}

/// What the rules found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChainValidation {
    /// What makes the chain invalid.
    pub issues: Vec<String>,
    /// What is worth knowing.
    pub warnings: Vec<String>,
    /// How many pairs were looked at.
    pub validated_pairs: usize,
}

impl ChainValidation {
    /// Whether the chain may run.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.issues.is_empty()
    }
}

/// Looks at each element and the one it delegates to. Every rule fires; every message is collected.
#[must_use]
pub fn validate(links: &[ChainLink]) -> ChainValidation {
    let mut validation =
        ChainValidation { validated_pairs: links.len().saturating_sub(1), ..ChainValidation::default() };
    for pair in links.windows(2) {
        let (child, parent) = (&pair[0], &pair[1]);
        validation.issues.extend(space_issue((&child.item_id, child.tier), (&parent.item_id, parent.tier)));
        validation.issues.extend(io_issue(child, parent));
        check_version(child, parent, &mut validation);
    }
    validation
}

/// An element may depend on equal or lower precedence only.
#[must_use]
pub fn space_issue(child: (&str, SpaceTier), parent: (&str, SpaceTier)) -> Option<String> {
    let ((child, child_tier), (parent, parent_tier)) = (child, parent);
    (child_tier.precedence() < parent_tier.precedence()).then(|| {
        format!(
            "Tool '{child}' from {child_tier} space cannot depend on '{parent}' from {parent_tier} space. \
             Use a higher-precedence space version or pin the dependency."
        )
    })
}

fn io_issue(child: &ChainLink, parent: &ChainLink) -> Option<String> {
    if child.outputs.is_empty() || parent.inputs.is_empty() {
        return None;
    }
    let mut missing: Vec<&String> =
        parent.inputs.iter().filter(|input| !child.outputs.contains(input)).collect();
    missing.sort();
    let mut outputs: Vec<&String> = child.outputs.iter().collect();
    outputs.sort();
    (!missing.is_empty()).then(|| {
        format!(
            "I/O mismatch: '{}' requires inputs {} not provided by '{}' (outputs: {})",
            parent.item_id,
            quote_list(&missing),
            child.item_id,
            quote_list(&outputs)
        )
    })
}

fn quote_list(names: &[&String]) -> String {
    let names: Vec<String> = names.iter().map(|name| format!("'{name}'")).collect();
    format!("[{}]", names.join(", "))
}

fn check_version(child: &ChainLink, parent: &ChainLink, validation: &mut ChainValidation) {
    let Some(constraint) = parent.child_constraints.get(&child.item_id) else {
        return;
    };
    let bounds = [
        ("min_version", Ordering::Less, "< minimum required"),
        ("max_version", Ordering::Greater, "> maximum allowed"),
    ];
    for (key, forbidden, words) in bounds {
        let Some(bound) = constraint.get(key) else { continue };
        let name = &child.item_id;
        let Some(bound) = bound.as_str().filter(|bound| parse_version(bound).is_some()) else {
            validation.issues.push(format!(
                "Version constraint failed: {key} of '{}' for '{name}' is not a version",
                parent.item_id
            ));
            continue;
        };
        let Some(version) = child.version.as_deref() else {
            let warning =
                format!("'{name}' has no version but '{}' specifies version constraints", parent.item_id);
            if !validation.warnings.contains(&warning) {
                validation.warnings.push(warning);
            }
            continue;
        };
        match compare_versions(version, bound) {
            Some(order) if order == forbidden => validation
                .issues
                .push(format!("Version constraint failed: '{name}' version {version} {words} {bound}")),
            Some(_) => {}
            None => validation
                .issues
                .push(format!("Version constraint failed: '{name}' version {version} is not a version")),
        }
    }
}

/// Compares two versions; missing parts count as zero, a pre-release comes before its release.
#[must_use]
pub fn compare_versions(left: &str, right: &str) -> Option<Ordering> {
    Some(parse_version(left)?.cmp(&parse_version(right)?))
}

fn parse_version(version: &str) -> Option<semver::Version> {
    let version = version.trim().trim_start_matches('v');
    let (numbers, rest) = match version.find(['-', '+']) {
        Some(at) => version.split_at(at),
        None => (version, ""),
    };
    let mut numbers: Vec<&str> = numbers.split('.').collect();
    while numbers.len() < 3 {
        numbers.push("0");
    }
    semver::Version::parse(&format!("{}{rest}", numbers.join("."))).ok()
}

/// The names in an `inputs` or `outputs` field: a list of names, a list of `{name}`, or a map by name.
#[must_use]
pub fn field_names(field: Option<&Value>) -> Vec<String> {
    match field {
        Some(Value::Array(list)) => list
            .iter()
            .filter_map(|entry| entry.as_str().or_else(|| entry.get("name").and_then(Value::as_str)))
            .map(str::to_owned)
            .collect(),
        Some(Value::Object(map)) => map.keys().cloned().collect(),
        Some(Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) | None => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn link(item_id: &str, tier: SpaceTier) -> ChainLink {
        ChainLink {
            item_id: item_id.to_owned(),
            tier,
            version: Some("1.0.0".to_owned()),
            inputs: Vec::new(),
            outputs: Vec::new(),
            child_constraints: Map::new(),
        }
    }

    fn issues(links: &[ChainLink]) -> Vec<String> {
        validate(links).issues
    }

    #[test]
    fn space_rules_match_the_specification() {
        use SpaceTier::{Project, System, User};
        let rows = [
            (Project, User, true),
            (Project, System, true),
            (User, System, true),
            (User, Project, false),
            (System, Project, false),
            (System, User, false),
            (Project, Project, true),
            (User, User, true),
            (System, System, true),
        ];
        for (child, parent, is_valid) in rows {
            let found = issues(&[link("child", child), link("parent", parent)]);
            let expected = if is_valid {
                Vec::new()
            } else {
                vec![format!(
                    "Tool 'child' from {child} space cannot depend on 'parent' from {parent} space. Use a higher-precedence space version or pin the dependency."
                )]
            };
            assert_eq!(found, expected, "{child} → {parent}");
        }
    }

    #[test]
    fn chains_are_validated_pair_by_pair() {
        use SpaceTier::{Project, System, User};
        let chain = [link("t", Project), link("r", User), link("p", System)];
        assert_eq!(validate(&chain), ChainValidation { validated_pairs: 2, ..ChainValidation::default() });
        let chain = [link("t", Project), link("r", System), link("p", User)];
        assert_eq!(issues(&chain).len(), 1);
        assert!(issues(&[link("alone", User)]).is_empty() && issues(&[]).is_empty());
    }

    #[test]
    fn missing_inputs_are_reported() {
        let mut child = link("child", SpaceTier::Project);
        let mut parent = link("parent", SpaceTier::System);
        parent.inputs = field_names(Some(&json!(["source", {"name": "argv"}, "env"])));
        assert!(
            issues(&[child.clone(), parent.clone()]).is_empty(),
            "a child that declares nothing is not judged"
        );
        child.outputs = field_names(Some(&json!({"env": {}, "code": {}})));
        assert_eq!(
            issues(&[child, parent]),
            [
                "I/O mismatch: 'parent' requires inputs ['argv', 'source'] not provided by 'child' (outputs: ['code', 'env'])"
            ]
        );
    }

    #[test]
    fn versions_stay_within_their_bounds() {
        let check = |version: Option<&str>, constraint: Value| {
            let mut child = link("child", SpaceTier::Project);
            child.version = version.map(str::to_owned);
            let mut parent = link("parent", SpaceTier::System);
            parent.child_constraints.insert("child".to_owned(), constraint);
            let found = validate(&[child, parent]);
            (found.issues, found.warnings)
        };
        let none = Vec::<String>::new;
        let bad = |message: &str| (vec![message.to_owned()], none());
        assert_eq!(
            check(Some("1.0.0"), json!({"min_version": "2.0.0"})),
            bad("Version constraint failed: 'child' version 1.0.0 < minimum required 2.0.0")
        );
        assert_eq!(
            check(Some("3.1"), json!({"max_version": "3.0.5"})),
            bad("Version constraint failed: 'child' version 3.1 > maximum allowed 3.0.5")
        );
        assert_eq!(
            check(Some("2.0.0"), json!({"min_version": "2", "max_version": "2.0.0"})),
            (none(), none())
        );
        assert_eq!(
            check(Some("2.0.0-rc.1"), json!({"min_version": "2.0.0"})),
            bad("Version constraint failed: 'child' version 2.0.0-rc.1 < minimum required 2.0.0")
        );
        assert_eq!(
            check(Some("new"), json!({"min_version": "1.0.0"})),
            bad("Version constraint failed: 'child' version new is not a version")
        );
        assert_eq!(
            check(Some("1.0.0"), json!({"min_version": 2})),
            bad("Version constraint failed: min_version of 'parent' for 'child' is not a version")
        );
        assert_eq!(
            check(None, json!({"min_version": "1.0.0"})),
            (none(), vec!["'child' has no version but 'parent' specifies version constraints".to_owned()])
        );
        assert_eq!(check(Some("1.10.0"), json!({"min_version": "1.9.0"})), (none(), none()));
    }
}
