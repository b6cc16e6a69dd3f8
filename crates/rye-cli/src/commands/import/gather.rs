//! The plans of everything that is imported in one: what was named, and what a marketplace or manifest in it names elsewhere.

use std::path::Path;

use rye_engine::verbs::sync::{self, SourceFields, SourceFolder};
use rye_engine::{Code, Error};
use rye_import::{ImportOptions, ImportPlan, RefusedSource, RemoteSource, SourceOrigin};
use rye_item::BundleId;
use rye_item::text::one_line;

use super::source::{ImportSource, is_address};
use crate::arguments::ImportArguments;
use crate::commands::CommandContext;
use crate::commands::project_bundles::with_fetch;

/// How many repositories one import fetches.
const MAX_FETCHES: usize = 50;
/// What stands for each source elsewhere.
const ALL: &str = "all";

/// A plan, and what was fetched for it.
pub struct GatheredPlan {
    pub plan: ImportPlan,
    pub fetched: Vec<SourceOrigin>,
    /// Packages that are signed bundles: entries of the project's manifest.
    pub bundles: Vec<BundleEntry>,
}

/// A bundle in a repository, at a commit.
pub struct BundleEntry {
    pub id: BundleId,
    pub address: String,
    pub fields: SourceFields,
}

/// Reads all sources. The same item from two of them is refused unless it is the same.
///
/// # Errors
/// When a source that was named is not there, or cannot be fetched.
pub fn gather(
    context: &CommandContext,
    arguments: &ImportArguments,
    options: &ImportOptions,
) -> Result<GatheredPlan, Error> {
    let mut gathered = GatheredPlan { plan: ImportPlan::default(), fetched: Vec::new(), bundles: Vec::new() };
    for source in open_all(context, arguments, &mut gathered.fetched)? {
        add(&mut gathered.plan, &mut source.plan(options)?);
    }
    if !arguments.fetch.is_empty() {
        fetch_remotes(context, arguments, options, &mut gathered)?;
    }
    Ok(gathered)
}

fn open_all(
    context: &CommandContext,
    arguments: &ImportArguments,
    fetched: &mut Vec<SourceOrigin>,
) -> Result<Vec<ImportSource>, Error> {
    let project = context.settings.roots.project.as_deref();
    match (arguments.all, project) {
        (true, Some(project)) => return Ok(vec![ImportSource::of_project(project)?]),
        (true, None) => return Err(rye_engine::verbs::new_item::no_project_error(&context.engine)),
        (false, _) => {}
    }
    let fields = SourceFields {
        sha256: arguments.sha256.clone(),
        rev: arguments.rev.clone(),
        path: arguments.path.clone(),
    };
    let addresses = arguments.paths.iter().filter(|given| is_address(given)).count();
    if fields != SourceFields::default() && (addresses != 1 || arguments.paths.len() != 1) {
        return Err(Error::new(
            Code::InvalidArgument,
            "--rev, --path and --sha256 are for one address, which is the only source then",
        )
        .hint("rye import git+https://HOST/REPOSITORY --rev TAG --path DIR"));
    }
    let open = |given: &Path| match is_address(given) {
        true => {
            let folder = fetch(context, &given.to_string_lossy(), &fields)?;
            let origin = origin(&folder);
            fetched.push(origin.clone());
            Ok(ImportSource::of_fetched(folder, origin))
        }
        false if is_archive(given, &context.settings.working_dir) => {
            let path = context.settings.working_dir.join(given);
            Ok(ImportSource::of_unpacked(sync::unpack_source(&context.engine, &path)?))
        }
        false => ImportSource::open(given, &context.settings.working_dir, project),
    };
    arguments.paths.iter().map(std::path::PathBuf::as_path).map(open).collect()
}

/// Whether a file that was named is an archive, as its name says.
fn is_archive(given: &Path, working_dir: &Path) -> bool {
    let name = given.file_name().and_then(std::ffi::OsStr::to_str).unwrap_or_default();
    sync::is_archive_name(name) && working_dir.join(given).is_file()
}

fn fetch(context: &CommandContext, address: &str, fields: &SourceFields) -> Result<SourceFolder, Error> {
    with_fetch(context, &mut |fetch| sync::fetch_source(&context.engine, address, fields, fetch))
}

