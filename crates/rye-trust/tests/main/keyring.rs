//! Whose signatures count, and where: decisions §4, rule by rule.

use lillux::SecretKey;
use rye_item::{BundleId, ItemType, Space};
use rye_trust::{Identity, IdentityError, KeyRing, Revocation, TrustBasis, TrustVerdict, verify};

use crate::support::{File, file_kind, sign_bytes, signed_identity};

const HERE: &str = "/home/me/here";
const ELSEWHERE: &str = "/home/me/elsewhere";

/// A person with a key.
struct Person {
    key: SecretKey,
    name: &'static str,
}

impl Person {
    fn new(name: &'static str) -> Self {
        Self { key: SecretKey::generate().expect("randomness"), name }
    }

    /// Who they are, unsigned.
    fn identity(&self) -> Identity {
        Identity::new(self.key.public_key(), self.name)
    }

    fn self_signed_document(&self) -> Identity {
        signed_identity(&self.identity(), &self.key)
    }

    fn document_signed_by(&self, signer: &Self) -> Identity {
        signed_identity(&self.identity(), &signer.key)
    }

    fn introducer_document_signed_by(&self, signer: &Self) -> Identity {
        signed_identity(&Identity { may_introduce: true, ..self.identity() }, &signer.key)
    }

    fn scoped_document_signed_by(&self, signer: &Self, projects: &[&str]) -> Identity {
        let projects = Some(projects.iter().map(|project| (*project).to_owned()).collect());
        signed_identity(&Identity { projects, ..self.identity() }, &signer.key)
    }

    fn revocation(&self) -> Revocation {
        Revocation { fingerprint: self.key.public_key().fingerprint(), reason: "lost".to_owned() }
    }

    /// The verdict on a tool that this person signed, found in `space`.
    fn verdict(&self, ring: &KeyRing, space: &Space) -> TrustVerdict {
        self.verdict_and_basis(ring, space).0
    }

    fn verdict_and_basis(&self, ring: &KeyRing, space: &Space) -> (TrustVerdict, Option<TrustBasis>) {
        let kind = file_kind(ItemType::Tool, ".py");
        let bytes = sign_bytes(b"x = 1\n", &kind.format, &self.key);
        let report = verify::evaluate(&File::new(&kind, space.clone(), bytes), ring);
        (report.verdict, report.basis)
    }

    fn verdicts(&self, ring: &KeyRing) -> [TrustVerdict; 4] {
        spaces().map(|space| self.verdict(ring, &space))
    }
}

fn bundle(name: &str) -> BundleId {
    BundleId::new(name).expect("a bundle id")
}

/// Project, user, two bundles.
fn spaces() -> [Space; 4] {
    [Space::Project, Space::User, Space::System(bundle("one")), Space::System(bundle("two"))]
}

const NOWHERE: [TrustVerdict; 4] = [TrustVerdict::Untrusted; 4];
const EVERYWHERE: [TrustVerdict; 4] = [TrustVerdict::Full; 4];
const REVOKED: [TrustVerdict; 4] = [TrustVerdict::Revoked; 4];
const IN_PROJECT: [TrustVerdict; 4] =
    [TrustVerdict::Full, TrustVerdict::Untrusted, TrustVerdict::Untrusted, TrustVerdict::Untrusted];
const IN_ONE: [TrustVerdict; 4] =
    [TrustVerdict::Untrusted, TrustVerdict::Untrusted, TrustVerdict::Full, TrustVerdict::Untrusted];

/// The ring of a user who has approved both bundles.
fn ring(documents: &[Identity], own: &Person) -> KeyRing {
    ring_with_revoked(documents, own, &[])
}

fn ring_with_revoked(documents: &[Identity], own: &Person, revoked: &[&Person]) -> KeyRing {
    let revocations = revoked.iter().map(|person| person.revocation()).collect();
    let mut ring =
        KeyRing::from_user_documents(documents, Some(&own.key.public_key()), Some(HERE), revocations);
    for name in ["one", "two"] {
        ring.add_bundle(&bundle(name), []);
    }
    ring
}

#[test]
fn empty_ring_trusts_no_key() {
    let me = Person::new("me");
    assert_eq!(me.verdicts(&ring(&[], &me)), NOWHERE);
    assert_eq!(me.verdicts(&KeyRing::default()), NOWHERE);
}

