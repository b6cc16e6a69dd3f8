//! Directives: markdown with an XML fence.
#![no_main]

rye_fuzz::item_target!(Directive, MarkdownXml, ".md");
