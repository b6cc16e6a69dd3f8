//! Arguments of `rye run` and `rye thread`.

use clap::{Args, Subcommand, ValueEnum};
use clap_complete::engine::ArgValueCompleter;

use crate::completion;

// `rye run`
#[derive(Debug, Args)]
#[command(
    after_help = "rye run examples/greet name=Ada              without a model key: runs the directive's own actions in order\nrye run team/review --model fast --limit turns=5 --limit spend=0.10\nrye run team/review --dry-run                show the prompt, permissions and maximum cost\nrye run team/nightly --async                 run in the background\nrye run team/nightly --on team --label gpu   leave it to a worker of the store `team`\n\nExit codes: 0 completed, 1 failed, 6 suspended (the command to resume is shown), 7 cancelled."
)]
pub struct RunArguments {
    /// The directive, such as team/review
    #[arg(value_name = "DIRECTIVE", add = ArgValueCompleter::new(completion::directives))]
    pub directive: String,
    /// Inputs of the directive
    #[arg(value_name = "KEY=VALUE", add = ArgValueCompleter::new(completion::inputs))]
    pub inputs: Vec<String>,
    /// Inputs as a JSON object; @FILE reads a file, - reads standard input
    #[arg(long, value_name = "JSON")]
    pub params: Option<String>,
    /// A model, or a tier such as fast [default: the directive's]
    #[arg(long, value_name = "M")]
    pub model: Option<String>,
    /// A provider, such as offline [default: the configured one, else one with a key]
    #[arg(long, value_name = "P")]
    pub provider: Option<String>,
    /// Set a limit: turns, tokens, spend, spawns, depth or duration_seconds; can be repeated
    #[arg(long = "limit", value_name = "NAME=VALUE", add = ArgValueCompleter::new(completion::limits))]
    pub limits: Vec<String>,
    /// Continue from the end of this thread in a new one
    #[arg(long = "continue", value_name = "THREAD", add = ArgValueCompleter::new(completion::threads))]
    pub continues: Option<String>,
    /// A message to the model when it continues
    #[arg(long, value_name = "TEXT", requires = "continues")]
    pub message: Option<String>,
    /// Do not wait: run in the background
    #[arg(long = "async", conflicts_with = "dry_run")]
    pub is_async: bool,
    /// Submit it to the workers of this store, as the settings call it
    #[arg(long, value_name = "NAME", conflicts_with_all = ["is_async", "continues", "dry_run"])]
    pub on: Option<String>,
    /// Only a worker that offers this label; can be repeated
    #[arg(long = "label", value_name = "LABEL", requires = "on")]
    pub labels: Vec<String>,
    /// Only a worker that has this secret; can be repeated
    #[arg(long = "secret", value_name = "VARIABLE", requires = "on")]
    pub secrets: Vec<String>,
    /// Give the worker project files: snapshot (those here, without what .gitignore names), git+URL@COMMIT or none
    #[arg(long, value_name = "SOURCE", requires = "on")]
    pub checkout: Option<String>,
    /// Show what would run without starting a thread
    #[arg(long)]
    pub dry_run: bool,
}

