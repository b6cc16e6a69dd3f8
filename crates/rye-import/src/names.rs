//! Names of other clients as names of items.

/// The longest name that is made.
const MAX_NAME_BYTES: usize = 100;

/// A name as one segment of an id: letters, digits, `.`, `_`, `-`; everything else becomes `-`.
pub(crate) fn segment(name: &str) -> String {
    let kept = name.chars().map(|character| match character {
        'a'..='z' | 'A'..='Z' | '0'..='9' | '.' | '_' | '-' => character,
        _ => '-',
    });
    let mut text: String = Vec::from_iter(kept).into_iter().collect();
    while text.contains("--") {
        text = text.replace("--", "-");
    }
    let text = text.trim_matches(|character| matches!(character, '.' | '-'));
    let text: String = text.chars().take(MAX_NAME_BYTES).collect();
    if text.is_empty() { "unnamed".to_owned() } else { text }
}

/// A path as segments of an id.
pub(crate) fn segments(path: &str) -> String {
    path.split('/').filter(|part| !part.is_empty()).map(segment).collect::<Vec<_>>().join("/")
}

/// A name as the name of a directive: lower case letters, digits and `_`, beginning with a letter.
pub(crate) fn snake(name: &str) -> String {
    let mut text = String::new();
    for character in name.chars().flat_map(char::to_lowercase) {
        match character {
            'a'..='z' | '0'..='9' => text.push(character),
            _ if text.ends_with('_') || text.is_empty() => {}
            _ => text.push('_'),
        }
    }
    let text: String = text.trim_matches('_').chars().take(MAX_NAME_BYTES).collect();
    match text.chars().next() {
        None => "unnamed".to_owned(),
        Some(first) if first.is_ascii_digit() => format!("n{text}"),
        Some(_) => text,
    }
}

/// Whether a name is one of a skill: 1 to 64 of a-z, 0-9 and single hyphens inside.
pub(crate) fn is_skill_name(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
        && !name.starts_with('-')
        && !name.ends_with('-')
        && !name.contains("--")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rye_item::ItemId;

    use super::*;

    #[test]
    fn names_become_segments() {
        assert_eq!(segment("C# Expert"), "C-Expert");
        assert_eq!(segment("../x"), "x");
        assert_eq!(snake("code-reviewer"), "code_reviewer");
        assert_eq!(snake("3d"), "n3d");
        assert!(is_skill_name("pdf-2") && !is_skill_name("PDF") && !is_skill_name("a--b"));
    }

    proptest! {
        #[test]
        fn any_name_gives_an_id(name in ".{0,200}") {
            prop_assert!(ItemId::new(segment(&name)).is_ok());
            prop_assert!(ItemId::new(snake(&name)).is_ok());
        }
    }
}
