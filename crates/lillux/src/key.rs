//! Ed25519 keys in PEM, their fingerprints, and signatures in base64url.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::alphabet::URL_SAFE;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use ed25519_dalek::pkcs8::spki::der::pem::LineEnding;
use ed25519_dalek::pkcs8::{
    DecodePrivateKey, DecodePublicKey, EncodePrivateKey, EncodePublicKey, KeypairBytes,
};
use ed25519_dalek::{Signer, SigningKey, VerifyingKey};
use serde::{Serialize, Serializer};

use crate::digest::Digest;

/// Without padding: what is read with it has lost it before.
const BASE64_URL: GeneralPurpose = GeneralPurpose::new(
    &URL_SAFE,
    GeneralPurposeConfig::new()
        .with_encode_padding(false)
        .with_decode_padding_mode(DecodePaddingMode::RequireNone),
);

/// Why a key cannot be read or made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The PEM text is not an Ed25519 private key.
    #[error("not an Ed25519 private key in PKCS#8 PEM")]
    NotPrivate,
    /// The PEM text is not an Ed25519 public key.
    #[error("not an Ed25519 public key in SPKI PEM")]
    NotPublic,
    /// The public key has small order, so it would accept forged signatures.
    #[error("the public key is weak: it has small order")]
    Weak,
    /// The private key is encrypted.
    #[error("the private key is encrypted")]
    Encrypted,
    /// The passphrase is not the one the private key was encrypted with.
    #[error("wrong passphrase")]
    WrongPassphrase,
    /// The system gave no randomness.
    #[error("the system gave no randomness")]
    NoRandomness,
}

/// The first 16 hex characters of the SHA-256 of a public key's PEM text. A name, not a proof: trust compares keys.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint([u8; 16]);

impl Fingerprint {
    /// The fingerprint as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

/// The text is not a fingerprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a fingerprint is 16 lower-case hex characters")]
pub struct InvalidFingerprint;

impl FromStr for Fingerprint {
    type Err = InvalidFingerprint;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bytes: [u8; 16] = text.as_bytes().try_into().map_err(|_| InvalidFingerprint)?;
        let is_hex = bytes.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        if is_hex { Ok(Self(bytes)) } else { Err(InvalidFingerprint) }
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.as_str())
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

impl Serialize for Fingerprint {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// An Ed25519 signature.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Signature([u8; 64]);

impl Signature {
    /// Reads base64url, without padding or with all of it: these two spellings and no other.
    #[must_use]
    pub fn from_base64(text: &str) -> Option<Self> {
        let bytes = BASE64_URL.decode(text.strip_suffix("==").unwrap_or(text)).ok()?;
        Some(Self(bytes.try_into().ok()?))
    }

    /// base64url without padding.
    #[must_use]
    pub fn to_base64(&self) -> String {
        BASE64_URL.encode(self.0)
    }
}

/// A public key.
#[derive(Clone, PartialEq, Eq)]
pub struct PublicKey(VerifyingKey);

impl PublicKey {
    /// Reads a PEM text.
    ///
    /// # Errors
    /// When it is not an Ed25519 public key, or a weak one.
    pub fn from_pem(pem: &str) -> Result<Self, KeyError> {
        let key = VerifyingKey::from_public_key_pem(pem.trim()).map_err(|_| KeyError::NotPublic)?;
        if key.is_weak() { Err(KeyError::Weak) } else { Ok(Self(key)) }
    }

    /// The PEM text, with LF line ends and a final newline.
    #[must_use]
    pub fn to_pem(&self) -> String {
        // Encoding a valid key cannot fail; an empty text would match no fingerprint.
        self.0.to_public_key_pem(LineEnding::LF).unwrap_or_default()
    }

    /// The fingerprint of the PEM text.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        let mut bytes = [0; 16];
        bytes.copy_from_slice(Digest::of(self.to_pem().as_bytes()).short().as_bytes());
        Fingerprint(bytes)
    }

    /// Whether `signature` is this key's over the 64 hex characters of `digest`. Strict verification.
    #[must_use]
    pub fn verify(&self, digest: &Digest, signature: &Signature) -> bool {
        let signature = ed25519_dalek::Signature::from_bytes(&signature.0);
        self.0.verify_strict(digest.to_hex().as_bytes(), &signature).is_ok()
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "PublicKey({})", self.fingerprint())
    }
}

/// A private key. It is wiped from memory when dropped, and never shown.
pub struct SecretKey(SigningKey);

impl SecretKey {
    /// Makes a new key from the system's randomness.
    ///
    /// # Errors
    /// When the system gives none.
    pub fn generate() -> Result<Self, KeyError> {
        let mut seed = [0; 32];
        getrandom::fill(&mut seed).map_err(|_| KeyError::NoRandomness)?;
        Ok(Self(SigningKey::from_bytes(&seed)))
    }

    /// The key of a seed. The seed is as secret as the key.
    #[must_use]
    pub fn from_seed(seed: &[u8; 32]) -> Self {
        Self(SigningKey::from_bytes(seed))
    }

    /// Reads a PKCS#8 PEM text.
    ///
    /// # Errors
    /// When it is not an Ed25519 private key.
    pub fn from_pem(pem: &str) -> Result<Self, KeyError> {
        if is_encrypted_pem(pem) {
            return Err(KeyError::Encrypted);
        }
        SigningKey::from_pkcs8_pem(pem.trim()).map(Self).map_err(|_| KeyError::NotPrivate)
    }

