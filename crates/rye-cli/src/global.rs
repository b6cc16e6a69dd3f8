//! Options of every command.

use std::path::PathBuf;

use clap::{Args, ValueEnum, ValueHint};

/// Options of every command.
#[derive(Clone, Debug, Args)]
pub struct GlobalArguments {
    /// The project's folder [default: the nearest parent folder with `.ai/`]
    #[arg(short, long, global = true, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub project: Option<PathBuf>,
    /// The user space's base folder [default: $USER_SPACE, else home]
    #[arg(long, global = true, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub user_space: Option<PathBuf>,
    /// Print the result as one JSON object
    #[arg(long, global = true)]
    pub json: bool,
    /// Print more details
    #[arg(short, long, global = true)]
    pub verbose: bool,
    /// Print only the result
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,
    /// When to use colour [default: auto]
    #[arg(long, global = true, value_name = "WHEN")]
    pub color: Option<ColorMode>,
}

/// When to use colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ColorMode {
    /// On a terminal.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}
