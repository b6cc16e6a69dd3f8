//! `rye new`.

use clap::{Args, ValueEnum};
use clap_complete::engine::ArgValueCompleter;

use super::WritableSpace;
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