/// `rye thread`
#[derive(Debug, Subcommand)]
#[command(defer = true)]
pub enum ThreadCommand {
    /// List threads, newest first
    List(ListArguments),
    /// Show threads and their children as a tree
    Tree {
        /// Only this thread and its descendants
        #[arg(value_name = "THREAD", add = ArgValueCompleter::new(completion::threads))]
        id: Option<String>,
        /// Refresh on every change until all threads have ended
        #[arg(long)]
        live: bool,
    },
    /// Show a thread: its status, usage, result and next command
    Show {
        /// The thread's id or its beginning [default: the latest]
        #[arg(value_name = "THREAD", add = ArgValueCompleter::new(completion::threads))]
        id: Option<String>,
    },
    /// Show the cost of a thread and its descendants, or of all threads since a time
    #[command(
        after_help = "rye thread cost 0a1b --by child\nrye thread cost --since today      and what is left of the budgets in budgets.yaml"
    )]
    Cost {
        /// The thread's id or its beginning; without it, the latest
        #[arg(value_name = "THREAD", add = ArgValueCompleter::new(completion::threads))]
        id: Option<String>,
        /// Group costs by this
        #[arg(long, value_enum, default_value_t = CostBy::Item)]
        by: CostBy,
        /// All threads of this place that ran since then: today, month, 7d, 12h, 30m or a date
        #[arg(long, value_name = "TIME", conflicts_with_all = ["id", "by"])]
        since: Option<String>,
    },
    /// Follow a thread until it ends
    Tail {
        /// The thread's id or its beginning [default: the latest]
        #[arg(value_name = "THREAD", add = ArgValueCompleter::new(completion::threads))]
        id: Option<String>,
        /// Follow its descendants too
        #[arg(long)]
        tree: bool,
    },
    /// Print a thread's transcript
    Transcript {
        /// The thread's id or its beginning
        #[arg(value_name = "THREAD", add = ArgValueCompleter::new(completion::threads))]
        id: String,
        /// Print it as Markdown
        #[arg(long)]
        markdown: bool,
    },
    /// Verify that transcripts are what their threads wrote
    #[command(
        after_help = "Exit code 4 if a transcript was changed or truncated, or the store is older than when it was last used."
    )]
    Verify {
        /// The thread's id or its beginning
        #[arg(value_name = "THREAD", required_unless_present_any = ["all", "accept_older"], add = ArgValueCompleter::new(completion::threads))]
        id: Option<String>,
        /// Verify all threads
        #[arg(long, conflicts_with = "id")]
        all: bool,
        /// Accept the current store as the latest, after you restored an older copy
        #[arg(long, conflicts_with = "id")]
        accept_older: bool,
    },
    /// Step a thread and its children through their record; no model is asked, no tool runs
    #[command(after_help = "Exit code 1 if a request differs from the recorded one.")]
    Replay {
        /// The thread's id or its beginning
        #[arg(value_name = "THREAD", add = ArgValueCompleter::new(completion::threads))]
        id: String,
    },
    /// Wait for threads to end
    #[command(after_help = "rye thread wait 0a1b 2c3d --any --timeout 60")]
    Wait(WaitArguments),
    /// Cancel threads
    Cancel {
        /// The threads' ids or their beginnings
        #[arg(value_name = "THREAD", required = true, add = ArgValueCompleter::new(completion::unfinished_threads))]
        ids: Vec<String>,
        /// The reason, recorded with it
        #[arg(long, default_value = "cancelled by its user")]
        reason: String,
    },
    /// Kill a thread whose process is gone or does not respond
    Kill {
        /// The thread's id or its beginning
        #[arg(value_name = "THREAD", add = ArgValueCompleter::new(completion::unfinished_threads))]
        id: String,
    },
    /// Resume a suspended or interrupted thread
    #[command(
        after_help = "rye thread resume 0a1b --limit turns=+10\nrye thread resume 0a1b --message 'The tests are in tests/main'"
    )]
    Resume(ResumeArguments),
    /// Start a new thread at a turn of this one, with another message, model or limit
    #[command(
        after_help = "rye thread fork 0a1b --at 3 --message 'Use the other parser'\nrye thread fork 0a1b --at 3 --model high --limit spend=0.50\n\nWhat was said up to the end of the turn is copied; no tool runs again. The new thread has the permissions and limits of the old\none at most, unless --limit raises them, and pays for itself. Exit codes are those of rye run."
    )]
    Fork(ForkArguments),
    /// Approve a thread's request and resume it
    Approve(ApproveArguments),
    /// Deny a thread's request
    Deny {
        /// The request.
        #[command(flatten)]
        answer: AnswerArguments,
        /// End the thread instead of resuming it
        #[arg(long)]
        end: bool,
    },
    /// List pending approval requests
    Approvals {
        /// Only this thread and its descendants
        #[arg(value_name = "THREAD", add = ArgValueCompleter::new(completion::threads))]
        id: Option<String>,
        /// Show every argument to its end
        #[arg(long)]
        full: bool,
    },
    /// Print what a submitted thread changed in its project files, or apply it here
    #[command(
        after_help = "rye thread patch 0a1b | git apply --check\nrye thread patch 0a1b --apply\n\nA thread has a patch if it was submitted with --checkout. Patches are never applied automatically."
    )]
    Patch(PatchArguments),
    /// Send the notifications for a thread's present state again
    #[command(
        after_help = "Commands and webhooks are configured in notifications.yaml of your own space; see docs/threads/notifications.md."
    )]
    Notify {
        /// The thread's id or its beginning
        #[arg(value_name = "THREAD", add = ArgValueCompleter::new(completion::threads))]
        id: String,
    },
    /// Remove ended thread trees by age, number or size
    #[command(
        after_help = "Without --older-than, --keep and --max-megabytes, the `cleanup` settings of budget_ledger_schema.yaml apply.\nTrees with a running or suspended thread or a pending approval are kept."
    )]
    Prune(PruneArguments),
    /// List the threads of a lost or damaged store again, from their folders
    #[command(
        after_help = "Only what a known key has signed in a thread's transcript is used. Threads that had not ended are listed as failed:\nthe journal they would resume from is lost. The old database is kept under another name."
    )]
    Rebuild,
}

/// What costs are grouped by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CostBy {
    /// The directive that was run
    Item,
    /// The tool that started the thread
    Tool,
    /// The hook that started the thread
    Hook,
    /// The model
    Model,
    /// The thread itself, and each of its children with its descendants
    Child,
}

// `rye thread list`
#[derive(Debug, Args)]
pub struct ListArguments {
    /// Include child threads, without a limit on their number
    #[arg(long)]
    pub all: bool,
    /// Only threads with this status: running, suspended, completed, error, cancelled, killed, interrupted, …
    #[arg(long, value_name = "S", add = ArgValueCompleter::new(completion::statuses))]
    pub status: Option<String>,
    /// Only threads of this directive
    #[arg(long, value_name = "D", add = ArgValueCompleter::new(completion::directives))]
    pub directive: Option<String>,
    /// Maximum number of threads [default: 20]
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
}

