//! Arguments of `rye init`.

use clap::Args;

// `rye init`
#[derive(Debug, Args)]
pub struct InitArguments {
    /// Your name, for a new key [default: $USER, or user.name of git, or your account's name]
    #[arg(long, value_name = "NAME")]
    pub owner: Option<String>,
}
