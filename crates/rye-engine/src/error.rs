//! Errors that reach a user: a stable code, what happened, and what to do about it.

use std::fmt;
use std::path::Path;

use lillux::file::ReadError;
use rye_item::text::shell_word;
use rye_item::{Diagnostic, ItemRef};
use rye_space::LocateError;
use rye_space::keys::OwnKeyError;
use rye_trust::IdentityError;
use serde_json::{Map, Value};

/// What kind of failure it is; decides the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// Something failed.
    Failed,
    /// Wrong usage or invalid parameters.
    Usage,
    /// Not found.
    NotFound,
    /// Integrity or trust.
    Integrity,
    /// Policy does not allow it.
    Denied,
    /// A limit or a budget is reached.
    Limit,
    /// It was cancelled.
    Cancelled,
    /// A lockfile: mismatch, missing, damaged.
    Lock,
    /// An item is not valid.
    Validation,
}

impl ErrorKind {
    /// The documented exit code.
    #[must_use]
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Failed => 1,
            Self::Usage => 2,
            Self::NotFound => 3,
            Self::Integrity => 4,
            Self::Denied => 5,
            Self::Limit => 6,
            Self::Cancelled => 7,
            Self::Lock => 8,
            Self::Validation => 9,
        }
    }
}

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $kind:ident;)*) => {
        /// A stable error code. Each has a page in `docs/errors/`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Code {
            $($(#[$doc])* $name,)*
        }

        impl Code {
            /// All codes.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// The code as text: `RYE0401`.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $number,)*
                }
            }

            /// What kind of failure it is.
            #[must_use]
            pub fn kind(self) -> ErrorKind {
                match self {
                    $(Self::$name => ErrorKind::$kind,)*
                }
            }
        }
    };
}

