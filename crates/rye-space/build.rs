//! Seals the system bundles: signs every item of `bundles/*` with a key made for this build (or the maintainer's,
//! given in `RYE_SEAL_KEY_FILE`), writes manifest and identity document, and forgets the private key.
//!
//! With the same key and the same `SOURCE_DATE_EPOCH` the result is the same to the byte.
#![allow(
    clippy::disallowed_methods,
    reason = "a build script reads the build's environment and writes into OUT_DIR"
)]

use std::error::Error;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

use lillux::{Digest, SecretKey};
use rye_item::extractor::Parser;
use rye_item::{Extractor, ItemType, SignatureFormat, Value, yaml};
use rye_trust::signature::{FileLayout, Timestamp};
use rye_trust::{Identity, SignOutcome, object, sign};

type BuildResult<T> = Result<T, Box<dyn Error>>;

fn main() -> BuildResult<()> {
    let crate_folder = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    let bundles = crate_folder.join("../../bundles");
    println!("cargo::rerun-if-changed={}", bundles.display());
    println!("cargo::rerun-if-env-changed=RYE_SEAL_KEY_FILE");
    println!("cargo::rerun-if-env-changed=SOURCE_DATE_EPOCH");
    let seal = Seal { key: seal_key()?, now: build_time()? };
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let mut folders: Vec<_> = fs::read_dir(&bundles)?.collect::<Result<Vec<_>, _>>()?;
    folders.sort_by_key(fs::DirEntry::file_name);
    let extractors = read_extractors(&bundles.join("core"))?;
    let mut code =
        String::from("/// The bundles inside this binary.\npub static BUNDLES: &[Embedded] = &[\n");
    for folder in folders.iter().map(fs::DirEntry::path).filter(|path| path.join("bundle.yaml").is_file()) {
        code.push_str(&seal_bundle(&folder, &extractors, &seal, &out)?);
    }
    code.push_str("];\n");
    fs::write(out.join("embedded_bundles.rs"), code)?;
    Ok(())
}

struct Seal {
    key: SecretKey,
    now: Timestamp,
}

fn seal_key() -> BuildResult<SecretKey> {
    match env::var_os("RYE_SEAL_KEY_FILE") {
        Some(path) => {
            println!("cargo::rerun-if-changed={}", Path::new(&path).display());
            Ok(SecretKey::from_pem(&fs::read_to_string(&path)?)?)
        }
        None => Ok(SecretKey::generate()?),
    }
}

fn build_time() -> BuildResult<Timestamp> {
    let seconds = match env::var("SOURCE_DATE_EPOCH") {
        Ok(text) => text.parse()?,
        Err(_) => std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_secs(),
    };
    Timestamp::from_unix(seconds).ok_or_else(|| "SOURCE_DATE_EPOCH is out of range".into())
}

fn read_yaml(path: &Path) -> BuildResult<Value> {
    let text = fs::read_to_string(path)?;
    Ok(yaml::parse(&text).map_err(|problem| format!("{}: {problem}", path.display()))?.value)
}

fn read_extractors(core: &Path) -> BuildResult<Vec<Extractor>> {
    ItemType::ALL
        .into_iter()
        .map(|item_type| {
            let name = item_type.as_str();
            let path = core.join(format!(".ai/tools/rye/core/extractors/{name}/{name}_extractor.yaml"));
            Extractor::from_value(item_type, &read_yaml(&path)?)
                .map_err(|problems| format!("{}: {}", path.display(), problems[0]).into())
        })
        .collect()
}

