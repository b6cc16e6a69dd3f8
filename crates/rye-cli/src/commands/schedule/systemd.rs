//! A systemd user timer that starts what is due.

use std::path::Path;

use serde_json::json;

use super::super::{CommandContext, CommandResult};
use crate::settings;

/// The name of both units.
const UNIT: &str = "rye-schedule";

/// `rye schedule systemd`
pub fn units(context: &CommandContext, is_written: bool, dir: Option<&Path>) -> CommandResult {
    let service = service_unit(context);
    let timer = timer_unit();
    let output = &context.output;
    let files = [(format!("{UNIT}.service"), service), (format!("{UNIT}.timer"), timer)];
    let mut paths = Vec::new();
    if is_written {
        let default = context.settings.home.join(".config/systemd/user");
        let dir = dir.unwrap_or(&default);
        lillux::file::create_dirs(dir, false)?;
        for (name, text) in &files {
            let path = dir.join(name);
            lillux::file::write_atomic(&path, text.as_bytes(), lillux::file::FileMode::Preserve)?;
            paths.push(path.display().to_string());
        }
    }
    let enable = format!("systemctl --user daemon-reload && systemctl --user enable --now {UNIT}.timer");
    let [(_, service), (_, timer)] = &files;
    let data = json!({"service": service, "timer": timer, "written": paths, "next_command": enable});
    if context.print_if_json(Some("schedule"), None, &data)? {
        return Ok(());
    }
    if is_written {
        for path in &paths {
            output.print(format_args!("wrote {path}"))?;
        }
        output.note(format_args!("turn it on:  {enable}"));
        return Ok(());
    }
    for (name, text) in &files {
        output.print(format_args!("# {name}\n{text}"))?;
    }
    Ok(())
}

fn service_unit(context: &CommandContext) -> String {
    let roots = &context.settings.roots;
    // Only in a command `$` begins a variable.
    let [program, user_space] =
        [&settings::current_exe(), &roots.user].map(|path| quote(&path.to_string_lossy()).replace('$', "$$"));
    let keys = quote(&format!("RYE_SIGNING_KEY_DIR={}", roots.signing_keys.to_string_lossy()));
    format!(
        "[Unit]\nDescription=Start rye threads that are due\n\n[Service]\nType=oneshot\nEnvironment={keys}\n\
         # Keys of model providers, one NAME=VALUE a line, readable by you alone.\n\
         EnvironmentFile=-%h/.config/rye/schedule.env\n\
         ExecStart={program} --user-space {user_space} schedule tick\n\
         # Threads continue in the background process, which outlives this one.\nKillMode=process\n"
    )
}

fn timer_unit() -> String {
    "[Unit]\nDescription=Start rye threads that are due, every minute\n\n[Timer]\nOnCalendar=minutely\n\
     AccuracySec=1s\n\n[Install]\nWantedBy=timers.target\n"
        .to_owned()
}

/// A word as systemd reads it.
fn quote(word: &str) -> String {
    let escaped = word.replace('\\', "\\\\").replace('"', "\\\"").replace('%', "%%");
    format!("\"{escaped}\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_for_systemd() {
        assert_eq!(quote("/home/ada/my rye"), "\"/home/ada/my rye\"");
        assert_eq!(quote("a\"b%c$d\\e"), "\"a\\\"b%%c$d\\\\e\"");
    }
}
