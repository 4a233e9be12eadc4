//! Transactions by key, in a table that has nothing but its primary index, or another one beside
//! it: look-ups, scans in both directions and with limits, inserts, updates and deletes; records
//! are used again at once; boundaries of the ranges change.

use crate::load::{find_anomaly_in, policies};
use crate::world::{checked, Jitter, Rng, Row};
use mixedcc_engine::checker::{self};
use mixedcc_engine::checker::{check, History, Log, Options, Payload, Predicate, Recorder, Seen, Session, WriteKind};
use mixedcc_engine::csn::Csn;
use mixedcc_engine::faults::{self, Fault};
use mixedcc_engine::index::{Direction, Primary, Records, Reuse, Unique};
use mixedcc_engine::key::Short;
use mixedcc_engine::open;
use mixedcc_engine::protocol::Touch;
use mixedcc_engine::range::{Columns, Looked};
use mixedcc_engine::record::{Keys, Version};
use mixedcc_engine::threads::{Block, Waits};
use mixedcc_engine::txn::{Look, OpenEnd, Own, Peek, Row as Found, RowScan, Scan, ScanId, WriteKind as Kind, PRIMARY};
use mixedcc_engine::{Engine, Error, Level, Policy, Protocol, ProtocolSet, RecordRef, Table, Txn};
use std::cell::Cell;
use std::ops::Bound;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

const KEYS: i64 = 48;
const PARTITIONS: i64 = 4;
const THREADS: u16 = 5;
/// From a thread's first slot to its other one.
const SPARE: u16 = THREADS + 2;

struct World {
    e: Engine,
    table: &'static Table,
    waits: Arc<Waits>,
    ident: AtomicU64,
    /// Rows that a guess has led to.
    guessed: AtomicU64,
    /// Guesses are believed without a proof, but by writers.
    unproved: bool,
    _block: Block,
}

/// Every third key is too long for an entry of the index.
fn bytes(key: i64) -> Vec<u8> {
    let mut b = (key as u64).to_be_bytes().to_vec();
    if key % 3 == 0 {
        b.extend_from_slice(b"third");
    }
    b
}

/// The number of the other index.
const OTHER: usize = 2;

/// The keys of the other index ascend where those of the primary one descend.
fn other_bytes(key: i64) -> Vec<u8> {
    bytes(KEYS - key)
}

impl World {
    fn new(sets: &[ProtocolSet], policy: Policy, order: u32) -> World {
        let block = Block::new(16 << 20, 2 * SPARE as usize).expect("a block");
        let e = block.engine;
        let map = Table::new_map(&e, 0, PARTITIONS as u32, 0, b"", sets[0], policy).expect("a map");
        let table = Table::create(&e, 0, [1; 4], map).expect("a table");
        for (i, p) in table.map().partitions().iter().enumerate() {
            p.put(&e, sets[i % sets.len()], None).unwrap();
        }
        // With a description, so that there are guesses.
        table.set_primary(Primary::create(&e, 0, order, Reuse::AtOnce, b"keys").expect("an index"));
        let (ident, guessed) = (AtomicU64::new(1), AtomicU64::new(0));
        World { e, table, waits: Arc::default(), ident, guessed, unproved: false, _block: block }
    }
    fn at(&self, key: i64) -> Touch {
        Touch { table: self.table, no: (key * PARTITIONS / KEYS) as u32 }
    }
}

struct Client<'w> {
    w: &'w World,
    t: Txn,
    p: Jitter,
    session: Session,
    log: Option<Log>,
    snapshot: Option<Csn>,
}

impl Drop for Client<'_> {
    fn drop(&mut self) {
        self.t.abort(); // a test that fails must not leave the other threads waiting
    }
}

