//! Submitting a thread: prepared here, frozen, signed, and left to workers.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use lillux::Digest;
use rye_engine::lockfiles::freeze_project;
use rye_engine::{Code, Engine, Error, Result};
use rye_item::Space;
use rye_item::text::join_first;
use rye_trust::Subject;

use super::archive::FileArchive;
use super::checkout::{
    Checkout, CheckoutRequest, CheckoutRules, FrozenSnapshot, LeftOutFiles, freeze_snapshot, parse_checkout,
};
use super::labels::{needed_labels, parse_label, secret_label};
use super::submission::SubmissionBody;
use crate::journal::JournalHeader;
use crate::prepare::{PreparedThread, ThreadRequest};
use crate::thread_id::ThreadId;
use crate::threads::Threads;

/// What a submitted thread asks of its worker, beside what its directive needs.
#[derive(Clone, Debug, Default)]
pub struct SubmitOptions {
    /// Labels that the worker must offer.
    pub labels: Vec<String>,
    /// Secrets that the worker must have, by name.
    pub secrets: Vec<String>,
    /// The project files that it is to have; those that its directive asks for where this is not set.
    pub checkout: Option<CheckoutRequest>,
}

/// A thread that was submitted.
#[derive(Clone, Debug)]
pub struct SubmitReport {
    /// Its name.
    pub thread_id: ThreadId,
    /// Its directive.
    pub directive: String,
    /// What a worker must offer.
    pub labels: Vec<String>,
    /// What its user should know.
    pub notices: Vec<String>,
}

impl Threads {
    /// Submits a thread: any worker that offers what it needs runs it. It is there for good when this returns.
    ///
    /// # Errors
    /// When it may not start, cannot be frozen, or there is no key to sign it with; then there is no thread.
    pub async fn submit(&self, request: ThreadRequest, options: SubmitOptions) -> Result<SubmitReport> {
        if !self.store().keeps_transcripts() {
            return Err(Error::new(
                Code::StoreUnusable,
                "threads are submitted to a store that machines share",
            )
            .hint("describe one in the settings: docs/cluster.md"));
        }
        let (model, provider) = (request.model.clone(), request.provider.clone());
        let limits = request.limits.clone();
        let prepared = self.prepare(request).await?;
        let checkout = match (options.checkout, &prepared.checkout) {
            (None, Some(declared)) => Some(parse_checkout(declared)?),
            (chosen, _) => chosen,
        };
        let engine = self.engine()?;
        let spec = Arc::clone(&prepared.spec);
        let now_ms = self.now_ms();
        let template = self.store_template(&prepared).await?;
        let header = JournalHeader::new(spec.instance.clone(), template.to_string());
        let header = header.to_bytes().map_err(|error| Error::new(Code::Io, error.to_string()))?;
        let instance = spec.instance.clone();
        let freeze = move || -> Result<FrozenSubmission> {
            let roots = &engine.workspace.roots;
            let project = roots.project.clone().filter(|_| roots.project_ai().is_some_and(|ai| ai.is_dir()));
            let directive = rye_item::ItemRef::parse(Some("directive"), &spec.template.directive)?;
            let located = engine.workspace.spaces.locate(&directive, None);
            if located.is_ok_and(|located| *located.space() == Space::User) {
                let message = "only a project's own directives are submitted, and those of bundles";
                return Err(Error::new(Code::SubmissionRefused, message)
                    .for_item(&directive)
                    .hint(format!("copy it: rye load directive {} --to project", directive.id)));
            }
            let mut archive =
                project.as_deref().map_or_else(|| Ok(FileArchive::default()), FileArchive::of_project)?;
            let mut tools = Vec::new();
            if project.is_some() {
                for frozen in freeze_project(&engine)? {
                    archive.add(&frozen.path, &frozen.bytes)?;
                    tools.push(frozen.tool.id.to_string());
                }
            }
            let mut labels: BTreeSet<String> = needed_labels(&engine, &spec.template);
            for label in &options.labels {
                labels.insert(parse_label(label)?);
            }
            for secret in &options.secrets {
                labels.insert(parse_label(&secret_label(secret))?);
            }
            let frozen = freeze_checkout(&engine, checkout.as_ref(), project.as_deref())?;
            labels.extend(frozen.checkout.as_ref().map(|checkout| checkout.label().to_owned()));
            let body = SubmissionBody {
                format: SubmissionBody::FORMAT,
                rye: env!("CARGO_PKG_VERSION").to_owned(),
                thread: instance.thread_id.clone(),
                header: Digest::of(&header).to_hex(),
                directive: spec.template.directive.clone(),
                inputs: instance.inputs.clone(),
                model,
                provider,
                limits,
                labels: labels.into_iter().collect(),
                tools,
                archive: Digest::of(&archive.bytes).to_hex(),
                files: archive.files.clone(),
                checkout: frozen.checkout,
                at_ms: now_ms,
            };
            let signed = body.sign(&engine.signing_key()?).map_err(std::io::Error::other)?;
            let parts = [signed, archive.bytes].into_iter().chain(frozen.parts).collect();
            Ok(FrozenSubmission { body, parts, left_out: frozen.left_out })
        };
        let frozen = tokio::task::spawn_blocking(freeze).await;
        let FrozenSubmission { body, parts, left_out } = frozen
            .map_err(|error| Error::new(Code::Io, format!("preparing the submission failed: {error}")))??;
        let store = self.store().shared();
        let mut blobs = Vec::with_capacity(parts.len());
        for part in parts {
            let digest = store.put_blob(part, now_ms).await?;
            if !blobs.contains(&digest) {
                blobs.push(digest);
            }
        }
        let PreparedThread { spec, mut notices, .. } = prepared;
        self.register_submitted(&spec, &blobs).await?;
        notices.extend(left_out_notice(&left_out));
        // It is there for good: a dispatch that is down delays it.
        if let Err(error) = self.hand_over(&body.thread).await {
            let hints = error.hints.iter().map(|hint| format!("; {hint}"));
            notices.push(format!("{error}{}", hints.collect::<String>()));
        }
        Ok(SubmitReport { thread_id: body.thread, directive: body.directive, labels: body.labels, notices })
    }
}

