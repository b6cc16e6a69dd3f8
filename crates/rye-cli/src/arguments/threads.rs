//! What people type to run directives and to look after threads.

use clap::{Args, Subcommand, ValueEnum};
use clap_complete::engine::ArgValueCompleter;

use crate::completion;

// `rye run`
#[derive(Debug, Args)]
#[command(
    after_help = "rye run examples/greet name=Ada              without a key: the directive's own actions, in order\nrye run team/review --model fast --limit turns=5 --limit spend=0.10\nrye run team/review --dry-run                what it would be asked, may do and may cost\nrye run team/nightly --async                 keeps running in the background when this command has ended\n\nExit codes: 0 completed, 1 failed, 6 suspended (the command to go on is shown), 7 cancelled."
)]
pub struct RunArguments {
    /// The directive, such as team/review
    #[arg(value_name = "DIRECTIVE", add = ArgValueCompleter::new(completion::directives))]
    pub directive: String,
    /// Its inputs
    #[arg(value_name = "KEY=VALUE")]
    pub inputs: Vec<String>,
    /// Inputs as one JSON object; @FILE reads a file, - standard input
    #[arg(long, value_name = "JSON")]
    pub params: Option<String>,
    /// A model, or a tier such as fast [default: what the directive says]
    #[arg(long, value_name = "M")]
    pub model: Option<String>,
    /// Who answers, such as offline [default: what is configured, else whoever there is a key for]
    #[arg(long, value_name = "P")]
    pub provider: Option<String>,
    /// A limit: turns, tokens, spend, spawns, depth or duration_seconds; repeat it for more
    #[arg(long = "limit", value_name = "NAME=VALUE", add = ArgValueCompleter::new(completion::limits))]
    pub limits: Vec<String>,
    /// Go on in a new thread from where this one ended
    #[arg(long = "continue", value_name = "THREAD", add = ArgValueCompleter::new(completion::threads))]
    pub continues: Option<String>,
    /// Something to tell the model when it goes on
    #[arg(long, value_name = "TEXT", requires = "continues")]
    pub message: Option<String>,
    /// Do not wait for it: it goes on in the background
    #[arg(long = "async", conflicts_with = "dry_run")]
    pub is_async: bool,
    /// Show what would run; costs nothing, makes no thread
    #[arg(long)]
    pub dry_run: bool,
}

/// `rye thread`
#[derive(Debug, Subcommand)]
#[command(defer = true)]
pub enum ThreadCommand {
    /// List threads, the newest first
    List(ListArguments),
    /// Draw threads with those they have started
    Tree {
        /// Only this thread and what is below it
        #[arg(value_name = "THREAD", add = ArgValueCompleter::new(completion::threads))]
        id: Option<String>,
        /// Draw it anew whenever something changes, until all have ended
        #[arg(long)]
        live: bool,
    },
    /// Show one thread: what it is, what it used, what it gave, how to go on
    Show {
        /// The thread, or the beginning of its name
        #[arg(value_name = "THREAD", add = ArgValueCompleter::new(completion::threads))]
        id: String,
    },
    /// Tell what a thread and all below it have cost
    #[command(after_help = "rye thread cost 0a1b --by child")]
    Cost {
        /// The thread, or the beginning of its name
        #[arg(value_name = "THREAD", add = ArgValueCompleter::new(completion::threads))]
        id: String,
        /// What the sums are told by
        #[arg(long, value_enum, default_value_t = CostBy::Item)]
        by: CostBy,
    },
    /// Follow a thread until it ends, from any terminal
    Tail {
        /// The thread, or the beginning of its name
        #[arg(value_name = "THREAD", add = ArgValueCompleter::new(completion::threads))]
        id: String,
        /// Those it starts too
        #[arg(long)]
        tree: bool,
    },
    /// Print what a thread did
    Transcript {
        /// The thread, or the beginning of its name
        #[arg(value_name = "THREAD", add = ArgValueCompleter::new(completion::threads))]
        id: String,
        /// As a page
        #[arg(long)]
        markdown: bool,
    },
    /// Tell whether a transcript is what its thread wrote
    #[command(after_help = "Exit code 4 if one was changed or cut, or is older than when you last used it.")]
    Verify {
        /// The thread, or the beginning of its name
        #[arg(value_name = "THREAD", required_unless_present_any = ["all", "accept_older"], add = ArgValueCompleter::new(completion::threads))]
        id: Option<String>,
        /// All of them
        #[arg(long, conflicts_with = "id")]
        all: bool,
        /// Accept the threads as they are now as the latest, after you restored an older copy yourself
        #[arg(long, conflicts_with = "id")]
        accept_older: bool,
    },
    /// Run a thread's directive again with the answers it was given: no model is asked, tools run again
    #[command(
        after_help = "Ends with exit code 1 where the model would see something else than was recorded."
    )]
    Replay {
        /// The thread, or the beginning of its name
        #[arg(value_name = "THREAD", add = ArgValueCompleter::new(completion::threads))]
        id: String,
    },
    /// Wait for threads
    #[command(after_help = "rye thread wait 0a1b 2c3d --any --timeout 60")]
    Wait(WaitArguments),
    /// Ask a thread to end, wherever it runs
    Cancel {
        /// The threads, or the beginnings of their names
        #[arg(value_name = "THREAD", required = true, add = ArgValueCompleter::new(completion::threads))]
        ids: Vec<String>,
        /// Why
        #[arg(long, default_value = "cancelled by its user")]
        reason: String,
    },
    /// End a thread whose process is gone or does not answer, by force
    Kill {
        /// The thread, or the beginning of its name
        #[arg(value_name = "THREAD", add = ArgValueCompleter::new(completion::threads))]
        id: String,
    },
    /// Go on with a thread that was suspended or left behind
    #[command(
        after_help = "rye thread resume 0a1b --limit turns=+10\nrye thread resume 0a1b --message 'The tests are in tests/main'"
    )]
    Resume(ResumeArguments),
    /// Allow what a thread asks for, and let it go on
    Approve(AnswerArguments),
    /// Refuse what a thread asks for: it is told, or ends if it wanted that
    Deny {
        /// What is refused
        #[command(flatten)]
        answer: AnswerArguments,
        /// End the thread
        #[arg(long)]
        end: bool,
    },
    /// List what threads ask people, from any depth
    Approvals {
        /// Only this thread and what is below it
        #[arg(value_name = "THREAD", add = ArgValueCompleter::new(completion::threads))]
        id: Option<String>,
    },
    /// Forget trees of threads that have ended: by age, by number, by room
    #[command(
        after_help = "Without --older-than, --keep and --max-megabytes the settings `cleanup` of budget_ledger_schema.yaml say what goes.\nWhat is at work, suspended or asks a person stays, and so does all that belongs to its tree."
    )]
    Prune(PruneArguments),
}

