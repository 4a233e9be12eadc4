use super::*;
use crate::key::Short;
use crate::lock::Mode;
use crate::protocol::Protocol;
use crate::record::{Successor, REC_DEAD, REC_VACUUM};
use crate::table::Run;
use crate::threads::{Block, Threads};
use crate::txn::{How, Level, RecordRef, Txn};
use std::collections::HashSet;
use std::sync::Arc;

const IDENTITY: &[u8] = b"this shutdown";
const MB: usize = 1 << 20;

/// The tuning of the table with this number. Some tables have settings, some have none.
fn tuning(no: u32) -> Tuning {
    let candidates = (no % 2 == 1).then(|| ProtocolSet::mediated(Protocol::Occ, Protocol::TwoPhase));
    let (min_gain, interval_us) = ((no % 2 == 1).then_some(0.25), (no % 3 == 1).then_some(7_000_000));
    Tuning {
        adaptive: [None, Some(true), Some(false)][no as usize % 3],
        candidates,
        min_gain,
        interval_us,
        ..Tuning::default()
    }
}

struct World {
    block: Block,
    txn: Txn,
    p: Threads,
}

impl World {
    fn new(bytes: usize) -> World {
        let block = Block::new(bytes, 4).unwrap();
        let (txn, p) = (Txn::new(block.engine, 0), Threads::new(block.engine, 0, Arc::default()));
        World { block, txn, p }
    }
    fn e(&self) -> Engine {
        self.block.engine
    }
    fn table(&self, no: u32, partitions: u32) -> &'static Table {
        let e = self.e();
        let mut map =
            Table::new_map(&e, 0, partitions, 1, b"the key", ProtocolSet::of(Protocol::Occ), Policy::Wait).unwrap();
        // SAFETY: INV-MAP: the map is not published yet.
        unsafe { map.as_mut() }.set_tuning(&tuning(no));
        // SAFETY: INV-MAP: as above.
        let parts = unsafe { map.as_ref() }.partitions();
        for (i, p) in parts.iter().enumerate() {
            p.put(&e, ProtocolSet::of(Protocol::ALL[i % Protocol::COUNT]), Some(i % 2 == 1)).unwrap();
            p.set_policy(&e, Policy::ALL[i % 3]).unwrap();
        }
        Table::create(&e, 0, [1, 2, no, 0], map).unwrap()
    }
    fn begin(&mut self) {
        self.txn.begin(Level::Snapshot, 1);
    }
    fn commit(&mut self) {
        self.txn.prepare(&self.p, &|_, _| {}).unwrap();
        self.txn.publish(&self.p);
    }
    fn insert(&mut self, t: &'static Table, payload: &[u8]) -> RecordRef {
        let v = self.txn.new_version(payload.len() as u32 % t.map().n, payload.len(), 0).unwrap();
        // SAFETY: INV-VERSION: a fresh version with room for the payload.
        unsafe { std::ptr::copy_nonoverlapping(payload.as_ptr(), Version::payload(v.as_ptr()), payload.len()) };
        let part = (payload.len() as u32 % t.map().n) as u16;
        self.txn.insert(&self.p, t, [part, part], v, 0, 0).unwrap()
    }
    fn delete(&mut self, t: &'static Table, no: u64, key: Option<&[u8]>) {
        let r = RecordRef::find(t, no).unwrap();
        let (base, _) = self.txn.lock_for_write(&self.p, r, Mode::Update, How::Wait, false).unwrap().unwrap();
        let tombstone = self.txn.new_tombstone(Successor { record: 0 }, key).unwrap();
        self.txn.delete(r, Some(base), tombstone, 0, 0);
    }
    /// Rows, a row larger than slab objects, deleted, aborted, vacuumed and free records.
    fn fill(&mut self, t: &'static Table, rows: usize) {
        self.begin();
        for i in 0..rows {
            let payload: Vec<u8> = (0..i % 300 + 1).map(|k| (i * 7 + k) as u8).collect();
            self.insert(t, &payload);
        }
        self.insert(t, &vec![42; 200_000]);
        self.commit();
        self.begin();
        for no in (0..rows as u64).step_by(5) {
            self.delete(t, no, None);
        }
        self.commit();
        self.begin();
        for _ in 0..10 {
            self.insert(t, b"aborted");
        }
        self.txn.abort();
        for no in [0, 5] {
            let r = t.record(no).unwrap();
            r.state.store(REC_VACUUM, Ordering::SeqCst);
        }
        t.give_back(0, self.e().now());
    }
    fn save(&self, tables: &[&'static Table]) -> (Vec<u8>, bool) {
        let mut w = Writer::new(Vec::new());
        write_head(&mut w, &self.e(), IDENTITY).unwrap();
        let learned = self.e().shared.learned.read();
        let settled = tables.iter().fold(true, |all, t| write_table(&mut w, t, &self.p, &learned).unwrap() && all);
        (write_end(w).unwrap(), settled)
    }
}

