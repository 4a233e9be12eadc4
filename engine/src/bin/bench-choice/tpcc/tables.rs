//! TPC-C's tables in the engine, and their consistency conditions.

use super::{CUSTOMERS, DISTRICTS, ITEMS, WAREHOUSES};
use crate::hybrid;
use crate::outside::{Dormitory, Outside};
use crate::schedule::{Site, THREADS};
use crate::workload::Rng;
use mixedcc_engine::csn::SlotId;
use mixedcc_engine::index::{Direction, Reuse};
use mixedcc_engine::open::Seen;
use mixedcc_engine::protocol::Touch;
use mixedcc_engine::range::Looked;
use mixedcc_engine::record::Version;
use mixedcc_engine::threads::Block;
use mixedcc_engine::txn::{OpenEnd, Scan};
use mixedcc_engine::{Engine, Error, Level, Policy, Protocol, ProtocolSet, Table, Txn};
use std::ops::Bound;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard};

/// The tables, in the order of their ids, in which partitions are locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Name {
    /// Payments.
    Warehouse,
    /// The next order's number, and payments.
    District,
    /// Balance, payments, their number, and deliveries.
    Customer,
    /// Orders by customer, with the order's number.
    CustomerOrder,
    /// Quantity in stock, quantity taken, number of lines, and number of lines of remote orders.
    Stock,
    /// Customer, lines and carrier (0: not delivered).
    Orders,
    /// Orders to be delivered, with their number.
    NewOrder,
    /// Item, quantity, amount, and 1 if it is delivered.
    OrderLine,
    /// Amount.
    History,
    /// Price.
    Item,
}

use Name::*;

const ALL: [(Name, &str); 10] = [
    (Warehouse, "warehouse"),
    (District, "district"),
    (Customer, "customer"),
    (CustomerOrder, "customer_order"),
    (Stock, "stock"),
    (Orders, "orders"),
    (NewOrder, "new_order"),
    (OrderLine, "order_line"),
    (History, "history"),
    (Item, "item"),
];

/// The numbers of a row.
pub type Values = [u64; 4];

/// The number of orders of a district that are delivered before the first transaction: seven of
/// ten.
const DELIVERED: u64 = CUSTOMERS * 7 / 10;
/// The number of logical ranges of an index that is scanned, and of registrations that each
/// remembers.
const RANGES: (usize, u32) = (64, 1024);
/// The largest number of orders of a district.
const MOST: u64 = (1 << 24) - 1;

impl Name {
    /// The size of a row in bytes: the numbers, and texts if there are long ones.
    fn bytes(self) -> usize {
        match self {
            CustomerOrder | Orders | NewOrder | OrderLine | History => size_of::<Values>(),
            Warehouse | District | Customer | Stock | Item => 96,
        }
    }
    fn is_scanned(self) -> bool {
        matches!(self, CustomerOrder | NewOrder | OrderLine)
    }
    fn protocol(self, mode: &str) -> Protocol {
        match (mode, self) {
            ("hybrid", Warehouse | District) => hybrid::HOT,
            ("hybrid", _) => hybrid::COLD,
            ("adaptive", _) => Protocol::DEFAULT,
            (fixed, _) => {
                let p = Protocol::parse(fixed).expect("a protocol, hybrid or adaptive");
                // One partition that every transaction reads: no user would lock it as a whole.
                let whole = self == Item && ProtocolSet::of(p).locks_partitions();
                if whole {
                    hybrid::COLD
                } else {
                    p
                }
            }
        }
    }
}

/// The key of a warehouse, district, number there, and line, as far as they apply.
pub fn key(w: u32, d: u32, no: u64, line: u64) -> u64 {
    (w as u64) << 56 | (d as u64) << 48 | no << 8 | line
}

/// The key of an order by its customer.
pub fn of_customer(w: u32, d: u32, c: u64, order: u64) -> u64 {
    key(w, d, c << 24 | order, 0)
}

/// The keys of all orders of a customer.
pub fn orders_of(w: u32, d: u32, c: u64) -> (u64, u64) {
    (of_customer(w, d, c, 0), of_customer(w, d, c, MOST))
}

/// Totals of the rows that were loaded and committed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Done {
    pub orders: u64,
    pub lines: u64,
    /// The quantity of those lines that were not loaded.
    pub quantity: u64,
    pub payments: u64,
    pub paid: u64,
    pub delivered: u64,
}

impl Done {
    pub fn add(&mut self, o: &Done) {
        self.orders += o.orders;
        self.lines += o.lines;
        self.quantity += o.quantity;
        self.payments += o.payments;
        self.paid += o.paid;
        self.delivered += o.delivered;
    }
}

