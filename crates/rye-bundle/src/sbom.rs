//! A bundle as a software bill of materials: CycloneDX 1.6, JSON. The same bundle gives the same text, to the byte.

use std::collections::{BTreeMap, BTreeSet};

use lillux::Digest;
use rye_item::text::one_line;
use rye_space::Manifest;
use serde_json::{Value, json};

use crate::contents::{BundleFile, is_tool};
use crate::verify::ManifestSigner;

/// What the bill is made of.
#[derive(Clone, Copy, Debug)]
pub struct SbomInputs<'a> {
    /// The bundle's manifest.
    pub manifest: &'a Manifest,
    /// The digest of the manifest's bytes.
    pub manifest_hash: &'a Digest,
    /// Who signed the manifest, if the signature holds.
    pub signer: Option<&'a ManifestSigner>,
    /// Its files.
    pub files: &'a [BundleFile],
    /// The version of the program that writes it.
    pub tool_version: &'a str,
}

/// The bill.
#[must_use]
pub fn build_sbom(inputs: SbomInputs<'_>) -> Value {
    let manifest = inputs.manifest;
    let reference = format!("bundle:{}@{}", manifest.id, manifest.version);
    let mut libraries: BTreeMap<String, Value> = BTreeMap::new();
    let mut dependencies = Vec::new();
    let mut components = Vec::new();
    for file in inputs.files {
        components.push(file_component(file));
        let needed = if is_tool(file) { required_packages(file) } else { Vec::new() };
        let references: BTreeSet<String> = needed.iter().map(RequiredPackage::reference).collect();
        needed.iter().for_each(|package| {
            libraries.insert(package.reference(), package.component());
        });
        if !references.is_empty() {
            dependencies.push(json!({ "ref": file_reference(file), "dependsOn": references }));
        }
    }
    let files: Vec<String> = inputs.files.iter().map(file_reference).collect();
    dependencies.insert(0, json!({ "ref": reference, "dependsOn": files }));
    components.extend(libraries.into_values());

    let mut properties = vec![property("rye:manifest_hash", &inputs.manifest_hash.to_hex())];
    if let Some(signer) = inputs.signer {
        properties.push(property("rye:signer", signer.fingerprint.as_str()));
        properties.push(property("rye:signer_owner", &signer.owner));
    }
    if let Some(entrypoint) = &manifest.entrypoint {
        properties.push(property("rye:entrypoint", &entrypoint.to_string()));
    }
    let mut metadata = json!({
        "tools": { "components": [{ "type": "application", "name": "rye", "version": inputs.tool_version }] },
        "component": {
            "type": "application",
            "bom-ref": reference,
            "name": manifest.id,
            "version": manifest.version.to_string(),
            "description": one_line(&manifest.description),
            "properties": properties,
        },
    });
    if let Some(created_at) = &manifest.created_at {
        metadata["timestamp"] = created_at.as_str().into();
    }
    json!({
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": serial_number(inputs.manifest_hash),
        "version": 1,
        "metadata": metadata,
        "components": components,
        "dependencies": dependencies,
    })
}

