//! Names of files as file systems compare them: upper and lower case, and characters that are not shown, make no difference on
//! some of them.

/// A name as any file system could read it: two names that a file system takes for one are equal here.
#[must_use]
pub fn fold_name(name: &str) -> String {
    name.chars()
        .filter(|character| !is_ignorable(*character))
        // Some letters have the same upper case only (`ſ`, `s`), others the same lower case (`K`, `k`).
        .flat_map(char::to_uppercase)
        .flat_map(char::to_lowercase)
        .collect()
}

/// Whether file systems that compare names by Unicode's rules pass over the character: it is not shown.
#[must_use]
pub fn is_ignorable(character: char) -> bool {
    matches!(
        character,
        '\u{ad}'
            | '\u{34f}'
            | '\u{61c}'
            | '\u{115f}'..='\u{1160}'
            | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}'
            | '\u{202a}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}'
            | '\u{ffa0}'
            | '\u{fff0}'..='\u{fff8}'
            | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}'
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fold_as_file_systems_compare_them() {
        for name in [".git", ".GIT", ".g\u{200c}it", "\u{feff}.git", ".gi\u{202e}t", ".G\u{ad}IT\u{e0100}"] {
            assert_eq!(fold_name(name), ".git", "{name:?}");
        }
        assert_eq!(fold_name(".\u{17f}sh"), ".ssh");
        assert_eq!(fold_name("\u{212a}eys"), "keys");
        assert_eq!(fold_name("Straße"), fold_name("STRASSE"));
        assert_ne!(fold_name("gít"), fold_name("git"));
    }
}
