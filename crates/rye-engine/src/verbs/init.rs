//! `init`: a key, a place for items, the own identity, three signed examples, an approved project. Running it again changes
//! nothing.

use std::path::{Path, PathBuf};

use lillux::file::{self, FileMode};
use lillux::{Fingerprint, SecretKey};
use rye_item::{ItemId, ItemRef, ItemType, Space};
use rye_space::{AI_FOLDER, Roots, roots};
use rye_trust::Identity;
use serde::Serialize;

use crate::engine::{Engine, EngineOptions, HostEnvironment, WallClock};
use crate::error::{Code, Error, Result};
use crate::verbs::new_item::{self, ToolLanguage};
use crate::verbs::{join, keys as key_verbs, sign, trust};

/// The tool among the examples.
const EXAMPLE_TOOL: &str = "examples/hello";

/// The other examples.
const EXAMPLES: [(ItemType, &str, &str, &str); 2] = [
    (ItemType::Directive, "examples/greet", ".md", include_str!("../../examples/greet.md")),
    (ItemType::Knowledge, "examples/style", ".md", include_str!("../../examples/style.md")),
];

/// Signed bytes must not change on their way through git.
const GIT_ATTRIBUTES: &str = "# Signatures cover every byte: keep line endings as they are.\n* -text\n";

/// Threads are this machine's: their database and transcripts are not for others.
const GIT_IGNORE: &str = "# Written by rye: threads stay on this machine.\n/threads/\n";
/// The largest `.gitignore` that is added to.
const MAX_GITIGNORE_BYTES: u64 = 1 << 20;

/// The answer of an init.
#[derive(Clone, Debug, Serialize)]
pub struct InitResponse {
    /// The own key.
    pub fingerprint: Fingerprint,
    /// Whether it was made just now.
    pub key_created: bool,
    /// The project, unless this is the user space itself.
    #[serde(serialize_with = "rye_space::serde_path::option")]
    pub project: Option<PathBuf>,
    /// Files that were made.
    #[serde(serialize_with = "rye_space::serde_path::list")]
    pub created: Vec<PathBuf>,
    /// Files that were there and stay as they are.
    #[serde(serialize_with = "rye_space::serde_path::list")]
    pub kept: Vec<PathBuf>,
    /// Whether the project is approved now.
    pub approved: bool,
    /// The own identity in the project, for others to trust.
    #[serde(serialize_with = "rye_space::serde_path::option")]
    pub identity: Option<PathBuf>,
    /// Whether the project has identities of others that are not trusted in it.
    pub has_other_identities: bool,
    /// Whether others made the project and it was not approved: then nothing in it was changed.
    pub made_by_others: bool,
}

/// Makes everything a new user needs in `folder`.
///
/// # Errors
/// When something cannot be made; what was made before stays and is completed by the next run.
pub fn init(
    roots: &Roots,
    folder: &Path,
    owner: &str,
    clock: fn() -> Box<dyn WallClock>,
) -> Result<InitResponse> {
    init_with_host(roots, folder, owner, clock, &HostEnvironment::default())
}