/// A UUID made of the manifest's digest, marked as one made of a name.
fn serial_number(hash: &Digest) -> String {
    let mut bytes: [u8; 16] = [0; 16];
    bytes.copy_from_slice(&hash.as_bytes()[..16]);
    bytes[6] = (bytes[6] & 0x0f) | 0x50;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("urn:uuid:{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

fn property(name: &str, value: &str) -> Value {
    json!({ "name": name, "value": value })
}

fn file_reference(file: &BundleFile) -> String {
    format!("file:{}", file.path)
}

fn file_component(file: &BundleFile) -> Value {
    let mut properties =
        vec![property("rye:item_type", file.kind), property("rye:size", &file.size.to_string())];
    if let Some(item) = &file.item {
        properties.push(property("rye:item_id", item.id.as_str()));
    }
    if let Some(signer) = file.signer {
        properties.push(property("rye:signer", signer.as_str()));
    }
    let mut component = json!({
        "type": "file",
        "bom-ref": file_reference(file),
        "name": file.path,
        "hashes": [{ "alg": "SHA-256", "content": file.sha256 }],
        "properties": properties,
    });
    if let Some(version) = file.text("version") {
        component["version"] = one_line(version).into();
    }
    component
}

/// A package a tool needs.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RequiredPackage {
    /// `pypi` or `npm`; `None` when the tool's language does not tell.
    ecosystem: Option<&'static str>,
    name: String,
    /// The one version, if it is pinned to one.
    version: Option<String>,
    /// As the tool writes it.
    requirement: String,
}

impl RequiredPackage {
    fn purl(&self) -> Option<String> {
        let version = self.version.as_ref()?.replace('+', "%2B");
        let name = self.name.replace('@', "%40");
        Some(format!("pkg:{}/{name}@{version}", self.ecosystem?))
    }

    fn reference(&self) -> String {
        let ecosystem = self.ecosystem.unwrap_or("package");
        self.purl().unwrap_or_else(|| format!("requirement:{ecosystem}:{}", self.requirement))
    }

    fn component(&self) -> Value {
        let mut component = json!({
            "type": "library",
            "bom-ref": self.reference(),
            "name": self.name,
            "properties": [property("rye:requirement", &self.requirement)],
        });
        if let Some(version) = &self.version {
            component["version"] = version.as_str().into();
        }
        if let Some(purl) = self.purl() {
            component["purl"] = purl.into();
        }
        component
    }
}

fn required_packages(file: &BundleFile) -> Vec<RequiredPackage> {
    let ecosystem = match crate::object::extension(&file.path) {
        Some(".py") => Some("pypi"),
        Some(".js" | ".ts" | ".mjs" | ".cjs") => Some("npm"),
        _ => None,
    };
    let list = file.fields.get("dependencies").and_then(Value::as_array).into_iter().flatten();
    list.filter_map(Value::as_str).map(|text| parse_package(ecosystem, &one_line(text))).collect()
}

fn parse_package(ecosystem: Option<&'static str>, requirement: &str) -> RequiredPackage {
    let (name, version) = match ecosystem {
        Some("npm") => parse_npm(requirement),
        _ => parse_python(requirement),
    };
    RequiredPackage { ecosystem, name, version, requirement: requirement.to_owned() }
}

/// `name[extra]==1.2`: the name as the index spells it, and the version if it is the only one that will do.
fn parse_python(text: &str) -> (String, Option<String>) {
    let end = text.find(|c: char| !(c.is_ascii_alphanumeric() || "._-".contains(c))).unwrap_or(text.len());
    let name = text[..end].to_lowercase().replace(['_', '.'], "-");
    let rest = text[end..].trim_start();
    let rest = match rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((_, rest)) => rest.trim_start(),
        None => rest,
    };
    let version = rest.strip_prefix("===").or_else(|| rest.strip_prefix("==")).map(str::trim);
    let pinned = version.filter(|version| !version.is_empty() && !version.contains(['*', ',', ' ']));
    (name, pinned.map(str::to_owned))
}

/// `@scope/name@1.2.3`.
fn parse_npm(text: &str) -> (String, Option<String>) {
    match text.char_indices().skip(1).find(|(_, c)| *c == '@') {
        Some((at, _)) => {
            let version = &text[at + 1..];
            let is_pinned = version.starts_with(|c: char| c.is_ascii_digit());
            (text[..at].to_owned(), is_pinned.then(|| version.to_owned()))
        }
        None => (text.to_owned(), None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pinned_packages_have_a_purl() {
        for (ecosystem, requirement, purl) in [
            (Some("pypi"), "six==1.17.0", Some("pkg:pypi/six@1.17.0")),
            (Some("pypi"), "Some_Pkg[extra] == 1.0+local", Some("pkg:pypi/some-pkg@1.0%2Blocal")),
            (Some("pypi"), "six>=1.16,<2", None),
            (Some("pypi"), "six==1.*", None),
            (Some("pypi"), "six", None),
            (Some("npm"), "left-pad@1.3.0", Some("pkg:npm/left-pad@1.3.0")),
            (Some("npm"), "@scope/x@1.0.0", Some("pkg:npm/%40scope/x@1.0.0")),
            (Some("npm"), "@scope/x@^1.0.0", None),
            (None, "six==1.17.0", None),
        ] {
            assert_eq!(parse_package(ecosystem, requirement).purl().as_deref(), purl, "{requirement}");
        }
    }

    #[test]
    fn serial_number_is_derived_from_manifest() {
        let number = serial_number(&Digest::of(b"a"));
        assert_eq!(number, serial_number(&Digest::of(b"a")));
        assert_ne!(number, serial_number(&Digest::of(b"b")));
        let groups: Vec<usize> = number.trim_start_matches("urn:uuid:").split('-').map(str::len).collect();
        assert_eq!(groups, [8, 4, 4, 4, 12], "{number}");
    }
}