/// Loads a file: the tables up to its end or the first error, and whether it ended without error.
fn load(e: &Engine, bytes: &[u8]) -> (Vec<Loaded>, Result<(), LoadError>) {
    let mut r = Reader::new(bytes);
    let mut out = Vec::new();
    let end = (|| {
        let head = read_head(&mut r)?;
        assert_eq!(head.identity, IDENTITY);
        e.advance_clock(head.clock);
        while let Some(t) = read_table(&mut r, e, 0, &Threads::new(*e, 0, Arc::default()), |_| true)? {
            out.push(t);
        }
        Ok(())
    })();
    (out, end)
}

#[derive(Debug, PartialEq)]
enum Content {
    Free,
    Dead,
    Row([u16; 2], Vec<u8>),
}

fn contents(t: &Table) -> Vec<Content> {
    (0..t.len())
        .map(|n| {
            let r = t.record(n).unwrap();
            let head = r.head();
            match r.state.load(Ordering::SeqCst) {
                REC_FREE => Content::Free,
                // SAFETY: INV-RETIRE: there are no other users.
                REC_USED if !unsafe { (*head).is_tombstone() } => {
                    // SAFETY: INV-VERSION: a version's payload follows its header.
                    let payload = unsafe { std::slice::from_raw_parts(Version::payload(head), (*head).len as usize) };
                    Content::Row([0, 1].map(|i| r.part[i].load(Ordering::SeqCst)), payload.to_vec())
                }
                _ => Content::Dead,
            }
        })
        .collect()
}

fn rules(t: &Table) -> Vec<(ProtocolSet, bool, Policy, u64, u64, u64)> {
    t.map()
        .partitions()
        .iter()
        .map(|p| {
            (
                p.protocols(),
                p.switch.view().pinned,
                p.policy(),
                p.stats.sum(|s| &s.rows),
                p.stats.sum(|s| &s.versions),
                p.stats.sum(|s| &s.bytes),
            )
        })
        .collect()
}

fn used(e: &Engine) -> usize {
    e.region.flush_slot(0);
    let u = e.region.usage();
    u.run_bytes + u.classes.iter().map(|c| c.live * c.object_bytes).sum::<usize>()
}

#[test]
fn free_numbers_are_taken_in_ascending_order_after_a_load() {
    let mut w = World::new(16 * MB);
    let t = w.table(1, 2);
    w.begin();
    for _ in 0..20 {
        w.insert(t, b"row");
    }
    w.txn.abort();
    for no in [3, 7, 4, 12] {
        t.give_back(no, w.e().now());
    }
    let (bytes, _) = w.save(&[t]);
    let other = World::new(16 * MB);
    let (tables, end) = load(&other.e(), &bytes);
    end.unwrap();
    let Ok(t) = tables[0] else { panic!("the table was skipped") };
    let taken: Vec<u64> =
        (0..5).map(|_| t.take_record(&other.e(), 0, &mut Run::default(), ([0; 2], 0)).unwrap().0).collect();
    assert_eq!(taken, [3, 4, 7, 12, 20]);
}

#[test]
fn lessons_go_with_their_table() {
    let w = World::new(16 * MB);
    let (a, b) = (w.table(1, 2), w.table(2, 2));
    let lesson = |table: u64, n: u32| Lesson {
        table,
        from: 1,
        to: 2,
        features: std::array::from_fn(|i| i as f64 + 0.25),
        measured: 0.5,
        residual: -0.75,
        repeats: n,
        at_us: 1000 + n as u64,
    };
    let unsound = Lesson { measured: f64::NAN, ..lesson(b.id, 4) };
    for l in [lesson(b.id, 1), lesson(a.id, 2), lesson(b.id, 3), unsound, lesson(77_777, 5)] {
        w.e().shared.learned.write(&l);
    }
    // The first table is not saved.
    let (bytes, _) = w.save(&[b]);
    let n = World::new(16 * MB);
    // So that the table gets another number.
    let others: Vec<_> = (7..10).map(|no| n.table(no, 1).id).collect();
    let (tables, end) = load(&n.e(), &bytes);
    end.unwrap();
    let t = tables.into_iter().map(Result::unwrap).next().expect("the table");
    assert!(t.id != b.id && !others.contains(&t.id));
    assert_eq!(n.e().shared.learned.read(), [lesson(t.id, 1), lesson(t.id, 3)]);
}

