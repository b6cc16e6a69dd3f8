//! Which addresses may be reached: the public internet, and what is named explicitly.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::HttpError;

/// What an address is for, when it is not part of the public internet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressKind {
    /// This machine.
    Loopback,
    /// A private network: RFC 1918, carrier-grade NAT, unique local.
    Private,
    /// The local link.
    LinkLocal,
    /// The instance metadata of a cloud.
    Metadata,
    /// Many receivers at once.
    Multicast,
    /// No address at all.
    Unspecified,
    /// Documentation, benchmarks, protocol tests, the future.
    Reserved,
}

impl AddressKind {
    /// The kind in words.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Loopback => "loopback",
            Self::Private => "private",
            Self::LinkLocal => "link-local",
            Self::Metadata => "metadata",
            Self::Multicast => "multicast",
            Self::Unspecified => "unspecified",
            Self::Reserved => "reserved",
        }
    }
}

/// The kind of an address that is not public; `None` for the public internet.
#[must_use]
pub fn address_kind(address: IpAddr) -> Option<AddressKind> {
    match address {
        IpAddr::V4(address) => v4_kind(address),
        IpAddr::V6(address) => match embedded_v4(address) {
            Some(inner) => v4_kind(inner),
            None => v6_kind(address),
        },
    }
}

fn v4_kind(address: Ipv4Addr) -> Option<AddressKind> {
    let is_in =
        |network: [u8; 4], bits: u8| network_contains(IpAddr::from(network), bits, IpAddr::V4(address));
    // The last one is the wire server of a large cloud, outside every reserved range.
    const METADATA: [[u8; 4]; 4] =
        [[169, 254, 169, 254], [169, 254, 170, 2], [100, 100, 100, 200], [168, 63, 129, 16]];
    if METADATA.contains(&address.octets()) {
        return Some(AddressKind::Metadata);
    }
    if address.is_unspecified() {
        return Some(AddressKind::Unspecified);
    }
    if address.is_loopback() {
        return Some(AddressKind::Loopback);
    }
    if address.is_private() || is_in([100, 64, 0, 0], 10) {
        return Some(AddressKind::Private);
    }
    if address.is_link_local() {
        return Some(AddressKind::LinkLocal);
    }
    if address.is_multicast() {
        return Some(AddressKind::Multicast);
    }
    const RESERVED: [([u8; 4], u8); 8] = [
        ([0, 0, 0, 0], 8),
        ([192, 0, 0, 0], 24),
        ([192, 0, 2, 0], 24),
        ([192, 88, 99, 0], 24),
        ([198, 18, 0, 0], 15),
        ([198, 51, 100, 0], 24),
        ([203, 0, 113, 0], 24),
        ([240, 0, 0, 0], 4),
    ];
    RESERVED.iter().any(|(network, bits)| is_in(*network, *bits)).then_some(AddressKind::Reserved)
}

fn v6_kind(address: Ipv6Addr) -> Option<AddressKind> {
    let segments = address.segments();
    if segments == [0xfd00, 0x0ec2, 0, 0, 0, 0, 0, 0x254] {
        return Some(AddressKind::Metadata);
    }
    if address.is_unspecified() {
        return Some(AddressKind::Unspecified);
    }
    if address.is_loopback() {
        return Some(AddressKind::Loopback);
    }
    let first = segments[0];
    if first & 0xfe00 == 0xfc00 || first & 0xffc0 == 0xfec0 {
        return Some(AddressKind::Private);
    }
    if first & 0xffc0 == 0xfe80 {
        return Some(AddressKind::LinkLocal);
    }
    if first & 0xff00 == 0xff00 {
        return Some(AddressKind::Multicast);
    }
    // Protocol assignments (Teredo among them) and documentation lie inside the global block.
    let is_special = first == 0x2001 && (segments[1] < 0x200 || segments[1] == 0x0db8);
    let is_documentation = first == 0x3fff && segments[1] < 0x1000;
    let is_global = first & 0xe000 == 0x2000;
    (!is_global || is_special || is_documentation).then_some(AddressKind::Reserved)
}

/// The IPv4 address inside an IPv4-mapped, IPv4-compatible, 6to4 or NAT64 address.
fn embedded_v4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let s = address.segments();
    let join = |high: u16, low: u16| Ipv4Addr::from((u32::from(high) << 16) | u32::from(low));
    match s {
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low] if high != 0 || s[5] == 0xffff => Some(join(high, low)),
        [0, 0, 0, 0, 0xffff, 0, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => Some(join(high, low)),
        [0x2002, high, low, ..] => Some(join(high, low)),
        _ => None,
    }
}

fn network_contains(network: IpAddr, bits: u8, address: IpAddr) -> bool {
    match (network, address) {
        (IpAddr::V4(network), IpAddr::V4(address)) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
            network.to_bits() & mask == address.to_bits() & mask
        }
        (IpAddr::V6(network), IpAddr::V6(address)) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
            network.to_bits() & mask == address.to_bits() & mask
        }
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum HostPattern {
    Name(String),
    Network(IpAddr, u8),
}

