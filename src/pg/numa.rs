//! Memory nodes (NUMA): the shared block is divided over them, and each part is bound to its node
//! by libnuma.
//!
//! Binding is a preference (libnuma's default policy): a node without free pages borrows from
//! others. It is told before anything touches the block, because pages that exist do not move.

use crate::pg::guc;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;
use std::ffi::{c_int, c_uint, c_void};
use std::ops::Range;

/// libnuma's set of nodes. Only handled by pointer.
#[repr(C)]
struct Bitmask {
    _opaque: [u8; 0],
}

#[link(name = "numa")]
unsafe extern "C" {
    fn numa_available() -> c_int;
    fn numa_max_node() -> c_int;
    fn numa_pagesize() -> c_int;
    fn numa_get_mems_allowed() -> *mut Bitmask;
    fn numa_bitmask_isbitset(set: *const Bitmask, n: c_uint) -> c_int;
    fn numa_bitmask_free(set: *mut Bitmask);
    fn numa_tonode_memory(start: *mut c_void, size: usize, node: c_int);
}

/// The nodes whose memory the server may use, by the system's numbers; at least one. More than one
/// only where `mixedcc.numa` is on and the system has several.
pub fn nodes() -> Vec<i32> {
    if !guc::NUMA.get() {
        return vec![0];
    }
    // SAFETY: libnuma's functions, in the postmaster's one thread. Only `numa_available` is called
    // where that says no. The set is freed once, after its last use.
    let allowed: Vec<i32> = unsafe {
        if numa_available() < 0 {
            ErrorReport::new(
                PgSqlErrorCode::ERRCODE_FEATURE_NOT_SUPPORTED,
                "mixedcc.numa has no effect: the system has no support for memory policies",
                "mixedcc",
            )
            .report(PgLogLevel::LOG);
            return vec![0];
        }
        let set = numa_get_mems_allowed();
        let allowed = (0..=numa_max_node()).filter(|&n| numa_bitmask_isbitset(set, n as c_uint) != 0).collect();
        numa_bitmask_free(set);
        allowed
    };
    match allowed.len() {
        0 => vec![0],
        n => allowed[..n.min(mixedcc_engine::memory::MAX_NODES)].to_vec(),
    }
}

/// Binds each node's part of the block that is about to be formatted. Nothing for one node.
///
/// # Safety
/// The ranges are mapped, and untouched where they are to be bound.
pub unsafe fn bind(nodes: &[i32], ranges: impl Iterator<Item = Range<usize>>) {
    if nodes.len() < 2 {
        return;
    }
    // SAFETY: `nodes` has several nodes only where `numa_available` has said yes.
    let page = unsafe { numa_pagesize() } as usize;
    for (&node, r) in nodes.iter().zip(ranges) {
        // The first range begins within a page.
        let from = r.start.next_multiple_of(page);
        let to = r.end / page * page;
        if from < to {
            // SAFETY: whole pages of a range that is mapped and untouched (contract of this
            // function).
            unsafe { numa_tonode_memory(from as *mut c_void, to - from, node) };
        }
    }
}
