//! Source trees of tests.

use std::collections::BTreeMap;

use rye_import::export::{ExportItem, RenderedItem, render_item};
use rye_import::{
    ExportClient, ExportFile, ImportOptions, ImportPlan, PlannedItem, SourceEntry, SourceListing, SourcePath,
    SourceTree,
};
use rye_item::ItemType;
use rye_item::parse::{directive, knowledge};

/// Plans the import of these files.
pub fn plan(files: &[(&str, &str)]) -> ImportPlan {
    plan_with(files, &ImportOptions { author: "tester".to_owned(), ..ImportOptions::default() })
}

pub fn plan_with(files: &[(&str, &str)], options: &ImportOptions) -> ImportPlan {
    let bytes: Vec<(&str, &[u8])> = files.iter().map(|(path, text)| (*path, text.as_bytes())).collect();
    plan_bytes(&bytes, options)
}

pub fn plan_bytes(files: &[(&str, &[u8])], options: &ImportOptions) -> ImportPlan {
    let mut listing = SourceListing { context: "home/project".to_owned(), ..SourceListing::default() };
    let mut tree = SourceTree::default();
    for (path, bytes) in files {
        let entry = SourceEntry::File { size: bytes.len() as u64, is_executable: false };
        match SourcePath::new(path) {
            Ok(path) => {
                listing.entries.insert(path.clone(), entry);
                tree.insert(path, bytes.to_vec());
            }
            Err(error) => listing.refused.push(((*path).to_owned(), error)),
        }
    }
    let units = rye_import::detect(&listing);
    rye_import::plan(&listing, &tree, &units, options)
}

/// The planned item of this name, which must be readable as an item of its type.
pub fn item<'a>(plan: &'a ImportPlan, name: &str) -> &'a PlannedItem {
    let found = plan.items.iter().find(|item| item.item.to_string() == name);
    let found = found.unwrap_or_else(|| panic!("no {name}: {:?} {:?}", names(plan), plan.refused));
    let problems = match found.item.item_type {
        ItemType::Knowledge => knowledge::parse(&found.text).problems,
        ItemType::Directive => directive::parse(&found.text).problems,
        ItemType::Tool | ItemType::Config => Vec::new(),
    };
    assert_eq!(problems, [], "{}", found.text);
    found
}

pub fn names(plan: &ImportPlan) -> Vec<String> {
    plan.items.iter().map(|item| item.item.to_string()).collect()
}

/// All notes and refusals in one text.
pub fn words(plan: &ImportPlan) -> String {
    let items = plan.items.iter().flat_map(|item| &item.notes).map(|note| note.text.clone());
    let notes = plan.notes.iter().map(|(source, note)| format!("{source}: {}", note.text));
    let refused = plan.refused.iter().map(|refused| format!("{}: {}", refused.source, refused.reason));
    items.chain(notes).chain(refused).collect::<Vec<_>>().join("\n")
}

/// The files that an item of a plan is exported as.
pub fn export(plan: &ImportPlan, name: &str, client: ExportClient) -> Vec<ExportFile> {
    let planned = item(plan, name);
    let pages: BTreeMap<String, String> =
        plan.items.iter().map(|item| (item.item.id.to_string(), item.text.clone())).collect();
    let assets = plan.assets.iter().map(|asset| (asset.path.clone(), asset.bytes.clone())).collect();
    let source = ExportItem {
        item: planned.item.clone(),
        text: format!("<!-- rye:signed:2026-01-01T00:00:00Z:x:y:z -->\n{}", planned.text),
        pages,
        assets,
    };
    match render_item(client, &source) {
        Ok(RenderedItem::Files(files)) => files,
        other => panic!("no files: {other:?}"),
    }
}
