//! Identity documents: what is read can be written and read again, and no document by itself makes a key trusted.
#![no_main]

use rye_item::Space;
use rye_trust::{Identity, KeyRing};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Ok(identity) = Identity::parse(data) else {
        return;
    };
    assert_eq!(identity.fingerprint, identity.key.fingerprint());
    let document = identity.to_document();
    let back = Identity::parse(document.as_bytes()).expect("own document");
    assert_eq!(back, Identity { signature: None, ..identity.clone() });

    let documents = [identity.clone(), back];
    let mut ring = KeyRing::from_user_documents(&documents, None, Some("/p"), Vec::new());
    ring.add_project(&documents);
    assert!(!ring.is_introducer(&identity.fingerprint));
    let counts = ring.find(&identity.fingerprint, &Space::Project).is_some();
    assert!(!counts || identity.is_self_signed());
});
