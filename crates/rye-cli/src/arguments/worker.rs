//! `rye worker`.

use clap::Args;

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
