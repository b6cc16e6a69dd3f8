//! What newcomers type, and what it is called here.

/// Words for commands that have another name, by the command above them.
const OTHER_NAMES: &[(&str, &str, &str)] = &[
    ("", "allow", "rye trust, or rye keys trust FILE"),
    ("", "agent", "rye run DIRECTIVE; agents are listed by: rye list directive"),
    ("", "agents", "rye list directive"),
    ("", "approve", "rye thread approve REQUEST; requests are listed by: rye thread approvals"),
    ("", "auth", "rye doctor says which keys for models are set"),
    ("", "bundles", "rye bundle list"),
    ("", "call", "rye execute ID"),
    ("", "cancel", "rye thread cancel THREAD"),
    ("", "cat", "rye load ID"),
    ("", "check", "rye verify, or rye doctor for your setup"),
    ("", "chat", "rye run DIRECTIVE"),
    ("", "clean", "rye thread prune, or rye lock prune"),
    ("", "completion", "rye completions SHELL"),
    ("", "costs", "rye thread cost --since today"),
    ("", "create", "rye new TYPE ID"),
    ("", "cron", "rye schedule add DIRECTIVE --cron '0 7 * * *'"),
    ("", "dashboard", "rye ui"),
    ("", "delete", "remove the file below .ai: rye why ID names it"),
    ("", "deny", "rye thread deny REQUEST; requests are listed by: rye thread approvals"),
    ("", "describe", "rye load ID"),
    ("", "directives", "rye list directive"),
    ("", "edit", "edit the file below .ai, then rye sign ID"),
    ("", "env", "rye config show execution/environment"),
    ("", "find", "rye search WORDS"),
    ("", "generate", "rye new TYPE ID"),
    ("", "get", "rye load ID, or rye config get KEY"),
    ("", "help", "rye --help, or rye COMMAND --help"),
    ("", "history", "rye thread list"),
    ("", "info", "rye why ID"),
    ("", "invoke", "rye execute ID"),
    ("", "key", "rye keys show"),
    ("", "login", "rye needs no account; rye doctor says which keys for models are set"),
    ("", "logs", "rye thread tail THREAD"),
    ("", "ls", "rye list"),
    ("", "make", "rye new TYPE ID"),
    ("", "models", "rye config show agent/agent"),
    ("", "monitor", "rye top"),
    ("", "open", "rye load ID"),
    ("", "pause", "rye schedule pause NAME, or rye thread cancel THREAD"),
    ("", "pin", "rye lock update ID"),
    ("", "plugin", "rye import PATH, or rye add SOURCE"),
    ("", "ps", "rye thread list"),
    ("", "publish", "rye bundle push PATH oci://…; your identity: rye keys publish"),
    ("", "pull", "rye sync, or rye bundle pull oci://…"),
    ("", "push", "rye bundle push PATH oci://…"),
    ("", "resume", "rye thread resume THREAD"),
    ("", "revoke", "rye keys revoke FINGERPRINT"),
    ("", "rm", "remove the file below .ai: rye why ID names it"),
    ("", "serve", "rye mcp"),
    ("", "server", "rye mcp"),
    ("", "set", "rye config set KEY VALUE"),
    ("", "settings", "rye config show"),
    ("", "setup", "rye init, or rye join in a project of others"),
    ("", "show", "rye load ID, or rye thread show"),
    ("", "skill", "rye import PATH, or rye list knowledge"),
    ("", "skills", "rye import PATH, or rye list knowledge"),
    ("", "start", "rye run DIRECTIVE"),
    ("", "status", "rye thread list, or rye doctor"),
    ("", "stop", "rye thread cancel THREAD"),
    ("", "threads", "rye thread list"),
    ("", "tool", "rye execute ID; tools are listed by: rye list tool"),
    ("", "tools", "rye list tool"),
    ("", "undo", "rye bundle rollback ID, for a bundle"),
    ("", "update", "bundles: rye bundle upgrade; rye itself: rye self version says how"),
    ("", "upgrade", "bundles: rye bundle upgrade; rye itself: rye self version says how"),
    ("", "validate", "rye verify"),
    ("", "version", "rye --version"),
    ("", "view", "rye load ID"),
    ("", "watch", "rye top, or rye sign 'team/*' --watch"),
    ("", "web", "rye ui"),
    ("", "whoami", "rye keys show"),
    ("bundle", "add", "rye add SOURCE"),
    ("bundle", "build", "rye bundle create ID --version 1.0.0 --category PREFIX"),
    ("bundle", "info", "rye bundle inspect ID"),
    ("bundle", "install", "rye add SOURCE, or rye install SRC without the manifest"),
    ("bundle", "ls", "rye bundle list"),
    ("bundle", "new", "rye new bundle ID, then rye bundle create ID"),
    ("bundle", "pack", "rye bundle create ID --version 1.0.0 --category PREFIX"),
    ("bundle", "remove", "rye remove ID, or rye uninstall ID without the manifest"),
    ("bundle", "show", "rye bundle inspect ID"),
    ("bundle", "uninstall", "rye remove ID, or rye uninstall ID without the manifest"),
    ("bundle", "update", "rye bundle upgrade ID"),
    ("config", "edit", "rye config set KEY VALUE; rye config show --origin says where each comes from"),
    ("config", "list", "rye config show"),
    ("config", "ls", "rye config show"),
    ("config", "remove", "rye config set KEY VALUE; defaults are shown by: rye config show --origin"),
    ("config", "unset", "rye config set KEY VALUE; defaults are shown by: rye config show --origin"),
    ("keys", "add", "rye keys trust FILE"),
    ("keys", "create", "rye keys generate"),
    ("keys", "delete", "rye keys revoke FINGERPRINT"),
    ("keys", "gen", "rye keys generate"),
    ("keys", "init", "rye keys generate"),
    ("keys", "ls", "rye keys list"),
    ("keys", "new", "rye keys generate"),
    ("keys", "remove", "rye keys revoke FINGERPRINT"),
    ("keys", "share", "rye keys publish, or rye keys export"),
    ("keys", "untrust", "rye keys revoke FINGERPRINT"),
    ("lock", "add", "rye lock update ID"),
    ("lock", "create", "rye lock update ID"),
    ("lock", "delete", "rye lock remove ID"),
    ("lock", "ls", "rye lock list"),
    ("lock", "refresh", "rye lock update ID"),
    ("lock", "rm", "rye lock remove ID"),
    ("mcp", "add", "rye mcp install CLIENT registers rye; a server of others: rye import .mcp.json"),
    ("mcp", "list", "rye mcp status"),
    ("mcp", "ls", "rye mcp status"),
    ("mcp", "register", "rye mcp install CLIENT"),
    ("mcp", "remove", "rye mcp uninstall CLIENT"),
    ("mcp", "run", "rye mcp, or rye mcp --http 7433"),
    ("mcp", "serve", "rye mcp, or rye mcp --http 7433"),
    ("mcp", "start", "rye mcp, or rye mcp --http 7433"),
    ("mcp", "tools", "rye mcp --expose 'team/*' shows tools by their own names"),
    ("schedule", "create", "rye schedule add DIRECTIVE --every 1h"),
    ("schedule", "delete", "rye schedule remove NAME"),
    ("schedule", "ls", "rye schedule list"),
    ("schedule", "new", "rye schedule add DIRECTIVE --every 1h"),
    ("schedule", "rm", "rye schedule remove NAME"),
    ("schedule", "start", "rye schedule run NAME, or rye schedule watch"),
    ("schedule", "stop", "rye schedule pause NAME"),
    ("self", "update", "rye self version says how to upgrade"),
    ("self", "upgrade", "rye self version says how to upgrade"),
    ("thread", "attach", "rye thread tail THREAD"),
    ("thread", "clean", "rye thread prune"),
    ("thread", "continue", "rye run DIRECTIVE --continue THREAD, or rye thread resume THREAD"),
    ("thread", "delete", "rye thread prune"),
    ("thread", "follow", "rye thread tail THREAD"),
    ("thread", "log", "rye thread tail THREAD, or rye thread transcript THREAD"),
    ("thread", "logs", "rye thread tail THREAD, or rye thread transcript THREAD"),
    ("thread", "ls", "rye thread list"),
    ("thread", "new", "rye run DIRECTIVE"),
    ("thread", "rm", "rye thread prune"),
    ("thread", "start", "rye run DIRECTIVE"),
    ("thread", "status", "rye thread show THREAD"),
    ("thread", "stop", "rye thread cancel THREAD"),
    ("thread", "watch", "rye thread tail THREAD, or rye top"),
];

