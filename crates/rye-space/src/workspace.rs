//! Everything about one project and one user, opened once: spaces, keys that count, settings, approvals.

mod bundles;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use lillux::{Fingerprint, PublicKey};
use rye_item::{Extractor, ExtractorSet, ItemId, ItemRef, ItemType, Space};
use rye_trust::{Handover, Identity, KeyRing, Subject, TrustBasis, Verified, verify};
use serde_json::Value;

use crate::approvals::{Approvals, BUNDLES_FILE, PROJECTS_FILE};
use crate::bundle::{self, Bundle, BundleTrust};
use crate::config::{self, ConfigLayer, IgnoredSetting, MergedConfig, TrustContext};
use crate::file_stamp::{FileGeneration, MonitoredSet, WatchSet};
use crate::handovers;
use crate::installed;
use crate::item_file::ItemFile;
use crate::keys::{self, IdentityFile, REVOKED_FOLDER, TRUSTED_FOLDER};
use crate::ownership;
use crate::python_bundles;
use crate::roots::{AI_FOLDER, Roots, RootsError};
use crate::schema::ConfigSchema;
use crate::signed_ids::{self, SIGNED_IDS_FILE};
use crate::spaces::Spaces;
use bundles::{GatheredBundles, configured_folders, expand, gather_bundles};

/// The bundle that holds the extractors and schemas everything rests on.
const CORE_BUNDLE: &str = "ryeos-core";
const DEFAULT_MAX_ITEM_BYTES: u64 = 8 << 20;
/// How the id of a tool that is the schema of a config ends.
const SCHEMA_SUFFIX: &str = ".config-schema";

/// Why a workspace cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum WorkspaceError {
    /// The spaces are where they may not be.
    #[error(transparent)]
    Roots(#[from] RootsError),
    /// The binary's own items do not verify: the binary was damaged.
    #[error("the system items inside this binary are damaged: {0}")]
    Corrupt(String),
}

/// One project and one user, opened.
#[derive(Debug)]
pub struct Workspace {
    /// Where the spaces begin.
    pub roots: Roots,
    /// The spaces.
    pub spaces: Spaces,
    /// The keys that count.
    pub keys: KeyRing,
    /// The merged `config.yaml`.
    pub settings: MergedConfig,
    /// What the user approved.
    pub approvals: Approvals,
    /// The own public key, if there is one.
    pub own_key: Option<PublicKey>,
    /// Identity documents of user space.
    pub user_documents: Vec<IdentityFile>,
    /// Whether the project is approved.
    pub is_project_approved: bool,
    /// Configured bundles that are not approved and have the id of an embedded bundle.
    pub shadowed_bundles: Vec<Bundle>,
    /// Opt-in bundles inside the binary that the user has not enabled: no part of the system space.
    pub available_bundles: Vec<Bundle>,
    /// Hand-overs of the project that are followed, and not recorded in user space yet.
    pub new_handovers: Vec<Handover>,
    /// Keys that were replaced, by hand-overs that are recorded in user space.
    pub retired_keys: BTreeSet<Fingerprint>,
    /// What the user should know about this workspace.
    pub notices: Vec<String>,
    /// What is worth knowing when asked.
    pub hints: Vec<String>,
    schemas: Vec<ConfigSchema>,
    /// Schemas beside the core's, read when one is asked for.
    other_schemas: OnceLock<Vec<ConfigSchema>>,
    watch_set: MonitoredSet,
}

