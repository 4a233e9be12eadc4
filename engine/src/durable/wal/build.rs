//! Making records.

use super::{put_item_head, Head, ImageKind, Op, Round, Stable, FORMAT, HEAD, ITEM, REPLY, TABLES_MAX, WORD};
use crate::durable::bytes::put_storage;
use crate::durable::entry::{Fragment, Kind, PIECE};
use crate::durable::Storage;
use std::collections::TryReserveError;

/// The bytes from which on a record is full: 1 MiB.
pub const FULL: usize = 1 << 20;
/// The most that one more item adds.
const ITEM_MAX: usize = ITEM + 8 + PIECE;
/// Where the number of items stands.
const NITEMS: usize = 16;

/// Makes the records of one commit after the other in one buffer.
///
/// A record is full at 1 MiB. A transaction that needs more than one record must have a transaction
/// id, by which the commit log decides about all of them ([`Builder::needs_xid`]).
#[derive(Default)]
pub struct Builder {
    buffer: Vec<u8>,
    head: Option<Head>,
    tables: usize,
    nitems: u32,
}

impl Builder {
    /// A builder without memory.
    pub fn new() -> Builder {
        Builder::default()
    }
    /// Makes room for records with `bytes` of items, as [`Builder::bytes_of`] counts them. No later
    /// call allocates.
    pub fn reserve(&mut self, bytes: usize) -> Result<(), TryReserveError> {
        let items = bytes.min(FULL + ITEM_MAX);
        self.buffer.clear();
        self.buffer.try_reserve(HEAD + 8 + 12 * TABLES_MAX + items)
    }
    /// The bytes of its memory.
    pub fn capacity(&self) -> usize {
        self.buffer.capacity()
    }
    /// The bytes of the items of a row or tombstone.
    pub fn bytes_of(payload: usize) -> usize {
        let pieces = payload.div_ceil(PIECE).max(1);
        payload + pieces * if pieces > 1 { ITEM + 8 } else { ITEM }
    }
    /// Does a transaction with so many bytes of items in so many tables need a transaction id?
    pub fn needs_xid(bytes: usize, tables: usize) -> bool {
        bytes > FULL || tables > TABLES_MAX
    }
    /// Begins a record. The tables are 1 to [`TABLES_MAX`].
    #[inline]
    pub fn begin(&mut self, head: Head, tables: impl ExactSizeIterator<Item = Storage>) {
        let count = tables.len();
        assert!((1..=TABLES_MAX).contains(&count), "a record names 1 to {TABLES_MAX} tables");
        debug_assert_eq!(head.check(), Ok(()));
        let word = head.csn | if head.reply { REPLY } else { 0 } | (FORMAT as u64) << (WORD + 8);
        let token = head.token | (count as u64) << WORD;
        // Then the number of items.
        let mut bytes = [0; HEAD];
        bytes[..8].copy_from_slice(&word.to_le_bytes());
        bytes[8..16].copy_from_slice(&token.to_le_bytes());
        self.buffer.clear();
        self.buffer.extend_from_slice(&bytes);
        if let Some(xid) = head.xid {
            self.buffer.extend_from_slice(&xid.to_le_bytes());
        }
        tables.for_each(|table| put_storage(&mut self.buffer, table));
        (self.head, self.tables, self.nitems) = (Some(head), count, 0);
    }
    /// Adds what an entry of this kind says. The payload is given in two parts, and cut into pieces
    /// if it is above [`PIECE`].
    ///
    /// If the transaction has an id, `full` gets each record that is full, and the next one begins
    /// with the same head and tables.
    #[inline]
    pub fn add(&mut self, table: u8, kind: Kind, record: u32, payload: [&[u8]; 2], mut full: impl FnMut(Op, &[u8])) {
        debug_assert!((table as usize) < self.tables && kind != Kind::High);
        let len = payload[0].len() + payload[1].len();
        if len > PIECE {
            self.add_pieces(table, kind, record, payload, &mut full);
            return;
        }
        self.pass_if_full(&mut full);
        put_item_head(&mut self.buffer, table, kind, record, len, None);
        payload.iter().for_each(|part| self.buffer.extend_from_slice(part));
        self.nitems += 1;
    }
    #[cold]
    fn add_pieces(&mut self, table: u8, kind: Kind, record: u32, [a, b]: [&[u8]; 2], full: &mut dyn FnMut(Op, &[u8])) {
        let total = a.len() + b.len();
        for at in (0..total).step_by(PIECE) {
            self.pass_if_full(full);
            let end = total.min(at + PIECE);
            let fragment = Fragment { at: at as u32, total: total as u32 };
            put_item_head(&mut self.buffer, table, kind, record, end - at, Some(fragment));
            self.buffer.extend_from_slice(&a[at.min(a.len())..end.min(a.len())]);
            self.buffer.extend_from_slice(&b[at.saturating_sub(a.len())..end.saturating_sub(a.len())]);
            self.nitems += 1;
        }
    }
    #[inline]
    fn pass_if_full(&mut self, full: &mut dyn FnMut(Op, &[u8])) {
        if self.buffer.len() >= FULL && self.head.is_some_and(|head| head.xid.is_some()) {
            let (op, data) = self.end();
            full(op, data);
            self.buffer.truncate(HEAD + 8 + 12 * self.tables);
            self.nitems = 0;
        }
    }
    /// Ends the record. Nothing was begun: it is empty.
    pub fn end(&mut self) -> (Op, &[u8]) {
        if let Some(nitems) = self.buffer.get_mut(NITEMS..NITEMS + 4) {
            nitems.copy_from_slice(&self.nitems.to_le_bytes());
        }
        let op = if self.head.is_some_and(|h| h.xid.is_some()) { Op::XCommit } else { Op::Commit };
        (op, &self.buffer)
    }
}

/// The main data of [`Op::Reserve`].
pub fn reserve(storage: Storage, upto: u32) -> [u8; 16] {
    let mut to = [0; 16];
    let numbers = [storage.tablespace, storage.database, storage.number, upto];
    for (to, number) in to.chunks_exact_mut(4).zip(numbers) {
        to.copy_from_slice(&number.to_le_bytes());
    }
    to
}

/// The main data of [`Op::Image`].
pub fn image(kind: ImageKind, entries: u32) -> [u8; 8] {
    let [a, b, c, d] = entries.to_le_bytes();
    [kind as u8, 0, 0, 0, a, b, c, d]
}

impl Round {
    /// The main data of [`Op::Round`].
    pub fn encode(&self) -> [u8; 40] {
        let mut to = [0; 40];
        for (to, number) in to.chunks_exact_mut(8).zip([self.redo, self.clock, self.token, self.time as u64]) {
            to.copy_from_slice(&number.to_le_bytes());
        }
        to[32] = self.kind as u8;
        to
    }
}

impl Stable<'_> {
    /// The main data of [`Op::Stable`], but for `open`, which follows.
    pub fn encode(&self) -> [u8; 24] {
        let mut to = [0; 24];
        for (to, number) in to.chunks_exact_mut(8).zip([self.life, self.csn, self.horizon]) {
            to.copy_from_slice(&number.to_le_bytes());
        }
        to
    }
}
