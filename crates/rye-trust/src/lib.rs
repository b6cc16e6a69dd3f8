//! Who vouches for bytes: signature lines, coverage, identity documents, trust decisions, and the [`Verified`] type
//! that no other crate can construct.
//!
//! No I/O: keys, documents and items come in as bytes; `rye-space` reads them.

pub mod admit;
pub mod coverage;
pub mod forms;
pub mod handover;
pub mod identity;
pub mod keyring;
pub mod object;
pub mod other_document;
pub mod owner_name;
pub mod sign;
pub mod signature;
pub mod signed_ids;
pub mod verify;

pub use admit::{Admitted, DevModePolicy, admit};
pub use coverage::{ContentStatus, Coverage};
pub use forms::{covered_form, display_form};
pub use handover::{Handover, HandoverError};
pub use identity::{Identity, IdentityError};
pub use keyring::{KeyRing, ManifestEntry, Revocation, TrustBasis, TrustedKey};
pub use other_document::signed_document;
pub use owner_name::{OwnerNameError, check_owner_name, is_look_alike};
pub use sign::{SignOutcome, sign};
pub use signature::SignatureLine;
pub use signed_ids::{SignedId, SignedIds};
pub use verify::{Subject, TrustReport, TrustVerdict, Verified, VerifyRejection, verify};
