//! What is written beside installed packages: that they are all there, and which they are.

use lillux::Digest;
use serde_json::{Value, json};

use super::{LockedPackage, Requirement, sort_and_dedup};

/// What was installed. A folder without one is not finished.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackageRecord {
    /// The packages, sorted.
    pub packages: Vec<LockedPackage>,
}

impl PackageRecord {
    /// The name of its file.
    pub const FILE_NAME: &'static str = "packages.json";
    /// No record is larger.
    pub const MAX_BYTES: u64 = 8 << 20;

    /// A record of packages in any order.
    #[must_use]
    pub fn new(packages: Vec<LockedPackage>) -> Self {
        Self { packages: sort_and_dedup(packages) }
    }

    /// Whether these are the packages, in whichever order.
    #[must_use]
    pub fn matches(&self, pins: &[LockedPackage]) -> bool {
        sort_and_dedup(pins.to_vec()) == self.packages
    }

    /// Its text.
    #[must_use]
    pub fn to_text(&self) -> String {
        format!("{}\n", json!({"record_version": 1, "packages": self.packages}))
    }

    /// Reads its text; `None` for anything else.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let value: Value = serde_json::from_slice(bytes).ok()?;
        if value.get("record_version") != Some(&json!(1)) {
            return None;
        }
        let read = |row: &Value| {
            let text = |key: &str| row.get(key).and_then(Value::as_str).map(str::to_owned);
            Some(LockedPackage {
                name: text("name")?,
                version: text("version")?,
                integrity: text("integrity")?,
            })
        };
        let packages = value.get("packages")?.as_array()?.iter().map(read).collect::<Option<Vec<_>>>()?;
        Some(Self::new(packages))
    }
}

/// The name of the folder for these requirements on this interpreter, with or without pins.
#[must_use]
pub fn cache_key(
    interpreter: &[String],
    requirements: &[Requirement],
    pins: Option<&[LockedPackage]>,
) -> String {
    let requirement_texts: Vec<&str> =
        requirements.iter().map(|requirement| requirement.text.as_str()).collect();
    let pins = pins.map(|pins| sort_and_dedup(pins.to_vec()));
    Digest::of(json!([1, interpreter, requirement_texts, pins]).to_string().as_bytes()).short()
}
