//! `rye config`.

use clap::Subcommand;
use clap_complete::engine::ArgValueCompleter;

use super::WritableSpace;
use crate::completion;

/// `rye config`
#[derive(Debug, Subcommand)]
#[command(defer = true)]
pub enum ConfigCommand {
    /// Show the settings after all layers
    Show {
        /// Only this config, such as agent/agent
        id: Option<String>,
        /// Show which space each setting comes from
        #[arg(long)]
        origin: bool,
    },
    /// Print the value of a setting
    #[command(after_help = "rye config get search.limit\nrye config get agent/agent:provider.default")]
    Get {
        /// The setting, such as search.limit
        #[arg(value_name = "KEY", add = ArgValueCompleter::new(completion::setting_names))]
        key: String,
    },
    /// Set a setting and sign its file; comments stay
    #[command(
        after_help = "rye config set search.limit 20\nrye config set display.color never --space project\n\nA file that you signed is signed again. Any other file is signed only if you agree, because your signature covers all of it."
    )]
    Set {
        /// The setting, such as search.limit
        #[arg(value_name = "KEY", add = ArgValueCompleter::new(completion::setting_names))]
        key: String,
        /// Its value; a list as JSON, or separated by commas
        #[arg(value_name = "VALUE", allow_hyphen_values = true)]
        value: String,
        /// Set it in this space
        #[arg(long, default_value = "user")]
        space: WritableSpace,
        /// Sign a file that is unsigned or that another key signed, without asking
        #[arg(short, long)]
        yes: bool,
    },
}
