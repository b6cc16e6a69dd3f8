//! Who vouches for bytes: signature lines, coverage, identity documents, trust decisions, and the [`Verified`] type
//! that nobody else can construct.
//!
//! No I/O: keys, documents and items come in as bytes; `rye-space` reads them.

pub mod admit;
pub mod coverage;
pub mod forms;
pub mod identity;
pub mod keyring;
pub mod sign;
pub mod signature;
pub mod signed_ids;
pub mod source;
pub mod verify;

pub use admit::{Admitted, Forgiveness, admit};
pub use coverage::{Content, Coverage};
pub use forms::{covered_form, display_form};
pub use identity::{Identity, IdentityError};
pub use keyring::{KeyRing, Listed, Revocation, TrustedKey, Vouch};
pub use sign::{Signed, sign};
pub use signature::SignatureLine;
pub use signed_ids::{SignedId, SignedIds};
pub use verify::{Refusal, Report, Subject, Verdict, Verified, verify};
