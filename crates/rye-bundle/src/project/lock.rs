//! `.ai/bundles.lock`: what each bundle of the manifest was resolved to, exactly. Written by `rye`, read as strictly as the
//! manifest.

use lillux::{Digest, Fingerprint, PublicKey};
use rye_item::checkout::is_commit;
use rye_item::{BundleId, Diagnostic};
use semver::{Version, VersionReq};
use toml_edit::{ArrayOfTables, DocumentMut, Item, Table, TableLike, value};

use super::MAX_PROJECT_BUNDLES;
use super::manifest::BundleRequirement;
use super::source::{RequirementSource, SourceFields};
use super::table_reader::TableReader;

const FORMAT: i64 = 1;
const ENTRY_KEYS: [&str; 12] = [
    "id", "version", "source", "range", "rev", "path", "sha256", "digest", "commit", "manifest", "signer",
    "key",
];
const HEADER: &str =
    "# Written by `rye add`, `rye sync` and `rye bundle upgrade`. Commit it, do not edit it.\n";
const PEM_BEGIN: &str = "-----BEGIN PUBLIC KEY-----";
const PEM_END: &str = "-----END PUBLIC KEY-----";

/// One bundle, exactly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockedBundle {
    /// What the manifest asked for when it was resolved.
    pub requirement: BundleRequirement,
    /// The version.
    pub version: Version,
    /// The digest of a registry's OCI manifest.
    pub digest: Option<Digest>,
    /// The commit of a git repository.
    pub commit: Option<String>,
    /// The digest of the bundle's signed manifest, which names each file by its hash.
    pub manifest: Digest,
    /// The whole key that signed it.
    pub key: PublicKey,
}

impl LockedBundle {
    /// The bundle.
    #[must_use]
    pub fn id(&self) -> &BundleId {
        &self.requirement.id
    }

    /// Whether `requirement` asks for the same source, whatever its range.
    #[must_use]
    pub fn has_same_source(&self, requirement: &BundleRequirement) -> bool {
        self.requirement.source == requirement.source && self.requirement.fields == requirement.fields
    }

    /// Whether this is still what `requirement` asks for, though its range may be written differently.
    #[must_use]
    pub fn satisfies(&self, requirement: &BundleRequirement) -> bool {
        self.has_same_source(requirement)
            && self.requirement.signer == requirement.signer
            && requirement.allows(&self.version)
    }
}

/// `.ai/bundles.lock`
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProjectLock {
    bundles: Vec<LockedBundle>,
}

impl ProjectLock {
    /// Reads a lock.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn parse(bytes: &[u8]) -> Result<Self, Vec<Diagnostic>> {
        let (mut reader, document) = TableReader::parse(bytes)?;
        let root = document.as_table();
        reader.check_keys(root, &["format", "bundle"]);
        match root.get("format") {
            Some(item) if item.as_integer() == Some(FORMAT) => {}
            Some(item) => reader.problem(item.span(), "a newer rye wrote it: only `format = 1` is known"),
            None => reader.problem(None, "`format` is missing"),
        }
        let mut bundles: Vec<LockedBundle> = Vec::new();
        match root.get("bundle") {
            None => {}
            Some(Item::ArrayOfTables(entries)) => {
                for table in entries.iter() {
                    let span = table.span();
                    let Some(bundle) = read_entry(&mut reader, table, span.clone()) else { continue };
                    if bundles.iter().any(|other| other.id() == bundle.id()) {
                        reader.problem(span, format!("`{}` is there twice", bundle.id()));
                    }
                    bundles.push(bundle);
                }
            }
            Some(item) => reader.problem(item.span(), "`bundle` is not a list of tables"),
        }
        if bundles.len() > MAX_PROJECT_BUNDLES {
            reader.problem(None, format!("it has more than {MAX_PROJECT_BUNDLES} bundles"));
        }
        match reader.problems.is_empty() {
            true => Ok(Self { bundles }),
            false => Err(reader.problems),
        }
    }

    /// The bundles, by id.
    #[must_use]
    pub fn bundles(&self) -> &[LockedBundle] {
        &self.bundles
    }

    /// What the bundle `id` is locked to.
    #[must_use]
    pub fn find(&self, id: &BundleId) -> Option<&LockedBundle> {
        self.bundles.iter().find(|bundle| bundle.id() == id)
    }

    /// Locks a bundle, in place of what it was locked to.
    pub fn insert(&mut self, bundle: LockedBundle) {
        self.remove(&bundle.requirement.id);
        self.bundles.push(bundle);
        self.bundles.sort_by(|one, other| one.id().as_str().cmp(other.id().as_str()));
    }

    /// Removes a bundle.
    pub fn remove(&mut self, id: &BundleId) {
        self.bundles.retain(|bundle| bundle.id() != id);
    }

    /// The file's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut document = DocumentMut::new();
        document.insert("format", value(FORMAT));
        let mut entries = ArrayOfTables::new();
        for bundle in &self.bundles {
            entries.push(write_entry(bundle));
        }
        document.insert("bundle", Item::ArrayOfTables(entries));
        format!("{HEADER}{document}").into_bytes()
    }
}