codes! {
    /// An id breaks the rules of ids.
    InvalidId = "RYE0101", Usage;
    /// A word is not an item type.
    UnknownType = "RYE0102", Usage;
    /// A search query cannot be read.
    InvalidQuery = "RYE0103", Usage;
    /// An argument is wrong.
    InvalidArgument = "RYE0104", Usage;
    /// Something needs consent, and there is no one to ask.
    ConsentNeeded = "RYE0105", Usage;
    /// Parameters do not fit what the tool takes.
    InvalidParameters = "RYE0106", Usage;
    /// Inputs do not fit what the directive takes.
    InvalidInputs = "RYE0107", Usage;
    /// An item of this type is not executed.
    NotExecutable = "RYE0108", Usage;
    /// No space has the item.
    NotFound = "RYE0201", NotFound;
    /// A file or folder is not there.
    PathNotFound = "RYE0202", NotFound;
    /// An id names several items.
    Ambiguous = "RYE0203", Usage;
    /// A file is larger than the bound.
    TooLarge = "RYE0204", Validation;
    /// A link leaves its space.
    LinkEscapes = "RYE0205", Integrity;
    /// A path is not an item.
    NotAnItem = "RYE0206", Usage;
    /// An item is not valid.
    Invalid = "RYE0301", Validation;
    /// A file cannot carry a signature.
    Unsignable = "RYE0302", Validation;
    /// A rule between two elements of a chain is broken.
    ChainInvalid = "RYE0310", Validation;
    /// A chain comes back to itself.
    ChainCircular = "RYE0311", Validation;
    /// A chain is too long.
    ChainTooDeep = "RYE0312", Validation;
    /// An element's executor is nowhere.
    ExecutorMissing = "RYE0313", Validation;
    /// Nothing the engine can do ends the chain.
    UnknownPrimitive = "RYE0314", Validation;
    /// What a signed item says cannot be run.
    InvalidInvocation = "RYE0315", Validation;
    /// An item is not signed.
    Unsigned = "RYE0401", Integrity;
    /// An item changed after it was signed.
    Tampered = "RYE0402", Integrity;
    /// An item was signed for another place.
    Misplaced = "RYE0403", Integrity;
    /// An item is signed by a key that is not trusted here.
    Untrusted = "RYE0404", Integrity;
    /// An item is signed by a revoked key.
    Revoked = "RYE0405", Integrity;
    /// A signature covers only a part of the item.
    Partial = "RYE0406", Integrity;
    /// There is no signing key.
    NoKey = "RYE0411", Integrity;
    /// Others can reach the signing key.
    LooseKey = "RYE0412", Integrity;
    /// The signing key cannot be read.
    InvalidKey = "RYE0413", Integrity;
    /// There is a signing key already.
    KeyExists = "RYE0414", Usage;
    /// A key file has no valid key.
    InvalidIdentity = "RYE0415", Integrity;
    /// No known key has this fingerprint.
    UnknownKey = "RYE0416", NotFound;
    /// System items cannot be changed.
    SystemImmutable = "RYE0417", Usage;
    /// A user space or key folder lies inside the project.
    UnsafeRoots = "RYE0418", Integrity;
    /// A signed record of the user's is damaged; writing would lose it.
    DamagedRecord = "RYE0419", Integrity;
    /// The signing key is encrypted, and there is no passphrase, or a wrong one.
    KeyLocked = "RYE0420", Integrity;
    /// Something else than what was pinned would run.
    LockMismatch = "RYE0501", Lock;
    /// A lockfile is asked for, and none holds.
    LockMissing = "RYE0502", Lock;
    /// A lockfile is damaged or cannot be read.
    LockCorrupt = "RYE0503", Lock;
    /// There is no lockfile to show or verify.
    NoLockfile = "RYE0504", NotFound;
    /// A version cannot be part of a file name.
    UnsafeVersion = "RYE0505", Validation;
    /// A tool of the project is not pinned as it is now.
    NotPinned = "RYE0506", Lock;
    /// There is no such bundle.
    NoBundle = "RYE0601", NotFound;
    /// It is not clear which signer to approve.
    NoSigner = "RYE0602", Integrity;
    /// A bundle is not what its manifest says.
    BundleFailed = "RYE0603", Integrity;
    /// A folder has no bundle manifest.
    NoManifest = "RYE0604", NotFound;
    /// Items cannot be part of a bundle as they are.
    Unbundleable = "RYE0605", Integrity;
    /// An archive holds what a bundle may not, or too much, or is damaged.
    BadArchive = "RYE0611", Integrity;
    /// A bundle would bring a file it may not.
    FileRefused = "RYE0612", Denied;
    /// A file is in the way.
    FileInTheWay = "RYE0613", Denied;
    /// An installation was not confirmed.
    InstallConsent = "RYE0614", Denied;
    /// A bundle's signer is not known.
    UnknownSigner = "RYE0615", Integrity;
    /// A bundle changed for the worse since it was last seen.
    BundleChanged = "RYE0616", Integrity;
    /// No earlier version is kept.
    NoGeneration = "RYE0617", NotFound;
    /// The record of an installation is damaged.
    DamagedInstall = "RYE0618", Integrity;
    /// A registry is not reached, or does not behave like one.
    RegistryUnreachable = "RYE0621", Failed;
    /// A registry refuses access.
    RegistryRefused = "RYE0622", Denied;
    /// The login for a registry cannot be read.
    RegistryLogin = "RYE0623", Failed;
    /// A registry has no such artifact.
    NotInRegistry = "RYE0624", NotFound;
    /// What a registry has there is no bundle.
    NotABundle = "RYE0625", Validation;
    /// A registry sent something else than it should.
    Unsound = "RYE0626", Integrity;
    /// A project's `bundles.toml` or its lock is not valid.
    InvalidProjectManifest = "RYE0631", Validation;
    /// A project's lock is not what its manifest asks for, or not what is installed.
    ProjectLockStale = "RYE0632", Lock;
    /// A source gives something else than the manifest or the lock names.
    SourceMismatch = "RYE0633", Integrity;
    /// A source is not reached.
    SourceUnreachable = "RYE0634", Failed;
    /// A source has no version that is wanted.
    NoMatchingVersion = "RYE0635", NotFound;
    /// The doctor found problems.
    Unhealthy = "RYE0701", Failed;
    /// A tool failed.
    ToolFailed = "RYE0801", Failed;
    /// A tool took too long.
    ToolTimedOut = "RYE0802", Failed;
    /// A run was cancelled.
    ToolCancelled = "RYE0803", Cancelled;
    /// The sandbox stopped a tool.
    ToolStopped = "RYE0804", Failed;
    /// The sandbox that policy asks for is not to be had.
    NoSandbox = "RYE0805", Denied;
    /// Policy does not allow what a tool tried.
    ToolDenied = "RYE0806", Denied;
    /// The program a tool runs on is not there.
    NoInterpreter = "RYE0807", Failed;
    /// The packages a tool depends on could not be installed.
    Dependencies = "RYE0808", Failed;
    /// A program of the project is not what the user has recorded.
    ProgramNotRecorded = "RYE0809", Denied;
    /// The system refused to read or write.
    Io = "RYE0901", Failed;
    /// The binary's own items are damaged.
    DamagedBinary = "RYE0902", Integrity;
    /// The search index failed, even again.
    Index = "RYE0903", Failed;
    /// A project, or a folder above it, belongs to another user.
    ForeignOwner = "RYE0904", Integrity;
    /// An MCP client names a project that the user has not approved.
    ProjectNotApproved = "RYE0905", Denied;
    /// Policy does not let agents sign this.
    SigningDenied = "RYE1001", Denied;
    /// The user was asked and did not agree.
    Declined = "RYE1002", Denied;
    /// A server would be reachable from elsewhere.
    PublicAddress = "RYE1003", Usage;
    /// Others can read the server's token, or it is not a token.
    LooseToken = "RYE1004", Integrity;
    /// A client's configuration cannot be changed safely.
    ClientConfig = "RYE1005", Failed;
    /// The server cannot listen or speak.
    Serving = "RYE1006", Failed;
    /// Files of a client are not as the signed items say.
    StaleExport = "RYE1007", Failed;
    /// A request to the page's server has no valid session, or comes from another page or address.
    SessionRefused = "RYE1008", Denied;
    /// The page's server changes nothing: it was started with `--read-only`.
    ReadOnly = "RYE1009", Denied;
    /// A question is not the one that was shown, or it is answered already.
    QuestionChanged = "RYE1010", Denied;
    /// A thread has no grant for what it asks.
    PermissionDenied = "RYE1121", Denied;
    /// A thread would have grants whose risk was not acknowledged.
    RiskRefused = "RYE1122", Denied;
    /// A permission is not a capability.
    InvalidCapability = "RYE1123", Validation;
    /// Something a thread will need is not there or may not be used.
    PreflightFailed = "RYE1124", Validation;
    /// A model called a tool that was not offered, or not as it is.
    InvalidCall = "RYE1125", Usage;
    /// Inside a tool's sandbox, and without a token.
    NoToken = "RYE1126", Denied;
    /// The token of a tool is not accepted.
    TokenRefused = "RYE1127", Denied;
    /// A thread has ended: it cannot continue.
    ThreadEnded = "RYE1131", Usage;
    /// A cap on threads is reached.
    SpawnRefused = "RYE1132", Limit;
    /// A thread is suspended.
    ThreadSuspended = "RYE1133", Limit;
    /// A thread ended badly.
    ThreadFailed = "RYE1134", Failed;
    /// A thread was cancelled.
    ThreadCancelled = "RYE1135", Cancelled;
    /// There is no process to run a thread in the background.
    NoBackground = "RYE1136", Failed;
    /// A transcript is not what its thread wrote.
    TranscriptTampered = "RYE1141", Integrity;
    /// The configuration of threads is not valid.
    ThreadConfig = "RYE1101", Validation;
    /// The store of threads is damaged.
    StoreDamaged = "RYE1111", Integrity;
    /// A newer rye wrote the store of threads.
    StoreNewer = "RYE1112", Failed;
    /// What is recorded of a thread is not what was written.
    ThreadForged = "RYE1113", Integrity;
    /// There is no such thread.
    NoThread = "RYE1114", NotFound;
    /// Another process runs the thread.
    ThreadHeld = "RYE1115", Failed;
    /// The store of threads failed.
    StoreFailed = "RYE1116", Failed;
    /// Others can read the secret of threads, or it is none.
    ThreadSecret = "RYE1117", Integrity;
    /// The schema of the ledger cannot be used.
    LedgerSchema = "RYE1118", Validation;
    /// There is no such open question.
    NoQuestion = "RYE1119", NotFound;
    /// No provider or model has the name.
    ModelNotFound = "RYE1151", NotFound;
    /// Several providers serve the model.
    ModelAmbiguous = "RYE1152", Usage;
    /// A provider's key is not set.
    ProviderKeyMissing = "RYE1153", Usage;
    /// Money is limited, and the model has no price.
    PriceUnknown = "RYE1154", Denied;
    /// A provider's file is not valid.
    ProviderInvalid = "RYE1155", Validation;
    /// The store of threads is older than what this user has seen.
    StoreOlder = "RYE1156", Integrity;
    /// The store of threads is missing or empty, beside the folders of its threads.
    StoreLost = "RYE1157", Integrity;
    /// The settings do not say how the store that machines share is reached, or it cannot be used as it is.
    StoreUnusable = "RYE1158", Failed;
    /// A worker does not run what was submitted: it is not what it says, or not allowed there.
    SubmissionRefused = "RYE1159", Denied;
    /// A model does not take a setting of the directive.
    SettingUnsupported = "RYE1161", Validation;
    /// A file cannot be an input.
    FileInputRefused = "RYE1162", Validation;
    /// The project files of a submitted thread, or what it changed in them, are not what may travel.
    CheckoutRefused = "RYE1163", Denied;
    /// Threads are not moved to another store.
    MigrationRefused = "RYE1164", Denied;
    /// A thread waits for a worker, and what calls workers for it did not take it.
    NotHandedOver = "RYE1165", Failed;
}