fn origin(folder: &SourceFolder) -> SourceOrigin {
    SourceOrigin { address: folder.name.clone(), revision: folder.revision.clone() }
}

/// Fetches what was asked for by name. What one of them names elsewhere again is named, not fetched.
fn fetch_remotes(
    context: &CommandContext,
    arguments: &ImportArguments,
    options: &ImportOptions,
    gathered: &mut GatheredPlan,
) -> Result<(), Error> {
    let is_wanted =
        |remote: &RemoteSource| arguments.fetch.iter().any(|name| name == ALL || *name == remote.name);
    let listed = std::mem::take(&mut gathered.plan.remotes);
    let missing = arguments
        .fetch
        .iter()
        .find(|name| *name != ALL && !listed.iter().any(|remote| remote.name == **name));
    if let Some(name) = missing {
        let names: Vec<&str> = listed.iter().take(10).map(|remote| remote.name.as_str()).collect();
        let error = Error::new(Code::NotFound, format!("nothing here names `{}` elsewhere", one_line(name)));
        return Err(match names.is_empty() {
            true => error.hint("--fetch is for plugins of a marketplace and packages of apm.yml"),
            false => error.hint(format!("named are: {}", one_line(&names.join(", ")))),
        });
    }
    let (wanted, others): (Vec<RemoteSource>, Vec<RemoteSource>) = listed.into_iter().partition(is_wanted);
    if wanted.len() > MAX_FETCHES {
        let message = format!("{} repositories would be fetched, more than {MAX_FETCHES}", wanted.len());
        return Err(Error::new(Code::TooLarge, message).hint("name them: --fetch NAME"));
    }
    gathered.plan.remotes = others;
    for remote in wanted {
        let fields = SourceFields { rev: remote.rev.clone(), path: remote.path.clone(), sha256: None };
        let source = format!("{} ({})", remote.source, remote.name);
        let folder = match fetch(context, &remote.address, &fields) {
            Ok(folder) => folder,
            Err(error) if error.code == Code::ToolCancelled => return Err(error),
            Err(error) => {
                gathered.plan.refused.push(RefusedSource { source, reason: error.message });
                continue;
            }
        };
        let origin = origin(&folder);
        gathered.fetched.push(origin.clone());
        if let Some(id) = bundle_in(&folder.root) {
            let fields = SourceFields { rev: Some(folder.revision.clone()), ..fields };
            gathered.bundles.push(BundleEntry { id, address: folder.name.clone(), fields });
            continue;
        }
        let mut found = ImportSource::of_fetched(folder, origin).plan(options)?;
        if found.items.is_empty() && found.refused.is_empty() {
            let reason = format!("`{}` holds nothing that is imported", remote.address);
            gathered.plan.refused.push(RefusedSource { source, reason });
        }
        add(&mut gathered.plan, &mut found);
    }
    Ok(())
}

/// The only bundle in a folder, if it holds one.
fn bundle_in(root: &Path) -> Option<BundleId> {
    let folders = std::fs::read_dir(root.join(".ai/bundles")).ok()?;
    let ids = folders.flatten().filter(|entry| entry.path().join("manifest.yaml").is_file());
    let mut ids = ids.filter_map(|entry| BundleId::new(entry.file_name().to_str()?).ok());
    ids.next().filter(|_| ids.next().is_none())
}

fn add(all: &mut ImportPlan, plan: &mut ImportPlan) {
    let mut refused = Vec::new();
    plan.items.retain(|item| {
        let other = all.items.iter().find(|other| other.item == item.item);
        if let Some(other) = other.filter(|other| other.provenance.sha256 != item.provenance.sha256) {
            let reason = format!("`{}` comes from `{}` already", item.item, other.provenance.source);
            refused.push(RefusedSource { source: item.provenance.source.clone(), reason });
        }
        other.is_none()
    });
    plan.assets.retain(|asset| !all.assets.iter().any(|other| other.path == asset.path));
    all.items.append(&mut plan.items);
    all.assets.append(&mut plan.assets);
    all.notes.append(&mut plan.notes);
    all.refused.append(&mut plan.refused);
    all.refused.append(&mut refused);
    all.plugins.append(&mut plan.plugins);
    all.remotes.append(&mut plan.remotes);
}
