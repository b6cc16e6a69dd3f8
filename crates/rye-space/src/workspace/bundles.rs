//! The bundles of a workspace: embedded ones, and folders that the settings name.

use std::path::PathBuf;
use std::sync::Arc;

use rye_item::Space;
use rye_trust::{Identity, KeyRing};
use serde_json::Value;

use crate::approvals::Approvals;
use crate::bundle::{self, Bundle, BundleTrust, ConfiguredBundle};
use crate::config::MergedConfig;
use crate::file_stamp::WatchSet;
use crate::installed;
use crate::roots::{AI_FOLDER, Roots};

/// What was found of bundles.
pub(super) struct GatheredBundles {
    /// The bundles that are looked at, in order.
    pub(super) bundles: Vec<Bundle>,
    /// Those that would replace an embedded one if they were approved.
    pub(super) shadowed_bundles: Vec<Bundle>,
    /// What is worth knowing about them.
    pub(super) hints: Vec<String>,
}

/// The bundles in order: embedded ones, approved folders, then folders that are not approved, which shadow nothing.
pub(super) fn gather_bundles(
    embedded: Vec<Bundle>,
    configured: Vec<ConfiguredBundle>,
    approvals: &Approvals,
    ring: &mut KeyRing,
    notices: &mut Vec<String>,
    watch_set: &mut WatchSet,
) -> GatheredBundles {
    let mut bundles = embedded;
    let mut unapproved: Vec<Bundle> = Vec::new();
    let mut shadowed_bundles = Vec::new();
    let mut hints = Vec::new();
    for configured in configured {
        let mut bundle = match bundle::open_folder(&configured) {
            Ok(bundle) => bundle,
            Err(reason) => {
                notices.push(format!("a configured bundle is left out: {reason}"));
                continue;
            }
        };
        let bundles_folder = configured.path.join(AI_FOLDER).join(installed::BUNDLES_FOLDER);
        watch_set.add(bundles_folder.join(bundle.id.as_str()).join("manifest.yaml"));
        watch_set.add(bundles_folder);
        let pins: Vec<_> = approvals.pins.iter().filter(|pin| pin.bundle == bundle.id).collect();
        if pins.is_empty() {
            if bundles.iter().any(|known| known.id == bundle.id) {
                shadowed_bundles.push(bundle);
            } else if !unapproved.iter().any(|known| known.id == bundle.id) {
                unapproved.push(bundle);
            }
            continue;
        }
        bundle.trust = BundleTrust::Approved;
        let identities: Vec<Identity> = pins
            .iter()
            .map(|pin| {
                let shipped = bundle.signers.iter().find(|signer| signer.key == pin.key).cloned();
                shipped.unwrap_or_else(|| Identity::new(pin.key.clone(), bundle.id.as_str()))
            })
            .collect();
        // What cannot carry a signature is covered by the manifest, if an approved key signed that.
        let space = Space::System(bundle.id.clone());
        let unsigned = bundle.unsigned_files();
        let signed_manifest = |identity: &&Identity| {
            bundle.manifest.as_ref().is_some_and(|manifest| manifest.is_signed_by(&identity.key))
        };
        let signer = identities.iter().find(signed_manifest);
        if let Some(identity) = signer {
            ring.add_manifest_entries(&space, identity, unsigned);
        }
        let was_listed = pins.iter().any(|pin| pin.seen_version.is_some());
        if let Some(reason) = manifest_refusal(&bundle, signer.is_some(), was_listed, ring) {
            notices.push(format!("the bundle `{}` has no items: {reason}", bundle.id));
            bundle.listed_files = Some(Arc::default());
        }
        match bundles.iter_mut().find(|known| known.id == bundle.id) {
            Some(known) if known.trust == BundleTrust::Embedded => {
                hints.push(format!(
                    "the bundle `{}` in `{}` replaces the embedded one",
                    bundle.id,
                    configured.path.display()
                ));
                ring.replace_bundle(&bundle.id, identities);
                *known = bundle;
            }
            Some(_) => notices.push(format!("a second bundle `{}` is left out", bundle.id)),
            None => {
                ring.add_bundle(&bundle.id, identities);
                bundles.push(bundle);
            }
        }
    }
    bundles.extend(unapproved);
    GatheredBundles { bundles, shadowed_bundles, hints }
}

/// Why an approved bundle's files do not exist: a manifest that is not signed by a key that is trusted for it, or one that
/// was there when the bundle was approved and is gone.
fn manifest_refusal(
    bundle: &Bundle,
    is_signed_by_pin: bool,
    was_listed: bool,
    ring: &KeyRing,
) -> Option<&'static str> {
    let Some(manifest) = &bundle.manifest else {
        return was_listed.then_some("its manifest is gone");
    };
    if manifest.manifest().is_err() {
        return Some("its manifest cannot be read");
    }
    let is_general = manifest.signature().is_some_and(|line| {
        let known = ring.find(&line.fingerprint, &Space::User);
        known.is_some_and(|known| known.key.verify(&line.hash, &line.signature))
    });
    (!is_signed_by_pin && !is_general).then_some("its manifest is not signed by a key you approved for it")
}

/// The folders with bundles that the settings and the environment name.
pub(super) fn configured_folders(roots: &Roots, settings: &MergedConfig) -> Vec<ConfiguredBundle> {
    let from_config = settings.get("bundles.paths").and_then(Value::as_array).into_iter().flatten();
    let from_config = from_config.filter_map(|entry| match entry {
        Value::String(path) => {
            Some(ConfiguredBundle { path: expand(path, roots), ..ConfiguredBundle::default() })
        }
        Value::Object(map) => Some(ConfiguredBundle {
            path: expand(map.get("path")?.as_str()?, roots),
            id: map.get("id").and_then(Value::as_str).map(str::to_owned),
            categories: map.get("categories").and_then(Value::as_array).map(|list| {
                list.iter().filter_map(|category| category.as_str().map(str::to_owned)).collect()
            }),
            ..ConfiguredBundle::default()
        }),
        _ => None,
    });
    let from_environment = roots
        .bundle_paths
        .iter()
        .map(|path| ConfiguredBundle { path: path.clone(), ..ConfiguredBundle::default() });
    from_config.chain(from_environment).collect()
}

/// A path of the settings, which may begin with `~/`.
pub(super) fn expand(path: &str, roots: &Roots) -> PathBuf {
    match path.strip_prefix("~/") {
        Some(rest) => roots.home.join(rest),
        None => PathBuf::from(path),
    }
}
