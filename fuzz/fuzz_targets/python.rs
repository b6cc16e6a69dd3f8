//! Python tools.
#![no_main]

rye_fuzz::item_target!(Tool, Python, ".py");
