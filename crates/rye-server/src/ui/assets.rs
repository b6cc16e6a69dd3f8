//! The files of the page. Each is named here; nothing else is served.

use axum::Router;
use axum::http::header;
use axum::response::IntoResponse;
use axum::routing::get;

use super::UiState;

/// A file of the page.
struct Asset {
    path: &'static str,
    content_type: &'static str,
    bytes: &'static [u8],
}

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const PICTURE: &str = "image/svg+xml";

macro_rules! assets {
    ($($path:literal $content_type:ident $file:literal;)*) => {
        &[$(Asset {
            path: $path,
            content_type: $content_type,
            bytes: include_bytes!(concat!("../../ui/", $file)),
        }),*]
    };
}

const ASSETS: &[Asset] = assets! {
    "/" HTML "index.html";
    "/icon.svg" PICTURE "icon.svg";
    "/app.css" STYLE "app.css";
    "/app.js" SCRIPT "app.js";
    "/approvals.js" SCRIPT "approvals.js";
    "/chart.js" SCRIPT "chart.js";
    "/cost.js" SCRIPT "cost.js";
    "/data.js" SCRIPT "data.js";
    "/dom.js" SCRIPT "dom.js";
    "/early.js" SCRIPT "early.js";
    "/format.js" SCRIPT "format.js";
    "/installation.js" SCRIPT "installation.js";
    "/items.js" SCRIPT "items.js";
    "/list.js" SCRIPT "list.js";
    "/parts.js" SCRIPT "parts.js";
    "/session.js" SCRIPT "session.js";
    "/stream.js" SCRIPT "stream.js";
    "/thread.js" SCRIPT "thread.js";
    "/threads.js" SCRIPT "threads.js";
    "/transcript.js" SCRIPT "transcript.js";
};

/// The routes of the files.
pub(super) fn routes() -> Router<UiState> {
    ASSETS.iter().fold(Router::new(), |router, asset| {
        let answer = || async { ([(header::CONTENT_TYPE, asset.content_type)], asset.bytes).into_response() };
        router.route(asset.path, get(answer))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_is_named() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("ui");
        let entries = std::fs::read_dir(folder).expect("the folder of the page");
        let names: Vec<String> =
            entries.map(|entry| entry.expect("a file").file_name().into_string().expect("a name")).collect();
        for name in &names {
            let path = if name == "index.html" { "/".to_owned() } else { format!("/{name}") };
            assert!(ASSETS.iter().any(|asset| asset.path == path), "{name} is not served");
        }
        assert_eq!(names.len(), ASSETS.len());
    }

    #[test]
    fn no_file_asks_another_server() {
        for asset in ASSETS {
            let text = String::from_utf8_lossy(asset.bytes).replace("http://www.w3.org/", "");
            for word in ["http://", "https://", "//cdn", "@import"] {
                assert!(!text.contains(word), "{} names {word}", asset.path);
            }
        }
    }
}