/// What is missing, and where to find it.
const MISSING: &[(&str, &str)] = &[
    ("add", "rye add SOURCE: a folder or archive in the project, oci://…, https://… or git+…"),
    ("bundle create", "rye bundle create team-tools --version 1.0.0 --category team"),
    ("bundle disable", "bundles are listed by: rye bundle list"),
    ("bundle enable", "bundles are listed by: rye bundle list"),
    ("bundle inspect", "bundles are listed by: rye bundle list"),
    ("bundle rollback", "bundles are listed by: rye bundle list"),
    ("bundle run", "bundles are listed by: rye bundle list"),
    ("bundle trust", "bundles are listed by: rye bundle list"),
    ("bundle verify", "bundles are listed by: rye bundle list"),
    ("completions", "rye completions bash; shells are: bash, elvish, fish, powershell, zsh"),
    ("config get", "rye config get search.limit; settings are listed by: rye config show"),
    ("config set", "rye config set search.limit 20; settings are listed by: rye config show"),
    ("execute", "rye execute examples/hello name=Ada; tools are listed by: rye list tool"),
    ("explain", "rye explain RYE0402; errors name their code"),
    ("export", "rye export claude-code; what is stale: rye export --check"),
    ("import", "everything that clients keep in this project: rye import --all"),
    ("install", "rye install SRC: a folder with .ai, an archive, or oci://…"),
    ("keys import", "rye keys import FILE: a private key in PEM"),
    ("keys revoke", "fingerprints are listed by: rye keys list"),
    ("keys trust", "rye keys trust FILE; in a project of others: rye join"),
    ("load", "items are listed by: rye list"),
    ("lock remove", "lockfiles are listed by: rye lock list"),
    ("lock show", "lockfiles are listed by: rye lock list"),
    ("lock update", "rye lock update ID, or rye lock update --all"),
    ("mcp uninstall", "clients are listed by: rye mcp status"),
    ("new", "rye new tool team/greet"),
    ("remove", "bundles of the project are listed by: rye outdated"),
    ("run", "rye run examples/greet name=Ada; directives are listed by: rye list directive"),
    ("schedule add", "rye schedule add examples/greet --every 1h"),
    ("schedule pause", "schedules are listed by: rye schedule list"),
    ("schedule remove", "schedules are listed by: rye schedule list"),
    ("schedule resume", "schedules are listed by: rye schedule list"),
    ("schedule run", "schedules are listed by: rye schedule list"),
    ("search", "rye search WORDS; everything: rye list --space all"),
    ("sign", "rye sign ID, or rye sign 'team/*'; what is not signed: rye verify"),
    ("thread approve", "requests are listed by: rye thread approvals"),
    ("thread deny", "requests are listed by: rye thread approvals"),
    ("thread verify", "rye thread verify --all"),
    ("uninstall", "bundles are listed by: rye bundle list"),
    ("why", "items are listed by: rye list"),
];

