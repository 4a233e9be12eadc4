//! Pending entries after a recovery: their transactions are decided, or prepared.

use super::merge::{Log, Outcome};
use super::page::{Page, PageKind, PageMut, HAS_PENDING, LONG, PAGE};
use super::{Entry, Lsn};

/// An entry as it stays. `None`: its transaction has aborted, or a decided entry has replaced it.
/// That of a transaction which is prepared stays pending.
pub fn decided<'a>(entry: &Entry<'a>, log: Log) -> Option<Entry<'a>> {
    let Some(xid) = entry.pending else { return Some(*entry) };
    match log(xid) {
        Outcome::Committed => Some(Entry { pending: None, ..*entry }),
        Outcome::Open => Some(*entry),
        Outcome::Aborted | Outcome::Older => None,
    }
}

/// Does an image page have to be written again without pending entries?
pub fn is_due(page: &Page) -> bool {
    page.special.kind == PageKind::Image && page.special.flags & HAS_PENDING != 0
}

/// Stays each entry of the page as it is?
pub fn is_as_before(page: &Page, log: Log) -> bool {
    page.entries().all(|(_, entry)| decided(&entry, log).is_some_and(|stays| stays.pending == entry.pending))
}

/// Writes an image page again, with its entries as they stay. It has the same block and chain.
/// `now`: the position in WAL.
pub fn resolve<'p>(page: &Page, to: &'p mut [u8; PAGE], now: Lsn, log: Log) -> PageMut<'p> {
    let special = page.special;
    let mut to = PageMut::begin(to, PageKind::Image, special.block, special.flags & LONG, now, special.b);
    to.tell_token(special.token_max);
    for (_, entry) in page.entries() {
        if let Some(entry) = decided(&entry, log) {
            let fits = to.append(&entry).is_some();
            debug_assert!(fits, "entries never become longer");
        }
    }
    to
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::durable::Kind;

    #[test]
    fn a_resolved_page_has_what_has_committed() {
        let mut bytes = [0; PAGE];
        let mut page = PageMut::begin(&mut bytes, PageKind::Image, 7, LONG, 100, 8);
        for (csn, pending) in [(1, None), (2, Some(10)), (3, Some(11)), (4, Some(12))] {
            let entry = Entry { csn, kind: Kind::Row, record: 5, pending, fragment: None, payload: b"row" };
            page.append(&entry).expect("it fits");
        }
        let read = Page::read(&bytes, 7).unwrap().unwrap();
        assert!(is_due(&read));
        let mut log = |xid| match xid {
            10 => Outcome::Committed,
            11 => Outcome::Aborted,
            _ => Outcome::Older,
        };
        let mut again = [0; PAGE];
        resolve(&read, &mut again, 200, &mut log);
        let again = Page::read(&again, 7).unwrap().unwrap();
        assert!(!is_due(&again));
        assert_eq!((again.special.a, again.special.b, again.special.flags), (200, 8, LONG));
        let left: Vec<_> = again.entries().map(|(_, e)| (e.csn, e.pending)).collect();
        assert_eq!(left, [(1, None), (2, None)]);
        let mut open = [0; PAGE];
        resolve(&read, &mut open, 200, &mut |xid| if xid == 10 { Outcome::Open } else { Outcome::Aborted });
        let open = Page::read(&open, 7).unwrap().unwrap();
        assert!(is_due(&open), "it is looked at again");
        let left: Vec<_> = open.entries().map(|(_, e)| (e.csn, e.pending)).collect();
        assert_eq!(left, [(1, None), (2, Some(10))]);
    }
}
