//! The verbs: a module for each, or for a few that belong together.

pub mod bundles;
pub mod ci;
pub mod complete;
pub mod config;
pub mod config_set;
pub mod doctor;
pub mod execute;
pub mod init;
pub mod install;
pub mod join;
pub mod keys;
pub mod list;
pub mod load;
pub mod lock;
pub mod new_item;
pub mod notify;
pub mod registry;
pub mod search;
pub mod sign;
pub mod source;
pub mod sync;
pub mod test_files;
pub mod trust;
pub mod verify;
pub mod why;
mod yaml_edit;