/// As [`init`], with what is around the process: a key that is encrypted needs its passphrase.
///
/// # Errors
/// As [`init`].
pub fn init_with_host(
    roots: &Roots,
    folder: &Path,
    owner: &str,
    clock: fn() -> Box<dyn WallClock>,
    host: &HostEnvironment,
) -> Result<InitResponse> {
    let is_user_space = roots::canonicalize_existing(folder) == roots::canonicalize_existing(&roots.user);
    let project = (!is_user_space).then(|| folder.to_owned());
    let roots = Roots { project: project.clone(), ..roots.clone() };
    roots.check().map_err(rye_space::WorkspaceError::from)?;
    if project.is_some() && roots.project_key().is_none() {
        return Err(
            Error::new(Code::InvalidArgument, "the folder's path is not UTF-8").hint("rename the folder")
        );
    }
    // The account's name may be anything; a name that cannot be shown as it is names nothing.
    let owner = if rye_trust::check_owner_name(owner).is_ok() { owner } else { "local" };
    let base = if is_user_space { &roots.user } else { folder };
    let ai = base.join(AI_FOLDER);
    // Before anything is made: a project that came with links must not have files written where they lead.
    for item_type in ItemType::ALL.into_iter().filter(|_| ai.is_dir()) {
        file::folder_beneath(&ai, &Path::new(item_type.folder()).join("examples"))?;
    }
    let key_folder = roots.user_ai().join("config/keys");
    file::create_dirs(&key_folder, true)?;
    // Two that begin at once make one key.
    let _lock = file::Lock::acquire_dir(&key_folder)?;
    let options = || EngineOptions { host: host.clone(), ..EngineOptions::default() };
    let open = |roots: &Roots| Engine::open(roots.clone(), options(), clock());
    // The project itself is opened once it is approved: it may belong to another user, who is on record then.
    let without_project = Roots { project: None, ..roots.clone() };
    let engine = open(&without_project)?;

    let (extension, text) = example_tool(&engine, &ai)?;
    let mut examples = vec![(ItemType::Tool, EXAMPLE_TOOL, extension, text)];
    examples
        .extend(EXAMPLES.map(|(item_type, id, extension, text)| (item_type, id, extension, text.to_owned())));
    let mut created = Vec::new();
    let mut existing = Vec::new();
    let (fingerprint, key_created) = match own_signing_key(&engine) {
        Ok(key) => {
            let fingerprint = key.public_key().fingerprint();
            if engine.workspace.own_key.as_ref() != Some(&key.public_key()) {
                created.push(rye_space::keys::store_public_key(&roots.signing_keys, &key.public_key())?);
            }
            if !engine.workspace.keys.is_trusted_everywhere(&key.public_key()) {
                created.push(key_verbs::write_own_document(&engine, &key, owner)?);
            }
            (fingerprint, false)
        }
        Err(error) if error.code == Code::NoKey => {
            let generated = key_verbs::generate(&engine, owner)?;
            created.push(generated.document);
            (generated.fingerprint, true)
        }
        Err(error) => return Err(error),
    };
    // What it allows is shown by `rye join`, and agreed to there.
    if !is_user_space && ai.is_dir() && is_made_by_others(&roots, &options(), clock) {
        return Ok(InitResponse {
            fingerprint,
            key_created,
            project,
            created,
            kept: existing,
            approved: false,
            identity: None,
            has_other_identities: true,
            made_by_others: true,
        });
    }
    if !is_user_space {
        trust::trust(&open(&without_project)?, folder, true)?;
    }
    file::create_dirs(&ai, false)?;
    for item_type in ItemType::ALL {
        file::create_folders_beneath(&ai, Path::new(item_type.folder()), false)?;
    }
    record_path(
        write_if_absent(&ai, Path::new(".gitattributes"), GIT_ATTRIBUTES)?,
        &mut created,
        &mut existing,
    );
    record_path(ignore_threads(&ai)?, &mut created, &mut existing);
    if !is_user_space {
        for (item_type, id, extension, text) in &examples {
            let relative = PathBuf::from(format!("{}/{id}{extension}", item_type.folder()));
            record_path(write_if_absent(&ai, &relative, text)?, &mut created, &mut existing);
        }
    }
    // Opened again: the key and its document count from here on.
    let engine = open(&roots)?;
    if !is_user_space {
        for (item_type, id, extension, text) in &examples {
            let path = ai.join(format!("{}/{id}{extension}", item_type.folder()));
            // One that was killed leaves examples without a signature.
            if created.contains(&path) || is_unsigned_example(&path, text) {
                sign::sign_item(&engine, &ItemRef::new(*item_type, ItemId::new(*id)?), None)?;
            }
        }
    }
    let mut identity = None;
    if !is_user_space {
        match key_verbs::publish(&engine, None) {
            Ok(published) => {
                record_path((published.path.clone(), published.changed), &mut created, &mut existing);
                identity = Some(published.path);
            }
            // Another key has the name: `keys publish --owner` chooses one.
            Err(error) if error.code == Code::InvalidArgument => {}
            Err(error) => return Err(error),
        }
    }
    let is_trusted = |identity: &Identity| {
        engine.workspace.keys.find(&identity.fingerprint, &Space::Project).is_some()
            || engine.workspace.keys.revocation(&identity.fingerprint).is_some()
    };
    let is_new_to_user = |found: &rye_space::keys::IdentityFile| {
        Some(&found.path) != identity.as_ref() && !found.identity.as_ref().is_ok_and(is_trusted)
    };
    let has_other_identities =
        !is_user_space && engine.workspace.project_documents().iter().any(is_new_to_user);
    Ok(InitResponse {
        fingerprint,
        key_created,
        project,
        created,
        kept: existing,
        approved: !is_user_space,
        identity,
        has_other_identities,
        made_by_others: false,
    })
}

