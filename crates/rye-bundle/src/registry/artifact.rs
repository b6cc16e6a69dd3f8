//! What a bundle looks like in a registry: an OCI image manifest with an artifact type, a small config, the signed
//! manifest of the bundle as a layer of its own, and the archive. Plain decisions over bytes.

use std::collections::BTreeMap;

use lillux::Digest;
use rye_item::text::one_line;
use serde::{Deserialize, Serialize};

/// The kind of artifact a bundle is.
pub const ARTIFACT_TYPE: &str = "application/vnd.rye.bundle.v1";
/// The config of the artifact: id, version, signer.
pub const CONFIG_TYPE: &str = "application/vnd.rye.bundle.config.v1+json";
/// The layer that is the bundle's signed `manifest.yaml`.
pub const MANIFEST_LAYER_TYPE: &str = "application/vnd.rye.bundle.manifest.v1+yaml";
/// The layer that is the archive of all files.
pub const ARCHIVE_LAYER_TYPE: &str = "application/vnd.rye.bundle.layer.v1.tar+zstd";
/// The media type of an OCI manifest.
pub const OCI_MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";

/// The largest OCI manifest that is read.
pub const MAX_OCI_MANIFEST_BYTES: u64 = 1 << 20;
/// The largest `manifest.yaml` that is read.
pub const MAX_MANIFEST_BYTES: u64 = 8 << 20;
/// The largest archive that is taken.
pub const MAX_ARCHIVE_BYTES: u64 = 256 << 20;

/// Why an OCI manifest is not a bundle that can be taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotABundle {
    /// Something else, well made.
    #[error("it is {0}")]
    OtherArtifact(String),
    /// No OCI manifest, or one that breaks a rule.
    #[error("its manifest cannot be used: {0}")]
    Malformed(String),
    /// A part is too large.
    #[error("its {part} has {size} bytes; at most {limit} are taken")]
    TooLarge {
        /// Which part.
        part: &'static str,
        /// How large it says it is.
        size: u64,
        /// How large it may be.
        limit: u64,
    },
}

/// One blob an OCI manifest names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blob {
    /// Its digest.
    pub digest: Digest,
    /// Its length in bytes.
    pub size: u64,
}

impl Blob {
    /// The digest as registries write it.
    #[must_use]
    pub fn digest_text(&self) -> String {
        format!("sha256:{}", self.digest)
    }
}

/// What a config blob says, for those who list registries: nothing is decided by it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ArtifactConfig {
    /// The bundle's id.
    pub id: String,
    /// The bundle's version.
    pub version: String,
    /// The fingerprint of the key that signed the manifest.
    pub signer: String,
}

/// The blobs of a bundle in a registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArtifactParts {
    /// The signed `manifest.yaml`.
    pub manifest: Blob,
    /// The archive.
    pub archive: Blob,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    media_type: String,
    digest: String,
    size: u64,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    annotations: BTreeMap<String, String>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct OciManifest {
    schema_version: u32,
    #[serde(default)]
    media_type: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    artifact_type: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    config: Option<Descriptor>,
    #[serde(default)]
    layers: Vec<Descriptor>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    annotations: BTreeMap<String, String>,
}

const TITLE_ANNOTATION: &str = "org.opencontainers.image.title";
const VERSION_ANNOTATION: &str = "org.opencontainers.image.version";