fn write_entry(bundle: &LockedBundle) -> Table {
    let requirement = &bundle.requirement;
    let mut table = Table::new();
    for (key, text) in [
        ("id", Some(requirement.id.to_string())),
        ("version", Some(bundle.version.to_string())),
        ("source", Some(requirement.source.to_string())),
        ("range", requirement.range_text()),
        ("rev", requirement.fields.rev.clone()),
        ("path", requirement.fields.path.clone()),
        ("sha256", requirement.fields.sha256.clone()),
        ("digest", bundle.digest.map(|digest| format!("sha256:{digest}"))),
        ("commit", bundle.commit.clone()),
        ("manifest", Some(format!("sha256:{}", bundle.manifest))),
        ("signer", Some(requirement.signer.to_string())),
        ("key", Some(key_text(&bundle.key))),
    ] {
        if let Some(text) = text {
            table.insert(key, value(text));
        }
    }
    table
}

/// The key on one line: its PEM text without the lines around it.
fn key_text(key: &PublicKey) -> String {
    key.to_pem().lines().filter(|line| !line.starts_with("-----")).collect()
}

fn parse_key(text: &str) -> Result<PublicKey, lillux::key::KeyError> {
    PublicKey::from_pem(&format!("{PEM_BEGIN}\n{text}\n{PEM_END}\n"))
}

fn parse_digest(text: &str) -> Result<Digest, &'static str> {
    let hex = text.strip_prefix("sha256:").ok_or("a digest begins with `sha256:`")?;
    hex.parse().map_err(|_| "a digest is `sha256:` and 64 lower-case hex characters")
}

fn parse_commit(text: &str) -> Result<String, &'static str> {
    match is_commit(text) {
        true => Ok(text.to_owned()),
        false => Err("a commit is 40 or 64 lower-case hex characters"),
    }
}

fn read_entry(
    reader: &mut TableReader<'_>,
    table: &dyn TableLike,
    span: Option<std::ops::Range<usize>>,
) -> Option<LockedBundle> {
    reader.check_keys(table, &ENTRY_KEYS);
    let at = span.or(Some(0..0));
    let fields: SourceFields = reader.source_fields(table);
    let id = reader.parsed(table, "id", at.clone(), |text| BundleId::new(text));
    let version = reader.parsed(table, "version", at.clone(), Version::parse);
    let source = reader.parsed(table, "source", at.clone(), |text| RequirementSource::parse(text, &fields));
    let range = reader.parsed(table, "range", None, VersionReq::parse);
    let signer: Option<Fingerprint> = reader.parsed(table, "signer", at.clone(), str::parse);
    let key = reader.parsed(table, "key", at.clone(), parse_key);
    let manifest = reader.parsed(table, "manifest", at.clone(), parse_digest);
    let digest = reader.parsed(table, "digest", None, parse_digest);
    let commit = reader.parsed(table, "commit", None, parse_commit);
    if let (Some(signer), Some(key)) = (signer, &key)
        && key.fingerprint() != signer
    {
        reader.problem(at.clone(), format!("`key` is not the key {signer}"));
    }
    match &source {
        Some(RequirementSource::Registry(_)) if digest.is_none() => {
            reader.problem(at, "`digest` is missing: a tag is not exact");
        }
        Some(RequirementSource::Git(_)) if commit.is_none() => {
            reader.problem(at, "`commit` is missing: a name is not exact");
        }
        Some(_) | None => {}
    }
    let requirement = BundleRequirement { id: id?, source: source?, fields, range, signer: signer? };
    Some(LockedBundle { requirement, version: version?, digest, commit, manifest: manifest?, key: key? })
}