    /// The PKCS#8 PEM text, with LF line ends and a final newline.
    ///
    /// # Errors
    /// When it cannot be encoded.
    pub fn to_pem(&self) -> Result<String, KeyError> {
        let bytes = KeypairBytes { secret_key: self.0.to_bytes(), public_key: None };
        let pem = bytes.to_pkcs8_pem(LineEnding::LF).map_err(|_| KeyError::NotPrivate)?;
        Ok(pem.to_string())
    }

    /// Reads an encrypted PKCS#8 PEM text.
    ///
    /// # Errors
    /// When it is not an encrypted Ed25519 private key, or the passphrase is wrong.
    pub fn from_encrypted_pem(pem: &str, passphrase: &str) -> Result<Self, KeyError> {
        if !is_encrypted_pem(pem) {
            return Err(KeyError::NotPrivate);
        }
        // Nothing authenticates the text: a damaged one looks like one with another passphrase.
        let key = SigningKey::from_pkcs8_encrypted_pem(pem.trim(), passphrase);
        key.map(Self).map_err(|_| KeyError::WrongPassphrase)
    }

    /// The encrypted PKCS#8 PEM text (PBES2: scrypt, AES-256-CBC), which `openssl pkcs8` reads too.
    ///
    /// # Errors
    /// When it cannot be encoded, or the system gives no randomness.
    pub fn to_encrypted_pem(&self, passphrase: &str) -> Result<String, KeyError> {
        let bytes = KeypairBytes { secret_key: self.0.to_bytes(), public_key: None };
        let pem =
            bytes.to_pkcs8_encrypted_pem(passphrase, LineEnding::LF).map_err(|_| KeyError::NoRandomness)?;
        Ok(pem.to_string())
    }

    /// Another copy of the key, as secret as this one.
    #[must_use]
    pub fn duplicate(&self) -> Self {
        Self(self.0.clone())
    }

    /// The public half.
    #[must_use]
    pub fn public_key(&self) -> PublicKey {
        PublicKey(self.0.verifying_key())
    }

    /// Signs the 64 hex characters of `digest`.
    #[must_use]
    pub fn sign(&self, digest: &Digest) -> Signature {
        Signature(self.0.sign(digest.to_hex().as_bytes()).to_bytes())
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "SecretKey(of {})", self.public_key().fingerprint())
    }
}

/// Whether a PEM text is an encrypted private key.
#[must_use]
pub fn is_encrypted_pem(pem: &str) -> bool {
    pem.trim_start().starts_with("-----BEGIN ENCRYPTED PRIVATE KEY-----")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encrypted_key_needs_its_passphrase() {
        let key = SecretKey::generate().expect("randomness");
        let pem = key.to_encrypted_pem("correct horse").expect("encrypted");
        assert!(is_encrypted_pem(&pem) && !pem.contains("BEGIN PRIVATE KEY"), "{pem}");
        let again = SecretKey::from_encrypted_pem(&pem, "correct horse").expect("decrypted");
        assert_eq!(again.public_key(), key.public_key());
        assert_eq!(SecretKey::from_encrypted_pem(&pem, "wrong").err(), Some(KeyError::WrongPassphrase));
        assert_eq!(SecretKey::from_pem(&pem).err(), Some(KeyError::Encrypted));
        let plain = key.to_pem().expect("pem");
        assert_eq!(SecretKey::from_encrypted_pem(&plain, "x").err(), Some(KeyError::NotPrivate));
        assert_ne!(key.to_encrypted_pem("correct horse").expect("encrypted"), pem, "another salt each time");
    }

    #[test]
    fn keys_round_trip_through_pem() {
        let key = SecretKey::generate().expect("randomness");
        let again = SecretKey::from_pem(&key.to_pem().expect("pem")).expect("own pem");
        assert_eq!(again.public_key(), key.public_key());
        assert_eq!(PublicKey::from_pem(&key.public_key().to_pem()), Ok(key.public_key()));
    }

    #[test]
    fn signature_is_valid_for_one_digest() {
        let (key, other) =
            (SecretKey::generate().expect("randomness"), SecretKey::generate().expect("randomness"));
        let signature = key.sign(&Digest::of(b"x"));
        assert!(key.public_key().verify(&Digest::of(b"x"), &signature));
        assert!(!key.public_key().verify(&Digest::of(b"y"), &signature));
        assert!(!other.public_key().verify(&Digest::of(b"x"), &signature));
    }

    #[test]
    fn padding_is_read_but_not_written() {
        let signature = SecretKey::generate().expect("randomness").sign(&Digest::of(b"x"));
        let text = signature.to_base64();
        assert!(!text.contains('='));
        assert_eq!(Signature::from_base64(&text), Some(signature));
        assert_eq!(Signature::from_base64(&format!("{text}==")), Some(signature));
        for other in ["AAAA", &format!("{text}="), &format!("{text}==="), &format!("{text}===="), "", "=="] {
            assert_eq!(Signature::from_base64(other), None, "{other}");
        }
    }

    #[test]
    fn weak_and_foreign_keys_are_refused() {
        let identity = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAAQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n-----END PUBLIC KEY-----\n";
        assert_eq!(PublicKey::from_pem(identity), Err(KeyError::Weak));
        assert_eq!(PublicKey::from_pem("hello"), Err(KeyError::NotPublic));
        assert!(SecretKey::from_pem(identity).is_err());
    }

    #[test]
    fn secret_key_is_never_printed() {
        let key = SecretKey::generate().expect("randomness");
        let text = format!("{key:?}");
        assert!(!text.contains("PRIVATE") && text.len() < 60, "{text}");
    }
}
