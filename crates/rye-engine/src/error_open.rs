//! Why a workspace was not opened, as a user reads it.

use rye_space::{OpenError, RootsError};

use crate::error::{Code, Error};

impl From<OpenError> for Error {
    fn from(error: OpenError) -> Self {
        let message = error.to_string();
        match error {
            OpenError::Roots(RootsError::UserInsideProject { .. } | RootsError::KeysInsideProject { .. }) => {
                Self::new(Code::UnsafeRoots, message).hint(
                    "a project must not bring its own user space: unset USER_SPACE and RYE_SIGNING_KEY_DIR, or point them elsewhere",
                )
            }
            OpenError::Roots(RootsError::ForeignOwner { project, .. }) => {
                let project = rye_item::text::shell_word(&project.display().to_string());
                Self::new(Code::ForeignOwner, message)
                    .hint(format!("if you trust its owner, approve the project: rye trust {project}"))
                    .hint("or name another project: --project DIR")
            }
            OpenError::Roots(RootsError::LinkedOut { .. }) => {
                Self::new(Code::LinkEscapes, message).hint("make `.ai` a folder of the project")
            }
            OpenError::Damaged(_) => {
                Self::new(Code::DamagedBinary, message).hint("install rye again from a source you trust")
            }
        }
    }
}
