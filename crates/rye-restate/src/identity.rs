//! Whether a request comes from the Restate server that settings name: it signs the path of each request with an Ed25519 key,
//! in a JSON web token.
//!
//! The SDK can verify these tokens as well, with a library that brings RSA and elliptic curves which nothing here needs.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ed25519_dalek::{Signature, VerifyingKey};
use hyper::HeaderMap;
use serde_json::Value;

/// What stands before the key in its text.
const KEY_PREFIX: &str = "publickeyv1_";
/// The longest text of a key.
const MAX_KEY_BYTES: usize = 64;
/// How a request is signed.
const SCHEME_HEADER: &str = "x-restate-signature-scheme";
/// The scheme that is known.
const SCHEME: &str = "v1";
/// The token of that scheme.
const TOKEN_HEADER: &str = "x-restate-jwt-v1";
/// The longest token.
const MAX_TOKEN_BYTES: usize = 4096;
/// How far the clocks of Restate and worker may be apart.
const MAX_CLOCK_SKEW_SECONDS: u64 = 30;

/// A key by which a Restate server signs its requests, as it prints it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentityKey(VerifyingKey);

/// Why a request is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityRefusal {
    /// It is not signed, or in another way.
    #[error("the request is not signed")]
    Unsigned,
    /// Its token cannot be read.
    #[error("the token of the request cannot be read")]
    Malformed,
    /// No listed key signed it.
    #[error("the request is not signed by a listed identity key")]
    UntrustedKey,
    /// It was signed for another path.
    #[error("the request was signed for another path")]
    OtherPath,
    /// It was signed too long ago, or for later.
    #[error("the signature of the request is too old or too new")]
    OutOfTime,
}

impl IdentityKey {
    /// The key as settings write it: `publickeyv1_` and 32 bytes in base 58.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let encoded = text.strip_prefix(KEY_PREFIX).filter(|_| text.len() <= MAX_KEY_BYTES)?;
        let bytes = bs58::decode(encoded).into_vec().ok()?;
        let key = VerifyingKey::from_bytes(&<[u8; 32]>::try_from(bytes).ok()?).ok()?;
        (!key.is_weak()).then_some(Self(key))
    }
}

/// Verifies that one of these keys signed a request for this path.
///
/// # Errors
/// Why not.
pub(crate) fn verify(
    keys: &[IdentityKey],
    headers: &HeaderMap,
    path: &str,
    now_seconds: u64,
) -> Result<(), IdentityRefusal> {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    if header(SCHEME_HEADER) != Some(SCHEME) {
        return Err(IdentityRefusal::Unsigned);
    }
    let token = header(TOKEN_HEADER).ok_or(IdentityRefusal::Unsigned)?;
    if token.len() > MAX_TOKEN_BYTES {
        return Err(IdentityRefusal::Malformed);
    }
    let (signed, signature) = token.rsplit_once('.').ok_or(IdentityRefusal::Malformed)?;
    let (head, claims) = signed.split_once('.').ok_or(IdentityRefusal::Malformed)?;
    if decode_json(head)?.get("alg").and_then(Value::as_str) != Some("EdDSA") {
        return Err(IdentityRefusal::Malformed);
    }
    let signature = URL_SAFE_NO_PAD.decode(signature).map_err(|_| IdentityRefusal::Malformed)?;
    let signature = Signature::from_slice(&signature).map_err(|_| IdentityRefusal::Malformed)?;
    // Nothing of the claims is read before that.
    if !keys.iter().any(|key| key.0.verify_strict(signed.as_bytes(), &signature).is_ok()) {
        return Err(IdentityRefusal::UntrustedKey);
    }
    let claims = decode_json(claims)?;
    if claims.get("aud").and_then(Value::as_str) != Some(path) {
        return Err(IdentityRefusal::OtherPath);
    }
    let seconds = |name: &str| claims.get(name).and_then(Value::as_u64).ok_or(IdentityRefusal::Malformed);
    let is_early = seconds("nbf")? > now_seconds.saturating_add(MAX_CLOCK_SKEW_SECONDS);
    let is_late = seconds("exp")?.saturating_add(MAX_CLOCK_SKEW_SECONDS) < now_seconds;
    if is_early || is_late { Err(IdentityRefusal::OutOfTime) } else { Ok(()) }
}

