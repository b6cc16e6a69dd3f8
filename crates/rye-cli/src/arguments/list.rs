//! `rye list`.

use clap::Args;
use clap_complete::engine::ArgValueCompleter;

use super::SpaceName;
use crate::completion;

// `rye list`
#[derive(Debug, Args)]
#[command(
    after_help = "rye list                      items of the project and your own\nrye list tool 'team/*'        tools whose ids match\nrye list deploy --space all   items of bundles too, by a part of their id"
)]
pub struct ListItemsArguments {
    /// directive, tool, knowledge or config; and a pattern of ids, or a part of one
    #[arg(value_name = "[TYPE] [PATTERN]", num_args = 0..=2, add = ArgValueCompleter::new(completion::items))]
    pub words: Vec<String>,
    /// Only this space, or all of them [default: project and user]
    #[arg(long)]
    pub space: Option<SpaceName>,
}
