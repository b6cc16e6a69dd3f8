//! `file_system.write`: makes or replaces a whole file.

use std::path::Path;

use lillux::Digest;
use lillux::beneath::Durability;
use lillux::file::Mode;
use rye_exec::{NativeCall, NativeError, NativeTool};
use serde_json::{Value, json};

use super::text::{check_expected, read_whole, refuse_redacted};
use crate::diff::unified;
use crate::line_id_store::Held;
use crate::parameters;
use crate::place::{Missing, Project, Target};
use crate::show::{is_binary, path_text};

/// Writes a file.
#[derive(Clone, Copy, Debug)]
pub struct Write;

/// What was there before.
enum Old {
    Nothing,
    Bytes(Vec<u8>),
    TooLarge,
}

impl NativeTool for Write {
    fn name(&self) -> &'static str {
        "file_system.write"
    }

    fn call(&self, call: &NativeCall<'_>) -> Result<Value, NativeError> {
        let project = Project::open(call)?;
        let relative = project.relative(parameters::text(call.parameters, "path")?)?;
        let content = parameters::text(call.parameters, "content")?;
        refuse_redacted(content)?;
        let expected = parameters::optional_text(call.parameters, "expected_hash")?;
        let makes_folders = parameters::boolean(call.parameters, "create_folders", true)?;
        // Somebody who expects a version expects its folder too: none is made for a write that is refused anyway.
        let expects_file = expected.is_some_and(|expected| expected != "absent");
        let missing = if makes_folders && !expects_file { Missing::Made } else { Missing::Refused };
        if call.cancel.is_cancelled() {
            return Err(NativeError::failed("cancelled"));
        }
        let target = project.target(&relative, missing)?;
        // Two tools that change one file take turns.
        let _held = Held::acquire(call.cache, &target.folder.path().join(&target.name));
        let old = read_old(&project, &target, &relative)?;
        let found = match &old {
            Old::Nothing => None,
            Old::Bytes(bytes) => Some(Digest::of(bytes)),
            Old::TooLarge if expected.is_none() => None,
            Old::TooLarge => {
                return Err(NativeError::failed("the file is too large to compare with `expected_hash`"));
            }
        };
        check_expected(expected, found.as_ref(), &relative)?;
        let hash = Digest::of(content.as_bytes());
        let is_changed = found != Some(hash);
        if is_changed {
            target
                .folder
                // The rename alone is enough: nobody sees half a file, and project files are not a journal.
                .write_atomic(&target.name, content.as_bytes(), Mode::Kept, Durability::Renamed)
                .map_err(|error| project.failure(&error, &relative))?;
        }
        let path = path_text(&relative);
        let (diff, is_cut) = difference(&path, &old, content);
        Ok(json!({
            "path": path,
            "created": matches!(old, Old::Nothing),
            "changed": is_changed,
            "bytes": content.len(),
            "hash": hash.to_hex(),
            "diff": diff,
            "diff_truncated": is_cut,
        }))
    }
}

fn read_old(project: &Project<'_>, target: &Target, relative: &Path) -> Result<Old, NativeError> {
    match target.folder.child_file(&target.name) {
        Ok(opened) => Ok(read_whole(&opened, relative)?.map_or(Old::TooLarge, Old::Bytes)),
        Err(error) if error.is_absent() => Ok(Old::Nothing),
        Err(error) => Err(project.failure(&error, relative)),
    }
}

fn difference(path: &str, old: &Old, new: &str) -> (String, bool) {
    match old {
        Old::Nothing => unified(path, "", new),
        Old::TooLarge => ("[the old file was too large to compare]".to_owned(), true),
        Old::Bytes(bytes) if is_binary(bytes) => ("[the old file was binary]".to_owned(), true),
        Old::Bytes(bytes) => unified(path, &String::from_utf8_lossy(bytes), new),
    }
}
