//! Whose signatures count, and where: decisions §4, rule by rule.

use lillux::SecretKey;
use rye_item::{BundleId, ItemType, Space};
use rye_trust::{Identity, IdentityError, KeyRing, Revocation, Verdict, Vouch, verify};

use crate::support::{File, document, kind, signed_by};

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
        Identity::new(self.key.public(), self.name)
    }

    fn self_signed(&self) -> Identity {
        document(&self.identity(), &self.key)
    }

    fn signed_by(&self, signer: &Self) -> Identity {
        document(&self.identity(), &signer.key)
    }

    fn introducer_signed_by(&self, signer: &Self) -> Identity {
        document(&Identity { may_introduce: true, ..self.identity() }, &signer.key)
    }

    fn scoped_signed_by(&self, signer: &Self, projects: &[&str]) -> Identity {
        let projects = Some(projects.iter().map(|project| (*project).to_owned()).collect());
        document(&Identity { projects, ..self.identity() }, &signer.key)
    }

    fn revocation(&self) -> Revocation {
        Revocation { fingerprint: self.key.public().fingerprint(), reason: "lost".to_owned() }
    }

    /// The verdict on a tool that this person signed, found in `space`.
    fn verdict(&self, ring: &KeyRing, space: &Space) -> Verdict {
        self.judged(ring, space).0
    }

    fn judged(&self, ring: &KeyRing, space: &Space) -> (Verdict, Option<Vouch>) {
        let kind = kind(ItemType::Tool, ".py");
        let bytes = signed_by(b"x = 1\n", &kind.format, &self.key);
        let report = verify::report(&File::new(&kind, space.clone(), bytes), ring);
        (report.verdict, report.vouch)
    }

    fn verdicts(&self, ring: &KeyRing) -> [Verdict; 4] {
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

const NOWHERE: [Verdict; 4] = [Verdict::Untrusted; 4];
const EVERYWHERE: [Verdict; 4] = [Verdict::Full; 4];
const REVOKED: [Verdict; 4] = [Verdict::Revoked; 4];
const IN_PROJECT: [Verdict; 4] = [Verdict::Full, Verdict::Untrusted, Verdict::Untrusted, Verdict::Untrusted];
const IN_ONE: [Verdict; 4] = [Verdict::Untrusted, Verdict::Untrusted, Verdict::Full, Verdict::Untrusted];

/// The ring of a user who has approved both bundles.
fn ring(documents: &[Identity], own: &Person) -> KeyRing {
    ring_without(documents, own, &[])
}

fn ring_without(documents: &[Identity], own: &Person, revoked: &[&Person]) -> KeyRing {
    let revocations = revoked.iter().map(|person| person.revocation()).collect();
    let mut ring = KeyRing::of_user(documents, Some(&own.key.public()), Some(HERE), revocations);
    for name in ["one", "two"] {
        ring.add_bundle(&bundle(name), []);
    }
    ring
}

#[test]
fn an_empty_ring_trusts_nobody_not_even_the_own_key() {
    let me = Person::new("me");
    assert_eq!(me.verdicts(&ring(&[], &me)), NOWHERE);
    assert_eq!(me.verdicts(&KeyRing::default()), NOWHERE);
}

#[test]
fn unsigned_documents_count_nowhere() {
    let (me, friend) = (Person::new("me"), Person::new("friend"));
    let unsigned = Identity::parse(friend.identity().to_document().as_bytes()).expect("a document");
    assert_eq!(unsigned.signature, None);
    let mut ring = ring(&[me.introducer_signed_by(&me), unsigned.clone()], &me);
    ring.add_project(&[unsigned]);
    assert_eq!(friend.verdicts(&ring), NOWHERE);
    assert_eq!(me.verdicts(&ring), EVERYWHERE);
}

#[test]
fn changed_documents_are_refused() {
    let friend = Person::new("friend");
    let text = friend.identity().to_document();
    let bytes = signed_by(text.as_bytes(), &rye_trust::identity::format(), &friend.key);
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
    let bytes = signed_by(document.as_bytes(), &rye_trust::identity::format(), &me.key);
    let text = String::from_utf8(bytes).expect("text");
    let (theirs, ours) = (friend.key.public().fingerprint(), me.key.public().fingerprint());
    let forged = text.replacen(ours.as_str(), theirs.as_str(), 1);
    assert_eq!(Identity::parse(forged.as_bytes()), Err(IdentityError::Forged));
}

#[test]
fn self_signed_documents_of_user_space_count_everywhere() {
    let (me, friend) = (Person::new("me"), Person::new("friend"));
    let ring = ring(&[me.self_signed(), friend.self_signed()], &me);
    assert_eq!(friend.judged(&ring, &Space::Project), (Verdict::Full, Some(Vouch::User)));
    assert_eq!(friend.verdicts(&ring), EVERYWHERE);
    assert!(ring.is_general(&friend.key.public()));
}

#[test]
fn documents_signed_by_a_trusted_key_count_in_any_order() {
    let (me, friend, third, stranger) =
        (Person::new("me"), Person::new("friend"), Person::new("third"), Person::new("stranger"));
    let lost = Person::new("lost");
    let mut documents =
        vec![third.signed_by(&friend), friend.signed_by(&me), me.self_signed(), lost.signed_by(&stranger)];
    for _ in 0..documents.len() {
        documents.rotate_left(1);
        let ring = ring(&documents, &me);
        for person in [&me, &friend, &third] {
            assert_eq!(person.verdicts(&ring), EVERYWHERE, "{}", person.name);
        }
        assert_eq!(lost.verdicts(&ring), NOWHERE);
        assert_eq!(stranger.verdicts(&ring), NOWHERE);
    }
    let ring = ring(&[third.signed_by(&friend), friend.signed_by(&me)], &me);
    assert_eq!(third.verdicts(&ring), NOWHERE, "the own key has no document");
}

#[test]
fn documents_that_sign_each_other_in_a_circle_do_not_count() {
    let (me, one, two) = (Person::new("me"), Person::new("one"), Person::new("two"));
    let ring = ring(&[me.self_signed(), one.signed_by(&two), two.signed_by(&one)], &me);
    assert_eq!((one.verdicts(&ring), two.verdicts(&ring)), (NOWHERE, NOWHERE));
}

#[test]
fn project_documents_count_only_if_an_introducer_signed_them() {
    let (me, friend, plain, author, stranger) = (
        Person::new("me"),
        Person::new("friend"),
        Person::new("plain"),
        Person::new("author"),
        Person::new("stranger"),
    );
    let user = [me.self_signed(), friend.introducer_signed_by(&me), plain.signed_by(&me)];
    let with = |documents: &[Identity]| {
        let mut ring = ring(&user, &me);
        ring.add_project(documents);
        ring
    };
    assert_eq!(author.verdicts(&with(&[author.self_signed()])), NOWHERE);
    assert_eq!(author.verdicts(&with(&[author.signed_by(&stranger), stranger.self_signed()])), NOWHERE);
    assert_eq!(
        author.verdicts(&with(&[author.signed_by(&plain)])),
        NOWHERE,
        "trusted, but may not introduce"
    );
    assert_eq!(author.verdicts(&with(&[author.signed_by(&me)])), NOWHERE, "the own key is not marked either");
    let ring = with(&[author.signed_by(&friend)]);
    assert_eq!(author.verdicts(&ring), IN_PROJECT);
    assert_eq!(author.judged(&ring, &Space::Project).1, Some(Vouch::Introduced));
    assert!(!ring.is_general(&author.key.public()));
    assert!(!ring.is_introducer(&author.key.public().fingerprint()));
}

#[test]
fn only_the_own_key_makes_introducers() {
    let (me, friend, third, author) =
        (Person::new("me"), Person::new("friend"), Person::new("third"), Person::new("author"));
    let itself = document(&Identity { may_introduce: true, ..friend.identity() }, &friend.key);
    let by_friend = third.introducer_signed_by(&friend);
    for own in [Some(me.key.public()), None] {
        let documents = [me.self_signed(), itself.clone(), by_friend.clone()];
        let mut ring = KeyRing::of_user(&documents, own.as_ref(), Some(HERE), Vec::new());
        ring.add_project(&[author.signed_by(&friend), author.signed_by(&third)]);
        assert_eq!(author.verdicts(&ring), NOWHERE);
        for space in [Space::Project, Space::User] {
            assert_eq!(
                (friend.verdict(&ring, &space), third.verdict(&ring, &space)),
                (Verdict::Full, Verdict::Full)
            );
        }
        for person in [&friend, &third] {
            assert!(!ring.is_introducer(&person.key.public().fingerprint()), "{}", person.name);
        }
    }
}

#[test]
fn an_introduction_goes_one_step_and_never_further() {
    let (me, friend, author, second) =
        (Person::new("me"), Person::new("friend"), Person::new("author"), Person::new("second"));
    let introduced = author.introducer_signed_by(&friend);
    for documents in
        [[introduced.clone(), second.signed_by(&author)], [second.signed_by(&author), introduced.clone()]]
    {
        let mut ring = ring(&[me.self_signed(), friend.introducer_signed_by(&me)], &me);
        ring.add_project(&documents);
        ring.add_project(&documents);
        assert_eq!(author.verdicts(&ring), IN_PROJECT);
        assert_eq!(second.verdicts(&ring), NOWHERE);
    }
}

#[test]
fn a_scoped_key_counts_in_its_projects_only() {
    let (me, friend) = (Person::new("me"), Person::new("friend"));
    let at = |project: Option<&str>, scope: &[&str]| {
        let documents = [me.self_signed(), friend.scoped_signed_by(&me, scope)];
        let ring = KeyRing::of_user(&documents, Some(&me.key.public()), project, Vec::new());
        assert!(!ring.is_general(&friend.key.public()));
        friend.verdicts(&ring)
    };
    assert_eq!(at(Some(HERE), &[HERE]), IN_PROJECT);
    assert_eq!(at(Some(HERE), &[ELSEWHERE, HERE]), IN_PROJECT);
    assert_eq!(at(Some(HERE), &[ELSEWHERE]), NOWHERE);
    assert_eq!(at(Some(HERE), &[]), NOWHERE);
    assert_eq!(at(None, &[HERE]), NOWHERE);
    for near in ["/home/me", "/home/me/here/", "/home/me/here/sub", "/HOME/me/here", ""] {
        assert_eq!(at(Some(HERE), &[near]), NOWHERE, "{near}");
    }
    let ring = ring(&[me.self_signed(), friend.scoped_signed_by(&me, &[HERE])], &me);
    assert_eq!(friend.judged(&ring, &Space::Project).1, Some(Vouch::Project));
}

#[test]
fn a_scoped_key_does_not_vouch_for_other_documents() {
    let (me, friend, third) = (Person::new("me"), Person::new("friend"), Person::new("third"));
    let documents = [me.self_signed(), friend.scoped_signed_by(&me, &[HERE]), third.signed_by(&friend)];
    let mut ring = ring(&documents, &me);
    ring.add_project(&[third.signed_by(&friend)]);
    assert_eq!(friend.verdicts(&ring), IN_PROJECT);
    assert_eq!(third.verdicts(&ring), NOWHERE);
}

#[test]
fn an_introducer_of_one_project_introduces_there_only() {
    let (me, friend, author) = (Person::new("me"), Person::new("friend"), Person::new("author"));
    let scoped = Identity { may_introduce: true, projects: Some(vec![HERE.to_owned()]), ..friend.identity() };
    for (project, expected) in [(HERE, IN_PROJECT), (ELSEWHERE, NOWHERE)] {
        let documents = [me.self_signed(), document(&scoped, &me.key)];
        let mut ring = KeyRing::of_user(&documents, Some(&me.key.public()), Some(project), Vec::new());
        ring.add_project(&[author.signed_by(&friend)]);
        assert_eq!(author.verdicts(&ring), expected, "{project}");
        assert_eq!(ring.is_introducer(&friend.key.public().fingerprint()), project == HERE, "{project}");
    }
}

#[test]
fn an_introducer_of_another_project_cannot_be_introduced_into_this_one() {
    let (me, friend, other, author) =
        (Person::new("me"), Person::new("friend"), Person::new("other"), Person::new("author"));
    let elsewhere =
        Identity { may_introduce: true, projects: Some(vec![ELSEWHERE.to_owned()]), ..other.identity() };
    let user = [me.self_signed(), friend.introducer_signed_by(&me), document(&elsewhere, &me.key)];
    let mut ring = ring(&user, &me);
    ring.add_project(&[other.signed_by(&friend), author.signed_by(&other)]);
    assert_eq!(other.verdicts(&ring), IN_PROJECT, "introduced by a friend");
    assert_eq!(author.verdicts(&ring), NOWHERE, "two steps from the user");
}

#[test]
fn a_project_document_does_not_rename_a_key_the_user_trusts() {
    let (me, friend) = (Person::new("me"), Person::new("friend"));
    let mut ring = ring(&[me.self_signed(), friend.introducer_signed_by(&me)], &me);
    let renamed = document(&Identity { owner: "someone else".to_owned(), ..me.identity() }, &friend.key);
    ring.add_project(std::slice::from_ref(&renamed));
    ring.add_bundle(&bundle("one"), [renamed]);
    for space in spaces() {
        let found = ring.find(&me.key.public().fingerprint(), &space).expect("a key");
        assert_eq!((found.owner.as_str(), found.vouch), ("me", Vouch::User), "{space}");
    }
}

#[test]
fn a_bundle_key_vouches_for_its_bundle_only() {
    let (me, publisher) = (Person::new("me"), Person::new("publisher"));
    let mut ring = ring(&[me.self_signed()], &me);
    ring.add_bundle(&bundle("one"), [publisher.self_signed()]);
    assert_eq!(publisher.verdicts(&ring), IN_ONE);
    assert_eq!(publisher.judged(&ring, &Space::System(bundle("one"))).1, Some(Vouch::Bundle));
    assert!(!ring.is_general(&publisher.key.public()));

    let (author, mut both) = (Person::new("author"), ring.clone());
    both.add_project(&[author.signed_by(&publisher)]);
    assert_eq!(author.verdicts(&both), NOWHERE, "a bundle key introduces nobody");
    both.add_bundle(&bundle("two"), [author.self_signed()]);
    assert_eq!(publisher.verdicts(&both), IN_ONE);
    assert_eq!(me.verdicts(&both), EVERYWHERE);
}

#[test]
fn the_keys_of_a_bundle_can_be_replaced() {
    let (me, old, new) = (Person::new("me"), Person::new("old"), Person::new("new"));
    let mut ring = ring_without(&[me.self_signed()], &me, &[]);
    ring.add_bundle(&bundle("one"), [old.self_signed()]);
    ring.add_bundle(&bundle("two"), [old.self_signed()]);
    ring.replace_bundle(&bundle("one"), [new.self_signed()]);
    assert_eq!(new.verdicts(&ring), IN_ONE);
    let in_two = [Verdict::Untrusted, Verdict::Untrusted, Verdict::Untrusted, Verdict::Full];
    assert_eq!(old.verdicts(&ring), in_two);
}

#[test]
fn a_revoked_key_fails_everywhere() {
    let (me, friend, author, publisher) =
        (Person::new("me"), Person::new("friend"), Person::new("author"), Person::new("publisher"));
    let user = [me.self_signed(), friend.introducer_signed_by(&me)];
    let build = |revoked: &[&Person]| {
        let mut ring = ring_without(&user, &me, revoked);
        ring.add_project(&[author.signed_by(&friend)]);
        ring.add_bundle(&bundle("one"), [publisher.self_signed()]);
        ring
    };
    for person in [&me, &friend, &author, &publisher] {
        let ring = build(&[person]);
        assert_eq!(person.verdicts(&ring), REVOKED, "{}", person.name);
        let fingerprint = person.key.public().fingerprint();
        for space in spaces() {
            assert_eq!(ring.find(&fingerprint, &space), None, "{} in {space}", person.name);
        }
        assert!(
            !ring.is_general(&person.key.public()) && !ring.is_introducer(&fingerprint),
            "{}",
            person.name
        );
        assert!(ring.keys().all(|(known, _)| *known != fingerprint), "{}", person.name);
        assert_eq!(ring.revocation(&fingerprint), Some(&person.revocation()));
    }
    assert_eq!(author.verdicts(&build(&[&friend])), NOWHERE, "a revoked key introduces nobody");
    assert_eq!(author.verdicts(&build(&[])), IN_PROJECT);
    assert_eq!(friend.verdicts(&build(&[&me])), NOWHERE, "a revoked own key vouches for nobody");
}

#[test]
fn a_revoked_signer_does_not_vouch_for_others_documents() {
    let (me, friend, third) = (Person::new("me"), Person::new("friend"), Person::new("third"));
    let documents = [me.self_signed(), friend.signed_by(&me), third.signed_by(&friend)];
    assert_eq!(third.verdicts(&ring(&documents, &me)), EVERYWHERE);
    let ring = ring_without(&documents, &me, &[&friend]);
    assert_eq!((friend.verdicts(&ring), third.verdicts(&ring)), (REVOKED, NOWHERE));
    assert_eq!(me.verdicts(&ring), EVERYWHERE);
}

#[test]
fn revocation_is_told_even_of_keys_nobody_trusts() {
    let (me, stranger) = (Person::new("me"), Person::new("stranger"));
    let ring = ring_without(&[me.self_signed()], &me, &[&stranger]);
    assert_eq!(stranger.verdicts(&ring), REVOKED);
    let kind = kind(ItemType::Tool, ".py");
    let bytes = signed_by(b"x = 1\n", &kind.format, &stranger.key);
    let report = verify::report(&File::new(&kind, Space::User, bytes), &ring);
    let expected = format!("the key {} is revoked: lost", stranger.key.public().fingerprint());
    assert_eq!(report.reason, Some(expected));
}

#[test]
fn a_key_found_under_anothers_fingerprint_does_not_count() {
    let (me, attacker) = (Person::new("me"), Person::new("attacker"));
    let claim = Identity { fingerprint: me.key.public().fingerprint(), ..attacker.identity() };
    let mut ring = ring(&[me.self_signed()], &me);
    ring.add_bundle(&bundle("one"), [claim]);
    assert_eq!(attacker.verdicts(&ring), NOWHERE);
    assert_eq!(me.verdicts(&ring), EVERYWHERE);
}

#[test]
fn a_bundle_nobody_approved_counts_for_nothing_whoever_signed_it() {
    let me = Person::new("me");
    let ring = ring(&[me.self_signed()], &me);
    assert_eq!(me.verdict(&ring, &Space::System(bundle("one"))), Verdict::Full);
    assert_eq!(me.verdict(&ring, &Space::System(bundle("three"))), Verdict::Untrusted);
}
