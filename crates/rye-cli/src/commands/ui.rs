//! `ui`: serve the page for people, and open it.

use std::io::BufRead as _;
use std::time::Duration;

use rye_server::{HttpOptions, ShutdownHandle, UiEndpoint, UiOptions};
use serde_json::json;

use super::{CommandResult, mcp};
use crate::arguments::UiArguments;
use crate::global::GlobalArguments;
use crate::output::{self, DIM, HEADING, Output, WARNING, paint};
use crate::settings::{self, Settings};

/// `rye ui`
pub fn run(global: &GlobalArguments, arguments: &UiArguments) -> CommandResult {
    let settings = Settings::read(global)?;
    let setup = mcp::server_setup(&settings);
    let options = UiOptions {
        http: HttpOptions {
            address: arguments.behind_tls.clone().unwrap_or_else(|| format!("127.0.0.1:{}", arguments.port)),
            behind_tls: arguments.behind_tls.is_some(),
            hosts: arguments.allow_host.clone(),
        },
        is_read_only: arguments.read_only,
        idle_timeout: Duration::from_secs(arguments.idle_timeout),
        owner: settings.owner.clone(),
        now_ms: settings::now_ms,
    };
    let stop = ShutdownHandle::new();
    settings::on_termination_signals({
        let stop = stop.clone();
        move || {
            output::end_interrupted_line();
            stop.shutdown();
        }
    });
    let output = Output::new(global, None, false);
    let may_open = settings.is_interactive && !arguments.no_open && !output.is_json;
    let mut printed = Ok(());
    rye_server::serve_ui(setup, &options, &stop, |endpoint| {
        printed = print_address(output, &endpoint, &options);
        if printed.is_ok() && may_open {
            open_browser(output, &endpoint);
        }
        if printed.is_ok() && settings.is_interactive && !output.is_json {
            print_codes_on_enter(output, endpoint);
        }
    })?;
    printed
}

fn print_address(output: Output, endpoint: &UiEndpoint, options: &UiOptions) -> CommandResult {
    let code = endpoint.new_code()?;
    let url = endpoint.url_with_code(&code);
    if output.is_json {
        let data = json!({
            "url": endpoint.url, "code": code, "url_with_code": url, "read_only": options.is_read_only,
            "code_expires_in_seconds": endpoint.code_ttl.as_secs(),
        });
        output.print_json_line(&rye_engine::success_response(None, None, data))?;
        return Ok(());
    }
    output.print(format_args!("open {}", paint(HEADING, url)))?;
    let mode = if options.is_read_only { "nothing can be changed; " } else { "" };
    output.note(paint(
        DIM,
        format_args!(
            "{mode}the code works once, for {} minutes; Enter prints a new one, Ctrl-C stops",
            endpoint.code_ttl.as_secs() / 60
        ),
    ));
    Ok(())
}

/// Another browser needs another code.
fn print_codes_on_enter(output: Output, endpoint: UiEndpoint) {
    // Ends with the process.
    std::thread::spawn(move || {
        for _ in std::io::stdin().lock().lines().map_while(Result::ok) {
            match endpoint.new_code() {
                Ok(code) => drop(output.print(format_args!("open {}", endpoint.url_with_code(&code)))),
                Err(error) => output.warn(error.message),
            }
        }
    });
}

/// Opens the page where there is a browser to open, with a code of its own: it is on a command line for a moment, until the
/// page has used it.
fn open_browser(output: Output, endpoint: &UiEndpoint) {
    if !settings::has_display() {
        return;
    }
    let Ok(code) = endpoint.new_code() else { return };
    if let Err(error) = settings::open_in_browser(&endpoint.url_with_code(&code)) {
        output.note(paint(WARNING, format_args!("no browser was opened ({error}); use the address")));
    }
}
