//! rye-engine
