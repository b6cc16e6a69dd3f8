//! `rye self`.

use clap::Subcommand;

/// What `rye self` does.
#[derive(Debug, Subcommand)]
pub enum InstallationCommand {
    /// Show the version, how rye was installed, and how to upgrade it
    Version,
}
