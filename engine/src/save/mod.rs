//! Tables as a stream of bytes: what survives a clean shutdown.
//!
//! A table is loaded as a whole or not at all. Saving and loading exclude everybody else.
//!
//! **INV-SAVE**: A record keeps its number over a restart, and is free after loading only if it was
//! free when it was saved. A record with a deleted row or an aborted insert is loaded as dead,
//! because index entries may point to it: no insert takes its number before VACUUM has removed
//! them.

mod frames;
mod lessons;
#[cfg(test)]
mod tests;

pub use frames::{Reader, Writer};

use crate::choice::Lesson;
use crate::csn::{Csn, SlotId};
use crate::index::{Direction, Primary, Reuse, PRIMARY_SPEC_MAX};
use crate::memory::OutOfMemory;
use crate::partition::{PartitionMap, Tuning, SPEC_MAX, TUNING_WORDS};
use crate::platform::Platform;
use crate::primitive::Ordering;
use crate::protocol::{Policy, ProtocolSet};
use crate::record::{Record, Version, REC_FREE, REC_USED, VERSION_HEADER};
use crate::shared::Engine;
use crate::table::Table;
use std::io::{Read, Write};
use std::ops::Bound;
use std::ptr::NonNull;

/// Changes with every change of what is written.
pub const FORMAT: u32 = 8;
/// Beside the protocols of a partition: it is pinned.
const PINNED: u32 = 1 << 8;
const _: () = assert!(ProtocolSet::BITS <= 8, "the pin's bit is beside the set's");

/// Bytes of a primary index for each entry besides its key, about, where nodes are filled in order.
const ENTRY: u64 = 32;

/// Bytes that the parts of a table may take beyond an eighth more than their contents: the last piece of each.
const ROUNDING: u64 = 64 * 1024;

const FREE: u8 = 0;
const DEAD: u8 = 1;
const ROW: u8 = 2;
/// In place of the length of a description, or of a record's number behind the last entry: there is none.
const NONE: u32 = u32::MAX;
/// In place of a record: the outcome of its writer is open. The table ends here and is not loaded.
const UNSETTLED: u8 = 3;

/// Why a stream cannot be read on.
#[derive(Debug)]
pub enum LoadError {
    /// Reading failed, or the stream ended too early.
    Io(std::io::Error),
    /// What was read is wrong.
    Damaged(&'static str),
    /// The file has another format than [`FORMAT`].
    Format(u32),
}

impl From<std::io::Error> for LoadError {
    fn from(e: std::io::Error) -> Self {
        LoadError::Io(e)
    }
}

impl std::fmt::Display for LoadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LoadError::Io(e) => e.fmt(f),
            LoadError::Damaged(why) => write!(f, "the file is damaged: {why}"),
            LoadError::Format(n) => write!(f, "its format is {n}, and this version reads format {FORMAT}"),
        }
    }
}

/// Why one table was not loaded, while the stream goes on behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Skipped {
    /// The region is full.
    OutOfMemory,
    /// It was in the middle of a change when it was saved.
    Unsettled,
    /// The rule on waiting phases refuses its protocols here.
    WaitingPhases,
    /// The caller does not want it.
    NotWanted,
}

/// A table of a stream that was not loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    /// Name of its storage.
    pub key: [u32; 4],
    /// Why.
    pub why: Skipped,
    /// Bytes of the region that it would take, about; rather more than fewer.
    pub need: u64,
}

impl From<OutOfMemory> for Skipped {
    fn from(_: OutOfMemory) -> Self {
        Skipped::OutOfMemory
    }
}

/// Begins a file: format, the platform's name of this shutdown, the clock, the last token.
pub fn write_head<W: Write>(w: &mut Writer<W>, e: &Engine, identity: &[u8]) -> std::io::Result<()> {
    w.put_u32(FORMAT)?;
    w.put_u32(identity.len() as u32)?;
    w.put(identity)?;
    w.put_u64(e.now())?;
    w.put_u64(e.last_token())
}

/// What a file says of itself.
#[derive(Debug, PartialEq, Eq)]
pub struct Head {
    /// The platform's name of the shutdown at which it was written.
    pub identity: Vec<u8>,
    /// The clock then. Of who loads a table, the clock goes on from there at least.
    pub clock: Csn,
    /// The last token then (see [`crate::Txn::token`]); it goes on from there as well.
    pub token: u64,
}

/// Longest name of a shutdown.
const IDENTITY_MAX: usize = 1024;

