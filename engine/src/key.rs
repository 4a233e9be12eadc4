//! Keys as byte strings that compare like the values they stand for.
//!
//! A key is a sequence of columns. Each column is a marker and, for a value, its payload. The
//! marker of an integer says how long it is ([`put_int`]). Payloads are *self-delimiting*: no
//! payload is a prefix of another one of its column. So comparing the bytes of two keys compares
//! their columns in order.
//!
//! A *bound* is a key of some leading columns. By itself it is at or before all keys that begin
//! with them. With a last byte [`AFTER`], which is greater than any marker, it is after all of
//! them.
//!
//! Values without a known byte order are stored unchanged with their length (*raw* columns); the
//! owner of the key compares them. Keys with such a column have lengths for all columns
//! ([`columns`]).

/// The marker of a NULL that sorts before all values.
pub const NULL_FIRST: u8 = 0x10;
/// The marker of a value.
pub const VALUE: u8 = 0x20;
/// The marker of a NULL that sorts after all values.
pub const NULL_LAST: u8 = 0x30;
/// The last byte of a bound after all keys with its prefix.
pub const AFTER: u8 = 0xff;

/// Appends a whole column with an integer value. The marker says how many bytes follow. Only bytes
/// that differ from the sign follow, so small numbers are short. Markers of integers lie between
/// those of NULLs: from [`VALUE`] on for 0 and above, below it for negative numbers.
#[inline]
pub fn put_int(out: &mut Vec<u8>, v: i64) {
    let magnitude = (v ^ (v >> 63)) as u64;
    let n = (u64::BITS - magnitude.leading_zeros()).div_ceil(8) as u8;
    let mut column = [0; 9];
    column[0] = if v < 0 { VALUE - 1 - n } else { VALUE + n };
    column[1..].copy_from_slice(&(v as u64).checked_shl(64 - 8 * n as u32).unwrap_or(0).to_be_bytes());
    out.extend_from_slice(&column[..1 + n as usize]);
}

/// A key of at most 8 bytes in a word: the bytes that [`put_int`] would append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Short {
    /// The bytes, with the first one highest, padded with zeroes.
    word: u64,
    len: u32,
}

impl Short {
    /// The key without columns.
    pub const EMPTY: Short = Short { word: 0, len: 0 };
    const BYTES: u32 = u64::BITS / 8;

    /// Appends the column of [`put_int`]. Returns false, and appends nothing, if it does not fit.
    #[inline(always)]
    #[must_use]
    pub fn put_int(&mut self, v: i64) -> bool {
        let magnitude = (v ^ (v >> 63)) as u64;
        let n = (u64::BITS - magnitude.leading_zeros()).div_ceil(8);
        let len = self.len + 1 + n;
        if len > Self::BYTES {
            return false;
        }
        let mark = if v < 0 { VALUE - 1 - n as u8 } else { VALUE + n as u8 };
        // `n` is at most 7. The value goes behind the marker, and both behind the bytes that are
        // there. A value of no bytes leaves nothing.
        let value = (v as u64) << (u64::BITS - 1 - 8 * n) << 1;
        self.word |= ((mark as u64) << 56 | value >> 8) >> (8 * self.len);
        self.len = len;
        true
    }

    /// The key of these bytes, if there are at most 8.
    pub fn of(key: &[u8]) -> Option<Short> {
        let mut bytes = [0; Self::BYTES as usize];
        bytes.get_mut(..key.len())?.copy_from_slice(key);
        Some(Short { word: u64::from_be_bytes(bytes), len: key.len() as u32 })
    }

    /// The bytes as a number that compares as they do, without regard to their count.
    #[inline]
    pub fn word(self) -> u64 {
        self.word
    }
    /// The number of bytes.
    #[inline]
    pub fn len(self) -> usize {
        self.len as usize
    }
    /// The bytes, and the number of those that count.
    #[inline]
    pub fn bytes(self) -> ([u8; 8], usize) {
        (self.word.to_be_bytes(), self.len as usize)
    }
}

