//! Putting a signature line into a file. Only the line changes; content bytes and line endings stay as they are.

use lillux::SecretKey;
use rye_item::SignatureFormat;

use crate::coverage::content_hash;
use crate::signature::{FileLayout, SignatureLine, Timestamp, format_line};

/// What signing did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SignOutcome {
    /// The file already carries this key's signature over this content.
    Unchanged(SignatureLine),
    /// The new bytes of the file.
    Written {
        /// What to write.
        bytes: Vec<u8>,
        /// The signature in it.
        signature: SignatureLine,
    },
}

/// Signs a file's bytes with `key`, with the line break the file uses. Validation comes before this, writing after it.
#[must_use]
pub fn sign(bytes: &[u8], format: &SignatureFormat, key: &SecretKey, now: &Timestamp) -> SignOutcome {
    let layout = FileLayout::parse(bytes, format);
    let hash = content_hash(bytes, &layout);
    let public = key.public_key();
    if let Some(existing) = &layout.signature
        && existing.hash == hash
        && layout.has_consistent_line_break(bytes)
        && existing.fingerprint == public.fingerprint()
        && public.verify(&hash, &existing.signature)
    {
        return SignOutcome::Unchanged(existing.clone());
    }
    let signature = key.sign(&hash);
    let signature = SignatureLine {
        timestamp: now.clone(),
        hash,
        signature,
        signature_text: signature.to_base64(),
        fingerprint: public.fingerprint(),
        registry: None,
    };
    let line = format_line(&signature, format, layout.line_break(bytes));
    let mut written = Vec::with_capacity(bytes.len() + line.len());
    written.extend_from_slice(&bytes[layout.shebang.clone()]);
    written.extend_from_slice(line.as_bytes());
    written.extend_from_slice(&bytes[layout.content.clone()]);
    SignOutcome::Written { bytes: written, signature }
}
