//! URLs with parameters in them: a parameter may fill a segment or a query value, never choose the host.

use url::Url;

/// `value` as it may stand inside a path segment or a query value: everything but unreserved characters is escaped.
#[must_use]
pub fn percent_encode(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    for byte in value.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(char::from(byte)),
            other => out.push_str(&format!("%{other:02X}")),
        }
    }
    out
}

/// Where the authority of a URL text ends; `None` when it has no `scheme://`.
fn authority_end(text: &str) -> Option<usize> {
    let start = text.find("://")? + 3;
    Some(text[start..].find(['/', '?', '#', '\\']).map_or(text.len(), |at| start + at))
}

/// The pieces of a template: text, and names in braces.
enum TemplatePiece<'a> {
    Text(&'a str),
    Parameter(&'a str),
}

fn split_template(template: &str) -> Vec<(usize, TemplatePiece<'_>)> {
    let mut pieces = Vec::new();
    let mut from = 0;
    while let Some(open) = template[from..].find('{').map(|at| from + at) {
        let name = template[open + 1..].find('}').map(|at| &template[open + 1..open + 1 + at]);
        let is_name = |name: &&str| {
            !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        };
        let Some(name) = name.filter(is_name) else {
            pieces.push((from, TemplatePiece::Text(&template[from..=open])));
            from = open + 1;
            continue;
        };
        pieces.push((from, TemplatePiece::Text(&template[from..open])));
        pieces.push((open, TemplatePiece::Parameter(name)));
        from = open + name.len() + 2;
    }
    pieces.push((from, TemplatePiece::Text(&template[from..])));
    pieces
}

/// Fills `{name}` in a URL template whose variables are filled in already, and checks the result.
///
/// Values are escaped. One that stands for the whole URL, or inside the host, is taken only when the signed tool says
/// `url_from_parameter: true`.
///
/// # Errors
/// In words: a parameter that is missing, or that would change where the request goes.
pub fn fill_url(
    template: &str,
    value: impl Fn(&str) -> Option<String>,
    is_from_parameter: bool,
) -> Result<String, String> {
    let end = authority_end(template);
    let mut url = String::with_capacity(template.len());
    for (at, piece) in split_template(template) {
        match piece {
            TemplatePiece::Text(text) => url.push_str(text),
            TemplatePiece::Parameter(name) => {
                let value = value(name).ok_or_else(|| format!("the URL needs the parameter `{name}`"))?;
                match end {
                    Some(end) if at >= end => url.push_str(&percent_encode(&value)),
                    Some(_) if !is_host_part(&value) => {
                        return Err(format!("the parameter `{name}` cannot be part of a host name"));
                    }
                    Some(_) | None => url.push_str(&value),
                }
            }
        }
    }
    check_url(template, &url, is_from_parameter)?;
    Ok(url)
}

fn is_host_part(value: &str) -> bool {
    !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.'))
}

/// Checks that what filled a template in did not change scheme, host or port, nor climb out of its path.
///
/// # Errors
/// In words, what changed.
pub fn check_url(template: &str, url: &str, is_from_parameter: bool) -> Result<(), String> {
    let end = authority_end(template);
    let has_variable_host = end.is_none_or(|end| {
        split_template(template)
            .iter()
            .any(|(at, piece)| *at < end && matches!(piece, TemplatePiece::Parameter(_)))
    });
    if has_variable_host && !is_from_parameter {
        return Err(
            "a parameter may not choose the host of the URL; a signed tool whose purpose it is says \
                    `url_from_parameter: true` in its config"
                .to_owned(),
        );
    }
    let parsed = Url::parse(url).map_err(|error| format!("the URL cannot be used: {error}"))?;
    if has_variable_host {
        return Ok(());
    }
    let own = &template[..end.unwrap_or(template.len())];
    let own = Url::parse(own).map_err(|error| format!("the URL template cannot be used: {error}"))?;
    let origin = |url: &Url| {
        let host = url.host_str().unwrap_or_default().to_owned();
        let user = (url.username().to_owned(), url.password().map(str::to_owned));
        (url.scheme().to_owned(), host, url.port_or_known_default(), user)
    };
    if origin(&own) != origin(&parsed) {
        return Err("a parameter changes the host of the URL".to_owned());
    }
    if template == url {
        return Ok(());
    }
    let is_unsafe_byte = |byte: u8| byte.is_ascii_control() || matches!(byte, b' ' | b'\\');
    let path = url.find("://").map_or(url, |at| &url[at + 3..]);
    let path = &path[..path.find(['?', '#']).unwrap_or(path.len())];
    let is_dots = |part: &str| matches!(part.to_ascii_lowercase().replace("%2e", ".").as_str(), "." | "..");
    if url.bytes().any(is_unsafe_byte) || path.split('/').any(is_dots) {
        return Err("a parameter changes the path of the URL".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(template: &str, value: &str) -> Result<String, String> {
        fill_url(template, |name| (name == "p").then(|| value.to_owned()), false)
    }

    #[test]
    fn parameter_is_escaped_in_place() {
        let template = "https://api.example/v1/{p}/x?q={p}";
        for (value, escaped) in [
            ("plain-1.0_~", "plain-1.0_~"),
            ("a b/c?d#e&f=g%h", "a%20b%2Fc%3Fd%23e%26f%3Dg%25h"),
            ("é\n\\@:", "%C3%A9%0A%5C%40%3A"),
            ("{p}${HOME}", "%7Bp%7D%24%7BHOME%7D"),
            ("..%2f", "..%252f"),
        ] {
            let expected = format!("https://api.example/v1/{escaped}/x?q={escaped}");
            assert_eq!(fill(template, value), Ok(expected), "{value}");
        }
        assert_eq!(fill("https://a.example/{q}", "x"), Err("the URL needs the parameter `q`".to_owned()));
        assert_eq!(fill("https://a.example/{}{a-b}/{p", "x"), Ok("https://a.example/{}{a-b}/{p".to_owned()));
    }

    #[test]
    fn a_parameter_cannot_climb_out_of_the_path() {
        let climbed = Err("a parameter changes the path of the URL".to_owned());
        for value in [".", ".."] {
            assert_eq!(fill("https://a.example/v1/{p}/x", value), climbed.clone().map(|()| String::new()));
        }
        for url in ["https://a.example/%2e%2E/x", "https://a.example/\\x", "https://a.example/\tx"] {
            assert_eq!(check_url("https://a.example/{p}", url, false), climbed, "{url}");
        }
        assert!(fill("https://a.example/v1?q={p}", "..").is_ok());
    }

    #[test]
    fn a_parameter_cannot_choose_the_host() {
        let closed = "a parameter may not choose the host";
        for template in ["{p}", "https://{p}/x", "https://{p}.example/", "{p}://a.example/", "https://a{p}"] {
            let value = if template == "{p}" { "https://evil.example/" } else { "evil" };
            let refused = fill(template, value);
            assert!(refused.as_ref().is_err_and(|text| text.starts_with(closed)), "{template}: {refused:?}");
        }
        let changed = Err("a parameter changes the host of the URL".to_owned());
        for url in [
            "https://evil.example/x",
            "http://a.example/x",
            "https://a.example:444/x",
            "https://a.example@evil.example/x",
            "https://u@a.example/x",
        ] {
            assert_eq!(check_url("https://a.example/{p}", url, false), changed, "{url}");
        }
        assert_eq!(check_url("https://a.example:443/{p}", "https://a.example/x", true), Ok(()));
    }

    #[test]
    fn signed_tool_may_allow_parameter_hosts() {
        let open = |template: &str, value: &str| fill_url(template, |_| Some(value.to_owned()), true);
        assert_eq!(open("{p}", "https://b.example/a?b"), Ok("https://b.example/a?b".to_owned()));
        assert_eq!(open("https://{p}.example/x", "tenant-1"), Ok("https://tenant-1.example/x".to_owned()));
        for value in ["evil.com/", "a@b", "x:1", "", "a%2f", "e#"] {
            let expected = "the parameter `p` cannot be part of a host name".to_owned();
            assert_eq!(open("https://{p}.example/x", value), Err(expected), "{value}");
        }
    }
}
