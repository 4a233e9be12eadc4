//! TPC-C's transactions.

use super::tables::{key, of_customer, orders_of, values, version, Done, Name, Name::*, Tables, Values};
use super::{Call, Line, DISTRICTS};
use crate::outside::Outside;
use mixedcc_engine::csn::SlotId;
use mixedcc_engine::index::Direction;
use mixedcc_engine::range::Looked;
use mixedcc_engine::txn::{OpenEnd, Row, Scan};
use mixedcc_engine::{Error, Level, Txn};
use std::ops::Bound;

/// The rows of a range that are wanted.
#[derive(Clone, Copy, PartialEq)]
enum Wanted {
    First,
    Last,
    All,
}

/// A thread: a slot and its transaction.
pub struct Terminal<'s> {
    s: &'s Tables,
    t: Txn,
    p: Outside,
    /// The home warehouse.
    w: u32,
    ident: u64,
    done: Done,
}

impl<'s> Terminal<'s> {
    pub fn new(s: &'s Tables, slot: SlotId, w: u32) -> Terminal<'s> {
        let ident = (slot as u64) << 32;
        Terminal { s, t: Txn::new(s.e, slot), p: s.platform(slot), w, ident, done: Done::default() }
    }

    /// Makes one attempt. Returns true if it committed.
    pub fn run(&mut self, call: &Call) -> bool {
        self.ident += 1;
        self.t.begin(Level::Serializable, self.ident);
        let done = self.attempt(call);
        if done.is_err() {
            self.t.abort();
        }
        self.p.ended();
        match done {
            Ok(done) => self.done.add(&done),
            Err(Error::Abort { .. } | Error::Deadlock) => {
                // A transaction that waits too long goes on without: the wait is optional.
                let _ = self.t.await_winner(&self.p);
            }
            Err(Error::OutOfMemory) => panic!("there is no room for so many orders: make the run shorter"),
            Err(e) => panic!("{e:?}"),
        }
        done.is_ok()
    }

    fn attempt(&mut self, call: &Call) -> Result<Done, Error> {
        let done = match call {
            Call::NewOrder { d, c, lines } => self.new_order(*d, *c, lines)?,
            Call::Payment { d, of, c, amount } => self.payment(*d, *of, *c, *amount)?,
            Call::OrderStatus { d, c } => self.order_status(*d, *c)?,
            Call::Delivery => self.delivery()?,
            Call::StockLevel { d, threshold } => self.stock_level(*d, *threshold)?,
        };
        self.t.prepare(&self.p, &|_, _| {})?;
        self.t.publish(&self.p);
        Ok(done)
    }

    fn new_order(&mut self, d: u32, c: u64, lines: &[Line]) -> Result<Done, Error> {
        let w = self.w;
        let mut used: Vec<(Name, u32)> = lines.iter().map(|l| (Stock, l.from)).collect();
        used.extend([Warehouse, District, Customer, CustomerOrder, Orders, NewOrder, OrderLine].map(|name| (name, w)));
        self.declare(used)?;
        self.read((Warehouse, w), key(w, 0, 0, 0))?;
        let o = self.change((District, w), key(w, d, 0, 0), |v| v[0] += 1)?[0];
        self.read((Customer, w), key(w, d, c, 0))?;
        self.insert((Orders, w), key(w, d, o, 0), [c, lines.len() as u64, 0, 0])?;
        self.insert((NewOrder, w), key(w, d, o, 0), [o, 0, 0, 0])?;
        self.insert((CustomerOrder, w), of_customer(w, d, c, o), [o, 0, 0, 0])?;
        for (n, l) in (1..).zip(lines) {
            let price = self.read((Item, w), key(0, 0, l.item, 0))?[0];
            let take = |v: &mut Values| {
                v[0] = if v[0] >= l.quantity + 10 { v[0] - l.quantity } else { v[0] + 91 - l.quantity };
                v[1] += l.quantity;
                v[2] += 1;
                v[3] += (l.from != w) as u64;
            };
            self.change((Stock, l.from), key(l.from, 0, l.item, 0), take)?;
            self.insert((OrderLine, w), key(w, d, o, n), [l.item, l.quantity, l.quantity * price, 0])?;
        }
        let quantity = lines.iter().map(|l| l.quantity).sum();
        Ok(Done { orders: 1, lines: lines.len() as u64, quantity, ..Done::default() })
    }

    fn payment(&mut self, d: u32, of: (u32, u32), c: u64, amount: u64) -> Result<Done, Error> {
        let w = self.w;
        self.declare(vec![(Warehouse, w), (District, w), (Customer, of.0), (History, w)])?;
        self.change((Warehouse, w), key(w, 0, 0, 0), |v| v[0] += amount)?;
        self.change((District, w), key(w, d, 0, 0), |v| v[1] += amount)?;
        let pay = |v: &mut Values| {
            v[0] = v[0].wrapping_sub(amount);
            v[1] += amount;
            v[2] += 1;
        };
        self.change((Customer, of.0), key(of.0, of.1, c, 0), pay)?;
        // No two attempts have the same ident.
        self.insert((History, w), key(w, d, self.ident, 0), [amount, 0, 0, 0])?;
        Ok(Done { payments: 1, paid: amount, ..Done::default() })
    }

    /// The last order of a customer. Each has one from the time when the tables were loaded.
    fn order_status(&mut self, d: u32, c: u64) -> Result<Done, Error> {
        let w = self.w;
        self.declare([Customer, CustomerOrder, Orders, OrderLine].map(|name| (name, w)).to_vec())?;
        self.read((Customer, w), key(w, d, c, 0))?;
        let last = self.scan((CustomerOrder, w), orders_of(w, d, c), Wanted::Last, false)?;
        let o = last[0].1[0];
        let order = self.read((Orders, w), key(w, d, o, 0))?;
        let lines = self.scan((OrderLine, w), (key(w, d, o, 0), key(w, d, o, 255)), Wanted::All, false)?;
        std::hint::black_box((order, lines.len()));
        Ok(Done::default())
    }

    /// Delivers the oldest order of each district.
    fn delivery(&mut self) -> Result<Done, Error> {
        let w = self.w;
        self.declare([Customer, Orders, NewOrder, OrderLine].map(|name| (name, w)).to_vec())?;
        let mut delivered = 0;
        for d in 0..DISTRICTS {
            let all = (key(w, d, 0, 0), key(w, d + 1, 0, 0) - 1);
            let Some((row, [o, ..])) = self.scan((NewOrder, w), all, Wanted::First, true)?.pop() else { continue };
            self.t.delete_row(&self.p, &row, &key(w, d, o, 0).to_be_bytes(), 0)?;
            let [c, ..] = self.change((Orders, w), key(w, d, o, 0), |v| v[2] = 1)?;
            let lines = self.scan((OrderLine, w), (key(w, d, o, 0), key(w, d, o, 255)), Wanted::All, true)?;
            let mut amount = 0;
            for (n, (row, mut v)) in (1..).zip(lines) {
                amount += v[2];
                v[3] = 1;
                self.update(OrderLine, key(w, d, o, n), &row, &v)?;
            }
            let deliver = |v: &mut Values| {
                v[0] = v[0].wrapping_add(amount);
                v[3] += 1;
            };
            self.change((Customer, w), key(w, d, c, 0), deliver)?;
            delivered += 1;
        }
        Ok(Done { delivered, ..Done::default() })
    }

    /// Counts the scarce items among those of a district's last twenty orders.
    fn stock_level(&mut self, d: u32, threshold: u64) -> Result<Done, Error> {
        let w = self.w;
        self.declare([District, Stock, OrderLine].map(|name| (name, w)).to_vec())?;
        let [next, ..] = self.read((District, w), key(w, d, 0, 0))?;
        let last = (key(w, d, next.saturating_sub(20), 0), key(w, d, next, 0) - 1);
        let lines = self.scan((OrderLine, w), last, Wanted::All, false)?;
        let mut items: Vec<u64> = lines.iter().map(|l| l.1[0]).collect();
        items.sort_unstable();
        items.dedup();
        let mut scarce = 0;
        for item in items {
            scarce += (self.read((Stock, w), key(w, 0, item, 0))?[0] < threshold) as u64;
        }
        std::hint::black_box(scarce);
        Ok(Done::default())
    }

    /// Declares partitions in the order in which they are locked.
    fn declare(&mut self, mut used: Vec<(Name, u32)>) -> Result<(), Error> {
        used.sort_unstable();
        used.dedup();
        used.into_iter().try_for_each(|(name, w)| self.t.declare(&self.p, self.s.at(name, w)))
    }

    /// Yields after each access, so that transactions overlap as they would with a core for each
    /// thread.
    fn rest(&self) {
        std::thread::yield_now();
    }

    /// Finds a row that is never deleted.
    fn find(&mut self, (name, w): (Name, u32), key: u64, write: bool) -> Result<(Row, Values), Error> {
        let found = self.t.find_row(&self.p, self.s.at(name, w), &key.to_be_bytes(), write, None)?;
        let row = found.expect("a row that is never deleted");
        Ok((row, values(row.version)))
    }

    fn read(&mut self, at: (Name, u32), key: u64) -> Result<Values, Error> {
        let (_, v) = self.find(at, key, false)?;
        self.rest();
        Ok(v)
    }

    /// Changes a row. Returns its former values.
    fn change(&mut self, at: (Name, u32), key: u64, by: impl FnOnce(&mut Values)) -> Result<Values, Error> {
        let (row, before) = self.find(at, key, true)?;
        let mut v = before;
        by(&mut v);
        self.update(at.0, key, &row, &v)?;
        Ok(before)
    }

    fn update(&mut self, name: Name, key: u64, row: &Row, v: &Values) -> Result<(), Error> {
        let version = version(&mut self.t, name, v)?;
        self.t.update_row(&self.p, row, &key.to_be_bytes(), version, 0)?;
        self.rest();
        Ok(())
    }

    fn insert(&mut self, at: (Name, u32), key: u64, v: Values) -> Result<(), Error> {
        self.s.insert(&mut self.t, &self.p, at, key, &v)?;
        self.rest();
        Ok(())
    }

    /// The rows between two keys, inclusive.
    fn scan(
        &mut self,
        (name, w): (Name, u32),
        (from, to): (u64, u64),
        wanted: Wanted,
        write: bool,
    ) -> Result<Vec<(Row, Values)>, Error> {
        let (lo, hi) = (from.to_be_bytes(), to.to_be_bytes());
        let (open, way) = match wanted {
            Wanted::First => (OpenEnd::High, Direction::Forward),
            Wanted::Last => (OpenEnd::Low, Direction::Backward),
            Wanted::All => (OpenEnd::No, Direction::Forward),
        };
        let (lo, hi) = (Bound::Included(&lo[..]), Bound::Included(&hi[..]));
        let scan = Scan { at: &[self.s.at(name, w)], lo, hi, open, snapshot: None, looked: Looked::ALL };
        let mut rows = self.t.scan_rows(&self.p, self.s.table(name), &scan, way, true)?;
        let mut found = Vec::new();
        while let Some(row) = self.t.next_row(&self.p, &mut rows, write)? {
            found.push((row, values(row.version)));
            if wanted != Wanted::All {
                break;
            }
        }
        self.t.end_scan(&self.p, rows);
        self.rest();
        Ok(found)
    }
}

impl Drop for Terminal<'_> {
    fn drop(&mut self) {
        self.s.done().add(&self.done);
    }
}
