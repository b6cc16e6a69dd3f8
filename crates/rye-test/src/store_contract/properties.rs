//! The ledger under many commits in any order.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::*;

#[derive(Clone, Debug)]
enum LedgerOp {
    Reserve { thread: usize, spend: u64, tokens: u64 },
    Settle { pick: usize, spend: u64, is_unknown: bool },
}

fn arb_ops() -> impl Strategy<Value = Vec<LedgerOp>> {
    let act = prop_oneof![
        3 => (0..8_usize, 0..60_u64, 0..60_u64).prop_map(|(thread, spend, tokens)| LedgerOp::Reserve { thread, spend, tokens }),
        2 => (any::<usize>(), 0..60_u64, any::<bool>())
            .prop_map(|(pick, spend, is_unknown)| LedgerOp::Settle { pick, spend, is_unknown }),
    ];
    prop::collection::vec(act, 1..40)
}

/// Whatever is reserved and settled, no cap is exceeded and every sum holds.
pub fn ledger_sums_hold_and_caps_are_respected(open: OpenStore) {
    let config = Config { cases: 24, failure_persistence: None, ..Config::default() };
    let caps = (prop::option::of(20..200_u64), prop::option::of(20..200_u64));
    let input = (prop::collection::vec(any::<u64>(), 7), prop::collection::vec(caps, 8), arb_ops());
    let run = TestRunner::new(config).run(&input, |(parents, maxima, acts)| {
        check_ledger(open, &parents, &maxima, &acts);
        Ok(())
    });
    if let Err(failure) = run {
        panic!("{failure}");
    }
}

type CapPair = (Option<u64>, Option<u64>);

fn check_ledger(open: OpenStore, parents: &[u64], maxima: &[CapPair], acts: &[LedgerOp]) {
    let world = TestStore::new(open);
    let mut claims = Vec::new();
    for (number, (spend, tokens)) in maxima.iter().enumerate() {
        let parent = (number > 0).then(|| parents[number - 1] % number as u64);
        claims.push(world.create(NewThread {
            max_spend: spend.map(Nanos),
            max_tokens: *tokens,
            ..new_thread(number as u64, parent)
        }));
    }
    let mut open: Vec<(usize, ReserveRequest)> = Vec::new();
    for (call, act) in acts.iter().enumerate() {
        match *act {
            LedgerOp::Reserve { thread, spend, tokens } => {
                let asked =
                    ReserveRequest { call: call as u64, spend: Nanos(spend), tokens, can_wait: false };
                let commit =
                    ThreadCommit { reservation: Some(asked), ..commit_for(thread as u64, claims[thread]) };
                if world.commit(commit) == CommitOutcome::Done {
                    open.push((thread, asked));
                }
            }
            LedgerOp::Settle { pick, spend, is_unknown } if !open.is_empty() => {
                let (thread, asked) = open.swap_remove(pick % open.len());
                // The worst case was reserved, so the truth is no more.
                let settled = Settlement {
                    is_unknown,
                    input_tokens: asked.tokens / 2,
                    output_tokens: asked.tokens / 3,
                    ..settle(asked.call, spend.min(asked.spend.0))
                };
                world.commit(ThreadCommit {
                    settlements: vec![settled],
                    ..commit_for(thread as u64, claims[thread])
                });
            }
            LedgerOp::Settle { .. } => {}
        }
        for (number, (most_spend, most_tokens)) in maxima.iter().enumerate() {
            let row = world.store.ledger(&thread_id(number as u64)).expect("a row");
            assert!(most_spend.is_none_or(|most| row.subtree_spend.0 + row.subtree_reserved.0 <= most));
            assert!(most_tokens.is_none_or(|most| row.subtree_tokens + row.subtree_reserved_tokens <= most));
        }
    }
    assert_eq!(world.store.audit().expect("audited"), Vec::<String>::new());
}
