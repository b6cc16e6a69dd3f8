//! `file_system.glob`: files by the pattern of their path, the last changed first.

use std::path::{Path, PathBuf};

use lillux::beneath::Kind;
use rye_exec::{NativeCall, NativeError, NativeTool};
use serde_json::{Value, json};

use super::search::{below, climbs, matcher, note, options, plain_folders};
use crate::parameters;
use crate::place::Project;
use crate::show::path_text;
use crate::walk::{Flow, Walked, walk};

const DEFAULT_LIMIT: usize = 200;
const MOST_LIMIT: usize = 2000;
/// How many hits are remembered for sorting.
const MOST_HITS: usize = 100_000;

/// Finds files.
#[derive(Clone, Copy, Debug)]
pub struct Glob;

impl NativeTool for Glob {
    fn name(&self) -> &'static str {
        "file_system.glob"
    }

    fn may_take_long(&self) -> bool {
        true
    }

    fn call(&self, call: &NativeCall<'_>) -> Result<Value, NativeError> {
        let project = Project::open(call)?;
        let pattern = parameters::text(call.parameters, "pattern")?;
        let path = parameters::optional_text(call.parameters, "path")?.unwrap_or("");
        let limit = parameters::limit(call.parameters, "limit", DEFAULT_LIMIT, MOST_LIMIT)?;
        let options = options(call, &format!("{path}/{pattern}"))?;
        if pattern.is_empty() || climbs(pattern) {
            return Err(NativeError::denied(
                "the pattern must stay inside the project: `..` is not allowed in it",
            ));
        }
        let (folders, rest) = if let Some(below_root) = pattern.strip_prefix('/') {
            let (folders, rest) = plain_folders(below_root);
            (project.relative(&path_text(&Path::new("/").join(folders)))?, rest)
        } else {
            let (folders, rest) = plain_folders(pattern);
            (project.relative(path)?.join(folders), rest)
        };
        let matcher = matcher(rest.strip_prefix("./").unwrap_or(rest))?;
        let mut hits: Vec<((i64, u64), PathBuf)> = Vec::new();
        let mut walked = Walked::default();
        match project.folder(&folders) {
            // A pattern that names no folder finds nothing; a `path` that is not there is a mistake.
            Err(error) if error.is_denied() || project.folder(&project.relative(path)?).is_err() => {
                return Err(error);
            }
            Err(_) => {}
            Ok(start) => {
                let base = start.path().strip_prefix(project.root.path()).unwrap_or(Path::new("")).to_owned();
                walked = walk(&project, &start, options, call.cancel, &mut |found| {
                    if found.kind == Kind::Folder || !matcher.is_match(below(found.path, &base)) {
                        return Ok(Flow::Continue);
                    }
                    if let Ok(Some(status)) = found.folder.status(found.name) {
                        hits.push((status.modified, found.path.to_owned()));
                    }
                    Ok(if hits.len() >= MOST_HITS { Flow::Stop } else { Flow::Continue })
                })?;
            }
        }
        hits.sort_unstable_by(|left, right| right.0.cmp(&left.0).then_with(|| left.1.cmp(&right.1)));
        let total = hits.len();
        let files: Vec<String> = hits.iter().take(limit).map(|(_, path)| path_text(path)).collect();
        let mut answer = json!({
            "pattern": pattern,
            "files": files,
            "count": files.len(),
            "total": total,
            "truncated": total > limit || walked.is_cut,
            "sorted_by": "modification time, newest first",
        });
        if let Some(note) = note(walked) {
            answer["note"] = json!(note);
        }
        Ok(answer)
    }
}
