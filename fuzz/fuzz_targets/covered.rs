//! Bytes outside the hash of a signed file, in every format: whatever stands before the signature line or in it, a file
//! that counts as signed whole is read and staged as it was signed.
#![no_main]

use std::sync::LazyLock;

use lillux::SecretKey;
use rye_item::SignatureFormat;
use rye_trust::coverage::{ContentStatus, Coverage, compare_content};
use rye_trust::signature::{FileLayout, Timestamp};
use rye_trust::{SignOutcome, covered_form, sign};

static KEY: LazyLock<SecretKey> = LazyLock::new(|| {
    let pem = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f\n-----END PRIVATE KEY-----\n";
    SecretKey::from_pem(pem).expect("a key")
});

static NOW: LazyLock<Timestamp> = LazyLock::new(|| Timestamp::new("2026-01-02T03:04:05Z").expect("a moment"));

fn signed(bytes: &[u8], format: &SignatureFormat) -> Vec<u8> {
    match sign(bytes, format, &KEY, &NOW) {
        SignOutcome::Written { bytes, .. } => bytes,
        SignOutcome::Unchanged(_) => bytes.to_vec(),
    }
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let [choice, place, before, inside, data @ ..] = data else {
        return;
    };
    let (item_type, extension, format) = &rye_fuzz::kinds()[usize::from(*choice) % rye_fuzz::kinds().len()];
    let (before, data) = data.split_at(usize::from(*before).min(data.len()));
    let (inside, content) = data.split_at(usize::from(*inside).min(data.len()));
    let own = FileLayout::parse(content, format);
    if own.content.start != 0 || own.shebang_error.is_some() {
        return;
    }
    let bytes = signed(content, format);
    let mut forms = vec![covered_form(&bytes, format).into_owned()];
    if format.after_shebang {
        let with_shebang = signed(&[b"#!/x\n", content].concat(), format);
        forms.push(covered_form(&with_shebang, format).into_owned());
    }
    let line = FileLayout::parse(&bytes, format).line;
    let place = usize::from(*place).min(line.len());
    let (left, right) = bytes[line].split_at(place);
    let changed = [before, left, inside, right, content].concat();
    let layout = FileLayout::parse(&changed, format);
    if !matches!(
        compare_content(*item_type, &changed, &layout),
        ContentStatus::Intact { coverage: Coverage::Full, .. }
    ) {
        return;
    }
    let read = covered_form(&changed, format);
    assert!(forms.iter().any(|form| *form == *read), "{}", changed.escape_ascii());
    let expected = rye_fuzz::parse_as(*item_type, extension, &forms[0]);
    let actual = rye_fuzz::parse_as(*item_type, extension, &read);
    assert_eq!(actual.fields, expected.fields, "{}", changed.escape_ascii());
});
