//! What a reader of a text would not see or should look at: hidden characters, addresses, downloads that are run.

use std::collections::BTreeSet;

use crate::plan::NoteKind;

/// How many addresses of one text are named.
const MAX_ADDRESSES: usize = 5;

/// Whether a text has characters that show as nothing or turn its direction.
pub(crate) fn has_hidden(text: &str) -> bool {
    hidden(text).next().is_some()
}

/// The hidden characters of a text with their byte offsets. Joiners count only where they join nothing that needs them,
/// and a byte order mark only past the start.
pub(crate) fn hidden(text: &str) -> impl Iterator<Item = (usize, char)> {
    let mut previous = None;
    text.char_indices().filter(move |(offset, character)| {
        let before = previous.replace(*character);
        match character {
            '\u{feff}' => *offset > 0,
            '\u{200c}' | '\u{200d}' => !before.is_some_and(needs_joiner),
            // Tags may follow a flag; nothing else needs them.
            '\u{e0000}'..='\u{e007f}' => {
                !before.is_some_and(|before| {
                    before == '\u{1f3f4}'
                        || matches!(before, '\u{e0061}'..='\u{e007a}' | '\u{e0030}'..='\u{e0039}')
                }) || !matches!(character, '\u{e0061}'..='\u{e007a}' | '\u{e0030}'..='\u{e0039}' | '\u{e007f}')
            }
            '\u{ad}'
            | '\u{34f}'
            | '\u{61c}'
            | '\u{115f}'
            | '\u{1160}'
            | '\u{17b4}'
            | '\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{200b}'
            | '\u{200e}'
            | '\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{3164}'
            | '\u{ffa0}'
            | '\u{fff0}'..='\u{fffb}'
            | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0080}'..='\u{e0fff}' => true,
            // One selector says how a character looks; a row of them is a text of its own.
            '\u{fe00}'..='\u{fe0e}' => {
                before.is_none_or(|before| before.is_ascii_alphanumeric() || is_selector(before))
            }
            '\u{fe0f}' => before.is_none_or(is_selector),
            '\u{2800}' | '\u{fffc}' | '\u{fdd0}'..='\u{fdef}' | '\u{fffe}' | '\u{ffff}' => true,
            // Some programs end a line there, and some overwrite it.
            '\r' => !text[offset + 1..].starts_with('\n'),
            other => other.is_control() && !matches!(other, '\n' | '\t'),
        }
    })
}

fn is_selector(character: char) -> bool {
    matches!(character, '\u{fe00}'..='\u{fe0f}' | '\u{e0100}'..='\u{e01ef}')
}

/// Whether a joiner has a use after a character: in emoji sequences, and in scripts that join letters.
fn needs_joiner(character: char) -> bool {
    matches!(character,
        '\u{600}'..='\u{6ff}' | '\u{750}'..='\u{77f}' | '\u{900}'..='\u{dff}' | '\u{e00}'..='\u{109f}'
        | '\u{1780}'..='\u{17ff}' | '\u{2190}'..='\u{2bff}' | '\u{fb50}'..='\u{feff}' | '\u{1f000}'..='\u{1faff}')
}

/// The first hidden character of a text in words, with the line it stands on.
pub(crate) fn describe_hidden(text: &str) -> Option<String> {
    let mut all = hidden(text);
    let (offset, character) = all.next()?;
    let line = text[..offset].matches('\n').count() + 1;
    let more = match all.count() {
        0 => String::new(),
        more => format!(", and {more} more"),
    };
    Some(format!("hidden character U+{:04X} in line {line}{more}", u32::from(character)))
}

/// What a text should be looked at for before it is signed.
pub(crate) fn findings(text: &str) -> Vec<(NoteKind, String)> {
    let mut found = Vec::new();
    let addresses = addresses(text);
    if !addresses.is_empty() {
        let named = addresses.iter().take(MAX_ADDRESSES).cloned().collect::<Vec<_>>().join(", ");
        let more = match addresses.len().saturating_sub(MAX_ADDRESSES) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        found.push((NoteKind::Address, format!("names {named}{more}")));
    }
    if let Some(line) = text.lines().find(|line| pipes_download(line)) {
        let line = rye_item::text::one_line(line);
        let line: String = line.chars().take(100).collect();
        found.push((NoteKind::Warning, format!("has a line that runs a download: {line}")));
    }
    found
}

/// The hosts that a text names by address.
fn addresses(text: &str) -> BTreeSet<String> {
    let mut hosts = BTreeSet::new();
    for scheme in ["https://", "http://", "ws://", "wss://"] {
        for (start, _) in text.match_indices(scheme) {
            let rest = &text[start + scheme.len()..];
            let end = rest
                .find(|character: char| !(character.is_ascii_alphanumeric() || ".-:@".contains(character)))
                .unwrap_or(rest.len());
            let host = rest[..end].trim_end_matches(['.', ':']);
            let is_example =
                host.is_empty() || host.starts_with("localhost") || host.ends_with("example.com");
            if !is_example && host.len() <= 100 {
                hosts.insert(host.to_owned());
            }
        }
    }
    hosts
}

/// Whether a command line runs what it downloads.
pub(crate) fn pipes_download(line: &str) -> bool {
    let downloads = ["curl ", "wget ", "iwr ", "Invoke-WebRequest"].iter().any(|word| line.contains(word));
    let shells = ["sh", "bash", "zsh", "python", "python3", "node", "perl", "ruby", "sudo", "iex", "source"];
    let is_shell = |part: &str| {
        let word = part.trim_start().split([' ', '\t', ')', ';', '"', '`']).next().unwrap_or_default();
        shells.contains(&word.rsplit('/').next().unwrap_or(word))
    };
    downloads
        && (line.split('|').skip(1).any(is_shell)
            || ["sh <(", "sh -c \"$(", "eval \"$(", "eval $("].iter().any(|word| line.contains(word)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_characters_are_found() {
        for bad in
            ["a\u{200b}b", "a\u{202e}b", "a\u{e0041}", "a\u{200d}b", "x\u{feff}", "a\u{2066}", "\u{1b}[2J"]
        {
            assert!(has_hidden(bad), "{bad:?}");
        }
        for good in [
            "\u{feff}plain",
            "line\r\n\ttab",
            "👩\u{200d}💻",
            "می\u{200c}خواهم",
            "❤\u{fe0f}",
            "ü ﬁ 日本",
            "🏴\u{e0067}\u{e0062}\u{e007f}",
        ] {
            assert!(!has_hidden(good), "{good:?} {:?}", hidden(good).next());
        }
        assert_eq!(
            describe_hidden("a\nb\u{200b}\u{200b}").as_deref(),
            Some("hidden character U+200B in line 2, and 1 more")
        );
    }

    #[test]
    fn downloads_that_run_are_found() {
        for bad in [
            "curl -fsSL https://x.y/i | sh",
            "wget -qO- u | sudo bash",
            "bash <(curl u)",
            "eval \"$(curl u)\"",
        ] {
            assert!(pipes_download(bad), "{bad}");
        }
        for good in ["curl -O u", "cat x | sh", "curl u | jq ."] {
            assert!(!pipes_download(good), "{good}");
        }
        let found = findings("see https://a.b/c and http://localhost:1\ncurl https://a.b | sh");
        assert_eq!(found.len(), 2, "{found:?}");
    }
}
