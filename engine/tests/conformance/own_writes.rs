//! The last own write of a record, among few and among many, looked for at any moment.

use crate::world::{Jitter, Rng, Row, World};
use mixedcc_engine::record::Successor;
use mixedcc_engine::txn::WriteKind;
use mixedcc_engine::{Level, Policy, Protocol, ProtocolSet, RecordRef, Txn};

const STEPS: i64 = 150;

/// What the transaction should know of its writes.
#[derive(Default)]
struct Model {
    /// The record of each write that is not undone, in their order, and what it does.
    writes: Vec<(u64, WriteKind)>,
    /// How many there were when each open savepoint began.
    marks: Vec<usize>,
}

impl Model {
    fn last(&self, r: RecordRef) -> Option<u32> {
        self.writes.iter().rposition(|w| w.0 == r.no).map(|n| n as u32)
    }

    /// Records of rows that are there, some of them several times.
    fn rows(&self) -> impl Iterator<Item = u64> + '_ {
        let deleted = |no| self.writes.iter().rfind(|w| w.0 == no).is_some_and(|w| w.1 == WriteKind::Delete);
        self.writes.iter().map(|w| w.0).filter(move |&no| !deleted(no))
    }

    fn check(&self, t: &Txn, records: &[RecordRef]) {
        for &r in records {
            let last = self.last(r);
            assert_eq!(t.last_write(r), last, "record {}", r.no);
            let Some(n) = last else { continue };
            let w = t.write(n).expect("a write");
            assert_eq!((w.r.no, w.kind, w.superseded), (r.no, self.writes[n as usize].1, false));
            let before = self.writes[..n as usize].iter().rposition(|w| w.0 == r.no);
            assert_eq!(w.previous(), before.map(|n| n as u32));
        }
    }
}

/// Looks in `looks` percent of the steps: a test that looks seldom finds many writes that were not
/// looked for yet.
fn random_writes(seed: u64, looks: u64) {
    let w = World::new(&[ProtocolSet::of(Protocol::Occ)], Policy::NoWait, 1);
    let (p, mut rng, mut m) = (Jitter::new(&w, 0, seed), Rng::new(seed + 1), Model::default());
    let mut records = w.scan(0, i64::MAX).into_iter().map(|(_, r)| r).collect::<Vec<_>>();
    let mut t = Txn::new(w.e, 0);
    t.begin(Level::Snapshot, w.ident());
    for step in 0..STEPS {
        let row = Row { key: 20 + step * 26, txn: 1, nth: 0, value: step };
        let live: Vec<u64> = m.rows().collect();
        let own = live.get(rng.below(live.len().max(1) as u64) as usize).and_then(|&no| RecordRef::find(w.table, no));
        match (rng.below(20), own) {
            (0..=10, _) | (11..=15, None) => {
                let r = w.insert(&mut t, &p, row, 0).expect("memory");
                m.writes.push((r.no, WriteKind::Insert));
                records.push(r);
            }
            (11..=13, Some(r)) => {
                let v = w.version(&mut t, row).expect("memory");
                t.update(r, None, v, 0);
                m.writes.push((r.no, WriteKind::Update));
            }
            (14..=15, Some(r)) => {
                let tombstone = t.new_tombstone(Successor { record: 0 }, None).expect("memory");
                t.delete(r, None, tombstone, 0, 0);
                m.writes.push((r.no, WriteKind::Delete));
            }
            (16..=17, _) => {
                m.marks.push(m.writes.len());
                t.set_depth(m.marks.len() as u32 + 1);
            }
            (18, _) => {
                let depth = m.marks.len() as u32 + 1;
                if let Some(mark) = m.marks.pop() {
                    t.abort_sub(depth);
                    m.writes.truncate(mark);
                }
            }
            _ => {
                let depth = m.marks.len() as u32 + 1;
                if m.marks.pop().is_some() {
                    t.commit_sub(depth);
                }
            }
        }
        if rng.percent(looks) {
            m.check(&t, &records);
        }
    }
    m.check(&t, &records);
    t.abort();
}

#[test]
fn the_last_own_write_of_a_record_is_found() {
    for seed in 0..60 {
        for looks in [0, 3, 30, 100] {
            random_writes(seed, looks);
        }
    }
}
