//! A machine that pretends to have several memory nodes: rows lie on their partition's node, and
//! nothing else is different.

use crate::load::{assert_serializable, run_in, Load};
use crate::world::{World, PARTITIONS};
use mixedcc_engine::memory::{Region, NODE_ALIGN};
use mixedcc_engine::threads::Block;
use mixedcc_engine::{Engine, Policy, Protocol, ProtocolSet};

const NODES: usize = 3;

/// Bytes of a block with room for a load on each node.
fn bytes(slots: usize) -> usize {
    Engine::min_size_on(slots, NODES) + (NODES + 1) * 2 * NODE_ALIGN
}

/// Rows on each node, and that none is elsewhere.
fn rows_by_node(w: &World) -> [usize; NODES] {
    let region: &Region = w.e.region;
    let mut found = [0; NODES];
    for no in 0..w.table.len() {
        let Some(r) = w.table.record(no).filter(|r| !r.head().is_null()) else { continue };
        // SAFETY: the test is alone with the table, and the record has a version.
        if unsafe { (*r.head()).is_tombstone() } {
            continue;
        }
        let partition = r.part[w.table.map().field as usize].load(std::sync::atomic::Ordering::SeqCst) as u32;
        let node = region.node_of(r.head() as usize);
        assert_eq!(node, partition as usize % NODES, "a row of partition {partition}");
        found[node] += 1;
    }
    found
}

#[test]
fn rows_lie_on_the_node_of_their_partition_through_a_whole_load() {
    let sets = Protocol::ALL.map(ProtocolSet::of);
    let l = Load::new(&sets, Policy::Wait, 4711);
    let slots = l.moods.len() + 1;
    let block = Block::on(bytes(slots + 1), slots + 1, NODES).expect("memory");
    let w = World::within(block, &sets, Policy::Wait, slots as u16);
    assert!(PARTITIONS as usize > NODES);
    let at_first = rows_by_node(&w);
    assert!(at_first.iter().all(|n| *n > 0), "{at_first:?}");
    let (h, counts) = run_in(&w, &l, |_, enough| enough());
    assert_serializable(&h, &counts, l.seed);
    let now = rows_by_node(&w);
    assert!(now.iter().all(|n| *n > 0), "{now:?}");
}
