//! Arguments of `rye worker`, and of looking at the store it works with.

use clap::{Args, Subcommand};

// `rye worker`
#[derive(Debug, Args)]
#[command(
    after_help = "rye worker --on team                       run what is submitted to the store `team`\nrye worker --on team --label gpu           also what asks for a worker with `gpu`\nrye worker --on team --status 127.0.0.1:9464   /health and /metrics there\n\nIt ends on SIGTERM: threads may finish first, the others go to other workers."
)]
pub struct WorkerArguments {
    /// The store, as the settings call it
    #[arg(long = "on", value_name = "NAME")]
    pub store: String,
    /// The worker's name, which no other worker has [default: the machine's]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Offer this label; can be repeated
    #[arg(long = "label", value_name = "LABEL")]
    pub labels: Vec<String>,
    /// Offer the secret in this variable, by its name alone; can be repeated
    #[arg(long = "secret", value_name = "VARIABLE")]
    pub secrets: Vec<String>,
    /// Allow submissions to check out repositories under this address; can be repeated [default: none]
    #[arg(long = "checkout-from", value_name = "git+URL")]
    pub allowed_checkout_prefixes: Vec<String>,
    /// How many trees run at once, and of each level below how many threads
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub max_threads: u32,
    /// How long threads may take to end on SIGTERM before they go to other workers
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(0..=86_400))]
    pub drain_seconds: u64,
    /// Serve /health and /metrics on this address of this computer, or this port
    #[arg(long, value_name = "ADDR")]
    pub status: Option<String>,
}

// `rye doctor`
#[derive(Debug, Args)]
pub struct DoctorArguments {
    /// Only the store of threads that machines share: whether it can be used, and by whom
    #[arg(long)]
    pub store: bool,
}

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
