//! What other clients keep (skills, agents, commands, rules, plugins, MCP servers) as items, and items as their files.
//!
//! Everything here is a function over values: names and bytes of a source tree come in, a plan goes out. Nothing is
//! read, written, fetched or run; signing and consent belong to the caller.
//!
//! ```text
//! SourceListing → SourceUnit → SourceTree → ImportPlan → ItemChange        (import)
//! ExportItem → ExportFile → ExportRecord → ExportState                     (export)
//! ```

pub mod change;
pub mod detect;
pub mod export;
mod findings;
mod formats;
mod front_matter;
mod grants;
mod names;
pub mod plan;
pub mod provenance;
mod render;
pub mod tree;

pub use change::{ItemChange, decide_change};
pub use detect::{SourceFormat, SourceUnit, detect};
pub use export::{ExportClient, ExportFile, ExportItem, RenderedItem, SourceFile};
pub use plan::{
    ImportNote, ImportOptions, ImportPlan, NoteKind, PlannedAsset, PlannedItem, RefusedSource, RemoteSource,
    plan,
};
pub use provenance::{ImportedFile, ImportedItem, Provenance};
pub use tree::{SourceEntry, SourceListing, SourceOrigin, SourcePath, SourceTree};
