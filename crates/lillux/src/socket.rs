//! Sockets of this machine, by folder and name: who may enter the folder may connect.

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use crate::file;

/// Listens at `name` in `folder`; what was there is replaced. Only processes of the same user may connect.
///
/// # Errors
/// When the system refuses.
pub fn listen(folder: &Path, name: &str) -> io::Result<UnixListener> {
    file::remove(&folder.join(name))?;
    let (_open, short) = short_path(folder, name)?;
    let listener = UnixListener::bind(short)?;
    file::set_mode(&folder.join(name), 0o600)?;
    Ok(listener)
}

/// Connects to the listener at `name` in `folder`.
///
/// # Errors
/// When there is no listener.
pub fn connect(folder: &Path, name: &str) -> io::Result<UnixStream> {
    let (_open, short) = short_path(folder, name)?;
    UnixStream::connect(short)
}

/// The address of a socket is at most 107 bytes, and a folder's path may be longer: it goes by the open folder.
fn short_path(folder: &Path, name: &str) -> io::Result<(fs_err::File, PathBuf)> {
    let open = fs_err::File::open(folder)?;
    let short = PathBuf::from(format!("/proc/self/fd/{}", open.as_raw_fd())).join(name);
    Ok((open, short))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn deep_socket_is_private_to_owner() {
        let folder = tempfile::tempdir().expect("a folder");
        let deep = folder.path().join("d".repeat(100)).join("e".repeat(100));
        file::create_dirs(&deep, true).expect("made");
        assert!(connect(&deep, "s").is_err(), "no one listens yet");
        drop(listen(&deep, "s").expect("a socket"));
        assert!(connect(&deep, "s").is_err(), "no one listens any more");
        let listener = listen(&deep, "s").expect("a socket in its place");
        let mode = std::fs::metadata(deep.join("s")).expect("a socket").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let mut client = connect(&deep, "s").expect("connected");
        client.write_all(b"x").expect("written");
        let mut byte = [0];
        listener.accept().expect("accepted").0.read_exact(&mut byte).expect("read");
        assert_eq!(&byte, b"x");
    }
}
