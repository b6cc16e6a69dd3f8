//! TypeScript tools.
#![no_main]

rye_fuzz::item_target!(Tool, TypeScript, ".ts");