#[test]
fn a_switch_that_is_not_complete_is_over_after_a_restart() {
    let w = World::new(16 * MB);
    let t = w.table(1, 2);
    let (asked, begun) = (&t.map().partitions()[0].switch, &t.map().partitions()[1].switch);
    begun.ask(Protocol::TwoPhase, true, crate::switch::Why::Asked, 0, 1);
    w.e().advance_switches(&[t], 2, false);
    asked.ask(Protocol::Occ, false, crate::switch::Why::Asked, 0, 3);
    assert_eq!(begun.set(), ProtocolSet::mediated(Protocol::Occ, Protocol::TwoPhase));
    let (bytes, _) = w.save(&[t]);
    let n = World::new(16 * MB);
    let (tables, end) = load(&n.e(), &bytes);
    end.unwrap();
    let loaded = tables.into_iter().map(Result::unwrap).next().expect("the table");
    let sets: Vec<_> = rules(loaded).iter().map(|r| (r.0, r.1)).collect();
    assert_eq!(sets, [(ProtocolSet::of(Protocol::Occ), false), (ProtocolSet::of(Protocol::TwoPhase), true)]);
    assert!(loaded.map().partitions().iter().all(|p| !p.switch.view().is_open()));
}

#[test]
fn tables_come_back_as_they_were() {
    let mut w = World::new(16 * MB);
    let (a, b) = (w.table(1, 7), w.table(2, 1));
    w.fill(a, 3000);
    let (bytes, settled) = w.save(&[a, b]);
    assert!(settled);

    let mut n = World::new(16 * MB);
    let (tables, end) = load(&n.e(), &bytes);
    end.unwrap();
    let [a2, b2] = tables.into_iter().map(Result::unwrap).collect::<Vec<_>>()[..] else { panic!("two tables") };
    assert_eq!((a2.key, b2.key), (a.key, b.key));
    assert_eq!(contents(a2), contents(a));
    assert_eq!((a2.map().n, a2.map().field, a2.map().spec()), (7, 1, &b"the key"[..]));
    assert_eq!((a2.map().tuning(), b2.map().tuning()), (tuning(1), tuning(2)));
    assert!(b2.is_empty());
    assert_eq!(n.e().now(), w.e().now());
    let live = |t| contents(t).iter().filter(|c| matches!(c, Content::Row(..))).count() as u64;
    assert_eq!((a2.rows(), live(a2)), (a.rows(), live(a)));
    let (old, new) = (rules(a), rules(a2));
    assert!(old.iter().zip(&new).all(|(o, n)| (o.0, o.1, o.2) == (n.0, n.1, n.2)), "protocols, pins, policies");
    let dead = contents(a2).iter().filter(|c| **c == Content::Dead).count() as u64;
    assert_eq!(a2.dead.load(Ordering::SeqCst), dead);

    // First the free record, then new ones, but never one whose index entries may remain.
    let before = a2.len();
    n.begin();
    let numbers: Vec<u64> = (0..3).map(|_| n.insert(a2, b"new").no).collect();
    n.commit();
    assert_eq!(numbers, [0, before, before + 1]);
    assert_eq!(a2.record(5).unwrap().state.load(Ordering::SeqCst), REC_DEAD);
    n.begin();
    n.delete(a2, 1, None);
    n.commit();
    let (again, _) = n.save(&[a2]);
    let last = World::new(16 * MB);
    let (tables, end) = load(&last.e(), &again);
    end.unwrap();
    assert_eq!(contents(tables[0].unwrap()), contents(a2));
}

