//! Clients for others who must hold the exchange themselves: the same certificates, addresses and proxies, one host.

use std::error::Error as _;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use url::Url;

use super::request::{check_url, root_cause, split_host, tls_for};
use super::{AddressPolicy, HttpClient, HttpError};

impl HttpClient {
    /// Whether `url` may be asked, as far as it can be told without a look-up: its scheme, and its host where that is
    /// written as an address.
    ///
    /// # Errors
    /// The rule that forbids it.
    pub fn check_url(&self, url: &Url) -> Result<(), HttpError> {
        check_url(url)?;
        let (host, port, known) = split_host(url)?;
        match (known, self.proxies.proxy_for(url)?) {
            (Some(address), _) => self.policy.check(&host, port, &[address]),
            (None, Some(_)) => self.policy.check_proxied(&host, port, None),
            (None, None) => Ok(()),
        }
    }

    /// Finishes `builder` to a client for the host of `url` and no other: adds certificates, the proxy, and a resolver
    /// that judges every address when a connection is made. Which redirects are followed is the builder's own; they
    /// must keep the origin, because a host that is written as an address is judged here only.
    ///
    /// # Errors
    /// When `url` may not be asked, or no client can be made.
    pub fn build_client(
        &self,
        builder: reqwest::ClientBuilder,
        url: &Url,
    ) -> Result<reqwest::Client, HttpError> {
        self.check_url(url)?;
        let (host, port, _) = split_host(url)?;
        let mut target = ResolveTarget { host, port, is_checked: true };
        let mut builder = builder
            .retry(reqwest::retry::never())
            .referer(false)
            .no_proxy()
            .http1_only()
            .tls_backend_preconfigured(tls_for(self, url)?);
        if let Some(proxy) = self.proxies.proxy_for(url)? {
            let (host, port, _) = split_host(&proxy)?;
            target = ResolveTarget { host, port, is_checked: false };
            let unusable = |_| HttpError::Proxy("its URL cannot be read".to_owned());
            builder = builder.proxy(reqwest::Proxy::all(proxy).map_err(unusable)?);
        }
        let resolver = PolicyResolver { policy: self.policy.clone(), target };
        let client = builder.dns_resolver(Arc::new(resolver)).build();
        client.map_err(|error| HttpError::Start(root_cause(&error)))
    }
}

/// What became of an exchange that a finished client could not complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransportError {
    /// There was no connection: nothing was sent.
    Connect(String),
    /// The time was over.
    Timeout,
    /// The connection broke.
    Reset(String),
    /// What came is not HTTP.
    Malformed(String),
}

/// Sorts an error of a finished client. The words hold no path and no query.
#[must_use]
pub fn classify_error(error: &reqwest::Error) -> TransportError {
    let mut chain = std::iter::successors(error.source(), |inner| (*inner).source());
    let is_malformed = chain.any(|inner| {
        let by_hyper = inner.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_parse);
        let by_framing = inner
            .downcast_ref::<std::io::Error>()
            .is_some_and(|error| matches!(error.kind(), ErrorKind::InvalidData | ErrorKind::InvalidInput));
        by_hyper || by_framing
    });
    if error.is_connect() {
        TransportError::Connect(root_cause(error))
    } else if error.is_timeout() {
        TransportError::Timeout
    } else if is_malformed {
        TransportError::Malformed(root_cause(error))
    } else {
        TransportError::Reset(root_cause(error))
    }
}

/// A host that may be looked up.
#[derive(Clone)]
struct ResolveTarget {
    host: String,
    port: u16,
    /// Whether policy has a say: the user's own proxy may be anywhere.
    is_checked: bool,
}

/// Looks up the one host it was made for, and gives addresses only if policy admits them all.
struct PolicyResolver {
    policy: AddressPolicy,
    target: ResolveTarget,
}

