//! The callback channel of a confined process: what it inherits, and that it can connect.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;

use lillux::CancelToken;
use lillux::process::callback::{CallbackChannel, accept, seal_bytes, socket_pair};
use lillux::process::{ExitReason, run_with_callback};
use lillux::sandbox::NamespaceMode;

use crate::confinement::World;
use crate::support::{launcher, python};

#[derive(Debug)]
struct TestChannel {
    listener: OwnedFd,
    client_end: OwnedFd,
    payload: OwnedFd,
    /// What was brought along, for each connection.
    connects: Mutex<Vec<Vec<u8>>>,
}

impl CallbackChannel for TestChannel {
    fn inherited_fds(&self) -> Vec<(&'static str, BorrowedFd<'_>)> {
        vec![("TEST_WORDS", self.payload.as_fd()), ("TEST_CHANNEL", self.client_end.as_fd())]
    }

    fn listener_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    fn on_connect(&self) {
        let (bytes, socket) = accept(&self.listener).expect("a request").expect("a client");
        self.connects.lock().expect("requests").push(bytes);
        rustix::io::write(&socket, b"come in").expect("said");
    }
}

const CONNECT_SCRIPT: &str = "
import os, socket
words = os.pread(int(os.environ['TEST_WORDS']), 100, 0)
channel = socket.socket(fileno=int(os.environ['TEST_CHANNEL']))
own, other = socket.socketpair()
socket.send_fds(channel, [words], [other.fileno()])
other.close()
print(own.recv(100).decode(), len(os.listdir('/proc/self/fd')))
";

#[test]
fn confined_process_calls_back_over_own_socket() {
    let world = World::new();
    for namespaces in [NamespaceMode::Auto, NamespaceMode::Never] {
        let (listener, client_end) = socket_pair().expect("a channel");
        let payload = seal_bytes("words", b"let me in").expect("memory");
        let channel = TestChannel { listener, client_end, payload, connects: Mutex::default() };
        let confinement = world.confinement(namespaces);
        let cancel = CancelToken::new().expect("an event");
        let finished =
            run_with_callback(&launcher(), &python(CONNECT_SCRIPT), Some(&confinement), &cancel, &channel)
                .expect("it ran");
        // Streams, words, channel, its own socket, and the folder that is listed: nothing else was inherited.
        assert_eq!(
            (finished.exit, finished.stdout.to_text().as_str()),
            (ExitReason::Exited(0), "come in 7\n")
        );
        assert_eq!(*channel.connects.lock().expect("requests"), [b"let me in".to_vec()]);
    }
}
