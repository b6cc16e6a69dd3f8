//! What is seen of a project's programs before they are recorded: which are new or changed, and what each of them is.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use lillux::Digest;
use rye_exec::environment::{self, ProgramParts};
use rye_item::text::one_line;
use rye_space::accounts::Accounts;
use rye_space::programs::{self, ProgramRecord, ProgramRecords};
use rye_space::roots;
use rye_trust::signature::Timestamp;
use serde::Serialize;

use super::{ProgramRecordReport, collect_parts, record_key};
use crate::engine::Engine;
use crate::error::{Code, Error, Result};

/// How many files of a program are named.
const MAX_NAMED_FILES: usize = 20;
/// How much of a digest is shown.
const SHORT_DIGEST: usize = 16;
/// Others may write to a file or folder with this mode.
const WRITABLE_BY_ALL: u32 = 0o002;

/// A program of the project that is not recorded as it is now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NewProgram {
    /// The program, below the project.
    pub path: String,
    /// Whether another one was recorded under this name.
    pub is_change: bool,
    /// The file at the end of its links.
    #[serde(serialize_with = "rye_space::serde_path::path")]
    pub real_path: PathBuf,
    /// Its file is outside the project and only root can write there.
    pub is_system: bool,
    /// It is a folder of programs.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_folder: bool,
    /// Its file lies in the project: it is not a link to an interpreter elsewhere.
    pub is_in_project: bool,
    /// The beginning of the digest of its file.
    pub digest: String,
    /// Who owns its file.
    pub owner: String,
    /// When its file was last changed.
    pub modified: Option<String>,
    /// How many files it loads by itself when it starts.
    pub startup_files: usize,
    /// The first of its files that are new or changed since it was recorded: those that would run in place of a program of
    /// the system, then by name. Below the project where they lie in it.
    #[serde(rename = "latest_startup_files")]
    pub changed_files: Vec<String>,
    /// How many files are new or changed.
    pub changed_count: usize,
    /// How many of them would run in place of a program of the system.
    pub replaced_programs: usize,
}

impl NewProgram {
    /// What it is, in words.
    #[must_use]
    pub fn kind(&self) -> String {
        let real = one_line(&self.real_path.display().to_string());
        if self.is_folder {
            return format!(
                "a folder of {} programs that may come first on the PATH of tools",
                self.startup_files
            );
        }
        match (self.is_in_project, self.is_system) {
            (true, _) => format!(
                "its file `{real}` is in the project, where tools can write: it is not a link to an interpreter \
                 of the system"
            ),
            (false, true) => format!("a link to `{real}` of the system"),
            (false, false) => {
                format!("a link to `{real}`, outside the project and not an interpreter of the system")
            }
        }
    }

    fn new(path: &str, project: &Path, program: &ReviewedProgram<'_>) -> Result<Self> {
        let ReviewedProgram { parts, changed, system_path, is_change } = *program;
        let real_path = parts.target().to_owned();
        let is_folder = real_path.is_dir();
        let io_error = |message: String| Error::new(Code::Io, message);
        let digest = if is_folder {
            parts.digest().map_err(|error| io_error(error.to_string()))?
        } else {
            let read = lillux::file::read_bounded(&real_path, MAX_PROGRAM_BYTES);
            Digest::of(&read.map_err(|error| io_error(error.to_string()))?.0)
        };
        let metadata = parts.target_metadata();
        let owner = metadata.map(MetadataExt::uid);
        let is_in_project = real_path.starts_with(project);
        // Not by time: a tool sets that as it likes.
        let replaces = |path: &Path| {
            let name = path.file_name().and_then(|name| name.to_str());
            is_folder
                && path.starts_with(&real_path)
                && name.is_some_and(|name| environment::find_on_path(name, system_path).is_some())
        };
        let mut files: Vec<(bool, &Path)> = changed
            .iter()
            .filter(|path| **path != real_path)
            .map(|path| (!replaces(path), path.as_path()))
            .collect();
        files.sort();
        let replaced_programs = files.iter().filter(|(is_other, _)| !is_other).count();
        let named = files.iter().take(MAX_NAMED_FILES).map(|(is_other, path)| {
            let below = path.strip_prefix(project).unwrap_or(path);
            let note = if *is_other { "" } else { " (runs in place of the system's)" };
            format!("{}{note}", one_line(&below.display().to_string()))
        });
        let changed_files = named.collect();
        Ok(Self {
            path: path.to_owned(),
            is_change,
            is_system: !is_in_project && is_of_system(&real_path),
            is_in_project,
            is_folder,
            digest: digest.to_hex().chars().take(SHORT_DIGEST).collect(),
            owner: owner.map_or_else(|| "unknown".to_owned(), owner_name),
            modified: metadata
                .and_then(|metadata| Timestamp::from_unix(u64::try_from(metadata.mtime()).ok()?))
                .map(|moment| moment.to_string()),
            startup_files: parts.startup_files().count(),
            changed_files,
            changed_count: files.len(),
            replaced_programs,
            real_path,
        })
    }
}

/// A program as it is now, beside what was recorded of it.
#[derive(Clone, Copy)]
struct ReviewedProgram<'a> {
    parts: &'a ProgramParts,
    /// Parts that are new or changed since it was recorded.
    changed: &'a [PathBuf],
    /// Where programs are found that are not the project's.
    system_path: &'a str,
    /// Whether another one was recorded under this name.
    is_change: bool,
}