/// Options of other programs, and words too many.
const OPTIONS: &[(&str, &str, &str)] = &[
    ("ci", "--fix", "rye ci changes nothing; rye doctor names a command for each problem"),
    ("doctor", "--fix", "rye doctor changes nothing; it names a command for each problem"),
    ("import", "--force", "items changed here are replaced with --theirs; a backup is kept"),
    ("init", "--force", "rye init never overwrites; run it again to get what is missing"),
    ("init", "--yes", "rye init asks nothing"),
    ("init", "-y", "rye init asks nothing"),
    ("list", "--all", "rye list --space all"),
    ("mcp", "--port", "rye mcp --http 7433"),
    ("mcp", "--stdio", "rye mcp alone serves over stdio"),
    ("run", "--background", "rye run DIRECTIVE --async"),
    ("run", "--budget", "a limit: --limit spend=0.10, --limit turns=5"),
    ("run", "--max-cost", "a limit: --limit spend=0.10, --limit turns=5"),
    ("run", "--max-spend", "a limit: --limit spend=0.10, --limit turns=5"),
    ("run", "--max-tokens", "a limit: --limit tokens=10000"),
    ("run", "--max-turns", "a limit: --limit turns=5"),
    ("run", "--timeout", "a limit: --limit duration_seconds=600"),
    ("sign", "--all", "all of a category: rye sign 'team/*'; what is not signed: rye verify"),
    ("test", "--all", "rye test alone runs all tests"),
    ("verify", "--all", "rye verify alone verifies all items of project and user space"),
];

/// The command that is meant by `word` below the command `path`.
pub fn for_command(path: &str, word: &str) -> Option<&'static str> {
    OTHER_NAMES.iter().find(|(above, other, _)| *above == path && *other == word).map(|(.., hint)| *hint)
}

/// What the command `path` needs.
pub fn for_missing(path: &str) -> Option<&'static str> {
    let known = MISSING.iter().find(|(command, _)| *command == path).map(|(_, hint)| *hint);
    let is_of_thread = path.starts_with("thread ");
    known.or_else(|| is_of_thread.then_some("ids are listed by: rye thread list"))
}

/// What is meant by an option that the command `path` does not have.
pub fn for_option(path: &str, option: &str) -> Option<&'static str> {
    let option = option.split_once('=').map_or(option, |(name, _)| name);
    if path == "init" && !option.starts_with('-') {
        return Some("rye init sets up the current folder: make it and go there first");
    }
    OPTIONS.iter().find(|(command, other, _)| *command == path && *other == option).map(|(.., hint)| *hint)
}

/// Every word of which the command above it must not have a subcommand.
#[cfg(test)]
pub fn known_words() -> impl Iterator<Item = (&'static str, &'static str)> {
    OTHER_NAMES.iter().map(|(path, word, _)| (*path, *word))
}

/// Every hint.
#[cfg(test)]
pub fn known_hints() -> impl Iterator<Item = &'static str> {
    let names = OTHER_NAMES.iter().map(|(.., hint)| *hint);
    let missing = MISSING.iter().map(|(_, hint)| *hint);
    names.chain(missing).chain(OPTIONS.iter().map(|(.., hint)| *hint))
}
