//! `file_system.ls`: what is in a folder.

use std::fmt::Write as _;

use lillux::dir::DirEntryKind;
use rye_exec::{NativeCall, NativeError, NativeTool};
use serde_json::{Value, json};

use super::patterns::walk_note;
use crate::display::{display_path, path_text};
use crate::parameters;
use crate::path_access::ProjectAccess;
use crate::walk::{WalkControl, WalkOptions, walk};

const DEFAULT_LIMIT: usize = 300;
const MAX_LIMIT: usize = 2000;
const MAX_DEPTH: usize = 10;

/// Lists a folder.
#[derive(Clone, Copy, Debug)]
pub struct List;

impl NativeTool for List {
    fn name(&self) -> &'static str {
        "file_system.ls"
    }

    fn call(&self, call: &NativeCall<'_>) -> Result<Value, NativeError> {
        let project = ProjectAccess::open(call)?;
        let given = parameters::optional_text(call.parameters, "path")?.unwrap_or("");
        let relative = project.to_relative(given)?;
        let limit = parameters::limit(call.parameters, "limit", DEFAULT_LIMIT, MAX_LIMIT)?;
        let options = WalkOptions {
            include_hidden: parameters::boolean(call.parameters, "include_hidden", false)?,
            include_git: relative.components().any(|name| name.as_os_str() == ".git"),
            respect_ignore: false,
            depth: parameters::limit(call.parameters, "depth", 1, MAX_DEPTH)?,
        };
        let start = project.open_folder(&relative)?;
        let mut entries = Vec::new();
        let mut listing = format!("{}/\n", display_path(&relative));
        let report = walk(&project, &start, options, call.cancel, &mut |walk_entry| {
            if entries.len() >= limit {
                return Ok(WalkControl::Stop);
            }
            let status = walk_entry.folder.status(walk_entry.name).ok().flatten();
            let size = status.filter(|status| status.kind == DirEntryKind::File).map(|status| status.size);
            let target = match walk_entry.kind {
                DirEntryKind::Symlink => walk_entry.folder.read_link(walk_entry.name).ok(),
                DirEntryKind::File | DirEntryKind::Dir | DirEntryKind::Other => None,
            };
            let kind = match walk_entry.kind {
                DirEntryKind::File => "file",
                DirEntryKind::Dir => "folder",
                DirEntryKind::Symlink => "link",
                DirEntryKind::Other => "other",
            };
            let mut entry = json!({"path": path_text(walk_entry.path), "type": kind});
            let name = display_path(walk_entry.name.as_ref());
            // Writing to a string cannot fail.
            let _ = write!(listing, "{:indent$}{name}", "", indent = 2 * walk_entry.depth);
            let _ = match (walk_entry.kind, size, &target) {
                (DirEntryKind::Dir, ..) => writeln!(listing, "/"),
                (_, Some(size), _) => writeln!(listing, "  {size}"),
                (_, _, Some(target)) => writeln!(listing, " -> {}", display_path(target)),
                _ => writeln!(listing),
            };
            if let Some(size) = size {
                entry["size"] = json!(size);
            }
            if let Some(target) = target {
                entry["target"] = json!(path_text(&target));
            }
            entries.push(entry);
            Ok(WalkControl::Continue)
        })?;
        if report.is_truncated {
            listing.push_str("… more is left out\n");
        }
        let mut response = json!({
            "path": path_text(&relative),
            "count": entries.len(),
            "entries": entries,
            "content": listing,
            "truncated": report.is_truncated,
        });
        if let Some(note) = walk_note(report) {
            response["note"] = json!(note);
        }
        Ok(response)
    }
}
