//! The best entry of each record, in 12 bytes a record.

use super::Fork;
use crate::csn::{Csn, CSN_MAX};
use crate::durable::entry::{Kind, ALIGN, ROW_MAX};
use crate::primitive::prefetch;
use std::collections::TryReserveError;

/// Where an entry stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The fork.
    pub fork: Fork,
    /// The block in it.
    pub block: u32,
    /// The offset in the page.
    pub offset: u16,
}

const OFFSET_BITS: u32 = 10;
const BLOCK_BITS: u32 = 32;
const PLACE_BITS: u32 = OFFSET_BITS + BLOCK_BITS + 1;
const KIND_AT: u32 = 45;
const SETTLED_AT: u32 = 47;
const CSN_AT: u32 = 48;
const _: () = assert!(crate::durable::PAGE / ALIGN <= 1 << OFFSET_BITS && PLACE_BITS <= KIND_AT);
const _: () = assert!(CSN_MAX < 1 << 48 && ROW_MAX < 1 << PLACE_BITS);

impl Place {
    fn bits(self) -> u64 {
        let fork = u64::from(self.fork == Fork::Journal);
        fork << (BLOCK_BITS + OFFSET_BITS) | (self.block as u64) << OFFSET_BITS | self.offset as u64 / ALIGN as u64
    }
    fn from_bits(bits: u64) -> Place {
        Place {
            fork: if bits >> (BLOCK_BITS + OFFSET_BITS) & 1 == 1 { Fork::Journal } else { Fork::Main },
            block: (bits >> OFFSET_BITS) as u32,
            offset: (bits & ((1 << OFFSET_BITS) - 1)) as u16 * ALIGN as u16,
        }
    }
}

/// What the best entry of a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// One entry there, which waited for a transaction (that has committed) or not.
    Whole { kind: Kind, place: Place, settled: bool },
    /// A row in pieces, of this length.
    Cut { total: u32 },
}

/// 0 bits: no entry. Else a number of 96 bits, which is larger for a better entry:
/// `[csn:48][settled:1][kind:2][unused:2][place, or length of a row in pieces; inverted:43]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct Slot([u32; 3]);

const ROW: u64 = 1;
const TOMB: u64 = 2;
const CUT: u64 = 3;
const PLACE: u64 = (1 << PLACE_BITS) - 1;

impl Slot {
    fn pack(csn: Csn, settled: bool, kind: u64, place: u64) -> Slot {
        let low = (settled as u64) << SETTLED_AT | kind << KIND_AT | (!place & PLACE);
        let all = (csn as u128) << CSN_AT | low as u128;
        Slot([(all >> 64) as u32, (all >> 32) as u32, all as u32])
    }
    fn bits(self) -> u128 {
        (self.0[0] as u128) << 64 | (self.0[1] as u128) << 32 | self.0[2] as u128
    }
    fn low(self) -> u64 {
        self.bits() as u64
    }
    /// An entry on a page. Hints count as rows.
    pub fn whole(csn: Csn, kind: Kind, place: Place, settled: bool) -> Slot {
        Slot::pack(csn, settled, if kind == Kind::Tomb { TOMB } else { ROW }, place.bits())
    }
    /// A row in pieces, all of which are there.
    pub fn cut(csn: Csn, total: u32) -> Slot {
        Slot::pack(csn, true, CUT, total as u64)
    }
    pub fn is_none(self) -> bool {
        self.0 == [0; 3]
    }
    pub fn csn(self) -> Csn {
        (self.bits() >> CSN_AT) as Csn
    }
    /// `None`: there is no entry.
    pub fn what(self) -> Option<What> {
        let place = !self.low() & PLACE;
        let settled = self.low() >> SETTLED_AT & 1 == 1;
        let whole = |kind| Some(What::Whole { kind, place: Place::from_bits(place), settled });
        match self.low() >> KIND_AT & 3 {
            ROW => whole(Kind::Row),
            TOMB => whole(Kind::Tomb),
            CUT => Some(What::Cut { total: place as u32 }),
            _ => None,
        }
    }
    /// Is it better than `other`? The larger CSN is. At one CSN, an entry that waits for no
    /// transaction is, then one in the main fork, and there the one in the lower block.
    pub fn is_better(self, other: Slot) -> bool {
        self.bits() > other.bits()
    }
}