impl Resolve for PolicyResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let (policy, target) = (self.policy.clone(), self.target.clone());
        Box::pin(async move {
            if !target.host.eq_ignore_ascii_case(name.as_str()) {
                return Err(HttpError::Resolve(name.as_str().to_owned()).into());
            }
            let lookup = tokio::net::lookup_host((target.host.as_str(), target.port)).await;
            let addresses: Vec<SocketAddr> = lookup.map(Iterator::collect).unwrap_or_default();
            if addresses.is_empty() {
                return Err(HttpError::Resolve(target.host).into());
            }
            if target.is_checked {
                let all: Vec<IpAddr> = addresses.iter().map(SocketAddr::ip).collect();
                policy.check(&target.host, target.port, &all)?;
            }
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::server::{Reply, Server, reply};
    use super::*;

    fn client(allowed: &[&str]) -> HttpClient {
        let allowed: Vec<String> = allowed.iter().map(|text| (*text).to_owned()).collect();
        HttpClient::new(AddressPolicy::new(&allowed).expect("a policy"))
    }

    /// The status of a request to `url` by a client that was built for `built_for`, or the error.
    fn status(client: &HttpClient, built_for: &str, url: &str) -> Result<u16, String> {
        let built_for = Url::parse(built_for).expect("a URL");
        let built =
            client.build_client(reqwest::Client::builder(), &built_for).map_err(|error| error.to_string())?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let response = runtime.block_on(built.get(url).send());
        response.map(|response| response.status().as_u16()).map_err(|error| root_cause(&error))
    }

    #[test]
    fn built_client_reaches_allowed_hosts() {
        let server = Server::start(|_| reply("204 No Content", "", ""));
        let port = server.address.port();
        let named = format!("http://localhost:{port}/");
        let address = format!("http://127.0.0.1:{port}/");
        let here = format!("localhost:{port}");
        assert_eq!(status(&client(&[&here]), &named, &named), Ok(204));
        assert_eq!(status(&client(&["127.0.0.1"]), &address, &address), Ok(204));
        assert_eq!(server.requests().len(), 2);
    }

    #[test]
    fn addresses_are_checked_on_connect() {
        let server = Server::start(|_| reply("204 No Content", "", ""));
        let port = server.address.port();
        let named = format!("http://localhost:{port}/");
        let address = format!("http://127.0.0.1:{port}/");
        let refused = |result: Result<u16, String>| {
            assert!(result.as_ref().is_err_and(|error| error.contains("a loopback address")), "{result:?}");
        };
        refused(status(&client(&[]), &named, &named));
        refused(status(&client(&[]), &address, &address));
        refused(status(&client(&["localhost:1"]), &named, &named));
        assert_eq!(server.requests(), Vec::<String>::new());
    }

    #[test]
    fn built_client_resolves_no_other_host() {
        let other = status(&client(&["localhost"]), "http://example.com/", "http://localhost:1/");
        assert_eq!(other, Err("`localhost` has no address".to_owned()));
    }

    #[test]
    fn transport_errors_are_distinguished() {
        let server = Server::start(|request| match request.split(' ').nth(1) {
            Some("/nonsense") => Reply::Send(b"nonsense\r\n\r\n".to_vec()),
            Some("/framing") => {
                Reply::Send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n".to_vec())
            }
            Some("/short") => Reply::Send(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab".to_vec()),
            _ => Reply::Send(Vec::new()),
        });
        let closed = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let closed_url = format!("http://{}/", closed.local_addr().expect("an address"));
        drop(closed);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let classify = |url: &str| {
            let here = Url::parse(url).expect("a URL");
            let built =
                client(&["127.0.0.1"]).build_client(reqwest::Client::builder(), &here).expect("a client");
            let whole = async { built.get(url).send().await?.bytes().await };
            classify_error(&runtime.block_on(whole).expect_err("no answer"))
        };
        assert!(matches!(classify(&closed_url), TransportError::Connect(_)));
        assert!(matches!(classify(&server.url("/nonsense")), TransportError::Malformed(_)));
        assert!(matches!(classify(&server.url("/framing")), TransportError::Malformed(_)));
        assert!(matches!(classify(&server.url("/short")), TransportError::Reset(_)));
        assert!(matches!(classify(&server.url("/nothing")), TransportError::Reset(_)));
    }

    #[test]
    fn only_http_urls_are_allowed() {
        let check = |url: &str| client(&[]).check_url(&Url::parse(url).expect("a URL"));
        assert_eq!(check("ftp://example.com/"), Err(HttpError::Scheme("ftp".to_owned())));
        assert_eq!(check("https://a:b@example.com/"), Err(HttpError::Credentials));
        assert_eq!(check("https://example.com/"), Ok(()));
    }
}