fn seal_bundle(folder: &Path, extractors: &[Extractor], seal: &Seal, out: &Path) -> BuildResult<String> {
    let metadata = read_yaml(&folder.join("bundle.yaml"))?;
    let text = |key: &str| -> BuildResult<String> {
        let value = metadata.get(key).and_then(|value| value.as_str());
        Ok(value.ok_or_else(|| format!("{}: bundle.yaml needs `{key}`", folder.display()))?.to_owned())
    };
    let (id, version) = (text("id")?, text("version")?);
    let is_opt_in = match metadata.get("opt_in") {
        None => false,
        Some(value) => {
            value.as_bool().ok_or_else(|| format!("{}: `opt_in` is true or false", folder.display()))?
        }
    };
    let categories =
        metadata.get("categories").and_then(|value| value.as_array()).cloned().unwrap_or_default();

    let mut files = Vec::new();
    for path in files_below(&folder.join(".ai"))? {
        let relative = path.strip_prefix(folder)?.to_str().ok_or("bundle paths are UTF-8")?.to_owned();
        let bytes = fs::read(&path)?;
        let bytes = match signature_format(&relative, extractors) {
            Some(format) => sign_bytes(&bytes, &format, seal),
            None => bytes,
        };
        files.push((relative, bytes));
    }
    let mut identity = Identity::new(seal.key.public_key(), &format!("the build of {id}"));
    identity.version.clone_from(&version);
    let identity_path = format!(".ai/config/keys/trusted/{}.toml", identity.fingerprint);
    let document =
        sign_bytes(identity.to_document().as_bytes(), &rye_trust::identity::signature_format(), seal);
    files.push((identity_path, document));
    files.sort();

    let manifest = manifest_text(&id, &version, &text("description")?, &files, extractors, seal);
    let manifest = sign_bytes(manifest.as_bytes(), &rye_trust::identity::signature_format(), seal);
    let seal_name = Digest::of(&manifest).short();
    files.push((format!(".ai/bundles/{id}/manifest.yaml"), manifest));
    files.sort();

    let folder = out.join(&id);
    let mut code = format!(
        "    Embedded {{ id: {id:?}, version: {version:?}, seal: {seal_name:?}, is_opt_in: {is_opt_in}, categories: &["
    );
    for category in &categories {
        write!(code, "{category}, ")?;
    }
    code.push_str("], files: &[\n");
    for (relative, bytes) in &files {
        let path = folder.join(relative);
        fs::create_dir_all(path.parent().ok_or("a file has a folder")?)?;
        fs::write(&path, bytes)?;
        let path = path.to_str().ok_or("the build folder is UTF-8")?;
        writeln!(code, "        ({relative:?}, include_bytes!({path:?})),")?;
    }
    code.push_str("    ], fields: &[\n");
    for (relative, bytes) in &files {
        if let Some(fields) = yaml_fields(relative, bytes, extractors)? {
            writeln!(code, "        ({relative:?}, {fields:?}),")?;
        }
    }
    code.push_str("    ] },\n");
    Ok(code)
}

/// What a YAML item says, as JSON: read here once instead of at every start.
fn yaml_fields(relative: &str, bytes: &[u8], extractors: &[Extractor]) -> BuildResult<Option<String>> {
    let parser = split_item_path(relative).and_then(|(item_type, _, extension)| {
        extractors.iter().find(|extractor| extractor.item_type == item_type)?.parser_for(extension)
    });
    if parser != Some(Parser::Yaml) {
        return Ok(None);
    }
    let document =
        yaml::parse(std::str::from_utf8(bytes)?).map_err(|problem| format!("{relative}: {problem}"))?;
    if !document.value.is_object() {
        return Err(format!("{relative}: it is not a mapping").into());
    }
    Ok(Some(serde_json::to_string(&document.value)?))
}

fn files_below(folder: &Path) -> BuildResult<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            files.extend(files_below(&path)?);
        } else {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// `.ai/tools/a/b.py` → tool, `a/b`, `.py`.
fn split_item_path(relative: &str) -> Option<(ItemType, &str, &str)> {
    let (folder, rest) = relative.strip_prefix(".ai/")?.split_once('/')?;
    let dot = rest.rfind('.')?;
    Some((ItemType::from_folder(folder)?, &rest[..dot], &rest[dot..]))
}

fn signature_format(relative: &str, extractors: &[Extractor]) -> Option<SignatureFormat> {
    let (item_type, _, extension) = split_item_path(relative)?;
    extractors.iter().find(|extractor| extractor.item_type == item_type)?.format_for(extension).cloned()
}

fn sign_bytes(bytes: &[u8], format: &SignatureFormat, seal: &Seal) -> Vec<u8> {
    match sign(bytes, format, &seal.key, &seal.now) {
        SignOutcome::Written { bytes, .. } => bytes,
        SignOutcome::Unchanged(_) => bytes.to_vec(),
    }
}

fn manifest_text(
    id: &str,
    version: &str,
    description: &str,
    files: &[(String, Vec<u8>)],
    extractors: &[Extractor],
    seal: &Seal,
) -> String {
    let mut text = format!(
        "bundle:\n  id: {id}\n  version: \"{version}\"\n  entrypoint: ''\n  description: {description:?}\n  created_at: '{}'\n  type: package\nfiles:\n",
        seal.now
    );
    for (relative, bytes) in files {
        let Some((item_type, item_id, _)) = split_item_path(relative) else {
            continue;
        };
        let signature = signature_format(relative, extractors)
            .and_then(|format| FileLayout::parse(bytes, &format).signature);
        let hash = object::object_hash(item_type.as_str(), item_id, bytes, signature.as_ref());
        text.push_str(&format!(
            "  {relative}:\n    object_hash: {hash}\n    inline_signed: {}\n    item_type: {item_type}\n",
            signature.is_some()
        ));
    }
    text
}
