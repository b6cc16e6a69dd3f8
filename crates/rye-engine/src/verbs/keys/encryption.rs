//! `keys encrypt` and `keys decrypt`: the own private key at rest, with a passphrase or without.

use lillux::Fingerprint;
use lillux::file;
use rye_space::keys;
use serde::Serialize;

use crate::engine::Engine;
use crate::error::{Code, Error, Result};

/// The shortest passphrase, in characters.
const MIN_PASSPHRASE_CHARS: usize = 8;

/// How the own key is stored now.
#[derive(Clone, Debug, Serialize)]
pub struct KeyEncryption {
    /// The own key.
    pub fingerprint: Fingerprint,
    /// Whether it is encrypted.
    pub encrypted: bool,
    /// Whether that changed anything.
    pub changed: bool,
}

/// Encrypts the own key.
///
/// # Errors
/// When there is no key, it is encrypted already, or the passphrase is too short.
pub fn encrypt(engine: &Engine, passphrase: &str) -> Result<KeyEncryption> {
    let folder = &engine.workspace.roots.signing_keys;
    if keys::is_own_key_encrypted(folder)? {
        return Err(Error::new(Code::InvalidArgument, "your key is encrypted already")
            .hint("for another passphrase: rye keys decrypt, then rye keys encrypt"));
    }
    if passphrase.chars().count() < MIN_PASSPHRASE_CHARS {
        let message = format!("a passphrase has at least {MIN_PASSPHRASE_CHARS} characters");
        return Err(Error::new(Code::InvalidArgument, message).hint("several words are easy to remember"));
    }
    let _lock = file::Lock::acquire_dir(folder)?;
    let key = keys::own_secret_key(folder)?;
    keys::replace_key_pair(folder, &key, Some(passphrase))?;
    Ok(KeyEncryption { fingerprint: key.public_key().fingerprint(), encrypted: true, changed: true })
}

/// Stores the own key without a passphrase.
///
/// # Errors
/// When there is no key, or its passphrase is not known.
pub fn decrypt(engine: &Engine) -> Result<KeyEncryption> {
    let folder = &engine.workspace.roots.signing_keys;
    let was_encrypted = keys::is_own_key_encrypted(folder)?;
    let key = engine.own_secret_key()?;
    if was_encrypted {
        let _lock = file::Lock::acquire_dir(folder)?;
        keys::replace_key_pair(folder, &key, None)?;
    }
    let fingerprint = key.public_key().fingerprint();
    Ok(KeyEncryption { fingerprint, encrypted: false, changed: was_encrypted })
}
