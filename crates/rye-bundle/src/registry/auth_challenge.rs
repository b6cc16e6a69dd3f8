//! What a registry asks for when it refuses: the `WWW-Authenticate` header, read.

/// How a registry wants to be told who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuthChallenge {
    /// By name and password.
    Basic,
    /// By a token that another place gives out.
    Bearer {
        /// Where tokens are given out.
        realm: String,
        /// For what.
        service: Option<String>,
    },
}

impl AuthChallenge {
    /// The first challenge of these headers that is understood; tokens are preferred.
    #[must_use]
    pub fn parse<'a>(headers: impl Iterator<Item = &'a str>) -> Option<Self> {
        let mut found = None;
        for header in headers {
            let Some((scheme, rest)) = header.trim().split_once(' ') else {
                continue;
            };
            if scheme.eq_ignore_ascii_case("basic") {
                found = found.or(Some(Self::Basic));
            } else if scheme.eq_ignore_ascii_case("bearer") {
                let parameters = parse_parameters(rest);
                let value = |name: &str| {
                    parameters
                        .iter()
                        .find(|(own, _)| own.eq_ignore_ascii_case(name))
                        .map(|(_, value)| value.clone())
                };
                if let Some(realm) = value("realm") {
                    return Some(Self::Bearer { realm, service: value("service") });
                }
            }
        }
        found
    }
}

/// `name="value", name=value`; what cannot be read ends it.
fn parse_parameters(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some((name, after)) = rest.split_once('=') {
        let name = name.trim_matches([' ', ',', '\t']).to_owned();
        let (value, after) = match after.strip_prefix('"') {
            Some(quoted) => {
                let mut value = String::new();
                let mut characters = quoted.char_indices();
                let mut end = quoted.len();
                while let Some((place, character)) = characters.next() {
                    match character {
                        '"' => {
                            end = place + 1;
                            break;
                        }
                        '\\' => value.extend(characters.next().map(|(_, escaped)| escaped)),
                        other => value.push(other),
                    }
                }
                (value, &quoted[end..])
            }
            None => {
                let end = after.find([',', ' ']).unwrap_or(after.len());
                (after[..end].to_owned(), &after[end..])
            }
        };
        found.push((name, value));
        rest = after;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(headers: &[&str]) -> Option<AuthChallenge> {
        AuthChallenge::parse(headers.iter().copied())
    }

    #[test]
    fn a_challenge_is_read_in_its_usual_forms() {
        let bearer = |realm: &str, service: Option<&str>| {
            Some(AuthChallenge::Bearer { realm: realm.into(), service: service.map(str::to_owned) })
        };
        assert_eq!(
            read(&[
                r#"Bearer realm="https://a.example/token",service="a.example",scope="repository:x:pull""#
            ]),
            bearer("https://a.example/token", Some("a.example"))
        );
        assert_eq!(
            read(&[r#"bearer Realm=https://a.example/t, service="a, b""#]),
            bearer("https://a.example/t", Some("a, b"))
        );
        assert_eq!(read(&[r#"Basic realm="x""#, r#"Bearer realm="y""#]), bearer("y", None));
        assert_eq!(read(&[r#"Basic realm="x""#]), Some(AuthChallenge::Basic));
        assert_eq!(read(&[r#"Bearer realm="a\"b""#]), bearer("a\"b", None));
    }

    proptest::proptest! {
        #[test]
        fn any_header_is_parsed_or_ignored(header in "(Bearer|basic)? ?[a-z=\", \\\\é]{0,30}") {
            if let Some(AuthChallenge::Bearer { realm, .. }) = read(&[&header]) {
                assert!(realm.len() <= header.len());
            }
        }
    }

    #[test]
    fn unknown_challenges_are_ignored() {
        for header in
            ["", "Bearer", "Negotiate abc", r#"Bearer service="x""#, "Bearer ===", "Bearer =\"", "Bearer é"]
        {
            assert_eq!(read(&[header]), None, "{header}");
        }
    }
}
