//! Hints: that they are kept and found, their cost, and two keys that share a place.

use super::*;
use crate::threads::Block;
use std::sync::atomic::AtomicBool;

struct World {
    e: Engine,
    hints: Hints,
    live_before: usize,
    _block: Block,
}

const SLOTS: usize = 4;

fn live(e: &Engine) -> usize {
    e.region.usage().classes.iter().map(|c| c.live).sum()
}

impl World {
    fn new(len: usize) -> World {
        let block = Block::new(len, SLOTS).expect("a block");
        let e = block.engine;
        let hints = Hints { lines: AtomicU64::new(0), enough_for: AtomicU64::new(0), loaded: AtomicU64::new(0) };
        World { e, hints, live_before: live(&e), _block: block }
    }
    /// Runs `f` as a transaction of a slot does.
    fn pinned<R>(&self, slot: SlotId, f: impl FnOnce() -> R) -> R {
        self.e.pin(slot);
        let r = f();
        self.e.unpin(slot);
        let now = self.e.tick();
        RetireQueue::drain(&self.e, slot, now.min(self.e.min_pin_of(|_| false)), 4);
        r
    }
    /// Stores the hint of a key as the insert of its row does, the `n`-th.
    fn add(&self, slot: SlotId, key: i64, no: u64, n: u64) {
        self.pinned(slot, || {
            self.hints.make_room(&self.e, slot, Hints::need(n, no));
            self.hints.put(Hash::of_key(short(key)), no, true);
        });
    }
    /// Is there a correct hint?
    fn has(&self, key: i64, no: u64) -> bool {
        self.hints.find(short(key), |n| (n == no).then_some(())).is_some()
    }
    fn end(self) {
        // SAFETY: INV-LINES: all other users have ended.
        unsafe { self.hints.free(&self.e, 0) };
        assert_eq!(self.hints.bytes(), 0);
        for slot in 0..SLOTS as SlotId {
            let min = self.e.tick();
            RetireQueue::drain(&self.e, slot, min, usize::MAX);
            RetireQueue::free_all(&self.e, slot);
        }
        assert_eq!(live(&self.e), self.live_before, "memory is left");
    }
}

fn short(key: i64) -> Short {
    let mut short = Short::EMPTY;
    assert!(short.put_int(key));
    short
}

/// Keys in no order, of at most 7 bytes.
fn scattered(n: u64) -> i64 {
    let mut x = n.wrapping_add(1).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^= x >> 29;
    (x.wrapping_mul(0x94d0_49bb_1331_11eb) >> 10) as i64
}

#[test]
fn a_larger_table_keeps_every_hint() {
    let keys: [fn(u64) -> i64; 3] = [scattered, |n| n as i64, |n| -(n as i64) * 1000];
    for key in keys {
        let w = World::new(16 << 20);
        w.hints.make_room(&w.e, 0, 40);
        let mut grown = 0;
        for places in [64, 100, 200, 1000, 1100, 8000, 30_000] {
            (0..places).for_each(|n| w.hints.put(Hash::of_key(short(key(n))), n * 2 % 61, true));
            let found: Vec<u64> = (0..places).filter(|&i| w.has(key(i), i * 2 % 61)).collect();
            let before = w.hints.bytes();
            w.hints.make_room(&w.e, 0, places + 1);
            grown += u64::from(w.hints.bytes() > before);
            assert!(w.hints.bytes() >= 4 * places && w.hints.bytes() <= 8 * (places + 64));
            assert!(found.iter().all(|&i| w.has(key(i), i * 2 % 61)), "{places} places");
            assert!(found.len() as u64 * 2 > places.min(before / 4), "{} of {places}", found.len());
        }
        assert_eq!(grown, 6, "100 places were there at once");
        w.end();
    }
}

