//! Values of secrets in files, which are left out as a whole: nothing in them is replaced.

use std::collections::{BTreeMap, BTreeSet};

use super::{MAX_SEARCH_BYTES, Redactor};

impl Redactor {
    /// The names of the variables whose values these bytes hold, in any of their encodings; `None` if there are too many values to
    /// look for.
    #[must_use]
    pub fn find_values(&self, bytes: &[u8]) -> Option<BTreeSet<&str>> {
        if self.values.is_empty() {
            return Some(BTreeSet::new());
        }
        let search = self.value_search.get_or_init(|| {
            let expression = escape_values(&self.values).join("|");
            regex::bytes::RegexBuilder::new(&expression).size_limit(MAX_SEARCH_BYTES).build().ok()
        });
        let found = search.as_ref()?.find_iter(bytes);
        let name = |found: regex::bytes::Match<'_>| {
            let value = std::str::from_utf8(found.as_bytes()).ok()?;
            self.values.get(value).map(String::as_str)
        };
        Some(found.filter_map(name).collect())
    }
}

/// The values as expressions, the longest first: one that begins with another is found as a whole.
pub(super) fn escape_values(values: &BTreeMap<String, String>) -> Vec<String> {
    let mut known: Vec<&String> = values.keys().collect();
    known.sort_by_key(|value| std::cmp::Reverse(value.len()));
    known.into_iter().map(|value| regex::escape(value)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::MAX_VALUES;
    use super::*;

    #[test]
    fn values_are_found_in_bytes() {
        let environment = BTreeMap::from([
            ("A_TOKEN".to_owned(), "swordfish-1".to_owned()),
            ("B_TOKEN".to_owned(), "swordfish-1-and-more".to_owned()),
            ("PLAIN".to_owned(), "not-a-secret".to_owned()),
        ]);
        let redactor = Redactor::new(&environment, |name| name.ends_with("TOKEN"));
        let found = |bytes: &[u8]| redactor.find_values(bytes).expect("few").into_iter().collect::<Vec<_>>();
        assert_eq!(found(b"\xff swordfish-1 swordfish-1-and-more"), ["A_TOKEN", "B_TOKEN"]);
        assert_eq!(found(b"not-a-secret sk-ant-0123456789abcdef0123"), Vec::<&str>::new());
        let many = (0..=MAX_VALUES).map(|number| (format!("{number}_TOKEN"), format!("secret-{number:09}")));
        let redactor = Redactor::new(&many.collect(), |_| true);
        assert_eq!(redactor.find_values(b"x"), None);
    }
}
