//! Tests of a region on a machine that pretends to have several memory nodes.

use super::tests::{churn, Block, Object};
use super::*;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Mutex;

const NODES: usize = 3;

fn block(slots: usize) -> Block {
    Block::new(Region::min_size_on(slots, NODES) + 5 * NODE_ALIGN + 12 * 4096)
}

fn live(u: &Usage) -> usize {
    u.classes.iter().map(|c| c.live).sum::<usize>() + u.run_bytes
}

#[test]
fn nodes_divide_the_block_at_large_pages() {
    for nodes in [1, 2, 3, 8, MAX_NODES] {
        let block = Block::new(Region::min_size_on(2, nodes).next_multiple_of(4096));
        let region = block.region_on(2, nodes);
        assert_eq!(region.nodes(), nodes);
        let foreseen: Vec<_> = Region::node_ranges(block.base, block.layout.size(), nodes).collect();
        let mut end = block.base as usize;
        for (n, range) in foreseen.into_iter().enumerate() {
            assert_eq!(range, region.node_range(n), "not what was bound beforehand");
            assert_eq!(range.start, end, "a hole");
            assert!(n == 0 || range.start.is_multiple_of(NODE_ALIGN));
            assert_eq!((region.node_of(range.start), region.node_of(range.end - 1)), (n, n));
            end = range.end;
        }
        assert_eq!(end, block.base as usize + block.layout.size());
        // SAFETY: INV-M5: formatted above, at this address.
        assert!(unsafe { Region::attach(block.base) }.is_some());
    }
    let small = Block::new(Region::min_size_on(2, NODES) - 4096);
    // SAFETY: the block belongs to this test and is not in use.
    assert!(unsafe { Region::create(small.base, small.layout.size(), 2, NODES) }.is_err());
}

#[test]
fn objects_lie_on_their_node_and_go_back_to_it() {
    let block = block(2);
    let region = block.region_on(2, NODES);
    let mut objects = Vec::new();
    for (node, size) in (0..NODES).flat_map(|n| [8, 100, 5_000, MAX_SLAB_OBJECT, 3 * PAGE_BYTES].map(|s| (n, s))) {
        let p = region.alloc_on(node, 0, size).unwrap();
        assert!(region.node_range(node).contains(&(p.as_ptr() as usize)), "{size} bytes of node {node}");
        // SAFETY: INV-M1: allocated just now.
        assert!(unsafe { region.usable_size(p) } >= size);
        objects.push((node, p));
    }
    assert_eq!(region.node_of_partition(7), 1);
    for n in 0..NODES {
        assert!(live(&region.node_usage(n)) > 0);
    }
    // Another slot frees them, and still they return to their nodes.
    for (_, p) in objects {
        // SAFETY: INV-M1: the only owner frees it.
        unsafe { region.free(1, p) };
    }
    region.flush_slot(0);
    region.flush_slot(1);
    for n in 0..NODES {
        let u = region.node_usage(n);
        assert_eq!((live(&u), u.used_page_bytes), (0, 0), "node {n}");
    }
}

#[test]
fn a_full_node_borrows_from_the_others() {
    let block = block(1);
    let region = block.region_on(1, NODES);
    let mut seen = [0; NODES];
    let mut all = Vec::new();
    while let Ok(p) = region.alloc_on(1, 0, PAGE_BYTES * 4) {
        seen[region.node_of(p.as_ptr() as usize)] += 1;
        all.push(p);
    }
    assert!(seen.iter().all(|n| *n > 0), "{seen:?}");
    let first = all.iter().position(|p| region.node_of(p.as_ptr() as usize) != 1).unwrap();
    assert_eq!(first, seen[1], "its own memory first");
    for p in all {
        // SAFETY: INV-M1: the only owner frees it.
        unsafe { region.free(0, p) };
    }
    assert_eq!(region.usage().used_page_bytes, 0);
}

#[test]
fn threads_on_several_nodes_share_nothing_and_return_everything() {
    let slots = 4;
    let block = block(slots);
    let region = block.region_on(slots, NODES);
    let exchange: Mutex<Vec<Object>> = Mutex::default();
    let failures = AtomicU64::new(0);
    std::thread::scope(|s| {
        for slot in 0..slots {
            let (exchange, failures) = (&exchange, &failures);
            s.spawn(move || churn(region, slot, exchange, 20_000, failures));
        }
    });
    for o in exchange.into_inner().unwrap() {
        o.free(region, 0);
    }
    (0..slots).for_each(|s| region.flush_slot(s));
    let u = region.usage();
    assert_eq!((live(&u), u.used_page_bytes), (0, 0), "after {} failures", failures.load(Ordering::SeqCst));
}
