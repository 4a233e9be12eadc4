//! The merge against a simple model, which looks at all entries at once.

use super::*;
use crate::durable::merge::{Fork, Log, Merge, Merged, Outcome, Place};
use crate::durable::page::{PageKind, PageMut};
use crate::durable::{Lsn, Meta};
use std::collections::BTreeMap;

/// The outcome of a transaction is in the lowest bits of its id.
fn outcome(xid: u64) -> Outcome {
    [Outcome::Committed, Outcome::Aborted, Outcome::Open, Outcome::Older][xid as usize % 4]
}

struct Pages(Vec<(PageKind, u32, Box<[u8; PAGE]>)>);

impl Pages {
    fn iter(&self) -> impl Iterator<Item = Page<'_>> {
        self.0.iter().map(|(_, block, page)| read(page, *block))
    }
}

/// A page that is being filled with entries.
struct Filling {
    kind: PageKind,
    block: u32,
    a: Lsn,
    page: Box<[u8; PAGE]>,
}

impl Filling {
    /// Adds an entry, and says whether it fitted.
    fn add(&mut self, entry: &Entry) -> bool {
        let mut to = PageMut::go_on(&mut self.page, self.block).unwrap().unwrap();
        match self.kind {
            PageKind::Journal => to.append_replayed(entry, self.a + 50, self.a),
            _ => to.append(entry),
        }
        .is_some()
    }
}

/// Pages of both forks with the versions of some records, some of them on several pages, some in
/// pieces that are not all there.
fn pages(r: &mut Random) -> Pages {
    let mut open: Vec<Filling> = Vec::new();
    let begin = |r: &mut Random, open: &mut Vec<Filling>, kind| {
        let block = 1 + open.iter().filter(|f| f.kind == kind).count() as u32;
        let (a, mut page) = (100 * (1 + r.below(10)), blank());
        PageMut::begin(&mut page, kind, block, 0, a, 0);
        open.push(Filling { kind, block, a, page });
    };
    let records = 1 + r.below(30);
    for csn in 1..1 + r.below(120) {
        let record = r.below(records) as u32;
        let len = if r.one_in(8) { 0 } else { r.len() };
        let payload = row(record, csn, len);
        let kind = if len == 0 { Kind::Tomb } else { Kind::Row };
        let pending = r.one_in(3).then(|| 4 * csn + r.below(4));
        let copies = 1 + r.below(3);
        let decided_since = pending.is_some_and(|xid| outcome(xid) == Outcome::Committed) && r.one_in(3);
        for copy in 0..copies {
            let pending = pending.filter(|_| !(decided_since && copy > 0));
            let whole = Entry { csn, kind, record, pending, fragment: None, payload: &payload };
            for piece in whole.pieces() {
                if piece.fragment.is_some() && r.one_in(12) {
                    continue;
                }
                let at = open.len().max(1) - 1;
                let at = if r.one_in(2) { at } else { r.below(at as u64 + 1) as usize };
                if !open.get_mut(at).is_some_and(|f| f.add(&piece)) {
                    let kind = *r.pick(&[PageKind::Image, PageKind::Journal]);
                    begin(r, &mut open, kind);
                    assert!(open.last_mut().unwrap().add(&piece));
                }
            }
        }
        if r.one_in(30) {
            begin(r, &mut open, PageKind::Journal);
            assert!(open.last_mut().unwrap().add(&Entry::high(r.below(60) as u32)));
        }
    }
    Pages(open.into_iter().map(|f| (f.kind, f.block, f.page)).collect())
}

/// The best entry of a record: CSN, row if it is not deleted, is it dirty, home.
type Best = (Csn, Option<Vec<u8>>, bool, Option<u32>);

#[derive(Debug, PartialEq, Eq)]
struct State {
    best: BTreeMap<u32, Best>,
    /// Record, CSN, transaction.
    open: Vec<(u32, Csn, u64)>,
    damaged: Vec<(u32, Csn)>,
    clock: Csn,
    token: u64,
    high: u32,
}

/// One entry as the model knows it. A larger one is better.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    settled: bool,
    image: bool,
    before: std::cmp::Reverse<Place>,
    payload: Vec<u8>,
    tomb: bool,
}

/// Candidates by record, CSN (the largest comes last), length, and number of the piece.
type Candidates = BTreeMap<(u32, Csn), (usize, BTreeMap<u32, Candidate>)>;

