//! `file_system.glob`: files by the pattern of their path, the last changed first.

use std::path::{Path, PathBuf};

use lillux::dir::DirEntryKind;
use rye_exec::{NativeCall, NativeError, NativeTool};
use serde_json::{Value, json};

use super::patterns::{
    build_matcher, has_parent_component, relative_to, split_literal_prefix, walk_note, walk_options,
};
use crate::display::path_text;
use crate::parameters;
use crate::path_access::ProjectAccess;
use crate::walk::{WalkControl, WalkReport, walk};

const DEFAULT_LIMIT: usize = 200;
const MAX_LIMIT: usize = 2000;
/// How many hits are remembered for sorting.
const MAX_HITS: usize = 100_000;

/// Finds files.
#[derive(Clone, Copy, Debug)]
pub struct Glob;

impl NativeTool for Glob {
    fn name(&self) -> &'static str {
        "file_system.glob"
    }

    fn may_block(&self) -> bool {
        true
    }

    fn call(&self, call: &NativeCall<'_>) -> Result<Value, NativeError> {
        let project = ProjectAccess::open(call)?;
        let pattern = parameters::required_text(call.parameters, "pattern")?;
        let path = parameters::optional_text(call.parameters, "path")?.unwrap_or("");
        let limit = parameters::limit(call.parameters, "limit", DEFAULT_LIMIT, MAX_LIMIT)?;
        let options = walk_options(call, &format!("{path}/{pattern}"))?;
        if pattern.is_empty() || has_parent_component(pattern) {
            return Err(NativeError::denied(
                "the pattern must stay inside the project: `..` is not allowed in it",
            ));
        }
        let (folders, rest) = if let Some(below_root) = pattern.strip_prefix('/') {
            let (folders, rest) = split_literal_prefix(below_root);
            (project.to_relative(&path_text(&Path::new("/").join(folders)))?, rest)
        } else {
            let (folders, rest) = split_literal_prefix(pattern);
            (project.to_relative(path)?.join(folders), rest)
        };
        let matcher = build_matcher(rest.strip_prefix("./").unwrap_or(rest))?;
        let mut hits: Vec<((i64, u64), PathBuf)> = Vec::new();
        let mut report = WalkReport::default();
        match project.open_folder(&folders) {
            // A pattern that names no folder finds nothing; a `path` that is not there is a mistake.
            Err(error) if error.is_denied() || project.open_folder(&project.to_relative(path)?).is_err() => {
                return Err(error);
            }
            Err(_) => {}
            Ok(start) => {
                let base = start.path().strip_prefix(project.root.path()).unwrap_or(Path::new("")).to_owned();
                report = walk(&project, &start, options, call.cancel, &mut |entry| {
                    if entry.kind == DirEntryKind::Dir || !matcher.is_match(relative_to(entry.path, &base)) {
                        return Ok(WalkControl::Continue);
                    }
                    if let Ok(Some(status)) = entry.folder.status(entry.name) {
                        hits.push((status.modified, entry.path.to_owned()));
                    }
                    Ok(if hits.len() >= MAX_HITS { WalkControl::Stop } else { WalkControl::Continue })
                })?;
            }
        }
        hits.sort_unstable_by(|left, right| right.0.cmp(&left.0).then_with(|| left.1.cmp(&right.1)));
        let total = hits.len();
        let files: Vec<String> = hits.iter().take(limit).map(|(_, path)| path_text(path)).collect();
        let mut response = json!({
            "pattern": pattern,
            "files": files,
            "count": files.len(),
            "total": total,
            "truncated": total > limit || report.is_truncated,
            "sorted_by": "modification time, newest first",
        });
        if let Some(note) = walk_note(report) {
            response["note"] = json!(note);
        }
        Ok(response)
    }
}