pub struct Tables {
    pub e: Engine,
    all: Vec<&'static Table>,
    done: Mutex<Done>,
    dormitory: Arc<Dormitory>,
    _block: Block,
}

/// The numbers of a row that was found.
pub fn values(v: NonNull<Version>) -> Values {
    // SAFETY: INV-VERSION, INV-RETIRE: found by a pinned transaction, and rows begin with their
    // numbers.
    unsafe { Version::payload(v.as_ptr()).cast::<Values>().read_unaligned() }
}

/// Makes a new version of a row.
pub fn version(t: &mut Txn, name: Name, v: &Values) -> Result<NonNull<Version>, Error> {
    let to = t.new_version(0, name.bytes(), 0)?;
    let payload = Version::payload(to.as_ptr());
    // SAFETY: INV-VERSION: fresh memory with `name.bytes()` of payload, at least those of the
    // numbers.
    unsafe {
        payload.write_bytes(0, name.bytes());
        payload.cast::<Values>().write_unaligned(*v);
    }
    Ok(to)
}

fn create(e: &Engine, name: Name) -> &'static Table {
    let n = if name == Item { 1 } else { WAREHOUSES };
    let map = Table::new_map(e, 0, n, 0, b"", ProtocolSet::of(Protocol::DEFAULT), Policy::Wait).expect("memory");
    let table = Table::create(e, 0, [name as u32 + 1; 4], map).expect("memory");
    table.create_primary(e, 0, 0, Reuse::AtOnce).expect("memory");
    table
}

impl Tables {
    /// Loads the tables, under the protocols of a mode, with `spare` bytes for rows inserted later.
    pub fn new(mode: &str, spare: usize) -> Tables {
        let block = Block::new(spare, THREADS as usize + 1).expect("memory");
        let e = block.engine;
        let all = ALL.iter().map(|(name, _)| create(&e, *name)).collect();
        let dormitory = Dormitory::new(THREADS as usize + 1);
        let s = Tables { e, all, done: Mutex::default(), dormitory, _block: block };
        s.load().expect("memory");
        s.set_ranges();
        for ((name, _), table) in ALL.iter().zip(&s.all) {
            for p in table.map().partitions() {
                p.put(&e, ProtocolSet::of(name.protocol(mode)), None).expect("the platform sees deadlocks");
            }
        }
        s
    }

    /// Loads the rows. The loader, the coordinator and the check use slot 0.
    fn load(&self) -> Result<(), Error> {
        let (mut t, p, mut r) = (Txn::new(self.e, 0), self.platform(0), Rng::new(1));
        let mut done = Done::default();
        let mut load = |rows: &mut dyn FnMut(&mut Txn) -> Result<(), Error>| {
            t.begin(Level::Serializable, 1);
            rows(&mut t)?;
            t.prepare(&p, &|_, _| {})?;
            t.publish(&p);
            Ok::<(), Error>(())
        };
        load(&mut |t| {
            (0..ITEMS).try_for_each(|i| self.insert(t, &p, (Item, 0), key(0, 0, i, 0), &[1 + i % 100, 0, 0, 0]))
        })?;
        for w in 0..WAREHOUSES {
            load(&mut |t| {
                self.insert(t, &p, (Warehouse, w), key(w, 0, 0, 0), &[0; 4])?;
                (0..ITEMS).try_for_each(|i| self.insert(t, &p, (Stock, w), key(w, 0, i, 0), &[50, 0, 0, 0]))
            })?;
            for d in 0..DISTRICTS {
                load(&mut |t| self.load_district(t, &p, (w, d), &mut r, &mut done))?;
            }
        }
        self.done().add(&done);
        Ok(())
    }

    fn load_district(
        &self,
        t: &mut Txn,
        p: &Outside,
        (w, d): (u32, u32),
        r: &mut Rng,
        done: &mut Done,
    ) -> Result<(), Error> {
        self.insert(t, p, (District, w), key(w, d, 0, 0), &[CUSTOMERS + 1, 0, 0, 0])?;
        for c in 0..CUSTOMERS {
            let (o, lines) = (c + 1, 5 + r.below(11));
            let delivered = (o <= DELIVERED) as u64;
            self.insert(t, p, (Customer, w), key(w, d, c, 0), &[0, 0, 0, delivered])?;
            self.insert(t, p, (CustomerOrder, w), of_customer(w, d, c, o), &[o, 0, 0, 0])?;
            self.insert(t, p, (Orders, w), key(w, d, o, 0), &[c, lines, delivered, 0])?;
            if delivered == 0 {
                self.insert(t, p, (NewOrder, w), key(w, d, o, 0), &[o, 0, 0, 0])?;
            }
            for n in 1..=lines {
                self.insert(t, p, (OrderLine, w), key(w, d, o, n), &[r.below(ITEMS), 0, 0, delivered])?;
            }
            done.add(&Done { orders: 1, lines, delivered, ..Done::default() });
        }
        Ok(())
    }

