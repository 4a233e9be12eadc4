use super::*;
use crate::durable::standby::{self, OPEN_MAX};
use crate::durable::wal::{
    describe, identify, image, reserve, rows_of, Action, Builder, Change, Commit, Head, ImageKind, Old, Op, Record,
    Round, RoundKind, Stable, FULL, TABLES_MAX,
};
use crate::durable::{Malformed, Storage};

fn storage(r: &mut Random) -> Storage {
    Storage { tablespace: r.next() as u32, database: r.next() as u32, number: r.next() as u32 }
}

/// What was added: table, kind, record, payload.
type Added = Vec<(u8, Kind, u32, Vec<u8>)>;

struct Made {
    head: Head,
    tables: Vec<Storage>,
    added: Added,
    records: Vec<(Op, Vec<u8>)>,
}

/// A commit with so many rows.
fn commit(r: &mut Random, b: &mut Builder, rows: usize, xid: bool, max: usize) -> Made {
    let head = Head {
        csn: 1 + r.below(CSN_MAX),
        token: r.below(1 << 48),
        xid: xid.then(|| 1 + r.next() / 2),
        reply: r.below(2) == 1,
    };
    let tables: Vec<_> = (0..1 + r.below(max as u64)).map(|_| storage(r)).collect();
    let mut added = Added::new();
    for _ in 0..rows {
        let kind = *r.pick(&[Kind::Row, Kind::Row, Kind::Tomb, Kind::Hints]);
        let record = if kind == Kind::Hints { NO_RECORD } else { r.below(MAX_RECORDS) as u32 };
        let len = if kind == Kind::Tomb { 0 } else { r.len() };
        added.push((r.below(tables.len() as u64) as u8, kind, record, r.bytes(len)));
    }
    let bytes = added.iter().map(|a| Builder::bytes_of(a.3.len())).sum();
    assert!(xid || !Builder::needs_xid(bytes, tables.len()));
    b.reserve(bytes).unwrap();
    b.begin(head, tables.iter().copied());
    let memory = b.end().1.as_ptr();
    let mut records = Vec::new();
    for (table, kind, record, payload) in &added {
        // Cut at any place.
        let (first, rest) = payload.split_at(r.below(payload.len() as u64 + 1) as usize);
        b.add(*table, *kind, *record, [first, rest], |op, data| records.push((op, data.to_vec())));
    }
    let (op, data) = b.end();
    assert_eq!(data.as_ptr(), memory, "nothing was allocated");
    records.push((op, data.to_vec()));
    Made { head, tables, added, records }
}

fn parsed(op: Op, data: &[u8]) -> Commit<'_> {
    match Record::parse(op, data) {
        Ok(Record::Commit(commit)) => commit,
        other => panic!("{other:?}"),
    }
}

/// What was added, put together from the records' items.
fn gathered(made: &Made) -> Added {
    let mut all = Added::new();
    for (op, data) in &made.records {
        let commit = parsed(*op, data);
        assert_eq!(commit.head, made.head);
        assert!(commit.tables().eq(made.tables.iter().copied()));
        assert_eq!(commit.items().count(), commit.nitems as usize);
        assert!(rows_of(*op, data).eq(commit.items().map(|item| (item.table, item.entry.record))));
        for item in commit.items() {
            let e = item.entry;
            assert_eq!((e.csn, e.pending), (made.head.csn, made.head.xid));
            match e.fragment {
                Some(f) if f.at > 0 => all.last_mut().unwrap().3.extend_from_slice(e.payload),
                _ => all.push((item.table, e.kind, e.record, e.payload.to_vec())),
            }
        }
    }
    all
}

#[test]
fn commits_round_trip() {
    let (mut r, mut b) = (Random(10), Builder::new());
    for n in 0..500 {
        let rows = r.below(30) as usize;
        let made = commit(&mut r, &mut b, rows, n % 2 == 0, if n % 10 == 0 { TABLES_MAX } else { 3 });
        assert_eq!(made.records.len(), 1);
        assert_eq!(made.records[0].0, if n % 2 == 0 { Op::XCommit } else { Op::Commit });
        assert_eq!(gathered(&made), made.added);
    }
}

