//! `trust`: approve a project folder, or take that back.

use std::path::{Path, PathBuf};

use rye_space::approvals::Approvals;
use rye_space::{Roots, ownership, roots};
use serde::Serialize;

use crate::engine::Engine;
use crate::error::{Code, Error, Result};

/// What an approval allows.
pub const APPROVAL_EFFECTS: [&str; 4] = [
    "its `.env` may set variables for its own tools",
    "its local interpreters (`.venv`, `node_modules`) may run its own tools",
    "its config, if a key you trust signed it, may change settings that are not marked safe",
    "development mode, if your signed config lists it",
];

/// How to approve a project.
pub(crate) const APPROVAL_HINT: &str = "approve the project: rye join (shows who signed it), or rye trust";

/// The answer of a trust.
#[derive(Clone, Debug, Serialize)]
pub struct TrustResponse {
    /// The project's real path.
    pub project: String,
    /// Whether it is approved now.
    pub approved: bool,
    /// Whether that changed anything.
    pub changed: bool,
    /// Other users it belongs to, who are on record now.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub owners: Vec<u32>,
    /// The record.
    #[serde(serialize_with = "rye_space::serde_path::path")]
    pub record: PathBuf,
}

/// Refuses a folder that could not be opened as a project, for any owner.
///
/// # Errors
/// When its `.ai` leads elsewhere, or it holds the user space or the key folder.
pub fn check(engine: &Engine, folder: &Path) -> Result<()> {
    let roots = Roots { project: Some(folder.to_owned()), ..engine.workspace.roots.clone() };
    let is_user_space = roots::is_same_folder(folder, &roots.user);
    if !is_user_space && roots.project_ai().is_some_and(|ai| ai.exists()) {
        roots.check().map_err(rye_space::WorkspaceError::from)?;
    }
    Ok(())
}

/// Approves `folder`, or takes its approval back.
///
/// # Errors
/// When it is not a folder, you have no key, or the record is damaged.
pub fn trust(engine: &Engine, folder: &Path, approve: bool) -> Result<TrustResponse> {
    if approve && !folder.is_dir() {
        return Err(Error::new(Code::PathNotFound, format!("`{}` is not a folder", folder.display()))
            .hint("name the folder of a project"));
    }
    let real = roots::canonicalize_existing(folder);
    if approve && real == roots::canonicalize_existing(&engine.workspace.roots.user) {
        return Err(Error::new(Code::InvalidArgument, "the user space is not a project")
            .hint("name the folder of a project"));
    }
    let project = real
        .to_str()
        .ok_or_else(|| {
            Error::new(Code::InvalidArgument, "the folder's path is not UTF-8").hint("rename the folder")
        })?
        .to_owned();
    let user_ai = engine.workspace.roots.user_ai();
    check_not_damaged(&engine.workspace.approvals)?;
    let record = user_ai.join(rye_space::approvals::PROJECTS_FILE);
    let owners = if approve { ownership::owners_to_record(&real) } else { Vec::new() };
    let is_recorded = |approvals: &Approvals| {
        approvals.has_project(Some(&project)) == approve && approvals.owners_of(Some(&project)) == owners
    };
    if is_recorded(&engine.workspace.approvals) {
        return Ok(TrustResponse { project, approved: approve, changed: false, owners, record });
    }
    let (key, now) = (engine.signing_key()?, engine.now()?);
    let (mut approvals, _lock) = Approvals::read_locked(&user_ai, &engine.workspace.keys)?;
    check_not_damaged(&approvals)?;
    if is_recorded(&approvals) {
        return Ok(TrustResponse { project, approved: approve, changed: false, owners, record });
    }
    approvals.projects.retain(|known| *known != project);
    approvals.owners.remove(&project);
    if approve {
        approvals.projects.push(project.clone());
        approvals.projects.sort();
        approvals.owners.insert(project.clone(), owners.clone());
    }
    let record = approvals.write_projects(&user_ai, &key, &now)?;
    Ok(TrustResponse { project, approved: approve, changed: true, owners, record })
}

/// Refuses to overwrite records that were changed outside rye.
pub(crate) fn check_not_damaged(approvals: &Approvals) -> Result<()> {
    match approvals.problems.first() {
        None => Ok(()),
        Some(problem) => Err(Error::new(Code::DamagedRecord, problem.clone())
            .hint("remove that record if you did not change it, then approve its entries again")),
    }
}