impl Workspace {
    /// Opens the workspace below `roots`.
    ///
    /// # Errors
    /// When the roots are refused or the binary is damaged.
    pub fn open(roots: Roots) -> Result<Self, WorkspaceError> {
        // A folder without `.ai` is not a project yet, wherever it lies.
        if roots.project_ai().is_some_and(|ai| ai.exists()) {
            roots.check()?;
        }
        let mut watch_set = WatchSet::default();
        let user_ai = roots.user_ai();
        let project_key = roots.project_key();

        // Looked at before they are read: a change in between is then noticed.
        for path in [
            user_ai.join(TRUSTED_FOLDER),
            user_ai.join(REVOKED_FOLDER),
            roots.signing_keys.join("public_key.pem"),
            user_ai.join(PROJECTS_FILE),
            user_ai.join(BUNDLES_FILE),
            user_ai.join(SIGNED_IDS_FILE),
        ] {
            watch_set.add(path);
        }

        let own_key = keys::own_public_key(&roots.signing_keys);
        let user_documents = keys::identities_in(&user_ai.join(TRUSTED_FOLDER));
        let embedded = bundle::embedded_bundles();
        let (mut notices, mut revocations) =
            (Vec::new(), keys::revocations_in(&user_ai.join(REVOKED_FOLDER)));
        revocations.retain(|revocation| {
            let is_seal = is_seal(&embedded, &revocation.fingerprint);
            if is_seal {
                notices.push(format!(
                    "the revocation of {} is ignored: it seals the items inside this binary",
                    revocation.fingerprint
                ));
            }
            !is_seal
        });
        let (identities, project) = (valid_identities(&user_documents), project_key.as_deref());
        let mut ring = KeyRing::from_user_documents(&identities, own_key.as_ref(), project, revocations);
        let (retired_keys, new_handovers) =
            handovers::follow(&roots, own_key.as_ref(), &mut ring, &mut notices, &mut watch_set);
        user_documents.iter().for_each(|found| watch_set.add(found.path.clone()));

        let add_signers = |ring: &mut KeyRing, bundle: &Bundle| {
            ring.add_bundle(&bundle.id, bundle.signers.iter().cloned());
        };
        embedded
            .iter()
            .filter(|bundle| !bundle.is_opt_in())
            .for_each(|bundle| add_signers(&mut ring, bundle));
        let core = CoreItems::load(&roots, &embedded)?;
        let mut approvals = Approvals::read(&user_ai, &ring);
        approvals.current_project.clone_from(&project_key);
        match signed_ids::read(&user_ai, &ring) {
            Ok(ids) => ring.set_signed_ids(ids),
            // What can damage the record can remove it too, so a damaged one is treated as absent.
            Err(problem) => notices.push(problem),
        }
        let (embedded, available_bundles): (Vec<_>, Vec<_>) =
            embedded.into_iter().partition(|bundle| !bundle.is_opt_in() || approvals.has_enabled(&bundle.id));
        embedded.iter().filter(|bundle| bundle.is_opt_in()).for_each(|bundle| add_signers(&mut ring, bundle));
        let is_project_approved = approvals.has_project(project_key.as_deref());
        if let Some(project) = &roots.project {
            // An `.ai` that appears later, or changes hands, is looked at again.
            watch_set.add_folder(project.join(AI_FOLDER));
            ownership::check_owner(project, approvals.owners_of(project_key.as_deref()))?;
        }
        notices.extend(approvals.problems.iter().cloned());
        for (ai, space) in [(roots.project_ai(), Space::Project), (Some(user_ai.clone()), Space::User)] {
            let Some(ai) = ai else { continue };
            // The author of a clone chooses which version it contains, so its bundles need the user's approval.
            if space == Space::Project && !is_project_approved {
                watch_set.add(ai.join(installed::BUNDLES_FOLDER));
                notices.extend(installed::unapproved_notices(&ai, &approvals));
                continue;
            }
            notices.extend(installed::trust_installed(&ai, &space, &approvals, &mut ring, &mut watch_set));
        }

        // Without a key that may introduce others, a project's documents have no effect and are not read.
        let project_documents = match roots.project_ai() {
            Some(ai) if ring.has_introducers() => {
                watch_set.add(ai.join(TRUSTED_FOLDER));
                keys::identities_in(&ai.join(TRUSTED_FOLDER))
            }
            Some(_) | None => Vec::new(),
        };
        project_documents.iter().for_each(|found| watch_set.add(found.path.clone()));
        ring.add_project(&valid_identities(&project_documents));

        let base_spaces =
            Spaces::new(&roots, Vec::new(), Arc::clone(&core.extractors), DEFAULT_MAX_ITEM_BYTES);
        let context = TrustContext { keys: &ring, is_project_approved };
        let schema = core.schemas.iter().find(|schema| schema.applies_to("config"));
        for space in [Some(user_ai.clone()), roots.project_ai()].into_iter().flatten() {
            core.extractors.for_type(ItemType::Config).extensions.iter().for_each(|extension| {
                watch_set.add(space.join(format!("config/config{extension}")));
            });
        }
        let (settings, _) = config::load(&base_spaces, &core.config_item, &core.config, schema, context);

        let max_bytes = max_item_bytes(&settings);
        let mut configured = configured_folders(&roots, &settings);
        let interpreters: Vec<PathBuf> =
            settings.texts("bundles.python").iter().map(|path| expand(path, &roots)).collect();
        let packages = python_bundles::find_bundles(&interpreters, &mut watch_set);
        configured.extend(packages.bundles);
        notices.extend(packages.notices);
        let GatheredBundles { bundles, shadowed_bundles, hints } =
            gather_bundles(embedded, configured, &approvals, &mut ring, &mut notices, &mut watch_set);
        let extractors = extend_extractors(&core, &roots, &bundles, &ring, is_project_approved, &mut notices);
        let spaces = Spaces::new(&roots, bundles, extractors, max_bytes);
        Ok(Self {
            spaces,
            keys: ring,
            settings,
            approvals,
            own_key,
            user_documents,
            is_project_approved,
            shadowed_bundles,
            available_bundles,
            new_handovers,
            retired_keys,
            hints,
            notices,
            schemas: core.schemas,
            other_schemas: OnceLock::new(),
            watch_set: MonitoredSet::new(watch_set),
            roots,
        })
    }

