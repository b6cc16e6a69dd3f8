//! `budget_ledger_schema.yaml`: the ledger's table, and the rules of booking.
//!
//! The file may add columns and indexes. What the ledger rests on must be there, whatever it says.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The ledger's table, and the rules of booking.
#[derive(Clone, Debug, PartialEq)]
pub struct LedgerSchema {
    /// The columns, the required ones among them.
    pub columns: Vec<LedgerColumn>,
    /// The indexes.
    pub indexes: Vec<LedgerIndex>,
    /// Whether a parent is charged no more than was reserved. The thread's own row holds the true amount always.
    pub clamp_to_reserved: bool,
    /// The status at which what is left of a reservation is freed.
    pub release_on_status: Vec<String>,
    /// When an ended tree of threads is put away.
    pub archive_after_days: u64,
    /// How often the database is made small.
    pub vacuum_interval_days: u64,
    /// When a folder of the archive is removed.
    pub remove_archived_after_days: Option<u64>,
    /// How many ended trees are kept at most.
    pub keep_trees: Option<u64>,
    /// How much room threads take at most.
    pub max_megabytes: Option<u64>,
    /// Whether this is done by itself.
    pub automatic: bool,
}

/// A column.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LedgerColumn {
    /// Its name: `[a-z_]+`.
    pub name: String,
    /// What it holds.
    #[serde(rename = "type")]
    pub column_type: ColumnType,
    /// Whether it is the key.
    #[serde(default)]
    pub primary_key: bool,
    /// Whether it may be empty.
    #[serde(default)]
    pub nullable: bool,
    /// What it holds at first.
    #[serde(default)]
    pub default: Option<Value>,
}

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ColumnType {
    /// Text.
    #[serde(rename = "TEXT")]
    Text,
    /// A whole number; money in nano-dollars. `REAL` in a file is read as this.
    #[serde(rename = "INTEGER", alias = "REAL")]
    Integer,
}

impl ColumnType {
    /// The word for it in SQL.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Text => "TEXT",
            Self::Integer => "INTEGER",
        }
    }
}

/// An index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerIndex {
    /// Its name: `[a-z_]+`.
    pub name: String,
    /// The columns it is over.
    pub columns: Vec<String>,
}

/// The columns the ledger rests on, and what they hold.
pub const REQUIRED_COLUMNS: [(&str, ColumnType); 8] = [
    ("thread_id", ColumnType::Text),
    ("parent_thread_id", ColumnType::Text),
    ("reserved_spend", ColumnType::Integer),
    ("actual_spend", ColumnType::Integer),
    ("max_spend", ColumnType::Integer),
    ("status", ColumnType::Text),
    ("created_at", ColumnType::Text),
    ("updated_at", ColumnType::Text),
];

#[derive(Deserialize)]
struct LedgerFile {
    table: TableSection,
    operations: OperationsSection,
    cleanup: CleanupSection,
}

#[derive(Deserialize)]
struct TableSection {
    columns: Vec<LedgerColumn>,
    indexes: Vec<LedgerIndex>,
}

#[derive(Deserialize)]
struct OperationsSection {
    report_actual: ReportActual,
    release: Release,
}

#[derive(Deserialize)]
struct ReportActual {
    clamp_to_reserved: bool,
}

#[derive(Deserialize)]
struct Release {
    on_status: Vec<String>,
}

#[derive(Deserialize)]
struct CleanupSection {
    archive_after_days: u64,
    vacuum_interval_days: u64,
    #[serde(default)]
    remove_archived_after_days: Option<u64>,
    #[serde(default)]
    keep_trees: Option<u64>,
    #[serde(default)]
    max_megabytes: Option<u64>,
    #[serde(default)]
    automatic: bool,
}

impl LedgerSchema {
    pub(super) fn from_value(value: &Value) -> Result<Self, String> {
        let mut file: LedgerFile = super::typed(value)?;
        let mut errors = Vec::new();
        let is_name = |name: &str| {
            (1..=64).contains(&name.len())
                && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
        };
        let columns = &mut file.table.columns;
        for (at, column) in columns.iter().enumerate() {
            let name = rye_item::text::one_line(&column.name);
            if !is_name(&column.name) {
                errors.push(format!("table.columns[{at}].name: `{name}` is not [a-z_]+"));
            } else if columns[..at].iter().any(|other| other.name == column.name) {
                errors.push(format!("table.columns[{at}].name: `{name}` is there twice"));
            }
            if column.primary_key && column.name != "thread_id" {
                errors.push(format!("table.columns[{at}].primary_key: the key is `thread_id`"));
            }
        }
        for (name, kind) in REQUIRED_COLUMNS {
            match columns.iter().find(|column| column.name == name) {
                None => errors.push(format!("table.columns: `{name}` is missing")),
                Some(column) if column.column_type != kind => {
                    errors.push(format!("table.columns: `{name}` has another type"));
                }
                Some(column) if name == "thread_id" && !column.primary_key => {
                    errors.push("table.columns: `thread_id` is not the primary key".to_owned());
                }
                Some(_) => {}
            }
        }
        for (at, index) in file.table.indexes.iter().enumerate() {
            let name = rye_item::text::one_line(&index.name);
            if !is_name(&index.name) {
                errors.push(format!("table.indexes[{at}].name: `{name}` is not [a-z_]+"));
            }
            for column in &index.columns {
                if !columns.iter().any(|known| known.name == *column) {
                    let column = rye_item::text::one_line(column);
                    errors.push(format!("table.indexes[{at}].columns: there is no column `{column}`"));
                }
            }
        }
        for (at, column) in columns.iter_mut().enumerate() {
            let Some(default) = column.default.take().filter(|default| !default.is_null()) else { continue };
            let converted = match (column.column_type, &default) {
                (ColumnType::Text, Value::String(_)) => Some(default.clone()),
                // A default of money is none or a whole number of nano-dollars: `0.0` is nought.
                (ColumnType::Integer, Value::Number(number)) => as_integer(number).map(Value::from),
                _ => None,
            };
            match converted {
                Some(converted) => column.default = Some(converted),
                None => {
                    errors.push(format!("table.columns[{at}].default: `{default}` does not match the type"))
                }
            }
        }
        if !errors.is_empty() {
            return Err(errors.join("; "));
        }
        Ok(Self {
            columns: file.table.columns,
            indexes: file.table.indexes,
            clamp_to_reserved: file.operations.report_actual.clamp_to_reserved,
            release_on_status: file.operations.release.on_status,
            archive_after_days: file.cleanup.archive_after_days,
            vacuum_interval_days: file.cleanup.vacuum_interval_days,
            remove_archived_after_days: file.cleanup.remove_archived_after_days,
            keep_trees: file.cleanup.keep_trees,
            max_megabytes: file.cleanup.max_megabytes,
            automatic: file.cleanup.automatic,
        })
    }

    /// The columns that are not among the required ones.
    pub fn extra_columns(&self) -> impl Iterator<Item = &LedgerColumn> {
        self.columns.iter().filter(|column| !REQUIRED_COLUMNS.iter().any(|(name, _)| *name == column.name))
    }
}

fn as_integer(number: &serde_json::Number) -> Option<i64> {
    #[allow(clippy::cast_possible_truncation, reason = "compared right after")]
    number.as_i64().or_else(|| {
        number.as_f64().filter(|value| value.fract() == 0.0 && value.abs() < 1e15).map(|value| value as i64)
    })
}
