//! `rye test`.

use clap::Args;
use clap_complete::engine::ArgValueCompleter;

use crate::completion;

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
