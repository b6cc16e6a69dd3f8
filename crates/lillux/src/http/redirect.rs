//! Where a redirect leads, and what goes along. Plain decisions, no input or output.

use url::Url;

use super::exchange::{check_url, shown_host};
use super::{Header, HttpError, Method};

/// One step of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hop {
    pub(super) method: Method,
    pub(super) url: Url,
    pub(super) headers: Vec<Header>,
    pub(super) body: Option<Vec<u8>>,
}

/// The next hop, or `None` when this answer is the last.
pub(super) fn next(hop: &Hop, status: u16, location: Option<&str>) -> Result<Option<Hop>, HttpError> {
    let is_redirect = matches!(status, 301 | 302 | 303 | 307 | 308);
    let Some(location) = location.filter(|_| is_redirect) else {
        return Ok(None);
    };
    let refuse = |cause: &str| HttpError::Redirect { host: shown_host(&hop.url), cause: cause.to_owned() };
    let url = hop.url.join(location).map_err(|_| refuse("it is not a URL"))?;
    check_url(&url).map_err(|error| refuse(&error.to_string()))?;
    if hop.url.scheme() == "https" && url.scheme() == "http" {
        return Err(refuse("it leaves https for http"));
    }
    let becomes_get = match status {
        301 | 302 => hop.method == Method::Post,
        303 => hop.method != Method::Head,
        _ => false,
    };
    let is_same_host = hop.url.host() == url.host();
    if !is_same_host && hop.body.is_some() && !becomes_get {
        return Err(refuse("it would hand the body to another host"));
    }
    let is_same_origin = is_same_host
        && hop.url.scheme() == url.scheme()
        && hop.url.port_or_known_default() == url.port_or_known_default();
    let keeps = |header: &&Header| {
        (is_same_origin || !is_credential(header)) && !(becomes_get && describes_body(&header.name))
    };
    Ok(Some(Hop {
        method: if becomes_get { Method::Get } else { hop.method },
        headers: hop.headers.iter().filter(keeps).cloned().collect(),
        body: if becomes_get { None } else { hop.body.clone() },
        url,
    }))
}

fn is_credential(header: &Header) -> bool {
    const NAMES: [&str; 4] = ["authorization", "proxy-authorization", "cookie", "www-authenticate"];
    header.is_secret || NAMES.iter().any(|name| header.name.eq_ignore_ascii_case(name))
}

fn describes_body(name: &str) -> bool {
    name.get(..8).is_some_and(|start| start.eq_ignore_ascii_case("content-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hop(method: Method, url: &str, body: Option<&str>) -> Hop {
        let header = |name: &str, is_secret| Header { name: name.into(), value: "v".into(), is_secret };
        Hop {
            method,
            url: Url::parse(url).expect("a URL"),
            headers: vec![
                header("Accept", false),
                header("Authorization", false),
                header("cookie", false),
                header("X-Key", true),
                header("Content-Type", false),
            ],
            body: body.map(|text| text.as_bytes().to_vec()),
        }
    }

    fn names(hop: &Hop) -> Vec<&str> {
        hop.headers.iter().map(|header| header.name.as_str()).collect()
    }

    fn follow(from: &Hop, status: u16, to: &str) -> Hop {
        next(from, status, Some(to)).expect("followed").expect("a hop")
    }

    #[test]
    fn credentials_stay_on_the_same_scheme_host_and_port() {
        let from = hop(Method::Get, "http://a.example/x", None);
        for same in ["/y", "http://a.example:80/y", "?q"] {
            assert_eq!(names(&follow(&from, 302, same)), names(&from), "{same}");
        }
        for other in [
            "http://b.example/",
            "http://a.example:81/",
            "https://a.example/",
            "//sub.a.example/",
            "http://A.example./",
        ] {
            assert_eq!(names(&follow(&from, 307, other)), ["Accept", "Content-Type"], "{other}");
        }
    }

    #[test]
    fn https_is_not_left_for_http() {
        let from = hop(Method::Get, "https://a.example/x?secret=1", None);
        let refused = |to: &str| next(&from, 301, Some(to)).expect_err("refused").to_string();
        let start = "`https://a.example` redirects to something that is not followed: ";
        assert_eq!(refused("http://a.example/"), format!("{start}it leaves https for http"));
        assert_eq!(
            refused("file:///etc/passwd"),
            format!("{start}`file` is not a scheme that is fetched; use http or https")
        );
        assert_eq!(
            refused("https://u:p@a.example/"),
            format!("{start}the URL holds a user name or password; pass credentials as a header instead")
        );
        assert_eq!(refused("https://"), format!("{start}it is not a URL"));
    }

    #[test]
    fn a_body_follows_only_where_the_method_stays_and_the_host_is_the_same() {
        let from = hop(Method::Post, "http://a.example/x", Some("b"));
        for status in [301, 302, 303] {
            let to = follow(&from, status, "http://b.example/");
            assert_eq!((to.method, to.body.clone(), names(&to)), (Method::Get, None, vec!["Accept"]));
        }
        let to = follow(&from, 307, "https://a.example/y");
        assert_eq!((to.method, to.body), (Method::Post, Some(b"b".to_vec())));
        let refused = next(&from, 308, Some("http://b.example/")).expect_err("refused");
        assert!(refused.to_string().ends_with("it would hand the body to another host"));
        let head = hop(Method::Head, "http://a.example/x", None);
        assert_eq!(follow(&head, 303, "/y").method, Method::Head);
    }

    #[test]
    fn an_answer_that_is_no_redirect_is_the_last() {
        let from = hop(Method::Get, "http://a.example/x", None);
        assert_eq!(next(&from, 200, Some("/y")), Ok(None));
        assert_eq!(next(&from, 304, Some("/y")), Ok(None));
        assert_eq!(next(&from, 302, None), Ok(None));
    }
}
