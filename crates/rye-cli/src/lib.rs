//! rye-cli
