//! What is shown of threads, worked out once for all that show it: the command line, MCP clients, a page. Rendering is
//! left to them.

mod check;
mod cost;
mod detail;
mod estimates;
mod fork;
mod limits;
mod live;
mod live_row;
mod next_command;
mod questions;
mod schedules;
mod spending;
mod start;
mod text;
mod thread_index;
mod thread_value;
mod timeline;
mod tree;
mod workers;

pub use check::{ThreadCheck, check_thread};
pub use cost::{CostGrouping, CostReport, CostSum};
pub use detail::{approval_value, detail_value, notification_value, recorded_outcome, resource_value};
pub use estimates::EstimateSum;
pub use limits::usage_value;
pub use live::{LiveChange, LiveThreads};
pub use live_row::{LiveFilter, LiveRow, ROW_COLUMNS};
pub use next_command::{approve_command, continue_command, resume_command, successor_command};
pub use questions::{question_digest, question_value};
pub use schedules::{ScheduleRow, schedule_rows};
pub use spending::{SpendingReport, SpendingSum, parse_since};
pub use start::{start_value, turn_values};
pub use text::truncate;
pub use thread_index::{FORGED, INTERRUPTED, ThreadIndex, ThreadsPlace, WAITING, is_listed_status};
pub use thread_value::thread_value;
pub use timeline::timeline_value;
pub use tree::{TreeRow, tree_rows};
pub use workers::workers_value;
