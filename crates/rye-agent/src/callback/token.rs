//! The token that a tool's process is given: who it acts for, with which rights, until when. Signed with a key that is made
//! from the user's secret, which no tool can read.

use std::fmt;

use lillux::{Digest, SecretKey, Signature};
use serde::{Deserialize, Serialize};

use crate::capability::Capabilities;
use crate::thread_id::ThreadId;

/// What it is for: nothing else that is signed can pass for it.
const PURPOSE: &str = "rye tool token 1";
/// The longest token that is read.
pub(super) const MAX_TOKEN_BYTES: usize = 2048;

/// What a token says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TokenClaims {
    purpose: String,
    /// The thread it acts for.
    pub(super) thread_id: ThreadId,
    /// The call that runs the tool: which call of the thread, and how many tools stand between.
    pub(super) call: String,
    /// The digest of what it may do.
    pub(super) capabilities: String,
    pub(super) issued_ms: u64,
    pub(super) expires_ms: u64,
    /// Tells this run of the tool from any other.
    pub(super) nonce: String,
}

/// Why a token is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenError {
    /// It is not a token.
    Malformed,
    /// Its signature is invalid: made with another key, or it was changed.
    Forged,
    /// Its time is over.
    Expired,
    /// It is another thread's.
    WrongThread,
    /// It was given to another call.
    WrongCall,
    /// It says other rights than the call has.
    WrongCapabilities,
    /// The call it was given to is over.
    CallEnded,
}

impl fmt::Display for TokenError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Malformed => "it is not a token",
            Self::Forged => "it was changed or forged",
            Self::Expired => "its time is over",
            Self::WrongThread => "it belongs to another thread",
            Self::WrongCall => "it was given to another call",
            Self::WrongCapabilities => "it does not say what this call may do",
            Self::CallEnded => "the call it was given to is over",
        })
    }
}

/// Makes tokens and knows its own.
pub struct TokenIssuer {
    key: SecretKey,
}

impl fmt::Debug for TokenIssuer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Issuer")
    }
}

impl TokenIssuer {
    /// One that signs with this key.
    #[must_use]
    pub fn new(key: SecretKey) -> Self {
        Self { key }
    }

    /// A token for one run of a tool.
    ///
    /// # Errors
    /// When the system has no luck to give.
    pub(super) fn issue(&self, request: &TokenRequest<'_>) -> std::io::Result<(TokenClaims, Vec<u8>)> {
        let mut nonce = [0; 16];
        getrandom::fill(&mut nonce).map_err(|error| std::io::Error::other(error.to_string()))?;
        let claims = TokenClaims {
            purpose: PURPOSE.to_owned(),
            thread_id: request.thread_id.clone(),
            call: request.call.to_owned(),
            capabilities: capabilities_digest(request.capabilities),
            issued_ms: request.now_ms,
            expires_ms: request.now_ms.saturating_add(request.lifetime_ms),
            nonce: nonce.iter().map(|byte| format!("{byte:02x}")).collect(),
        };
        let mut bytes = serde_json::to_vec(&claims)?;
        let signature = self.key.sign(&Digest::of(&bytes)).to_base64();
        bytes.push(b'\n');
        bytes.extend_from_slice(signature.as_bytes());
        Ok((claims, bytes))
    }

    /// Whether this is the token that was given to the run that `given` describes, now.
    ///
    /// # Errors
    /// When it is not, and why.
    pub(super) fn verify(&self, bytes: &[u8], expected: &TokenClaims, now_ms: u64) -> Result<(), TokenError> {
        let text = std::str::from_utf8(bytes).ok().filter(|_| bytes.len() <= MAX_TOKEN_BYTES);
        let (body, signature) = text.and_then(|text| text.split_once('\n')).ok_or(TokenError::Malformed)?;
        let signature = Signature::from_base64(signature).ok_or(TokenError::Malformed)?;
        if !self.key.public_key().verify(&Digest::of(body.as_bytes()), &signature) {
            return Err(TokenError::Forged);
        }
        let claims: TokenClaims = serde_json::from_str(body).map_err(|_| TokenError::Malformed)?;
        if claims.purpose != PURPOSE {
            return Err(TokenError::Malformed);
        }
        if claims.thread_id != expected.thread_id {
            return Err(TokenError::WrongThread);
        }
        if (&claims.call, &claims.nonce) != (&expected.call, &expected.nonce) {
            return Err(TokenError::WrongCall);
        }
        if claims.capabilities != expected.capabilities {
            return Err(TokenError::WrongCapabilities);
        }
        if now_ms >= claims.expires_ms || now_ms >= expected.expires_ms {
            return Err(TokenError::Expired);
        }
        Ok(())
    }
}