/// A submission, ready to be kept in a store.
struct FrozenSubmission {
    body: SubmissionBody,
    /// The signed submission, and what it names.
    parts: Vec<Vec<u8>>,
    /// Project files that do not travel, and why.
    left_out: LeftOutFiles,
}

/// The project files of a submission.
#[derive(Default)]
struct FrozenCheckout {
    checkout: Option<Checkout>,
    parts: Vec<Vec<u8>>,
    left_out: LeftOutFiles,
}

fn freeze_checkout(
    engine: &Engine,
    request: Option<&CheckoutRequest>,
    project: Option<&Path>,
) -> Result<FrozenCheckout> {
    match (request, project) {
        (None | Some(CheckoutRequest::NoFiles), _) => Ok(FrozenCheckout::default()),
        (Some(CheckoutRequest::Git { address, commit }), _) => {
            let checkout = Checkout::Git { address: address.clone(), commit: commit.clone() };
            Ok(FrozenCheckout { checkout: Some(checkout), ..FrozenCheckout::default() })
        }
        (Some(CheckoutRequest::Snapshot), Some(project)) => {
            let FrozenSnapshot { manifest, mut parts, left_out } =
                freeze_snapshot(project, &CheckoutRules::from_engine(engine)?)?;
            let checkout = Some(Checkout::Snapshot { manifest: Digest::of(&manifest).to_hex() });
            parts.push(manifest);
            Ok(FrozenCheckout { checkout, parts, left_out })
        }
        (Some(CheckoutRequest::Snapshot), None) => {
            Err(Error::new(Code::CheckoutRefused, "no project here to take a snapshot of")
                .hint("create one: rye init"))
        }
    }
}

/// Files that are named.
const MAX_NAMED: usize = 5;

fn left_out_notice(left_out: &LeftOutFiles) -> Option<String> {
    let named: Vec<String> =
        left_out.files.iter().map(|(path, reason)| format!("{path} ({reason})")).collect();
    let more = match left_out.more {
        0 => String::new(),
        more => format!("; {more} beside these"),
    };
    (!named.is_empty()).then(|| format!("not in the snapshot: {}{more}", join_first(&named, MAX_NAMED)))
}
