//! The first columns of a row type, whose places are the same in all rows without NULLs: a scan
//! takes them apart itself, as many as the statement has looked at before.
//!
//! **INV-PREFIX**: What is put into a slot ahead is what `slot_getsomeattrs` would put there: the
//! values of the first columns, how many there are, and where the next column begins.

use crate::pg::compat::attribute;
use pgrx::pg_sys;

/// At most so many columns are taken apart ahead.
const MOST: usize = 8;
const WORD: usize = size_of::<i64>();
const _: () = assert!(cfg!(target_endian = "little"));

/// Where a column ends in a tuple's data, and how many bits of the word that ends there are not
/// its. A tuple's header is longer than a word, so the word lies within the tuple.
#[derive(Clone, Copy)]
#[repr(C)]
struct Place {
    end: u16,
    shift: u16,
}

/// See the module. All-zero is a value: of no row type.
#[repr(C)]
pub struct Prefix {
    desc: pg_sys::TupleDesc,
    places: [Place; MOST],
    /// How many columns are known.
    known: u16,
    /// How many of them the statement looks at, as far as is known.
    wanted: u16,
}

impl Prefix {
    /// Learns the row type of a slot, if it is another one.
    ///
    /// # Safety
    /// A valid slot.
    #[inline]
    pub unsafe fn fit(&mut self, slot: *mut pg_sys::TupleTableSlot) {
        // SAFETY: `slot` is valid (contract of this function).
        unsafe {
            if self.desc != (*slot).tts_tupleDescriptor {
                self.learn((*slot).tts_tupleDescriptor);
            }
        }
    }

    #[cold]
    unsafe fn learn(&mut self, desc: pg_sys::TupleDesc) {
        // SAFETY: `desc` is the valid descriptor of a slot: contract of `fit`.
        unsafe {
            (self.desc, self.known, self.wanted) = (desc, 0, 0);
            let mut end = 0usize;
            for (i, place) in self.places.iter_mut().enumerate().take((*desc).natts as usize) {
                let att = attribute(desc, i);
                let len = att.attlen as usize;
                // Such values are aligned to their length (pg_type).
                let aligned = match att.attalign as u8 {
                    pg_sys::TYPALIGN_CHAR => len == 1,
                    pg_sys::TYPALIGN_SHORT => len == 2,
                    pg_sys::TYPALIGN_INT => len == 4,
                    _ => len == 8,
                };
                if !att.attbyval || !aligned {
                    break;
                }
                end = end.next_multiple_of(len) + len;
                *place = Place { end: end as u16, shift: ((WORD - len) * 8) as u16 };
                self.known += 1;
            }
        }
    }

    /// The length of a column (from 0) whose place is known.
    pub fn length_of(&self, column: usize) -> Option<i16> {
        let place = self.places.get(column).filter(|_| column < self.known as usize)?;
        Some((WORD - place.shift as usize / 8) as i16)
    }

    /// The next row goes into the slot: as many columns will be wanted as of the row before.
    ///
    /// # Safety
    /// A valid slot, which `fit` has looked at.
    #[inline]
    pub unsafe fn note(&mut self, slot: *mut pg_sys::TupleTableSlot) {
        // SAFETY: `slot` is valid (contract of this function).
        let used = unsafe { (*slot).tts_nvalid } as u16;
        if used > self.wanted {
            self.wanted = used.min(self.known);
        }
    }

    /// Has a tuple so many columns, and no NULL? Columns that were added later are not in it.
    ///
    /// # Safety
    /// A tuple.
    #[inline(always)]
    pub unsafe fn has(td: *const pg_sys::HeapTupleHeaderData, columns: u16) -> bool {
        // SAFETY: `td` is a tuple (contract of this function).
        let (natts, bits) = unsafe { ((*td).t_infomask2, (*td).t_infomask) };
        natts & pg_sys::HEAP_NATTS_MASK as u16 >= columns && bits & pg_sys::HEAP_HASNULL as u16 == 0
    }

    /// The value of a column (from 0), as fetch_att gives it.
    ///
    /// # Safety
    /// A tuple of the row type, which has the column and no NULL. The column's place is known.
    #[inline(always)]
    pub unsafe fn value(&self, td: *const pg_sys::HeapTupleHeaderData, column: usize) -> i64 {
        // SAFETY: the tuple has the column at its place, where heap_fill_tuple has put it (contract
        // of this function). The word that ends there begins in the tuple's header or behind it.
        unsafe { Self::word(Self::data(td), self.places[column % MOST]) }
    }

    #[inline(always)]
    unsafe fn data(td: *const pg_sys::HeapTupleHeaderData) -> *const u8 {
        // SAFETY: `td` is a tuple: contract of the callers.
        unsafe { td.cast::<u8>().add((*td).t_hoff as usize) }
    }

    #[inline(always)]
    unsafe fn word(data: *const u8, place: Place) -> i64 {
        // SAFETY: as for `value`. In front of the data is the header, which is longer than a word.
        unsafe { data.add(place.end as usize).sub(WORD).cast::<i64>().read_unaligned() >> (place.shift & 63) }
    }

    /// Takes the first columns of the row in a slot apart (INV-PREFIX).
    ///
    /// # Safety
    /// A heap tuple slot which `fit` has looked at. It holds this tuple of its row type, of which
    /// no column was taken apart yet.
    #[inline(always)]
    pub unsafe fn take_apart(&self, slot: *mut pg_sys::TupleTableSlot, td: *const pg_sys::HeapTupleHeaderData) {
        // SAFETY: the slot has an entry for each column of its row type, to which the tuple belongs
        // (contract of this function).
        unsafe {
            let n = self.wanted;
            if n == 0 || !Self::has(td, n) {
                return;
            }
            let (values, nulls, data) = ((*slot).tts_values, (*slot).tts_isnull, Self::data(td));
            let mut end = 0;
            for (i, place) in self.places.iter().enumerate().take(n as usize) {
                *values.add(i) = pg_sys::Datum::from(Self::word(data, *place) as usize);
                *nulls.add(i) = false;
                end = place.end;
            }
            (*slot).tts_nvalid = n as i16;
            (*slot).tts_flags &= !(pg_sys::TTS_FLAG_SLOW as u16);
            (*slot.cast::<pg_sys::HeapTupleTableSlot>()).off = end as u32;
        }
    }
}
