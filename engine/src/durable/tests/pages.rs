use super::*;
use crate::durable::page::{
    is_new, journal_is_free, journal_is_harmless, PageKind, PageMut, BODY, FORMAT, HAS_PENDING, HEAD, LONG, SPECIAL,
    SPECIAL_AT,
};
use crate::durable::{Malformed, Meta};

/// What was put on a page, with the payloads.
type Put = Vec<(u16, u64, u32, Vec<u8>)>;

/// A page with random entries.
fn random_page(r: &mut Random, kind: PageKind, block: u32) -> (Box<[u8; PAGE]>, Put) {
    let mut page = blank();
    let mut put = Put::new();
    let mut to = PageMut::begin(&mut page, kind, block, 0, 100, 0);
    for _ in 0..r.below(80) {
        let len = r.len();
        let payload = r.bytes(len);
        for entry in entries(r, &payload) {
            let room = to.room();
            let at = if kind == PageKind::Journal { to.append_replayed(&entry, 500, 9) } else { to.append(&entry) };
            assert_eq!(at.is_some(), entry.size() <= room);
            put.extend(at.map(|at| (at, entry.csn, entry.record, entry.payload.to_vec())));
        }
    }
    (page, put)
}

fn content(page: &[u8; PAGE], block: u32) -> Put {
    read(page, block).entries().map(|(at, e)| (at, e.csn, e.record, e.payload.to_vec())).collect()
}

#[test]
fn pages_round_trip() {
    let mut r = Random(3);
    for block in 0..300 {
        let kind = *r.pick(&[PageKind::Image, PageKind::Journal]);
        let (mut page, mut put) = random_page(&mut r, kind, block);
        assert_eq!(content(&page, block), put);
        let special = read(&page, block).special;
        assert_eq!((special.kind, special.block, special.entries as usize), (kind, block, put.len()));
        assert_eq!(special.csn_max, put.iter().map(|p| p.1).max().unwrap_or(0));
        // Another process goes on with it.
        let mut to = PageMut::go_on(&mut page, block).unwrap().unwrap();
        let entry = Entry { csn: 7, kind: Kind::Tomb, record: 7, pending: Some(7), fragment: None, payload: &[] };
        if let Some(at) = to.append_replayed(&entry, 900, 10) {
            put.push((at, 7, 7, vec![]));
            let special = read(&page, block).special;
            assert_eq!((special.b, special.token_max, special.flags & HAS_PENDING), (900, 10, HAS_PENDING));
        }
        assert_eq!(content(&page, block), put);
    }
}

#[test]
fn the_layout_is_as_designed() {
    assert_eq!((PAGE, HEAD, SPECIAL, SPECIAL_AT, BODY), (8192, 24, 56, 8136, 8112));
    let mut page = blank();
    let mut to = PageMut::begin(&mut page, PageKind::Image, 3, LONG, 0x11, 0x22);
    to.append(&Entry { csn: 0x33, kind: Kind::Row, record: 0x44, pending: None, fragment: None, payload: b"abc" });
    to.tell_token(0x55);
    assert_eq!(page[..HEAD], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 48, 0, 0xC8, 0x1F, 0xC8, 0x1F, 4, 0x20, 0, 0, 0, 0]);
    let entry = [0x33, 0, 0, 0, 0, 0, 0, 1, 0x44, 0, 0, 0, 3, 0, 0, 0, b'a', b'b', b'c', 0, 0, 0, 0, 0];
    assert_eq!(page[HEAD..48], entry);
    let special = &page[SPECIAL_AT..];
    assert_eq!(special[..16], [b'M', b'C', b'M', b'I', 3, 0, 0, 0, FORMAT as u8, 0, 1, 0, 2, 0, 0, 0]);
    assert_eq!(special[16..20], crc32c::crc32c(&entry).to_le_bytes());
    for (at, value) in [(24, 0x33), (32, 0x55), (40, 0x11), (48, 0x22_u64)] {
        assert_eq!(special[at..at + 8], value.to_le_bytes());
    }
}

#[test]
fn the_longest_piece_fills_a_page() {
    let payload = vec![1; 2 * PIECE];
    let long = Entry { csn: 1, kind: Kind::Row, record: 1, pending: Some(9), fragment: None, payload: &payload };
    for (i, piece) in long.pieces().enumerate() {
        let mut page = blank();
        let mut to = PageMut::begin(&mut page, PageKind::Image, 1, LONG, 0, i as u64);
        assert_eq!(to.append(&piece), Some(HEAD as u16));
        assert_eq!(to.room(), 0);
        assert_eq!(to.append(&Entry::high(1)), None);
        assert_eq!(content(&page, 1).len(), 1);
    }
}

#[test]
fn every_flipped_bit_is_found() {
    let mut r = Random(4);
    for kind in [PageKind::Image, PageKind::Journal] {
        let (mut page, put) = random_page(&mut r, kind, 5);
        for bit in 0..PAGE * 8 {
            page[bit / 8] ^= 1 << (bit % 8);
            // PostgreSQL sets these ten bytes, and checks them itself.
            if bit / 8 < 10 {
                assert_eq!(content(&page, 5), put);
            } else {
                assert!(Page::read(&page, 5).is_err(), "bit {bit}");
                assert!(PageMut::go_on(&mut page, 5).is_err(), "bit {bit}");
            }
            page[bit / 8] ^= 1 << (bit % 8);
        }
        assert_eq!(content(&page, 5), put);
    }
}

