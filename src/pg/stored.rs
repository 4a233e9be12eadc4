//! Rows as WAL and image pages have them: a version's tuple without what is of its place and its
//! writer's command (xmax, cid and ctid).

use std::mem::offset_of;

/// Where xmax begins.
const XMAX: usize = 4;
/// Where the bytes after ctid begin.
const REST: usize = offset_of!(pgrx::pg_sys::HeapTupleHeaderData, t_infomask2);
const _: () = assert!(REST == 18);
/// The bytes that are left out.
const LEFT_OUT: usize = REST - XMAX;

/// The bytes that the stored form of a version's payload takes.
pub fn packed_len(payload: usize) -> usize {
    payload - LEFT_OUT
}

/// The bytes that the payload of a stored row of so many bytes takes.
pub fn payload_len(packed: usize) -> usize {
    packed + LEFT_OUT
}

/// The stored form of a version's payload, in two parts.
#[inline]
pub fn parts(payload: &[u8]) -> [&[u8]; 2] {
    [&payload[..XMAX], &payload[REST..]]
}

/// The columns of a version's payload, with what says how they are laid out: what logical decoding
/// gets of a row.
#[inline]
pub fn columns(payload: &[u8]) -> &[u8] {
    &payload[REST..]
}

/// The bytes of a tuple whose [`columns`] these are.
pub fn tuple_len(columns: &[u8]) -> usize {
    REST + columns.len()
}

/// Writes a tuple with these [`columns`] to `to`, which has [`tuple_len`] bytes. The fields before
/// them are 0.
pub fn put_columns(columns: &[u8], to: &mut [u8]) {
    to[..REST].fill(0);
    to[REST..].copy_from_slice(columns);
}

/// Appends the stored form of a version's payload.
pub fn pack(payload: &[u8], to: &mut Vec<u8>) {
    parts(payload).iter().for_each(|part| to.extend_from_slice(part));
}

/// The bytes that the payload of a stored row takes. `None`: it is no stored row.
pub fn unpacked_len(row: &[u8]) -> Option<usize> {
    let head = size_of::<pgrx::pg_sys::HeapTupleHeaderData>();
    Some(payload_len(row.len())).filter(|len| *len >= head)
}

/// Writes the payload of a stored row to `to`, which has [`unpacked_len`] bytes. xmax, cid and ctid
/// are 0.
pub fn unpack(row: &[u8], to: &mut [u8]) {
    to[..XMAX].copy_from_slice(&row[..XMAX]);
    to[XMAX..REST].fill(0);
    to[REST..].copy_from_slice(&row[XMAX..]);
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn what_is_stored_comes_back_without_xmax_cid_and_ctid() {
        let payload: Vec<u8> = (1..=60).collect();
        let mut row = Vec::new();
        pack(&payload, &mut row);
        assert_eq!((row.len(), packed_len(60), unpacked_len(&row)), (46, 46, Some(60)));
        let mut back = vec![9; 60];
        unpack(&row, &mut back);
        let mut expected = payload;
        expected[4..18].fill(0);
        assert_eq!(back, expected);
        assert_eq!(unpacked_len(&row[..8]), None);
        let mut tuple = vec![9; tuple_len(columns(&expected))];
        put_columns(columns(&expected), &mut tuple);
        assert_eq!((&tuple[..18], &tuple[18..]), (&[0; 18][..], &expected[18..]));
    }
}