#[test]
fn most_keys_are_found() {
    let two_columns = |n: u64| ((n % 10) << 32 | n / 10) as i64;
    let all: [(fn(u64) -> i64, u64); 4] =
        [(|n| n as i64 + 1, 99), (|n| 1000 * n as i64, 95), (two_columns, 95), (scattered, 95)];
    for (i, (key, percent)) in all.into_iter().enumerate() {
        for rows in [50, 1000, 26_000, 100_000] {
            let w = World::new(16 << 20);
            (0..rows).for_each(|n| w.add(0, key(n), n, n + 1));
            let found = (0..rows).filter(|&n| w.has(key(n), n)).count() as u64;
            assert!(found * 100 >= rows * percent, "keys {i}: {found} of {rows}");
            // At most 10 bytes a row, if there are more than a few rows.
            assert!(w.hints.bytes() <= 256.max(10 * rows), "{} bytes for {rows} rows", w.hints.bytes());
            w.end();
        }
    }
}

#[test]
fn what_was_forgotten_makes_room() {
    let w = World::new(16 << 20);
    (0..50).for_each(|n| w.add(0, scattered(n), n, 50));
    let places = w.hints.bytes();
    for n in 50..20_000 {
        w.hints.forget(Hash::of_key(short(scattered(n - 50))), (n - 50) % 100);
        assert!(!w.has(scattered(n - 50), (n - 50) % 100));
        w.add(0, scattered(n), n % 100, 50);
        assert!(w.has(scattered(n), n % 100), "the last one is there");
    }
    let found = (19_950..20_000).filter(|&n| w.has(scattered(n), n % 100)).count();
    assert!(found >= 45, "{found} of 50");
    assert_eq!(w.hints.bytes(), places);
    // Other numbers and other places are left alone.
    w.hints.forget(Hash::of_key(short(scattered(19_999))), 7);
    assert!(w.has(scattered(19_999), 99));
    w.end();
}

#[test]
fn a_look_up_takes_nobodys_place() {
    let w = World::new(16 << 20);
    w.hints.put(Hash::of_key(short(1)), 1, true); // There is no table yet.
    assert!(!w.has(1, 1));
    (0..50).for_each(|n| w.add(0, scattered(n), n, 50));
    let hash = Hash::of_key(short(7));
    let others = || (0..50).filter(|&n| w.has(scattered(n), n)).count();
    let before = others();
    (0..40).for_each(|no| w.hints.put(hash, no, false));
    let found = |key| {
        let mut all = Vec::new();
        w.hints.find(short(key), |no| {
            all.push(no);
            None::<()>
        });
        all
    };
    assert!(found(7).len() < WAYS && !found(7).is_empty() && !w.has(7, 39));
    assert_eq!(others(), before);
    w.hints.put(hash, 39, true);
    assert_eq!(found(7)[0], 39, "an insert does");
    // A number that is too large for a place is not stored.
    w.hints.put(hash, 127, true);
    w.hints.forget(hash, 127);
    assert!(!w.has(7, 127) && w.has(7, 39));
    w.end();
}

/// Pairs of keys whose hashes agree in all bits that count. The second one is stored behind the
/// first with the same tag.
fn twins() -> Vec<(i64, i64)> {
    let hash = |n| Hash::of_key(short(scattered(n)));
    let mut all: Vec<_> = (0..1 << 18).map(|n| ((hash(n).top(), hash(n).first()), scattered(n))).collect();
    all.sort_unstable();
    all.windows(2).filter(|w| w[0].0 == w[1].0).map(|w| (w[0].1, w[1].1)).collect()
}

/// INV-GUESS: without verification one of two such keys leads to the row of the other. With it,
/// both are found.
#[test]
fn keys_that_share_a_place_need_a_proof() {
    let w = World::new(16 << 20);
    let twins = twins();
    assert!(twins.len() > 3, "{} pairs", twins.len());
    for (i, &(a, b)) in twins.iter().enumerate() {
        let no = 2 * i as u64;
        (w.add(0, a, no, 1000), w.add(0, b, no + 1, 1000));
        assert!(w.has(a, no) && w.has(b, no + 1));
        let unproved = |key| w.hints.find(short(key), Some);
        assert_eq!((unproved(a), unproved(b)), (Some(no), Some(no)), "the second one's first hint is wrong");
    }
    w.end();
}