#[test]
fn unsigned_documents_are_not_trusted() {
    let (me, friend) = (Person::new("me"), Person::new("friend"));
    let unsigned = Identity::parse(friend.identity().to_document().as_bytes()).expect("a document");
    assert_eq!(unsigned.signature, None);
    let mut ring = ring(&[me.introducer_document_signed_by(&me), unsigned.clone()], &me);
    ring.add_project(&[unsigned]);
    assert_eq!(friend.verdicts(&ring), NOWHERE);
    assert_eq!(me.verdicts(&ring), EVERYWHERE);
}

#[test]
fn changed_documents_are_refused() {
    let friend = Person::new("friend");
    let text = friend.identity().to_document();
    let bytes = sign_bytes(text.as_bytes(), &rye_trust::identity::signature_format(), &friend.key);
    let text = String::from_utf8(bytes).expect("text");
    for changed in [
        text.replace("owner = \"friend\"", "owner = \"fiend\""),
        text.replace("attestation = \"\"\n", "attestation = \"\"\nmay_introduce = true\n"),
        text.replace('\n', "\r\n"),
        format!("{text}\n"),
        text.replacen('\n', "\r\n", 1),
    ] {
        assert_ne!(changed, text);
        assert_eq!(Identity::parse(changed.as_bytes()), Err(IdentityError::Changed), "{changed}");
    }
}

#[test]
fn forged_self_signature_is_refused() {
    let (me, friend) = (Person::new("me"), Person::new("friend"));
    let document = friend.identity().to_document();
    let bytes = sign_bytes(document.as_bytes(), &rye_trust::identity::signature_format(), &me.key);
    let text = String::from_utf8(bytes).expect("text");
    let (theirs, ours) = (friend.key.public_key().fingerprint(), me.key.public_key().fingerprint());
    let forged = text.replacen(ours.as_str(), theirs.as_str(), 1);
    assert_eq!(Identity::parse(forged.as_bytes()), Err(IdentityError::Forged));
}

#[test]
fn self_signed_user_documents_are_trusted_everywhere() {
    let (me, friend) = (Person::new("me"), Person::new("friend"));
    let ring = ring(&[me.self_signed_document(), friend.self_signed_document()], &me);
    assert_eq!(
        friend.verdict_and_basis(&ring, &Space::Project),
        (TrustVerdict::Full, Some(TrustBasis::User))
    );
    assert_eq!(friend.verdicts(&ring), EVERYWHERE);
    assert!(ring.is_trusted_everywhere(&friend.key.public_key()));
}

#[test]
fn document_order_does_not_affect_trust() {
    let (me, friend, third, stranger) =
        (Person::new("me"), Person::new("friend"), Person::new("third"), Person::new("stranger"));
    let lost = Person::new("lost");
    let mut documents = vec![
        third.document_signed_by(&friend),
        friend.document_signed_by(&me),
        me.self_signed_document(),
        lost.document_signed_by(&stranger),
    ];
    for _ in 0..documents.len() {
        documents.rotate_left(1);
        let ring = ring(&documents, &me);
        for person in [&me, &friend, &third] {
            assert_eq!(person.verdicts(&ring), EVERYWHERE, "{}", person.name);
        }
        assert_eq!(lost.verdicts(&ring), NOWHERE);
        assert_eq!(stranger.verdicts(&ring), NOWHERE);
    }
    let ring = ring(&[third.document_signed_by(&friend), friend.document_signed_by(&me)], &me);
    assert_eq!(third.verdicts(&ring), NOWHERE, "the own key has no document");
}

#[test]
fn circular_signatures_are_not_trusted() {
    let (me, one, two) = (Person::new("me"), Person::new("one"), Person::new("two"));
    let ring =
        ring(&[me.self_signed_document(), one.document_signed_by(&two), two.document_signed_by(&one)], &me);
    assert_eq!((one.verdicts(&ring), two.verdicts(&ring)), (NOWHERE, NOWHERE));
}

