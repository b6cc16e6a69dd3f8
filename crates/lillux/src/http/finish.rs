//! Clients for others who must hold the exchange themselves: the same certificates, addresses and proxies, one host.

use std::error::Error as _;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use url::Url;

use super::exchange::{cause, check_url, place, tls_for};
use super::{Client, HttpError, Policy};

impl Client {
    /// Whether `url` may be asked, as far as it can be told without a look-up: its scheme, and its host where that is
    /// written as an address.
    ///
    /// # Errors
    /// The rule that forbids it.
    pub fn check(&self, url: &Url) -> Result<(), HttpError> {
        check_url(url)?;
        let (host, port, known) = place(url)?;
        match (known, self.proxies.choose(url)?) {
            (Some(address), _) => self.policy.check(&host, port, &[address]),
            (None, Some(_)) => self.policy.check_name_or_address(&host, port, None),
            (None, None) => Ok(()),
        }
    }

    /// Finishes `builder` to a client for the host of `url` and no other: adds certificates, the proxy, and a resolver
    /// that judges every address when a connection is made. Which redirects are followed is the builder's own; they
    /// must keep the origin, because a host that is written as an address is judged here only.
    ///
    /// # Errors
    /// When `url` may not be asked, or no client can be made.
    pub fn finish(&self, builder: reqwest::ClientBuilder, url: &Url) -> Result<reqwest::Client, HttpError> {
        self.check(url)?;
        let (host, port, _) = place(url)?;
        let mut goal = Goal { host, port, is_judged: true };
        let mut builder = builder
            .retry(reqwest::retry::never())
            .referer(false)
            .no_proxy()
            .http1_only()
            .tls_backend_preconfigured(tls_for(self, url)?);
        if let Some(proxy) = self.proxies.choose(url)? {
            let (host, port, _) = place(&proxy)?;
            goal = Goal { host, port, is_judged: false };
            let unusable = |_| HttpError::Proxy("its URL cannot be read".to_owned());
            builder = builder.proxy(reqwest::Proxy::all(proxy).map_err(unusable)?);
        }
        let resolver = Judging { policy: self.policy.clone(), goal };
        let built = builder.dns_resolver(Arc::new(resolver)).build();
        built.map_err(|error| HttpError::Start(cause(&error)))
    }
}

/// What became of an exchange that a finished client could not complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// There was no connection: nothing was sent.
    Connect(String),
    /// The time was over.
    Timeout,
    /// The connection broke.
    Reset(String),
    /// What came is no HTTP.
    Nonsense(String),
}

/// Sorts an error of a finished client. The words hold no path and no query.
#[must_use]
pub fn trouble(error: &reqwest::Error) -> Trouble {
    let mut chain = std::iter::successors(error.source(), |inner| (*inner).source());
    let is_nonsense = chain.any(|inner| {
        let by_hyper = inner.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_parse);
        let by_framing = inner
            .downcast_ref::<std::io::Error>()
            .is_some_and(|error| matches!(error.kind(), ErrorKind::InvalidData | ErrorKind::InvalidInput));
        by_hyper || by_framing
    });
    if error.is_connect() {
        Trouble::Connect(cause(error))
    } else if error.is_timeout() {
        Trouble::Timeout
    } else if is_nonsense {
        Trouble::Nonsense(cause(error))
    } else {
        Trouble::Reset(cause(error))
    }
}

/// A host that may be looked up.
#[derive(Clone)]
struct Goal {
    host: String,
    port: u16,
    /// Whether policy has a say: the user's own proxy may be anywhere.
    is_judged: bool,
}

/// Looks up the one host it was made for, and gives addresses only if policy admits them all.
struct Judging {
    policy: Policy,
    goal: Goal,
}

impl Resolve for Judging {
    fn resolve(&self, name: Name) -> Resolving {
        let (policy, goal) = (self.policy.clone(), self.goal.clone());
        Box::pin(async move {
            if !goal.host.eq_ignore_ascii_case(name.as_str()) {
                return Err(HttpError::Resolve(name.as_str().to_owned()).into());
            }
            let found = tokio::net::lookup_host((goal.host.as_str(), goal.port)).await;
            let addresses: Vec<SocketAddr> = found.map(Iterator::collect).unwrap_or_default();
            if addresses.is_empty() {
                return Err(HttpError::Resolve(goal.host).into());
            }
            if goal.is_judged {
                let all: Vec<IpAddr> = addresses.iter().map(SocketAddr::ip).collect();
                policy.check(&goal.host, goal.port, &all)?;
            }
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::server::{Reply, Server, reply};
    use super::*;

    fn client(allowed: &[&str]) -> Client {
        let allowed: Vec<String> = allowed.iter().map(|text| (*text).to_owned()).collect();
        Client::new(Policy::new(&allowed).expect("a policy"))
    }

    /// The status of a request to `url` by a client that was finished for `finished_for`, or why there is none.
    fn status(client: &Client, finished_for: &str, url: &str) -> Result<u16, String> {
        let finished_for = Url::parse(finished_for).expect("a URL");
        let finished =
            client.finish(reqwest::Client::builder(), &finished_for).map_err(|error| error.to_string())?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let answer = runtime.block_on(finished.get(url).send());
        answer.map(|answer| answer.status().as_u16()).map_err(|error| cause(&error))
    }

    #[test]
    fn a_finished_client_reaches_what_policy_admits() {
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
    fn addresses_are_judged_when_the_connection_is_made() {
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
    fn a_finished_client_knows_no_other_name() {
        let other = status(&client(&["localhost"]), "http://example.com/", "http://localhost:1/");
        assert_eq!(other, Err("`localhost` has no address".to_owned()));
    }

    #[test]
    fn what_went_wrong_is_told_apart() {
        let server = Server::start(|request| match request.split(' ').nth(1) {
            Some("/nonsense") => Reply::Send(b"nonsense\r\n\r\n".to_vec()),
            Some("/framing") => {
                Reply::Send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n".to_vec())
            }
            Some("/short") => Reply::Send(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab".to_vec()),
            _ => Reply::Send(Vec::new()),
        });
        let closed = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let nobody = format!("http://{}/", closed.local_addr().expect("an address"));
        drop(closed);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let told = |url: &str| {
            let here = Url::parse(url).expect("a URL");
            let finished =
                client(&["127.0.0.1"]).finish(reqwest::Client::builder(), &here).expect("a client");
            let whole = async { finished.get(url).send().await?.bytes().await };
            trouble(&runtime.block_on(whole).expect_err("no answer"))
        };
        assert!(matches!(told(&nobody), Trouble::Connect(_)));
        assert!(matches!(told(&server.url("/nonsense")), Trouble::Nonsense(_)));
        assert!(matches!(told(&server.url("/framing")), Trouble::Nonsense(_)));
        assert!(matches!(told(&server.url("/short")), Trouble::Reset(_)));
        assert!(matches!(told(&server.url("/nothing")), Trouble::Reset(_)));
    }

    #[test]
    fn only_the_web_is_asked() {
        let check = |url: &str| client(&[]).check(&Url::parse(url).expect("a URL"));
        assert_eq!(check("ftp://example.com/"), Err(HttpError::Scheme("ftp".to_owned())));
        assert_eq!(check("https://a:b@example.com/"), Err(HttpError::Credentials));
        assert_eq!(check("https://example.com/"), Ok(()));
    }
}