#[test]
fn bursts_and_cut_off_ends_are_found() {
    let mut r = Random(5);
    for _ in 0..3000 {
        let (page, _) = random_page(&mut r, PageKind::Journal, 5);
        let mut damaged = page.clone();
        let from = 10 + r.below(PAGE as u64 - 10) as usize;
        let to = if r.one_in(2) { PAGE } else { PAGE.min(from + 1 + r.below(64) as usize) };
        match r.below(3) {
            0 => damaged[from..to].fill(0),
            1 => damaged[from..to].fill(0xFF),
            _ => damaged[from..to].copy_from_slice(&r.bytes(to - from)),
        }
        assert!(damaged == page || Page::read(&damaged, 5).is_err());
        assert!(Page::read(&page, 6).is_err(), "it is in another block");
    }
}

/// A page of which only some sectors were written is one of the two, or is found to be torn.
#[test]
fn torn_pages_are_found() {
    let mut r = Random(6);
    let mut torn = 0;
    for _ in 0..3000 {
        let (old, _) = random_page(&mut r, PageKind::Journal, 5);
        let mut new = old.clone();
        let mut to = PageMut::go_on(&mut new, 5).unwrap().unwrap();
        let payload = r.bytes(100);
        for _ in 0..=r.below(9) {
            let record = r.below(9) as u32;
            let entry = Entry { csn: 8, kind: Kind::Row, record, pending: None, fragment: None, payload: &payload };
            to.append_replayed(&entry, 600 + record as u64, 9);
        }
        let (which, mut mixed) = (r.next(), old.clone());
        for sector in (0..PAGE / 512).filter(|s| which >> s & 1 == 1) {
            let range = sector * 512..(sector + 1) * 512;
            mixed[range.clone()].copy_from_slice(&new[range]);
        }
        match Page::read(&mixed, 5) {
            Ok(_) => assert!(mixed == old || mixed == new),
            Err(_) => torn += 1,
        }
    }
    assert!(torn > 1000);
}

#[test]
fn damage_that_is_there_stays_visible_when_a_page_grows() {
    let mut page = blank();
    let mut to = PageMut::begin(&mut page, PageKind::Journal, 1, 0, 0, 0);
    let row = |payload| Entry { csn: 1, kind: Kind::Row, record: 1, pending: None, fragment: None, payload };
    to.append(&row(b"first")).unwrap();
    to.damage(HEAD + 17);
    to.append(&row(b"second")).unwrap();
    assert_eq!(Page::read(&page, 1).err(), Some(Malformed("a wrong checksum of entries")));
}

#[test]
fn bytes_with_right_checksums_are_not_trusted_either() {
    let mut r = Random(7);
    for _ in 0..5000 {
        let mut page = blank();
        let (source, _) = random_page(&mut r, PageKind::Image, 1);
        let len = r.below(BODY as u64) as usize;
        let mut body = source[HEAD..HEAD + len].to_vec();
        for _ in 0..r.below(4) {
            let at = r.below(len.max(1) as u64) as usize;
            body.iter_mut().skip(at).take(1).for_each(|b| *b = r.next() as u8);
        }
        let kind = *r.pick(&[PageKind::Image, PageKind::Journal, PageKind::Meta]);
        PageMut::begin(&mut page, kind, 1, HAS_PENDING, 0, 0).put_body(&body, 0);
        if let Ok(Some(page)) = Page::read(&page, 1) {
            assert!(page.entries().all(|(_, e)| e.check().is_ok()));
            let _ = Meta::read(&page);
        }
    }
}

#[test]
fn new_pages_are_zero() {
    let mut page = blank();
    assert!(is_new(&page) && Page::read(&page, 4).unwrap().is_none());
    assert!(PageMut::go_on(&mut page, 4).unwrap().is_none());
    page[4000] = 1;
    assert!(Page::read(&page, 4).is_err());
}

#[test]
fn a_damaged_journal_page_is_harmless_if_it_is_written_again_or_not_needed() {
    let mut page = blank();
    assert!(journal_is_harmless(&page, 3, None, 0));
    let mut to = PageMut::begin(&mut page, PageKind::Journal, 3, 0, 100, 0);
    to.append_replayed(&Entry::high(1), 150, 0).unwrap();
    assert!(!journal_is_free(&page, 3, 100, 150) && journal_is_free(&page, 3, 100, 151));
    page[HEAD] ^= 1;
    assert!(Page::read(&page, 3).is_err());
    for (redo, horizon, harmless) in [(100, 0, true), (101, 0, false), (101, 150, false), (101, 151, true)] {
        assert_eq!(journal_is_harmless(&page, 3, Some(redo), horizon), harmless, "{redo} {horizon}");
        assert_eq!(journal_is_harmless(&page, 3, None, horizon), horizon > 150, "nothing is replayed");
        assert_eq!(journal_is_free(&page, 3, redo, horizon), harmless, "{redo} {horizon}");
    }
    assert!(!journal_is_harmless(&page, 4, Some(100), 0), "it belongs in another block");
    // A fresh page of which only the first sectors were written.
    page[512..].fill(0);
    for (lsn, harmless) in [(0_u64, true), (99, false), (100, true), (1 << 32, true)] {
        page[..4].copy_from_slice(&((lsn >> 32) as u32).to_le_bytes());
        page[4..8].copy_from_slice(&(lsn as u32).to_le_bytes());
        assert!(Page::read(&page, 3).is_err());
        assert_eq!(journal_is_harmless(&page, 3, Some(100), 0), harmless, "{lsn}");
        assert!(!journal_is_harmless(&page, 3, None, 0));
    }
}
