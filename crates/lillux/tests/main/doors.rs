//! A door that a confined process finds: what it inherits, and that it is heard.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;

use lillux::Cancel;
use lillux::confine::Namespaces;
use lillux::process::door::{Door, answer, pair, sealed};
use lillux::process::{End, run_with_door};

use crate::confinement::World;
use crate::support::{launcher, python};

#[derive(Debug)]
struct Heard {
    bell: OwnedFd,
    other: OwnedFd,
    words: OwnedFd,
    /// What was brought along, for each time the door was opened.
    knocks: Mutex<Vec<Vec<u8>>>,
}

impl Door for Heard {
    fn handed(&self) -> Vec<(&'static str, BorrowedFd<'_>)> {
        vec![("TEST_WORDS", self.words.as_fd()), ("TEST_DOOR", self.other.as_fd())]
    }

    fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    fn opened(&self) {
        let (bytes, socket) = answer(&self.bell).expect("a knock").expect("somebody");
        self.knocks.lock().expect("knocks").push(bytes);
        rustix::io::write(&socket, b"come in").expect("said");
    }
}

const KNOCK: &str = "
import os, socket
words = os.pread(int(os.environ['TEST_WORDS']), 100, 0)
door = socket.socket(fileno=int(os.environ['TEST_DOOR']))
own, other = socket.socketpair()
socket.send_fds(door, [words], [other.fileno()])
other.close()
print(own.recv(100).decode(), len(os.listdir('/proc/self/fd')))
";

#[test]
fn a_confined_process_knocks_and_is_answered_over_its_own_socket() {
    let world = World::new();
    for namespaces in [Namespaces::Auto, Namespaces::Avoided] {
        let (bell, other) = pair().expect("a door");
        let words = sealed("words", b"let me in").expect("memory");
        let door = Heard { bell, other, words, knocks: Mutex::default() };
        let confinement = world.confinement(namespaces);
        let cancel = Cancel::new().expect("an event");
        let finished =
            run_with_door(&launcher(), &python(KNOCK), Some(&confinement), &cancel, &door).expect("it ran");
        // Streams, words, door, its own socket, and the folder that is listed: nothing else was inherited.
        assert_eq!((finished.end, finished.stdout.text().as_str()), (End::Exited(0), "come in 7\n"));
        assert_eq!(*door.knocks.lock().expect("knocks"), [b"let me in".to_vec()]);
    }
}