/// The integer of a column with this marker, and the rest behind the column. `rest` follows the
/// marker.
pub fn get_int(mark: u8, rest: &[u8]) -> Option<(i64, &[u8])> {
    let (n, sign) = if mark < VALUE { (VALUE - 1 - mark, -1) } else { (mark - VALUE, 0) };
    let (bytes, tail) = rest.split_at_checked(n as usize).filter(|_| n <= 8)?;
    Some((bytes.iter().fold(sign, |v, b| v << 8 | *b as i64), tail))
}

/// Appends a signed integer as the payload of a column, always in 8 bytes.
pub fn put_wide_int(out: &mut Vec<u8>, v: i64) {
    out.extend(((v as u64) ^ (1 << 63)).to_be_bytes());
}

/// Appends a floating-point number. Both zeros are equal, and NaN is greater than all, as in SQL.
pub fn put_float(out: &mut Vec<u8>, v: f64) {
    let bits = if v.is_nan() {
        u64::MAX
    } else if v == 0.0 {
        1 << 63
    } else if v.is_sign_negative() {
        !v.to_bits()
    } else {
        v.to_bits() | (1 << 63)
    };
    out.extend(bits.to_be_bytes());
}

/// Appends bytes of any length.
pub fn put_bytes(out: &mut Vec<u8>, v: &[u8]) {
    let mut rest = v;
    while let Some(at) = rest.iter().position(|b| *b == 0) {
        out.extend(&rest[..at]);
        out.extend([0, 0xff]);
        rest = &rest[at + 1..];
    }
    out.extend(rest);
    out.extend([0, 0]);
}

/// Reverses the order of the bytes from `start` on, for a column in descending order.
pub fn reverse(out: &mut [u8], start: usize) {
    for b in &mut out[start..] {
        *b = !*b;
    }
}

/// A column of a key with lengths, or the last byte of a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column<'a> {
    /// NULL, or the end of a bound, as its marker.
    Mark(u8),
    /// The payload of a value.
    Value(&'a [u8]),
}

impl Column<'_> {
    /// The marker.
    pub fn mark(self) -> u8 {
        match self {
            Column::Mark(m) => m,
            Column::Value(_) => VALUE,
        }
    }
}

/// The size of a length in bytes.
const LENGTH: usize = 4;

/// Starts a value of a key with lengths. Its result is the `start` of [`end_value`].
pub fn start_value(out: &mut Vec<u8>) -> usize {
    out.extend([0; LENGTH]);
    out.len()
}

/// Ends a value of a key with lengths.
pub fn end_value(out: &mut [u8], start: usize) {
    let len = (out.len() - start) as u32;
    out[start - LENGTH..start].copy_from_slice(&len.to_le_bytes());
}

