//! One file per verb.

pub mod bundles;
pub mod config;
pub mod doctor;
pub mod init;
pub mod keys;
pub mod load;
pub mod search;
pub mod sign;
pub mod trust;
pub mod verify;
pub mod why;
