//! Arguments of `rye keys`.

use std::path::PathBuf;

use clap::{Subcommand, ValueHint};
use clap_complete::engine::ArgValueCompleter;

use super::WritableSpace;
use crate::completion;

/// `rye keys`
#[derive(Debug, Subcommand)]
#[command(defer = true)]
pub enum KeysCommand {
    /// Generate a signing key
    Generate {
        /// The owner's name [default: $USER, or user.name of git, or your account's name]
        #[arg(long)]
        owner: Option<String>,
    },
    /// List the keys you trust
    List,
    /// Show a key [default: your own]
    Show {
        /// Its fingerprint
        #[arg(add = ArgValueCompleter::new(completion::keys))]
        fingerprint: Option<String>,
    },
    /// Trust the key in a file: a PEM public key or an identity document
    Trust {
        /// The file
        #[arg(value_hint = ValueHint::FilePath)]
        file: PathBuf,
        /// Trust it everywhere (user) or only in this project (project) [default: user, or project for a file in its .ai]
        #[arg(long)]
        space: Option<WritableSpace>,
        /// The owner's name
        #[arg(long)]
        owner: Option<String>,
        /// Also trust keys whose identity documents it has signed, in projects that contain those documents
        #[arg(long)]
        may_introduce: bool,
    },
    /// Revoke a key: nothing it signed is trusted any more
    Revoke {
        /// Its fingerprint
        #[arg(value_name = "FP", add = ArgValueCompleter::new(completion::keys))]
        fingerprint: String,
        /// The reason, recorded with it
        #[arg(long, default_value = "revoked by its user")]
        reason: String,
    },
    /// Replace your key by a new one: signs your items again, and tells colleagues by a hand-over that both keys sign
    Rotate {
        /// Make no new key: finish an earlier rotation in this project
        #[arg(long = "continue")]
        resume: bool,
    },
    /// Encrypt your private key with a passphrase
    #[command(
        after_help = "The passphrase is asked for at the terminal, or read from the first line of the file that RYE_KEY_PASSPHRASE_FILE names."
    )]
    Encrypt,
    /// Store your private key without a passphrase again
    Decrypt,
    /// Write your identity into the project, so that others can trust what you sign there
    Publish {
        /// The name to show to others [default: the one in your own document]
        #[arg(long)]
        owner: Option<String>,
    },
    /// Print an identity document to give to others [default: your own]
    Export {
        /// Its fingerprint
        #[arg(add = ArgValueCompleter::new(completion::keys))]
        fingerprint: Option<String>,
        /// Write to this file instead of standard output
        #[arg(short, long, value_hint = ValueHint::FilePath)]
        output: Option<PathBuf>,
    },
    /// Import a PEM private key as your own
    Import {
        /// The file
        #[arg(value_hint = ValueHint::FilePath)]
        file: PathBuf,
        /// The owner's name [default: $USER, or user.name of git, or your account's name]
        #[arg(long)]
        owner: Option<String>,
    },
}