    /// Whether nothing this workspace was opened from has changed, new files included.
    #[must_use]
    pub fn is_current(&self) -> bool {
        self.watch_set.is_unchanged()
    }

    /// What this workspace was opened from, to be checked apart from it.
    #[must_use]
    pub fn watch(&self) -> MonitoredSet {
        self.watch_set.duplicate()
    }

    /// What this workspace was opened from: another value after each change that makes it another one to open.
    #[must_use]
    pub fn generation(&self) -> FileGeneration {
        self.watch_set.generation()
    }

    /// Identity documents of project space, whether they count or not.
    #[must_use]
    pub fn project_documents(&self) -> Vec<IdentityFile> {
        let ai = self.roots.project_ai();
        ai.map(|ai| keys::identities_in(&ai.join(TRUSTED_FOLDER))).unwrap_or_default()
    }

    /// Whether the identity of a key is in project space, so that those who clone it can trust what the key signed.
    #[must_use]
    pub fn is_identity_in_project(&self, key: &Fingerprint) -> bool {
        let documents = self.project_documents();
        documents
            .iter()
            .filter_map(|found| found.identity.as_ref().ok())
            .any(|found| found.fingerprint == *key)
    }

    /// The merged config `id` (`agent/agent`).
    #[must_use]
    pub fn config(&self, id: &ItemId) -> MergedConfig {
        if id.as_str() == "config" {
            return self.settings.clone();
        }
        self.config_with_layers(id).0
    }

    /// The merged config `id`, and the files it was merged from, farthest first.
    #[must_use]
    pub fn config_with_layers(&self, id: &ItemId) -> (MergedConfig, Vec<ConfigLayer>) {
        let item = ItemRef::new(ItemType::Config, id.clone());
        let context = TrustContext { keys: &self.keys, is_project_approved: self.is_project_approved };
        let defaults: Vec<ItemFile> = self.embedded_defaults(&item).into_iter().collect();
        config::load(&self.spaces, &item, &defaults, self.schema_for(id), context)
    }

    /// The files of the config `id`, farthest first, and those that could not be read.
    #[must_use]
    pub fn config_layers(&self, id: &ItemId) -> (Vec<ConfigLayer>, Vec<IgnoredSetting>) {
        let context = TrustContext { keys: &self.keys, is_project_approved: self.is_project_approved };
        config::layers(&self.spaces, &ItemRef::new(ItemType::Config, id.clone()), context)
    }

    /// The largest item that is read, in bytes.
    #[must_use]
    pub fn max_item_bytes(&self) -> u64 {
        max_item_bytes(&self.settings)
    }

    /// Whether only a bundle's own key signed this item of a bundle that is not part of the binary: such an item may not
    /// decide about what lies outside its bundle.
    #[must_use]
    pub fn is_signed_for_bundle_only(&self, item: &Verified<ItemFile>) -> bool {
        let is_embedded =
            self.spaces.bundle(item.space()).is_some_and(|bundle| bundle.trust == BundleTrust::Embedded);
        !is_embedded && item.report().basis == Some(TrustBasis::Bundle)
    }

