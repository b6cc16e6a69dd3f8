//! Knowledge: markdown with front matter, and plain YAML.
#![no_main]

rye_fuzz::item_target!(Knowledge, MarkdownFrontmatter, ".md", ".yaml");
