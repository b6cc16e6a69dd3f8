//! Proxies that are passed in, and the hosts that go around them.

use url::{Host, Url};

use super::HttpError;

/// Which proxy a URL goes through.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ProxyConfig {
    /// For http URLs.
    pub http: Option<String>,
    /// For https URLs.
    pub https: Option<String>,
    /// Hosts that are reached directly: a name with everything below it, an address, or `*`; with a port or without.
    pub exceptions: Vec<String>,
}

impl std::fmt::Debug for ProxyConfig {
    /// A proxy's URL may hold a password.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let is_set = |proxy: &Option<String>| proxy.is_some();
        write!(formatter, "Proxies {{ http: {}, https: {} }}", is_set(&self.http), is_set(&self.https))
    }
}

impl ProxyConfig {
    /// Reads the usual variables by name: `https_proxy`, `http_proxy`, `all_proxy`, `no_proxy`, in either case.
    #[must_use]
    pub fn from_variables<'a>(variable: impl Fn(&str) -> Option<&'a str>) -> Self {
        let read = |name: &str| {
            let value = variable(name).or_else(|| variable(&name.to_ascii_uppercase()));
            value.map(str::trim).filter(|text| !text.is_empty()).map(str::to_owned)
        };
        let all = read("all_proxy");
        let exceptions = read("no_proxy").unwrap_or_default();
        Self {
            http: read("http_proxy").or_else(|| all.clone()),
            https: read("https_proxy").or(all),
            exceptions: exceptions
                .split([',', ' '])
                .filter(|text| !text.is_empty())
                .map(str::to_ascii_lowercase)
                .collect(),
        }
    }

    /// The proxy for this URL, if it goes through one.
    pub(super) fn proxy_for(&self, url: &Url) -> Result<Option<Url>, HttpError> {
        let proxy = if url.scheme() == "https" { &self.https } else { &self.http };
        let Some(proxy) = proxy.as_ref().filter(|_| !self.is_exception(url)) else {
            return Ok(None);
        };
        let text = if proxy.contains("://") { proxy.clone() } else { format!("http://{proxy}") };
        let proxy = Url::parse(&text).map_err(|error| HttpError::Proxy(error.to_string()))?;
        match proxy.scheme() {
            "http" | "https" => Ok(Some(proxy)),
            other => Err(HttpError::Proxy(format!("`{other}` is not a kind of proxy; use http"))),
        }
    }

    fn is_exception(&self, url: &Url) -> bool {
        let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']).trim_end_matches('.');
        let is_name = matches!(url.host(), Some(Host::Domain(_)));
        self.exceptions.iter().any(|exception| {
            let (name, port) = match exception.rsplit_once(':') {
                Some((name, port)) if !name.contains(':') => (name, port.parse::<u16>().ok()),
                _ => (exception.as_str(), None),
            };
            let name = name.trim_matches(['[', ']']).trim_start_matches("*.").trim_start_matches('.');
            let is_below = is_name && host.strip_suffix(name).is_some_and(|start| start.ends_with('.'));
            (port.is_none() || port == url.port_or_known_default())
                && (name == "*" || name == host || is_below && !name.is_empty())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxy_is_chosen_by_scheme_and_exceptions() {
        let variables = [
            ("HTTPS_PROXY", "proxy.example:3128"),
            ("http_proxy", "http://u:p@proxy.example"),
            ("no_proxy", "a.example, .b.example,127.0.0.1:81"),
        ];
        let proxies = ProxyConfig::from_variables(|name| {
            variables.iter().find(|(own, _)| *own == name).map(|(_, value)| *value)
        });
        let choose = |url: &str| {
            let chosen = proxies.proxy_for(&Url::parse(url).expect("a URL")).expect("usable");
            chosen.map(|proxy| proxy.to_string())
        };
        assert_eq!(choose("https://c.example/"), Some("http://proxy.example:3128/".to_owned()));
        assert_eq!(choose("http://c.example/"), Some("http://u:p@proxy.example/".to_owned()));
        for direct in
            ["http://a.example/", "https://x.a.example/", "http://b.example", "http://127.0.0.1:81/"]
        {
            assert_eq!(choose(direct), None, "{direct}");
        }
        assert!(choose("http://xa.example/").is_some() && choose("http://127.0.0.1/").is_some());
        assert_eq!(format!("{proxies:?}"), "Proxies { http: true, https: true }");
        let socks = ProxyConfig { http: Some("socks5://x".into()), ..ProxyConfig::default() };
        assert!(socks.proxy_for(&Url::parse("http://a/").expect("a URL")).is_err());
    }
}
