//! Arguments of `rye new`, `rye list`, `rye test` and `rye config`.

use clap::{Args, Subcommand, ValueEnum};
use clap_complete::engine::ArgValueCompleter;

use super::{SpaceName, WritableSpace};
use crate::completion;

/// What `rye new` makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum NewKind {
    /// A tool, with a test
    Tool,
    /// A directive
    Directive,
    /// A page of knowledge
    Knowledge,
    /// The items of a bundle
    Bundle,
}

// `rye new`
#[derive(Debug, Args)]
#[command(
    after_help = "rye new tool team/greet                 in Python, Node or bash: the first that is there\nrye new tool team/greet --lang bash\nrye new directive team/review\nrye new bundle team-tools               a tool, a directive and a page to pack"
)]
pub struct NewArguments {
    /// What to make
    #[arg(value_name = "TYPE")]
    pub kind: NewKind,
    /// Its id, such as team/greet
    #[arg(value_name = "ID")]
    pub id: String,
    /// The language of a tool: python, js, ts or bash [default: the first whose program is there]
    #[arg(long, value_name = "LANG", add = ArgValueCompleter::new(completion::languages))]
    pub lang: Option<String>,
    /// Make it in this space
    #[arg(long, default_value = "project")]
    pub space: WritableSpace,
}

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

// `rye test`
#[derive(Debug, Args)]
#[command(
    after_help = "Tests are in .ai/tests/**/*.test.yaml; how to write one: rye load knowledge rye/dev/tests\nExit code 1 if one fails."
)]
pub struct TestArguments {
    /// Only tests of this tool
    #[arg(value_name = "ID", add = ArgValueCompleter::new(completion::tools))]
    pub id: Option<String>,
    /// Only cases with this tag
    #[arg(long)]
    pub tag: Option<String>,
    /// Only files whose path below .ai/tests contains this
    #[arg(long, value_name = "TEXT")]
    pub file: Option<String>,
    /// Run new and changed files of tools that ask for more than the default without a prompt
    #[arg(short, long)]
    pub yes: bool,
}

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