/// An explicit exception: `host`, `host:port`, an address (with a port), or a network in CIDR notation.
#[derive(Clone, Debug, PartialEq, Eq)]
struct AllowedHost {
    pattern: HostPattern,
    port: Option<u16>,
}

impl AllowedHost {
    fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        if let Some((network, bits)) = text.split_once('/') {
            let network: IpAddr = network.parse().ok()?;
            let bits: u8 = bits.parse().ok()?;
            let max_bits = if network.is_ipv4() { 32 } else { 128 };
            return (bits <= max_bits)
                .then_some(Self { pattern: HostPattern::Network(network, bits), port: None });
        }
        if let Ok(address) = text.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
            return Some(Self { pattern: single_address(address), port: None });
        }
        if let Ok(address) = text.parse::<std::net::SocketAddr>() {
            return Some(Self { pattern: single_address(address.ip()), port: Some(address.port()) });
        }
        let (name, port) = match text.split_once(':') {
            Some((name, port)) => (name, Some(port.parse().ok()?)),
            None => (text, None),
        };
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        let is_name = !name.is_empty()
            && name.split('.').all(|label| {
                !label.is_empty()
                    && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
            });
        is_name.then_some(Self { pattern: HostPattern::Name(name), port })
    }

    fn matches(&self, host: &str, port: u16, address: Option<IpAddr>) -> bool {
        if self.port.is_some_and(|own| own != port) {
            return false;
        }
        match (&self.pattern, address) {
            (HostPattern::Name(name), _) => name == host.trim_end_matches('.'),
            (HostPattern::Network(network, bits), Some(address)) => {
                network_contains(*network, *bits, address)
            }
            (HostPattern::Network(..), None) => false,
        }
    }
}

fn single_address(address: IpAddr) -> HostPattern {
    HostPattern::Network(address, if address.is_ipv4() { 32 } else { 128 })
}

/// Which addresses may be reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressPolicy {
    allowed: Vec<AllowedHost>,
}

impl AddressPolicy {
    /// The public internet, and what `allowed` names: `host`, `host:port`, an address, or a network (`10.0.0.0/8`).
    ///
    /// # Errors
    /// When an entry is none of these.
    pub fn new(allowed: &[String]) -> Result<Self, HttpError> {
        let parse = |text: &String| {
            AllowedHost::parse(text).ok_or_else(|| HttpError::InvalidAllowedHost(text.clone()))
        };
        Ok(Self { allowed: allowed.iter().map(parse).collect::<Result<_, _>>()? })
    }

    /// Checks every address a host stands for. One forbidden address refuses them all: a name that is public and
    /// private at once is an attack.
    ///
    /// # Errors
    /// Names the first address that may not be reached.
    pub fn check(&self, host: &str, port: u16, addresses: &[IpAddr]) -> Result<(), HttpError> {
        for address in addresses {
            let Some(kind) = address_kind(*address) else {
                continue;
            };
            if !self.allowed.iter().any(|allowed| allowed.matches(host, port, Some(*address))) {
                return Err(HttpError::AddressRefused { host: host.to_owned(), address: *address, kind });
            }
        }
        Ok(())
    }

    /// Checks a host that a proxy resolves: names of the local network are refused, addresses judged as always.
    pub(super) fn check_proxied(
        &self,
        host: &str,
        port: u16,
        address: Option<IpAddr>,
    ) -> Result<(), HttpError> {
        match address {
            Some(address) => self.check(host, port, &[address]),
            None => self.check_name(host, port),
        }
    }

