use super::*;
use crate::durable::merge::Live;
use crate::durable::page::BODY;
use crate::durable::space::Space;
use std::collections::BTreeMap;

fn live(entries: u16) -> Live {
    Live { entries, bytes: 120 * entries }
}

/// A companion that images random records and cleans, against the blocks of the records.
#[test]
fn blocks_are_handed_out_only_when_no_record_has_its_home_there() {
    let mut r = Random(30);
    let mut space = Space::new([Live::default()]).unwrap();
    let mut homes = BTreeMap::<u64, u32>::new();
    for round in 0..3000 {
        let mut batch: Vec<u64> = (0..r.below(60)).map(|_| r.below(2000)).collect();
        if space.excess() > 0 {
            let emptiest = space.emptiest(3).unwrap();
            assert!(!emptiest.is_empty());
            batch.extend(homes.iter().filter(|(_, block)| emptiest.contains(block)).map(|(record, _)| *record));
        }
        batch.sort_unstable();
        batch.dedup();
        let block = space.take().unwrap_or_else(|| {
            let block = space.len();
            space.extend(block).unwrap();
            block
        });
        assert!(block > 0 && homes.values().all(|home| *home != block), "round {round}");
        if r.one_in(20) {
            space.put_back(block); // the batch has failed
            continue;
        }
        batch.truncate(BODY / 120);
        space.fill(block, live(batch.len() as u16));
        batch.into_iter().filter_map(|record| homes.insert(record, block)).for_each(|old| space.leave(old));
        let mut counts = BTreeMap::<u32, u16>::new();
        homes.values().for_each(|block| *counts.entry(*block).or_default() += 1);
        assert!((1..space.len()).all(|b| space.live(b) == live(counts.get(&b).copied().unwrap_or(0))));
        assert_eq!(space.live_entries(), homes.len() as u64);
        assert_eq!(space.live_bytes(), 120 * homes.len() as u64);
        assert_eq!(space.free_blocks() as usize, space.len() as usize - 1 - counts.len());
    }
    let needed = homes.len() * 120 / BODY + 1;
    assert!((space.len() as usize) < 6 * needed, "{} blocks where {needed} would do", space.len());
}

#[test]
fn free_blocks_are_handed_out_from_the_lowest_on() {
    let mut space = Space::new([0, 3, 0, 2, 0].map(live)).unwrap();
    assert_eq!((space.len(), space.free_blocks(), space.live_entries()), (5, 2, 5));
    assert_eq!((space.take(), space.take(), space.take()), (Some(2), Some(4), None));
    space.extend(7).unwrap();
    assert_eq!((space.len(), space.free_blocks()), (8, 2), "5 and 6 were there unseen");
    space.fill(2, Live::default());
    space.put_back(4);
    space.put_back(4);
    assert_eq!(
        [space.take(), space.take(), space.take(), space.take(), space.take()],
        [2, 4, 5, 6, 0].map(|b| Some(b).filter(|b| *b > 0))
    );
    (0..3).for_each(|_| space.leave(1));
    assert_eq!(space.take(), Some(1));
    assert_eq!(space.live_bytes(), 240);
}

#[test]
fn the_emptiest_blocks_come_first() {
    let mut r = Random(31);
    for _ in 0..200 {
        let counts: Vec<u16> = (0..1 + r.below(50)).map(|_| r.below(68) as u16).collect();
        let space = Space::new(counts.iter().map(|n| live(*n))).unwrap();
        let mut used: Vec<u16> = counts[1..].iter().copied().filter(|n| *n > 0).collect();
        used.sort_unstable();
        for n in [0, 1, 5, 100] {
            let found = space.emptiest(n).unwrap();
            let found: Vec<u16> = found.into_iter().map(|b| counts[b as usize]).collect();
            assert_eq!(found, used[..n.min(used.len())]);
        }
    }
}

#[test]
fn half_of_a_file_may_be_dead() {
    let full = (BODY / 120) as u16;
    let excess = |blocks: &[u16]| Space::new(blocks.iter().map(|n| live(*n))).unwrap().excess();
    assert_eq!(excess(&[0, full, full, full]), 0);
    assert_eq!(excess(&[0, full, full, 1, 1]), 0);
    assert_eq!(excess(&[0, 1, 1, 1, 1]), 2);
    assert_eq!(excess(&[0, 0, 0, 1, 1]), 0);
    assert_eq!(excess(&[]), 0);
}