impl fmt::Display for Code {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

/// A failure, as a user sees it.
#[derive(Clone, Debug)]
pub struct Error {
    /// Its code.
    pub code: Code,
    /// What happened.
    pub message: String,
    /// What to do about it.
    pub hints: Vec<String>,
    /// The item it concerns.
    pub item: Option<String>,
    /// Further facts: `path`, `line`, `problems`, `expected`, `found`.
    pub details: Box<Map<String, Value>>,
}

/// The result of a verb.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// A failure with this code.
    #[must_use]
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), hints: Vec::new(), item: None, details: Box::default() }
    }

    /// The same failure, with a hint.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    /// The same failure, of an item.
    #[must_use]
    pub fn for_item(mut self, item: &ItemRef) -> Self {
        self.item = Some(item.id.to_string());
        self
    }

    /// The same failure, with a fact.
    #[must_use]
    pub fn detail(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.details.insert(key.to_owned(), value.into());
        self
    }

    /// The failure as one object: the same for the command line, for MCP and for hooks. What there is to show beside
    /// it goes in as `data`.
    #[must_use]
    pub fn to_value(&self, data: Option<Value>) -> Value {
        let mut hints = self.hints.clone();
        if hints.is_empty() {
            hints.push(format!("rye explain {}", self.code));
        }
        let mut object = Map::new();
        object.insert("status".to_owned(), "error".into());
        object.insert("error".to_owned(), self.message.as_str().into());
        object.insert("code".to_owned(), self.code.as_str().into());
        object.insert("item_id".to_owned(), self.item.clone().into());
        object.insert("hints".to_owned(), hints.into());
        object.extend(self.details.as_ref().clone());
        if let Some(data) = data {
            object.insert("data".to_owned(), data);
        }
        Value::Object(object)
    }

    /// The refusal to sign an item that is not valid: every problem at once.
    #[must_use]
    pub fn invalid(item: &ItemRef, path: &Path, problems: &[Diagnostic]) -> Self {
        let count = rye_item::text::counted(problems.len(), "problem");
        let error = Self::new(Code::Invalid, format!("{item} is not valid: {count}"))
            .for_item(item)
            .detail("path", path.display().to_string())
            .detail("problems", serde_json::to_value(problems).unwrap_or_default())
            .hint("fix every problem, then sign it again; nothing was changed");
        match problems.first().and_then(|problem| problem.position) {
            Some(position) => error.detail("line", position.line).detail("column", position.column),
            None => error,
        }
    }

    /// A failure to read or write a file.
    #[must_use]
    pub fn io(error: &std::io::Error) -> Self {
        if let Some(link) = lillux::file::LinkedFolder::of(error) {
            return Self::linked_folder(link);
        }
        let failure = Self::new(Code::Io, error.to_string());
        match error.kind() {
            std::io::ErrorKind::PermissionDenied => failure.hint("check who owns the file and its folder"),
            std::io::ErrorKind::StorageFull
            | std::io::ErrorKind::FileTooLarge
            | std::io::ErrorKind::QuotaExceeded => failure.hint("free some disk space; nothing was changed"),
            _ => failure,
        }
    }

    /// A failure to read a file within bounds.
    #[must_use]
    pub fn read(error: &ReadError) -> Self {
        match error {
            ReadError::TooLarge { path, limit } => Self::new(Code::TooLarge, error.to_string())
                .detail("path", path.display().to_string())
                .detail("expected", format!("at most {limit} bytes"))
                .hint(
                    "an item is text for people and models; keep data elsewhere, or raise `items.max_bytes`",
                ),
            ReadError::Escapes { path, .. } => Self::new(Code::LinkEscapes, error.to_string())
                .detail("path", path.display().to_string())
                .hint("put the file itself into the space"),
            ReadError::NotAFile { path } => Self::new(Code::NotAnItem, error.to_string())
                .detail("path", path.display().to_string())
                .hint("use a regular file, not a folder, pipe or device"),
            ReadError::Io(error) if error.kind() == std::io::ErrorKind::NotFound => {
                Self::new(Code::PathNotFound, error.to_string())
                    .hint("paths are relative to the current folder")
            }
            ReadError::Io(error) => Self::io(error),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} ({})", self.message, self.code)
    }
}

