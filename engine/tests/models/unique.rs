//! The handshake of inserts of one key, whose entries may be in two leaves (INV-UNIQUE). The
//! latches and the list of leaves are the engine's own.

use super::*;

/// A leaf and how many entries with the key it has.
#[derive(Default)]
struct Leaf {
    version: VersionWord,
    entries: AtomicU64,
}

/// The leaves that can have entries of the key.
#[derive(Default)]
struct Leaves([Leaf; 2]);

/// What an insert leaves out.
#[derive(Clone, Copy, PartialEq)]
enum Without {
    Nothing,
    /// The versions of the judgement: it latches the leaves as they are.
    Versions,
}

impl Leaves {
    /// As `Index::judge_key`: the leaves, and is a record in the way?
    fn judge(&self) -> (KeyLeaves<'_>, [u64; 2], bool) {
        let (mut leaves, mut versions, mut taken) = (KeyLeaves::new(), [0; 2], false);
        for (leaf, version) in self.0.iter().zip(&mut versions) {
            *version = leaf.version.read();
            assert!(leaves.add(&leaf.version, *version));
            taken |= leaf.entries.load(Acquire) > 0;
        }
        (leaves, versions, taken)
    }

    /// As `Index::insert_judged`, of an entry that belongs to leaf `own`. False: it was not added.
    fn insert(&self, own: usize, w: Without) -> bool {
        let word = &self.0[own].version;
        loop {
            let (mut leaves, mut versions, taken) = self.judge();
            if taken {
                if leaves.are_unchanged() {
                    return false;
                }
                thread::yield_now();
                continue;
            }
            if w == Without::Versions {
                (leaves, versions, _) = self.judge();
            }
            if leaves.latch(word) {
                let there: u64 = self.0.iter().map(|l| l.entries.load(Acquire)).sum();
                assert_eq!(there, 0, "an entry that was not judged");
                self.0[own].entries.store(1, Release);
                word.release(versions[own]);
                leaves.release_others(word);
                return true;
            }
            thread::yield_now();
        }
    }

    /// As `Index::remove`: the insert is undone.
    fn remove(&self, own: usize) {
        let leaf = &self.0[own];
        loop {
            let version = leaf.version.read();
            if leaf.version.latch(version) {
                leaf.entries.store(0, Release);
                leaf.version.release(version);
                return;
            }
            thread::yield_now();
        }
    }
}

/// Two inserts, of which one adds its entry.
fn two_inserts(places: [usize; 2], w: Without) {
    let leaves = Arc::new(Leaves::default());
    let other = leaves.clone();
    let t = thread::spawn(move || other.insert(places[0], w));
    let mine = leaves.insert(places[1], w);
    assert!(mine != t.join().unwrap(), "one of them finds the other");
}

/// An insert that is undone, beside another one. Another insert comes after both.
fn undone(places: [usize; 2]) {
    let leaves = Arc::new(Leaves::default());
    let other = leaves.clone();
    let t = thread::spawn(move || {
        let added = other.insert(places[0], Without::Nothing);
        if added {
            other.remove(places[0]);
        }
        added
    });
    let mine = leaves.insert(places[1], Without::Nothing);
    assert!(t.join().unwrap() || mine, "none is in the way of both");
    assert_eq!(leaves.insert(0, Without::Nothing), !mine);
}

#[test]
fn one_of_two_inserts_finds_the_other() {
    model(|| two_inserts([0, 1], Without::Nothing));
    model(|| two_inserts([1, 1], Without::Nothing));
}

#[test]
fn an_undone_insert_is_out_of_the_way() {
    model(|| undone([0, 1]));
    model(|| undone([1, 0]));
}

#[test]
fn without_the_other_leaf_both_are_added() {
    assert!(fails_with(Fault::OneLeafCounts, || two_inserts([0, 1], Without::Nothing)));
}

#[test]
fn without_the_versions_both_are_added() {
    assert!(fails(|| two_inserts([0, 1], Without::Versions)));
    assert!(fails(|| two_inserts([1, 1], Without::Versions)));
}
