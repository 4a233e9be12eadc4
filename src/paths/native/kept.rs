//! Plans of the statements that native calls run, kept from call to call.
//!
//! PostgreSQL's plan cache makes a kept plan anew when a definition, the search path or a policy's
//! role has changed. So the same text with the same types of parameters is the same statement as
//! long as the backend lives. A rule may say INSTEAD NOTHING: such a plan has no query, and so no
//! table whose changes would make it anew. It is not kept.
//!
//! **INV-KEPT**: A plan is freed only while no call of this backend runs it. A call that runs one
//! has a [`Running`].

use super::statement::prepare;
use super::Value;
use pgrx::pg_sys::{self, Oid};
use pgrx::PgList;
use std::cell::RefCell;

/// So many plans a backend keeps; the one that was used longest ago makes room.
const MOST: usize = 64;

struct Kept {
    sql: String,
    types: Vec<Oid>,
    plan: pg_sys::SPIPlanPtr,
    /// Calls that run it: several where a trigger makes the call that it came from.
    running: u32,
    used: u64,
}

#[derive(Default)]
struct Plans {
    all: Vec<Kept>,
    uses: u64,
}

thread_local! {
    /// Never borrowed while PostgreSQL's code runs.
    static PLANS: RefCell<Plans> = RefCell::default();
}

/// A plan that is run, until this is dropped, by an ERROR too.
pub struct Running(pub pg_sys::SPIPlanPtr);

impl Drop for Running {
    fn drop(&mut self) {
        PLANS.with_borrow_mut(|p| p.all.iter_mut().filter(|k| k.plan == self.0).for_each(|k| k.running -= 1));
    }
}

impl Plans {
    /// The plan of a statement, which is run from now on.
    fn begin(&mut self, sql: &str, values: &[Value]) -> Option<Running> {
        self.uses += 1;
        let same = |k: &&mut Kept| k.sql == sql && k.types.iter().eq(values.iter().map(|v| &v.2));
        let k = self.all.iter_mut().find(same)?;
        k.running += 1;
        k.used = self.uses;
        Some(Running(k.plan))
    }

    /// Takes out a plan, if no call runs it.
    fn take_idle(&mut self, plan: pg_sys::SPIPlanPtr) -> Option<pg_sys::SPIPlanPtr> {
        let at = self.all.iter().position(|k| k.plan == plan && k.running == 0)?;
        Some(self.all.swap_remove(at).plan)
    }

    /// Takes out a plan that has to make room.
    fn surplus(&mut self) -> Option<pg_sys::SPIPlanPtr> {
        if self.all.len() < MOST {
            return None;
        }
        let idle = self.all.iter().enumerate().filter(|(_, k)| k.running == 0);
        let at = idle.min_by_key(|(_, k)| k.used)?.0;
        Some(self.all.swap_remove(at).plan)
    }
}

/// Has a plan queries, by whose tables it is made anew?
unsafe fn has_queries(plan: pg_sys::SPIPlanPtr) -> bool {
    // SAFETY: `begin` has prepared or kept the plan, whose sources live as long.
    unsafe {
        let sources = PgList::<pg_sys::CachedPlanSource>::from_pg(pg_sys::SPI_plan_get_plan_sources(plan));
        let all = sources.iter_ptr().all(|s| !(*s).query_list.is_null());
        all
    }
}

/// The plan of a statement with parameters, prepared if it is not kept.
///
/// # Safety
/// Connected to SPI; values of their types.
pub unsafe fn begin(sql: &str, values: &[Value]) -> Running {
    // SAFETY: SPI is connected, and `values` are of their types: contract of this function.
    // INV-KEPT for the plans that are freed. Preparing may run calls that keep plans: this is added
    // after. A plan that is not kept goes with SPI's connection.
    unsafe {
        if let Some(kept) = PLANS.with_borrow_mut(|p| p.begin(sql, values)) {
            if has_queries(kept.0) {
                return kept;
            }
            let plan = kept.0;
            drop(kept);
            if let Some(plan) = PLANS.with_borrow_mut(|p| p.take_idle(plan)) {
                pg_sys::SPI_freeplan(plan);
            }
        }
        let plan = prepare(sql, values);
        if !has_queries(plan) {
            return Running(plan);
        }
        pg_sys::SPI_keepplan(plan);
        if let Some(old) = PLANS.with_borrow_mut(Plans::surplus) {
            pg_sys::SPI_freeplan(old);
        }
        let types = values.iter().map(|v| v.2).collect();
        PLANS.with_borrow_mut(|p| {
            p.all.push(Kept { sql: sql.to_owned(), types, plan, running: 1, used: p.uses });
        });
        Running(plan)
    }
}