impl std::error::Error for Error {}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        Self::io(&error)
    }
}

impl From<LocateError> for Error {
    fn from(error: LocateError) -> Self {
        match &error {
            LocateError::NotFound(item) => Self::new(Code::NotFound, error.to_string())
                .for_item(item)
                .hint(format!("look for it: rye search {}", item.id.name())),
            LocateError::Unreadable { item, source, .. } => Self::read(source).for_item(item),
        }
    }
}

impl From<lillux::lockfile::LockfileError> for Error {
    fn from(error: lillux::lockfile::LockfileError) -> Self {
        use lillux::lockfile::LockfileError;
        let failure = Self::new(Code::LockCorrupt, rye_item::text::one_line(&error.to_string()));
        let path = match &error {
            LockfileError::Corrupt { path, .. } => Some(path),
            LockfileError::Read(
                ReadError::TooLarge { path, .. }
                | ReadError::NotAFile { path }
                | ReadError::Escapes { path, .. },
            ) => Some(path),
            LockfileError::Read(ReadError::Io(_)) => None,
        };
        let failure = match path {
            Some(path) => failure.detail("path", path.display().to_string()),
            None => failure,
        };
        let failure = match &error {
            LockfileError::Corrupt { field: Some(field), .. } => failure.detail("field", field.as_str()),
            LockfileError::Corrupt { field: None, .. } | LockfileError::Read(_) => failure,
        };
        failure.hint("restore it from version control or a backup; if you have neither, read the tool, then pin it as it is: rye lock update ID")
    }
}

