//! Compares sizes of objects with the table of docs/durability.md, "Sizes". Tests only.

/// The numbers in the row of this object, in order.
fn documented(object: &str) -> Vec<usize> {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/durability.md");
    let text = std::fs::read_to_string(file).expect("the document");
    let rows: Vec<&str> = text.lines().filter_map(|l| l.strip_prefix("| ")?.strip_prefix(object)).collect();
    assert_eq!(rows.len(), 1, "one row begins with {object:?}");
    let (_, cell) = rows[0].split_once(" | ").expect("a second column");
    let digits = |w: &str| w.trim_end_matches([',', ':', ';', '.', ')', '|']).replace(',', "");
    cell.split([' ', '(']).filter_map(|w| digits(w).parse().ok()).collect()
}

/// The row of this object has these numbers, in this order, and perhaps more between them.
#[track_caller]
pub fn assert_documented(object: &str, numbers: &[usize]) {
    let found = documented(object);
    let mut rest = found.iter();
    let all = numbers.iter().all(|n| rest.any(|m| m == n));
    assert!(all, "docs/durability.md says {found:?} of {object:?}, and the source {numbers:?}");
}

#[test]
fn the_table_of_sizes_is_right() {
    use crate::partition::{Partition, PartitionMap};
    use crate::range::{IndexRanges, KeyEntry, Parts, Range, RangeSet};
    use crate::record::{Record, VERSION_HEADER};
    use crate::shared::Slot;
    use std::mem::size_of;
    assert_documented("a record (", &[size_of::<Record>()]);
    assert_documented("a version of a row", &[VERSION_HEADER]);
    assert_documented("a tombstone", &[VERSION_HEADER]);
    assert_documented("a map from rows", &[size_of::<PartitionMap>(), size_of::<Partition>()]);
    let (range, list) = (size_of::<Range>() + 12, RangeSet::size_of_list(256));
    assert_documented("a set of logical ranges", &[size_of::<RangeSet>(), range, RangeSet::size(4096, 0) / 1000]);
    assert_documented("a list of a logical range", &[size_of::<KeyEntry>(), list]);
    assert_documented("what an index with ranges", &[size_of::<IndexRanges>()]);
    assert_documented("parts of ranges", &[size_of::<Parts>()]);
    assert_documented("a session's slot", &[size_of::<Slot>() + 1280 + 8, size_of::<Slot>(), 1280]);
}

#[test]
fn a_number_that_is_not_there_is_found() {
    let wrong = || assert_documented("a record (", &[33]);
    assert!(std::panic::catch_unwind(wrong).is_err());
}
