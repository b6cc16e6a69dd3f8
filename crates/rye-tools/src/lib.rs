//! The standard tools compiled into the binary. Each is a function from parameters to a result; descriptors in the
//! bundles give them ids, schemas and signatures.

pub mod diff;
mod display;
pub mod file_system;
mod line_id;
mod line_id_store;
mod lines;
mod parameters;
mod path_access;
pub mod system;
mod walk;
pub mod web;

use rye_exec::NativeTool;

/// Every native tool of this crate.
#[must_use]
pub fn all() -> Vec<Box<dyn NativeTool>> {
    let mut tools: Vec<Box<dyn NativeTool>> = vec![
        Box::new(file_system::Read),
        Box::new(file_system::Write),
        Box::new(file_system::EditLines),
        Box::new(file_system::Glob),
        Box::new(file_system::Grep),
        Box::new(file_system::List),
        Box::new(system::SystemFacts),
    ];
    tools.extend(web::all());
    tools
}
