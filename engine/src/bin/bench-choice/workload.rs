//! Synthesized workloads: varied YCSB operations over partitions.

/// A small generator. Runs are repeatable from their seed.
#[derive(Clone)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        let mut r = Rng(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        for _ in 0..4 {
            r.next();
        }
        r
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
    pub fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

/// The distribution of keys within a partition, hottest first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Skew {
    /// Zipf with this exponent.
    Zipf(f64),
    /// `percent` of the accesses go to `keys` of the keys.
    HotCold { percent: u64, keys: u64 },
}

impl Skew {
    pub fn name(self) -> String {
        match self {
            Skew::Zipf(t) => format!("zipf {t}"),
            Skew::HotCold { percent, keys } => format!("hot {percent}/{keys}"),
        }
    }
}

pub struct Keys {
    skew: Skew,
    n: u64,
    /// The cumulated share of the keys up to each one, in units of 2^-53.
    cumulated: Vec<u64>,
}

impl Keys {
    pub fn new(n: u64, skew: Skew) -> Keys {
        let mut cumulated = Vec::new();
        if let Skew::Zipf(theta) = skew {
            let weight = |i: u64| 1.0 / (i as f64 + 1.0).powf(theta);
            let total: f64 = (0..n).map(weight).sum();
            let mut sum = 0.0;
            cumulated.extend((0..n).map(|i| {
                sum += weight(i);
                (sum / total * (1u64 << 53) as f64) as u64
            }));
        }
        Keys { skew, n, cumulated }
    }
    fn draw(&self, rng: &mut Rng) -> u64 {
        match self.skew {
            Skew::Zipf(_) => {
                let at = rng.next();
                (self.cumulated.partition_point(|c| *c <= at) as u64).min(self.n - 1)
            }
            Skew::HotCold { percent, keys } if rng.percent(percent) => rng.below(keys),
            Skew::HotCold { keys, .. } => keys + rng.below(self.n - keys),
        }
    }
}

/// A workload.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Workload {
    pub threads: u64,
    pub partitions: u64,
    pub rows: u64,
    pub skew: Skew,
    /// The percentage of operations that only read. The others read and write.
    pub reads: u64,
    /// The number of leading partitions in which all operations only read.
    pub read_only: u64,
    pub ops: u64,
    /// The number of leading partitions whose transactions may touch several of them.
    pub crossed: u64,
    /// The percentage of their transactions that do.
    pub cross: u64,
    /// The percentage of all transactions that touch a partition of the other part, too: of those
    /// behind the `crossed` ones, or of these.
    pub across: u64,
    /// Has each thread a partition of its own, as in H-Store?
    pub home: bool,
    /// Do transactions declare their partitions?
    pub declared: bool,
    /// Do transactions over several partitions declare theirs too?
    pub declared_crossed: bool,
    /// Do they access their keys in ascending order?
    pub ordered: bool,
    /// A thread yields its core after this many operations. 0: never.
    pub yields: u64,
    /// The program's own work for each operation, in nanoseconds.
    pub work_ns: u64,
}

/// One operation.
#[derive(Clone, Copy, Debug)]
pub struct Op {
    pub partition: u32,
    pub rank: u32,
    pub write: bool,
}

/// A transaction.
pub struct Program {
    /// The partitions, in ascending order.
    pub touched: Vec<u32>,
    pub ops: Vec<Op>,
}

impl Workload {
    /// The workload with this number. Training (`unseen` false) and testing draw from different
    /// values and distributions.
    ///
    /// A third of the workloads is of the kind of which changing loads consist (CormCC, section
    /// 6.4): long declared transactions over several partitions, which overlap. If all were drawn
    /// evenly, these would be one in fifty.
    pub fn random(number: u64, unseen: bool) -> Workload {
        let mut r = Rng::new(number + if unseen { 1 << 32 } else { 0 });
        let long = r.percent(33);
        let skew = match (unseen, r.percent(50)) {
            (true, true) => Skew::HotCold { percent: r.of(&[20, 40, 60, 80, 95]), keys: r.of(&[2, 5, 20, 100]) },
            (true, false) => Skew::Zipf(r.of(&[0.3, 0.7, 0.9, 1.1, 1.3])),
            _ => Skew::Zipf(r.of(&[0.0, 0.5, 0.8, 1.0, 1.2, 1.5])),
        };
        let reads = if unseen { r.of(&[10, 40, 70, 85, 98, 100]) } else { r.of(&[0, 20, 50, 80, 90, 95, 100]) };
        let partitions = r.of(&[4, 8, 16]);
        let crossed = if r.percent(50) { partitions } else { 0 };
        let w = Workload {
            threads: if unseen { r.of(&[3, 6, 12, 16]) } else { r.of(&[2, 4, 8, 16]) },
            partitions,
            rows: 2000,
            skew,
            reads,
            read_only: 0,
            ops: if unseen { r.of(&[1, 3, 7, 12, 22]) } else { r.of(&[1, 2, 5, 10, 15, 25]) },
            crossed,
            cross: if unseen { r.of(&[15, 40, 75, 100]) } else { r.of(&[5, 20, 50, 100]) },
            across: 0,
            home: r.percent(30),
            declared: r.percent(60),
            declared_crossed: true,
            ordered: r.percent(40),
            yields: r.of(&[0, 1, 3]),
            work_ns: if unseen { r.of(&[0, 500, 3000]) } else { r.of(&[0, 0, 1000, 5000]) },
        };
        if !long {
            return w;
        }
        Workload {
            threads: if unseen { r.of(&[6, 10, 14]) } else { r.of(&[4, 8, 16]) },
            ops: if unseen { r.of(&[12, 18, 22]) } else { r.of(&[10, 15, 20, 25]) },
            cross: if unseen { 45 + r.below(50) } else { 50 + r.below(51) },
            declared: r.percent(85),
            yields: r.of(&[1, 1, 3]),
            ..w
        }
    }

    pub fn describe(&self) -> String {
        format!(
            "{},{},{},{},{},{},{},{},{},{},{},{}",
            self.threads,
            self.partitions,
            self.skew.name(),
            self.reads,
            self.ops,
            self.crossed,
            self.cross,
            self.home as u8,
            self.declared as u8,
            self.ordered as u8,
            self.yields,
            self.work_ns
        )
    }

    pub fn program(&self, thread: u64, keys: &Keys, rng: &mut Rng) -> Program {
        let first = if self.home { thread % self.partitions } else { rng.below(self.partitions) };
        let mut touched = vec![first as u32];
        if first < self.crossed && self.crossed > 1 && rng.percent(self.cross) {
            // Two or more partitions, at random.
            for _ in 0..1 + rng.below(3) {
                touched.push(rng.below(self.crossed) as u32);
            }
        }
        if self.across > 0 && rng.percent(self.across) {
            let (from, to) = if first < self.crossed { (self.crossed, self.partitions) } else { (0, self.crossed) };
            touched.push((from + rng.below(to - from)) as u32);
        }
        let ops = (0..self.ops).map(|i| {
            let partition = if i < touched.len() as u64 { touched[i as usize] } else { rng.of(&touched) };
            Op {
                partition,
                rank: keys.draw(rng) as u32,
                write: !rng.percent(self.reads) && partition as u64 >= self.read_only,
            }
        });
        let mut ops: Vec<Op> = ops.collect();
        if self.ordered {
            ops.sort_by_key(|o| (o.partition, o.rank, !o.write));
        }
        touched.sort_unstable();
        touched.dedup();
        Program { touched, ops }
    }
}