    /// What the binary itself says in a config, though another bundle has replaced the one that holds it: the
    /// engine and its threads depend on it.
    fn embedded_defaults(&self, item: &ItemRef) -> Option<ItemFile> {
        let is_replaced = |own: &Bundle| {
            let mut others = self.spaces.bundles().iter().filter(|bundle| bundle.id == own.id);
            let is_enabled = !own.is_opt_in() || self.approvals.has_enabled(&own.id);
            is_enabled && others.any(|bundle| bundle.trust != BundleTrust::Embedded)
        };
        // Most workspaces replace nothing: the binary's bundles need not be looked at then.
        if self.spaces.bundles().iter().all(|bundle| bundle.trust == BundleTrust::Embedded) {
            return None;
        }
        let replaced: Vec<Bundle> = bundle::embedded_bundles().into_iter().filter(is_replaced).collect();
        let mut keys = KeyRing::default();
        replaced.iter().for_each(|own| keys.add_bundle(&own.id, own.signers.iter().cloned()));
        let roots = Roots { project: None, ..self.roots.clone() };
        let spaces =
            Spaces::new(&roots, replaced, Arc::clone(self.spaces.extractors()), DEFAULT_MAX_ITEM_BYTES);
        let located = spaces.locate(item, Some(rye_item::space::SpaceTier::System)).ok()?;
        verify(located, &keys).ok().map(Verified::into_subject)
    }

    /// The schema of the config `id`, if one is shipped.
    #[must_use]
    pub fn schema_for(&self, id: &ItemId) -> Option<&ConfigSchema> {
        self.all_schemas().find(|schema| schema.applies_to(id.as_str()))
    }

    /// The schemas of all configs; those of other bundles than the core are read when they are reached.
    pub fn all_schemas(&self) -> impl Iterator<Item = &ConfigSchema> {
        let others = || self.other_schemas.get_or_init(|| read_other_schemas(&self.spaces, &self.schemas));
        self.schemas.iter().chain(std::iter::once_with(others).flatten())
    }

    /// Whether development mode applies here, if it is asked for: the project is approved, and signed user config
    /// lists it.
    #[must_use]
    pub fn can_use_dev_mode(&self) -> bool {
        let listed = self.settings.texts("dev_mode.projects");
        self.is_project_approved && self.roots.project_key().is_some_and(|project| listed.contains(&project))
    }
}

/// Schemas of the other bundles inside the binary, for configs that have none yet.
fn read_other_schemas(spaces: &Spaces, known: &[ConfigSchema]) -> Vec<ConfigSchema> {
    let others = spaces
        .bundles()
        .iter()
        .filter(|bundle| bundle.trust == BundleTrust::Embedded && bundle.id.as_str() != CORE_BUNDLE);
    let items = others.flat_map(|bundle| {
        let space = Space::System(bundle.id.clone());
        let entries = spaces.scan_bundle(bundle, &[ItemType::Tool]).entries;
        entries.into_iter().map(move |entry| (entry.item, space.clone()))
    });
    items
        .filter(|(item, _)| item.id.as_str().ends_with(SCHEMA_SUFFIX))
        .filter_map(|(item, space)| {
            let candidate = spaces
                .candidate_paths(&item)
                .into_iter()
                .find(|candidate| candidate.space == space && candidate.is_found)?;
            let located = spaces.read(&item, &candidate).ok()?;
            ConfigSchema::from_value(&Value::Object(located.parsed().fields.clone())).ok()
        })
        .filter(|schema| !known.iter().any(|own| own.target == schema.target))
        .collect()
}

fn valid_identities(found: &[IdentityFile]) -> Vec<Identity> {
    found.iter().filter_map(|found| found.identity.as_ref().ok()).cloned().collect()
}

/// Whether this key seals a bundle inside the binary.
fn is_seal(embedded: &[Bundle], fingerprint: &Fingerprint) -> bool {
    embedded.iter().flat_map(|bundle| &bundle.signers).any(|signer| signer.fingerprint == *fingerprint)
}

/// What the binary itself brings.
struct CoreItems {
    extractors: Arc<ExtractorSet>,
    schemas: Vec<ConfigSchema>,
    config: Vec<ItemFile>,
    config_item: ItemRef,
}

