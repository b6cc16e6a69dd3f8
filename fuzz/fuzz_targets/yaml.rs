//! YAML config.
#![no_main]

rye_fuzz::item_target!(Config, Yaml, ".yaml");