fn decode_json(part: &str) -> Result<Value, IdentityRefusal> {
    let bytes = URL_SAFE_NO_PAD.decode(part).map_err(|_| IdentityRefusal::Malformed)?;
    serde_json::from_slice(&bytes).map_err(|_| IdentityRefusal::Malformed)
}

#[cfg(test)]
mod tests {
    use ed25519_dalek::{Signer, SigningKey};
    use serde_json::json;

    use super::*;

    const NOW: u64 = 1_800_000_000;
    const PATH: &str = "/invoke/Thread/drive";

    fn key(seed: u8) -> SigningKey {
        SigningKey::from_bytes(&[seed; 32])
    }

    fn listed(seed: u8) -> IdentityKey {
        let encoded = bs58::encode(key(seed).verifying_key().to_bytes()).into_string();
        IdentityKey::parse(&format!("{KEY_PREFIX}{encoded}")).expect("a key")
    }

    fn token(seed: u8, algorithm: &str, claims: &Value) -> String {
        let encode = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", encode(&json!({"typ": "JWT", "alg": algorithm})), encode(claims));
        let signature = URL_SAFE_NO_PAD.encode(key(seed).sign(signed.as_bytes()).to_bytes());
        format!("{signed}.{signature}")
    }

    fn verify_token(token: &str) -> Result<(), IdentityRefusal> {
        let mut headers = HeaderMap::new();
        headers.insert(SCHEME_HEADER, SCHEME.parse().expect("a value"));
        headers.insert(TOKEN_HEADER, token.parse().expect("a value"));
        verify(&[listed(1), listed(2)], &headers, PATH, NOW)
    }

    fn claims(path: &str, from: u64, to: u64) -> Value {
        json!({"aud": path, "iat": from, "nbf": from, "exp": to})
    }

    #[test]
    fn requests_of_listed_keys_are_accepted() {
        let good = claims(PATH, NOW - 60, NOW + 60);
        assert_eq!(verify_token(&token(1, "EdDSA", &good)), Ok(()));
        assert_eq!(verify_token(&token(2, "EdDSA", &good)), Ok(()));
    }

    #[test]
    fn other_requests_are_refused() {
        let good = claims(PATH, NOW - 60, NOW + 60);
        let refused = |token: &str| verify_token(token).expect_err("refused");
        assert_eq!(refused(&token(3, "EdDSA", &good)), IdentityRefusal::UntrustedKey);
        assert_eq!(refused(&token(1, "none", &good)), IdentityRefusal::Malformed);
        let other = claims("/invoke/Thread/other", NOW - 60, NOW + 60);
        assert_eq!(refused(&token(1, "EdDSA", &other)), IdentityRefusal::OtherPath);
        for (from, to) in [(NOW - 600, NOW - 300), (NOW + 300, NOW + 600)] {
            assert_eq!(refused(&token(1, "EdDSA", &claims(PATH, from, to))), IdentityRefusal::OutOfTime);
        }
        let text = token(1, "EdDSA", &good);
        let swapped = text.replacen(
            &URL_SAFE_NO_PAD.encode(good.to_string()),
            &URL_SAFE_NO_PAD.encode(other.to_string()),
            1,
        );
        assert_eq!(refused(&swapped), IdentityRefusal::UntrustedKey);
        assert_eq!(refused("a.b"), IdentityRefusal::Malformed);
        assert_eq!(refused(&"a".repeat(5000)), IdentityRefusal::Malformed);
        assert_eq!(verify(&[listed(1)], &HeaderMap::new(), PATH, NOW), Err(IdentityRefusal::Unsigned));
    }

    #[test]
    fn keys_are_whole() {
        for text in ["", "publickeyv1_", "publickeyv1_0OIl", "ChjENKeMvCtRnqG2mrBK1HmPKufgFUc98K8B3ononQvp"] {
            assert_eq!(IdentityKey::parse(text), None, "{text}");
        }
    }
}