#[test]
fn large_transactions_need_an_xid_and_several_records() {
    let (mut r, mut b) = (Random(11), Builder::new());
    let made = commit(&mut r, &mut b, 5000, true, 3);
    assert!(made.records.len() > 2);
    for (op, data) in &made.records {
        assert_eq!(*op, Op::XCommit);
        assert!(data.len() < FULL + 8 + 8 + PIECE);
    }
    assert_eq!(gathered(&made), made.added);
    assert!(Builder::needs_xid(FULL + 1, 1) && Builder::needs_xid(1, TABLES_MAX + 1));
    assert!(!Builder::needs_xid(FULL, TABLES_MAX));
}

#[test]
fn items_are_of_the_kinds_that_commits_have() {
    let mut b = Builder::new();
    b.reserve(100).unwrap();
    b.begin(
        Head { csn: 1, token: 1, xid: None, reply: false },
        [Storage { tablespace: 1, database: 2, number: 3 }].into_iter(),
    );
    b.add(0, Kind::Tomb, 1, [&[], &[]], |_, _| unreachable!());
    let mut data = b.end().1.to_vec();
    let at = data.len() - 2;
    for (kind, record, right) in [(2, 1, true), (4, NO_RECORD, true), (3, 1, false), (0x82, 1, false), (0, 1, false)] {
        data[at] = kind;
        data[at - 6..at - 2].copy_from_slice(&u32::to_le_bytes(record));
        assert_eq!(reads_or_not(Op::Commit as u8, &data), right, "{kind}");
    }
    (data[at], data[at + 1]) = (2, 1);
    assert!(!reads_or_not(Op::Commit as u8, &data), "there is no second table");
}

#[test]
fn sizes_of_records_are_as_designed() {
    let mut b = Builder::new();
    let (mut r, table) = (Random(0), [Storage { tablespace: 1663, database: 5, number: 16384 }]);
    let mut size = |xid| {
        b.reserve(Builder::bytes_of(100)).unwrap();
        b.begin(Head { csn: 1, token: 1, xid, reply: false }, table.iter().copied());
        b.add(0, Kind::Row, 1, [&r.bytes(100), &[]], |_, _| unreachable!());
        b.end().1.len()
    };
    assert_eq!((size(None), size(Some(3))), (20 + 12 + 8 + 100, 28 + 12 + 8 + 100));
    assert_eq!((Builder::bytes_of(0), Builder::bytes_of(100), Builder::bytes_of(PIECE)), (8, 108, 8 + PIECE));
    assert_eq!(Builder::bytes_of(PIECE + 1), 2 * 16 + PIECE + 1);
}

/// Whatever the bytes are: no panic, and all readers agree.
fn reads_or_not(info: u8, data: &[u8]) -> bool {
    let text = describe(info, data);
    let record = Op::of_info(info).and_then(|op| Record::parse(op, data));
    assert_eq!(record.is_err(), text.starts_with("cannot be read"));
    if let Ok(Record::Commit(commit)) = &record {
        assert_eq!(commit.items().count(), commit.nitems as usize);
        let tables = commit.tables().len();
        assert!(commit.items().all(|i| (i.table as usize) < tables && i.entry.check().is_ok()));
    }
    record.is_ok()
}

#[test]
fn any_bytes_give_an_error_or_a_record() {
    let (mut r, mut b) = (Random(12), Builder::new());
    for n in 0..2000 {
        let rows = r.below(4) as usize;
        let made = commit(&mut r, &mut b, rows, n % 2 == 0, 3);
        let (op, data) = &made.records[0];
        assert!(reads_or_not(*op as u8, data));
        for cut in 0..data.len().min(300) {
            assert!(!reads_or_not(*op as u8, &data[..cut]), "it is cut off at {cut}");
        }
        for _ in 0..20 {
            let mut damaged = data.clone();
            for _ in 0..=r.below(3) {
                let at = r.below(damaged.len() as u64) as usize;
                damaged[at] ^= 1 << r.below(8);
            }
            reads_or_not(*op as u8, &damaged);
            let len = r.below(80) as usize;
            reads_or_not(r.next() as u8, &r.bytes(len));
        }
    }
}

