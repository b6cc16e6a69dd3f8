//! What is shown of threads, worked out once for all that show it: the command line, MCP clients, a page. Rendering is
//! left to them.

mod cost;
mod detail;
mod estimates;
mod fork;
mod next_command;
mod text;
mod thread_index;
mod thread_value;
mod tree;

pub use cost::{CostGrouping, CostReport, CostSum};
pub use detail::{approval_value, detail_value, notification_value, recorded_outcome, resource_value};
pub use estimates::EstimateSum;
pub use next_command::{approve_command, resume_command};
pub use text::truncate;
pub use thread_index::{FORGED, INTERRUPTED, ThreadIndex, WAITING};
pub use thread_value::thread_value;
pub use tree::{TreeRow, tree_rows};
