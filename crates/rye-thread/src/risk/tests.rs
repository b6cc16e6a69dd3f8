use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn test_rules() -> RiskRules {
    serde_json::from_value(json!({
        "risk_levels": {
            "safe": {"policy": "allow"},
            "write": {"policy": "allow"},
            "elevated": {"policy": "acknowledge_required", "description": "can do what you can"},
            "unrestricted": {"policy": "block"},
        },
        "classifications": [
            {"risk": "unrestricted", "patterns": ["rye.*"], "description": "everything"},
            {"risk": "elevated", "patterns": ["rye.execute.tool.rye.bash.*"], "description": "a shell"},
            {"risk": "elevated", "patterns": ["rye.execute.*"], "description": "any tool"},
            {"risk": "elevated", "patterns": ["rye.sign.*"], "description": "vouches for you"},
            {"risk": "write", "patterns": ["rye.execute.tool.rye.file-system.*"], "description": "files"},
            {"risk": "safe", "patterns": ["rye.fetch.*", "rye.execute.knowledge.*"], "description": "looks"},
        ],
    }))
    .expect("rules")
}

fn authorize(grants: &[&str], risks: &[Risk]) -> Result<usize, String> {
    let capabilities = Capabilities::parse(grants).expect("grants");
    test_rules()
        .authorize(&capabilities, risks)
        .map(|allowed| allowed.len())
        .map_err(|refused| refused.to_string())
}

#[test]
fn other_id_of_a_tool_is_as_risky() {
    let rules: RiskRules = serde_json::from_value(json!({
        "risk_levels": test_rules().risk_levels,
        "classifications": [
            {"risk": "safe", "patterns": ["rye.*"]},
            {"risk": "elevated", "patterns": ["rye.execute.tool.rye.bash.bash"]},
        ],
    }))
    .expect("rules");
    for grant in ["rye.execute.tool.rye.bash", "rye.execute.tool.rye.bash.bash", "rye.execute.tool.rye.*"] {
        let capabilities = Capabilities::parse([grant]).expect("a grant");
        assert!(rules.authorize(&capabilities, &[]).is_err(), "{grant}");
    }
    let other = Capabilities::parse(["rye.execute.tool.team.deploy"]).expect("a grant");
    assert!(rules.authorize(&other, &[]).is_ok());
}

#[test]
fn wildcard_needs_unrestricted_acknowledgement() {
    let message = authorize(&["rye.*"], &[]).expect_err("refused");
    assert_eq!(
        message,
        "Capability 'rye.*' classified as 'unrestricted' (everything). Add <acknowledge risk=\"unrestricted\"> to the \
         directive's <permissions> to explicitly allow this."
    );
    assert!(authorize(&["rye.*"], &[Risk::Elevated]).is_err(), "a lesser acknowledgement");
    assert_eq!(authorize(&["rye.*"], &[Risk::Unrestricted]), Ok(1));
}

#[test]
fn fetching_and_files_are_allowed() {
    assert_eq!(authorize(&["rye.fetch.*", "rye.load.knowledge.a", "rye.execute.knowledge.*"], &[]), Ok(0));
    assert_eq!(
        authorize(&["rye.execute.tool.rye.file-system.*", "rye.execute.tool.rye.file-system.read"], &[]),
        Ok(0)
    );
}

#[test]
fn risk_most_specific_pattern_wins() {
    assert!(authorize(&["rye.execute.tool.rye.bash"], &[]).expect_err("refused").contains("a shell"));
    assert!(authorize(&["rye.execute.tool.team.deploy"], &[]).expect_err("refused").contains("any tool"));
    assert_eq!(authorize(&["rye.execute.tool.team.deploy"], &[Risk::Elevated]), Ok(1));
    assert_eq!(
        authorize(&["rye.execute.tool.team.deploy"], &[Risk::Unrestricted]),
        Ok(1),
        "a greater one counts"
    );
}

#[test]
fn risk_covers_everything_a_grant_reaches() {
    // Covered by nothing but `rye.*`-like rules, or reaching into a shell by a wildcard in the middle.
    let mut narrow = test_rules();
    narrow.classifications = serde_json::from_value(json!([
        {"risk": "safe", "patterns": ["rye.execute.tool.*"]},
        {"risk": "elevated", "patterns": ["rye.execute.tool.rye.bash.*"], "description": "a shell"},
    ]))
    .expect("classifications");
    let classify = |grant: &str| narrow.classify(grant).0;
    assert_eq!(classify("rye.execute.tool.*"), Risk::Elevated);
    assert_eq!(classify("rye.execute.tool.rye.*"), Risk::Elevated);
    assert_eq!(classify("rye.execute.tool.*bash"), Risk::Elevated);
    assert_eq!(classify("rye.execute.tool.rye.b*"), Risk::Elevated);
    assert_eq!(classify("rye.execute.tool.team.*"), Risk::Safe);
    assert_eq!(classify("rye.execute.*"), Risk::Elevated, "covered by no rule");
    assert_eq!(classify("rye.sign.tool.a"), Risk::Elevated, "no rule speaks of it");
}

#[test]
fn signing_is_elevated() {
    assert!(
        authorize(&["rye.fetch.*", "rye.sign.tool.a"], &[]).expect_err("refused").contains("vouches for you")
    );
}

#[test]
fn invalid_risk_rules_allow_nothing() {
    let grants = Capabilities::parse(["rye.load.knowledge.a"]).expect("grants");
    assert!(RiskRules::default().authorize(&grants, &Risk::ALL).is_err());
    let mut broken = test_rules();
    broken.risk_levels.remove(&Risk::Safe);
    assert!(broken.authorize(&grants, &Risk::ALL).is_err());
    let mut broken = test_rules();
    broken.classifications.push(RiskClass {
        risk: Risk::Safe,
        patterns: vec!["[".to_owned()],
        description: String::new(),
    });
    assert!(broken.authorize(&grants, &Risk::ALL).is_err());
    let unknown = json!({"risk_levels": {"harmless": {"policy": "allow"}}, "classifications": []});
    assert!(serde_json::from_value::<RiskRules>(unknown).is_err());
}

#[test]
fn acknowledgements_must_name_known_risks() {
    let read = |value: Value| acknowledged_risks(Some(&value));
    assert_eq!(read(json!([{"risk": "elevated", "reason": "x"}])), Ok(vec![Risk::Elevated]));
    assert!(read(json!([{"risk": "all"}])).is_err());
    assert_eq!(acknowledged_risks(None), Ok(Vec::new()));
}

fn arb_grant() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("rye.*".to_owned()),
        "rye\\.(execute|load|sign)\\.(tool\\.(rye\\.((bash|file-system)\\.)?[a-c*]{1,3}|[a-c*]{1,2})|\\*)"
    ]
}

proptest! {
    #[test]
    fn a_broader_grant_is_never_less_risky(wide in arb_grant(), narrow in arb_grant()) {
        let rules = test_rules();
        let granted = Capabilities::parse([&wide]).expect("a grant");
        if granted.covers(&narrow) {
            prop_assert!(rules.classify(&wide).0 >= rules.classify(&narrow).0);
        }
    }
}