    fn set_ranges(&self) {
        let p = self.platform(0);
        self.e.pin(0);
        for (name, _) in ALL.iter().filter(|n| n.0.is_scanned()) {
            self.table(*name).primary_ranges(&self.e, 0, &p, RANGES.0, RANGES.1).expect("memory for ranges");
        }
        self.e.unpin(0);
    }

    pub fn insert(&self, t: &mut Txn, p: &Outside, (name, w): (Name, u32), key: u64, v: &Values) -> Result<(), Error> {
        let version = version(t, name, v)?;
        t.insert_row(p, self.at(name, w), &key.to_be_bytes(), version, 0)?;
        Ok(())
    }

    pub fn table(&self, name: Name) -> &'static Table {
        self.all[name as usize]
    }
    pub fn at(&self, name: Name, w: u32) -> Touch {
        Touch { table: self.table(name), no: if name == Item { 0 } else { w } }
    }
    pub fn platform(&self, slot: SlotId) -> Outside {
        Outside::new(self.e, slot, self.dormitory.clone())
    }

    /// The totals of the rows that were loaded, and committed by threads that have ended.
    pub fn done(&self) -> MutexGuard<'_, Done> {
        self.done.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// The sum of a value over a table's rows between two keys. No thread is at work.
    fn sum(&self, name: Name, (from, to): (u64, u64), of: fn(&Values) -> u64) -> u64 {
        let (mut t, p) = (Txn::new(self.e, 0), self.platform(0));
        t.begin(Level::Snapshot, 2);
        let (lo, hi) = (from.to_be_bytes(), to.to_be_bytes());
        let (lo, hi) = (Bound::Included(&lo[..]), Bound::Included(&hi[..]));
        let scan = Scan {
            at: &[],
            lo,
            hi,
            open: OpenEnd::No,
            snapshot: Some(Seen::prefix(self.e.now())),
            looked: Looked::ALL,
        };
        let mut rows = t.scan_rows(&p, self.table(name), &scan, Direction::Forward, false).expect("a snapshot");
        let mut sum = 0;
        while let Some(row) = t.next_row(&p, &mut rows, false).expect("a snapshot") {
            sum += of(&values(row.version));
        }
        t.end_scan(&p, rows);
        t.abort();
        sum
    }
}

impl Site for Tables {
    fn engine(&self) -> Engine {
        self.e
    }
    fn tables(&self) -> &[&'static Table] {
        &self.all
    }
    fn name(&self, table: usize) -> &str {
        ALL[table].1
    }

    /// Checks that committed rows are in the tables and that the tables agree with each other.
    fn check(&self) -> Result<(), String> {
        let done = *self.done();
        let sum = |name: Name, of: fn(&Values) -> u64| self.sum(name, (0, u64::MAX), of);
        let mut all = vec![
            ("paid at warehouses", sum(Warehouse, |v| v[0]), done.paid),
            ("paid by customers", sum(Customer, |v| v[1]), done.paid),
            ("paid by the history", sum(History, |v| v[0]), done.paid),
            ("payments of customers", sum(Customer, |v| v[2]), done.payments),
            ("payments in the history", sum(History, |_| 1), done.payments),
            ("orders by the districts' counters", sum(District, |v| v[0] - 1), done.orders),
            ("orders", sum(Orders, |_| 1), done.orders),
            ("orders of customers", sum(CustomerOrder, |_| 1), done.orders),
            ("lines of orders", sum(Orders, |v| v[1]), done.lines),
            ("order lines", sum(OrderLine, |_| 1), done.lines),
            ("quantity taken from stock", sum(Stock, |v| v[1]), done.quantity),
            ("quantity ordered", sum(OrderLine, |v| v[1]), done.quantity),
            ("orders to be delivered", sum(NewOrder, |_| 1), done.orders - done.delivered),
            ("orders with a carrier", sum(Orders, |v| v[2]), done.delivered),
            ("deliveries to customers", sum(Customer, |v| v[3]), done.delivered),
        ];
        for w in 0..WAREHOUSES {
            let of = (key(w, 0, 0, 0), key(w + 1, 0, 0, 0) - 1);
            let at_districts = self.sum(District, of, |v| v[1]);
            all.push(("paid at a warehouse's districts", at_districts, self.sum(Warehouse, of, |v| v[0])));
        }
        match all.iter().find(|(_, found, wanted)| found != wanted) {
            Some((what, found, wanted)) => Err(format!("{what}: {found}, not {wanted}")),
            None => Ok(()),
        }
    }
}
