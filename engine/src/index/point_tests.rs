//! The search from a guessed place, compared with a plain one; look-ups and announcements compared
//! with a scan.

use super::key::{prefix_of, Entry};
use super::node::{NodeRef, CAPACITY};
use super::point::{Span, Wanted};
use super::tests::{Comparer, World};
use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::ptr;

/// First bytes that are few and often the same, and the ends of their range.
fn prefix() -> impl Strategy<Value = u64> {
    prop_oneof![0..4u64, (0..4u64).prop_map(|n| u64::MAX - n), (0..4u64).prop_map(|n| (n << 56) + n), any::<u64>()]
}

/// Keys of eight bytes, keys of other lengths, and keys with common beginnings.
fn key() -> impl Strategy<Value = Vec<u8>> {
    let bytes = |n: u64| n.to_be_bytes().to_vec();
    prop_oneof![
        4 => prefix().prop_map(bytes),
        1 => (prefix(), 0..9usize).prop_map(move |(n, len)| bytes(n)[..len.min(8)].to_vec()),
        2 => (prefix(), prop::collection::vec(any::<u8>(), 0..3)).prop_map(move |(n, tail)| [bytes(n), tail].concat()),
    ]
}

fn leaf(w: &World, prefixes: &[u64]) -> NodeRef {
    let node = NodeRef::new(&w.e.region, 0, 0).expect("memory");
    for (i, &p) in prefixes.iter().enumerate() {
        let e = Entry::new(w.e.region, 0, &p.to_be_bytes(), i as u32).expect("memory");
        node.insert_at(i, e, ptr::null_mut());
    }
    node
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Wherever the guessed place is.
    #[test]
    fn a_guess_changes_nothing_of_what_is_found(
        mut prefixes in prop::collection::vec(prefix(), 0..=CAPACITY),
        other in prefix(),
    ) {
        prefixes.sort_unstable();
        let w = World::new(4 << 20, 1, 0);
        let node = leaf(&w, &prefixes);
        let near = prefixes.iter().flat_map(|&p| [p, p.wrapping_sub(1), p.wrapping_add(1)]);
        for leading in near.chain([other, 0, u64::MAX]) {
            for low in 0..=prefixes.len() {
                for high in low..=prefixes.len() {
                    let plain = low + prefixes[low..high].iter().take_while(|&&p| p < leading).count();
                    prop_assert_eq!(node.below_leading(leading, low, high), plain);
                    for guess in [0, 1, 2, 3, 4, 5, 6, 75, usize::MAX] {
                        prop_assert_eq!(node.below_leading_near(leading, low, high, guess), plain, "guess {}", guess);
                    }
                }
            }
        }
    }

    /// Also with bounds that belong to two states of a node.
    #[test]
    fn a_place_is_in_the_node(lower in prefix(), upper in prop::option::of(prefix()), at in prefix(), n in 0..77usize) {
        let place = Span { lower, upper }.place(at, n);
        prop_assert!(place <= n);
        if let Some(upper) = upper.filter(|&u| lower <= at && at < u) {
            let exact = (u128::from(at - lower) * n as u128 / u128::from(upper - lower)) as usize;
            prop_assert!(place.abs_diff(exact) <= 1, "{} for {}", place, exact);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_look_up_finds_what_a_scan_finds(
        keys in prop::collection::vec((key(), 0..3u64), 1..300),
        others in prop::collection::vec(key(), 20),
    ) {
        let w = World::new(4 << 20, 1, 0);
        let p = Comparer::default();
        for (k, r) in &keys {
            w.pinned(0, || w.index.insert(&w.e, 0, &p, k, *r).expect("memory"));
        }
        for k in keys.iter().map(|(k, _)| k).chain(&others) {
            w.pinned(0, || {
                let mut all = w.index.scan(Bound::Included(k), Bound::Included(k), Direction::Forward);
                let mut scanned = Vec::new();
                while let Some((_, r)) = all.next(&p) {
                    scanned.push(r);
                }
                let mut found = [0; FEW];
                if let Some(n) = w.index.few(k, &mut found) {
                    assert_eq!(found[..n], scanned, "{k:?}");
                }
            });
        }
    }

    /// An announcement fetches the memory that the look-up reads, if the index does not change
    /// meanwhile.
    #[test]
    fn an_announced_key_leads_to_its_record(
        keys in prop::collection::btree_map(prefix(), 0..1000u64, 1..200),
        others in prop::collection::vec(prefix(), 20),
    ) {
        let w = World::new(4 << 20, 1, 0);
        let p = Comparer::default();
        let keys: BTreeMap<u64, u64> = keys;
        for (k, r) in &keys {
            w.pinned(0, || w.index.insert(&w.e, 0, &p, &k.to_be_bytes(), *r).expect("memory"));
        }
        for k in keys.keys().chain(&others) {
            let bytes = k.to_be_bytes();
            let wanted = Wanted { prefix: prefix_of(&bytes), key: &bytes };
            let place = w.pinned(0, || w.index.try_place(&wanted).ok()).expect("the index does not change");
            let record = w.pinned(0, || place.record(&wanted));
            prop_assert_eq!(record, keys.get(k).copied());
            // No scan is needed where a leaf begins or ends.
            let mut found = [0; FEW];
            let n = w.pinned(0, || w.index.few(&bytes, &mut found));
            prop_assert_eq!(n.map(|n| found[..n].first().copied()), Some(keys.get(k).copied()));
        }
    }
}
