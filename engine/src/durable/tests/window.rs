use crate::durable::window::{log, Closed, Dirty, Gate, Home, Place, Taken, Window};
use crate::primitive::{AtomicU32, AtomicU64, Ordering};
use std::cell::{Cell, RefCell};

/// Bits of 192 records.
#[derive(Default)]
struct Bits {
    flag: AtomicU32,
    words: [AtomicU64; 3],
}

impl Bits {
    fn new(set: &[u32]) -> Bits {
        let bits = Bits::default();
        set.iter().for_each(|record| bits.dirty().set(*record));
        bits
    }
    fn dirty(&self) -> Dirty<'_> {
        Dirty::new(&self.flag, &self.words)
    }
    fn set(&self) -> Vec<u32> {
        (0..192).filter(|record| self.dirty().is_set(*record)).collect()
    }
    fn flag(&self) -> bool {
        self.flag.load(Ordering::SeqCst) == 1
    }
}

const SOME: [u32; 6] = [0, 1, 63, 64, 130, 191];

#[test]
fn a_round_takes_each_dirty_record_once() {
    let bits = Bits::new(&SOME);
    assert!(bits.flag() && bits.set() == SOME);
    assert!(bits.dirty().take_flag() && !bits.flag());
    let mut seen = Vec::new();
    let done: Result<(), ()> = bits.dirty().take(|taken| {
        assert!(taken.records().all(|record| !bits.dirty().is_set(record)));
        seen.extend(taken.records());
        taken.imaged();
        Ok(())
    });
    assert_eq!((done, seen), (Ok(()), SOME.to_vec()));
    assert!(bits.set().is_empty() && !bits.dirty().take_flag());
}

#[test]
fn an_error_leaves_all_bits_of_the_batch_and_behind_it() {
    let bits = Bits::new(&SOME);
    bits.dirty().take_flag();
    // A batch of two words; the disk is full.
    let batch = RefCell::new(Vec::<Taken>::new());
    let done = bits.dirty().take(|taken| {
        batch.borrow_mut().push(taken);
        if batch.borrow().len() == 2 {
            Err("disk full")
        } else {
            Ok(())
        }
    });
    assert_eq!(done, Err("disk full"));
    assert!(bits.flag());
    drop(batch);
    assert_eq!(bits.set(), SOME);
}

#[test]
fn records_are_inserted_while_the_gate_is_open() {
    let (window, gate) = (Window::default(), Gate::default());
    assert_eq!((window.enter(&gate), window.is_out()), (Err(Closed), true));
    gate.open();
    assert_eq!((window.enter(&gate), window.is_out(), window.is_inserting()), (Ok(()), false, false));
    let steps = RefCell::new(Vec::new());
    let step = |name| {
        assert!(window.is_inserting());
        steps.borrow_mut().push(name);
    };
    let insert = || {
        step("insert");
        7
    };
    assert_eq!(log(&window, insert, |lsn| step(if *lsn == 7 { "mark" } else { "?" }), || step("bits")), 7);
    assert_eq!(*steps.borrow(), ["insert", "mark", "bits"]);
    assert!(!window.is_inserting() && !window.is_out(), "inside, as before");
    window.leave();
    log(&window, || (), |_| (), || assert!(window.is_inserting()));
    assert!(window.is_out(), "out, as before");
    gate.close([&window], |_| unreachable!());
    assert_eq!(window.enter(&gate), Err(Closed));
}

#[test]
fn waits_end_when_the_insertion_ends_or_the_owner_leaves() {
    let (window, gate) = (Window::default(), Gate::default());
    gate.open();
    window.enter(&gate).unwrap();
    window.wait_inserted(|_| unreachable!());
    let looks = Cell::new(0);
    gate.close([&window], |n| {
        looks.set(n + 1);
        if looks.get() == 3 {
            window.leave();
        }
    });
    assert_eq!((looks.get(), window.is_out()), (3, true));
    window.leave();
    assert!(window.is_out(), "once is enough");
    // The insertion ends by unwinding.
    let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        log(&window, || panic!("the insertion fails"), |_: &()| (), || ());
    }));
    assert!(unwound.is_err() && window.is_out());
}

#[test]
fn homes_move() {
    let (home, at) = (Home::default(), |block, long| Some(Place { block, long }));
    assert_eq!(home.get(), None);
    assert_eq!((home.move_to(at(5, false)), home.get()), (None, at(5, false)));
    assert_eq!((home.move_to(at((1 << 31) - 1, true)), home.get()), (at(5, false), at((1 << 31) - 1, true)));
    assert_eq!((home.move_to(None), home.get()), (at((1 << 31) - 1, true), None));
}