/// Whether a project that is not approved was made by others. One that cannot be opened belongs to another user of this
/// machine; approving it records who.
fn is_made_by_others(roots: &Roots, options: &EngineOptions, clock: fn() -> Box<dyn WallClock>) -> bool {
    Engine::open(roots.clone(), options.clone(), clock())
        .is_ok_and(|engine| !engine.workspace.is_project_approved && join::has_other_signers(&engine))
}

/// The example of a tool, in a language that runs here: the extension and the text. One that is there keeps its language.
fn example_tool(engine: &Engine, ai: &Path) -> Result<(&'static str, String)> {
    let item = ItemRef::new(ItemType::Tool, ItemId::new(EXAMPLE_TOOL)?);
    let python = || (".py", include_str!("../../examples/hello.py").to_owned());
    let shell = || (".yaml", include_str!("../../examples/hello.yaml").to_owned());
    let in_language = |language: ToolLanguage| match language {
        ToolLanguage::Python => python(),
        ToolLanguage::Js | ToolLanguage::Ts | ToolLanguage::Bash => {
            (language.extension(), new_item::fill(language.template(), &item, "rye init"))
        }
    };
    let languages = [ToolLanguage::Python, ToolLanguage::Js, ToolLanguage::Bash];
    let exists = |extension: &str| {
        let path = format!("{}/{EXAMPLE_TOOL}{extension}", ItemType::Tool.folder());
        ai.join(path).symlink_metadata().is_ok()
    };
    if let Some(language) = languages.into_iter().find(|language| exists(language.extension())) {
        return Ok(in_language(language));
    }
    if exists(shell().0) {
        return Ok(shell());
    }
    // A caller that does not say what is around it gets the usual one.
    if !engine.host.variables.contains_key("PATH") {
        return Ok(python());
    }
    let is_present = |language: &ToolLanguage| new_item::is_present(engine, *language);
    Ok(languages.into_iter().find(is_present).map_or_else(shell, in_language))
}

/// Whether a file is an example as it is before it is signed.
fn is_unsigned_example(path: &Path, text: &str) -> bool {
    let limit = u64::try_from(text.len()).unwrap_or(u64::MAX);
    file::read_bounded(path, limit).is_ok_and(|(bytes, _)| bytes == text.as_bytes())
}

/// The own key, whether its document is there yet or not.
fn own_signing_key(engine: &Engine) -> Result<SecretKey> {
    match engine.signing_key() {
        Err(error) if error.code == Code::Untrusted => engine.own_secret_key(),
        other => other,
    }
}

fn record_path((path, is_new): (PathBuf, bool), created: &mut Vec<PathBuf>, existing: &mut Vec<PathBuf>) {
    if is_new { created.push(path) } else { existing.push(path) }
}

/// Keeps `.ai/threads` out of git. What stands in the file stays; a line is added at its end if none speaks of threads.
fn ignore_threads(ai: &Path) -> Result<(PathBuf, bool)> {
    let path = ai.join(".gitignore");
    let (old, _) = match file::read_beneath(ai, Path::new(".gitignore"), MAX_GITIGNORE_BYTES) {
        Ok(read) => read,
        Err(error) if error.is_absent() => return write_if_absent(ai, Path::new(".gitignore"), GIT_IGNORE),
        // A link, or something that is not a list of a person: theirs to look after.
        Err(_) => return Ok((path, false)),
    };
    let mentions_threads = |line: &[u8]| {
        let line = String::from_utf8_lossy(line);
        matches!(line.trim().trim_start_matches('!').trim_matches('/'), "threads" | "threads/*" | "*" | "**")
    };
    if old.split(|byte| *byte == b'\n').any(mentions_threads) {
        return Ok((path, false));
    }
    let separator: &[u8] = if old.is_empty() || old.ends_with(b"\n") { b"" } else { b"\n" };
    file::write_atomic(&path, &[&old, separator, GIT_IGNORE.as_bytes()].concat(), FileMode::Preserve)?;
    Ok((path, true))
}

fn write_if_absent(ai: &Path, relative: &Path, text: &str) -> Result<(PathBuf, bool)> {
    file::create_folders_beneath(ai, relative.parent().unwrap_or(Path::new("")), false)?;
    let path = ai.join(relative);
    match file::write_new(&path, text.as_bytes(), FileMode::Preserve) {
        Ok(()) => Ok((path, true)),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok((path, false)),
        Err(error) => Err(error.into()),
    }
}