impl CoreItems {
    fn load(roots: &Roots, embedded: &[Bundle]) -> Result<Self, WorkspaceError> {
        let corrupt = |what: &dyn std::fmt::Display| WorkspaceError::Corrupt(what.to_string());
        let core: Vec<Bundle> =
            embedded.iter().filter(|bundle| bundle.id.as_str() == CORE_BUNDLE).cloned().collect();
        let bundle = core.first().ok_or_else(|| corrupt(&"the core bundle is missing"))?;
        // These are part of the binary as its code is: a check with the key beside them would prove nothing. What is
        // loaded or run of a bundle is verified like any other item.
        let mut extractors = Vec::new();
        for item_type in ItemType::ALL {
            let name = item_type.as_str();
            let path = format!("{AI_FOLDER}/tools/rye/core/extractors/{name}/{name}_extractor.yaml");
            let fields = bundle.embedded_fields(&path).ok_or_else(|| corrupt(&path))?;
            let document = serde_json::from_str(fields).map_err(|problem| corrupt(&problem))?;
            let extractor = Extractor::from_value(item_type, &document)
                .map_err(|problems| corrupt(&format!("{path}: {}", problems[0])))?;
            extractors.push(extractor);
        }
        let extractors = Arc::new(ExtractorSet::new(extractors).map_err(|missing| corrupt(&missing))?);
        let spaces = Spaces::new(
            &Roots { project: None, ..roots.clone() },
            core.clone(),
            Arc::clone(&extractors),
            DEFAULT_MAX_ITEM_BYTES,
        );
        let space = Space::System(bundle.id.clone());
        let read = |item: &ItemRef| -> Result<ItemFile, WorkspaceError> {
            let candidate = spaces
                .candidate_paths(item)
                .into_iter()
                .find(|candidate| candidate.space == space && candidate.is_found);
            let candidate = candidate.ok_or_else(|| corrupt(&item))?;
            spaces.read(item, &candidate).map_err(|error| corrupt(&error))
        };
        let mut schemas = Vec::new();
        for entry in spaces.scan(&space, &[ItemType::Tool]).entries {
            if entry.item.id.as_str().ends_with(SCHEMA_SUFFIX) {
                let document = Value::Object(read(&entry.item)?.parsed().fields.clone());
                schemas.push(ConfigSchema::from_value(&document).map_err(|problem| corrupt(&problem))?);
            }
        }
        let config_item = config::main_config().map_err(|error| corrupt(&error))?;
        let config = vec![read(&config_item)?];
        Ok(Self { extractors, schemas, config, config_item })
    }
}

fn max_item_bytes(settings: &MergedConfig) -> u64 {
    settings.get("items.max_bytes").and_then(Value::as_u64).unwrap_or(DEFAULT_MAX_ITEM_BYTES)
}

/// The extractors, with the extensions that verified extractors of other spaces add.
fn extend_extractors(
    core: &CoreItems,
    roots: &Roots,
    bundles: &[Bundle],
    ring: &KeyRing,
    is_project_approved: bool,
    notices: &mut Vec<String>,
) -> Arc<ExtractorSet> {
    let spaces = Spaces::new(roots, bundles.to_vec(), Arc::clone(&core.extractors), DEFAULT_MAX_ITEM_BYTES);
    let mut extended: Option<ExtractorSet> = None;
    for item_type in ItemType::ALL {
        let name = item_type.as_str();
        let Ok(id) = ItemId::new(format!("rye/core/extractors/{name}/{name}_extractor")) else {
            continue;
        };
        let item = ItemRef::new(ItemType::Tool, id);
        for candidate in spaces.candidate_paths(&item).iter().filter(|candidate| candidate.is_found) {
            let is_core = matches!(&candidate.space, Space::System(bundle) if bundle.as_str() == CORE_BUNDLE);
            if is_core || (candidate.space == Space::Project && !is_project_approved) {
                continue;
            }
            let Ok(located) = spaces.read(&item, candidate) else {
                continue;
            };
            let display_path = candidate.path.display().to_string();
            let located = match verify(located, ring) {
                Ok(located) => located,
                Err(rejection) => {
                    let verdict = rejection.report.verdict.as_str();
                    notices.push(format!("the extractor `{display_path}` is {verdict}: it is left out"));
                    continue;
                }
            };
            match Extractor::from_value(item_type, &Value::Object(located.parsed().fields.clone())) {
                Ok(extractor) => {
                    extended
                        .get_or_insert_with(|| core.extractors.as_ref().clone())
                        .add_extensions(&extractor);
                }
                Err(problems) => {
                    notices.push(format!("the extractor `{display_path}` is left out: {}", problems[0]));
                }
            }
        }
    }
    extended.map_or_else(|| Arc::clone(&core.extractors), Arc::new)
}
