//! The words before the one that is completed, as the shell hands them over.

use rye_item::{ItemRef, ItemType};

/// The command line so far.
pub struct TypedLine {
    /// The words of the command that take a place of their own, without options and without the word that is completed.
    positional: Vec<String>,
}

impl TypedLine {
    /// Reads the line that the shell hands over: `rye -- rye execute …`.
    pub fn read() -> Self {
        let words: Vec<String> =
            std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
        let index = crate::settings::env_var("_CLAP_COMPLETE_INDEX");
        let index = index.and_then(|index| index.to_str()?.parse().ok());
        Self::parse(&words, index)
    }

    /// `index`: which word of the line is completed; without it, the last.
    fn parse(words: &[String], index: Option<usize>) -> Self {
        let line: &[String] = match words.iter().position(|word| word == "--") {
            Some(at) => &words[at + 1..],
            None => &[],
        };
        let end = index.unwrap_or_else(|| line.len().saturating_sub(1)).min(line.len());
        let line = &line[..end];
        let command =
            line.iter().skip(1).position(|word| !word.starts_with('-')).map_or(line.len(), |at| at + 2);
        let after = line.get(command..).unwrap_or_default();
        Self { positional: after.iter().filter(|word| !word.starts_with('-')).cloned().collect() }
    }

    /// The type that was typed before an id.
    pub fn item_type(&self) -> Option<ItemType> {
        self.positional.first()?.parse().ok()
    }

    /// The item that was typed, with its type if that was too.
    pub fn item(&self) -> Option<(Option<ItemType>, String)> {
        let first = self.positional.first()?;
        if let Ok(item_type) = first.parse() {
            return self.positional.get(1).map(|id| (Some(item_type), id.clone()));
        }
        match ItemRef::split_canonical(first) {
            Some((item_type, id)) => Some((Some(item_type), id.to_owned())),
            None => Some((None, first.clone())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str, index: Option<usize>) -> TypedLine {
        let words: Vec<String> = format!("rye -- {text}").split(' ').map(str::to_owned).collect();
        TypedLine::parse(&words, index)
    }

    #[test]
    fn words_before_the_cursor_count() {
        let item = |text: &str| line(text, None).item();
        assert_eq!(item("rye execute "), None);
        assert_eq!(item("rye execute tool te"), None);
        assert_eq!(item("rye execute team/a na"), Some((None, "team/a".to_owned())));
        assert_eq!(
            item("rye execute --trace tool team/a na"),
            Some((Some(ItemType::Tool), "team/a".to_owned()))
        );
        assert_eq!(
            item("rye execute directive:team/a "),
            Some((Some(ItemType::Directive), "team/a".to_owned()))
        );
        assert_eq!(line("rye execute tool te", None).item_type(), Some(ItemType::Tool));
        assert_eq!(line("rye execute team/a na x=1", Some(2)).item(), None);
        assert_eq!(TypedLine::parse(&[], Some(7)).item(), None);
    }
}
