//! `rye doctor`.

use clap::Args;

// `rye doctor`
#[derive(Debug, Args)]
pub struct DoctorArguments {
    /// Only the store of threads that machines share: whether it can be used, and by whom
    #[arg(long)]
    pub store: bool,
}
