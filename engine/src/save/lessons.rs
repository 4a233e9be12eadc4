//! The coordinator's lessons about a table are saved with it.

use super::{LoadError, Reader, Writer};
use crate::choice::{Lesson, LESSONS, LESSON_WORDS};
use std::io::{Read, Write};

/// Writes the lessons of a table, oldest first.
pub(super) fn write<W: Write>(w: &mut Writer<W>, table: u64, all: &[Lesson]) -> std::io::Result<()> {
    let of_it: Vec<_> = all.iter().filter(|l| l.table == table).collect();
    w.put_u32(of_it.len() as u32)?;
    w.put_u32(LESSON_WORDS as u32)?;
    of_it.iter().flat_map(|l| l.pack()).try_for_each(|word| w.put_u64(word))
}

/// Reads the lessons of a table. Lessons with other features than the present ones are useless, and
/// are left out. So are lessons about protocols that this build does not have.
pub(super) fn read<R: Read>(r: &mut Reader<R>) -> Result<Vec<Lesson>, LoadError> {
    let (n, words) = (r.get_u32()? as usize, r.get_u32()? as usize);
    if n > LESSONS {
        return Err(LoadError::Damaged("there are more lessons than can be"));
    }
    if words != LESSON_WORDS {
        r.skip(n * words * size_of::<u64>())?;
        return Ok(Vec::new());
    }
    let mut all = Vec::with_capacity(n);
    for _ in 0..n {
        let mut w = [0; LESSON_WORDS];
        for word in &mut w {
            *word = r.get_u64()?;
        }
        all.extend(Lesson::unpack(&w).filter(Lesson::is_sound));
    }
    Ok(all)
}
