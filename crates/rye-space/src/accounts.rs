//! The accounts of this machine, as `/etc/passwd` lists them.

use std::path::{Path, PathBuf};

use crate::file_stamp::FileStamp;

const ACCOUNTS_FILE: &str = "/etc/passwd";
/// The largest list of accounts that is read.
const MAX_ACCOUNTS_BYTES: u64 = 4 << 20;

/// One account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// Its name.
    pub name: String,
    /// Its number.
    pub user: u32,
    /// Its home; it may be relative or not exist.
    pub home: PathBuf,
}

/// All accounts that are listed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accounts {
    list: Vec<Account>,
}

impl Accounts {
    /// Reads the list. One that cannot be read, or is longer than 4 MiB, is as if it were empty.
    #[must_use]
    pub fn read() -> Self {
        let read = lillux::file::read_bounded(Path::new(ACCOUNTS_FILE), MAX_ACCOUNTS_BYTES);
        read.map(|(bytes, _)| Self::parse(&String::from_utf8_lossy(&bytes))).unwrap_or_default()
    }

    /// Tells whether the list has changed since another stamp was made.
    #[must_use]
    pub fn file_stamp() -> Option<FileStamp> {
        fs_err::metadata(ACCOUNTS_FILE).ok().map(|metadata| FileStamp::from_metadata(&metadata))
    }

    /// Reads the text of such a list. Lines that are not accounts, and accounts without a home, are passed over.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let account = |line: &str| {
            let fields: Vec<&str> = line.split(':').collect();
            let (user, home) = (fields.get(2)?.parse().ok()?, *fields.get(5)?);
            let name = (*fields.first()?).to_owned();
            (!home.is_empty()).then(|| Account { name, user, home: PathBuf::from(home) })
        };
        Self { list: text.lines().filter_map(account).collect() }
    }

    /// The accounts, in the order of the list.
    pub fn iter(&self) -> impl Iterator<Item = &Account> {
        self.list.iter()
    }

    /// The name of the account with this number.
    #[must_use]
    pub fn name_of(&self, user: u32) -> Option<&str> {
        self.iter().find(|account| account.user == user).map(|account| account.name.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_are_read_line_by_line() {
        let text = "root:x:0:0:root:/root:/bin/bash\n# note\nbroken\nann:x:1000:1000::/srv/ann:/bin/sh\nnone:x:1:1:::\n";
        let accounts = Accounts::parse(text);
        let homes: Vec<(u32, &Path)> =
            accounts.iter().map(|account| (account.user, account.home.as_path())).collect();
        assert_eq!(homes, [(0, Path::new("/root")), (1000, Path::new("/srv/ann"))]);
        assert_eq!((accounts.name_of(1000), accounts.name_of(7)), (Some("ann"), None));
    }
}
