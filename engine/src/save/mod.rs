//! Tables as a stream of bytes, which survives a clean shutdown.
//!
//! A table is loaded as a whole or not at all. Saving and loading exclude all other users. One that
//! cannot be right is left out, and those that follow it are read.
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
use crate::record::{Record, Version, INDEXES, REC_FREE, REC_USED, VERSION_HEADER};
use crate::shared::Engine;
use crate::table::Table;
use std::io::{Read, Write};
use std::ops::Bound;
use std::ptr::NonNull;

/// Changes whenever the written format, or what its reader must know, changes.
pub const FORMAT: u32 = 10;
/// This one and those from it on are read as well. The writers of 9 did not know of several indexes
/// in a table. Those of 8 did not know of tables whose PRIMARY KEY has no other index than the
/// primary index: they must not load such a table's rows.
pub const BEFORE: u32 = 8;
/// Set beside the protocols of a partition that is pinned.
const PINNED: u32 = 1 << 8;
const _: () = assert!(ProtocolSet::BITS <= 8, "the pin's bit is beside the set's");

/// The approximate size of an entry of an index without its key, if nodes are filled in
/// order.
const ENTRY: u64 = 32;

/// The bytes by which the parts of a table may exceed their contents and an eighth of them: the
/// last piece of each part.
const ROUNDING: u64 = 64 * 1024;

const FREE: u8 = 0;
const DEAD: u8 = 1;
const ROW: u8 = 2;
/// Stands for a missing description in place of its length, and ends the entries in place of a
/// record's number.
const NONE: u32 = u32::MAX;
/// Stands in front of the number and the description of an index beside the primary index, in place
/// of the length of that one's description.
const BESIDE: u32 = u32::MAX - 1;
/// Stands in place of a record whose writer's outcome is open. The table ends here and is not
/// loaded.
const UNSETTLED: u8 = 3;

/// The reason why a stream cannot be read on.
#[derive(Debug)]
pub enum LoadError {
    /// Reading failed, or the stream ended too early.
    Io(std::io::Error),
    /// The content is wrong.
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
            LoadError::Format(n) => {
                write!(f, "its format is {n}, and this version reads the formats {BEFORE} to {FORMAT}")
            }
        }
    }
}

/// The reason why one table was not loaded, although the stream goes on behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Skipped {
    /// The region is full.
    OutOfMemory,
    /// It was in the middle of a change when it was saved.
    Unsettled,
    /// The rule on waiting phases refuses its protocols in this instance.
    WaitingPhases,
    /// The caller does not want it.
    NotWanted,
    /// What it says of itself cannot be: this, although no byte of the file has changed.
    Damaged(&'static str),
}

/// A table of the stream that was not loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    /// The identifier of its storage.
    pub key: [u32; 4],
    /// The reason.
    pub why: Skipped,
    /// The approximate size that it would take in the region, in bytes. It is rather too large than
    /// too small.
    pub need: u64,
}

impl From<OutOfMemory> for Skipped {
    fn from(_: OutOfMemory) -> Self {
        Skipped::OutOfMemory
    }
}

/// Begins a file: the format, the platform's identifier of this shutdown, the clock, and the last
/// token.
pub fn write_head<W: Write>(w: &mut Writer<W>, e: &Engine, identity: &[u8]) -> std::io::Result<()> {
    w.put_u32(FORMAT)?;
    w.put_u32(identity.len() as u32)?;
    w.put(identity)?;
    w.put_u64(e.now())?;
    w.put_u64(e.last_token())
}

/// The head of a file.
#[derive(Debug, PartialEq, Eq)]
pub struct Head {
    /// The platform's identifier of the shutdown at which the file was written.
    pub identity: Vec<u8>,
    /// The clock at that time. An instance that loads a table continues from this value at least.
    pub clock: Csn,
    /// The last token at that time (see [`crate::Txn::token`]). Tokens continue from there too.
    pub token: u64,
}

/// The longest identifier of a shutdown.
const IDENTITY_MAX: usize = 1024;