/// The largest program that is read.
const MAX_PROGRAM_BYTES: u64 = 1 << 28;

fn owner_name(number: u32) -> String {
    match Accounts::read().name_of(number) {
        Some(name) => format!("{} (uid {number})", one_line(name)),
        None => format!("uid {number}"),
    }
}

/// Whether a file and all folders above it belong to root, and others cannot write to them.
fn is_of_system(file: &Path) -> bool {
    file.ancestors().all(|path| {
        fs_err::metadata(path)
            .is_ok_and(|metadata| metadata.uid() == 0 && metadata.mode() & WRITABLE_BY_ALL == 0)
    })
}

/// Programs of a project as they are now, and what to record of them.
#[derive(Clone, Debug, Default)]
pub struct ProgramReview {
    /// Those that are not recorded as they are: new ones and changed ones. The user sees them before they are recorded.
    pub new: Vec<NewProgram>,
    recorded: ProgramRecordReport,
    records: Vec<ProgramRecord>,
    listings: Vec<String>,
}

impl ProgramReview {
    /// Whether there is nothing that the user has not seen before.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.new.is_empty()
    }

    /// Records the programs as they were when they were looked at.
    ///
    /// # Errors
    /// When the record is damaged or cannot be written.
    pub fn record(self, engine: &Engine) -> Result<ProgramRecordReport> {
        if self.is_known() && self.records.is_empty() {
            return Ok(self.recorded);
        }
        let user_ai = engine.workspace.roots.user_ai();
        let known = ProgramRecords::read(&user_ai, &engine.workspace.keys);
        let is_listed = |record: &ProgramRecord| programs::read_listing(&user_ai, record).is_some();
        let is_kept = |record: &ProgramRecord| known.records.contains(record) && is_listed(record);
        if known.problem.is_none() && self.records.iter().all(is_kept) {
            return Ok(self.recorded);
        }
        let (key, now) = (engine.signing_key()?, engine.now()?);
        let (mut records, _lock) = ProgramRecords::read_locked(&user_ai, &engine.workspace.keys)?;
        refuse_damaged(&records)?;
        let is_replaced = |old: &ProgramRecord| {
            self.records.iter().any(|record| record.project == old.project && record.path == old.path)
        };
        records.records.retain(|old| !is_replaced(old));
        records.records.extend(self.records);
        records
            .records
            .sort_by(|left, right| (&left.project, &left.path).cmp(&(&right.project, &right.path)));
        records.write(&user_ai, &key, &now)?;
        programs::write_listings(&user_ai, &records, &self.listings)?;
        Ok(self.recorded)
    }

    /// What to say if the programs are not recorded because the user did not agree.
    #[must_use]
    pub fn without_consent(self) -> ProgramRecordReport {
        let names =
            self.new.iter().map(|program| format!("`{}`: you did not agree", one_line(&program.path)));
        ProgramRecordReport { programs: Vec::new(), skipped: names.chain(self.recorded.skipped).collect() }
    }
}

fn refuse_damaged(records: &ProgramRecords) -> Result<()> {
    let Some(problem) = &records.problem else { return Ok(()) };
    let hint = "remove that record if you did not change it, then approve the projects again: rye trust DIR";
    Err(Error::new(Code::DamagedRecord, problem.clone()).hint(hint))
}

/// Looks at these programs of the project `folder`.
pub(super) fn review(engine: &Engine, folder: &Path, candidates: &[PathBuf]) -> Result<ProgramReview> {
    let mut review = ProgramReview::default();
    let real = roots::canonicalize_existing(folder);
    let Some(project) = real.to_str().filter(|_| !candidates.is_empty()) else { return Ok(review) };
    let user_ai = engine.workspace.roots.user_ai();
    let known = ProgramRecords::read(&user_ai, &engine.workspace.keys);
    refuse_damaged(&known)?;
    let path_variable = engine.host.variables.get("PATH").map(String::as_str).unwrap_or_default();
    let system_path = super::search_path(engine, path_variable);
    for program in candidates {
        let Some(path) = record_key(folder, program) else { continue };
        let parts =
            match collect_parts(engine, program, folder).and_then(|parts| Ok((parts.listing()?, parts))) {
                Ok(parts) => parts,
                Err(error) => {
                    review.recorded.skipped.push(format!("`{}`: {error}", one_line(&path)));
                    continue;
                }
            };
        let (listing, parts) = parts;
        let digest = Digest::of(listing.as_bytes());
        let old = known.find(project, &path);
        if old.is_none_or(|old| old.digest != digest) {
            let before = old.and_then(|old| programs::read_listing(&user_ai, old)).unwrap_or_default();
            let changed = environment::changed_parts(&before, &listing);
            let (parts, changed, system_path) = (&parts, &changed[..], system_path.as_str());
            let reviewed = ReviewedProgram { parts, changed, system_path, is_change: old.is_some() };
            review.new.push(NewProgram::new(&path, &real, &reviewed)?);
        }
        review.listings.push(listing);
        review.recorded.programs.push(path.clone());
        review.records.push(ProgramRecord {
            project: project.to_owned(),
            path,
            digest,
            stamp: parts.stamp(),
        });
    }
    Ok(review)
}
