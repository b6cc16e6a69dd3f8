//! Files in requests: their bytes as the protocols want them.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rye_thread::model::{FilePart, MediaType};
use serde::ser::Error as _;

use crate::ModelRequest;

/// A file as it is sent.
pub(crate) enum FileBlock {
    /// An image, in base64.
    Image(String),
    /// A PDF document, in base64.
    Pdf(String),
    /// Words, with the file's name before them.
    Text(String),
}

/// The files of a message as they are sent.
///
/// # Errors
/// When the bytes of one are missing from the request.
pub(crate) fn file_blocks<'a>(
    request: &ModelRequest,
    files: &'a [FilePart],
) -> serde_json::Result<Vec<(&'a FilePart, FileBlock)>> {
    files
        .iter()
        .map(|file| {
            let bytes = request.files.get(file).ok_or_else(|| {
                serde_json::Error::custom(format!("the file `{}` is missing from the store", file.name))
            })?;
            let block = match file.media_type {
                MediaType::Png | MediaType::Jpeg | MediaType::Gif | MediaType::Webp => {
                    FileBlock::Image(STANDARD.encode(bytes))
                }
                MediaType::Pdf => FileBlock::Pdf(STANDARD.encode(bytes)),
                MediaType::Text => {
                    FileBlock::Text(format!("File `{}`:\n\n{}", file.name, String::from_utf8_lossy(bytes)))
                }
            };
            Ok((file, block))
        })
        .collect()
}