#[test]
fn primary_indexes_come_back() {
    let mut w = World::new(16 * MB);
    let (a, b) = (w.table(1, 2), w.table(2, 2));
    let keys: Vec<Vec<u8>> =
        (0..500u32).map(|n| [&(n * 7919 % 500).to_be_bytes()[..], &[9; 11][..n as usize % 12]].concat()).collect();
    for t in [a, b] {
        t.set_primary(Primary::create(&w.e(), 0, 0, Reuse::Vacuum, b"how").unwrap());
        w.begin();
        for (n, key) in keys.iter().enumerate() {
            let r = w.insert(t, b"row");
            // One row of the second table has no entry.
            if !std::ptr::eq(t, b) || n != 300 {
                w.txn.enter(&w.p, r, key, crate::index::Unique::Unchecked).unwrap();
            }
        }
        w.commit();
        w.begin();
        (0..500).step_by(9).for_each(|no| w.delete(t, no as u64, Some(&keys[no])));
        w.commit();
    }
    let (bytes, _) = w.save(&[a, b]);
    let n = World::new(16 * MB);
    n.e().pin(0);
    let (tables, end) = load(&n.e(), &bytes);
    end.unwrap();
    let [a2, b2] = tables.into_iter().map(Result::unwrap).collect::<Vec<_>>()[..] else { panic!("two tables") };
    assert_eq!((contents(a2), contents(b2)), (contents(a), contents(b)));
    assert!(b2.primary().is_none(), "an index that lacks a row is none");
    let primary = a2.primary().expect("an index");
    assert_eq!((primary.spec(), primary.reuse(), primary.complete_from()), (&b"how"[..], Reuse::Vacuum, 0));
    for (no, key) in keys.iter().enumerate() {
        assert_eq!(primary.has(&n.p, key, no as u64), no % 9 != 0);
    }
    assert_eq!(primary.index.len(), 500 - 500u64.div_ceil(9));

    // Hints take no memory while more tables may follow. Afterwards they take the memory that their
    // number needs, if as much again is left.
    let key = Short::of(&keys[1]).expect("a short key");
    let free = || n.e().region.usage().free_page_bytes;
    let hinted = || primary.find_by_hint(key, Some);
    let before = primary.bytes();
    primary.note_hint(key, 1);
    assert_eq!(hinted(), None);
    let mut rest = Vec::new();
    while let Ok(p) = n.e().region.alloc(0, free().min(MB).max(1)) {
        rest.push(p);
    }
    primary.offer_hints(&n.e(), 0);
    assert_eq!(primary.bytes(), before, "there is no memory to spare");
    // SAFETY: INV-M1: allocated above.
    rest.into_iter().for_each(|p| unsafe { n.e().region.free(0, p) });
    primary.offer_hints(&n.e(), 0);
    assert_eq!(primary.bytes(), before + 4 * 1024, "1,024 places for 500 entries");
    primary.note_hint(key, 1);
    assert_eq!(hinted(), Some(1));
}

#[test]
fn all_indexes_of_a_table_come_back() {
    let mut w = World::new(16 * MB);
    let key =
        |n: u64, nth: usize| [&(n * 7919 % 500 + nth as u64).to_be_bytes()[..], &[9; 11][..n as usize % 12]].concat();
    let (a, b) = (w.table(1, 2), w.table(2, 2));
    for (t, indexes) in [(a, &[0, 1, 3][..]), (b, &[2, 3])] {
        for &nth in indexes {
            let how = [b'0' + nth as u8];
            t.set_unique(nth, Primary::create(&w.e(), 0, 0, Reuse::Vacuum, &how).unwrap());
        }
        w.begin();
        for n in 0..500 {
            let r = w.insert(t, b"row");
            for &nth in indexes {
                // One row of the second table has no entry in one of its indexes.
                if !std::ptr::eq(t, b) || nth != 3 || n != 300 {
                    w.txn.enter_in(&w.p, r, nth, &key(n, nth), crate::index::Unique::Unchecked).unwrap();
                }
            }
        }
        w.commit();
    }
    // An index whose order may not be known where the file is read is left out.
    a.set_unique(2, Primary::create(&w.e(), 0, 1, Reuse::Vacuum, b"no").unwrap());
    let (bytes, _) = w.save(&[a, b]);
    let n = World::new(16 * MB);
    n.e().pin(0);
    let (tables, end) = load(&n.e(), &bytes);
    end.unwrap();
    let [a2, b2] = tables.into_iter().map(Result::unwrap).collect::<Vec<_>>()[..] else { panic!("two tables") };
    assert_eq!((contents(a2), contents(b2)), (contents(a), contents(b)));
    let numbers = |t: &Table| t.uniques().map(|(nth, _)| nth).collect::<Vec<_>>();
    assert_eq!((numbers(a2), numbers(b2)), (vec![0, 1, 3], vec![2]), "an index that lacks a row is none");
    for (nth, index) in a2.uniques().chain(b2.uniques()) {
        assert_eq!((index.spec(), index.reuse(), index.index.len()), (&[b'0' + nth as u8][..], Reuse::Vacuum, 500));
        assert!((0..500).all(|no| index.has(&n.p, &key(no, nth), no)));
    }
}