/// What a token is to say.
pub(super) struct TokenRequest<'a> {
    pub(super) thread_id: &'a ThreadId,
    pub(super) call: &'a str,
    pub(super) capabilities: &'a Capabilities,
    pub(super) now_ms: u64,
    pub(super) lifetime_ms: u64,
}

fn capabilities_digest(capabilities: &Capabilities) -> String {
    Digest::of(capabilities.iter().collect::<Vec<_>>().join("\n").as_bytes()).to_hex()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_000_000;

    fn issuer(seed: u8) -> TokenIssuer {
        TokenIssuer::new(SecretKey::from_seed(&[seed; 32]))
    }

    fn grants(grant: &str) -> Capabilities {
        Capabilities::parse([grant]).expect("a grant")
    }

    fn issue(issuer: &TokenIssuer, thread: &str, call: &str, grant: &str) -> (TokenClaims, Vec<u8>) {
        let request = TokenRequest {
            thread_id: &ThreadId::parse(thread).expect("a name"),
            call,
            capabilities: &grants(grant),
            now_ms: NOW,
            lifetime_ms: 5000,
        };
        issuer.issue(&request).expect("a token")
    }

    const THREAD: &str = "thread-0a1b2c3d4e5f";
    const GRANT: &str = "rye.execute.tool.team.x";

    #[test]
    fn token_is_valid_until_it_expires() {
        let own = issuer(7);
        let (claims, token) = issue(&own, THREAD, "1.0", GRANT);
        assert_eq!(own.verify(&token, &claims, NOW), Ok(()));
        assert_eq!(own.verify(&token, &claims, NOW + 4999), Ok(()));
        assert_eq!(own.verify(&token, &claims, NOW + 5000), Err(TokenError::Expired));
        assert!(token.len() < MAX_TOKEN_BYTES / 2, "{}", token.len());
    }

    #[test]
    fn tampered_or_foreign_token_is_rejected() {
        let own = issuer(7);
        let (claims, token) = issue(&own, THREAD, "1.0", GRANT);
        let end = token.iter().position(|byte| *byte == b'\n').expect("a signature");
        for index in 0..token.len() {
            let mut changed = token.clone();
            changed[index] ^= 1;
            let verdict = own.verify(&changed, &claims, NOW).expect_err("refused");
            assert!(index >= end || verdict == TokenError::Forged, "{index}: {verdict:?}");
        }
        let longer = String::from_utf8(token).expect("text").replace("1005000", "9005000");
        assert_eq!(own.verify(longer.as_bytes(), &claims, NOW), Err(TokenError::Forged));
        let (theirs, token) = issue(&issuer(8), THREAD, "1.0", GRANT);
        assert_eq!(own.verify(&token, &theirs, NOW), Err(TokenError::Forged));
    }

    #[test]
    fn token_is_bound_to_thread_and_call() {
        let own = issuer(7);
        let (claims, _) = issue(&own, THREAD, "1.0", GRANT);
        let verdict = |thread: &str, call: &str, grant: &str| {
            own.verify(&issue(&own, thread, call, grant).1, &claims, NOW)
        };
        assert_eq!(verdict("thread-ffffffffffff", "1.0", GRANT), Err(TokenError::WrongThread));
        assert_eq!(verdict(THREAD, "2.0", GRANT), Err(TokenError::WrongCall));
        assert_eq!(verdict(THREAD, "1.0", GRANT), Err(TokenError::WrongCall), "another run of the same call");
        let (mut wider, token) = issue(&own, THREAD, "1.0", "rye.*");
        wider.capabilities = capabilities_digest(&grants(GRANT));
        assert_eq!(own.verify(&token, &wider, NOW), Err(TokenError::WrongCapabilities));
    }

    #[test]
    fn malformed_token_is_rejected() {
        let own = issuer(7);
        let (claims, token) = issue(&own, THREAD, "1.0", GRANT);
        let body = token.split(|byte| *byte == b'\n').next().expect("claims");
        let signed = |text: &str| {
            let signature = own.key.sign(&Digest::of(text.as_bytes())).to_base64();
            format!("{text}\n{signature}").into_bytes()
        };
        let cases: [Vec<u8>; 7] = [
            Vec::new(),
            b"\n".to_vec(),
            body.to_vec(),
            [token.clone(), b"\nmore".to_vec()].concat(),
            vec![0xff; 100],
            signed("{}"),
            signed(&String::from_utf8(body.to_vec()).expect("text").replace(PURPOSE, "another purpose")),
        ];
        for case in cases {
            assert_eq!(own.verify(&case, &claims, NOW), Err(TokenError::Malformed), "{case:?}");
        }
    }
}
