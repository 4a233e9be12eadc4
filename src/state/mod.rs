//! What a backend and the server have: the shared block, relations, the transaction, saved rows.

pub mod above;
pub mod counters;
pub mod durable;
pub mod errors;
pub mod loads;
pub mod making;
pub mod platform;
pub mod rel;
pub mod rounds;
pub mod save;
pub mod shmem;
pub mod slots;
pub mod standby;
pub mod stop;
pub mod worker;
pub mod xact;