#[test]
fn a_file_says_whose_it_is() {
    let w = World::new(4 * MB);
    w.e().advance_clock(76);
    let (bytes, _) = w.save(&[]);
    let head = read_head(&mut Reader::new(&bytes[..])).unwrap();
    let (clock, token) = (w.e().now(), w.e().last_token());
    assert_eq!(head, Head { identity: IDENTITY.to_vec(), clock, token });
    let with_number = |at: usize, n: u32| {
        let mut writer = Writer::new(Vec::new());
        let words = [FORMAT, 0, 0, 0, 0, 0];
        words.iter().enumerate().for_each(|(i, w)| writer.put_u32(if i == at { n } else { *w }).unwrap());
        read_head(&mut Reader::new(&writer.finish().unwrap()[..]))
    };
    assert!(matches!(with_number(0, FORMAT + 1), Err(LoadError::Format(n)) if n == FORMAT + 1));
    assert!(matches!(with_number(1, u32::MAX), Err(LoadError::Damaged(_))));
    assert!(with_number(0, FORMAT).is_ok());
    assert!((BEFORE..FORMAT).all(|n| with_number(0, n).is_ok()));
    assert!(matches!(with_number(0, BEFORE - 1), Err(LoadError::Format(_))));
}

/// A table that is not wanted is skipped, and its stated size is the size that it takes.
#[test]
fn a_table_that_is_not_wanted_is_passed_over() {
    let mut w = World::new(64 * MB);
    let (a, b, c) = (w.table(1, 3), w.table(2, 1), w.table(3, 1));
    w.fill(a, 2000);
    w.fill(c, 10);
    b.set_primary(Primary::create(&w.e(), 0, 0, Reuse::Vacuum, b"how").unwrap());
    w.begin();
    for n in 0..20_000u32 {
        let r = w.insert(b, &[1; 40]);
        w.txn.enter(&w.p, r, &n.to_be_bytes(), crate::index::Unique::Unchecked).unwrap();
    }
    w.commit();
    let (bytes, _) = w.save(&[a, b, c]);
    for left in [a, b] {
        let n = World::new(64 * MB);
        let load = |wanted: &dyn Fn([u32; 4]) -> bool| {
            let mut r = Reader::new(&bytes[..]);
            read_head(&mut r).unwrap();
            let mut out = Vec::new();
            while let Some(t) = read_table(&mut r, &n.e(), 0, &n.p, wanted).unwrap() {
                out.push(t);
            }
            out
        };
        let tables = load(&|key| key != left.key);
        let others: Vec<_> = [a, b, c].into_iter().filter(|t| t.key != left.key).collect();
        let loaded: Vec<_> = tables.iter().filter_map(|t| t.ok()).collect();
        assert_eq!(
            loaded.iter().map(|t| contents(t)).collect::<Vec<_>>(),
            others.iter().map(|t| contents(t)).collect::<Vec<_>>()
        );
        let gone = tables.iter().find_map(|t| t.err()).expect("one is left");
        assert_eq!((gone.key, gone.why), (left.key, Skipped::NotWanted));
        let before = used(&n.e());
        assert!(load(&|key| key == left.key).iter().filter(|t| t.is_ok()).count() == 1);
        let took = (used(&n.e()) - before) as u64;
        assert!((took..took + took / 2 + 2 * ROUNDING).contains(&gone.need), "{took} taken, {} said", gone.need);
    }
}