/// The OCI manifest of a bundle: the same bytes for the same parts.
///
/// # Errors
/// When it cannot be written as JSON.
pub fn write_manifest(
    config: &ArtifactConfig,
    config_blob: &Blob,
    parts: &ArtifactParts,
) -> Result<Vec<u8>, serde_json::Error> {
    let descriptor = |media_type: &str, blob: &Blob, title: Option<String>| Descriptor {
        media_type: media_type.to_owned(),
        digest: blob.digest_text(),
        size: blob.size,
        annotations: title.map(|title| (TITLE_ANNOTATION.to_owned(), title)).into_iter().collect(),
    };
    let archive = format!("{}-{}.tar.zst", config.id, config.version);
    serde_json::to_vec(&OciManifest {
        schema_version: 2,
        media_type: Some(OCI_MANIFEST_TYPE.to_owned()),
        artifact_type: Some(ARTIFACT_TYPE.to_owned()),
        config: Some(descriptor(CONFIG_TYPE, config_blob, None)),
        layers: vec![
            descriptor(MANIFEST_LAYER_TYPE, &parts.manifest, Some("manifest.yaml".to_owned())),
            descriptor(ARCHIVE_LAYER_TYPE, &parts.archive, Some(archive)),
        ],
        annotations: [(TITLE_ANNOTATION, &config.id), (VERSION_ANNOTATION, &config.version)]
            .map(|(name, value)| (name.to_owned(), value.clone()))
            .into(),
    })
}

/// The parts of the bundle that an OCI manifest describes.
///
/// # Errors
/// When it describes something else, or a bundle that breaks a rule.
pub fn parse_manifest(bytes: &[u8]) -> Result<ArtifactParts, NotABundle> {
    let malformed = |reason: &str| NotABundle::Malformed(reason.to_owned());
    let manifest_json: OciManifest = serde_json::from_slice(bytes).map_err(|error| {
        NotABundle::Malformed(format!("it is not an OCI manifest ({})", one_line(&error.to_string())))
    })?;
    if manifest_json.schema_version != 2 {
        return Err(malformed("its schema version is not 2"));
    }
    if let Some(other) = manifest_json.media_type.as_deref().filter(|own| *own != OCI_MANIFEST_TYPE) {
        return Err(NotABundle::OtherArtifact(format!("of the media type `{}`", one_line(other))));
    }
    if manifest_json.artifact_type.as_deref() != Some(ARTIFACT_TYPE) {
        let config = manifest_json.config.as_ref().map(|config| config.media_type.as_str());
        let found = match (manifest_json.artifact_type.as_deref(), config) {
            (Some(other), _) => format!("an artifact of the type `{}`", one_line(other)),
            (None, Some("application/vnd.oci.image.config.v1+json")) => "a container image".to_owned(),
            (None, Some(other)) => format!("an artifact with a config of the type `{}`", one_line(other)),
            (None, None) => "an artifact without type".to_owned(),
        };
        return Err(NotABundle::OtherArtifact(found));
    }
    let [manifest, archive] = manifest_json.layers.as_slice() else {
        return Err(malformed("a bundle has two layers, manifest and archive"));
    };
    Ok(ArtifactParts {
        manifest: parse_blob(manifest, MANIFEST_LAYER_TYPE, "manifest", MAX_MANIFEST_BYTES)?,
        archive: parse_blob(archive, ARCHIVE_LAYER_TYPE, "archive", MAX_ARCHIVE_BYTES)?,
    })
}