/// Reads what [`write_head`] wrote. Whether the tables that follow are those of today is for the
/// platform to decide.
pub fn read_head<R: Read>(r: &mut Reader<R>) -> Result<Head, LoadError> {
    let format = r.get_u32()?;
    if format != FORMAT {
        return Err(LoadError::Format(format));
    }
    let len = r.get_u32()? as usize;
    if len > IDENTITY_MAX {
        return Err(LoadError::Damaged("the name of the shutdown is too long"));
    }
    let mut identity = vec![0; len];
    r.get(&mut identity)?;
    Ok(Head { identity, clock: r.get_u64()?, token: r.get_u64()? })
}

/// Writes a table, and what was learned about it (of all tables in `learned`). False if a row's writer had not ended:
/// then nothing of it will be loaded. The caller is pinned.
pub fn write_table<W: Write>(
    w: &mut Writer<W>,
    t: &Table,
    p: &dyn Platform,
    learned: &[Lesson],
) -> std::io::Result<bool> {
    w.put(&[1])?;
    for k in t.key {
        w.put_u32(k)?;
    }
    let map = t.map();
    w.put_u32(map.n)?;
    w.put_u32(map.field)?;
    w.put_u32(map.spec_len)?;
    w.put(map.spec())?;
    map.tuning().pack().into_iter().try_for_each(|word| w.put_u64(word))?;
    for p in map.partitions() {
        // No transaction runs any more: a switch under way is over.
        let v = p.switch.view();
        w.put_u32(v.wanted.bits() | if v.pinned { PINNED } else { 0 })?;
        w.put_u32(p.policy() as u32)?;
    }
    lessons::write(w, t.id, learned)?;
    // An order of the platform's own may not be known where the file is read.
    let primary = t.primary().filter(|i| i.index.order() == 0);
    match primary {
        Some(i) => {
            w.put_u32(i.spec().len() as u32)?;
            w.put(i.spec())?;
            w.put_u32(i.reuse() as u32)?;
        }
        None => w.put_u32(NONE)?,
    }
    w.put_u64(t.len())?;
    for n in 0..t.len() {
        let settled = match t.record(n) {
            Some(r) => write_record(w, r)?,
            None => {
                w.put(&[FREE])?;
                true
            }
        };
        if !settled {
            return Ok(false);
        }
    }
    primary.map_or(Ok(()), |i| write_entries(w, t, i, p))?;
    Ok(true)
}

/// The entries of rows, in the order of their keys: so they fill their nodes when they are loaded.
fn write_entries<W: Write>(w: &mut Writer<W>, t: &Table, i: &'static Primary, p: &dyn Platform) -> std::io::Result<()> {
    let mut all = i.index.scan(Bound::Unbounded, Bound::Unbounded, Direction::Forward);
    while let Some((key, no)) = all.next(p) {
        if t.record(no).is_some_and(has_row) {
            w.put_u32(no as u32)?;
            w.put_u32(key.len() as u32)?;
            w.put(&key)?;
        }
    }
    w.put_u32(NONE)
}

/// Is the record saved with a row?
fn has_row(r: &Record) -> bool {
    // SAFETY: nobody else runs: heads of used records are not freed.
    let head = unsafe { r.head().as_ref() };
    r.state.load(Ordering::Acquire) == REC_USED && head.is_some_and(|v| !v.is_tombstone())
}

fn write_record<W: Write>(w: &mut Writer<W>, r: &Record) -> std::io::Result<bool> {
    let state = r.state.load(Ordering::Acquire);
    let head = r.head();
    if state != REC_USED || head.is_null() {
        w.put(&[if state == REC_FREE { FREE } else { DEAD }])?;
        return Ok(true);
    }
    // SAFETY: nobody else runs: heads of used records are not freed.
    let v = unsafe { &*head };
    if v.csn().is_none() {
        w.put(&[UNSETTLED])?;
        return Ok(false);
    }
    if v.is_tombstone() {
        w.put(&[DEAD])?;
        return Ok(true);
    }
    w.put(&[ROW])?;
    for p in &r.part {
        w.put_u16(p.load(Ordering::Relaxed))?;
    }
    w.put_u32(v.len)?;
    // SAFETY: INV-VERSION: `len` bytes of payload follow the header.
    w.put(unsafe { std::slice::from_raw_parts(Version::payload(head), v.len as usize) })?;
    Ok(true)
}

/// Ends a file.
pub fn write_end<W: Write>(mut w: Writer<W>) -> std::io::Result<W> {
    w.put(&[0])?;
    w.finish()
}

/// A table of a stream: loaded, or left.
pub type Loaded = Result<&'static Table, Left>;

