//! rye-test