fn parse_blob(
    found: &Descriptor,
    media_type: &str,
    part: &'static str,
    limit: u64,
) -> Result<Blob, NotABundle> {
    if found.media_type != media_type {
        let other = one_line(&found.media_type);
        return Err(NotABundle::Malformed(format!(
            "its {part} is of the media type `{other}`, not `{media_type}`"
        )));
    }
    if found.size > limit {
        return Err(NotABundle::TooLarge { part, size: found.size, limit });
    }
    let digest = found.digest.strip_prefix("sha256:").and_then(|hex| hex.parse().ok());
    let digest = digest
        .ok_or_else(|| NotABundle::Malformed(format!("the digest of its {part} is not a SHA-256 digest")))?;
    Ok(Blob { digest, size: found.size })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn blob_of(bytes: &[u8]) -> Blob {
        Blob { digest: Digest::of(bytes), size: bytes.len() as u64 }
    }

    fn example() -> (ArtifactParts, Value) {
        let parts = ArtifactParts { manifest: blob_of(b"manifest"), archive: blob_of(b"archive") };
        let config =
            ArtifactConfig { id: "team-tools".into(), version: "1.0.0".into(), signer: "0".repeat(16) };
        let bytes = write_manifest(&config, &blob_of(b"{}"), &parts).expect("JSON");
        (parts, serde_json::from_slice(&bytes).expect("JSON"))
    }

    fn reason(value: &Value) -> String {
        parse_manifest(value.to_string().as_bytes()).expect_err("refused").to_string()
    }

    #[test]
    fn manifest_round_trips() {
        let (parts, value) = example();
        assert_eq!(parse_manifest(value.to_string().as_bytes()), Ok(parts));
        assert_eq!(value["artifactType"], ARTIFACT_TYPE);
        assert_eq!(value["config"]["mediaType"], CONFIG_TYPE);
        assert_eq!(value["layers"][0]["annotations"][TITLE_ANNOTATION], "manifest.yaml");
        assert_eq!(value["layers"][1]["annotations"][TITLE_ANNOTATION], "team-tools-1.0.0.tar.zst");
    }

    #[test]
    fn corrupted_manifest_names_no_other_blobs() {
        let (parts, value) = example();
        let good = value.to_string().into_bytes();
        for place in 0..good.len() {
            for byte in [b'0', b'"', b'x', 0xff] {
                let mut changed = good.clone();
                changed[place] = byte;
                if let Ok(read) = parse_manifest(&changed) {
                    assert!(
                        read.archive.size <= MAX_ARCHIVE_BYTES && read.manifest.size <= MAX_MANIFEST_BYTES
                    );
                    let is_same =
                        |one: &Blob, other: &Blob| one.digest == other.digest || one.size == other.size;
                    assert!(
                        is_same(&read.manifest, &parts.manifest) && is_same(&read.archive, &parts.archive)
                    );
                }
            }
        }
    }

    #[test]
    fn other_artifacts_are_named() {
        let image = json!({"schemaVersion": 2, "mediaType": OCI_MANIFEST_TYPE, "layers": [],
            "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": "x", "size": 1}});
        assert_eq!(reason(&image), "it is a container image");
        let list = json!({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": []});
        assert_eq!(reason(&list), "it is of the media type `application/vnd.oci.image.index.v1+json`");
        let chart = json!({"schemaVersion": 2, "config":
            {"mediaType": "application/vnd.cncf.helm.config.v1+json", "digest": "x", "size": 1}});
        assert_eq!(
            reason(&chart),
            "it is an artifact with a config of the type `application/vnd.cncf.helm.config.v1+json`"
        );
        assert_eq!(
            reason(&json!({"schemaVersion": 2, "artifactType": "a\u{1b}[2J"})),
            "it is an artifact of the type `a`"
        );
        for broken in [json!([]), json!({}), json!({"schemaVersion": 1}), json!({"schemaVersion": "2"})] {
            assert!(reason(&broken).starts_with("its manifest cannot be used: "), "{broken}");
        }
    }

    #[test]
    fn bundle_has_exactly_two_bounded_layers() {
        for (path, value) in [
            ("/layers/0/mediaType", json!("text/plain")),
            ("/layers/1/mediaType", json!("application/vnd.oci.image.layer.v1.tar+gzip")),
            ("/layers/0/digest", json!("sha512:00")),
            ("/layers/1/digest", json!("sha256:../../x")),
            ("/layers/1/size", json!(-1)),
            ("/layers/1/size", json!(MAX_ARCHIVE_BYTES + 1)),
            ("/layers/0/size", json!(u64::MAX)),
            ("/layers", json!([])),
        ] {
            let (_, mut artifact) = example();
            *artifact.pointer_mut(path).expect("a place") = value;
            assert!(parse_manifest(artifact.to_string().as_bytes()).is_err(), "{path}");
        }
        let (_, mut artifact) = example();
        let third = artifact["layers"][1].clone();
        artifact["layers"].as_array_mut().expect("layers").push(third);
        assert_eq!(
            reason(&artifact),
            "its manifest cannot be used: a bundle has two layers, manifest and archive"
        );
    }
}
