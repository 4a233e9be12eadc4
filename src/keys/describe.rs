//! Keys and bounds as text, for views and EXPLAIN.

use super::codec::{Codec, KeyColumn, Kind};
use mixedcc_engine::key::{self, AFTER, NULL_FIRST, NULL_LAST, VALUE};
use pgrx::pg_sys::{self, Datum};

/// A key or bound as SQL shows a row: `(17, abc)`; a bound that is after all keys with its columns
/// ends with `infinity`, and that before all keys is `-infinity`.
pub fn text(codec: &Codec, key: &[u8]) -> String {
    let mut out = Vec::new();
    let mut rest = key;
    let mut columns = codec.columns.iter();
    while let Some((&mark, tail)) = rest.split_first() {
        rest = tail;
        out.push(match mark {
            AFTER => "infinity".into(),
            NULL_FIRST | NULL_LAST => {
                columns.next();
                "NULL".into()
            }
            VALUE if !columns.as_slice().first().is_some_and(|c| codec.order == 0 && c.is_int()) => {
                match columns.next().and_then(|c| Some((c, take(codec, c, &mut rest)?))) {
                    Some((c, payload)) => value(c, payload),
                    None => break,
                }
            }
            _ => match columns.next().and_then(|c| Some((c, take_int(codec, c, mark, &mut rest)?))) {
                Some((c, payload)) => value(c, payload),
                None => break,
            },
        });
    }
    match out.as_slice() {
        [] => "-infinity".into(),
        [one] => one.clone(),
        _ => format!("({})", out.join(", ")),
    }
}

/// Takes the integer of a column with this marker off the rest of a key: its payload.
fn take_int(codec: &Codec, c: &KeyColumn, mark: u8, rest: &mut &[u8]) -> Option<Vec<u8>> {
    let (v, tail) = key::get_int(mark, rest).filter(|_| codec.order == 0 && c.is_int())?;
    *rest = tail;
    let mut payload = Vec::new();
    key::put_wide_int(&mut payload, if c.desc { !v } else { v });
    Some(payload)
}

/// Takes the payload of a column off the rest of a key, in ascending form.
fn take(codec: &Codec, c: &KeyColumn, rest: &mut &[u8]) -> Option<Vec<u8>> {
    if codec.order != 0 {
        let (len, tail) = rest.split_first_chunk::<4>()?;
        let (v, tail) = tail.split_at_checked(u32::from_le_bytes(*len) as usize)?;
        *rest = tail;
        return Some(ascending(c, v));
    }
    let width = match c.kind {
        Kind::Bool | Kind::Char => 1,
        Kind::Hash => 4,
        Kind::Uuid => 16,
        Kind::Text | Kind::Bpchar | Kind::Name => {
            let end = if c.desc { [0xff, 0xff] } else { [0, 0] };
            // Pairs start at even distances from zero bytes only: escapes are skipped as pairs.
            let mut at = 0;
            loop {
                let pair = rest.get(at..at + 2)?;
                if pair == end {
                    break at + 2;
                }
                at += if pair[0] == end[0] { 2 } else { 1 };
            }
        }
        _ => 8,
    };
    let (v, tail) = rest.split_at_checked(width)?;
    *rest = tail;
    Some(ascending(c, v))
}

fn ascending(c: &KeyColumn, v: &[u8]) -> Vec<u8> {
    let mut v = v.to_vec();
    if c.desc && c.kind != Kind::Raw {
        key::reverse(&mut v, 0);
    }
    v
}

fn unescaped(v: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(v.len());
    let mut at = 0;
    while at + 2 < v.len() || at + 2 == v.len() && v[at..] != [0, 0] {
        out.push(v[at]);
        at += if v[at] == 0 { 2 } else { 1 };
    }
    out
}

fn number(v: &[u8]) -> u64 {
    v.iter().fold(0, |n, b| (n << 8) | *b as u64)
}

fn float(v: &[u8]) -> f64 {
    match number(v) {
        u64::MAX => f64::NAN,
        b if b >> 63 == 1 => f64::from_bits(b & !(1 << 63)),
        b => f64::from_bits(!b),
    }
}

/// A value by its type's output function.
fn value(c: &KeyColumn, payload: Vec<u8>) -> String {
    let int = || (number(&payload) ^ (1 << 63)) as i64;
    let mut room = Vec::new();
    let datum = match c.kind {
        Kind::Hash => return format!("hash {:08x}", number(&payload)),
        Kind::Bool | Kind::Char => Datum::from(payload[0] as usize),
        Kind::Int2 => Datum::from(int() as i16),
        Kind::Int4 => Datum::from(int() as i32),
        Kind::Int8 => Datum::from(int()),
        Kind::Oid => Datum::from(int() as u32),
        Kind::Float4 => Datum::from((float(&payload) as f32).to_bits()),
        Kind::Float8 => Datum::from(float(&payload).to_bits() as usize),
        Kind::Uuid => c.aligned(&payload, &mut room),
        Kind::Raw => c.unraw(&payload, &mut room),
        Kind::Name => {
            let mut name = unescaped(&payload);
            name.resize(pg_sys::NAMEDATALEN as usize, 0);
            c.aligned(&name, &mut room)
        }
        Kind::Text | Kind::Bpchar => {
            let v = unescaped(&payload);
            // SAFETY: `v` has that many bytes. The result is a varlena, which text, bpchar and
            // bytea are.
            Datum::from(unsafe { pg_sys::cstring_to_text_with_len(v.as_ptr().cast(), v.len() as i32) })
        }
    };
    let (mut function, mut varlena) = (pg_sys::InvalidOid, false);
    // SAFETY: `datum` is a value of the column's type, made of its payload. The output function's
    // result is a C string.
    unsafe {
        pg_sys::getTypeOutputInfo(c.atttypid, &mut function, &mut varlena);
        crate::pg::text::read(pg_sys::OidOutputFunctionCall(function, datum))
    }
}
