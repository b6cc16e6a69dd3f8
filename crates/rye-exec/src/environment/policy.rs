//! Which variables may reach a tool's process: lists of names from the settings, key `environment`.
//!
//! Names may hold `*`. What may come in is compared letter by letter; what is kept out is compared without regard to
//! case, because `npm_config_registry` and `NPM_CONFIG_REGISTRY` do the same harm.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::EnvironmentError;

/// Never set by an item nor by a project's `.env`, whatever the settings say: a slip in them must not open the
/// dynamic loader or RYE's own settings.
const ALWAYS_RESERVED: [&str; 4] = ["LD_*", "DYLD_*", "RYE_*", "USER_SPACE"];

/// Never set by a project's `.env`, whatever the settings say.
const ALWAYS_DENIED_IN_DOTENV: [&str; 1] = ["PATH"];

/// The settings `environment`, ready to be asked.
#[derive(Clone, Debug)]
pub struct EnvironmentPolicy {
    inherit: NameSet,
    pass: NameSet,
    secrets: NameSet,
    withheld: NameSet,
    dotenv_allowed: NameSet,
    dotenv_denied: NameSet,
    reserved: NameSet,
    interpreters: BTreeMap<String, Map<String, Value>>,
}

impl EnvironmentPolicy {
    /// Reads the settings `environment`.
    ///
    /// # Errors
    /// When a list is missing or is not a list of names: a policy that says nothing is not a policy.
    pub fn from_settings(settings: &Value) -> Result<Self, EnvironmentError> {
        let exact = |key| Ok(NameSet::new(&name_list(settings, key)?, CaseRule::Sensitive));
        let any_case = |key, always: &[&str]| {
            let mut patterns = name_list(settings, key)?;
            patterns.extend(always.iter().map(|name| (*name).to_owned()));
            Ok(NameSet::new(&patterns, CaseRule::Insensitive))
        };
        Ok(Self {
            inherit: exact("inherit")?,
            pass: exact("pass")?,
            secrets: any_case("secrets", &[])?,
            withheld: any_case("withheld", &[])?,
            dotenv_allowed: exact("dotenv_allowed")?,
            dotenv_denied: any_case("dotenv_denied", &ALWAYS_DENIED_IN_DOTENV)?,
            reserved: any_case("reserved", &ALWAYS_RESERVED)?,
            interpreters: interpreter_aliases(settings)?,
        })
    }

    /// Whether a tool gets the process's variable without asking for it.
    #[must_use]
    pub fn is_inherited(&self, name: &str) -> bool {
        let is_allowed = self.inherit.contains(name) || self.pass.contains(name);
        is_allowed && (self.is_passed_by_name(name) || !self.is_secret(name))
    }

    /// Whether it is kept from tools that do not ask for it: a secret, or settings that can contain one.
    #[must_use]
    pub fn is_secret(&self, name: &str) -> bool {
        self.is_redacted(name) || self.withheld.contains(name)
    }

    /// Whether its value is taken out of texts: the name says that it is a secret. A region or a host is none.
    #[must_use]
    pub fn is_redacted(&self, name: &str) -> bool {
        self.secrets.contains(name)
    }

    /// Whether the user's settings pass it by its whole name, as a secret has to be.
    #[must_use]
    pub fn is_passed_by_name(&self, name: &str) -> bool {
        self.pass.names.iter().any(|passed| passed == name)
    }

    /// Whether a project's `.env` may never set it.
    #[must_use]
    pub fn is_denied_in_dotenv(&self, name: &str) -> bool {
        self.dotenv_denied.contains(name) || self.reserved.contains(name)
    }

    /// Whether a tool gets it from a project's `.env` without asking for it: an ordinary name of an application, or one that the
    /// user's settings pass.
    #[must_use]
    pub fn is_open_in_dotenv(&self, name: &str) -> bool {
        let is_allowed = self.dotenv_allowed.contains(name) || self.pass.contains(name);
        is_allowed
            && !self.is_denied_in_dotenv(name)
            && (self.is_passed_by_name(name) || !self.is_secret(name))
    }

    /// Whether no item may set it.
    #[must_use]
    pub fn is_reserved(&self, name: &str) -> bool {
        self.reserved.contains(name)
    }

    /// What an older name of an interpreter type stands for: its `type`, and defaults for the other fields.
    #[must_use]
    pub fn interpreter_alias(&self, name: &str) -> Option<&Map<String, Value>> {
        self.interpreters.get(name)
    }
}

fn name_list(settings: &Value, key: &'static str) -> Result<Vec<String>, EnvironmentError> {
    let wrong = || EnvironmentError::InvalidPolicy {
        key,
        expected: "a list of variable names; `*` matches anything",
    };
    let list = settings.get(key).and_then(Value::as_array).ok_or_else(wrong)?;
    let names = list.iter().map(|name| name.as_str().filter(|name| is_pattern(name)).map(str::to_owned));
    names.collect::<Option<_>>().ok_or_else(wrong)
}

fn interpreter_aliases(settings: &Value) -> Result<BTreeMap<String, Map<String, Value>>, EnvironmentError> {
    let wrong = || EnvironmentError::InvalidPolicy {
        key: "interpreters",
        expected: "a map of names to {type, defaults…}",
    };
    let Some(value) = settings.get("interpreters").filter(|value| !value.is_null()) else {
        return Ok(BTreeMap::new());
    };
    let map = value.as_object().ok_or_else(wrong)?;
    map.iter()
        .map(|(name, defaults)| Some((name.clone(), defaults.as_object()?.clone())))
        .collect::<Option<_>>()
        .ok_or_else(wrong)
}

