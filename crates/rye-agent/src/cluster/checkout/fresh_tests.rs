//! A thread that workers take in turn, and what each of them has of its files.

use lillux::Digest;
use rye_test::TestContext;
use serde_json::json;

use super::super::rules::CheckoutRules;
use super::super::snapshot::{FrozenSnapshot, freeze_snapshot};
use super::*;
use crate::limits::ThreadLimits;
use crate::status::SuspendReason;
use crate::store::{
    Claim, ClaimOutcome, ClaimPolicy, CommitOutcome, CreateOutcome, JournalRecord, LedgerRules, NewThread,
    SpawnCaps, StatusChange, SystemProbe, ThreadCommit, ThreadStore, current_owner,
};
use crate::test_support::{engine, init_world};

fn id() -> ThreadId {
    ThreadId::parse("thread-0a1b2c3d4e5f").expect("an id")
}

fn redactor(value: &str) -> Arc<Redactor> {
    let environment = [("PIN".to_owned(), value.to_owned())].into();
    Arc::new(Redactor::new(&environment, |name| name == "PIN"))
}

/// A submitted thread in a store.
struct Submitted {
    world: TestContext,
    store: StoreHandle,
    checkout: Checkout,
    claim: Mutex<Claim>,
}

impl Submitted {
    fn new() -> Self {
        let world = init_world();
        world.write("files/a.txt", "one\n");
        let memory = rye_store::MemoryStore::new(Arc::new(SystemProbe), LedgerRules::default());
        let store = StoreHandle::from(Arc::new(memory) as Arc<dyn ThreadStore>);
        let FrozenSnapshot { manifest, parts, .. } =
            freeze_snapshot(&world.path().join("files"), &CheckoutRules::default()).expect("frozen");
        let checkout = Checkout::Snapshot { manifest: Digest::of(&manifest).to_hex() };
        for part in parts.into_iter().chain([manifest]) {
            store.put_blob_blocking(part, 1).expect("kept");
        }
        let new = NewThread {
            id: id(),
            directive: "team/work".to_owned(),
            title: "Work".to_owned(),
            parent: None,
            continuation_of: None,
            limits: ThreadLimits::default(),
            max_spend: None,
            max_tokens: None,
            capabilities: Digest::of(b"none"),
            model: "model".to_owned(),
            provider: "provider".to_owned(),
            caps: SpawnCaps::default(),
            owner: Some(current_owner()),
            is_detached: false,
            blobs: Vec::new(),
            records: vec![JournalRecord { at_ms: 1, sequence: 1, body: b"first".to_vec() }],
            submission: None,
            at_ms: 1,
        };
        let created = store.create_blocking(new).expect("created");
        let CreateOutcome::Created { claim, .. } = created else { panic!("{created:?}") };
        Self { world, store, checkout, claim: Mutex::new(claim) }
    }

    /// The files as a worker has them that takes the thread.
    fn open(&self, worker: &str) -> Arc<TreeCheckout> {
        let folder = self.world.path().join(worker);
        lillux::file::create_dirs(&folder.join("project"), true).expect("a folder");
        let engine = engine(&self.world);
        let mut made =
            TreeCheckout::make(&self.checkout, &folder, &self.store, &engine, &[]).expect("a checkout");
        made.restore(&id()).expect("restored");
        Arc::new(made)
    }

    fn commit(&self, status: StatusChange, is_last: bool) {
        let claim = *self.claim.lock().expect("a claim");
        let records = vec![JournalRecord { at_ms: 1, sequence: 1, body: b"next".to_vec() }];
        let commit =
            ThreadCommit { records, status: Some(status), is_last, ..ThreadCommit::new(id(), claim, 1) };
        assert_eq!(self.store.commit_blocking(commit), Ok(CommitOutcome::Done));
    }

    /// A worker resumes the thread.
    fn resume(&self) {
        let claimed = self.store.claim(&id(), &current_owner(), ClaimPolicy::Free, 1).expect("judged");
        let ClaimOutcome::Claimed { claim, .. } = claimed else { panic!("{claimed:?}") };
        *self.claim.lock().expect("a claim") = claim;
        self.commit(StatusChange::to(ThreadStatus::Running), false);
    }

    /// The thread stops on the worker with this checkout.
    async fn suspend(&self, checkout: &Arc<TreeCheckout>) {
        let recorder =
            PatchRecorder { checkout: Arc::clone(checkout), offered: redactor("swordfish-offered") };
        let (name, value) = recorder.record(&id(), 1, &redactor("swordfish-known")).await;
        let status = StatusChange {
            reason: Some(SuspendReason::Approval),
            result: Some(json!({name: value})),
            ..StatusChange::to(ThreadStatus::Suspended)
        };
        self.commit(status, true);
    }

    fn is_current(&self, checkout: &TreeCheckout) -> bool {
        checkout.is_current(&id(), |_| false).expect("looked")
    }

    fn patch(&self) -> super::super::CheckoutPatch {
        read_patch(&self.store, &id(), &CheckoutRules::default()).expect("a patch")
    }
}

fn write(checkout: &TreeCheckout, path: &str, text: &str) {
    FileBytes { bytes: text.as_bytes().to_vec(), is_executable: false }
        .write(&checkout.project, path)
        .expect("written");
}

fn text(checkout: &TreeCheckout, path: &str) -> String {
    let file = FileBytes::read(&checkout.project, path).expect("read").expect("there");
    String::from_utf8(file.bytes).expect("text")
}