impl<'w> Client<'w> {
    fn new(w: &'w World, slot: u16, session: Session, seed: u64) -> Client<'w> {
        let p = Jitter::of(w.e, w.waits.clone(), slot, seed);
        p.yields.set(40);
        Client { w, t: Txn::new(w.e, slot), p, session, log: None, snapshot: None }
    }
    fn begin(&mut self, read_only: bool) {
        let level = if read_only { checker::Level::SerializableReadOnly } else { checker::Level::Serializable };
        self.log = Some(self.session.begin(level));
        let level = if read_only { Level::Snapshot } else { Level::Serializable };
        self.t.begin(level, self.w.ident.fetch_add(1, Ordering::SeqCst));
        self.snapshot = read_only.then(|| self.w.e.now());
    }
    fn commit(&mut self) -> Result<(), Error> {
        if self.log().id() % 4 == 0 {
            return self.commit_prepared();
        }
        let csn = Cell::new(None);
        self.t.prepare(&self.p, &|_, c| csn.set(Some(c)))?;
        self.t.publish(&self.p);
        self.log.take().expect("a transaction").commit(csn.get());
        Ok(())
    }
    /// Prepares the transaction, leaves it with its slot, and ends it without what the thread knew
    /// of it.
    fn commit_prepared(&mut self) -> Result<(), Error> {
        self.t.prepare_ahead(&self.p)?;
        self.p.jitter();
        let left = self.t.slot;
        let to = (left + SPARE) % (2 * SPARE);
        self.t.hand_over(to);
        self.p.threads.slot = to;
        let mut t = Txn::take_over(self.w.e, left).expect("it was left");
        let log = self.log.take().expect("a transaction");
        if log.id() % 12 == 0 {
            t.abort();
            log.abort();
        } else {
            t.decide_prepared();
            let csn = Some(t.csn()).filter(|&c| c != 0);
            t.publish(&self.p);
            log.commit(csn);
        }
        self.w.e.region.flush_slot(left as usize);
        Ok(())
    }
    fn abort(&mut self) {
        self.t.abort();
        if let Some(l) = self.log.take() {
            l.abort();
        }
    }
    fn log(&mut self) -> &mut Log {
        self.log.as_mut().expect("a transaction")
    }
    /// The row that a guess leads to, if that is right (INV-GUESS) and needs only a look.
    fn guess(&mut self, key: i64, for_write: bool) -> Result<Option<Found>, Error> {
        let w = self.w;
        let Some(short) = Short::of(&bytes(key)) else { return Ok(None) };
        if self.snapshot.is_none() {
            self.t.begin_following(&self.p)?;
        }
        let (t, snapshot) = (&mut self.t, self.snapshot);
        let is = |v| w.unproved && !for_write || Row::read(v).key == key;
        let found = w.table.primary().expect("an index").find_by_hint(short, |no| {
            let r = RecordRef::find(w.table, no)?;
            let newest = NonNull::new(r.rec.head())?;
            // SAFETY: reached under our pin.
            let gone = unsafe { newest.as_ref() }.is_tombstone();
            if gone || !is(newest) || t.last_write(r).is_some() {
                return None;
            }
            let version = match snapshot {
                None => t.peek_row(&self.p, r, if for_write { Peek::Write } else { Peek::Columns(Columns::ALL) })?,
                Some(csn) => t.peek_snapshot(r, open::Seen::prefix(csn))??,
            };
            (version == newest).then_some(Found { r, version, own: false })
        });
        w.guessed.fetch_add(u64::from(found.is_some()), Ordering::Relaxed);
        Ok(found)
    }
    fn get(&mut self, key: i64, for_write: bool) -> Result<Option<Found>, Error> {
        let at = self.w.at(key);
        let found = match self.guess(key, for_write)? {
            None => self.t.find_row(&self.p, at, &bytes(key), for_write, self.snapshot.map(open::Seen::prefix))?,
            found => found,
        };
        let seen = found.map_or(Seen::Absent, |f| Row::read(f.version).seen());
        self.log().read(checked(key), seen);
        Ok(found)
    }
    /// Reads the keys from `low` to `high`, `limit` rows at most.
    fn scan(&mut self, low: i64, high: i64, way: Direction, limit: usize) -> Result<usize, Error> {
        let (lo, hi) = (bytes(low), bytes(high));
        let at: Vec<Touch> = (0..PARTITIONS)
            .map(|n| self.w.at(n * KEYS / PARTITIONS))
            .filter(|t| (self.w.at(low).no..=self.w.at(high).no).contains(&t.no))
            .collect();
        let open = match way {
            _ if limit == usize::MAX => OpenEnd::No,
            Direction::Forward => OpenEnd::High,
            Direction::Backward => OpenEnd::Low,
        };
        let (lo, hi) = (Bound::Included(&lo[..]), Bound::Included(&hi[..]));
        let scan = Scan { at: &at, lo, hi, open, snapshot: self.snapshot.map(open::Seen::prefix), looked: Looked::ALL };
        if limit == usize::MAX && (low + high) % 2 == 0 {
            if let Some(ranges) = self.w.table.ranges(PRIMARY) {
                let id =
                    if self.snapshot.is_none() { self.t.begin_scan(&self.p, ranges, &scan)? } else { ScanId::NONE };
                let rows = self.by_runs(&scan, way, id)?;
                let seen = rows.iter().map(|r| (checked(r.key), r.seen())).collect();
                self.log().scan(Predicate::range(0, low, high), seen);
                return Ok(rows.len());
            }
        }
        let mut s: RowScan = self.t.scan_rows(&self.p, self.w.table, &scan, way, self.snapshot.is_none())?;
        let mut rows = Vec::new();
        while rows.len() < limit {
            self.p.jitter();
            let Some(f) = self.t.next_row(&self.p, &mut s, false)? else { break };
            rows.push(Row::read(f.version));
        }
        let ended = rows.len() < limit;
        self.t.end_scan(&self.p, s);
        let (mut low, mut high) = (low, high);
        match (rows.last(), way) {
            (Some(last), Direction::Forward) if !ended => high = last.key,
            (Some(last), Direction::Backward) if !ended => low = last.key,
            _ => {}
        }
        let seen = rows.iter().map(|r| (checked(r.key), r.seen())).collect();
        self.log().scan(Predicate::range(0, low, high), seen);
        Ok(rows.len())
    }
    /// All rows of a scan, several at once where a look tells.
    fn by_runs(&mut self, scan: &Scan<'_>, way: Direction, id: ScanId) -> Result<Vec<Row>, Error> {
        let index = &self.w.table.primary().expect("an index").index;
        let mut records = Records::new(index.scan(scan.lo, scan.hi, way), self.w.table);
        let look = self.snapshot.map_or(Look::Scan(id), |csn| Look::Snapshot(open::Seen::prefix(csn)));
        let (mut rows, mut run) = (Vec::new(), [NonNull::dangling(); 5]);
        loop {
            self.p.jitter();
            let n = self.t.peek_run(&mut records, look, &mut run);
            rows.extend(run[..n].iter().map(|v| Row::read(*v)));
            if n == run.len() {
                continue;
            }
            let Some(r) = records.next(&self.p) else { return Ok(rows) };
            let found = match (self.t.own(r, None), self.snapshot) {
                (Own::Write(n), _) => {
                    let w = self.t.write(n).expect("an own write");
                    (w.kind != Kind::Delete).then_some(w.version)
                }
                (_, Some(csn)) => self.t.read_snapshot(&self.p, r, open::Seen::prefix(csn))?,
                (_, None) => self.t.read_scanned(&self.p, r, false, id)?,
            };
            rows.extend(found.map(Row::read));
        }
    }
    fn version(&mut self, key: i64, kind: WriteKind) -> Result<NonNull<Version>, Error> {
        let v = self.t.new_version(0, size_of::<Row>(), 0)?;
        let txn = self.log().id();
        let nth = self.log().write(checked(key), kind, Payload::Opaque) as u64;
        // SAFETY: fresh, and that large.
        unsafe { Version::payload(v.as_ptr()).cast::<Row>().write_unaligned(Row { key, txn, nth, value: 0 }) };
        Ok(v)
    }
    /// Inserts or updates; or deletes.
    fn put(&mut self, key: i64, delete: bool) -> Result<(), Error> {
        match self.get(key, true)? {
            None if delete => {}
            None => {
                let v = self.version(key, WriteKind::Insert)?;
                let r = self.t.insert_row(&self.p, self.w.at(key), &bytes(key), v, 0)?;
                self.t.enter_in(&self.p, r, OTHER, &other_bytes(key), Unique::Unchecked)?;
            }
            Some(f) if delete => {
                let (bytes, other) = (bytes(key), other_bytes(key));
                let other = self.w.table.unique(OTHER).map(|_| &other[..]);
                self.t.delete_row_of(&self.p, &f, &Keys([Some(&bytes), None, other, None]), 0)?;
                self.log().write(checked(key), WriteKind::Delete, Payload::Opaque);
            }
            Some(f) => {
                let v = self.version(key, WriteKind::Update)?;
                self.t.update_row(&self.p, &f, &bytes(key), v, 0)?;
            }
        }
        Ok(())
    }
    fn announce(&self, keys: impl Iterator<Item = i64>) {
        let keys: Vec<Vec<u8>> = keys.map(bytes).collect();
        self.t.announce_rows(self.w.table, keys.iter().map(Vec::as_slice));
    }
    fn transaction(&mut self, rng: &mut Rng, read_only: bool) -> Result<(), Error> {
        if rng.percent(30) {
            // Some guesses are wrong. (The number may be of no record, or of one that is used for
            // another key later.)
            let key = rng.below(KEYS as u64) as i64;
            if let Some(short) = Short::of(&bytes(key)) {
                let no = rng.below(self.w.table.len() + 2);
                self.w.table.primary().expect("an index").note_hint(short, no);
            }
        }
        if rng.percent(20) {
            self.announce((0..rng.below(40)).map(|n| n as i64 * 7 % KEYS));
        }
        for _ in 0..1 + rng.below(4) {
            let key = rng.below(KEYS as u64) as i64;
            let dice = rng.below(100);
            if dice < 40 {
                let high = (key + rng.below(16) as i64).min(KEYS - 1);
                let way = if rng.percent(50) { Direction::Forward } else { Direction::Backward };
                let limit = if rng.percent(40) { rng.below(4) as usize + 1 } else { usize::MAX };
                self.scan(key, high, way, limit)?;
            } else if read_only || dice < 55 {
                self.get(key, false)?;
            } else {
                self.put(key, dice >= 80)?;
            }
        }
        self.commit()
    }
}

struct Load {
    sets: Vec<ProtocolSet>,
    policy: Policy,
    order: u32,
    /// Has the table another index, and of which order?
    other: Option<u32>,
    /// Are there ranges, or only the partitions' lists of inserts?
    ranges: bool,
    seed: u64,
    fault: Option<Fault>,
    /// Guesses are believed without a proof.
    unproved: bool,
}

/// Boundaries change all the time.
fn rebuild_loop(w: &World, l: &Load, stop: &AtomicBool) {
    faults::set(l.fault);
    let p = Jitter::of(w.e, w.waits.clone(), THREADS, l.seed);
    let mut rng = Rng::new(l.seed + 99);
    while l.ranges && !stop.load(Ordering::Relaxed) {
        let mut cuts: Vec<Vec<u8>> = (0..1 + rng.below(8)).map(|_| bytes(rng.below(KEYS as u64) as i64)).collect();
        cuts.sort();
        cuts.dedup();
        let cuts: Vec<&[u8]> = cuts.iter().map(Vec::as_slice).collect();
        w.e.pin(THREADS);
        match w.table.ranges(PRIMARY) {
            Some(r) => drop(r.rebuild(&w.e, THREADS, &p, &cuts, 16).expect("memory")),
            None => drop(w.table.activate_ranges(&w.e, THREADS, &p, PRIMARY, l.order, &cuts, 16).expect("memory")),
        }
        w.e.unpin(THREADS);
        w.table.reap_ranges(&w.e, THREADS, w.e.refresh_min_pin(&p));
        std::thread::sleep(Duration::from_micros(300));
    }
    faults::set(None);
}

fn run(l: &Load) -> (History, u64) {
    let w = World { unproved: l.unproved, ..World::new(&l.sets, l.policy, l.order) };
    if let Some(order) = l.other {
        w.table.set_unique(OTHER, Primary::create(&w.e, 0, order, Reuse::AtOnce, b"other").expect("an index"));
    }
    w.e.shared.dormant_after_ns.store(300_000, Ordering::Relaxed); // some ten commits
    let recorder = Recorder::new();
    let (stop, commits) = (AtomicBool::new(false), AtomicU64::new(0));
    let deadline = Instant::now() + Duration::from_secs(20);
    let work = |slot: u16| {
        faults::set(l.fault);
        let mut c = Client::new(&w, slot, recorder.session(), l.seed + slot as u64);
        let mut rng = Rng::new(l.seed ^ ((slot as u64 + 1) << 32));
        while commits.load(Ordering::Relaxed) < 2000 && Instant::now() < deadline {
            let read_only = slot == 0;
            c.begin(read_only);
            match c.transaction(&mut rng, read_only) {
                Ok(()) => drop(commits.fetch_add(u64::from(!read_only), Ordering::Relaxed)),
                Err(Error::Abort { .. } | Error::Deadlock) => {
                    assert!(!read_only, "a read-only transaction was aborted");
                    c.abort();
                }
                Err(e) => panic!("seed {}: {e:?}", l.seed),
            }
        }
        faults::set(None);
    };
    std::thread::scope(|s| {
        let (work, w) = (&work, &w);
        let rebuilds = s.spawn(|| rebuild_loop(w, l, &stop));
        let threads: Vec<_> = (0..THREADS).map(|slot| s.spawn(move || work(slot))).collect();
        let ends: Vec<_> = threads.into_iter().map(|t| t.join()).collect();
        stop.store(true, Ordering::SeqCst);
        if let Some(panic) = ends.into_iter().chain([rebuilds.join()]).filter_map(Result::err).next() {
            std::panic::resume_unwind(panic);
        }
    });
    let mut last = Client::new(&w, THREADS, recorder.session(), 1);
    last.begin(true);
    let rows = last.scan(0, KEYS - 1, Direction::Forward, usize::MAX).expect("a last scan");
    assert_eq!(rows as u64, w.table.rows(), "rows and entries");
    if let Some(other) = w.table.unique(OTHER) {
        let mut records =
            Records::new(other.index.scan(Bound::Unbounded, Bound::Unbounded, Direction::Backward), w.table);
        let (mut seen, at) = (Vec::new(), open::Seen::prefix(last.snapshot.expect("it reads only")));
        while let Some(r) = records.next(&last.p) {
            seen.extend(last.t.read_snapshot(&last.p, r, at).expect("nobody writes").map(|v| Row::read(v).key));
        }
        assert!(seen.len() == rows && seen.is_sorted(), "seed {}: {seen:?}", l.seed);
    }
    last.commit().expect("a read-only commit");
    let guesses =
        l.order == 0 && [Protocol::Occ, Protocol::TwoPhase].iter().any(|p| l.sets.contains(&ProtocolSet::of(*p)));
    assert!(!guesses || w.guessed.load(Ordering::Relaxed) > 100, "guesses were not tried");
    assert!(
        l.fault.is_some() || l.unproved || w.table.len() < 2000,
        "{} numbers were used for {KEYS} keys",
        w.table.len()
    );
    let mut h = recorder.history();
    h.initial.clear();
    (h, commits.into_inner())
}

fn judge(l: Load) {
    let (h, commits) = run(&l);
    let v = check(&h, &Options::strict());
    assert!(v.accepts(), "seed {}: {v}", l.seed);
    assert!(commits > 200 && v.edges as u64 > commits, "seed {}: {commits} commits, {v}", l.seed);
}

fn all_ways(sets: &[ProtocolSet], policy: Policy, seed: u64) {
    let ways = [(0, None, true), (1, Some(0), true), (0, Some(1), false), (0, Some(0), true)];
    for (i, (order, other, ranges)) in ways.into_iter().enumerate() {
        let (sets, seed) = (sets.to_vec(), seed + i as u64);
        judge(Load { sets, policy, order, other, ranges, seed, fault: None, unproved: false });
    }
}

/// An announcement is a hint: it locks and protects nothing, and reads afterwards are reads of that
/// time.
#[test]
fn announced_keys_are_not_read() {
    for protocol in Protocol::ALL.into_iter().filter(|p| !ProtocolSet::of(*p).locks_partitions()) {
        for order in [0, 1] {
            let w = World::new(&[ProtocolSet::of(protocol)], Policy::Wait, order);
            let recorder = Recorder::new();
            let (mut a, mut b) = (Client::new(&w, 0, recorder.session(), 1), Client::new(&w, 1, recorder.session(), 2));
            let write = |b: &mut Client, delete: bool| {
                b.begin(false);
                (0..KEYS)
                    .step_by(2)
                    .try_for_each(|k| b.put(k, delete))
                    .and_then(|()| b.commit())
                    .expect("nobody reads");
            };
            write(&mut b, false);
            // Of half of them there is no row.
            a.begin(false);
            a.announce(0..KEYS);
            a.t.announce_records(w.table, 0..2 * KEYS as u64);
            write(&mut b, false);
            write(&mut b, true);
            write(&mut b, false);
            for k in 0..KEYS {
                let found = a.get(k, false).expect("nobody writes").is_some();
                assert_eq!(found, k % 2 == 0, "{protocol:?}, order {order}, key {k}");
            }
            a.put(0, false).expect("nobody writes");
            a.commit().expect("nothing that was read has changed");
            drop((a, b));
            let mut h = recorder.history();
            h.initial.clear();
            let v = check(&h, &Options::strict());
            assert!(v.accepts(), "{v}");
        }
    }
}

#[test]
fn keyed_under_each_protocol() {
    for p in Protocol::ALL {
        for &policy in policies(ProtocolSet::of(p)) {
            all_ways(&[ProtocolSet::of(p)], policy, 10 + 40 * p.index() as u64 + 10 * policy as u64);
        }
    }
}
#[test]
fn keyed_mixed() {
    let last = Protocol::ALL[Protocol::COUNT - 1];
    let both = ProtocolSet::mediated(Protocol::Occ, last);
    let sets: Vec<_> = Protocol::ALL.into_iter().map(ProtocolSet::of).chain([both]).collect();
    all_ways(&sets, Policy::Wait, 600);
}

/// The checker finds what is wrong in such histories.
#[test]
fn keyed_faults_are_found() {
    use Fault::*;
    for fault in [NoValidation, PositionIsTail, IndexForgotten, LimitTooLittle, BoundOffByOne, NoMediation] {
        let sets = vec![ProtocolSet::of(Protocol::Occ)];
        let load = |i: u64| Load {
            sets: sets.clone(),
            policy: Policy::Wait,
            order: 0,
            other: None,
            ranges: true,
            seed: 1000 + i,
            fault: Some(fault),
            unproved: false,
        };
        let found = find_anomaly_in(20, |i| run(&load(i)).0);
        assert!(found.is_some(), "{fault:?} was not found");
    }
}

/// INV-GUESS: a reader that relies on a hint without proof reads rows of other keys.
#[test]
fn keyed_guesses_without_a_proof_are_found() {
    for protocol in [Protocol::Occ, Protocol::TwoPhase] {
        let load = |i: u64| Load {
            sets: vec![ProtocolSet::of(protocol)],
            policy: Policy::Wait,
            order: 0,
            other: None,
            ranges: true,
            seed: 2000 + i,
            fault: None,
            unproved: true,
        };
        assert!(find_anomaly_in(5, |i| run(&load(i)).0).is_some(), "{protocol:?}");
    }
}