fn is_pattern(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_*".contains(&byte))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CaseRule {
    Sensitive,
    Insensitive,
}

#[derive(Clone, Debug)]
struct NameSet {
    case: CaseRule,
    names: Vec<String>,
    globs: Vec<String>,
}

impl NameSet {
    fn new(patterns: &[String], case: CaseRule) -> Self {
        let folded = patterns.iter().map(|pattern| match case {
            CaseRule::Sensitive => pattern.clone(),
            CaseRule::Insensitive => pattern.to_ascii_uppercase(),
        });
        let (globs, names) = folded.partition(|pattern| pattern.contains('*'));
        Self { case, names, globs }
    }

    fn contains(&self, name: &str) -> bool {
        match self.case {
            CaseRule::Sensitive => self.contains_folded(name),
            CaseRule::Insensitive => self.contains_folded(&name.to_ascii_uppercase()),
        }
    }

    fn contains_folded(&self, name: &str) -> bool {
        self.names.iter().any(|known| known == name) || self.globs.iter().any(|glob| matches_glob(glob, name))
    }
}

/// Whether `name` fits `glob`, where `*` stands for any text, also none.
fn matches_glob(glob: &str, name: &str) -> bool {
    let mut parts = glob.split('*');
    let Some(mut rest) = parts.next().and_then(|first| name.strip_prefix(first)) else {
        return false;
    };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else {
        return rest.is_empty();
    };
    for part in middle {
        let Some(index) = rest.find(part) else {
            return false;
        };
        rest = &rest[index + part.len()..];
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn policy(settings: &Value) -> EnvironmentPolicy {
        EnvironmentPolicy::from_settings(settings).expect("a policy")
    }

    #[test]
    fn a_star_stands_for_any_text() {
        let cases = [
            ("LD_*", "LD_PRELOAD", true),
            ("LD_*", "LD_", true),
            ("LD_*", "OLD_X", false),
            ("*_KEY", "API_KEY", true),
            ("*_KEY", "API_KEYS", false),
            ("*PASSWORD*", "DB_PASSWORD_2", true),
            ("A*B*C", "AxBxBxC", true),
            ("A*B*C", "AxC", false),
            ("AB*BA", "ABA", false),
            ("*", "", true),
            ("X", "X", true),
            ("X", "XY", false),
        ];
        for (glob, name, expected) in cases {
            assert_eq!(matches_glob(glob, name), expected, "{glob} {name}");
        }
    }

    #[test]
    fn a_policy_that_lacks_a_list_is_refused() {
        let whole = json!({"inherit": [], "pass": [], "secrets": [], "withheld": [], "dotenv_allowed": [], "dotenv_denied": [], "reserved": []});
        assert!(EnvironmentPolicy::from_settings(&whole).is_ok());
        for key in ["inherit", "pass", "secrets", "withheld", "dotenv_allowed", "dotenv_denied", "reserved"] {
            for wrong in [json!(null), json!("PATH"), json!([1]), json!([""]), json!(["A-B"])] {
                let mut settings = whole.clone();
                settings[key] = wrong;
                let error = EnvironmentPolicy::from_settings(&settings).expect_err("refused");
                assert!(error.to_string().contains(&format!("`environment.{key}`")), "{error}");
            }
        }
    }

    #[test]
    fn empty_policy_still_reserves_loader_variables() {
        let policy = policy(
            &json!({"inherit": [], "pass": [], "secrets": [], "withheld": [], "dotenv_allowed": [], "dotenv_denied": [], "reserved": []}),
        );
        for name in ["LD_PRELOAD", "ld_preload", "DYLD_INSERT_LIBRARIES", "RYE_PYTHON", "USER_SPACE"] {
            assert!(policy.is_reserved(name) && policy.is_denied_in_dotenv(name), "{name}");
        }
        assert!(policy.is_denied_in_dotenv("Path"));
        assert!(!policy.is_inherited("PATH"));
    }

    #[test]
    fn secrets_are_passed_by_full_name_only() {
        let policy = policy(&json!({
            "inherit": ["APP_*"], "pass": ["GH_TOKEN", "MY_*"], "secrets": ["*_TOKEN"], "withheld": ["GH_*"],
            "dotenv_allowed": ["APP_*", "*_TOKEN", "*_PATH"], "dotenv_denied": ["*_PATH"], "reserved": [],
        }));
        let cases =
            [("APP_X", true), ("APP_TOKEN", false), ("GH_TOKEN", true), ("MY_X", true), ("MY_TOKEN", false)];
        for (name, expected) in cases {
            assert_eq!(policy.is_inherited(name), expected, "{name}");
        }
        let cases = [
            ("APP_X", true),
            ("app_x", false),
            ("APP_TOKEN", false),
            ("GH_TOKEN", true),
            ("MY_X", true),
            ("X", false),
            ("APP_PATH", false),
        ];
        for (name, expected) in cases {
            assert_eq!(policy.is_open_in_dotenv(name), expected, "{name}");
        }
    }
}
