//! Shell tools: metadata in leading comment lines.
#![no_main]

rye_fuzz::item_target!(Tool, Shell, ".sh");
