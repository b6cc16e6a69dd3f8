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
pub(super) const LONGEST: usize = 2048;

/// What a token says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Claims {
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

/// Why a token is not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disbelief {
    /// It is no token.
    Malformed,
    /// Nobody here signed it, or it was changed.
    Forged,
    /// Its time is over.
    Expired,
    /// It is another thread's.
    OtherThread,
    /// It was given to another call.
    OtherCall,
    /// It says other rights than the call has.
    OtherRights,
    /// The call it was given to is over.
    Ended,
}

impl fmt::Display for Disbelief {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Malformed => "it is no token",
            Self::Forged => "it was changed, or somebody else made it",
            Self::Expired => "its time is over",
            Self::OtherThread => "it belongs to another thread",
            Self::OtherCall => "it was given to another call",
            Self::OtherRights => "it does not say what this call may do",
            Self::Ended => "the call it was given to is over",
        })
    }
}

/// Makes tokens and knows its own.
pub struct Issuer {
    key: SecretKey,
}

impl fmt::Debug for Issuer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Issuer")
    }
}

impl Issuer {
    /// One that signs with this key.
    #[must_use]
    pub fn new(key: SecretKey) -> Self {
        Self { key }
    }

    /// A token for one run of a tool.
    ///
    /// # Errors
    /// When the system has no luck to give.
    pub(super) fn issue(&self, wanted: &Wanted<'_>) -> std::io::Result<(Claims, Vec<u8>)> {
        let mut nonce = [0; 16];
        getrandom::fill(&mut nonce).map_err(|error| std::io::Error::other(error.to_string()))?;
        let claims = Claims {
            purpose: PURPOSE.to_owned(),
            thread_id: wanted.thread_id.clone(),
            call: wanted.call.to_owned(),
            capabilities: digest(wanted.capabilities),
            issued_ms: wanted.now_ms,
            expires_ms: wanted.now_ms.saturating_add(wanted.lifetime_ms),
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
    pub(super) fn verify(&self, bytes: &[u8], given: &Claims, now_ms: u64) -> Result<(), Disbelief> {
        let text = std::str::from_utf8(bytes).ok().filter(|_| bytes.len() <= LONGEST);
        let (said, signature) = text.and_then(|text| text.split_once('\n')).ok_or(Disbelief::Malformed)?;
        let signature = Signature::from_base64(signature).ok_or(Disbelief::Malformed)?;
        if !self.key.public().verifies(&Digest::of(said.as_bytes()), &signature) {
            return Err(Disbelief::Forged);
        }
        let claims: Claims = serde_json::from_str(said).map_err(|_| Disbelief::Malformed)?;
        if claims.purpose != PURPOSE {
            return Err(Disbelief::Malformed);
        }
        if claims.thread_id != given.thread_id {
            return Err(Disbelief::OtherThread);
        }
        if (&claims.call, &claims.nonce) != (&given.call, &given.nonce) {
            return Err(Disbelief::OtherCall);
        }
        if claims.capabilities != given.capabilities {
            return Err(Disbelief::OtherRights);
        }
        if now_ms >= claims.expires_ms || now_ms >= given.expires_ms {
            return Err(Disbelief::Expired);
        }
        Ok(())
    }
}

/// What a token is to say.
pub(super) struct Wanted<'a> {
    pub(super) thread_id: &'a ThreadId,
    pub(super) call: &'a str,
    pub(super) capabilities: &'a Capabilities,
    pub(super) now_ms: u64,
    pub(super) lifetime_ms: u64,
}

fn digest(capabilities: &Capabilities) -> String {
    Digest::of(capabilities.iter().collect::<Vec<_>>().join("\n").as_bytes()).to_hex()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_000_000;

    fn issuer(seed: u8) -> Issuer {
        Issuer::new(SecretKey::from_seed(&[seed; 32]))
    }

    fn grants(grant: &str) -> Capabilities {
        Capabilities::parse([grant]).expect("a grant")
    }

    fn issue(issuer: &Issuer, thread: &str, call: &str, grant: &str) -> (Claims, Vec<u8>) {
        let wanted = Wanted {
            thread_id: &ThreadId::parse(thread).expect("a name"),
            call,
            capabilities: &grants(grant),
            now_ms: NOW,
            lifetime_ms: 5000,
        };
        issuer.issue(&wanted).expect("a token")
    }

    const THREAD: &str = "thread-0a1b2c3d4e5f";
    const GRANT: &str = "rye.execute.tool.team.x";

    #[test]
    fn a_token_is_believed_where_it_was_given_until_its_time_is_over() {
        let own = issuer(7);
        let (claims, token) = issue(&own, THREAD, "1.0", GRANT);
        assert_eq!(own.verify(&token, &claims, NOW), Ok(()));
        assert_eq!(own.verify(&token, &claims, NOW + 4999), Ok(()));
        assert_eq!(own.verify(&token, &claims, NOW + 5000), Err(Disbelief::Expired));
        assert!(token.len() < LONGEST / 2, "{}", token.len());
    }

    #[test]
    fn a_token_that_was_changed_or_made_by_another_user_is_forged() {
        let own = issuer(7);
        let (claims, token) = issue(&own, THREAD, "1.0", GRANT);
        let end = token.iter().position(|byte| *byte == b'\n').expect("a signature");
        for place in 0..token.len() {
            let mut changed = token.clone();
            changed[place] ^= 1;
            let verdict = own.verify(&changed, &claims, NOW).expect_err("refused");
            assert!(place >= end || verdict == Disbelief::Forged, "{place}: {verdict:?}");
        }
        let longer = String::from_utf8(token).expect("text").replace("1005000", "9005000");
        assert_eq!(own.verify(longer.as_bytes(), &claims, NOW), Err(Disbelief::Forged));
        let (theirs, token) = issue(&issuer(8), THREAD, "1.0", GRANT);
        assert_eq!(own.verify(&token, &theirs, NOW), Err(Disbelief::Forged));
    }

    #[test]
    fn a_token_of_another_thread_call_or_with_other_rights_is_told_apart() {
        let own = issuer(7);
        let (claims, _) = issue(&own, THREAD, "1.0", GRANT);
        let verdict = |thread: &str, call: &str, grant: &str| {
            own.verify(&issue(&own, thread, call, grant).1, &claims, NOW)
        };
        assert_eq!(verdict("thread-ffffffffffff", "1.0", GRANT), Err(Disbelief::OtherThread));
        assert_eq!(verdict(THREAD, "2.0", GRANT), Err(Disbelief::OtherCall));
        assert_eq!(verdict(THREAD, "1.0", GRANT), Err(Disbelief::OtherCall), "another run of the same call");
        let (mut wider, token) = issue(&own, THREAD, "1.0", "rye.*");
        wider.capabilities = digest(&grants(GRANT));
        assert_eq!(own.verify(&token, &wider, NOW), Err(Disbelief::OtherRights));
    }

    #[test]
    fn what_is_no_token_is_refused() {
        let own = issuer(7);
        let (claims, token) = issue(&own, THREAD, "1.0", GRANT);
        let said = token.split(|byte| *byte == b'\n').next().expect("claims");
        let signed = |text: &str| {
            let signature = own.key.sign(&Digest::of(text.as_bytes())).to_base64();
            format!("{text}\n{signature}").into_bytes()
        };
        let cases: [Vec<u8>; 7] = [
            Vec::new(),
            b"\n".to_vec(),
            said.to_vec(),
            [token.clone(), b"\nmore".to_vec()].concat(),
            vec![0xff; 100],
            signed("{}"),
            signed(&String::from_utf8(said.to_vec()).expect("text").replace(PURPOSE, "another purpose")),
        ];
        for case in cases {
            assert_eq!(own.verify(&case, &claims, NOW), Err(Disbelief::Malformed), "{case:?}");
        }
    }
}
