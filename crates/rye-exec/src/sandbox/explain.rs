//! What to say when a tool failed and what it printed names a path that the sandbox keeps from it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use rye_item::text::one_line;

use super::{SandboxLevel, SandboxPlan};

/// How many paths are explained.
const MAX_PATHS: usize = 3;

/// How much of what a tool printed is looked through, from the end.
const MAX_TEXT_BYTES: usize = 64 << 10;

/// What separates a path from the words around it.
const SEPARATORS: &[char] =
    &[' ', '\t', '\n', '\r', '\'', '"', '`', ':', ',', ';', '(', ')', '[', ']', '<', '>', '='];

impl SandboxPlan {
    /// One line for each path in `text` that is closed or protected: which rule, and how to allow it.
    #[must_use]
    pub fn explain(&self, text: &str) -> Vec<String> {
        if self.level == SandboxLevel::Off {
            return Vec::new();
        }
        let start =
            (text.len().saturating_sub(MAX_TEXT_BYTES)..=text.len()).find(|at| text.is_char_boundary(*at));
        let words = text[start.unwrap_or(0)..]
            .split(SEPARATORS)
            .filter(|word| word.contains('/') || word.starts_with('.'));
        let mut lines = Vec::new();
        let mut seen: BTreeSet<PathBuf> = BTreeSet::new();
        for word in words {
            let path = self.project.join(word.trim_end_matches(['.', '…']));
            let Some((path, line)) = self.explain_path(&path) else { continue };
            if seen.insert(path) {
                lines.push(line);
            }
            if lines.len() == MAX_PATHS {
                break;
            }
        }
        lines
    }

    fn explain_path(&self, path: &Path) -> Option<(PathBuf, String)> {
        if let Some(name) = self.reserved.iter().find(|name| path.starts_with(&name.path)) {
            let project = lillux::canonicalize_existing(&self.project);
            let own = name.path.strip_prefix(&self.project).or_else(|_| name.path.strip_prefix(&project));
            let line = match own {
                Ok(own) => format!(
                    "`{0}` is protected: a signed tool may change it with `sandbox: {{write: [\"{{project_path}}/{0}\"]}}`, \
                     or take it out of `protected` in your execution/sandbox.yaml",
                    one_line(&own.display().to_string())
                ),
                // A repository elsewhere, which a linked worktree belongs to: no tool can ask for it.
                Err(_) => format!(
                    "`{}` is protected: take its name out of `protected` in your execution/sandbox.yaml",
                    one_line(&name.path.display().to_string())
                ),
            };
            return Some((name.path.clone(), line));
        }
        let is_in_home = self.homes.iter().any(|home| path.starts_with(home) && path != home);
        let visible = self.visible.iter().chain(&self.access.write);
        let is_seen = || visible.clone().any(|seen| path.starts_with(seen) || seen.starts_with(path));
        if !is_in_home || is_seen() || path.symlink_metadata().is_err() {
            return None;
        }
        let path_text = one_line(&path.display().to_string());
        let line = format!(
            "`{path_text}` is closed to tools: declare it with `sandbox: {{read: [\"{path_text}\"]}}` in the signed tool, or list it in \
             `home_read` of your execution/sandbox.yaml"
        );
        Some((path.to_owned(), line))
    }
}