impl From<rye_item::InvalidId> for Error {
    fn from(error: rye_item::InvalidId) -> Self {
        let failure = Self::new(Code::InvalidId, error.to_string());
        match error.id_of_path() {
            Some(id) => failure.hint(format!("did you mean `{id}`?")).hint(error.hint()),
            None => failure.hint(error.hint()),
        }
    }
}

impl From<rye_item::id::UnknownItemType> for Error {
    fn from(error: rye_item::id::UnknownItemType) -> Self {
        Self::new(Code::UnknownType, error.to_string()).hint("types are: directive, tool, knowledge, config")
    }
}

impl From<rye_item::id::ItemRefError> for Error {
    fn from(error: rye_item::id::ItemRefError) -> Self {
        use rye_item::id::ItemRefError;
        match error {
            ItemRefError::UnknownType(error) => error.into(),
            ItemRefError::InvalidId(error) => error.into(),
            ItemRefError::MissingType(_) => Self::new(Code::UnknownType, error.to_string())
                .hint("write TYPE ID, or type:id, such as tool:team/deploy"),
        }
    }
}

impl From<OwnKeyError> for Error {
    fn from(error: OwnKeyError) -> Self {
        let message = error.to_string();
        match error {
            OwnKeyError::Missing { .. } => {
                Self::new(Code::NoKey, message).hint("make one: rye init, or rye keys generate")
            }
            OwnKeyError::TooPermissive { path, wanted, .. } => Self::new(Code::LooseKey, message)
                .detail("path", path.display().to_string())
                .hint(format!(
                    "if nothing else has read it: chmod {wanted:o} {}",
                    shell_word(&path.display().to_string())
                ))
                .hint("otherwise: rye keys revoke it, and generate a new one"),
            OwnKeyError::Locked { .. } => Self::new(Code::KeyLocked, message)
                .hint("give its passphrase at a terminal, or in a file that RYE_KEY_PASSPHRASE_FILE names"),
            OwnKeyError::WrongPassphrase { .. } => Self::new(Code::KeyLocked, message)
                .hint("try again; without the passphrase the key is lost: docs/keys.md says what to do then"),
            OwnKeyError::Invalid { path, .. } => Self::new(Code::InvalidKey, message)
                .detail("path", path.display().to_string())
                .hint("restore it from a backup, or remove it and run: rye keys generate"),
            OwnKeyError::Exists { .. } => Self::new(Code::KeyExists, message)
                .hint("keep using it; to replace it, revoke it and move its folder away first"),
            OwnKeyError::Read(error) => Self::read(&error),
        }
    }
}

impl From<rye_space::keys::DocumentError> for Error {
    fn from(error: rye_space::keys::DocumentError) -> Self {
        match &error {
            rye_space::keys::DocumentError::Read(source) => Self::read(source),
            rye_space::keys::DocumentError::Identity(IdentityError::Changed | IdentityError::Forged) => {
                Self::new(Code::Tampered, error.to_string())
                    .hint("ask the key's owner for it again: rye keys export")
            }
            rye_space::keys::DocumentError::Identity(_) | rye_space::keys::DocumentError::Misnamed { .. } => {
                Self::new(Code::InvalidIdentity, error.to_string())
                    .hint("give a public key in PEM, or an identity document (`<fingerprint>.toml`)")
            }
        }
    }
}
