//! Files that are not in a snapshot or a patch, and why: a bounded list, as names come from tools.

use rye_item::text::one_line;

use super::rules::MAX_PATH_BYTES;

/// Files that are named.
pub(super) const MAX_LEFT_OUT: usize = 1000;

/// The files, by name and with the reason, and how many more there are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::cluster) struct LeftOutFiles {
    pub(in crate::cluster) files: Vec<(String, String)>,
    pub(in crate::cluster) more: u64,
}

impl LeftOutFiles {
    /// Adds a file.
    pub(super) fn push(&mut self, path: &str, reason: &str) {
        if self.files.len() < MAX_LEFT_OUT {
            let path = &path[..path.floor_char_boundary(MAX_PATH_BYTES)];
            self.files.push((one_line(path), reason.to_owned()));
        } else {
            self.more = self.more.saturating_add(1);
        }
    }

    /// Whether a file is named.
    pub(super) fn names(&self, path: &str) -> bool {
        self.files.iter().any(|(named, _)| named == path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_of_left_out_files_is_bounded() {
        let mut files = LeftOutFiles::default();
        for number in 0..MAX_LEFT_OUT + 5 {
            files.push(&format!("{number}\n{}", "ü".repeat(MAX_PATH_BYTES)), "is a link");
        }
        assert_eq!((files.files.len(), files.more), (MAX_LEFT_OUT, 5));
        assert!(files.files.iter().all(|(path, _)| path.len() <= MAX_PATH_BYTES && !path.contains('\n')));
    }
}
