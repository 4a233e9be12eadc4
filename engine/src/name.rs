//! A short text that processes replace while others read it.

use crate::primitive::{AtomicU64, Ordering};

/// The longest text in bytes.
pub const NAME_MAX: usize = 192;
const WORDS: usize = NAME_MAX / 8;

/// A name for messages of processes that cannot look it up elsewhere. All-zero: no name.
#[repr(C)]
pub struct Name {
    /// Odd while the name is being written.
    seq: AtomicU64,
    /// The bytes, padded with zeroes.
    words: [AtomicU64; WORDS],
}

impl Name {
    /// Replaces the name. A longer text is cut off. If another process is replacing it at this
    /// moment, its text stays.
    pub fn set(&self, text: &str) {
        let text = &text[..text.floor_char_boundary(NAME_MAX)];
        if self.get().as_deref() == Some(text) {
            return;
        }
        let seq = self.seq.load(Ordering::SeqCst);
        let free = seq & 1 == 0;
        if !free || self.seq.compare_exchange(seq, seq + 1, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            return;
        }
        let mut bytes = [0; NAME_MAX];
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        for (to, from) in self.words.iter().zip(bytes.as_chunks::<8>().0) {
            to.store(u64::from_le_bytes(*from), Ordering::SeqCst);
        }
        self.seq.store(seq + 2, Ordering::SeqCst);
    }

    /// The name. `None` if there is none, or if it is just being replaced.
    pub fn get(&self) -> Option<String> {
        let seq = self.seq.load(Ordering::SeqCst);
        let bytes: Vec<u8> = self.words.iter().flat_map(|w| w.load(Ordering::SeqCst).to_le_bytes()).collect();
        if seq & 1 == 1 || self.seq.load(Ordering::SeqCst) != seq {
            return None;
        }
        let text: Vec<u8> = bytes.into_iter().take_while(|b| *b != 0).collect();
        String::from_utf8(text).ok().filter(|t| !t.is_empty())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn name() -> Box<Name> {
        // SAFETY: all-zero memory is a valid `Name`.
        unsafe { Box::new(std::mem::zeroed()) }
    }

    #[test]
    fn names_come_back_and_are_cut_between_characters() {
        let n = name();
        assert_eq!(n.get(), None);
        for text in ["shop.public.order", "a", "däta.public.\"T t\""] {
            n.set(text);
            assert_eq!(n.get().as_deref(), Some(text));
        }
        n.set(&"x".repeat(NAME_MAX));
        assert_eq!(n.get(), Some("x".repeat(NAME_MAX)));
        n.set(&format!("{}ä", "x".repeat(NAME_MAX - 1)));
        assert_eq!(n.get(), Some("x".repeat(NAME_MAX - 1)));
        n.set("");
        assert_eq!(n.get(), None);
    }

    #[test]
    fn nobody_reads_half_of_one_name_and_half_of_another() {
        let n = name();
        let texts = ["a".repeat(NAME_MAX), "b".repeat(NAME_MAX), "c".repeat(50)];
        std::thread::scope(|s| {
            for t in &texts {
                s.spawn(|| (0..20_000).for_each(|_| n.set(t)));
            }
            for _ in 0..20_000 {
                assert!(n.get().is_none_or(|got| texts.contains(&got)));
            }
        });
        n.set("last");
        assert_eq!(n.get().as_deref(), Some("last"));
    }
}
