//! Where a redirect leads, and what goes along. Plain decisions, no input or output.

use url::Url;

use super::request::{check_url, display_origin};
use super::{HttpError, HttpHeader, HttpMethod};

/// One step of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hop {
    pub(super) method: HttpMethod,
    pub(super) url: Url,
    pub(super) headers: Vec<HttpHeader>,
    pub(super) body: Option<Vec<u8>>,
}

/// The next hop, or `None` when this answer is the last.
pub(super) fn next_hop(hop: &Hop, status: u16, location: Option<&str>) -> Result<Option<Hop>, HttpError> {
    let is_redirect = matches!(status, 301 | 302 | 303 | 307 | 308);
    let Some(location) = location.filter(|_| is_redirect) else {
        return Ok(None);
    };
    let invalid =
        |cause: &str| HttpError::InvalidRedirect { host: display_origin(&hop.url), cause: cause.to_owned() };
    let url = hop.url.join(location).map_err(|_| invalid("it is not a URL"))?;
    check_url(&url).map_err(|error| invalid(&error.to_string()))?;
    if hop.url.scheme() == "https" && url.scheme() == "http" {
        return Err(invalid("it leaves https for http"));
    }
    let becomes_get = match status {
        301 | 302 => hop.method == HttpMethod::Post,
        303 => hop.method != HttpMethod::Head,
        _ => false,
    };
    let is_same_host = hop.url.host() == url.host();
    if !is_same_host && hop.body.is_some() && !becomes_get {
        return Err(invalid("it would hand the body to another host"));
    }
    let is_same_origin = is_same_host
        && hop.url.scheme() == url.scheme()
        && hop.url.port_or_known_default() == url.port_or_known_default();
    let is_forwarded = |header: &&HttpHeader| {
        (is_same_origin || !is_credential(header)) && !(becomes_get && describes_body(&header.name))
    };
    Ok(Some(Hop {
        method: if becomes_get { HttpMethod::Get } else { hop.method },
        headers: hop.headers.iter().filter(is_forwarded).cloned().collect(),
        body: if becomes_get { None } else { hop.body.clone() },
        url,
    }))
}

fn is_credential(header: &HttpHeader) -> bool {
    const NAMES: [&str; 4] = ["authorization", "proxy-authorization", "cookie", "www-authenticate"];
    header.is_secret || NAMES.iter().any(|name| header.name.eq_ignore_ascii_case(name))
}

fn describes_body(name: &str) -> bool {
    name.get(..8).is_some_and(|start| start.eq_ignore_ascii_case("content-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hop(method: HttpMethod, url: &str, body: Option<&str>) -> Hop {
        let header = |name: &str, is_secret| HttpHeader { name: name.into(), value: "v".into(), is_secret };
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
        next_hop(from, status, Some(to)).expect("followed").expect("a hop")
    }

    #[test]
    fn credentials_stay_on_the_same_origin() {
        let from = hop(HttpMethod::Get, "http://a.example/x", None);
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
        let from = hop(HttpMethod::Get, "https://a.example/x?secret=1", None);
        let refused = |to: &str| next_hop(&from, 301, Some(to)).expect_err("refused").to_string();
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
    fn body_follows_only_same_method_and_host() {
        let from = hop(HttpMethod::Post, "http://a.example/x", Some("b"));
        for status in [301, 302, 303] {
            let to = follow(&from, status, "http://b.example/");
            assert_eq!((to.method, to.body.clone(), names(&to)), (HttpMethod::Get, None, vec!["Accept"]));
        }
        let to = follow(&from, 307, "https://a.example/y");
        assert_eq!((to.method, to.body), (HttpMethod::Post, Some(b"b".to_vec())));
        let refused = next_hop(&from, 308, Some("http://b.example/")).expect_err("refused");
        assert!(refused.to_string().ends_with("it would hand the body to another host"));
        let head = hop(HttpMethod::Head, "http://a.example/x", None);
        assert_eq!(follow(&head, 303, "/y").method, HttpMethod::Head);
    }

    #[test]
    fn non_redirect_ends_the_chain() {
        let from = hop(HttpMethod::Get, "http://a.example/x", None);
        assert_eq!(next_hop(&from, 200, Some("/y")), Ok(None));
        assert_eq!(next_hop(&from, 304, Some("/y")), Ok(None));
        assert_eq!(next_hop(&from, 302, None), Ok(None));
    }
}