/// The slots of all records, in chunks that come when they are needed.
#[derive(Default)]
pub(super) struct Slots(Vec<Option<Box<[Slot]>>>);

const CHUNK_SHIFT: u32 = 12;
const CHUNK: usize = 1 << CHUNK_SHIFT;

fn split(record: u32) -> (usize, usize) {
    ((record >> CHUNK_SHIFT) as usize, record as usize & (CHUNK - 1))
}

impl Slots {
    pub fn get(&self, record: u32) -> Slot {
        let (chunk, at) = split(record);
        self.0.get(chunk).and_then(Option::as_ref).map_or(Slot::default(), |slots| slots[at])
    }
    pub fn get_mut(&mut self, record: u32) -> Result<&mut Slot, TryReserveError> {
        let (chunk, at) = split(record);
        if chunk >= self.0.len() {
            self.0.try_reserve(chunk + 1 - self.0.len())?;
            self.0.resize_with(chunk + 1, || None);
        }
        let place = &mut self.0[chunk];
        let slots = match place {
            Some(slots) => slots,
            None => {
                let mut slots = Vec::new();
                slots.try_reserve_exact(CHUNK)?;
                slots.resize(CHUNK, Slot::default());
                place.insert(slots.into_boxed_slice())
            }
        };
        Ok(&mut slots[at])
    }
    /// The slot of a record will be used soon.
    pub fn prefetch(&self, record: u32) {
        let (chunk, at) = split(record);
        if let Some(Some(slots)) = self.0.get(chunk) {
            prefetch(&raw const slots[at]);
        }
    }
    /// The records with an entry, in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (u32, Slot)> + use<'_> {
        let chunks = self.0.iter().enumerate().filter_map(|(i, chunk)| Some((i, chunk.as_ref()?)));
        let all = chunks.flat_map(|(i, chunk)| {
            chunk.iter().enumerate().map(move |(at, slot)| (((i << CHUNK_SHIFT) + at) as u32, *slot))
        });
        all.filter(|(_, slot)| !slot.is_none())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_record_takes_twelve_bytes() {
        assert_eq!(size_of::<Slot>(), 12);
    }

    #[test]
    fn slots_round_trip() {
        for fork in [Fork::Main, Fork::Journal] {
            for (block, offset) in [(0, 24), (u32::MAX, 8184), (77, 4096)] {
                let place = Place { fork, block, offset };
                for (kind, settled) in [(Kind::Row, true), (Kind::Row, false), (Kind::Tomb, true), (Kind::Tomb, false)]
                {
                    let slot = Slot::whole(CSN_MAX, kind, place, settled);
                    assert_eq!(slot.what(), Some(What::Whole { kind, place, settled }));
                    assert_eq!(slot.csn(), CSN_MAX);
                }
            }
        }
        let slot = Slot::cut(1, ROW_MAX as u32);
        assert_eq!((slot.what(), slot.csn()), (Some(What::Cut { total: ROW_MAX as u32 }), 1));
        assert_eq!(Slot::default().what(), None);
    }

    #[test]
    fn the_better_entry_is_newer_then_settled_then_an_image() {
        let slot = |csn, fork, block, settled| Slot::whole(csn, Kind::Row, Place { fork, block, offset: 24 }, settled);
        let ascending = [
            Slot::default(),
            slot(4, Fork::Journal, 9, false),
            slot(4, Fork::Main, 1, false),
            slot(4, Fork::Journal, 9, true),
            slot(4, Fork::Main, 3, true),
            slot(4, Fork::Main, 2, true),
            slot(5, Fork::Journal, 9, false),
        ];
        for (i, a) in ascending.iter().enumerate() {
            for (j, b) in ascending.iter().enumerate() {
                assert_eq!(a.is_better(*b), i > j, "{i} {j}");
            }
        }
    }
}
