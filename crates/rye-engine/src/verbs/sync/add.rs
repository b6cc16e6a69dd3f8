//! `add` and `remove`: a bundle into the manifest, the lock and the project, or out of all three.

use std::path::Path;

use lillux::Fingerprint;
use rye_bundle::project::{BundleRequirement, RequirementSource, SourceFields};
use rye_bundle::registry::Reference;
use rye_item::BundleId;
use rye_item::text::one_line;
use semver::VersionReq;

use super::plan::{PreparedSync, SyncOptions};
use super::resolve::{check_requirement, lock_prepared, prepare_located, resolve};
use super::{FetchContext, ProjectBundles, install_options, invalid_error};
use crate::engine::Engine;
use crate::error::{Code, Error, Result};
use crate::verbs::install;

/// What is added.
#[derive(Clone, Debug)]
pub struct AddRequest<'a> {
    /// A path from `folder`, or the address of a source.
    pub source: &'a str,
    /// What is given beside it.
    pub fields: SourceFields,
    /// The folder that paths begin at.
    pub folder: &'a Path,
    /// Which versions are wanted.
    pub range: Option<&'a str>,
    /// The key that must have signed it.
    pub signer: Option<Fingerprint>,
}

/// Works out what adding a bundle would change.
///
/// # Errors
/// When the project is not approved, the source is not valid or not reached, or the bundle cannot be installed. Nothing was
/// changed then.
pub fn prepare_add(
    engine: &Engine,
    request: &AddRequest<'_>,
    options: SyncOptions,
    fetch: &mut FetchContext<'_>,
) -> Result<PreparedSync> {
    let mut sync = PreparedSync::new(ProjectBundles::read_approved(engine)?);
    let source = parse_source(engine, request)?;
    let range = request.range.map(|text| {
        VersionReq::parse(text).map_err(|error| {
            let message = format!("invalid version range `{}`: {error}", one_line(text));
            Error::new(Code::InvalidArgument, message).hint("such as ^1.2, ~1.2.3, \">=1, <3\" or =1.2.3")
        })
    });
    let range = range.transpose()?;
    let resolved = resolve(engine, &source, range.as_ref(), fetch)?;
    let options = install_options(&options, request.signer);
    let install = prepare_located(engine, &source, &resolved.locator, options, fetch)?;
    let (version, _, _) = install.identity();
    let is_chosen = !source.is_fixed() && resolved.is_tag;
    let default = || VersionReq::parse(&format!("^{version}")).ok().filter(|_| is_chosen);
    let requirement = BundleRequirement {
        id: install.bundle_id().clone(),
        range: range.or_else(default),
        signer: request.signer.unwrap_or(install.preview.signer.fingerprint),
        fields: request.fields.clone(),
        source,
    };
    check_requirement(&requirement, &install)?;
    sync.manifest = sync
        .manifest
        .with(&requirement)
        .map_err(|problems| invalid_error(super::PROJECT_MANIFEST_PATH, problems, &[]))?;
    let locked = lock_prepared(requirement, &install, &resolved.locator);
    let is_locked = sync.before.lock.find(locked.id()) == Some(&locked);
    sync.install(install, locked, is_locked);
    Ok(sync)
}

/// The source as a manifest names it: a path from the project's folder, wherever the user is.
fn parse_source(engine: &Engine, request: &AddRequest<'_>) -> Result<RequirementSource> {
    let text = request.source;
    let is_address = text.contains("://") || text.contains("::") || Reference::has_scheme(text);
    let invalid = |error: rye_bundle::project::InvalidSource| {
        let failure = Error::new(Code::InvalidArgument, error.to_string());
        match text.starts_with("https://") && request.fields.sha256.is_none() {
            true => failure.hint("take the digest from its maker, not from the download: --sha256 DIGEST"),
            false => failure.hint(
                "a folder or archive in the project, oci://…, https://… with --sha256, or git+https://…",
            ),
        }
    };
    if is_address || text.starts_with('-') || text.is_empty() {
        return RequirementSource::parse(text, &request.fields).map_err(invalid);
    }
    let project = engine.workspace.roots.project.clone().unwrap_or_default();
    let full = request.folder.join(text);
    let found = fs_err::canonicalize(&full).map_err(|_| {
        Error::new(Code::PathNotFound, format!("`{}` does not exist", one_line(text)))
            .hint("name a folder that holds `.ai`, an archive (.tar.zst, .zip), oci://…, https://… or git+…")
    })?;
    let relative = found.strip_prefix(fs_err::canonicalize(&project)?).ok().and_then(Path::to_str);
    let relative = relative.filter(|relative| !relative.is_empty()).ok_or_else(|| {
        let message = format!("`{}` is not inside the project, so others would not have it", one_line(text));
        Error::new(Code::InvalidArgument, message)
            .detail("path", found.display().to_string())
            .hint("copy it into the project and commit it, or push it: rye bundle push")
            .hint("for yourself only: rye install")
    })?;
    RequirementSource::parse(relative, &request.fields).map_err(invalid)
}

/// Works out what removing a bundle would change. Naming it is the consent.
///
/// # Errors
/// When the project is not approved, or the manifest does not ask for the bundle.
pub fn prepare_remove(engine: &Engine, id: &BundleId, force: bool) -> Result<PreparedSync> {
    let mut sync = PreparedSync::new(ProjectBundles::read_approved(engine)?);
    sync.before.find(id)?;
    sync.manifest = sync
        .manifest
        .without(id)
        .map_err(|problems| invalid_error(super::PROJECT_MANIFEST_PATH, problems, &[]))?;
    sync.lock.remove(id);
    sync.force_removal = force;
    if install::project_installation(engine, id)?.is_some_and(|installed| installed.lock.managed) {
        sync.removals.push(id.clone());
    }
    Ok(sync)
}