/// What the sums of a cost report are told by.
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
    /// The thread itself, and each of its children with all below
    Child,
}

// `rye thread list`
#[derive(Debug, Args)]
pub struct ListArguments {
    /// Those that other threads have started too, and however many there are
    #[arg(long)]
    pub all: bool,
    /// Only those standing so: running, suspended, completed, error, cancelled, killed, interrupted, …
    #[arg(long, value_name = "S", add = ArgValueCompleter::new(completion::statuses))]
    pub status: Option<String>,
    /// Only those of this directive
    #[arg(long, value_name = "D", add = ArgValueCompleter::new(completion::directives))]
    pub directive: Option<String>,
    /// At most so many [default: 20]
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
}

// `rye thread prune`
#[derive(Debug, Args)]
pub struct PruneArguments {
    /// Trees that ended at least so many days ago
    #[arg(long, value_name = "DAYS")]
    pub older_than: Option<u64>,
    /// All but the newest so many trees
    #[arg(long, value_name = "N")]
    pub keep: Option<u64>,
    /// The oldest trees, until all threads take no more room than this
    #[arg(long, value_name = "MB")]
    pub max_megabytes: Option<u64>,
    /// Remove transcripts instead of moving them to archive/
    #[arg(long)]
    pub delete: bool,
    /// Show what would go
    #[arg(long)]
    pub dry_run: bool,
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
}

// `rye thread wait`
#[derive(Debug, Args)]
pub struct WaitArguments {
    /// The threads, or the beginnings of their names
    #[arg(value_name = "THREAD", required = true, add = ArgValueCompleter::new(completion::threads))]
    pub ids: Vec<String>,
    /// Until one has ended
    #[arg(long, conflicts_with = "quorum")]
    pub any: bool,
    /// Until so many have ended
    #[arg(long, value_name = "N")]
    pub quorum: Option<usize>,
    /// At most so many seconds
    #[arg(long, value_name = "S")]
    pub timeout: Option<f64>,
}

// `rye thread resume`
#[derive(Debug, Args)]
pub struct ResumeArguments {
    /// The thread, or the beginning of its name
    #[arg(value_name = "THREAD", add = ArgValueCompleter::new(completion::threads))]
    pub id: String,
    /// A limit: turns=30 sets it, turns=+10 raises it; repeat it for more
    #[arg(long = "limit", value_name = "NAME=VALUE", add = ArgValueCompleter::new(completion::limits))]
    pub limits: Vec<String>,
    /// Something to tell the model
    #[arg(long, value_name = "TEXT")]
    pub message: Option<String>,
}

// `rye thread approve`, `rye thread deny`
#[derive(Debug, Args)]
pub struct AnswerArguments {
    /// The question's name, or the thread that asks
    #[arg(value_name = "THREAD|REQUEST", add = ArgValueCompleter::new(completion::threads))]
    pub target: String,
    /// Something to tell the model
    #[arg(long, value_name = "TEXT")]
    pub message: Option<String>,
    /// A limit to set or to raise with the answer [default: what the thread asks for]
    #[arg(long = "limit", value_name = "NAME=VALUE", add = ArgValueCompleter::new(completion::limits))]
    pub limits: Vec<String>,
}