/// Each token belongs to one transaction, also after the rollback of a savepoint, in other slots,
/// and after a load.
#[test]
fn tokens_are_not_given_twice() {
    let mut w = World::new(4 * MB);
    let mut other = Txn::new(w.e(), 1);
    let mut seen = HashSet::new();
    for n in 0..200 {
        w.begin();
        let token = w.txn.token();
        assert!(token != 0 && token == w.txn.token() && seen.insert(token));
        w.txn.set_depth(2);
        assert_eq!(w.txn.token(), token);
        w.txn.abort_sub(2);
        if n % 3 == 0 {
            assert!(seen.insert(w.txn.token()));
            other.begin(Level::Snapshot, 2);
            assert!(seen.insert(other.token()));
            other.abort();
        }
        w.commit();
    }
    let (bytes, _) = w.save(&[]);
    let mut n = World::new(4 * MB);
    n.e().advance_tokens(read_head(&mut Reader::new(&bytes[..])).unwrap().token);
    n.begin();
    assert!(seen.iter().all(|t| *t < n.txn.token()), "rows have tokens of before");
}

/// Whatever is damaged in a file, tables are correct or missing, and no memory is lost.
#[test]
fn damage_is_noticed() {
    let mut w = World::new(16 * MB);
    let (a, b) = (w.table(1, 3), w.table(2, 1));
    w.fill(a, 400);
    for nth in [0, 2] {
        b.set_unique(nth, Primary::create(&w.e(), 0, 0, Reuse::Vacuum, b"how").unwrap());
    }
    w.begin();
    for n in 0..300u32 {
        let r = w.insert(b, &[1; 40]);
        for nth in [0, 2] {
            let key = [n.to_be_bytes(), [7; 4], [nth as u8; 4]].concat();
            w.txn.enter_in(&w.p, r, nth, &key, crate::index::Unique::Unchecked).unwrap();
        }
    }
    w.commit();
    let (bytes, _) = w.save(&[a, b]);
    let right = [contents(a), contents(b)];
    let n = World::new(16 * MB);
    let empty = used(&n.e());
    let mut failures = 0;
    let mut check = |bytes: &[u8]| {
        let (tables, end) = load(&n.e(), bytes);
        failures += end.is_err() as u32;
        assert!(end.is_err() || tables.len() == 2);
        for (t, right) in tables.into_iter().zip(&right) {
            let t = t.unwrap();
            assert_eq!(&contents(t), right);
            // SAFETY: INV-TABLE: the table is not published.
            unsafe { t.destroy(&n.e(), 0) };
        }
        assert_eq!(used(&n.e()), empty);
    };
    let steps: Vec<usize> = (0..64).chain((64..bytes.len()).step_by(3907)).collect();
    for &at in &steps {
        let mut broken = bytes.clone();
        broken[at] ^= 1 << (at % 8);
        check(&broken);
        check(&bytes[..at]);
    }
    check(&bytes[..bytes.len() - 1]);
    assert_eq!(failures, 2 * steps.len() as u32 + 1);
}

