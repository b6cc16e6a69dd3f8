//! Rules that a failed tool likely ran into, told from what it printed: the rule, and the line that allows it. Paths that
//! are hidden or protected are explained by the sandbox itself (`rye_exec::sandbox`).

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use rye_exec::native::ToolAccess;
use rye_item::ItemRef;
use rye_item::text::one_line;

use crate::engine::Engine;

/// How much of a tool's output is looked at, from its end.
const MAX_TEXT_BYTES: usize = 16 << 10;
/// How many rules are told.
const MAX_HINTS: usize = 4;

/// What programs print when a path cannot be written.
const READ_ONLY: [&str; 2] = ["Read-only file system", "EROFS"];
/// What programs print when a socket is closed to them.
const SOCKET_REFUSED: [&str; 5] =
    ["Permission denied", "Operation not permitted", "EACCES", "EPERM", "Connection refused"];
/// What the trace of a program that uses the network holds.
const NETWORK_CALLS: [&str; 5] = ["socket", "getaddrinfo", "urlopen", "connect", "fetch failed"];
/// What programs print without a network.
const NO_NETWORK: [&str; 8] = [
    "Network is unreachable",
    "ENETUNREACH",
    "Temporary failure in name resolution",
    "EAI_AGAIN",
    "Name or service not known",
    "Could not resolve host",
    "Address family not supported",
    "EAFNOSUPPORT",
];

/// What a failed run is compared with.
pub(super) struct FailedRun<'a> {
    /// The engine.
    pub(super) engine: &'a Engine,
    /// The tool.
    pub(super) item: &'a ItemRef,
    /// What it may touch.
    pub(super) access: &'a ToolAccess,
    /// Whether it was confined at all.
    pub(super) is_confined: bool,
}

/// A key of a tool's metadata, as the language of files with this extension writes it.
pub(super) fn metadata_key(extension: &str, key: &str) -> String {
    match extension {
        ".py" => format!("{} =", key.to_uppercase()),
        ".js" | ".ts" | ".mjs" => format!("export const {} =", key.to_uppercase()),
        ".cjs" => format!("const {} =", key.to_uppercase()),
        ".sh" => format!("# {key}:"),
        _ => format!("{key}:"),
    }
}

