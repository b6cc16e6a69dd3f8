//! Names that providers accept, one for each item.

use std::collections::BTreeSet;

use lillux::Digest;

/// The longest name that every provider accepts.
const MAX_NAME_LEN: usize = 64;
/// How much of the item's digest makes a name its own.
const DIGEST_DIGITS: usize = 8;
/// As many that no two ids with the same ones can be made.
const STABLE_DIGITS: usize = 16;

/// Names that are taken.
#[derive(Debug, Default)]
pub(super) struct NameAllocator(BTreeSet<String>);

impl NameAllocator {
    /// Takes a name as it is.
    pub(super) fn reserve(&mut self, name: &str) -> String {
        self.0.insert(name.to_owned());
        name.to_owned()
    }

    /// A name for the item: `rye/file-system/read` → `rye_file_system_read`; where that is taken or too long, with a part
    /// of the id's digest.
    pub(super) fn for_item(&mut self, id: &str) -> String {
        let plain = plain_name(id);
        let mut name = plain.clone();
        let hex = Digest::of(id.as_bytes()).to_hex();
        let mut digits = DIGEST_DIGITS;
        while name.len() > MAX_NAME_LEN || self.0.contains(&name) {
            let suffix = &hex[..digits.min(hex.len())];
            let available = MAX_NAME_LEN.saturating_sub(suffix.len() + 1);
            name = format!("{}_{suffix}", &plain[..plain.len().min(available)]);
            if digits > hex.len() {
                break;
            }
            digits += 1;
        }
        self.0.insert(name.clone());
        name
    }
}

fn plain_name(id: &str) -> String {
    id.chars().map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '_' }).collect()
}

/// Names that lists of allowed tools can rely on: whatever other items appear, a name never comes to mean another item. Items of
/// one plain name, and those whose plain name is in `reserved`, all have a part of their id's digest in their names.
#[must_use]
pub fn stable_names(ids: &[&str], reserved: &[&str]) -> Vec<String> {
    let plain: Vec<String> = ids.iter().map(|id| plain_name(id)).collect();
    let is_taken = |name: &String| {
        name.len() > MAX_NAME_LEN
            || reserved.contains(&name.as_str())
            || plain.iter().filter(|other| *other == name).count() > 1
    };
    let name = |(id, plain): (&&str, &String)| match is_taken(plain) {
        false => plain.clone(),
        true => {
            let hex = Digest::of(id.as_bytes()).to_hex();
            let suffix = &hex[..STABLE_DIGITS.min(hex.len())];
            let available = MAX_NAME_LEN.saturating_sub(suffix.len() + 1);
            format!("{}_{suffix}", &plain[..plain.len().min(available)])
        }
    };
    ids.iter().zip(&plain).map(name).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_are_readable_where_they_can_be() {
        let mut names = NameAllocator::default();
        assert_eq!(names.reserve("rye_execute"), "rye_execute");
        assert_eq!(names.for_item("rye/file-system/read"), "rye_file_system_read");
        let other = names.for_item("rye/file_system/read");
        assert!(other.starts_with("rye_file_system_read_") && other.len() == 29, "{other}");
        assert_ne!(names.for_item("rye/execute"), "rye_execute", "a primary's name is taken");
        let long = format!("team/{}", "long-".repeat(20));
        assert_eq!(names.for_item(&long).len(), 64);
    }

    #[test]
    fn stable_names_never_change_hands() {
        let alone = stable_names(&["team/show_all"], &["rye_sign"]);
        assert_eq!(alone, ["team_show_all"]);
        let both = stable_names(&["team/show-all", "team/show_all", "rye/sign"], &["rye_sign"]);
        assert!(both.iter().all(|name| !["team_show_all", "rye_sign"].contains(&name.as_str())), "{both:?}");
        assert!(both[0].starts_with("team_show_all_") && both[0] != both[1], "{both:?}");
    }

    proptest! {
        #[test]
        fn names_are_bijective_and_accepted_everywhere(
            ids in prop::collection::btree_set("[a-b_][a-b._-]{0,2}(/[a-b_][a-b._-]{0,30}){0,4}", 0..60)
        ) {
            let mut names = NameAllocator::default();
            let made: BTreeSet<String> = ids.iter().map(|id| names.for_item(id)).collect();
            prop_assert_eq!(made.len(), ids.len());
            for name in made {
                prop_assert!((1..=64).contains(&name.len()));
                prop_assert!(name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-'));
            }
        }
    }
}