/// What a table says of itself cannot be: it is left out, and no memory is lost. Those behind it
/// come back.
#[test]
fn a_table_that_cannot_be_right_is_left_out() {
    let mut w = World::new(16 * MB);
    let all @ [bad, a, c] = [w.table(1, 3), w.table(2, 2), w.table(3, 2)];
    for nth in [0, 2] {
        bad.set_unique(nth, Primary::create(&w.e(), 0, 0, Reuse::Vacuum, b"how").unwrap());
    }
    w.begin();
    for n in 0..300u32 {
        let r = w.insert(bad, &[1; 40]);
        for nth in [0, 2] {
            w.txn.enter_in(&w.p, r, nth, &n.to_be_bytes(), crate::index::Unique::Unchecked).unwrap();
        }
    }
    w.commit();
    [a, c].into_iter().for_each(|t| w.fill(t, 400));
    let whole = |bytes: &[u8]| {
        let mut out = vec![0; bytes.len() - 8 * bytes.len().div_ceil(MB + 8)];
        Reader::new(bytes).get(&mut out).unwrap();
        out
    };
    let bytes = whole(&w.save(&all).0);
    let map = 4 + 4 + IDENTITY.len() + 8 + 8 + 1 + 4 * 4;
    let protocols = map + 3 * 4 + b"the key".len() + 8 * TUNING_WORDS;
    // Of the last entry, behind which are its length, its key, the end of entries and that of the
    // file. The entries of the other index end in front of those of the primary index.
    let entry = whole(&w.save(&[bad]).0).len() - 4 - 4 - 4 - 4 - 1;
    let other = entry - 299 * 12 - 4 - 12;
    let beside = [BESIDE, 2].map(u32::to_le_bytes).concat();
    let number = bytes.windows(8).position(|bytes| bytes == beside).expect("the other index") + 4;
    let row = bytes.windows(40).position(|bytes| bytes == [1; 40]).expect("a row") - 4 - 2;
    for (at, broken, why) in [
        (protocols, 1 << 7, "a partition has no known protocol"),
        (number, 4, "an index has an impossible number"),
        (number, 0, "an index has an impossible number"),
        (entry, 9999, "an entry of an index has no row"),
        (other, 9999, "an entry of an index has no row"),
        (row, 3, "a row is in a partition that does not exist"),
    ] {
        let mut bytes = bytes.clone();
        bytes[at..at + 2].copy_from_slice(&u16::to_le_bytes(broken));
        let mut writer = Writer::new(Vec::new());
        writer.put(&bytes).unwrap();
        let n = World::new(16 * MB);
        let (tables, end) = load(&n.e(), &writer.finish().unwrap());
        end.unwrap();
        assert_eq!(tables[0].err().map(|l| (l.key, l.why)), Some((bad.key, Skipped::Damaged(why))));
        let others = [1, 2].map(|i| contents(tables[i].unwrap()));
        assert_eq!(others, [contents(a), contents(c)]);
        let m = World::new(16 * MB);
        load(&m.e(), &w.save(&[a, c]).0).1.unwrap();
        assert_eq!(used(&n.e()), used(&m.e()), "its memory is free again");
    }
}

#[test]
fn frames_cannot_change_places() {
    let mut w = Writer::new(Vec::new());
    w.put(&vec![1; MB]).unwrap();
    w.put(&vec![2; MB]).unwrap();
    let bytes = w.finish().unwrap();
    let (first, second) = bytes.split_at(bytes.len() / 2);
    let mut out = vec![0; 2 * MB];
    Reader::new(&bytes[..]).get(&mut out).unwrap();
    assert!(out[..MB].iter().all(|b| *b == 1) && out[MB..].iter().all(|b| *b == 2));
    let swapped = [second, first].concat();
    assert!(matches!(Reader::new(&swapped[..]).get(&mut out), Err(LoadError::Damaged(_))));
    assert!(matches!(Reader::new(second).get(&mut out[..1]), Err(LoadError::Damaged(_))));
}

#[test]
fn a_table_that_does_not_fit_is_left_out() {
    let mut w = World::new(64 * MB);
    let (small, large, last) = (w.table(1, 2), w.table(2, 2), w.table(3, 2));
    w.fill(small, 100);
    w.fill(last, 100);
    w.begin();
    for _ in 0..40_000 {
        w.insert(large, &[7; 400]);
    }
    w.commit();
    let (bytes, _) = w.save(&[small, large, last]);
    let n = World::new(8 * MB);
    let (tables, end) = load(&n.e(), &bytes);
    end.unwrap();
    let [a, b, c] = tables[..] else { panic!("three tables") };
    let left = b.err().expect("it does not fit");
    assert_eq!((left.key, left.why), (large.key, Skipped::OutOfMemory));
    assert!((8 * MB as u64..64 * MB as u64).contains(&left.need), "{}", left.need);
    let (a, c) = (a.unwrap(), c.unwrap());
    assert_eq!((contents(a), contents(c)), (contents(small), contents(last)));
    let room = n.e().region.usage().free_page_bytes;
    assert!(room >= 5 * MB, "the table's memory is free again: {room}");
}

#[test]
fn a_table_with_an_open_write_is_left_out() {
    let mut w = World::new(16 * MB);
    let (a, b) = (w.table(1, 2), w.table(2, 2));
    w.fill(a, 100);
    w.fill(b, 100);
    w.begin();
    w.insert(a, b"open");
    let (bytes, settled) = w.save(&[a, b]);
    assert!(!settled);
    w.txn.abort();
    let n = World::new(16 * MB);
    let (tables, end) = load(&n.e(), &bytes);
    end.unwrap();
    assert_eq!(tables[0].err().map(|l| (l.key, l.why)), Some((a.key, Skipped::Unsettled)));
    assert_eq!(contents(tables[1].unwrap()), contents(b));
}
