//! Names that providers accept, one for each item.

use std::collections::BTreeSet;

use lillux::Digest;

/// The longest name that every provider accepts.
const MAX_NAME_LEN: usize = 64;
/// How much of the item's digest makes a name its own.
const DIGEST_DIGITS: usize = 8;
/// As many that no two ids with the same ones can be made.
const STABLE_DIGITS: usize = 32;

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

/// A name that lists of allowed tools can rely on: it follows from the id alone, so that it never comes to mean another item.
/// `team/deploy` is `team_deploy`, `team/web/deploy` is `team_web__deploy`; where the id cannot be told from such a name, or the
/// name is in `reserved`, a part of the id's digest is added.
#[must_use]
pub fn stable_name(id: &str, reserved: &[&str]) -> String {
    let readable = match id.split_once('/') {
        Some((first, rest)) => format!("{first}_{}", rest.replace('/', "__")),
        None => id.to_owned(),
    };
    let is_plain = readable.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    let is_own = is_plain && named_id(&readable) == id && !ends_with_digest(&readable);
    if is_own && readable.len() <= MAX_NAME_LEN && !reserved.contains(&readable.as_str()) {
        return readable;
    }
    let (plain, hex) = (plain_name(id), Digest::of(id.as_bytes()).to_hex());
    let suffix = &hex[..STABLE_DIGITS.min(hex.len())];
    let available = MAX_NAME_LEN.saturating_sub(suffix.len() + 1);
    format!("{}_{suffix}", &plain[..plain.len().min(available)])
}

/// The one id that a readable name stands for.
fn named_id(name: &str) -> String {
    match name.split_once('_') {
        Some((first, rest)) => format!("{first}/{}", rest.replace("__", "/")),
        None => name.to_owned(),
    }
}

/// Whether a name could be that of another id with its digest.
fn ends_with_digest(name: &str) -> bool {
    let digest = name.rsplit_once('_').map(|(_, digest)| digest);
    digest.is_some_and(|digest| {
        digest.len() == STABLE_DIGITS && digest.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
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
        let name = |id: &str| stable_name(id, &["rye_sign"]);
        let readable = [
            ("hello", "hello"),
            ("team/deploy", "team_deploy"),
            ("team/show_all", "team_show_all"),
            ("team/web/deploy", "team_web__deploy"),
        ];
        for (id, expected) in readable {
            assert_eq!(name(id), expected);
        }
        let digested = name("team/show-all");
        let ids = [
            "team/show-all",
            "team/show.all",
            "team_show/all",
            "team_deploy",
            "team/web__deploy",
            "rye/sign",
            "team/web_/deploy",
            "team/a_0123456789abcdef0123456789abcdef",
        ];
        for id in ids {
            assert!(name(id).len() > STABLE_DIGITS + 1 && ends_with_digest(&name(id)), "{id}: {}", name(id));
        }
        // An id that is written like the name of another one with its digest.
        assert_ne!(name(&digested.replacen('_', "/", 1)), digested);
    }

    proptest! {
        #[test]
        fn stable_names_are_bijective(
            ids in prop::collection::btree_set("[ab_]{1,3}(/[ab_.-]{1,3}){0,3}", 0..60)
        ) {
            let names: BTreeSet<String> = ids.iter().map(|id| stable_name(id, &[])).collect();
            prop_assert_eq!(names.len(), ids.len());
        }

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
