//! Filling `${VAR}`, `${VAR:-default}` and `{place}` into a text, in one walk: what is filled in is never looked at
//! again, so a value cannot smuggle in a reference.

/// A default may hold references with defaults, this deep.
const MAX_DEPTH: usize = 8;

/// How a name becomes text.
pub(crate) type Lookup<'a> = dyn Fn(&str) -> Option<String> + 'a;

/// Fills `text`. A variable that is not there is empty; with `:-`, one that is not there or empty has the default,
/// which is filled too. An unknown placeholder stays as it is.
pub(crate) fn fill(text: &str, variable: &Lookup<'_>, placeholder: &Lookup<'_>) -> String {
    fill_at(0, text, variable, placeholder)
}

fn fill_at(depth: usize, text: &str, variable: &Lookup<'_>, placeholder: &Lookup<'_>) -> String {
    let mut filled = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find(['$', '{']) {
        filled.push_str(&rest[..start]);
        rest = &rest[start..];
        if let Some((name, default, after)) = parse_reference(rest) {
            match (variable(name), default) {
                (Some(value), None) => filled.push_str(&value),
                (Some(value), Some(_)) if !value.is_empty() => filled.push_str(&value),
                (_, Some(default)) if depth < MAX_DEPTH => {
                    filled.push_str(&fill_at(depth + 1, default, variable, placeholder));
                }
                (_, Some(default)) => filled.push_str(default),
                (None, None) => {}
            }
            rest = after;
        } else if let Some((value, after)) = parse_placeholder(rest, placeholder) {
            filled.push_str(&value);
            rest = after;
        } else {
            filled.push_str(&rest[..1]);
            rest = &rest[1..];
        }
    }
    filled.push_str(rest);
    filled
}

/// The variables that a text names without a default.
pub(crate) fn required_names(text: &str) -> impl Iterator<Item = &str> {
    let starts = text.match_indices("${").map(|(start, _)| &text[start..]);
    starts.filter_map(|rest| {
        parse_reference(rest).filter(|(_, default, _)| default.is_none()).map(|(name, ..)| name)
    })
}

/// The name, default and rest of the `${…}` that opens `text`.
fn parse_reference(text: &str) -> Option<(&str, Option<&str>, &str)> {
    let inside = text.strip_prefix("${")?;
    let end = find_closing_brace(inside)?;
    let (name, default) = match inside[..end].split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (&inside[..end], None),
    };
    is_variable_name(name).then_some((name, default, &inside[end + 1..]))
}

/// Where the brace that opened before `inside` closes.
fn find_closing_brace(inside: &str) -> Option<usize> {
    let mut depth = 0_usize;
    for (place, byte) in inside.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' if depth == 0 => return Some(place),
            b'}' => depth -= 1,
            _ => {}
        }
    }
    None
}

fn parse_placeholder<'a>(text: &'a str, placeholder: &Lookup<'_>) -> Option<(String, &'a str)> {
    let inside = text.strip_prefix('{')?;
    let end = inside.find(['{', '}']).filter(|end| inside[*end..].starts_with('}'))?;
    Some((placeholder(&inside[..end])?, &inside[end + 1..]))
}

/// Whether a text can be the name of a variable.
pub(crate) fn is_variable_name(text: &str) -> bool {
    let is_first = |byte: u8| byte.is_ascii_alphabetic() || byte == b'_';
    text.bytes().next().is_some_and(is_first)
        && text.bytes().all(|byte| is_first(byte) || byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill_example(text: &str) -> String {
        let variable = |name: &str| match name {
            "HOME" => Some("/home/u".to_owned()),
            "EMPTY" => Some(String::new()),
            "SLY" => Some("${HOME}{project_path}".to_owned()),
            _ => None,
        };
        let placeholder = |name: &str| (name == "project_path").then(|| "/p${HOME}".to_owned());
        fill(text, &variable, &placeholder)
    }

    #[test]
    fn variables_with_defaults_are_not_required() {
        let names: Vec<&str> = required_names("${A}/${B:-x}${not a name}${C} $D").collect();
        assert_eq!(names, ["A", "C"]);
    }

    #[test]
    fn variables_and_placeholders_are_filled_once() {
        let cases = [
            ("${HOME}/x", "/home/u/x"),
            ("${NONE}", ""),
            ("${NONE:-d}", "d"),
            ("${NONE:-}", ""),
            ("${EMPTY:-d}", "d"),
            ("${EMPTY}", ""),
            ("${HOME:-d}", "/home/u"),
            ("${NONE:-{project_path}/lib}!", "/p${HOME}/lib!"),
            ("${NONE:-${HOME}/.config}", "/home/u/.config"),
            ("{project_path}", "/p${HOME}"),
            ("${SLY}", "${HOME}{project_path}"),
            ("{unknown} {", "{unknown} {"),
            ("{{project_path}}", "{/p${HOME}}"),
            ("$HOME $ ${", "$HOME $ ${"),
            ("${not a name}", "${not a name}"),
            ("{\"a\": {project_path}}", "{\"a\": /p${HOME}}"),
            ("ä${HOME}ö", "ä/home/uö"),
        ];
        for (text, expected) in cases {
            assert_eq!(fill_example(text), expected, "{text}");
        }
    }
}
