//! Pending entries after a recovery: their transactions are decided.

use super::merge::{Log, Outcome};
use super::page::{Page, PageKind, PageMut, HAS_PENDING, LONG, PAGE};
use super::Entry;

/// A transaction of before the recovery is still open: its full id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StillOpen(pub u64);

/// An entry as it stays. `None`: its transaction has aborted, or a decided entry has replaced it.
pub fn decided<'a>(entry: &Entry<'a>, log: Log) -> Result<Option<Entry<'a>>, StillOpen> {
    let Some(xid) = entry.pending else { return Ok(Some(*entry)) };
    match log(xid) {
        Outcome::Committed => Ok(Some(Entry { pending: None, ..*entry })),
        Outcome::Aborted | Outcome::Older => Ok(None),
        Outcome::Open => Err(StillOpen(xid)),
    }
}

/// Does an image page have to be written again without pending entries?
pub fn is_due(page: &Page) -> bool {
    page.special.kind == PageKind::Image && page.special.flags & HAS_PENDING != 0
}

/// Writes an image page again, with its entries as they stay. It has the same block and chain.
pub fn resolve<'p>(page: &Page, to: &'p mut [u8; PAGE], log: Log) -> Result<PageMut<'p>, StillOpen> {
    let special = page.special;
    let mut to = PageMut::begin(to, PageKind::Image, special.block, special.flags & LONG, special.a, special.b);
    to.tell_token(special.token_max);
    for (_, entry) in page.entries() {
        if let Some(entry) = decided(&entry, log)? {
            let fits = to.append(&entry).is_some();
            debug_assert!(fits, "entries only become shorter");
        }
    }
    Ok(to)
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
        resolve(&read, &mut again, &mut log).expect("all are decided");
        let again = Page::read(&again, 7).unwrap().unwrap();
        assert!(!is_due(&again));
        assert_eq!((again.special.b, again.special.flags), (8, LONG));
        let left: Vec<_> = again.entries().map(|(_, e)| (e.csn, e.pending)).collect();
        assert_eq!(left, [(1, None), (2, None)]);
        let mut open = [0; PAGE];
        let open = resolve(&read, &mut open, &mut |_| Outcome::Open);
        assert_eq!(open.err(), Some(StillOpen(10)));
    }
}
