//! Identity documents: `.ai/config/keys/trusted/<fingerprint>.toml`, a public key with an owner's name, signed.

use lillux::{Fingerprint, PublicKey};
use rye_item::{ItemType, SignatureFormat};
use serde::Deserialize;

use crate::coverage::{ContentStatus, Coverage, compare_content};
use crate::signature::{FileLayout, SignatureLine};

/// Identity documents are signed as config: a `#` line at the very top.
#[must_use]
pub fn signature_format() -> SignatureFormat {
    SignatureFormat { prefix: "#".to_owned(), suffix: None, after_shebang: false }
}

/// Why a document is not a valid identity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// It is not UTF-8 text or not TOML.
    #[error("the identity document cannot be read: {0}")]
    Unreadable(String),
    /// The key in it is not an Ed25519 public key.
    #[error("the identity document has no usable key: {0}")]
    Key(#[from] lillux::key::KeyError),
    /// The fingerprint it states is not its key's.
    #[error("the identity document says fingerprint `{stated}`, but its key has `{actual}`")]
    Fingerprint {
        /// What it says.
        stated: String,
        /// What its key has.
        actual: Fingerprint,
    },
    /// Its signature line was written for another text.
    #[error("the identity document changed since it was signed")]
    Changed,
    /// It claims to be signed by its own key, and is not.
    #[error("the identity document names its own key as its signer, but that key did not sign it")]
    Forged,
    /// It says that it belongs to another folder.
    #[error("the identity document says category `{0}`, not `{IDENTITY_CATEGORY}`")]
    Category(String),
}

/// The category of identity documents.
pub const IDENTITY_CATEGORY: &str = "keys/trusted";

/// Who a key belongs to, as a document says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The key.
    pub key: PublicKey,
    /// The key's fingerprint.
    pub fingerprint: Fingerprint,
    /// The owner's name, as the writer of the document gave it.
    pub owner: String,
    /// The document's version.
    pub version: String,
    /// Whether documents signed by this key introduce their keys to a project.
    pub may_introduce: bool,
    /// The projects the key is trusted in, by real path; `None` for everywhere.
    pub projects: Option<Vec<String>>,
    /// The document's signature over exactly this text; by whom is for the caller to verify.
    pub signature: Option<SignatureLine>,
}

/// Every field is known: a text that a key signed as something else, such as a tool, is not an identity.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "fields that documents have and nothing reads")]
struct Document {
    fingerprint: String,
    owner: Option<String>,
    version: Option<String>,
    category: Option<String>,
    attestation: Option<String>,
    #[serde(default)]
    may_introduce: bool,
    scope: Option<Scope>,
    public_key: Pem,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Scope {
    projects: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Pem {
    pem: String,
}

impl Identity {
    /// An identity that is not signed yet.
    #[must_use]
    pub fn new(key: PublicKey, owner: &str) -> Self {
        let fingerprint = key.fingerprint();
        Self {
            key,
            fingerprint,
            owner: owner.to_owned(),
            version: "1.0.0".to_owned(),
            may_introduce: false,
            projects: None,
            signature: None,
        }
    }

    /// Reads a document.
    ///
    /// # Errors
    /// When it is unreadable, contradicts itself, or changed since it was signed.
    pub fn parse(bytes: &[u8]) -> Result<Self, IdentityError> {
        let unreadable = |error: &dyn std::fmt::Display| {
            IdentityError::Unreadable(rye_item::text::one_line(&error.to_string()))
        };
        let text = std::str::from_utf8(bytes).map_err(|error| unreadable(&error))?;
        let document: Document = toml::from_str(text).map_err(|error| unreadable(&error.message()))?;
        if let Some(category) = document.category.filter(|category| category != IDENTITY_CATEGORY) {
            return Err(IdentityError::Category(rye_item::text::one_line(&category)));
        }
        let key = PublicKey::from_pem(&document.public_key.pem)?;
        let actual = key.fingerprint();
        if document.fingerprint != actual.as_str() {
            return Err(IdentityError::Fingerprint { stated: document.fingerprint, actual });
        }
        let layout = FileLayout::parse(bytes, &signature_format());
        match compare_content(ItemType::Config, bytes, &layout) {
            ContentStatus::Unsigned | ContentStatus::Intact { coverage: Coverage::Full, .. } => {}
            ContentStatus::Intact { .. }
            | ContentStatus::Changed { .. }
            | ContentStatus::InvalidShebang(_) => {
                return Err(IdentityError::Changed);
            }
        }
        let identity = Self {
            key,
            fingerprint: actual,
            owner: document.owner.unwrap_or_else(|| "unknown".to_owned()),
            version: document.version.unwrap_or_else(|| "1.0.0".to_owned()),
            may_introduce: document.may_introduce,
            projects: document.scope.map(|scope| scope.projects),
            signature: layout.signature,
        };
        let claims_self_signed =
            identity.signature.as_ref().is_some_and(|line| line.fingerprint == identity.fingerprint);
        if claims_self_signed && !identity.is_self_signed() {
            return Err(IdentityError::Forged);
        }
        Ok(identity)
    }

    /// The document's text, unsigned.
    #[must_use]
    pub fn to_document(&self) -> String {
        let quote = |text: &str| toml::Value::String(text.to_owned()).to_string();
        let mut document = format!(
            "version = {}\ncategory = \"keys/trusted\"\nfingerprint = \"{}\"\nowner = {}\nattestation = \"\"\n",
            quote(&self.version),
            self.fingerprint,
            quote(&self.owner),
        );
        if self.may_introduce {
            document.push_str("may_introduce = true\n");
        }
        if let Some(projects) = &self.projects {
            let list = projects.iter().map(|project| quote(project)).collect::<Vec<_>>().join(", ");
            document.push_str(&format!("\n[scope]\nprojects = [{list}]\n"));
        }
        document.push_str(&format!("\n[public_key]\npem = \"\"\"\n{}\"\"\"\n", self.key.to_pem()));
        document
    }

    /// Whether the document's signature is by `key`.
    #[must_use]
    pub fn is_signed_by(&self, key: &PublicKey) -> bool {
        self.signature.as_ref().is_some_and(|line| {
            line.fingerprint == key.fingerprint() && key.verify(&line.hash, &line.signature)
        })
    }

    /// Whether the document is signed by the key it holds.
    #[must_use]
    pub fn is_self_signed(&self) -> bool {
        self.is_signed_by(&self.key)
    }
}
