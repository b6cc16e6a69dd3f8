//! A thread as it goes, for people: events and words come in, lines come out. Nothing here prints or knows a terminal but
//! `screen`, which hands lines to the one place that does.

pub mod format;
pub mod renderer;
pub mod view;
