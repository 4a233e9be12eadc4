//! Conformance of the engine: histories of many threads judged by the checker, seeded faults that
//! it must find, what is left behind by commits and aborts, and a sequential model.

mod absent;
mod boundaries;
mod client;
mod clock;
mod counters;
mod counts;
mod deadlocks;
mod dropped;
mod early;
mod faults;
mod histories;
mod invariants;
mod keyed;
mod lifetimes;
mod load;
mod memory;
mod merged;
mod midway;
mod model;
mod moments;
mod nodes;
mod own_writes;
mod precision;
mod range_locks;
mod ranges;
mod sleep;
mod spans;
mod steps;
mod switches;
mod turns;
mod upgrades;
mod waits;
mod world;
mod wraps;
