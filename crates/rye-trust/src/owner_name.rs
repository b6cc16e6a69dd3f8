//! Owners' names in identity documents: what a name may contain, and which names a person could mistake for each other.
//!
//! A name is shown beside a fingerprint when a person decides whom to trust. So it contains nothing that is not seen, and it
//! does not look like another owner's name. The tables are those of Unicode Technical Standard 39.

use unicode_security::{GeneralSecurityProfile, MixedScript, skeleton};

/// The longest name, in bytes.
pub const MAX_OWNER_BYTES: usize = 256;

/// Why a text is not a valid owner's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OwnerNameError {
    /// There is none.
    #[error("the owner's name is empty")]
    Empty,
    /// It is too long.
    #[error("the owner's name has more than {MAX_OWNER_BYTES} bytes")]
    TooLong,
    /// It begins or ends with a space, or has two in a row.
    #[error("the owner's name has spaces that are not seen")]
    Spaces,
    /// It contains a character that is not seen, or that is not used in names.
    #[error("the owner's name contains the hidden or unusual character {0}")]
    Character(String),
    /// It mixes letters of several scripts, as `alice` with a Cyrillic `а` does.
    #[error("the owner's name mixes letters of several scripts")]
    MixedScripts,
}

/// Checks an owner's name: printable ASCII, or letters and digits of one script, with single spaces between.
///
/// # Errors
/// The first reason why it is not a valid name.
pub fn check_owner_name(name: &str) -> Result<(), OwnerNameError> {
    if name.is_empty() {
        return Err(OwnerNameError::Empty);
    }
    if name.len() > MAX_OWNER_BYTES {
        return Err(OwnerNameError::TooLong);
    }
    if let Some(character) = name.chars().find(|character| !is_allowed(*character)) {
        return Err(OwnerNameError::Character(format!("U+{:04X}", u32::from(character))));
    }
    if name.starts_with(' ') || name.ends_with(' ') || name.contains("  ") {
        return Err(OwnerNameError::Spaces);
    }
    if name.is_single_script() { Ok(()) } else { Err(OwnerNameError::MixedScripts) }
}

fn is_allowed(character: char) -> bool {
    if character.is_ascii() {
        return character.is_ascii_graphic() || character == ' ';
    }
    // Joiners are allowed in identifiers of some scripts, and are not seen.
    !matches!(character, '\u{200c}' | '\u{200d}') && GeneralSecurityProfile::identifier_allowed(character)
}

/// Whether a person could mistake one name for the other: they are the same, or look the same but for case, spaces and
/// punctuation.
#[must_use]
pub fn is_look_alike(one: &str, other: &str) -> bool {
    one == other || {
        let (one, other) = (appearance(one), appearance(other));
        !one.is_empty() && one == other
    }
}

/// What a name looks like: its characters replaced by those they are mistaken for.
fn appearance(name: &str) -> String {
    let folded = skeleton(name).collect::<String>().to_lowercase();
    skeleton(&folded).filter(|character| character.is_alphanumeric()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_names_are_valid() {
        for name in
            ["alice", "Ada Lovelace", "O'Brien (laptop)", "bob@example.org", "Zoë", "山田 太郎", "Ольга"]
        {
            assert_eq!(check_owner_name(name), Ok(()), "{name}");
        }
    }

    #[test]
    fn hidden_characters_are_refused() {
        for hidden in [
            '\u{200b}',
            '\u{200c}',
            '\u{200d}',
            '\u{2060}',
            '\u{feff}',
            '\u{ad}',
            '\u{202e}',
            '\u{2066}',
            '\u{61c}',
            '\u{34f}',
            '\u{115f}',
            '\u{3164}',
            '\u{ffa0}',
            '\u{fe0f}',
            '\u{e0041}',
            '\u{e0100}',
            '\u{180e}',
            '\u{7f}',
            '\u{1b}',
            '\n',
            '\t',
            '\0',
            '\u{a0}',
            '\u{2003}',
            '\u{2028}',
            '\u{e000}',
            '\u{fffd}',
        ] {
            let name = format!("ali{hidden}ce");
            assert_eq!(
                check_owner_name(&name),
                Err(OwnerNameError::Character(format!("U+{:04X}", u32::from(hidden)))),
                "{name:?}"
            );
        }
        assert_eq!(check_owner_name(""), Err(OwnerNameError::Empty));
        assert_eq!(check_owner_name(&"a".repeat(257)), Err(OwnerNameError::TooLong));
        for name in [" alice", "alice ", "ada  lovelace"] {
            assert_eq!(check_owner_name(name), Err(OwnerNameError::Spaces), "{name:?}");
        }
    }

    #[test]
    fn names_of_mixed_scripts_are_refused() {
        for name in ["\u{430}lice", "al\u{456}ce", "\u{3b1}lice", "b\u{43e}b"] {
            assert_eq!(check_owner_name(name), Err(OwnerNameError::MixedScripts), "{name}");
        }
    }

    #[test]
    fn look_alikes_are_found() {
        for (one, other) in [
            ("alice", "alice"),
            ("alice", "Alice"),
            ("alice", "a1ice"),
            ("Alice", "AIice"),
            ("coco", "\u{441}\u{43e}\u{441}\u{43e}"),
            ("bob", "b0b"),
            ("modern", "rnodem"),
            ("alice", "alice."),
            ("Ada Lovelace", "AdaLovelace"),
        ] {
            assert!(is_look_alike(one, other), "{one} {other}");
        }
        for (one, other) in [("alice", "bob"), ("alice", "alice2"), ("Alice", "Alice (laptop)"), ("!", "?")] {
            assert!(!is_look_alike(one, other), "{one} {other}");
        }
    }
}
