//! What failures of archives and installations mean to a user.

use rye_bundle::archive::ArchiveError;
use rye_bundle::install::InstallError;

use crate::error::{Code, Error};

impl From<ArchiveError> for Error {
    fn from(error: ArchiveError) -> Self {
        let message = error.to_string();
        match error {
            ArchiveError::NotAnArchive
            | ArchiveError::NotAForeignArchive
            | ArchiveError::InvalidEntry { .. }
            | ArchiveError::TooLarge { .. }
            | ArchiveError::Damaged(_)
            | ArchiveError::TrailingBytes => Self::new(Code::BadArchive, message)
                .hint("get it again from its maker; rye bundle create makes archives that hold only what a bundle may"),
            ArchiveError::UnknownFormat(_) => {
                Self::new(Code::InvalidArgument, message).hint("name it .tar.zst or .zip")
            }
            ArchiveError::Io(error) => Self::io(&error),
            ArchiveError::Beneath(_) => Self::new(Code::Io, message),
        }
    }
}

impl From<InstallError> for Error {
    fn from(error: InstallError) -> Self {
        let message = error.to_string();
        match error {
            InstallError::OwnedByBundle { path, owner } => Self::new(Code::FileInTheWay, message)
                .detail("path", path.as_str())
                .detail("owner", owner.as_str())
                .hint(format!("two bundles cannot have the same file: rye uninstall {owner} first")),
            InstallError::Occupied { paths } => Self::new(Code::FileInTheWay, message)
                .detail("paths", paths.iter().map(|path| path.as_str()).collect::<Vec<_>>())
                .hint("move what is yours elsewhere; or overwrite it with --force, which keeps a backup"),
            InstallError::DuplicateItems { files } => Self::new(Code::FileInTheWay, message)
                .detail("paths", files.iter().map(|(there, _)| there.as_str()).collect::<Vec<_>>())
                .detail("hidden_by", files.iter().map(|(_, new)| new.as_str()).collect::<Vec<_>>())
                .hint("only one of them would be found: rename what is yours, or do not install the bundle")
                .hint("to replace yours: --force moves it to a backup"),
            InstallError::NotAFile { path } => Self::new(Code::FileInTheWay, message)
                .detail("path", path.as_str())
                .hint("links are not followed: put a plain folder or nothing there"),
            InstallError::ChangedConcurrently { path } => Self::new(Code::FileInTheWay, message)
                .detail("path", path.as_str())
                .hint("nothing was changed; run the command again"),
            InstallError::DamagedJournal { path, .. } => {
                Self::new(Code::DamagedInstall, message).detail("path", path.display().to_string()).hint(
                    "rye bundle verify ID checks what is installed; remove that file if everything is fine",
                )
            }
            InstallError::RollbackFailed { .. } => Self::new(Code::DamagedInstall, message)
                .hint("the next rye command tries again; free disk space or fix permissions first"),
            InstallError::InvalidFile { path, .. } => Self::new(Code::FileRefused, message)
                .detail("path", path)
                .hint("a bundle holds plain files and folders below `.ai/` only"),
            InstallError::Archive(error) => error.into(),
            InstallError::Io(error) => Self::io(&error),
            InstallError::Beneath(_) => {
                Self::new(Code::Io, message).hint("check the owner of the folder and the free disk space")
            }
        }
    }
}
