//! The command that was given, as text to paste: for hints that ask to repeat it with one more option.

use rye_item::text::shell_word;

/// The command that was given, with these options added.
pub fn given_command_with(options: &[&str]) -> String {
    let words: Vec<String> =
        std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    command_with(&words, options)
}

/// `rye` with these words and then these options, each once; without `--json`, which only changes what is printed.
fn command_with(words: &[String], options: &[&str]) -> String {
    let options_end = words.iter().position(|word| word == "--").unwrap_or(words.len());
    let (before, after) = words.split_at(options_end);
    let is_added = |word: &str| options.contains(&word) || (word == "-y" && options.contains(&"--yes"));
    let given = before.iter().map(String::as_str).filter(|word| *word != "--json" && !is_added(word));
    let given = given.map(option_word);
    let added = options.iter().map(|option| (*option).to_owned());
    let rest = after.iter().enumerate().map(|(index, word)| match index {
        0 => word.clone(),
        _ => shell_word(word),
    });
    std::iter::once("rye".to_owned()).chain(given).chain(added).chain(rest).collect::<Vec<_>>().join(" ")
}

/// A word before `--`, quoted for the shell: one with a dash in front is an option, with its value after `=`.
fn option_word(word: &str) -> String {
    let name_length = word.find('=').unwrap_or(word.len());
    let (name, value) = word.split_at(name_length);
    let is_option = name.starts_with('-')
        && name.chars().all(|character| character.is_ascii_alphanumeric() || character == '-');
    match value.strip_prefix('=') {
        _ if !is_option => shell_word(word),
        Some(value) => format!("{name}={}", shell_word(value)),
        None => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn given_words_are_repeated_and_quoted() {
        let with_yes = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            command_with(&words, &["--yes"])
        };
        assert_eq!(
            with_yes(&["thread", "prune", "--keep", "2", "--delete"]),
            "rye thread prune --keep 2 --delete --yes"
        );
        assert_eq!(
            with_yes(&["--json", "--project=a b", "import", "-q", "it's"]),
            r"rye --project='a b' import -q 'it'\''s' --yes"
        );
        assert_eq!(with_yes(&["install", "-y", "x", "--yes"]), "rye install x --yes");
        assert_eq!(with_yes(&["import", "--", "-x;y"]), "rye import --yes -- './-x;y'");
        assert_eq!(with_yes(&["import", "-$(x)"]), "rye import './-$(x)' --yes");
    }
}
