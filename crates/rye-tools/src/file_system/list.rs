//! `file_system.ls`: what is in a folder.

use std::fmt::Write as _;

use lillux::beneath::Kind;
use rye_exec::{NativeCall, NativeError, NativeTool};
use serde_json::{Value, json};

use super::search::note;
use crate::parameters;
use crate::place::Project;
use crate::show::{path_text, shown};
use crate::walk::{Flow, Options, walk};

const DEFAULT_LIMIT: usize = 300;
const MOST_LIMIT: usize = 2000;
const MOST_DEPTH: usize = 10;

/// Lists a folder.
#[derive(Clone, Copy, Debug)]
pub struct List;

impl NativeTool for List {
    fn name(&self) -> &'static str {
        "file_system.ls"
    }

    fn call(&self, call: &NativeCall<'_>) -> Result<Value, NativeError> {
        let project = Project::open(call)?;
        let given = parameters::optional_text(call.parameters, "path")?.unwrap_or("");
        let relative = project.relative(given)?;
        let limit = parameters::limit(call.parameters, "limit", DEFAULT_LIMIT, MOST_LIMIT)?;
        let options = Options {
            includes_hidden: parameters::boolean(call.parameters, "include_hidden", false)?,
            includes_git: relative.components().any(|name| name.as_os_str() == ".git"),
            respects_ignore: false,
            depth: parameters::limit(call.parameters, "depth", 1, MOST_DEPTH)?,
        };
        let start = project.folder(&relative)?;
        let mut entries = Vec::new();
        let mut picture = format!("{}/\n", shown(&relative));
        let walked = walk(&project, &start, options, call.cancel, &mut |found| {
            if entries.len() >= limit {
                return Ok(Flow::Stop);
            }
            let status = found.folder.status(found.name).ok().flatten();
            let size = status.filter(|status| status.kind == Kind::File).map(|status| status.size);
            let target = match found.kind {
                Kind::Link => found.folder.link_target(found.name).ok(),
                Kind::File | Kind::Folder | Kind::Other => None,
            };
            let kind = match found.kind {
                Kind::File => "file",
                Kind::Folder => "folder",
                Kind::Link => "link",
                Kind::Other => "other",
            };
            let mut entry = json!({"path": path_text(found.path), "type": kind});
            let name = shown(found.name.as_ref());
            // Writing to a string cannot fail.
            let _ = write!(picture, "{:indent$}{name}", "", indent = 2 * found.depth);
            let _ = match (found.kind, size, &target) {
                (Kind::Folder, ..) => writeln!(picture, "/"),
                (_, Some(size), _) => writeln!(picture, "  {size}"),
                (_, _, Some(target)) => writeln!(picture, " -> {}", shown(target)),
                _ => writeln!(picture),
            };
            if let Some(size) = size {
                entry["size"] = json!(size);
            }
            if let Some(target) = target {
                entry["target"] = json!(path_text(&target));
            }
            entries.push(entry);
            Ok(Flow::Continue)
        })?;
        if walked.is_cut {
            picture.push_str("… more is left out\n");
        }
        let mut answer = json!({
            "path": path_text(&relative),
            "count": entries.len(),
            "entries": entries,
            "content": picture,
            "truncated": walked.is_cut,
        });
        if let Some(note) = note(walked) {
            answer["note"] = json!(note);
        }
        Ok(answer)
    }
}
