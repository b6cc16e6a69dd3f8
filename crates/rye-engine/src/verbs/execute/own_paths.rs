//! What a failed tool printed, with its own files named in place of the verified copies that ran: those are where its
//! author can correct them.

use std::path::{Component, Path};

use rye_exec::Chain;
use rye_exec::outcome::RunFailure;

use super::run::RunOutput;
use super::run_plan::StagedRun;

/// What ends a path in a message.
const PATH_ENDS: [char; 11] = ['"', '\'', '`', '\n', '\r', ':', ',', '(', ')', ' ', '\t'];

/// Names the tool's own files in the error output and the error of a run that failed. Its result stays as it is.
pub(super) fn name_own_files(output: &mut RunOutput, chain: &Chain, staged: &StagedRun) {
    let outcome = &mut output.outcome;
    let Some(failure) = &mut outcome.failure else { return };
    let anchor = staged.anchor.as_ref().filter(|anchor| anchor.is_active);
    let folders = [
        anchor.map(|anchor| (staged.context.anchor_path.as_str(), anchor.root.as_path())),
        chain.tool().item().path.parent().map(|folder| (staged.context.tool_dir.as_str(), folder)),
    ];
    for (copies, own) in folders.into_iter().flatten().filter(|(copies, own)| Path::new(copies) != *own) {
        outcome.logs.stderr = with_own_paths(&outcome.logs.stderr, copies, own);
        match failure {
            RunFailure::Tool(message)
            | RunFailure::TimedOut(message)
            | RunFailure::StoppedBySandbox(message)
            | RunFailure::Denied(message) => *message = with_own_paths(message, copies, own),
            RunFailure::Cancelled => {}
        }
    }
}

/// `text`, with every file of the folder `copies` that the folder `own` has as well named there.
fn with_own_paths(text: &str, copies: &str, own: &Path) -> String {
    if copies.is_empty() {
        return text.to_owned();
    }
    let prefix = format!("{copies}/");
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(&prefix) {
        let (name, next) = after.split_at(after.find(PATH_ENDS).unwrap_or(after.len()));
        let is_inside = Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
        let file = own.join(name);
        result.push_str(before);
        match file.to_str().filter(|_| is_inside && file.is_file()) {
            Some(file) => result.push_str(file),
            None => result.extend([prefix.as_str(), name]),
        }
        rest = next;
    }
    result.push_str(rest);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_named_as_own_files() {
        let folder = tempfile::tempdir().expect("a folder");
        let own = folder.path();
        fs_err::create_dir_all(own.join("lib")).expect("made");
        for name in ["count.py", "lib/helper.py"] {
            lillux::file::write_new(&own.join(name), b"", lillux::file::FileMode::Private).expect("written");
        }
        let shown = |name: &str| own.join(name).display().to_string();
        for (text, expected) in [
            (
                "  File \"/c/1/count.py\", line 3\n  File \"/c/1/lib/helper.py\", line 1\n".to_owned(),
                format!(
                    "  File \"{}\", line 3\n  File \"{}\", line 1\n",
                    shown("count.py"),
                    shown("lib/helper.py")
                ),
            ),
            ("at /c/1/count.py:3:1".to_owned(), format!("at {}:3:1", shown("count.py"))),
            ("/c/1/absent.py /c/1/../x /c/1/ /c/12/count.py".to_owned(), String::new()),
            ("no path".to_owned(), String::new()),
        ] {
            let expected = if expected.is_empty() { text.clone() } else { expected };
            assert_eq!(with_own_paths(&text, "/c/1", own), expected);
        }
        assert_eq!(with_own_paths("/count.py", "", own), "/count.py");
    }
}