#[cfg(test)]
mod tests {
    use lillux::SecretKey;

    use super::*;

    fn locked(id: &str, source: &str) -> LockedBundle {
        let key = SecretKey::generate().expect("a key").public_key();
        let fields = SourceFields::default();
        let source = RequirementSource::parse(source, &fields).expect("a source");
        let is_git = matches!(source, RequirementSource::Git(_));
        let is_registry = matches!(source, RequirementSource::Registry(_));
        LockedBundle {
            requirement: BundleRequirement {
                id: BundleId::new(id).expect("an id"),
                source,
                fields,
                range: Some(VersionReq::parse("^1.0").expect("a range")),
                signer: key.fingerprint(),
            },
            version: Version::new(1, 2, 0),
            digest: is_registry.then(|| Digest::of(b"oci")),
            commit: is_git.then(|| "a".repeat(40)),
            manifest: Digest::of(b"manifest"),
            key,
        }
    }

    #[test]
    fn lock_is_read_as_it_was_written() {
        let mut lock = ProjectLock::default();
        for (id, source) in [
            ("web", "oci://ghcr.io/team/web"),
            ("gifts", "vendor/gifts"),
            ("code", "git+https://example.org/code"),
        ] {
            lock.insert(locked(id, source));
        }
        let bytes = lock.to_bytes();
        assert_eq!(ProjectLock::parse(&bytes).expect("a lock"), lock, "{}", String::from_utf8_lossy(&bytes));
        let ids: Vec<&str> = lock.bundles().iter().map(|bundle| bundle.id().as_str()).collect();
        assert_eq!(ids, ["code", "gifts", "web"]);
        assert_eq!(ProjectLock::parse(&ProjectLock::default().to_bytes()), Ok(ProjectLock::default()));
    }

    #[test]
    fn inexact_or_strange_locks_are_refused() {
        let text = |bundle: LockedBundle| {
            let mut lock = ProjectLock::default();
            lock.insert(bundle);
            String::from_utf8(lock.to_bytes()).expect("text")
        };
        let good = text(locked("code", "git+https://example.org/code"));
        let commit = "a".repeat(40);
        for (from, to, expected) in [
            (format!("commit = \"{commit}\"\n"), String::new(), "`commit` is missing"),
            (commit.clone(), "a".repeat(39), "`commit`: a commit is 40"),
            (commit, "main".to_owned(), "`commit`: a commit is 40"),
            ("format = 1".to_owned(), "format = 2".to_owned(), "a newer rye wrote it"),
            ("id = ".to_owned(), "run = \"x\"\nid = ".to_owned(), "unknown key `run`"),
            ("key = \"".to_owned(), "key = \"x".to_owned(), "`key`"),
            (
                "signer = \"".to_owned(),
                "signer = \"0123456789abcdef\"\n# \"".to_owned(),
                "`key` is not the key",
            ),
        ] {
            let changed = good.replace(&from, &to);
            assert_ne!(changed, good, "{from}");
            let problems = ProjectLock::parse(changed.as_bytes()).expect_err(&changed);
            assert!(problems.iter().any(|problem| problem.to_string().contains(expected)), "{problems:?}");
        }
        let oci = text(locked("web", "oci://ghcr.io/team/web"));
        let without: String =
            oci.lines().filter(|line| !line.starts_with("digest")).map(|line| format!("{line}\n")).collect();
        assert!(ProjectLock::parse(without.as_bytes()).is_err());
    }

    #[test]
    fn ranges_may_change_without_a_new_resolution() {
        let bundle = locked("web", "oci://ghcr.io/team/web");
        let mut wanted = bundle.requirement.clone();
        wanted.range = None;
        assert!(bundle.satisfies(&wanted));
        wanted.range = Some(VersionReq::parse("^2").expect("a range"));
        assert!(!bundle.satisfies(&wanted) && bundle.has_same_source(&wanted));
        wanted.range = None;
        wanted.signer = "0123456789abcdef".parse().expect("a fingerprint");
        assert!(!bundle.satisfies(&wanted));
    }
}
