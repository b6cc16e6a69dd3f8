//! `rye store`.

use clap::{Args, Subcommand};

// `rye store`
#[derive(Debug, Subcommand)]
pub enum StoreCommand {
    /// Move the threads of this project to another store
    #[command(
        after_help = "rye store migrate --from local --to team     from the project's files to the store `team` of your settings\nrye store migrate --from team --to local     and back\n\nFinished trees are copied. Trees that can still be resumed are moved, so that only one store can resume them.\nRefused if a thread is running, or differs in the other store. Safe to run again after an interruption."
    )]
    Migrate(MigrateArguments),
}

// `rye store migrate`
#[derive(Debug, Args)]
pub struct MigrateArguments {
    /// The store they are in: local, or a name in threads.stores of your settings
    #[arg(long, value_name = "NAME")]
    pub from: String,
    /// The store they go to: local, or a name in threads.stores of your settings
    #[arg(long, value_name = "NAME")]
    pub to: String,
}
