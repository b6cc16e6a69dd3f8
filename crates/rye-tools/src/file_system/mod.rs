//! Files of the project: read, write, edit by line, list, find, search.

mod edit_lines;
mod edit_plan;
mod glob;
mod grep;
mod list;
mod patterns;
mod read;
mod text;
mod write;

pub use edit_lines::EditLines;
pub use glob::Glob;
pub use grep::Grep;
pub use list::List;
pub use read::Read;
pub use write::Write;