#[test]
fn the_other_records_round_trip() {
    let mut r = Random(13);
    let at = storage(&mut r);
    let reserved = reserve(at, 77);
    assert!(matches!(
        Record::parse(Op::Reserve, &reserved), Ok(Record::Reserve { storage, upto: 77 }) if storage == at));
    let images = image(ImageKind::Clean, 1234);
    assert!(matches!(Record::parse(Op::Image, &images), Ok(Record::Image { kind: ImageKind::Clean, entries: 1234 })));
    let round = Round { redo: u64::MAX, clock: CSN_MAX, token: 5, time: -6, kind: RoundKind::Asked };
    assert!(matches!(Record::parse(Op::Round, &round.encode()), Ok(Record::Round(found)) if found == round));
    for (op, data) in [(Op::Reserve, &reserved[..]), (Op::Image, &images), (Op::Round, &round.encode())] {
        for cut in 0..data.len() {
            assert!(!reads_or_not(op as u8, &data[..cut]));
        }
        let longer: Vec<u8> = data.iter().copied().chain([0]).collect();
        assert!(!reads_or_not(op as u8, &longer), "bytes follow it");
    }
    assert!(!reads_or_not(Op::Reserve as u8, &reserve(at, u32::MAX)), "above all records");
}

fn encoded(change: &Change) -> Vec<u8> {
    let [new, old] = change.rows();
    [&change.head(), new, old].concat()
}

#[test]
fn changes_of_rows_round_trip() {
    let mut r = Random(14);
    for n in 0..300 {
        let (new, old) = (r.bytes(5 + n % 40), r.bytes(5 + n % 7));
        let action = *r.pick(&[Action::Insert, Action::Update, Action::Delete]);
        let old = match (action, n % 3) {
            (Action::Insert, _) | (_, 0) => Old::Nothing,
            (_, 1) => Old::Key(&old),
            _ => Old::Whole(&old),
        };
        let new = (action != Action::Delete).then_some(&new[..]);
        let change = Change { storage: storage(&mut r), action, new, old };
        let data = encoded(&change);
        assert!(matches!(Record::parse(Op::Change, &data), Ok(Record::Change(found)) if found == change));
        for cut in 0..data.len() {
            assert!(!reads_or_not(Op::Change as u8, &data[..cut]));
        }
        let longer: Vec<u8> = data.iter().copied().chain([0]).collect();
        assert!(!reads_or_not(Op::Change as u8, &longer), "bytes follow it");
    }
}

#[test]
fn changes_that_cannot_be_are_errors() {
    let storage = Storage { tablespace: 1, database: 2, number: 3 };
    let bad = [
        Change { storage, action: Action::Insert, new: None, old: Old::Nothing },
        Change { storage, action: Action::Insert, new: Some(&[0; 9]), old: Old::Key(&[0; 9]) },
        Change { storage, action: Action::Update, new: Some(&[0; 4]), old: Old::Nothing },
        Change { storage, action: Action::Update, new: Some(&[0; 9]), old: Old::Whole(&[0; 4]) },
        Change { storage, action: Action::Delete, new: Some(&[0; 9]), old: Old::Nothing },
        Change { storage, action: Action::Delete, new: None, old: Old::Key(&[]) },
    ];
    for change in bad {
        assert!(!reads_or_not(Op::Change as u8, &encoded(&change)), "{change:?}");
    }
    let mut none = encoded(&Change { storage, action: Action::Delete, new: None, old: Old::Nothing });
    none[12] = 4;
    assert!(!reads_or_not(Op::Change as u8, &none), "no known action");
}

