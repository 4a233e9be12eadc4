//! The time that the machine waits for memory, measured by random walks over all lines of 64 bytes:
//! one alone, and eight side by side.

use super::{cpu_ns, Rng};
use mixedcc_engine::threads::Memory;
use std::hint::black_box;

/// The number of words in a line.
const LINE: usize = 8;
const STEPS: u64 = 4_000_000;
const WALKS: usize = 8;

/// Prints CSV with a line for each page size.
pub fn measure(bytes: usize, seed: u64) {
    println!("megabytes,pages,walks,ns_per_line");
    for (huge, pages) in [(false, "4K"), (true, "2M")] {
        let mut memory = Memory::new(bytes, huge).expect("memory");
        let words = &mut memory.words()[..bytes / size_of::<u64>()];
        let mut rng = Rng::new(seed);
        make_circle(words, &mut rng);
        for n in [1, WALKS] {
            println!("{},{pages},{n},{:.1}", bytes >> 20, walk(words, n, &mut rng));
        }
    }
}

/// Makes the first word of each line the place of another line. All lines are on one circle.
fn make_circle(words: &mut [u64], rng: &mut Rng) {
    let mut order: Vec<u32> = (0..(words.len() / LINE) as u32).collect();
    for i in (1..order.len()).rev() {
        order.swap(i, rng.below(i as u64 + 1) as usize);
    }
    for (i, &line) in order.iter().enumerate() {
        let next = order[(i + 1) % order.len()];
        words[line as usize * LINE] = u64::from(next) * LINE as u64;
    }
}

/// CPU time of a step in ns, with this number of walks at a time. Each step of a walk needs the
/// result of the step before it.
fn walk(words: &[u64], walks: usize, rng: &mut Rng) -> f64 {
    let lines = (words.len() / LINE) as u64;
    let mut at = [0; WALKS];
    at.fill_with(|| rng.below(lines) as usize * LINE);
    let start = cpu_ns();
    for _ in 0..STEPS / walks as u64 {
        for at in &mut at[..walks] {
            *at = words[*at] as usize;
        }
    }
    let ns = cpu_ns() - start;
    black_box(at);
    ns as f64 / (STEPS / walks as u64 * walks as u64) as f64
}
