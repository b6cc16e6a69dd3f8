//! Files that a model sees: what is recorded of each, and the bytes that are sent. Bytes are never part of a journal: they are
//! kept in the store under their digest.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// What a file is, by its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MediaType {
    /// A PNG image.
    #[serde(rename = "image/png")]
    Png,
    /// A JPEG image.
    #[serde(rename = "image/jpeg")]
    Jpeg,
    /// A GIF image.
    #[serde(rename = "image/gif")]
    Gif,
    /// A WebP image.
    #[serde(rename = "image/webp")]
    Webp,
    /// A PDF document.
    #[serde(rename = "application/pdf")]
    Pdf,
    /// Text in UTF-8.
    #[serde(rename = "text/plain")]
    Text,
}

/// What providers take or do not take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FileKind {
    /// Images.
    Image,
    /// PDF documents.
    Pdf,
    /// Text, which every model reads.
    Text,
}

impl FileKind {
    /// As provider files name it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Image => "image",
            Self::Pdf => "pdf",
            Self::Text => "text",
        }
    }
}

impl MediaType {
    /// As the web names it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Png => "image/png",
            Self::Jpeg => "image/jpeg",
            Self::Gif => "image/gif",
            Self::Webp => "image/webp",
            Self::Pdf => "application/pdf",
            Self::Text => "text/plain",
        }
    }

    /// What providers take it as.
    #[must_use]
    pub fn kind(self) -> FileKind {
        match self {
            Self::Png | Self::Jpeg | Self::Gif | Self::Webp => FileKind::Image,
            Self::Pdf => FileKind::Pdf,
            Self::Text => FileKind::Text,
        }
    }

    /// The type of these bytes, if it is one that models are shown. The file's name makes no difference.
    #[must_use]
    pub fn detect(bytes: &[u8]) -> Option<Self> {
        let starts: [(&[u8], Self); 5] = [
            (b"\x89PNG\r\n\x1a\n", Self::Png),
            (b"\xff\xd8\xff", Self::Jpeg),
            (b"GIF87a", Self::Gif),
            (b"GIF89a", Self::Gif),
            (b"%PDF-", Self::Pdf),
        ];
        if let Some((_, found)) = starts.iter().find(|(start, _)| bytes.starts_with(start)) {
            return Some(*found);
        }
        if bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WEBP") {
            return Some(Self::Webp);
        }
        // Controls other than blanks are of some other format.
        let text = std::str::from_utf8(bytes).ok()?;
        let is_plain =
            !text.chars().any(|char| char.is_control() && !matches!(char, '\n' | '\r' | '\t' | '\u{c}'));
        is_plain.then_some(Self::Text)
    }
}

impl fmt::Display for MediaType {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

/// A file that a message shows to the model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilePart {
    /// The input it was given as.
    pub input: String,
    /// Its name, without its folder.
    pub name: String,
    /// What it is.
    pub media_type: MediaType,
    /// The SHA-256 of its bytes, under which the store has it.
    pub digest: String,
    /// How many bytes it has.
    pub bytes: u64,
    /// How many pages a document has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pages: Option<u64>,
    /// The tokens it is counted as: at most so many for images and documents, an estimate for text.
    pub tokens: u64,
}

impl FilePart {
    /// The most tokens it can be.
    #[must_use]
    pub fn max_tokens(&self) -> u64 {
        match self.media_type.kind() {
            FileKind::Text => self.bytes,
            FileKind::Image | FileKind::Pdf => self.tokens,
        }
    }
}

/// The bytes of files that a request shows, by digest.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct FileContents(BTreeMap<String, Vec<u8>>);

impl fmt::Debug for FileContents {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "FileContents({} files)", self.0.len())
    }
}

impl FileContents {
    /// Adds a file.
    pub fn insert(&mut self, digest: String, bytes: Vec<u8>) {
        self.0.insert(digest, bytes);
    }

    /// The bytes of a file.
    #[must_use]
    pub fn get(&self, file: &FilePart) -> Option<&[u8]> {
        self.0.get(&file.digest).map(Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn media_type_comes_from_the_bytes() {
        let table: [(&[u8], Option<MediaType>); 10] = [
            (b"\x89PNG\r\n\x1a\n\0\0", Some(MediaType::Png)),
            (b"\xff\xd8\xff\xe0", Some(MediaType::Jpeg)),
            (b"GIF89a\0", Some(MediaType::Gif)),
            (b"RIFF\0\0\0\0WEBPVP8 ", Some(MediaType::Webp)),
            (b"RIFF\0\0\0\0WAVEfmt ", None),
            (b"%PDF-1.7\n", Some(MediaType::Pdf)),
            ("Grüße\r\n\tdu".as_bytes(), Some(MediaType::Text)),
            (b"#!/bin/sh\x1b[31m", None),
            (b"\x7fELF\x02", None),
            (b"PK\x03\x04", None),
        ];
        for (bytes, expected) in table {
            assert_eq!(MediaType::detect(bytes), expected, "{bytes:?}");
        }
    }
}
