//! A mark in the main fork of a table, which is empty otherwise: where its rows are while they are
//! not in memory.
//!
//! **INV-SAVED**: The stamp of a table names the file with its rows, by the shutdown at which that
//! file was written. Every event that makes these rows stale takes the stamp away, or changes it:
//! * PostgreSQL's recovery, after a crash or of a base backup, replaces the main fork by the init
//!   fork, which is empty. Base backups do not have it at all.
//! * TRUNCATE and other rewrites of the table give it a new main fork. DROP removes it.
//! * A start that loads the rows notes itself in the stamp, before the server opens for business.
//!   From then on the stamp counts only while the control file still describes the shutdown before
//!   that start.
//! * The next shutdown writes new stamps.
//!
//! So a start without the library, which can neither read nor write such tables, changes nothing.
//! pg_upgrade takes stamps along, as it takes all relations.

use crate::pg::compat;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};

/// In front of each stamp.
const MAGIC: [u8; 16] = *b"mixedcc: rows in";
/// Length of the name of a shutdown.
pub const IDENTITY: usize = 40;
/// Storage; the shutdown of the file; the shutdown before the start that has loaded the rows, or
/// zeros.
const LEN: usize = MAGIC.len() + 12 + 2 * IDENTITY;

/// The name of a shutdown.
pub type Identity = [u8; IDENTITY];

/// What a stamp says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// At which shutdown the rows were written.
    pub saved: Identity,
    /// After which shutdown they were loaded, if they were.
    pub loaded: Option<Identity>,
}

impl Stamp {
    /// Are the rows in the file those of today, after the shutdown `now`?
    pub fn counts(&self, now: &Identity) -> bool {
        self.loaded.is_none_or(|at| at == *now)
    }
}

fn encode(key: [u32; 4], stamp: &Stamp) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    key[..3].iter().for_each(|k| out.extend(k.to_le_bytes()));
    out.extend(stamp.saved);
    out.extend(stamp.loaded.unwrap_or([0; IDENTITY]));
    out
}

/// The tablespace does not count: a database can be moved to another one.
fn decode(key: [u32; 4], bytes: &[u8]) -> Option<Stamp> {
    let rest = bytes.get(..LEN)?.strip_prefix(&MAGIC)?;
    let word = |i: usize| u32::from_le_bytes(std::array::from_fn(|k| rest[4 * i + k]));
    let name = |at: usize| -> Identity { std::array::from_fn(|k| rest[12 + at * IDENTITY + k]) };
    let loaded = Some(name(1)).filter(|n| *n != [0; IDENTITY]);
    (word(1) == key[1] && word(2) == key[2]).then(|| Stamp { saved: name(0), loaded })
}

fn path(key: [u32; 4]) -> String {
    // SAFETY: the postmaster or a backend runs this: both have a memory context (contract of
    // `main_file`).
    unsafe { compat::main_file(key) }
}

/// Has the storage a main fork?
pub fn has_storage(key: [u32; 4]) -> bool {
    std::fs::symlink_metadata(path(key)).is_ok()
}

/// The stamp of a storage, if it has one.
pub fn read(key: [u32; 4]) -> io::Result<Option<Stamp>> {
    let mut bytes = vec![0; compat::PAGE_HEADER + LEN];
    match File::open(path(key)).and_then(|mut f| f.read_exact(&mut bytes)) {
        Ok(()) => Ok(decode(key, &bytes[compat::PAGE_HEADER..])),
        Err(x) if matches!(x.kind(), io::ErrorKind::NotFound | io::ErrorKind::UnexpectedEof) => Ok(None),
        Err(x) => Err(x),
    }
}

/// Writes the stamp of a storage, if it has a main fork. No session uses the table.
pub fn write(key: [u32; 4], stamp: &Stamp) -> io::Result<()> {
    // SAFETY: the postmaster or a backend runs this: both have a memory context (contract of
    // `page_with`).
    let page = unsafe { compat::page_with(&encode(key, stamp)) };
    match OpenOptions::new().write(true).open(path(key)) {
        Ok(mut f) => f.write_all(&page),
        Err(x) if x.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(x) => Err(x),
    }
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn a_stamp_is_one_of_its_storage() {
        let (key, other) = ([1663, 5, 16384, 0], [1663, 6, 16384, 0]);
        for loaded in [None, Some([7; IDENTITY])] {
            let stamp = Stamp { saved: [3; IDENTITY], loaded };
            let bytes = encode(key, &stamp);
            assert_eq!(bytes.len(), LEN);
            assert_eq!(decode(key, &bytes), Some(stamp));
            assert_eq!(decode([9, 5, 16384, 0], &bytes), Some(stamp), "in another tablespace");
            assert_eq!(decode(other, &bytes), None);
            assert_eq!(decode([1663, 5, 16385, 0], &bytes), None);
            assert_eq!(decode(key, &bytes[..LEN - 1]), None);
            let mut broken = bytes.clone();
            broken[3] ^= 1;
            assert_eq!(decode(key, &broken), None);
            assert!(stamp.counts(&[7; IDENTITY]));
            assert_eq!(stamp.counts(&[8; IDENTITY]), loaded.is_none());
        }
        assert_eq!(decode(key, &[0; LEN]), None);
    }
}