#[test]
fn records_are_described_in_words() {
    let (mut b, table) = (Builder::new(), Storage { tablespace: 1663, database: 5, number: 16384 });
    b.reserve(20_000).unwrap();
    b.begin(Head { csn: 42, token: 7, xid: Some(1 << 32 | 9), reply: false }, [table].into_iter());
    b.add(0, Kind::Row, 3, [b"a", b"bc"], |_, _| unreachable!());
    b.add(0, Kind::Tomb, 4, [b"", b""], |_, _| unreachable!());
    b.add(0, Kind::Row, 5, [&[0; 4], &[0; PIECE - 3]], |_, _| unreachable!());
    let text = describe(Op::XCommit as u8, b.end().1);
    assert_eq!(
        text,
        "csn 42; token 7; xid 1:9; rels 1663/5/16384; 4 items: row 3 of table 0 (3 bytes), \
         tombstone 4 of table 0 (0 bytes), row 5 of table 0 (8080 bytes at 0 of 8081), \
         row 5 of table 0 (1 bytes at 8080 of 8081)"
    );
    assert_eq!(describe(0x20, &reserve(table, 9)), "rel 1663/5/16384; record numbers below 9");
    assert_eq!(describe(0x30, &image(ImageKind::Round, 5)), "round; 5 entries");
    let round = Round { redo: 1 << 32 | 0xAB, clock: 3, token: 4, time: 5, kind: RoundKind::Checkpoint };
    assert_eq!(describe(0x40, &round.encode()), "checkpoint; redo 1/AB; clock 3; token 4; time 5");
    let change = Change { storage: table, action: Action::Update, new: Some(&[0; 9]), old: Old::Key(&[0; 7]) };
    let text = "update; rel 1663/5/16384; new row 9 bytes; old key 7 bytes";
    assert_eq!(describe(0x90, &encoded(&change)), text);
    assert_eq!(describe(0xF0, &[]), "cannot be read: a record of no known kind");
    assert_eq!((identify(0x1F), identify(0xF0)), (Some(c"XCOMMIT"), None));
    assert_eq!(Op::of_info(0xF0), Err(Malformed("a record of no known kind")));
}

#[test]
fn what_standbys_may_show_is_read_back() {
    let open = [3u64 << 32 | 9, 5].map(u64::to_le_bytes).concat();
    let told = Stable { life: 0x1_0000_0020, csn: 77, horizon: 70, open: &[] };
    let some = Stable { open: &open, ..told };
    let data = [&some.encode()[..], &open].concat();
    let read = Record::parse(Op::Stable, &data);
    assert!(matches!(read, Ok(Record::Stable(found)) if found == some), "{read:?}");
    assert_eq!(some.open().collect::<Vec<_>>(), [3 << 32 | 9, 5]);
    assert_eq!(describe(Op::Stable as u8, &data), "csn 77; horizon 70; life 1/20; prepared 3:9, 0:5");
    let asleep = [&told.encode()[..], &(standby::ASLEEP | 5).to_le_bytes()].concat();
    assert_eq!(describe(Op::Stable as u8, &asleep), "csn 77; horizon 70; life 1/20; prepared 0:5 asleep");
    let many = [&told.encode()[..], &vec![1; 8 * OPEN_MAX + 8]].concat();
    assert!(Record::parse(Op::Stable, &many).is_err() && Record::parse(Op::Stable, &many[..many.len() - 8]).is_ok());
    let data = told.encode();
    let read = Record::parse(Op::Stable, &data);
    assert!(matches!(read, Ok(Record::Stable(found)) if found == told), "{read:?}");
    assert_eq!(describe(Op::Stable as u8, &data), "csn 77; horizon 70; life 1/20");
    // Of builds that had no list: each of 24 bytes, also those that tell a horizon only.
    for (csn, horizon) in [(77u64, 0u64), (0, 70), (77, 70)] {
        let old = [told.life, csn, horizon].map(u64::to_le_bytes).concat();
        let read = Record::parse(Op::Stable, &old);
        let wanted = Stable { csn, horizon, ..told };
        assert!(matches!(read, Ok(Record::Stable(found)) if found == wanted), "{read:?}");
        assert_eq!(wanted.encode()[..], old[..], "and these bytes are written");
    }
    for wrong in [
        Stable { csn: 0, horizon: 0, ..told },
        Stable { csn: CSN_MAX + 1, ..told },
        Stable { horizon: CSN_MAX + 1, ..told },
    ] {
        assert!(Record::parse(Op::Stable, &wrong.encode()).is_err(), "{wrong:?}");
    }
    assert!(
        Record::parse(Op::Stable, &data[..23]).is_err()
            && Record::parse(Op::Stable, &[&data[..], &[0]].concat()).is_err()
    );
}
