use super::*;
use crate::durable::entry::{Fragment, EXTENSION, HEADER, ROW_MAX};

fn encode(entry: &Entry) -> Vec<u8> {
    let mut bytes = vec![0xAA; entry.size()];
    entry.encode(&mut bytes);
    bytes
}

#[test]
fn entries_round_trip() {
    let mut r = Random(1);
    for _ in 0..5000 {
        let len = r.len();
        let payload = r.bytes(len);
        for entry in entries(&mut r, &payload) {
            let mut bytes = encode(&entry);
            assert_eq!(Entry::decode(&bytes), Ok((entry, bytes.len())));
            bytes.extend_from_slice(&[0xFF; 9]);
            assert_eq!(Entry::decode(&bytes), Ok((entry, bytes.len() - 9)), "bytes behind it do not matter");
        }
    }
}

#[test]
fn sizes_are_as_designed() {
    let row = |len: usize, pending| {
        let payload = vec![1; len];
        Entry { csn: 1, kind: Kind::Row, record: 0, pending, fragment: None, payload: &payload }.size()
    };
    assert_eq!((HEADER, EXTENSION), (16, 8));
    assert_eq!((row(0, None), row(1, None), row(8, None), row(100, None)), (16, 24, 24, 120));
    assert_eq!((row(100, Some(5)), Entry::high(7).size()), (128, 16));
}

#[test]
fn rows_are_cut_in_one_way() {
    for len in [0, 1, PIECE, PIECE + 1, 2 * PIECE, 5 * PIECE + 17] {
        let payload = row(1, 1, len);
        let whole = Entry { csn: 1, kind: Kind::Row, record: 1, pending: None, fragment: None, payload: &payload };
        let pieces: Vec<_> = whole.pieces().collect();
        assert_eq!(pieces.len(), len.div_ceil(PIECE).max(1));
        assert!(pieces.iter().all(|p| p.check().is_ok()));
        assert_eq!(pieces.iter().flat_map(|p| p.payload).copied().collect::<Vec<u8>>(), payload);
        for (i, piece) in pieces.iter().enumerate() {
            assert_eq!(piece.fragment.map(Fragment::index), (len > PIECE).then_some(i as u32));
            assert!(piece.fragment.is_none_or(|f| f.pieces() as usize == pieces.len()));
        }
    }
}

#[test]
fn entries_against_the_rules_are_refused() {
    let good = Entry { csn: 5, kind: Kind::Row, record: 3, pending: None, fragment: None, payload: &[1, 2, 3] };
    assert_eq!(good.check(), Ok(()));
    let long = vec![0; PIECE + 1];
    let piece = |at: usize, total: usize| Some(Fragment { at: at as u32, total: total as u32 });
    let full = &long[..PIECE];
    let bad = [
        Entry { csn: 0, ..good },
        Entry { csn: CSN_MAX + 1, ..good },
        Entry { record: MAX_RECORDS as u32, ..good },
        Entry { record: NO_RECORD, ..good },
        Entry { pending: Some(0), ..good },
        Entry { payload: &long, ..good },
        Entry { kind: Kind::Tomb, ..good },
        Entry { kind: Kind::High, csn: 0, ..good },
        Entry { kind: Kind::Hints, ..good },
        Entry { csn: 1, ..Entry::high(5) },
        Entry { pending: Some(1), ..Entry::high(5) },
        Entry { record: NO_RECORD, ..Entry::high(5) },
        Entry { fragment: piece(0, 3), ..good },
        Entry { fragment: piece(0, PIECE), payload: full, ..good },
        Entry { fragment: piece(1, 2 * PIECE), payload: full, ..good },
        Entry { fragment: piece(2 * PIECE, 2 * PIECE), payload: full, ..good },
        Entry { fragment: piece(0, 2 * PIECE), payload: &full[1..], ..good },
        Entry { fragment: piece(PIECE, PIECE + 4), ..good },
        Entry { fragment: piece(0, ROW_MAX + 1), payload: full, ..good },
    ];
    for (i, entry) in bad.iter().enumerate() {
        assert!(entry.check().is_err(), "{i}");
    }
    assert_eq!(Entry { fragment: piece(PIECE, PIECE + 3), ..good }.check(), Ok(()));
    assert_eq!(Entry { fragment: piece(0, ROW_MAX), payload: full, ..good }.check(), Ok(()));
}

/// Whatever the bytes are: an error, or an entry whose encoding gives the same bytes.
#[track_caller]
fn decodes_or_not(bytes: &[u8]) -> bool {
    let Ok((entry, size)) = Entry::decode(bytes) else { return false };
    assert_eq!(entry.check(), Ok(()));
    assert_eq!(encode(&entry), bytes[..size]);
    true
}

#[test]
fn any_bytes_give_an_error_or_an_entry() {
    let mut r = Random(2);
    let mut valid = 0;
    for _ in 0..20_000 {
        let len = r.below(64) as usize;
        let payload = r.bytes(len);
        for entry in entries(&mut r, &payload) {
            let mut bytes = encode(&entry);
            for cut in 0..bytes.len() {
                assert!(!decodes_or_not(&bytes[..cut]), "it is cut off at {cut}");
            }
            for _ in 0..=r.below(3) {
                let at = r.below(bytes.len() as u64) as usize;
                bytes[at] ^= 1 << r.below(8);
            }
            valid += u32::from(decodes_or_not(&bytes));
        }
        let len = r.below(100) as usize;
        decodes_or_not(&r.bytes(len));
    }
    assert!(valid > 1000, "most flips are in payloads and CSNs");
}
