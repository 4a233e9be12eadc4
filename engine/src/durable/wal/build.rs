//! Making records.

use super::{put_item, Head, ImageKind, Op, Round, FORMAT, HEAD, ITEM, REPLY, TABLES_MAX, WORD};
use crate::durable::bytes::put_storage;
use crate::durable::entry::{Entry, Kind, PIECE};
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
    pub fn begin(&mut self, head: Head, tables: &[Storage]) {
        assert!((1..=TABLES_MAX).contains(&tables.len()), "a record names 1 to {TABLES_MAX} tables");
        debug_assert_eq!(head.check(), Ok(()));
        let token = head.token | (tables.len() as u64) << WORD;
        self.buffer.clear();
        let flags = if head.reply { REPLY } else { 0 };
        self.buffer.extend_from_slice(&(head.csn | flags | (FORMAT as u64) << (WORD + 8)).to_le_bytes());
        self.buffer.extend_from_slice(&token.to_le_bytes());
        self.buffer.extend_from_slice(&[0; 4]); // the number of items
        if let Some(xid) = head.xid {
            self.buffer.extend_from_slice(&xid.to_le_bytes());
        }
        tables.iter().for_each(|table| put_storage(&mut self.buffer, *table));
        (self.head, self.tables, self.nitems) = (Some(head), tables.len(), 0);
    }
    /// Adds what an entry of this kind says. A payload above [`PIECE`] is added in pieces.
    ///
    /// If the transaction has an id, `full` gets each record that is full, and the next one begins
    /// with the same head and tables.
    pub fn add(&mut self, table: u8, kind: Kind, record: u32, payload: &[u8], mut full: impl FnMut(Op, &[u8])) {
        debug_assert!((table as usize) < self.tables && kind != Kind::High);
        let Some(head) = self.head else { return };
        for piece in (Entry { csn: head.csn, kind, record, pending: head.xid, fragment: None, payload }).pieces() {
            if self.buffer.len() >= FULL && head.xid.is_some() {
                let (op, data) = self.end();
                full(op, data);
                self.buffer.truncate(HEAD + 8 + 12 * self.tables);
                self.nitems = 0;
            }
            put_item(&mut self.buffer, table, &piece);
            self.nitems += 1;
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
