//! Who may take the lease on a thread.

use crate::{Liveness, Owner, OwnerProbe};

/// Whom a thread may be taken from.
///
/// A claim is a lease: its holder renews it with each heartbeat, and it ends `lease_ms` after the last one. Until then it
/// is taken only from a process of the same machine that is certainly gone, or by force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimPolicy {
    /// A thread without holder, or one whose holder is certainly gone.
    Free,
    /// Also a thread whose holder cannot be asked and whose lease has ended.
    Expired {
        /// Now, in milliseconds since 1970.
        now_ms: u64,
        /// For how long a heartbeat renews a lease.
        lease_ms: u64,
    },
    /// Any thread: a person has said so.
    Forced,
}

impl ClaimPolicy {
    /// Whether a thread may be taken from `holder`, whose last heartbeat was at `heartbeat_ms`.
    #[must_use]
    pub fn can_take(
        self,
        holder: &Owner,
        observer: &Owner,
        heartbeat_ms: u64,
        probe: &dyn OwnerProbe,
    ) -> bool {
        match (self, holder.liveness(observer, probe)) {
            (Self::Forced, _) | (_, Liveness::Gone) => true,
            (Self::Expired { now_ms, lease_ms }, Liveness::Unknown) => {
                heartbeat_ms < now_ms.saturating_sub(lease_ms)
            }
            (Self::Free, Liveness::Unknown) | (_, Liveness::Alive) => false,
        }
    }
}