#[test]
fn project_documents_need_an_introducer() {
    let (me, friend, plain, author, stranger) = (
        Person::new("me"),
        Person::new("friend"),
        Person::new("plain"),
        Person::new("author"),
        Person::new("stranger"),
    );
    let user =
        [me.self_signed_document(), friend.introducer_document_signed_by(&me), plain.document_signed_by(&me)];
    let with = |documents: &[Identity]| {
        let mut ring = ring(&user, &me);
        ring.add_project(documents);
        ring
    };
    assert_eq!(author.verdicts(&with(&[author.self_signed_document()])), NOWHERE);
    assert_eq!(
        author.verdicts(&with(&[author.document_signed_by(&stranger), stranger.self_signed_document()])),
        NOWHERE
    );
    assert_eq!(
        author.verdicts(&with(&[author.document_signed_by(&plain)])),
        NOWHERE,
        "trusted, but may not introduce"
    );
    assert_eq!(
        author.verdicts(&with(&[author.document_signed_by(&me)])),
        NOWHERE,
        "the own key is not marked either"
    );
    let ring = with(&[author.document_signed_by(&friend)]);
    assert_eq!(author.verdicts(&ring), IN_PROJECT);
    assert_eq!(author.verdict_and_basis(&ring, &Space::Project).1, Some(TrustBasis::Introduced));
    assert!(!ring.is_trusted_everywhere(&author.key.public_key()));
    assert!(!ring.is_introducer(&author.key.public_key().fingerprint()));
}

#[test]
fn only_own_key_creates_introducers() {
    let (me, friend, third, author) =
        (Person::new("me"), Person::new("friend"), Person::new("third"), Person::new("author"));
    let itself = signed_identity(&Identity { may_introduce: true, ..friend.identity() }, &friend.key);
    let by_friend = third.introducer_document_signed_by(&friend);
    for own in [Some(me.key.public_key()), None] {
        let documents = [me.self_signed_document(), itself.clone(), by_friend.clone()];
        let mut ring = KeyRing::from_user_documents(&documents, own.as_ref(), Some(HERE), Vec::new());
        ring.add_project(&[author.document_signed_by(&friend), author.document_signed_by(&third)]);
        assert_eq!(author.verdicts(&ring), NOWHERE);
        for space in [Space::Project, Space::User] {
            assert_eq!(
                (friend.verdict(&ring, &space), third.verdict(&ring, &space)),
                (TrustVerdict::Full, TrustVerdict::Full)
            );
        }
        for person in [&friend, &third] {
            assert!(!ring.is_introducer(&person.key.public_key().fingerprint()), "{}", person.name);
        }
    }
}

#[test]
fn introduction_reaches_one_step_only() {
    let (me, friend, author, second) =
        (Person::new("me"), Person::new("friend"), Person::new("author"), Person::new("second"));
    let introduced = author.introducer_document_signed_by(&friend);
    for documents in [
        [introduced.clone(), second.document_signed_by(&author)],
        [second.document_signed_by(&author), introduced.clone()],
    ] {
        let mut ring = ring(&[me.self_signed_document(), friend.introducer_document_signed_by(&me)], &me);
        ring.add_project(&documents);
        ring.add_project(&documents);
        assert_eq!(author.verdicts(&ring), IN_PROJECT);
        assert_eq!(second.verdicts(&ring), NOWHERE);
    }
}

#[test]
fn scoped_key_is_trusted_in_its_projects() {
    let (me, friend) = (Person::new("me"), Person::new("friend"));
    let verdicts_at = |project: Option<&str>, scope: &[&str]| {
        let documents = [me.self_signed_document(), friend.scoped_document_signed_by(&me, scope)];
        let ring = KeyRing::from_user_documents(&documents, Some(&me.key.public_key()), project, Vec::new());
        assert!(!ring.is_trusted_everywhere(&friend.key.public_key()));
        friend.verdicts(&ring)
    };
    assert_eq!(verdicts_at(Some(HERE), &[HERE]), IN_PROJECT);
    assert_eq!(verdicts_at(Some(HERE), &[ELSEWHERE, HERE]), IN_PROJECT);
    assert_eq!(verdicts_at(Some(HERE), &[ELSEWHERE]), NOWHERE);
    assert_eq!(verdicts_at(Some(HERE), &[]), NOWHERE);
    assert_eq!(verdicts_at(None, &[HERE]), NOWHERE);
    for near in ["/home/me", "/home/me/here/", "/home/me/here/sub", "/HOME/me/here", ""] {
        assert_eq!(verdicts_at(Some(HERE), &[near]), NOWHERE, "{near}");
    }
    let ring = ring(&[me.self_signed_document(), friend.scoped_document_signed_by(&me, &[HERE])], &me);
    assert_eq!(friend.verdict_and_basis(&ring, &Space::Project).1, Some(TrustBasis::Project));
}

