//! `rye join`.

use clap::Args;

// `rye join`
#[derive(Debug, Args)]
#[command(
    after_help = "git clone … && cd … && rye join\n\nWithout a terminal and without --yes it shows everything and changes nothing (exit code 2)."
)]
pub struct JoinArguments {
    /// Do not prompt; everything is still shown
    #[arg(short, long)]
    pub yes: bool,
    /// Trust only these keys; what others signed stays refused (for CI)
    #[arg(long, value_name = "FINGERPRINT", value_delimiter = ',')]
    pub only: Vec<String>,
}
