//! Keys that are revoked or taken out of the settings while a process runs.

use lillux::SecretKey;
use rye_engine::verbs::{keys, sign};
use rye_item::space::SpaceTier;
use rye_item::{ItemId, ItemRef, ItemType};
use rye_test::TestContext;

use super::super::shared::{SharedStoreConfig, key_text};
use super::*;
use crate::test_support::{engine, init_world};

fn key(seed: u8) -> PublicKey {
    SecretKey::from_seed(&[seed; 32]).public_key()
}

/// The user's settings with these people and workers, not signed yet.
fn write_settings(world: &TestContext, users: &[PublicKey], workers: &[PublicKey]) {
    let list = |keys: &[PublicKey]| {
        keys.iter().map(|key| format!("\"{}\"", key_text(key))).collect::<Vec<_>>().join(", ")
    };
    let text = format!(
        "version: \"1.0.0\"\ncategory: \"\"\nthreads:\n  store: team\n  stores:\n    team:\n      url: \"postgres://rye@db.example/team\"\n      users: [{}]\n      workers: [{}]\n",
        list(users),
        list(workers)
    );
    world.write("home/.ai/config/config.yaml", text);
}

fn sign_settings(world: &TestContext) {
    let config = ItemRef::new(ItemType::Config, ItemId::new("config").expect("an id"));
    sign::sign_item(&engine(world), &config, Some(SpaceTier::User)).expect("signed");
}

fn revoke(world: &TestContext, key: &PublicKey) {
    keys::revoke(&engine(world), key.fingerprint().as_str(), "gone").expect("revoked");
}

/// A user whose settings list two people and a worker, and what a process of theirs has open.
fn open() -> (TestContext, Arc<SharedKeys>) {
    let world = init_world();
    write_settings(&world, &[key(1), key(2)], &[key(3)]);
    sign_settings(&world);
    let config = SharedStoreConfig::named(&engine(&world), "team").expect("settings");
    (world, config.keys)
}

#[test]
fn revoked_key_stops_counting_while_open() {
    let (world, shared) = open();
    let before = shared.current();
    assert_eq!(
        (before.users.as_slice(), before.workers.as_slice()),
        ([key(1), key(2)].as_slice(), [key(3)].as_slice())
    );
    let own = before.own.clone().expect("an own key");
    let find = |key: &PublicKey| find_signer(&[Arc::clone(&shared)], &own, &key.fingerprint());
    assert_eq!(find(&key(3)), Some(key(3)));

    revoke(&world, &key(2));
    revoke(&world, &key(3));
    let now = shared.current();
    assert_eq!((now.users.as_slice(), now.workers.len()), ([key(1)].as_slice(), 0));
    assert!(now.is_revoked(&key(2).fingerprint()) && !now.is_revoked(&key(1).fingerprint()));
    assert_eq!(now.problem, None);
    assert_eq!((find(&key(3)), find(&key(1)), find(&own)), (None, Some(key(1)), Some(own.clone())));
    // A process that begins afterwards has them no more than this one.
    let again = SharedStoreConfig::named(&engine(&world), "team").expect("settings");
    assert_eq!(again.keys.current().users, [key(1)]);
}

#[test]
fn key_taken_out_of_settings_stops_counting_while_open() {
    let (world, shared) = open();
    assert_eq!(shared.current().users.len(), 2);
    write_settings(&world, &[key(1)], &[key(3)]);
    // Unsigned settings are not used: until they are, no person's key counts.
    let edited = shared.current();
    assert!(edited.users.is_empty() && edited.submitters().is_empty());
    assert!(edited.problem.as_ref().is_some_and(|why| why.contains("team")), "{:?}", edited.problem);
    // Threads at work are not lost by that.
    assert!(edited.signers().contains(&key(3)));
    sign_settings(&world);
    let now = shared.current();
    assert_eq!((now.users.as_slice(), now.problem.as_ref()), ([key(1)].as_slice(), None));
    assert!(!now.signers().contains(&key(2)));
}

#[test]
fn revoked_key_counts_in_no_unusable_settings() {
    let (world, shared) = open();
    assert_eq!(shared.current().users.len(), 2);
    world.write("home/.ai/config/config.yaml", "threads: [");
    revoke(&world, &key(3));
    for _ in 0..2 {
        let now = shared.current();
        assert!(now.problem.is_some() && now.users.is_empty());
        assert!(now.is_revoked(&key(3).fingerprint()));
        assert!(!now.signers().contains(&key(3)) && now.signers().contains(&key(1)));
    }
}

#[test]
fn revoked_own_key_takes_nothing() {
    let (world, shared) = open();
    let own = shared.current().own.clone().expect("an own key");
    let revoked = format!("home/.ai/config/keys/revoked/{}.toml", own.fingerprint());
    world.write(&revoked, "");
    let now = shared.current();
    assert!(now.own.is_none() && !now.submitters().contains(&own) && !now.signers().contains(&own));
    assert!(now.problem.is_some(), "the settings are signed by that key");
    assert_eq!(find_signer(&[shared], &own, &own.fingerprint()), None);
}