/// Reads the next table; `None` at the end. Of one that is not `wanted`, by its key, nothing is made.
/// The slot is pinned. When all are read, [`crate::index::Primary::offer_guesses`] of each.
pub fn read_table<R: Read>(
    r: &mut Reader<R>,
    e: &Engine,
    slot: SlotId,
    p: &dyn Platform,
    wanted: impl FnOnce([u32; 4]) -> bool,
) -> Result<Option<Loaded>, LoadError> {
    match r.get_u8()? {
        0 => return Ok(None),
        1 => {}
        _ => return Err(LoadError::Damaged("a table does not begin where it should")),
    }
    let mut key = [0; 4];
    for k in &mut key {
        *k = r.get_u32()?;
    }
    let (n, map) = read_map(r, e, slot, wanted(key))?;
    let learned = lessons::read(r)?;
    let table = map.and_then(|m| {
        Table::create(e, slot, key, m).map_err(|x| {
            // SAFETY: in no table.
            unsafe { e.region.free(slot as usize, m.cast()) };
            x.into()
        })
    });
    let need = (size_of::<Table>() + PartitionMap::size(n)) as u64;
    let mut building = Building { e, slot, p, n, table, need, has_entries: false };
    building.primary(r)?;
    let records = r.get_u64()?;
    let mut settled = true;
    for _ in 0..records {
        settled = building.record(r)?;
        if !settled {
            break;
        }
    }
    if settled && building.has_entries {
        building.entries(r)?;
    }
    let need = building.need + building.need / 8 + ROUNDING;
    let table = building.finish().map_err(|why| Left { key, why, need });
    if let Ok(t) = table {
        learned.iter().for_each(|l| e.shared.learned.write(&Lesson { table: t.id, ..*l }));
    }
    Ok(Some(table))
}

/// Number of partitions, and the map.
fn read_map<R: Read>(
    r: &mut Reader<R>,
    e: &Engine,
    slot: SlotId,
    wanted: bool,
) -> Result<(u32, Result<NonNull<PartitionMap>, Skipped>), LoadError> {
    let (n, field, spec_len) = (r.get_u32()?, r.get_u32()?, r.get_u32()? as usize);
    if n == 0 || n > u16::MAX as u32 || field > 1 || spec_len > SPEC_MAX {
        return Err(LoadError::Damaged("a partition map is impossible"));
    }
    let mut spec = vec![0; spec_len];
    r.get(&mut spec)?;
    let mut tuning = [0; TUNING_WORDS];
    for word in &mut tuning {
        *word = r.get_u64()?;
    }
    let mut rules = Vec::with_capacity(n as usize);
    for _ in 0..n {
        let (protocols, policy) = (r.get_u32()?, r.get_u32()?);
        let (pinned, protocols) = (protocols & PINNED != 0, protocols & !PINNED);
        if protocols == 0 || protocols & !ProtocolSet::ALL.bits() != 0 {
            return Err(LoadError::Damaged("a partition has no known protocol"));
        }
        rules.push((ProtocolSet::from_bits(protocols), pinned, Policy::from_bits(policy)));
    }
    if !wanted {
        return Ok((n, Err(Skipped::NotWanted)));
    }
    if rules.iter().any(|&(set, _, policy)| e.shared.protocols.add(set, policy).is_err()) {
        return Ok((n, Err(Skipped::WaitingPhases)));
    }
    let mut map = Table::new_map(e, slot, n, field, &spec, rules[0].0, rules[0].2);
    if let Ok(m) = &mut map {
        // SAFETY: ours alone.
        unsafe { m.as_mut() }.set_tuning(&Tuning::unpack(&tuning));
        // SAFETY: as above.
        for (p, (protocols, pinned, policy)) in unsafe { m.as_ref() }.partitions().iter().zip(rules) {
            p.init(protocols, policy);
            p.switch.put(protocols, Some(pinned));
        }
    }
    Ok((n, map.map_err(|_| Skipped::OutOfMemory)))
}

/// A table that is being loaded; thrown away unless it is finished.
struct Building<'a> {
    e: &'a Engine,
    slot: SlotId,
    p: &'a dyn Platform,
    n: u32,
    table: Result<&'static Table, Skipped>,
    /// Bytes that it takes, or would take, without what rounding adds.
    need: u64,
    /// Do the primary index's entries follow the records?
    has_entries: bool,
}