fn model(pages: &Pages, meta: &Meta) -> State {
    let mut all = Candidates::new();
    let mut open = Vec::new();
    let mut state = State {
        best: BTreeMap::new(),
        open: vec![],
        damaged: vec![],
        clock: meta.clock,
        token: meta.token,
        high: meta.high,
    };
    for page in pages.iter() {
        let special = page.special;
        let image = special.kind == PageKind::Image;
        state.clock = state.clock.max(special.csn_max);
        state.token = state.token.max(special.token_max);
        if !image && special.b < meta.horizon {
            continue;
        }
        let fork = if image { Fork::Main } else { Fork::Journal };
        for (offset, e) in page.entries() {
            state.high = state.high.max(if e.kind == Kind::High { e.record } else { e.record + 1 });
            if e.kind == Kind::High {
                continue;
            }
            match e.pending.map(outcome) {
                Some(Outcome::Aborted | Outcome::Older) => continue,
                Some(Outcome::Open) => open.push((e.record, e.csn, e.pending.unwrap())),
                None | Some(Outcome::Committed) => {
                    let before = std::cmp::Reverse(Place { fork, block: special.block, offset });
                    let (settled, tomb) = (e.pending.is_none(), e.kind == Kind::Tomb);
                    let this = Candidate { settled, image, before, payload: e.payload.to_vec(), tomb };
                    let pieces = e.fragment.map_or(1, |f| f.pieces() as usize);
                    let (_, found) = all.entry((e.record, e.csn)).or_insert((pieces, BTreeMap::new()));
                    let best = found.entry(e.fragment.map_or(0, |f| f.index())).or_insert(this.clone());
                    *best = best.clone().max(this);
                }
            }
        }
    }
    for ((record, csn), (pieces, found)) in all.iter().filter(|(_, (pieces, found))| *pieces == found.len()) {
        let image = found.values().all(|c| c.image);
        let row: Vec<u8> = found.values().flat_map(|c| c.payload.clone()).collect();
        let (first, tomb) = (&found[&0], *pieces == 1 && found[&0].tomb);
        let dirty = !image || found.values().any(|c| !c.settled);
        let home = image.then_some(first.before.0.block);
        state.best.insert(*record, (*csn, (!tomb).then_some(row), dirty, home));
        // the last one is the newest
    }
    let best_csn = |record: u32| state.best.get(&record).map_or(0, |b| b.0);
    open.retain(|(record, csn, _)| *csn > best_csn(*record));
    let damaged = all.iter().filter(|((record, csn), (pieces, found))| {
        *pieces > found.len() && found.contains_key(&0) && *csn > best_csn(*record)
    });
    state.damaged = damaged.map(|(key, _)| *key).collect();
    open.sort_unstable();
    open.dedup();
    state.open = open;
    state
}

/// Puts the rows together, going through the pages as a loader does.
fn rows<'a>(merged: &Merged, pages: impl Iterator<Item = Page<'a>>) -> BTreeMap<u32, Vec<u8>> {
    let mut rows = BTreeMap::new();
    for page in pages {
        for w in merged.winners(&page).filter(|w| w.entry.kind == Kind::Row) {
            let (at, total) =
                w.entry.fragment.map_or((0, w.entry.payload.len()), |f| (f.at as usize, f.total as usize));
            let row: &mut Vec<u8> = rows.entry(w.entry.record).or_insert_with(|| vec![0; total]);
            row[at..at + w.entry.payload.len()].copy_from_slice(w.entry.payload);
        }
    }
    rows
}

fn state(merged: &Merged, pages: &Pages) -> State {
    let rows = rows(merged, pages.iter());
    let best = merged.records().map(|(record, w)| {
        let row = (!w.tomb).then(|| rows[&record].clone());
        (record, (w.csn, row, w.dirty, w.home))
    });
    let mut open: Vec<_> = merged.open.iter().map(|u| (u.record, u.csn, u.xid)).collect();
    open.dedup();
    let (clock, token, high) = (merged.clock, merged.token, merged.high);
    State { best: best.collect(), open, damaged: merged.damaged.clone(), clock, token, high }
}

fn merge<'a>(meta: &Meta, pages: impl Iterator<Item = Page<'a>>) -> Merged {
    let mut merge = Merge::new(meta);
    let log: Log = &mut outcome;
    pages.for_each(|page| merge.add(&page, log).unwrap());
    merge.finish()
}

#[test]
fn the_merge_is_that_of_the_model_in_any_order_with_duplicates() {
    let mut r = Random(20);
    for seed in 0..400 {
        let pages = pages(&mut r);
        let meta = Meta {
            horizon: if r.one_in(2) { 0 } else { 100 * r.below(11) },
            clock: r.below(100),
            token: r.below(1000),
            high: r.below(40) as u32,
            ..Meta::default()
        };
        let expected = model(&pages, &meta);
        for _ in 0..4 {
            let mut order: Vec<_> = (0..pages.0.len()).collect();
            (0..order.len() / 2).for_each(|_| order.push(r.below(pages.0.len() as u64) as usize));
            r.shuffle(&mut order);
            let all: Vec<_> = pages.iter().collect();
            let merged = merge(&meta, order.iter().map(|i| all[*i]));
            assert_eq!(state(&merged, &pages), expected, "seed {seed}");
        }
    }
}

