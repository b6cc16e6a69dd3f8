//! Arguments of the commands that show threads to people.

use clap::Args;

// `rye ui`
#[derive(Debug, Args)]
#[command(
    after_help = "rye ui                        open the page in a browser, or print its address\nrye ui --read-only            nothing can be changed\nssh -L 7434:127.0.0.1:7434 HOST   then `rye ui --no-open` there, and its address here\n\nThe address ends in a code that works once. Press Enter for a new one."
)]
pub struct UiArguments {
    /// Refuse every change: nothing is answered, resumed, cancelled or run
    #[arg(long)]
    pub read_only: bool,
    /// The port on 127.0.0.1; 0 takes any free one
    #[arg(long, value_name = "PORT", default_value_t = 7434)]
    pub port: u16,
    /// End sessions that are not used for so many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 3600, value_parser = clap::value_parser!(u64).range(1..=604_800))]
    pub idle_timeout: u64,
    /// Print the address only, without opening a browser
    #[arg(long)]
    pub no_open: bool,
    /// Listen on this address instead, because a TLS proxy is in front
    #[arg(long, value_name = "ADDR", requires = "allow_host")]
    pub behind_tls: Option<String>,
    /// The name that the proxy is known by; can be repeated
    #[arg(long, value_name = "NAME", requires = "behind_tls")]
    pub allow_host: Vec<String>,
}

// `rye top`
#[derive(Debug, Args)]
#[command(
    after_help = "Keys: up and down select, tab shows the next page, a approves, d denies, c cancels a thread, q quits. y confirms."
)]
pub struct TopArguments {
    /// Refuse every change: nothing is answered or cancelled
    #[arg(long)]
    pub read_only: bool,
}
