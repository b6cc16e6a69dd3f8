//! The launcher for tests of threads. The shipped binary is its own launcher.

fn main() {
    lillux::process::supervise_if_requested();
}