#[test]
fn live_entries_are_those_at_home() {
    let mut r = Random(21);
    for _ in 0..200 {
        let pages = pages(&mut r);
        let merged = merge(&Meta::default(), pages.iter());
        let mut live = BTreeMap::<u32, u32>::new();
        for (record, w) in merged.records().filter(|(_, w)| w.home.is_some()) {
            let mut pieces = merged.blocks(record).map(|place| place.block).peekable();
            let first = pieces.peek().copied();
            assert!(first.is_none() || first == w.home);
            let whole = first.is_none().then(|| w.home.unwrap());
            pieces.chain(whole).for_each(|block| *live.entry(block).or_default() += 1);
        }
        for page in pages.iter().filter(|p| p.special.kind == PageKind::Image) {
            let here = merged.live(&page);
            assert_eq!(here.entries as u32, live.remove(&page.special.block).unwrap_or(0));
            assert!((here.bytes > 0) == (here.entries > 0));
        }
        assert!(live.is_empty());
    }
}

/// A page with these entries.
fn page_of(kind: PageKind, block: u32, a: Lsn, entries: &[Entry]) -> (PageKind, u32, Box<[u8; PAGE]>) {
    let mut page = blank();
    let mut to = PageMut::begin(&mut page, kind, block, 0, a, 0);
    for e in entries {
        match kind {
            PageKind::Journal => to.append_replayed(e, a, 0),
            _ => to.append(e),
        }
        .unwrap();
    }
    (kind, block, page)
}

fn tomb(record: u32, csn: Csn, pending: Option<u64>) -> Entry<'static> {
    Entry { csn, kind: Kind::Tomb, record, pending, fragment: None, payload: &[] }
}

#[test]
fn the_outcome_decides_about_pending_entries() {
    for (n, (csn, aborted, older, open)) in
        [(20, 0, 0, 0), (10, 1, 0, 0), (10, 0, 0, 1), (10, 0, 1, 0)].into_iter().enumerate()
    {
        let pages =
            Pages(vec![page_of(PageKind::Image, 1, 60, &[tomb(7, 10, None), tomb(7, 20, Some(80 + n as u64))])]);
        let merged = merge(&Meta::default(), pages.iter());
        assert_eq!(merged.winner(7).map(|w| w.csn), Some(csn));
        assert_eq!((merged.counts.aborted, merged.counts.older, merged.open.len()), (aborted, older, open));
    }
}

#[test]
fn entries_of_committed_transactions_must_be_imaged_again() {
    let pages = Pages(vec![page_of(PageKind::Image, 1, 60, &[tomb(7, 10, None), tomb(7, 20, Some(80))])]);
    let winner = merge(&Meta::default(), pages.iter()).winner(7).unwrap();
    assert_eq!((winner.csn, winner.dirty, winner.home), (20, true, Some(1)));
}

#[test]
fn the_journal_below_the_horizon_does_not_count() {
    let pages = Pages(vec![
        page_of(PageKind::Journal, 0, 59, &[tomb(7, 10, None), Entry::high(50)]),
        page_of(PageKind::Journal, 1, 60, &[tomb(8, 11, None)]),
    ]);
    let merged = merge(&Meta { horizon: 60, ..Meta::default() }, pages.iter());
    assert_eq!(merged.records().map(|(record, _)| record).collect::<Vec<_>>(), [8]);
    assert_eq!((merged.high, merged.counts.below_horizon, merged.counts.pages), (9, 1, 1));
}

#[test]
fn the_largest_record_numbers_and_hints_have_their_place() {
    let last = MAX_RECORDS as u32 - 1;
    let hints =
        |csn, payload| Entry { csn, kind: Kind::Hints, record: NO_RECORD, pending: None, fragment: None, payload };
    let pages = Pages(vec![page_of(PageKind::Image, 1, 1, &[tomb(last, 5, None), hints(6, b"b"), hints(5, b"a")])]);
    let merged = merge(&Meta::default(), pages.iter());
    assert_eq!(merged.records().map(|(record, w)| (record, w.csn)).collect::<Vec<_>>(), [(last, 5)]);
    assert_eq!((merged.high as u64, merged.winner(NO_RECORD).unwrap().csn), (MAX_RECORDS, 6));
    let found: Vec<_> = pages
        .iter()
        .flat_map(|p| {
            merged
                .winners(&p)
                .filter(|w| w.entry.kind == Kind::Hints)
                .map(|w| w.entry.payload.to_vec())
                .collect::<Vec<_>>()
        })
        .collect();
    assert_eq!(found, [b"b"]);
}
