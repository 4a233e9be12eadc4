//! Programs of transactions: the hybrid YCSB and the modified TPC-C of the ROCC paper.

/// One operation.
#[derive(Clone, Copy, Debug)]
pub enum Op {
    Read(u64),
    /// Reads and replaces a row.
    Update(u64),
    Insert(u64),
    /// Reads all rows with `low <= key < high`.
    Scan(u64, u64),
}

/// A transaction.
#[derive(Clone, Debug)]
pub struct Program {
    pub ops: Vec<Op>,
}

impl Program {
    pub fn scan(&self) -> Option<(u64, u64)> {
        self.ops.iter().find_map(|op| if let Op::Scan(low, high) = op { Some((*low, *high)) } else { None })
    }
}

/// A small generator. Runs are repeatable from their seed.
#[derive(Clone)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 11
    }
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
    pub fn percent(&mut self, p: u64) -> bool {
        self.below(100) < p
    }
}

/// Keys by a Zipfian distribution with any exponent, hottest first, as in the paper. 0: uniform.
pub struct Zipf {
    n: u64,
    /// The cumulated share of the keys up to each one, in units of 2^-53. Empty: uniform.
    cumulated: Vec<u64>,
}

impl Zipf {
    pub fn new(n: u64, theta: f64) -> Zipf {
        if theta == 0.0 {
            return Zipf { n, cumulated: Vec::new() };
        }
        let weight = |i: u64| 1.0 / (i as f64 + 1.0).powf(theta);
        let total: f64 = (0..n).map(weight).sum();
        let mut sum = 0.0;
        let cumulated = (0..n).map(|i| {
            sum += weight(i);
            (sum / total * (1u64 << 53) as f64) as u64
        });
        Zipf { n, cumulated: cumulated.collect() }
    }
    pub fn draw(&self, rng: &mut Rng) -> u64 {
        if self.cumulated.is_empty() {
            return rng.below(self.n);
        }
        let at = rng.next();
        (self.cumulated.partition_point(|c| *c <= at) as u64).min(self.n - 1)
    }
}

/// The workload of the workers.
pub enum Workload {
    /// 90 % transactions of 5 updates, 10 % of 4 updates and a scan of this length.
    Ycsb { keys: Zipf, scan: u64 },
    /// 5 operations, each a read or an update, without scans (YCSB A).
    Points { keys: Zipf },
    /// The modified TPC-C with one warehouse for each worker. The bulk transaction scans `scan`
    /// customers.
    Tpcc { warehouses: u64, scan: u64 },
}

// Tables are parts of one key space.
const CUSTOMER: u64 = 0;
const DISTRICT: u64 = 1;
const WAREHOUSE: u64 = 2;
const STOCK: u64 = 3;
const ORDER: u64 = 4;
/// The first key of an order. Inserts are only there.
pub const FIRST_ORDER: u64 = ORDER << 40;
const DISTRICTS: u64 = 10;
const CUSTOMERS: u64 = 3000;
/// Scaled down from 100,000; no scan touches them.
const STOCK_ITEMS: u64 = 1000;

fn customer(w: u64, d: u64, c: u64) -> u64 {
    CUSTOMER << 40 | ((w * DISTRICTS + d) * CUSTOMERS + c)
}
fn district(w: u64, d: u64) -> u64 {
    DISTRICT << 40 | (w * DISTRICTS + d)
}
fn stock(w: u64, i: u64) -> u64 {
    STOCK << 40 | (w * STOCK_ITEMS + i)
}

impl Workload {
    /// The keys of the initial rows in ascending order.
    pub fn keys(&self) -> Box<dyn Iterator<Item = u64>> {
        match self {
            Workload::Ycsb { keys, .. } | Workload::Points { keys } => Box::new(0..keys.n),
            &Workload::Tpcc { warehouses: w, .. } => {
                let customers = 0..w * DISTRICTS * CUSTOMERS;
                let districts = (0..w * DISTRICTS).map(|i| DISTRICT << 40 | i);
                let warehouses = (0..w).map(|i| WAREHOUSE << 40 | i);
                Box::new(customers.chain(districts).chain(warehouses).chain((0..w * STOCK_ITEMS).map(|i| stock(0, i))))
            }
        }
    }

    /// The next transaction of a worker. `serial` numbers its transactions.
    pub fn next(&self, worker: u64, serial: u64, rng: &mut Rng) -> Program {
        let ops = match self {
            Workload::Ycsb { keys, scan } => {
                let mut ops: Vec<Op> = (0..4).map(|_| Op::Update(keys.draw(rng))).collect();
                if rng.percent(10) {
                    let low = keys.draw(rng).min(keys.n - scan.min(&keys.n));
                    ops.push(Op::Scan(low, low + scan));
                } else {
                    ops.push(Op::Update(keys.draw(rng)));
                }
                ops
            }
            Workload::Points { keys } => {
                let op = |rng: &mut Rng| (rng.percent(50), keys.draw(rng));
                let ops = (0..5).map(|_| op(rng));
                ops.map(|(write, key)| if write { Op::Update(key) } else { Op::Read(key) }).collect()
            }
            &Workload::Tpcc { warehouses, scan } => tpcc(warehouses, scan, worker % warehouses, serial, rng),
        };
        Program { ops }
    }
}

fn tpcc(warehouses: u64, scan: u64, w: u64, serial: u64, rng: &mut Rng) -> Vec<Op> {
    let d = rng.below(DISTRICTS);
    let c = rng.below(CUSTOMERS);
    // 15 % touch another warehouse too.
    let other = if rng.percent(15) { rng.below(warehouses) } else { w };
    match rng.below(100) {
        0..40 => vec![Op::Update(WAREHOUSE << 40 | w), Op::Update(district(w, d)), Op::Update(customer(other, d, c))],
        40..80 => {
            let mut ops = vec![Op::Read(customer(w, d, c)), Op::Update(district(w, d))];
            ops.extend((0..10).map(|_| Op::Update(stock(other, rng.below(STOCK_ITEMS)))));
            ops.push(Op::Insert(FIRST_ORDER | w << 28 | serial));
            ops
        }
        80..90 => {
            // The top shopper of a district, always local.
            let low = customer(w, d, rng.below(CUSTOMERS - scan.min(CUSTOMERS) + 1));
            let top = low + rng.below(scan);
            vec![
                Op::Scan(low, low + scan),
                Op::Update(top),
                Op::Update(district(w, d)),
                Op::Update(WAREHOUSE << 40 | w),
            ]
        }
        90..94 => vec![Op::Read(customer(w, d, c)), Op::Read(district(w, d))],
        94..98 => (0..DISTRICTS).map(|d| Op::Update(customer(w, d, rng.below(CUSTOMERS)))).collect(),
        _ => {
            let mut ops = vec![Op::Read(district(w, d))];
            ops.extend((0..20).map(|_| Op::Read(stock(w, rng.below(STOCK_ITEMS)))));
            ops
        }
    }
}
