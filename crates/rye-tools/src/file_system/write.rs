//! `file_system.write`: makes or replaces a whole file.

use std::path::Path;

use lillux::Digest;
use lillux::dir::Durability;
use lillux::file::FileMode;
use rye_exec::{NativeCall, NativeError, NativeTool};
use serde_json::{Value, json};

use super::text::{check_expected, read_whole, reject_redacted};
use crate::diff::unified_diff;
use crate::display::{is_binary, path_text};
use crate::line_id_store::LockedTrack;
use crate::parameters;
use crate::path_access::{MissingParents, ProjectAccess, WriteTarget};

/// Writes a file.
#[derive(Clone, Copy, Debug)]
pub struct Write;

/// What was there before.
enum PreviousContent {
    Missing,
    Bytes(Vec<u8>),
    TooLarge,
}

impl NativeTool for Write {
    fn name(&self) -> &'static str {
        "file_system.write"
    }

    fn call(&self, call: &NativeCall<'_>) -> Result<Value, NativeError> {
        let project = ProjectAccess::open(call)?;
        let relative = project.to_relative(parameters::required_text(call.parameters, "path")?)?;
        let content = parameters::required_text(call.parameters, "content")?;
        reject_redacted(content)?;
        let expected = parameters::optional_text(call.parameters, "expected_hash")?;
        let makes_folders = parameters::boolean(call.parameters, "create_folders", true)?;
        // An expected version implies that the folder exists: none is created for a write that is refused anyway.
        let expects_file = expected.is_some_and(|expected| expected != "absent");
        let missing =
            if makes_folders && !expects_file { MissingParents::Create } else { MissingParents::Refuse };
        if call.cancel.is_cancelled() {
            return Err(NativeError::failed("cancelled"));
        }
        let target = project.open_target(&relative, missing)?;
        // Two tools that change one file take turns.
        let _locked = LockedTrack::acquire(call.cache, &target.folder.path().join(&target.name));
        let previous = read_previous(&project, &target, &relative)?;
        let actual = match &previous {
            PreviousContent::Missing => None,
            PreviousContent::Bytes(bytes) => Some(Digest::of(bytes)),
            PreviousContent::TooLarge if expected.is_none() => None,
            PreviousContent::TooLarge => {
                return Err(NativeError::failed("the file is too large to compare with `expected_hash`"));
            }
        };
        check_expected(expected, actual.as_ref(), &relative)?;
        let hash = Digest::of(content.as_bytes());
        let is_changed = actual != Some(hash);
        if is_changed {
            target
                .folder
                // The rename is enough: readers never see half a file, and project files are not a journal.
                .write_atomic(&target.name, content.as_bytes(), FileMode::Preserve, Durability::Renamed)
                .map_err(|error| project.to_native_error(&error, &relative))?;
        }
        let path = path_text(&relative);
        let (diff, is_cut) = diff_previous(&path, &previous, content);
        Ok(json!({
            "path": path,
            "created": matches!(previous, PreviousContent::Missing),
            "changed": is_changed,
            "bytes": content.len(),
            "hash": hash.to_hex(),
            "diff": diff,
            "diff_truncated": is_cut,
        }))
    }
}

fn read_previous(
    project: &ProjectAccess<'_>,
    target: &WriteTarget,
    relative: &Path,
) -> Result<PreviousContent, NativeError> {
    match target.folder.open_child_file(&target.name) {
        Ok(opened) => {
            Ok(read_whole(&opened, relative)?.map_or(PreviousContent::TooLarge, PreviousContent::Bytes))
        }
        Err(error) if error.is_absent() => Ok(PreviousContent::Missing),
        Err(error) => Err(project.to_native_error(&error, relative)),
    }
}

fn diff_previous(path: &str, previous: &PreviousContent, new: &str) -> (String, bool) {
    match previous {
        PreviousContent::Missing => unified_diff(path, "", new),
        PreviousContent::TooLarge => ("[the old file was too large to compare]".to_owned(), true),
        PreviousContent::Bytes(bytes) if is_binary(bytes) => ("[the old file was binary]".to_owned(), true),
        PreviousContent::Bytes(bytes) => unified_diff(path, &String::from_utf8_lossy(bytes), new),
    }
}