/// Reads the head that [`write_head`] wrote. The platform decides whether the tables that follow
/// are current.
pub fn read_head<R: Read>(r: &mut Reader<R>) -> Result<Head, LoadError> {
    let format = r.get_u32()?;
    if !(BEFORE..=FORMAT).contains(&format) {
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

/// Writes a table, and those of the `learned` lessons that are about it. Returns false if a writer
/// of a row had not ended: then the table will not be loaded. The caller is pinned.
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
        // No transaction runs any more, so a switch under way is over.
        let v = p.switch.view();
        w.put_u32(v.wanted.bits() | if v.pinned { PINNED } else { 0 })?;
        w.put_u32(p.policy() as u32)?;
    }
    lessons::write(w, t.id, learned)?;
    for (nth, i) in saved_indexes(t) {
        if nth > 0 {
            w.put_u32(BESIDE)?;
            w.put_u32(nth as u32)?;
        }
        w.put_u32(i.spec().len() as u32)?;
        w.put(i.spec())?;
        w.put_u32(i.reuse() as u32)?;
    }
    if !saved_indexes(t).any(|(nth, _)| nth == 0) {
        w.put_u32(NONE)?;
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
    saved_indexes(t).try_for_each(|(_, i)| write_entries(w, t, i, p))?;
    Ok(true)
}

/// The indexes that are saved: the primary one comes last. The platform's order of keys may not be
/// known where the file is read.
fn saved_indexes(t: &Table) -> impl Iterator<Item = (usize, &'static Primary)> + use<'_> {
    (1..INDEXES).chain([0]).filter_map(move |nth| Some((nth, t.unique(nth).filter(|i| i.index.order() == 0)?)))
}

/// Writes the entries of rows in the order of their keys, so that they fill their nodes when they
/// are loaded.
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
    // SAFETY: INV-RETIRE: saving excludes all others, so heads of used records are not freed.
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
    // SAFETY: INV-RETIRE: saving excludes all others, so heads of used records are not freed.
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

/// A table of a stream: loaded, or the reason why it was not.
pub type Loaded = Result<&'static Table, Left>;

/// Reads the next table. `None` at the end. Skips a table whose key is not `wanted`. The slot is
/// pinned. When all tables are read, the caller calls [`crate::index::Primary::offer_hints`] for
/// each.
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
            // SAFETY: INV-MAP: the map belongs to no table.
            unsafe { e.region.free(slot as usize, m.cast()) };
            x.into()
        })
    });
    let need = (size_of::<Table>() + PartitionMap::size(n)) as u64;
    let mut building = Building { e, slot, p, n, table, need, indexes: Vec::new() };
    building.indexes(r)?;
    let records = r.get_u64()?;
    let mut settled = true;
    for _ in 0..records {
        settled = building.record(r)?;
        if !settled {
            break;
        }
    }
    for nth in std::mem::take(&mut building.indexes).into_iter().filter(|_| settled) {
        building.entries(r, nth)?;
    }
    let need = building.need + building.need / 8 + ROUNDING;
    let table = building.finish().map_err(|why| Left { key, why, need });
    if let Ok(t) = table {
        learned.iter().for_each(|l| e.shared.learned.write(&Lesson { table: t.id, ..*l }));
    }
    Ok(Some(table))
}

/// Reads the number of partitions and the map.
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
    let (mut rules, mut is_known) = (Vec::with_capacity(n as usize), true);
    for _ in 0..n {
        let (protocols, policy) = (r.get_u32()?, r.get_u32()?);
        let (pinned, protocols) = (protocols & PINNED != 0, protocols & !PINNED);
        if protocols == 0 || protocols & !ProtocolSet::ALL.bits() != 0 {
            is_known = false;
            continue;
        }
        rules.push((ProtocolSet::from_bits(protocols), pinned, Policy::from_bits(policy)));
    }
    if !wanted {
        return Ok((n, Err(Skipped::NotWanted)));
    }
    if !is_known {
        return Ok((n, Err(Skipped::Damaged("a partition has no known protocol"))));
    }
    if rules.iter().any(|&(set, _, policy)| e.shared.protocols.add(set, policy).is_err()) {
        return Ok((n, Err(Skipped::WaitingPhases)));
    }
    let mut map = Table::new_map(e, slot, n, field, &spec, rules[0].0, rules[0].2);
    if let Ok(m) = &mut map {
        // SAFETY: INV-MAP: the map is not published yet.
        unsafe { m.as_mut() }.set_tuning(&Tuning::unpack(&tuning));
        // SAFETY: INV-MAP: as above.
        for (p, (protocols, pinned, policy)) in unsafe { m.as_ref() }.partitions().iter().zip(rules) {
            p.init(protocols, policy);
            p.switch.put(protocols, Some(pinned));
        }
    }
    Ok((n, map.map_err(|_| Skipped::OutOfMemory)))
}