// `rye thread prune`
#[derive(Debug, Args)]
pub struct PruneArguments {
    /// Remove trees that ended at least this many days ago
    #[arg(long, value_name = "DAYS")]
    pub older_than: Option<u64>,
    /// Keep only this many of the newest trees
    #[arg(long, value_name = "N")]
    pub keep: Option<u64>,
    /// Remove the oldest trees until all threads use at most this much disk space
    #[arg(long, value_name = "MB")]
    pub max_megabytes: Option<u64>,
    /// Delete transcripts instead of moving them to archive/
    #[arg(long)]
    pub delete: bool,
    /// Show what would be removed
    #[arg(long)]
    pub dry_run: bool,
    /// Do not prompt
    #[arg(short, long)]
    pub yes: bool,
}

// `rye thread wait`
#[derive(Debug, Args)]
pub struct WaitArguments {
    /// The threads' ids or their beginnings
    #[arg(value_name = "THREAD", required = true, add = ArgValueCompleter::new(completion::threads))]
    pub ids: Vec<String>,
    /// Stop waiting when one has ended
    #[arg(long, conflicts_with = "quorum")]
    pub any: bool,
    /// Stop waiting when this many have ended
    #[arg(long, value_name = "N")]
    pub quorum: Option<usize>,
    /// Wait at most this many seconds
    #[arg(long, value_name = "S")]
    pub timeout: Option<f64>,
}

// `rye thread resume`
#[derive(Debug, Args)]
pub struct ResumeArguments {
    /// The thread's id or its beginning
    #[arg(value_name = "THREAD", add = ArgValueCompleter::new(completion::resumable_threads))]
    pub id: String,
    /// Change a limit: turns=30 sets it, turns=+10 raises it; can be repeated
    #[arg(long = "limit", value_name = "NAME=VALUE", add = ArgValueCompleter::new(completion::limits))]
    pub limits: Vec<String>,
    /// A message to the model
    #[arg(long, value_name = "TEXT")]
    pub message: Option<String>,
    /// Try again, with growing pauses, until a model provider answers
    #[arg(long)]
    pub when_available: bool,
}

// `rye thread patch`
#[derive(Debug, Args)]
pub struct PatchArguments {
    /// The thread's id or its beginning
    #[arg(value_name = "THREAD", add = ArgValueCompleter::new(completion::threads))]
    pub id: String,
    /// Apply the patch to this project, only if no file it touches has changed since
    #[arg(long)]
    pub apply: bool,
    /// Apply a patch that is incomplete because a worker died
    #[arg(long, requires = "apply")]
    pub accept_incomplete: bool,
}

// `rye thread fork`
#[derive(Debug, Args)]
pub struct ForkArguments {
    /// The thread's id or its beginning
    #[arg(value_name = "THREAD", add = ArgValueCompleter::new(completion::threads))]
    pub id: String,
    /// The turn after which the new thread begins; 0 is before the first [default: the last that is over]
    #[arg(long, value_name = "TURN")]
    pub at: Option<u64>,
    /// A message to the model
    #[arg(long, value_name = "TEXT")]
    pub message: Option<String>,
    /// A model, or a tier such as fast [default: the thread's]
    #[arg(long, value_name = "M")]
    pub model: Option<String>,
    /// A provider [default: the thread's, or one that serves the model]
    #[arg(long, value_name = "P")]
    pub provider: Option<String>,
    /// Change a limit: turns=30 sets it, turns=+10 raises it; can be repeated
    #[arg(long = "limit", value_name = "NAME=VALUE", add = ArgValueCompleter::new(completion::limits))]
    pub limits: Vec<String>,
    /// Do not wait: run in the background
    #[arg(long = "async")]
    pub is_async: bool,
}

/// What a yes covers beyond the call it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AlwaysScope {
    /// Every later call of the same item in the same thread
    Item,
    /// Later calls of the same item with the same arguments in the same thread
    Arguments,
}

// `rye thread approve`
#[derive(Debug, Args)]
pub struct ApproveArguments {
    /// What is allowed
    #[command(flatten)]
    pub answer: AnswerArguments,
    /// Allow later calls of this thread as well, without asking again
    #[arg(long, value_name = "SCOPE", value_enum)]
    pub always: Option<AlwaysScope>,
}

// `rye thread approve`, `rye thread deny`
#[derive(Debug, Args)]
pub struct AnswerArguments {
    /// The request's id, or the thread that asks
    #[arg(value_name = "THREAD|REQUEST", add = ArgValueCompleter::new(completion::unfinished_threads))]
    pub target: String,
    /// A message to the model
    #[arg(long, value_name = "TEXT")]
    pub message: Option<String>,
    /// Set or raise a limit with the answer [default: what the thread asks for]
    #[arg(long = "limit", value_name = "NAME=VALUE", add = ArgValueCompleter::new(completion::limits))]
    pub limits: Vec<String>,
}