    fn check_name(&self, host: &str, port: u16) -> Result<(), HttpError> {
        const LOCAL: [&str; 6] = ["localhost", "local", "internal", "lan", "intranet", "arpa"];
        let name = host.trim_end_matches('.');
        let last = name.rsplit('.').next().unwrap_or_default();
        let is_local = !name.contains('.') || LOCAL.contains(&last);
        if is_local && !self.allowed.iter().any(|exception| exception.matches(host, port, None)) {
            return Err(HttpError::LocalName(host.to_owned()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind_of(text: &str) -> Option<AddressKind> {
        address_kind(text.parse().expect("an address"))
    }

    #[test]
    fn only_the_public_internet_is_open() {
        let closed = [
            ("127.0.0.1", AddressKind::Loopback),
            ("127.255.1.9", AddressKind::Loopback),
            ("::1", AddressKind::Loopback),
            ("10.1.2.3", AddressKind::Private),
            ("172.16.0.1", AddressKind::Private),
            ("172.31.255.255", AddressKind::Private),
            ("192.168.1.1", AddressKind::Private),
            ("100.64.0.1", AddressKind::Private),
            ("fd12::1", AddressKind::Private),
            ("fec0::1", AddressKind::Private),
            ("169.254.1.1", AddressKind::LinkLocal),
            ("fe80::1", AddressKind::LinkLocal),
            ("169.254.169.254", AddressKind::Metadata),
            ("100.100.100.200", AddressKind::Metadata),
            ("168.63.129.16", AddressKind::Metadata),
            ("fd00:ec2::254", AddressKind::Metadata),
            ("224.0.0.1", AddressKind::Multicast),
            ("ff02::1", AddressKind::Multicast),
            ("0.0.0.0", AddressKind::Unspecified),
            ("::", AddressKind::Unspecified),
            ("0.1.2.3", AddressKind::Reserved),
            ("192.0.2.1", AddressKind::Reserved),
            ("198.18.0.1", AddressKind::Reserved),
            ("198.51.100.1", AddressKind::Reserved),
            ("203.0.113.1", AddressKind::Reserved),
            ("255.255.255.255", AddressKind::Reserved),
            ("2001:db8::1", AddressKind::Reserved),
            ("3fff::1", AddressKind::Reserved),
            ("2001::1", AddressKind::Reserved),
            ("64:ff9b:1::1", AddressKind::Reserved),
            ("100::1", AddressKind::Reserved),
        ];
        for (text, expected) in closed {
            assert_eq!(kind_of(text), Some(expected), "{text}");
        }
        for text in ["1.1.1.1", "172.32.0.1", "100.128.0.1", "192.0.1.1", "2606:4700::1111", "2a00::1"] {
            assert_eq!(kind_of(text), None, "{text}");
        }
    }

    #[test]
    fn embedded_ipv4_is_classified_as_ipv4() {
        for (text, expected) in [
            ("::ffff:127.0.0.1", Some(AddressKind::Loopback)),
            ("::ffff:10.0.0.1", Some(AddressKind::Private)),
            ("::127.0.0.1", Some(AddressKind::Loopback)),
            ("::ffff:0:169.254.169.254", Some(AddressKind::Metadata)),
            ("2002:7f00:0001::", Some(AddressKind::Loopback)),
            ("2002:c0a8:0101::1", Some(AddressKind::Private)),
            ("64:ff9b::169.254.169.254", Some(AddressKind::Metadata)),
            ("64:ff9b::8.8.8.8", None),
            ("2002:0808:0808::", None),
            ("::ffff:8.8.8.8", None),
        ] {
            assert_eq!(kind_of(text), expected, "{text}");
        }
    }

    fn is_allowed(allowed: &str, host: &str, port: u16, address: &str) -> bool {
        let policy = AddressPolicy::new(&[allowed.to_owned()]).expect("a policy");
        policy.check(host, port, &[address.parse().expect("an address")]).is_ok()
    }

    #[test]
    fn exceptions_match_host_port_address_or_network() {
        assert!(is_allowed("localhost", "localhost", 80, "127.0.0.1"));
        assert!(is_allowed("LocalHost.", "localhost", 80, "::1"));
        assert!(!is_allowed("localhost", "evil.example", 80, "127.0.0.1"));
        assert!(is_allowed("db.local:8080", "db.local", 8080, "10.0.0.1"));
        assert!(!is_allowed("db.local:8080", "db.local", 22, "10.0.0.1"));
        assert!(is_allowed("127.0.0.1", "localhost", 80, "127.0.0.1"));
        assert!(is_allowed("127.0.0.1:81", "127.0.0.1", 81, "127.0.0.1"));
        assert!(!is_allowed("127.0.0.1:81", "127.0.0.1", 80, "127.0.0.1"));
        assert!(is_allowed("10.0.0.0/8", "a.example", 80, "10.9.9.9"));
        assert!(!is_allowed("10.0.0.0/8", "a.example", 80, "192.168.0.1"));
        assert!(is_allowed("[::1]:90", "[::1]", 90, "::1"));
        assert!(is_allowed("fd00::/8", "x", 1, "fd00::5"));
        assert!(is_allowed("0.0.0.0/0", "x", 1, "127.0.0.1"));
        assert!(!is_allowed("127.0.0.1", "[::ffff:127.0.0.1]", 80, "::ffff:127.0.0.1"));
    }

    #[test]
    fn invalid_exception_is_an_error() {
        for text in
            ["", "*", "a b", "10.0.0.0/33", "host:port", "http://x", "*.example.com", "a..b", "x:70000"]
        {
            assert_eq!(
                AddressPolicy::new(&[text.to_owned()]),
                Err(HttpError::InvalidAllowedHost(text.to_owned())),
                "{text}"
            );
        }
    }

    #[test]
    fn one_private_address_refuses_the_host() {
        let addresses = ["1.1.1.1", "10.0.0.1"].map(|text| text.parse().expect("an address"));
        let refused = AddressPolicy::default().check("mixed.example", 443, &addresses);
        let expected = HttpError::AddressRefused {
            host: "mixed.example".to_owned(),
            address: addresses[1],
            kind: AddressKind::Private,
        };
        assert_eq!(refused, Err(expected));
    }

    #[test]
    fn local_names_are_refused_behind_proxy() {
        let policy = AddressPolicy::new(&["build.internal:80".to_owned()]).expect("a policy");
        for name in ["localhost", "intranet", "printer.local", "metadata.google.internal", "a.localhost."] {
            assert_eq!(policy.check_name(name, 80), Err(HttpError::LocalName(name.to_owned())));
        }
        assert_eq!(policy.check_name("build.internal", 80), Ok(()));
        assert_eq!(policy.check_name("example.com", 80), Ok(()));
    }
}
