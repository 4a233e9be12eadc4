//! Little-endian numbers in bytes that are not trusted (INV-BYTES).

use super::{Malformed, Storage};

/// The rest of a sequence of bytes.
#[derive(Clone, Copy)]
pub(super) struct Bytes<'a>(pub &'a [u8]);

const SHORT: Malformed = Malformed("it ends too early");

impl<'a> Bytes<'a> {
    /// The next bytes.
    pub fn take(&mut self, n: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(n).ok_or(SHORT)?;
        self.0 = rest;
        Ok(taken)
    }
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self.0.split_first_chunk::<N>().ok_or(SHORT)?;
        self.0 = rest;
        Ok(*taken)
    }
    /// The next number.
    pub fn u8(&mut self) -> Result<u8, Malformed> {
        self.array().map(u8::from_le_bytes)
    }
    /// The next number.
    pub fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_le_bytes)
    }
    /// The next number.
    pub fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }
    /// The next number.
    pub fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }
    /// The next storage.
    pub fn storage(&mut self) -> Result<Storage, Malformed> {
        Ok(Storage { tablespace: self.u32()?, database: self.u32()?, number: self.u32()? })
    }
    /// Nothing may be left.
    pub fn end(self) -> Result<(), Malformed> {
        super::require(self.0.is_empty(), "bytes follow its end")
    }
}

/// The number at an offset of a page. The caller knows that it is inside.
pub(super) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// Appends a storage.
#[inline]
pub(super) fn put_storage(to: &mut Vec<u8>, storage: Storage) {
    let [a, b, c, d] = storage.tablespace.to_le_bytes();
    let [e, f, g, h] = storage.database.to_le_bytes();
    let [i, j, k, l] = storage.number.to_le_bytes();
    to.extend_from_slice(&[a, b, c, d, e, f, g, h, i, j, k, l]);
}
