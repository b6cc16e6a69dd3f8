//! Waiting in a store: for money that is reserved and not spent, and for a place among a parent's children. First come,
//! first served; a process that waits says so now and then, and one that stops saying so loses its turn, not its place.

/// How long a thread counts as waiting after it last tried. The turn of one that died passes to the next.
pub const WAIT_LEASE_MS: u64 = 10_000;

/// How often a thread that waits has to say so at least.
pub const WAIT_RENEWAL_MS: u64 = 2_000;

/// What a thread waits for in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitKind {
    /// Money or tokens that other calls of its tree have reserved.
    Budget,
    /// A place among the children of its parent.
    Concurrency,
}

impl WaitKind {
    /// The word for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Budget => "budget",
            Self::Concurrency => "concurrency",
        }
    }

    /// Reads the word.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Budget, Self::Concurrency].into_iter().find(|kind| kind.as_str() == word)
    }
}
