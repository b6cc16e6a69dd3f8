//! Why a workspace was not opened or a folder not used, as a user reads it.

use rye_space::scan::InvalidItemFile;
use rye_space::{RootsError, WorkspaceError};

use crate::error::{Code, Error};

impl From<WorkspaceError> for Error {
    fn from(error: WorkspaceError) -> Self {
        let message = error.to_string();
        match error {
            WorkspaceError::Roots(RootsError::UserInsideProject { .. } | RootsError::KeysInsideProject { .. }) => {
                Self::new(Code::UnsafeRoots, message).hint(
                    "a project must not bring its own user space: unset USER_SPACE and RYE_SIGNING_KEY_DIR, or point them elsewhere",
                )
            }
            WorkspaceError::Roots(RootsError::ForeignOwner { project, .. }) => {
                let project = rye_item::text::shell_word(&project.display().to_string());
                Self::new(Code::ForeignOwner, message)
                    .hint(format!("if you trust its owner, approve the project: rye trust {project}"))
                    .hint("or name another project: --project DIR")
            }
            WorkspaceError::Roots(RootsError::ForeignUserSpace { .. }) => {
                Self::new(Code::UnsafeRoots, message)
                    .hint("a user space decides which keys you trust: use one of your own: --user-space DIR")
                    .hint("as root, with the home of another user: HOME=/root rye …")
            }
            WorkspaceError::Roots(RootsError::OpenUserSpace { path, .. }) => {
                let word = rye_item::text::shell_word(&path.display().to_string());
                Self::new(Code::UnsafeRoots, message)
                    .hint(format!("if it is yours: chmod go-w {word}"))
                    .hint("or use another user space: --user-space DIR")
            }
            WorkspaceError::Roots(RootsError::ForeignCache { .. }) => {
                Self::new(Code::UnsafeRoots, message)
                    .hint("what runs is staged there: name a folder of your own, such as XDG_CACHE_HOME=~/.cache")
                    .hint("as root, with the home of another user: HOME=/root rye …")
            }
            WorkspaceError::Roots(RootsError::OpenCache { path, .. }) => {
                let word = rye_item::text::shell_word(&path.display().to_string());
                Self::new(Code::UnsafeRoots, message)
                    .hint("what runs is staged there: name a folder of your own, such as XDG_CACHE_HOME=~/.cache")
                    .hint(format!("if it is yours, and all that is in it: chmod go-w {word}"))
            }
            WorkspaceError::Roots(RootsError::Unreadable { path, reason }) => {
                Self::unreadable_folder(&InvalidItemFile { path, reason })
            }
            WorkspaceError::Roots(RootsError::EscapesProject { .. }) => {
                Self::new(Code::LinkEscapes, message).hint("make `.ai` a folder of the project")
            }
            WorkspaceError::Corrupt(_) => {
                Self::new(Code::DamagedBinary, message).hint("install rye again from a source you trust")
            }
        }
    }
}

impl Error {
    /// A folder that is there and cannot be read: what it holds would be taken for absent.
    #[must_use]
    pub fn unreadable_folder(folder: &InvalidItemFile) -> Self {
        let path = folder.path.display().to_string();
        let word = rye_item::text::shell_word(&path);
        Self::new(Code::Io, format!("the folder `{path}` cannot be read: {}", folder.reason))
            .detail("path", path)
            .hint(format!("see who may read it: ls -ld {word}"))
            .hint(format!("if it is yours: chmod u+rx {word}"))
    }

    /// A link where only a folder may be written to.
    #[must_use]
    pub fn linked_folder(link: &lillux::file::LinkedFolder) -> Self {
        let path = link.path.display().to_string();
        let word = rye_item::text::shell_word(&path);
        Self::new(Code::LinkEscapes, link.to_string())
            .detail("path", path)
            .hint(format!("see where it leads: ls -ld {word}"))
            .hint(format!("then put a folder there: rm {word} && mkdir {word}"))
    }
}
