//! Identity documents: what they must say, and what they cannot claim.

use lillux::{PublicKey, SecretKey};
use proptest::prelude::*;
use rye_trust::{Identity, IdentityError};

use crate::support::{sign_bytes, signed_identity, vector_key};

#[test]
fn document_with_foreign_fingerprint_is_refused() {
    let (mine, attacker) = (vector_key().public_key(), SecretKey::generate().expect("randomness"));
    let claim = Identity { fingerprint: mine.fingerprint(), ..Identity::new(attacker.public_key(), "me") };
    let bytes =
        sign_bytes(claim.to_document().as_bytes(), &rye_trust::identity::signature_format(), &attacker);
    let stated = mine.fingerprint().to_string();
    let expected = IdentityError::Fingerprint { stated, actual: attacker.public_key().fingerprint() };
    assert_eq!(Identity::parse(&bytes), Err(expected));
}

#[test]
fn forged_signer_name_is_not_accepted() {
    let (mine, attacker) = (vector_key(), SecretKey::generate().expect("randomness"));
    let bytes = sign_bytes(
        Identity::new(attacker.public_key(), "me").to_document().as_bytes(),
        &rye_trust::identity::signature_format(),
        &attacker,
    );
    let text = String::from_utf8(bytes).expect("text");
    let (line, rest) = text.split_once('\n').expect("a signature line");
    let (theirs, ours) = (attacker.public_key().fingerprint(), mine.public_key().fingerprint());
    let forged = format!("{}\n{rest}", line.replace(theirs.as_str(), ours.as_str()));
    let identity = Identity::parse(forged.as_bytes()).expect("a document");
    assert_eq!(identity.signature.as_ref().map(|line| line.fingerprint), Some(ours));
    assert!(!identity.is_signed_by(&mine.public_key()) && !identity.is_self_signed());
}

#[test]
fn weak_and_foreign_keys_are_refused() {
    let friend = SecretKey::generate().expect("randomness");
    let text = Identity::new(friend.public_key(), "friend").to_document();
    let pem = friend.public_key().to_pem();
    let parse_with = |other: &str| Identity::parse(text.replace(&pem, other).as_bytes());
    let der = |point: &str| format!("-----BEGIN PUBLIC KEY-----\n{point}\n-----END PUBLIC KEY-----\n");
    // The identity, and y = 0, a point of order four.
    for weak in [
        "MCowBQYDK2VwAyEAAQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
        "MCowBQYDK2VwAyEAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
    ] {
        assert_eq!(parse_with(&der(weak)), Err(IdentityError::Key(lillux::key::KeyError::Weak)), "{weak}");
        assert_eq!(PublicKey::from_pem(&der(weak)), Err(lillux::key::KeyError::Weak));
    }
    for bad in ["", "hello\n", &der(""), &der("AAAA"), &friend.to_pem().expect("pem")] {
        assert!(matches!(parse_with(bad), Err(IdentityError::Key(_))), "{bad}");
    }
}

#[test]
fn incomplete_documents_are_unreadable() {
    let text = Identity::new(vector_key().public_key(), "friend").to_document();
    let broken = [
        String::new(),
        text.replace("[public_key]", "[key]"),
        text.replace("fingerprint", "finger"),
        text.replace("owner = \"friend\"", "owner = 1"),
        text.replace("attestation = \"\"", "may_introduce = \"yes\""),
        text.replace("attestation = \"\"", "owner = \"twice\""),
        text.replace("[public_key]", "[scope]\nproject = \"/x\"\n\n[public_key]"),
        text.replace("[public_key]", "[scope]\nprojects = \"/x\"\n\n[public_key]"),
    ];
    for document in broken {
        assert!(
            matches!(Identity::parse(document.as_bytes()), Err(IdentityError::Unreadable(_))),
            "{document}"
        );
    }
    assert!(matches!(Identity::parse(b"\xff"), Err(IdentityError::Unreadable(_))));
}

proptest! {
    #[test]
    fn identity_round_trips_through_its_document(owner in any::<String>(), version in any::<String>(), may_introduce: bool,
                                         projects in prop::option::of(prop::collection::vec(any::<String>(), 0..4))) {
        let key = vector_key();
        let identity = Identity { may_introduce, projects, version, ..Identity::new(key.public_key(), &owner) };
        let back = signed_identity(&identity, key);
        prop_assert!(back.is_self_signed());
        prop_assert_eq!(Identity { signature: None, ..back }, identity);
    }
}