#[tokio::test(flavor = "multi_thread")]
async fn thread_keeps_its_changes_on_another_worker() {
    let submitted = Submitted::new();
    let first = submitted.open("first");
    write(&first, "a.txt", "two\n");
    submitted.suspend(&first).await;
    assert!(submitted.is_current(&first));
    let second = submitted.open("second");
    assert_eq!(text(&second, "a.txt"), "two\n");
    submitted.resume();
    write(&second, "b.txt", "new\n");
    submitted.suspend(&second).await;
    let patch = submitted.patch();
    let files: Vec<(&str, &str)> = patch.files().collect();
    assert_eq!((files, patch.is_incomplete), (vec![("a.txt", "changed"), ("b.txt", "added")], false));
    // The first worker still has its folder, as it was before.
    assert!(!submitted.is_current(&first) && submitted.is_current(&second));
    let again = submitted.open("again");
    assert_eq!((text(&again, "a.txt").as_str(), text(&again, "b.txt").as_str()), ("two\n", "new\n"));
    assert!(submitted.is_current(&again));
}

#[tokio::test(flavor = "multi_thread")]
async fn folders_of_a_dead_worker_are_not_current() {
    let submitted = Submitted::new();
    let first = submitted.open("first");
    assert!(submitted.is_current(&first));
    submitted.suspend(&first).await;
    submitted.resume();
    // It runs elsewhere, or did.
    assert!(!submitted.is_current(&first));
    assert!(first.is_current(&id(), |_| true).expect("looked"), "it runs here");
    let second = submitted.open("second");
    assert!(second.is_incomplete && submitted.is_current(&second));
    assert!(submitted.patch().is_outdated);
    submitted.suspend(&second).await;
    let patch = submitted.patch();
    assert!(patch.is_incomplete && !patch.is_outdated);
    assert!(!submitted.is_current(&first) && submitted.is_current(&second));
}

#[tokio::test(flavor = "multi_thread")]
async fn offered_secrets_stay_out_of_patches() {
    let submitted = Submitted::new();
    let first = submitted.open("first");
    write(&first, "known.txt", "swordfish-known\n");
    write(&first, "offered.txt", "swordfish-offered\n");
    write(&first, "plain.txt", "swordfish\n");
    submitted.suspend(&first).await;
    let patch = submitted.patch();
    assert_eq!(patch.files().collect::<Vec<_>>(), [("plain.txt", "added")]);
    let left_out: Vec<&str> = patch.left_out.iter().map(|(path, _)| path.as_str()).collect();
    assert_eq!(left_out, ["known.txt", "offered.txt"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn patches_are_bound_to_their_digest() {
    let submitted = Submitted::new();
    let first = submitted.open("first");
    write(&first, "a.txt", "two\n");
    submitted.suspend(&first).await;
    let row = submitted.store.verified_thread(&id()).expect("read").expect("a thread");
    let summary = PatchSummary::of_row(&row).expect("a summary");
    let digest: Digest = summary.digest.as_deref().expect("a digest").parse().expect("a digest");
    let bytes = submitted.store.blob(&digest).expect("the patch");
    let rules = CheckoutRules::default();
    summary.read(&bytes, &id(), &rules).expect("read");
    let changed = String::from_utf8(bytes.clone()).expect("text").replace("two", "six");
    let other = ThreadId::parse("thread-000000000001").expect("an id");
    for (summary, bytes, thread) in [
        (summary.clone(), changed.as_bytes(), &id()),
        (summary.clone(), bytes.as_slice(), &other),
        (PatchSummary { files: 2, ..summary.clone() }, bytes.as_slice(), &id()),
    ] {
        let refused = summary.read(bytes, thread, &rules).expect_err("refused").message;
        assert!(refused.ends_with("is not the one that was recorded"), "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ended_threads_keep_their_patch() {
    use super::super::KeptPatch;
    let submitted = Submitted::new();
    let row = || submitted.store.verified_thread(&id()).expect("read").expect("a thread");
    assert!(KeptPatch::of_row(&row()).is_none());
    let first = submitted.open("first");
    write(&first, "a.txt", "two\n");
    submitted.suspend(&first).await;
    let kept = KeptPatch::of_row(&row()).expect("a patch").into_result();
    assert_eq!(Some(&kept["patch"]), row().result.as_ref().map(|result| &result["patch"]));
    submitted.resume();
    let kept = KeptPatch::of_row(&row()).expect("a patch").into_result();
    assert_eq!(kept["patch"]["incomplete"], true);
    let status = StatusChange { result: Some(kept), ..StatusChange::to(ThreadStatus::Killed) };
    submitted.commit(status, true);
    let patch = submitted.patch();
    assert_eq!((patch.file_count(), patch.is_incomplete, patch.is_outdated), (1, true, false));
}

#[test]
fn files_that_were_not_fetched_are_named() {
    let left_out = [
        ("big.bin".to_owned(), LeftOutReason::Size(65 << 20)),
        ("link".to_owned(), LeftOutReason::Link),
        ("part".to_owned(), LeftOutReason::Submodule),
        (".ai/link".to_owned(), LeftOutReason::Link),
    ];
    let missing = not_fetched(&left_out);
    let named: Vec<&str> = missing.files.iter().map(|(path, _)| path.as_str()).collect();
    assert_eq!(named, ["big.bin", "link", "part"]);
    let expected = "was not given to the worker: has 68157440 bytes, more than 64 MiB";
    assert_eq!(missing.files[0].1, expected);
}