impl FailedRun<'_> {
    /// One line for each rule that `text`, the tool's output, shows to have been met.
    pub(super) fn explain(&self, text: &str) -> Vec<String> {
        let start =
            (text.len().saturating_sub(MAX_TEXT_BYTES)..=text.len()).find(|at| text.is_char_boundary(*at));
        let text = &text[start.unwrap_or(0)..];
        let uses_network = NETWORK_CALLS.iter().any(|call| text.contains(call));
        let mut hints: Vec<String> = Vec::new();
        for line in text.lines() {
            let refused =
                [self.write_hint(line), self.socket_hint(line), self.network_hint(line, uses_network)];
            let refused = refused.into_iter().flatten().filter(|_| self.is_confined);
            let missing = [self.variable_hint(line), self.import_hint(line)];
            for hint in refused.chain(missing.into_iter().flatten()) {
                if !hints.contains(&hint) && hints.len() < MAX_HINTS {
                    hints.push(hint);
                }
            }
        }
        hints
    }

    /// The tool's own file, as its author sees it.
    fn tool_path(&self) -> Option<PathBuf> {
        let candidates = self.engine.workspace.spaces.candidate_paths(self.item);
        candidates.into_iter().find(|candidate| candidate.is_found).map(|candidate| candidate.path)
    }

    /// The key of a tool's metadata, as the tool's language writes it.
    fn metadata_key(&self, key: &str) -> String {
        metadata_key(&self.extension(), key)
    }

    /// The extension of the tool's file, with the dot.
    fn extension(&self) -> String {
        let path = self.tool_path();
        let extension = path.as_ref().and_then(|path| path.extension()?.to_str());
        extension.map(|extension| format!(".{extension}")).unwrap_or_default()
    }

    /// A line of the sandbox, which writes metadata as YAML does, as the tool's language writes it.
    pub(super) fn in_language(&self, line: &str) -> String {
        let key = self.metadata_key("sandbox");
        match key.as_str() {
            "sandbox:" => line.to_owned(),
            key => ["read", "write"].iter().fold(line.to_owned(), |line, name| {
                line.replace(&format!("`sandbox: {{{name}: ["), &format!("`{key} {{\"{name}\": ["))
            }),
        }
    }

    fn write_hint(&self, line: &str) -> Option<String> {
        if !READ_ONLY.iter().any(|message| line.contains(message)) {
            return None;
        }
        let path = paths_in(line)
            .into_iter()
            .find(|path| !self.access.write.iter().any(|root| path.starts_with(root)))?;
        let folder = path.parent().filter(|folder| folder.parent().is_some()).unwrap_or(&path);
        let project = self.engine.workspace.roots.project.as_deref().map(lillux::canonicalize_existing);
        let is_project_open = project
            .as_ref()
            .is_none_or(|project| self.access.write.iter().any(|root| project.starts_with(root)));
        let rule = if is_project_open {
            "tools write to the project and to their temporary folder"
        } else {
            "this tool writes only to what it declares and to its temporary folder"
        };
        // A tool works in other projects, too.
        let below = project.as_ref().and_then(|project| folder.strip_prefix(project).ok());
        let scope = match below {
            Some(rest) if rest.as_os_str().is_empty() => "{project_path}".to_owned(),
            Some(rest) => format!("{{project_path}}/{}", shown(rest)),
            None => shown(folder),
        };
        Some(format!(
            "{rule}; to let it write `{}`, add to the signed tool: {} {{\"write\": [\"{scope}\"]}}",
            shown(&path),
            self.metadata_key("sandbox"),
        ))
    }

    fn socket_hint(&self, line: &str) -> Option<String> {
        if !SOCKET_REFUSED.iter().any(|message| line.contains(message)) {
            return None;
        }
        let is_socket = |path: &PathBuf| path.metadata().is_ok_and(|found| found.file_type().is_socket());
        let path = paths_in(line).into_iter().find(is_socket)?;
        Some(format!(
            "the socket `{0}` is closed to tools; to let it connect, add to the signed tool: {1} {{\"allow_sockets\": [\"{0}\"]}}",
            shown(&path),
            self.metadata_key("sandbox")
        ))
    }

    fn network_hint(&self, line: &str, uses_network: bool) -> Option<String> {
        let is_reported = NO_NETWORK.iter().any(|message| line.contains(message));
        let is_refused = uses_network && SOCKET_REFUSED.iter().any(|message| line.contains(message));
        (!self.access.network && (is_reported || is_refused)).then(|| {
            format!(
                "the tool says that it needs no network; to allow it, change in the signed tool: {} {{\"network\": true}}",
                self.metadata_key("sandbox")
            )
        })
    }

    fn variable_hint(&self, line: &str) -> Option<String> {
        let name = line
            .split_once("KeyError: '")
            .and_then(|(_, rest)| rest.split_once('\''))
            .map(|(name, _)| name)
            .or_else(|| {
                let (before, _) = line
                    .split_once(": unbound variable")
                    .or_else(|| line.split_once(": parameter not set"))?;
                before.rsplit([' ', ':']).next()
            })?;
        let is_variable = name.len() > 1
            && name.starts_with(|first: char| first.is_ascii_uppercase())
            && name.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_');
        if !is_variable {
            return None;
        }
        let state = match self.engine.host.variables.contains_key(name) {
            true => "is set in your environment, but tools get the variables they declare",
            false => "is not set, and tools get the variables they declare",
        };
        Some(format!(
            "`{name}` {state}; add to the signed tool: {} {{\"env\": {{\"{name}\": \"${{{name}}}\"}}}}",
            self.metadata_key("env_config")
        ))
    }

    fn import_hint(&self, line: &str) -> Option<String> {
        let quoted = |rest: &str| rest.split(['\'', '"']).nth(1).map(str::to_owned);
        let folder = self.tool_path()?.parent()?.to_owned();
        if line.contains("attempted relative import with no known parent package") {
            return Some(self.sibling_hint("what it imports", &folder, "__init__.py"));
        }
        if let Some((_, rest)) = line.split_once("No module named ") {
            let module = quoted(rest)?;
            let name = module.split('.').next()?;
            let is_name = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
            let is_beside = folder.join(format!("{name}.py")).is_file() || folder.join(name).is_dir();
            return match (is_name, is_beside) {
                (true, true) => Some(self.sibling_hint(&format!("`{name}`"), &folder, "__init__.py")),
                // Python names the whole path only if its first part was found.
                (true, false) if module == name && !name.starts_with('_') && self.extension() == ".py" => {
                    Some(self.package_hint(name))
                }
                (true | false, _) => None,
            };
        }
        let missing = ["Cannot find module ", "Cannot find package "];
        let (_, rest) = missing.iter().find_map(|words| line.split_once(words))?;
        let module = quoted(rest)?;
        let name = Path::new(&module).file_name()?.to_str()?.to_owned();
        let is_beside = ["", ".js", ".mjs", ".cjs", ".ts"]
            .iter()
            .any(|end| folder.join(format!("{name}{end}")).is_file());
        if is_beside {
            return Some(self.sibling_hint(&format!("`{name}`"), &folder, "package.json"));
        }
        let is_script = matches!(self.extension().as_str(), ".js" | ".ts" | ".mjs" | ".cjs");
        node_package(&module).filter(|_| is_script).map(|name| self.package_hint(name))
    }

    fn package_hint(&self, name: &str) -> String {
        format!(
            "no declared package provides `{name}`; if the package has the same name, \
             add it to the signed tool: {} [\"{name}\"]",
            self.metadata_key("dependencies")
        )
    }

    fn sibling_hint(&self, name: &str, folder: &Path, marker: &str) -> String {
        let category = self.item.id.category();
        // Without metadata of its own a file cannot be signed.
        let metadata = match marker {
            "__init__.py" => format!(
                "give each file of it `__version__`, `__category__` (\"{category}\"), `__tool_type__` and `__tool_description__`"
            ),
            _ => "give each file of it the metadata of a tool".to_owned(),
        };
        format!(
            "{} is beside the tool, but only the tool itself is loaded; to import files of its folder, add `{}`, \
             {metadata}, then sign all of them: rye sign tool '{}'",
            one_line(name),
            shown(&folder.join(marker)),
            if category.is_empty() { "*".to_owned() } else { format!("{category}/*") }
        )
    }
}

/// The npm package that a name in an `import` is of: neither a path nor a part of Node.
fn node_package(module: &str) -> Option<&str> {
    let is_character = |byte: u8| byte.is_ascii_alphanumeric() || b"@/._-".contains(&byte);
    if module.starts_with(['.', '/']) || !module.bytes().all(is_character) {
        return None;
    }
    let segments = if module.starts_with('@') { 2 } else { 1 };
    let end = module.match_indices('/').nth(segments - 1).map_or(module.len(), |(index, _)| index);
    module.get(..end).filter(|name| !name.is_empty())
}

fn shown(path: &Path) -> String {
    one_line(&path.display().to_string())
}

/// The absolute paths that a line of output names.
fn paths_in(line: &str) -> Vec<PathBuf> {
    let words = line.split([' ', '\t', '\'', '"', '`', ':', ',', ';', '(', ')', '[', ']', '<', '>', '=']);
    words.filter(|word| word.starts_with('/') && word.len() > 1).map(PathBuf::from).collect()
}