impl Building<'_> {
    /// Reads what its primary index is, if it has one.
    fn primary<R: Read>(&mut self, r: &mut Reader<R>) -> Result<(), LoadError> {
        let len = r.get_u32()?;
        if len == NONE {
            return Ok(());
        }
        if len as usize > PRIMARY_SPEC_MAX {
            return Err(LoadError::Damaged("the description of a primary index is impossible"));
        }
        let mut spec = vec![0; len as usize];
        r.get(&mut spec)?;
        let reuse = match r.get_u32()? {
            0 => Reuse::AtOnce,
            1 => Reuse::Vacuum,
            _ => return Err(LoadError::Damaged("a primary index is of no known kind")),
        };
        self.has_entries = true;
        if let Ok(t) = self.table {
            match Primary::create(self.e, self.slot, 0, reuse, &spec) {
                Ok(primary) => t.set_primary(primary),
                Err(OutOfMemory) => self.give_up(Skipped::OutOfMemory),
            }
        }
        Ok(())
    }

    /// Reads the entries of the primary index. One that lacks a row is none: the row would not be found by its key.
    fn entries<R: Read>(&mut self, r: &mut Reader<R>) -> Result<(), LoadError> {
        let mut n = 0;
        let mut key = Vec::new();
        loop {
            let no = r.get_u32()?;
            if no == NONE {
                break;
            }
            let len = r.get_u32()? as usize;
            self.need += ENTRY + len as u64;
            let Some((t, primary)) = self.table.ok().and_then(|t| Some((t, t.primary()?))) else {
                r.skip(len)?;
                continue;
            };
            if !t.record(no as u64).is_some_and(has_row) {
                return Err(LoadError::Damaged("an entry of a primary index has no row"));
            }
            key.resize(len, 0);
            r.get(&mut key)?;
            match primary.load(self.e, self.slot, self.p, no as u64, &key) {
                Ok(()) => n += 1,
                Err(_) => self.give_up(Skipped::OutOfMemory),
            }
        }
        if let Some(t) = self.table.ok().filter(|t| t.rows() != n) {
            // SAFETY: nobody else knows the table.
            unsafe { t.drop_primary(self.e, self.slot) };
        }
        Ok(())
    }

    /// Gives up: the records that follow are read and forgotten.
    fn give_up(&mut self, why: Skipped) {
        if let Ok(t) = std::mem::replace(&mut self.table, Err(why)) {
            // SAFETY: nobody else knows the table.
            unsafe { t.destroy(self.e, self.slot) };
        }
    }

    /// Reads a record. False: no more of them follow.
    fn record<R: Read>(&mut self, r: &mut Reader<R>) -> Result<bool, LoadError> {
        let tag = r.get_u8()?;
        self.need += size_of::<Record>() as u64;
        let made = match (tag, self.table) {
            (FREE | DEAD, Ok(t)) => t.load_rowless(self.e, self.slot, tag == DEAD),
            (FREE | DEAD, Err(_)) => Ok(()),
            (ROW, _) => self.row(r)?,
            (UNSETTLED, _) => {
                self.give_up(Skipped::Unsettled);
                return Ok(false);
            }
            _ => return Err(LoadError::Damaged("a record is of no known kind")),
        };
        if made.is_err() {
            self.give_up(Skipped::OutOfMemory);
        }
        Ok(true)
    }

    fn row<R: Read>(&mut self, r: &mut Reader<R>) -> Result<Result<(), OutOfMemory>, LoadError> {
        let part = [r.get_u16()?, r.get_u16()?];
        let len = r.get_u32()?;
        self.need += (VERSION_HEADER + len as usize) as u64;
        let Ok(t) = self.table else {
            r.skip(len as usize)?;
            return Ok(Ok(()));
        };
        if part[t.map().field as usize] as u32 >= self.n {
            return Err(LoadError::Damaged("a row is in a partition that does not exist"));
        }
        match t.load_row(self.e, self.slot, part, len) {
            Ok(payload) => {
                // SAFETY: `load_row` has allocated `len` bytes there, which nobody else sees.
                r.get(unsafe { std::slice::from_raw_parts_mut(payload, len as usize) })?;
                Ok(Ok(()))
            }
            Err(x) => {
                r.skip(len as usize)?;
                Ok(Err(x))
            }
        }
    }

    fn finish(mut self) -> Result<&'static Table, Skipped> {
        if let Ok(t) = self.table {
            t.order_free(Csn::MAX);
        }
        std::mem::replace(&mut self.table, Err(Skipped::Unsettled))
    }
}

impl Drop for Building<'_> {
    fn drop(&mut self) {
        self.give_up(Skipped::Unsettled);
    }
}
