//! Arguments of `rye schedule`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum, ValueHint};
use clap_complete::engine::ArgValueCompleter;
use rye_agent::schedule::{ApprovalsPolicy, MissedPolicy, OverlapPolicy};

use crate::completion;

/// `rye schedule`
#[derive(Debug, Subcommand)]
#[command(defer = true)]
pub enum ScheduleCommand {
    /// Start a directive by itself, at times of a calendar or at intervals
    #[command(
        after_help = "rye schedule add team/report --cron '0 7 * * mon-fri' --time-zone Europe/Vienna\nrye schedule add team/watch --every 15m --input site=example.org\n\nThe schedule is written into schedules.yaml of your own space and signed with your key."
    )]
    Add(AddScheduleArguments),
    /// List schedules: when they run next, and what became of the last run
    List,
    /// Remove a schedule; its threads are kept
    Remove {
        /// The schedule's name
        #[arg(value_name = "NAME", add = ArgValueCompleter::new(completion::schedules))]
        name: String,
    },
    /// Start a schedule's directive now
    Run {
        /// The schedule's name
        #[arg(value_name = "NAME", add = ArgValueCompleter::new(completion::schedules))]
        name: String,
    },
    /// Start nothing until `resume`
    Pause {
        /// The schedule's name
        #[arg(value_name = "NAME", add = ArgValueCompleter::new(completion::schedules))]
        name: String,
    },
    /// Undo `pause`; times in between are not made up for
    Resume {
        /// The schedule's name
        #[arg(value_name = "NAME", add = ArgValueCompleter::new(completion::schedules))]
        name: String,
    },
    /// Start what is due now, and end
    Tick,
    /// Start what is due until it is stopped
    Watch {
        /// Run it in the background
        #[arg(long)]
        background: bool,
        /// End when there is no schedule, as the process in the background does
        #[arg(long, hide = true, conflicts_with = "background")]
        until_none: bool,
    },
    /// Print a systemd user timer that starts what is due every minute
    Systemd {
        /// Write the units instead of printing them
        #[arg(long)]
        write: bool,
        /// The folder to write them to [default: ~/.config/systemd/user]
        #[arg(long, value_name = "DIR", requires = "write", value_hint = ValueHint::DirPath)]
        dir: Option<PathBuf>,
    },
}

// `rye schedule add`
#[derive(Debug, Args)]
pub struct AddScheduleArguments {
    /// The directive, such as team/report
    #[arg(value_name = "DIRECTIVE", add = ArgValueCompleter::new(completion::directives))]
    pub directive: String,
    /// Times: minute, hour, day of the month, month, day of the week
    #[arg(long, value_name = "EXPR", required_unless_present = "every", conflicts_with = "every")]
    pub cron: Option<String>,
    /// An interval, such as 15m, 2h or 1d
    #[arg(long, value_name = "INTERVAL")]
    pub every: Option<String>,
    /// The time zone of --cron, such as Europe/Vienna [default: the machine's]
    #[arg(long, value_name = "ZONE", requires = "cron")]
    pub time_zone: Option<String>,
    /// An input of the directive; can be repeated
    #[arg(long = "input", value_name = "KEY=VALUE")]
    pub inputs: Vec<String>,
    /// What happens while the last thread has not ended
    #[arg(long, value_enum, default_value_t = OverlapChoice::Skip)]
    pub overlap: OverlapChoice,
    /// Who answers what a thread asks
    #[arg(long, value_enum, default_value_t = ApprovalsChoice::Deny)]
    pub approvals: ApprovalsChoice,
    /// What happens to times that were missed
    #[arg(long, value_enum, default_value_t = MissedChoice::Skip)]
    pub missed: MissedChoice,
    /// The schedule's name [default: the directive's id]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// A model, or a tier such as fast
    #[arg(long, value_name = "M")]
    pub model: Option<String>,
    /// A provider
    #[arg(long, value_name = "P")]
    pub provider: Option<String>,
    /// Set a limit of its threads; can be repeated
    #[arg(long = "limit", value_name = "NAME=VALUE", add = ArgValueCompleter::new(completion::limits))]
    pub limits: Vec<String>,
}

/// What happens while the last thread has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OverlapChoice {
    /// Nothing is started
    Skip,
    /// The next thread starts when that one has ended
    Queue,
    /// The next thread starts beside it
    Allow,
}

impl From<OverlapChoice> for OverlapPolicy {
    fn from(choice: OverlapChoice) -> Self {
        match choice {
            OverlapChoice::Skip => Self::Skip,
            OverlapChoice::Queue => Self::Queue,
            OverlapChoice::Allow => Self::Allow,
        }
    }
}

/// Who answers what a scheduled thread asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ApprovalsChoice {
    /// It is denied
    Deny,
    /// The thread waits for you
    Wait,
}

impl From<ApprovalsChoice> for ApprovalsPolicy {
    fn from(choice: ApprovalsChoice) -> Self {
        match choice {
            ApprovalsChoice::Deny => Self::Deny,
            ApprovalsChoice::Wait => Self::Wait,
        }
    }
}

/// What happens to missed times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MissedChoice {
    /// Nothing is started for them
    Skip,
    /// One thread is started for all of them
    RunOnce,
}

impl From<MissedChoice> for MissedPolicy {
    fn from(choice: MissedChoice) -> Self {
        match choice {
            MissedChoice::Skip => Self::Skip,
            MissedChoice::RunOnce => Self::RunOnce,
        }
    }
}