#[test]
fn scoped_key_cannot_sign_other_documents() {
    let (me, friend, third) = (Person::new("me"), Person::new("friend"), Person::new("third"));
    let documents = [
        me.self_signed_document(),
        friend.scoped_document_signed_by(&me, &[HERE]),
        third.document_signed_by(&friend),
    ];
    let mut ring = ring(&documents, &me);
    ring.add_project(&[third.document_signed_by(&friend)]);
    assert_eq!(friend.verdicts(&ring), IN_PROJECT);
    assert_eq!(third.verdicts(&ring), NOWHERE);
}

#[test]
fn scoped_introducer_works_in_its_project() {
    let (me, friend, author) = (Person::new("me"), Person::new("friend"), Person::new("author"));
    let scoped = Identity { may_introduce: true, projects: Some(vec![HERE.to_owned()]), ..friend.identity() };
    for (project, expected) in [(HERE, IN_PROJECT), (ELSEWHERE, NOWHERE)] {
        let documents = [me.self_signed_document(), signed_identity(&scoped, &me.key)];
        let mut ring =
            KeyRing::from_user_documents(&documents, Some(&me.key.public_key()), Some(project), Vec::new());
        ring.add_project(&[author.document_signed_by(&friend)]);
        assert_eq!(author.verdicts(&ring), expected, "{project}");
        assert_eq!(ring.is_introducer(&friend.key.public_key().fingerprint()), project == HERE, "{project}");
    }
}

#[test]
fn foreign_introducer_gains_no_rights_here() {
    let (me, friend, other, author) =
        (Person::new("me"), Person::new("friend"), Person::new("other"), Person::new("author"));
    let elsewhere =
        Identity { may_introduce: true, projects: Some(vec![ELSEWHERE.to_owned()]), ..other.identity() };
    let user = [
        me.self_signed_document(),
        friend.introducer_document_signed_by(&me),
        signed_identity(&elsewhere, &me.key),
    ];
    let mut ring = ring(&user, &me);
    ring.add_project(&[other.document_signed_by(&friend), author.document_signed_by(&other)]);
    assert_eq!(other.verdicts(&ring), IN_PROJECT, "introduced by a friend");
    assert_eq!(author.verdicts(&ring), NOWHERE, "two steps from the user");
}

#[test]
fn project_document_cannot_rename_trusted_key() {
    let (me, friend) = (Person::new("me"), Person::new("friend"));
    let mut ring = ring(&[me.self_signed_document(), friend.introducer_document_signed_by(&me)], &me);
    let renamed =
        signed_identity(&Identity { owner: "someone else".to_owned(), ..me.identity() }, &friend.key);
    ring.add_project(std::slice::from_ref(&renamed));
    ring.add_bundle(&bundle("one"), [renamed]);
    for space in spaces() {
        let found = ring.find(&me.key.public_key().fingerprint(), &space).expect("a key");
        assert_eq!((found.owner.as_str(), found.basis), ("me", TrustBasis::User), "{space}");
    }
}

#[test]
fn bundle_key_is_trusted_in_its_bundle() {
    let (me, publisher) = (Person::new("me"), Person::new("publisher"));
    let mut ring = ring(&[me.self_signed_document()], &me);
    ring.add_bundle(&bundle("one"), [publisher.self_signed_document()]);
    assert_eq!(publisher.verdicts(&ring), IN_ONE);
    assert_eq!(publisher.verdict_and_basis(&ring, &Space::System(bundle("one"))).1, Some(TrustBasis::Bundle));
    assert!(!ring.is_trusted_everywhere(&publisher.key.public_key()));

    let (author, mut both) = (Person::new("author"), ring.clone());
    both.add_project(&[author.document_signed_by(&publisher)]);
    assert_eq!(author.verdicts(&both), NOWHERE, "a bundle key introduces no one");
    both.add_bundle(&bundle("two"), [author.self_signed_document()]);
    assert_eq!(publisher.verdicts(&both), IN_ONE);
    assert_eq!(me.verdicts(&both), EVERYWHERE);
}