/// The columns of a key with lengths.
pub fn columns(mut key: &[u8]) -> impl Iterator<Item = Column<'_>> {
    std::iter::from_fn(move || {
        let (&mark, rest) = key.split_first()?;
        if mark != VALUE {
            key = rest;
            return Some(Column::Mark(mark));
        }
        let (len, rest) = rest.split_first_chunk::<LENGTH>()?;
        let (value, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
        key = rest;
        Some(Column::Value(value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(f: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut v = Vec::new();
        f(&mut v);
        v
    }

    #[test]
    fn short_keys_are_the_bytes_of_their_columns() {
        let mut values: Vec<i64> = (0..64).flat_map(|b| [1 << b, (1 << b) - 1, -(1 << b), -1 - (1 << b)]).collect();
        values.extend([0, i64::MAX, i64::MIN, -1, 4711]);
        for &a in &values {
            for &b in &values {
                let (mut long, mut short, mut fits) = (Vec::new(), Short::EMPTY, true);
                for v in [a, b, 7] {
                    let before = (long.len(), short);
                    put_int(&mut long, v);
                    fits = short.put_int(v);
                    assert_eq!(fits, long.len() <= 8, "{a} {b}");
                    if !fits {
                        long.truncate(before.0);
                        assert_eq!(short, before.1, "nothing is appended");
                        break;
                    }
                }
                let (bytes, n) = short.bytes();
                assert_eq!(&bytes[..n], long, "{a} {b} {fits}");
            }
        }
    }

    #[test]
    fn integers_and_floats_keep_their_order() {
        let ints = [i64::MIN, -256, -1, 0, 1, 255, 256, i64::MAX];
        assert!(ints.windows(2).all(|w| key(|k| put_wide_int(k, w[0])) < key(|k| put_wide_int(k, w[1]))));
        let floats = [f64::NEG_INFINITY, -1e300, -1.5, -1e-300, 0.0, 1e-300, 1.5, 1e300, f64::INFINITY, f64::NAN];
        assert!(floats.windows(2).all(|w| key(|k| put_float(k, w[0])) < key(|k| put_float(k, w[1]))));
        assert_eq!(key(|k| put_float(k, -0.0)), key(|k| put_float(k, 0.0)));
        assert_eq!(key(|k| put_float(k, -f64::NAN)), key(|k| put_float(k, f64::NAN)));
    }

    #[test]
    fn short_integers_keep_their_order_whatever_follows() {
        let mut ints: Vec<i64> = (0..63).flat_map(|n| [1i64 << n, (1 << n) - 1, (1 << n) + 1]).collect();
        ints.extend(ints.clone().iter().flat_map(|v| [-v, !v]));
        ints.extend([i64::MIN, i64::MAX, 0]);
        ints.sort();
        ints.dedup();
        for w in ints.windows(2) {
            for (x, y) in [(0, 255), (255, 0), (NULL_FIRST, AFTER)] {
                let column = |v, then| {
                    key(|k| {
                        put_int(k, v);
                        k.push(then);
                    })
                };
                let (a, b) = (column(w[0], x), column(w[1], y));
                assert!(a < b, "{} {}: {a:?} {b:?}", w[0], w[1]);
                assert!(NULL_FIRST < a[0] && b[0] < NULL_LAST);
                assert_eq!(get_int(a[0], &a[1..]), Some((w[0], &[x][..])));
                // Descending columns have the complement.
                assert!(column(!w[0], x) > column(!w[1], y));
            }
        }
        assert_eq!([0, 255, 256, -1, -257, 70_000].map(|v| key(|k| put_int(k, v)).len()), [1, 2, 3, 1, 3, 4]);
        assert_eq!(get_int(VALUE + 3, &[1, 2]), None);
        assert_eq!(get_int(NULL_LAST, &[0; 32]), None);
    }

    #[test]
    fn bytes_keep_their_order_whatever_follows() {
        let values: [&[u8]; 9] = [b"", b"\0", b"\0\0", b"\0\x01", b"\0\xff", b"\x01", b"a", b"a\0", b"ab"];
        for w in values.windows(2) {
            for (x, y) in [(0u8, 255u8), (255, 0), (VALUE, NULL_LAST)] {
                let a = key(|k| {
                    put_bytes(k, w[0]);
                    k.push(x);
                });
                let b = key(|k| {
                    put_bytes(k, w[1]);
                    k.push(y);
                });
                assert!(a < b, "{:?} {:?}", w[0], w[1]);
                let (mut a, mut b) = (a, b);
                reverse(&mut a, 0);
                reverse(&mut b, 0);
                assert!(a > b);
            }
        }
    }

    #[test]
    fn bounds_lie_around_all_keys_with_their_prefix() {
        let prefix = |k: &mut Vec<u8>| put_int(k, 7);
        let (lo, mut hi) = (key(prefix), key(prefix));
        hi.push(AFTER);
        assert!(lo < hi);
        for mark in [NULL_FIRST, VALUE, NULL_LAST] {
            let mut k = key(prefix);
            k.push(mark);
            put_bytes(&mut k, b"\xff\xff");
            assert!(lo < k && k < hi);
        }
        let next = key(|k| put_int(k, 8));
        assert!(hi < next);
    }

    #[test]
    fn columns_with_lengths_are_read_back() {
        let mut k = vec![VALUE];
        let s = start_value(&mut k);
        k.extend(b"xyz");
        end_value(&mut k, s);
        k.push(NULL_LAST);
        k.push(AFTER);
        let got: Vec<_> = columns(&k).collect();
        assert_eq!(got, [Column::Value(b"xyz"), Column::Mark(NULL_LAST), Column::Mark(AFTER)]);
        assert_eq!(columns(&[VALUE, 9, 0, 0, 0, 1]).count(), 0, "a key that is cut ends");
    }
}