#[test]
fn without_memory_there_are_fewer_hints() {
    let w = World::new(4 << 20);
    (0..40).for_each(|n| w.add(0, n, n as u64, 40));
    let bytes = w.hints.bytes();
    let mut all = Vec::new();
    for size in [1 << 16, 1 << 10, 1 << 6, 8] {
        while let Ok(p) = w.e.region.alloc(0, size) {
            all.push(p);
        }
    }
    (0..1000).for_each(|n| w.add(0, n, n as u64, 40 + n as u64));
    assert_eq!(w.hints.bytes(), bytes, "no memory");
    assert!((990..1000).all(|n| !w.has(n, n as u64)), "their numbers have no room");
    assert!((0..40).any(|n| w.has(n, n as u64)));
    for p in all {
        // SAFETY: INV-M1: allocated above, and not used any more.
        unsafe { w.e.region.free(0, p) };
    }
    w.add(0, 5000, 3000, 5000);
    assert!(w.hints.bytes() > bytes && w.has(5000, 3000), "there is memory again");
    w.end();
}

/// Threads make the table grow while others read, store and forget hints. Memory that is read is
/// not freed: a word of freed memory would not be a hint of this test. No memory is lost.
fn until(what: &str, done: impl Fn() -> bool) {
    let start = std::time::Instant::now();
    while !done() {
        assert!(start.elapsed() < std::time::Duration::from_secs(60), "{what}");
        std::thread::yield_now();
    }
}

#[test]
fn it_grows_beside_readers_and_writers() {
    const KEYS: u64 = 30_000;
    // Numbers tell the writer, so that foreign ones are noticed at once.
    let no = |writer: u64, n: u64| n * 3 + writer;
    let w = World::new(32 << 20);
    let (stop, found) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|s| {
        let (w, stop, found) = (&w, &stop, &found);
        let writers: Vec<_> = (0..3u64)
            .map(|writer| {
                s.spawn(move || {
                    for n in 0..KEYS {
                        if n == KEYS / 2 {
                            until("the reader finds something", || found.load(Ordering::Relaxed) > 0);
                        }
                        let key = scattered(no(writer, n));
                        w.add(writer as SlotId, key, no(writer, n), 3 * n);
                        if n % 3 == 0 && n > 50 {
                            let old = no(writer, n - 50);
                            w.pinned(writer as SlotId, || w.hints.forget(Hash::of_key(short(scattered(old))), old));
                        }
                    }
                })
            })
            .collect();
        let reader = s.spawn(move || {
            let mut n = 0u64;
            while !stop.load(Ordering::Relaxed) {
                n = (n + 7919) % (3 * KEYS);
                w.pinned(3, || {
                    let right = w.hints.find(short(scattered(n)), |at| {
                        assert!(at < 3 * KEYS, "{at} was never put");
                        (at == n).then_some(())
                    });
                    found.fetch_add(u64::from(right.is_some()), Ordering::Relaxed);
                });
            }
        });
        writers.into_iter().for_each(|t| t.join().expect("a writer"));
        stop.store(true, Ordering::Relaxed);
        reader.join().expect("a reader");
    });
    let found = (0..3 * KEYS).filter(|&n| w.has(scattered(n), n)).count() as u64;
    assert!(found > KEYS && found < 3 * KEYS, "{found} found");
    w.end();
}

#[test]
fn an_old_table_is_freed_when_nobody_can_look_at_it() {
    let w = World::new(16 << 20);
    let begin = |slot| {
        let mut t = crate::Txn::new(w.e, slot);
        t.begin(crate::Level::Snapshot, 1 + slot as u64);
        t
    };
    let (mut t, mut reader) = (begin(0), begin(1));
    w.hints.make_room(&w.e, 0, 1000);
    w.hints.make_room(&w.e, 0, 100_000);
    assert_eq!(RetireQueue::len(&w.e, 0), 1, "the small one waits");
    w.e.tick();
    t.abort();
    assert_eq!(RetireQueue::len(&w.e, 0), 1, "it was freed under a reader's pin");
    reader.abort();
    // Each transaction reads, and sometimes looks at all pins.
    for _ in 0..32 {
        let mut next = begin(0);
        w.e.tick();
        next.abort();
    }
    assert_eq!(RetireQueue::len(&w.e, 0), 0, "it waits for more to be retired");
    w.end();
}