#[test]
fn bundle_keys_can_be_replaced() {
    let (me, old, new) = (Person::new("me"), Person::new("old"), Person::new("new"));
    let mut ring = ring_with_revoked(&[me.self_signed_document()], &me, &[]);
    ring.add_bundle(&bundle("one"), [old.self_signed_document()]);
    ring.add_bundle(&bundle("two"), [old.self_signed_document()]);
    ring.replace_bundle(&bundle("one"), [new.self_signed_document()]);
    assert_eq!(new.verdicts(&ring), IN_ONE);
    let in_two =
        [TrustVerdict::Untrusted, TrustVerdict::Untrusted, TrustVerdict::Untrusted, TrustVerdict::Full];
    assert_eq!(old.verdicts(&ring), in_two);
}

#[test]
fn revoked_key_is_refused_everywhere() {
    let (me, friend, author, publisher) =
        (Person::new("me"), Person::new("friend"), Person::new("author"), Person::new("publisher"));
    let user = [me.self_signed_document(), friend.introducer_document_signed_by(&me)];
    let build = |revoked: &[&Person]| {
        let mut ring = ring_with_revoked(&user, &me, revoked);
        ring.add_project(&[author.document_signed_by(&friend)]);
        ring.add_bundle(&bundle("one"), [publisher.self_signed_document()]);
        ring
    };
    for person in [&me, &friend, &author, &publisher] {
        let ring = build(&[person]);
        assert_eq!(person.verdicts(&ring), REVOKED, "{}", person.name);
        let fingerprint = person.key.public_key().fingerprint();
        for space in spaces() {
            assert_eq!(ring.find(&fingerprint, &space), None, "{} in {space}", person.name);
        }
        assert!(
            !ring.is_trusted_everywhere(&person.key.public_key()) && !ring.is_introducer(&fingerprint),
            "{}",
            person.name
        );
        assert!(ring.keys().all(|(known, _)| *known != fingerprint), "{}", person.name);
        assert_eq!(ring.revocation(&fingerprint), Some(&person.revocation()));
    }
    assert_eq!(author.verdicts(&build(&[&friend])), NOWHERE, "a revoked key introduces no one");
    assert_eq!(author.verdicts(&build(&[])), IN_PROJECT);
    assert_eq!(friend.verdicts(&build(&[&me])), NOWHERE, "a revoked own key is trusted for nothing");
}

#[test]
fn revoked_signer_cannot_sign_other_documents() {
    let (me, friend, third) = (Person::new("me"), Person::new("friend"), Person::new("third"));
    let documents =
        [me.self_signed_document(), friend.document_signed_by(&me), third.document_signed_by(&friend)];
    assert_eq!(third.verdicts(&ring(&documents, &me)), EVERYWHERE);
    let ring = ring_with_revoked(&documents, &me, &[&friend]);
    assert_eq!((friend.verdicts(&ring), third.verdicts(&ring)), (REVOKED, NOWHERE));
    assert_eq!(me.verdicts(&ring), EVERYWHERE);
}

#[test]
fn revocation_is_reported_for_untrusted_keys() {
    let (me, stranger) = (Person::new("me"), Person::new("stranger"));
    let ring = ring_with_revoked(&[me.self_signed_document()], &me, &[&stranger]);
    assert_eq!(stranger.verdicts(&ring), REVOKED);
    let kind = file_kind(ItemType::Tool, ".py");
    let bytes = sign_bytes(b"x = 1\n", &kind.format, &stranger.key);
    let report = verify::evaluate(&File::new(&kind, Space::User, bytes), &ring);
    let expected = format!("the key {} is revoked: lost", stranger.key.public_key().fingerprint());
    assert_eq!(report.reason, Some(expected));
}

#[test]
fn key_under_foreign_fingerprint_is_untrusted() {
    let (me, attacker) = (Person::new("me"), Person::new("attacker"));
    let claim = Identity { fingerprint: me.key.public_key().fingerprint(), ..attacker.identity() };
    let mut ring = ring(&[me.self_signed_document()], &me);
    ring.add_bundle(&bundle("one"), [claim]);
    assert_eq!(attacker.verdicts(&ring), NOWHERE);
    assert_eq!(me.verdicts(&ring), EVERYWHERE);
}

#[test]
fn unapproved_bundle_is_untrusted() {
    let me = Person::new("me");
    let ring = ring(&[me.self_signed_document()], &me);
    assert_eq!(me.verdict(&ring, &Space::System(bundle("one"))), TrustVerdict::Full);
    assert_eq!(me.verdict(&ring, &Space::System(bundle("three"))), TrustVerdict::Untrusted);
}