/// A table that is being loaded. Dropping it before `finish` frees the table.
struct Building<'a> {
    e: &'a Engine,
    slot: SlotId,
    p: &'a dyn Platform,
    n: u32,
    table: Result<&'static Table, Skipped>,
    /// The bytes that it takes, or would take, without rounding.
    need: u64,
    /// The numbers of the indexes whose entries follow the records, in this order.
    indexes: Vec<usize>,
}

impl Building<'_> {
    /// Reads the descriptions of the indexes. Those of others stand in front of that of the primary
    /// index.
    fn indexes<R: Read>(&mut self, r: &mut Reader<R>) -> Result<(), LoadError> {
        loop {
            match r.get_u32()? {
                NONE => return Ok(()),
                BESIDE => {
                    let nth = r.get_u32()? as usize;
                    if !(1..INDEXES).contains(&nth) || self.indexes.contains(&nth) {
                        self.give_up(Skipped::Damaged("an index has an impossible number"));
                    }
                    let len = r.get_u32()?;
                    self.index(r, nth, len)?;
                }
                len => return self.index(r, 0, len),
            }
        }
    }

    fn index<R: Read>(&mut self, r: &mut Reader<R>, nth: usize, len: u32) -> Result<(), LoadError> {
        if len as usize > PRIMARY_SPEC_MAX {
            return Err(LoadError::Damaged("the description of an index is impossible"));
        }
        let mut spec = vec![0; len as usize];
        r.get(&mut spec)?;
        let reuse = match r.get_u32()? {
            0 => Reuse::AtOnce,
            1 => Reuse::Vacuum,
            _ => return Err(LoadError::Damaged("an index is of no known kind")),
        };
        self.indexes.push(nth);
        if let Ok(t) = self.table {
            match Primary::create(self.e, self.slot, 0, reuse, &spec) {
                Ok(index) => t.set_unique(nth, index),
                Err(OutOfMemory) => self.give_up(Skipped::OutOfMemory),
            }
        }
        Ok(())
    }

    /// Reads the entries of an index. If a row has no entry, the index is dropped, because the row
    /// would not be found by its key.
    fn entries<R: Read>(&mut self, r: &mut Reader<R>, nth: usize) -> Result<(), LoadError> {
        let mut n = 0;
        let mut key = Vec::new();
        loop {
            let no = r.get_u32()?;
            if no == NONE {
                break;
            }
            let len = r.get_u32()? as usize;
            self.need += ENTRY + len as u64;
            let Some((t, index)) = self.table.ok().and_then(|t| Some((t, t.unique(nth)?))) else {
                r.skip(len)?;
                continue;
            };
            if !t.record(no as u64).is_some_and(has_row) {
                self.give_up(Skipped::Damaged("an entry of an index has no row"));
                r.skip(len)?;
                continue;
            }
            key.resize(len, 0);
            r.get(&mut key)?;
            match index.load(self.e, self.slot, self.p, no as u64, &key) {
                Ok(()) => n += 1,
                Err(_) => self.give_up(Skipped::OutOfMemory),
            }
        }
        if let Some(t) = self.table.ok().filter(|t| t.rows() != n) {
            // SAFETY: INV-TABLE: the table is not published yet.
            unsafe { t.drop_unique(self.e, self.slot, nth) };
        }
        Ok(())
    }

    /// Gives up the table. The records that follow are read and ignored.
    fn give_up(&mut self, why: Skipped) {
        if let Ok(t) = std::mem::replace(&mut self.table, Err(why)) {
            // SAFETY: INV-TABLE: the table is not published yet.
            unsafe { t.destroy(self.e, self.slot) };
        }
    }

    /// Reads a record (INV-SAVE). Returns false if no more records follow.
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
            self.give_up(Skipped::Damaged("a row is in a partition that does not exist"));
            r.skip(len as usize)?;
            return Ok(Ok(()));
        }
        match t.load_row(self.e, self.slot, part, len) {
            Ok(payload) => {
                // SAFETY: INV-VERSION: `load_row` has allocated `len` bytes there, not published
                // yet.
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
