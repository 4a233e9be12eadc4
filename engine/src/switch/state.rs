//! The state of a partition's switch: one word, which transactions read and coordinators advance.

use super::{Epochs, Passed};
use crate::faults::{self, Fault};
use crate::primitive::{AtomicU32, AtomicU64, Ordering};
use crate::protocol::{Protocol, ProtocolSet};

/// The progress of a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Step {
    /// No switch is under way.
    Settled = 0,
    /// {old, new} is in use. Transactions that follow only the old protocol may still run.
    Upgrading = 1,
    /// The target is in use. Transactions may still run that follow both, or the old protocol
    /// alone if both rely on the same.
    Degrading = 2,
    /// The stop-all method: no transaction begins to follow, and the switch waits for those that
    /// follow.
    Stopping = 3,
}

impl Step {
    /// The name in views.
    pub fn name(self) -> &'static str {
        match self {
            Step::Settled => "settled",
            Step::Upgrading => "upgrade",
            Step::Degrading => "degrade",
            Step::Stopping => "stop all",
        }
    }
}

/// Named points at which tests stop or end a coordinator (see `Engine::advance_switches_by`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum StepEvent {
    /// A step can be made, and none of it is stored.
    Begin = 0,
    /// The epoch of the previous step is withdrawn, and the set is not stored.
    Epoch = 1,
    /// The set is stored, and its epoch is not announced.
    Stored = 2,
    /// The epoch is announced, and not stored in the partition.
    Announced = 3,
    /// The last step is complete, and the partition is not settled.
    Finish = 4,
    /// The partition is settled, and the switch is not in the history.
    Finished = 5,
}

/// Called at each event, with no latch held. It may end the coordinator by unwinding or by not
/// returning.
pub type AtStep<'a> = &'a dyn Fn(StepEvent);

/// The reason why a protocol is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Why {
    /// A user asked for it.
    Asked = 0,
    /// It was put in use without steps, by a transaction that excluded all others.
    AtOnce = 1,
    /// The coordinator expects it to run the load best.
    Chosen = 2,
    /// The coordinator's last choice made the load slower.
    TakenBack = 3,
    /// The coordinator tries it, because much work is lost.
    Probe = 4,
}

impl Why {
    pub(super) fn from_bits(b: u64) -> Why {
        match b {
            1 => Why::AtOnce,
            2 => Why::Chosen,
            3 => Why::TakenBack,
            4 => Why::Probe,
            _ => Why::Asked,
        }
    }
    /// The name in views.
    pub fn name(self) -> &'static str {
        match self {
            Why::Asked => "asked",
            Why::AtOnce => "at once",
            Why::Chosen => "chosen: fits the load better",
            Why::TakenBack => "taken back: it was worse",
            Why::Probe => "tried: much work was lost",
        }
    }
}

/// The word, unpacked. Its fields, with the highest bits first:
/// `[by:32][unused:2][why:3][pinned:1][step:2][wanted:6][target:6][from:6][set:6]`.
///
/// Each of the four set fields holds a number. A number below `FIRST_PLAN` is the set itself, so
/// that a reader of the word needs no table. The numbers from there to 63 are reserved for plans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchView {
    /// The protocols that transactions follow.
    pub set: ProtocolSet,
    /// The old protocol of the switch under way, or of one that is complete and not recorded.
    /// Empty: there is none.
    pub from: ProtocolSet,
    /// The new protocol of that switch. Empty: there is none.
    pub target: ProtocolSet,
    /// The protocol that the partition should get.
    pub wanted: ProtocolSet,
    /// The progress of the switch.
    pub step: Step,
    /// Was the protocol requested by a user, and not released since?
    pub pinned: bool,
    /// The reason why `wanted` is wanted.
    pub why: Why,
    /// The role that wants it, by the platform's number. 0: the coordinator.
    pub by: u32,
}

/// The first number in a set field of the word that is not a set of protocols.
pub const FIRST_PLAN: u32 = if Protocol::COUNT > 4 { 1 << Protocol::COUNT } else { 16 };

// The positions of the fields in the word.
const SET: u32 = 0;
const FROM: u32 = SET + ProtocolSet::BITS;
const TARGET: u32 = FROM + ProtocolSet::BITS;
const WANTED: u32 = TARGET + ProtocolSet::BITS;
const STEP: u32 = WANTED + ProtocolSet::BITS;
const PINNED: u32 = STEP + 2;
const WHY: u32 = PINNED + 1;
const BY: u32 = 32;
const _: () = {
    assert!(SET == 0 && ProtocolSet::BITS == 6, "`Switch::set` takes the lowest six bits");
    assert!(WHY + 3 + 2 == BY, "two bits are unused");
    assert!(ProtocolSet::ALL.bits() < FIRST_PLAN && FIRST_PLAN <= 1 << ProtocolSet::BITS);
};

impl SwitchView {
    fn pack(self) -> u64 {
        let set = |set: ProtocolSet, shift: u32| {
            debug_assert!(set.bits() < FIRST_PLAN, "not a set of protocols");
            (set.bits() as u64) << shift
        };
        set(self.set, SET)
            | set(self.from, FROM)
            | set(self.target, TARGET)
            | set(self.wanted, WANTED)
            | (self.step as u64) << STEP
            | (self.pinned as u64) << PINNED
            | (self.why as u64) << WHY
            | (self.by as u64) << BY
    }
    fn unpack(w: u64) -> SwitchView {
        let set = |shift: u32| ProtocolSet::from_bits((w >> shift) as u32 & ProtocolSet::MASK);
        SwitchView {
            set: set(SET),
            from: set(FROM),
            target: set(TARGET),
            wanted: set(WANTED),
            step: match (w >> STEP) & 3 {
                1 => Step::Upgrading,
                2 => Step::Degrading,
                3 => Step::Stopping,
                _ => Step::Settled,
            },
            pinned: w & (1 << PINNED) != 0,
            why: Why::from_bits((w >> WHY) & 7),
            by: (w >> BY) as u32,
        }
    }
    /// The state when the switch is complete. `from` and `target` stay until the switch is
    /// recorded.
    fn complete(self, from: ProtocolSet, target: ProtocolSet) -> SwitchView {
        SwitchView { set: target, from, target, step: Step::Settled, ..self }
    }
    /// Is a switch complete that is not in the history yet?
    pub fn is_unrecorded(self) -> bool {
        self.step == Step::Settled && self.from != ProtocolSet::EMPTY
    }
    fn settled(self) -> SwitchView {
        SwitchView { from: ProtocolSet::EMPTY, target: ProtocolSet::EMPTY, step: Step::Settled, ..self }
    }
    /// Is it the same step of the same switch?
    fn is_step_of(self, v: SwitchView) -> bool {
        (self.step, self.from, self.target) == (v.step, v.from, v.target)
    }
    /// Is there work for a coordinator?
    pub fn is_open(self) -> bool {
        self.step != Step::Settled || self.wanted != self.set
    }
}

/// The protocols of a partition and the switch under way. All-zero: not in use yet.
///
/// Transactions only load the word. A request changes `wanted`, `by`, `why` and `pinned` by
/// compare-exchange. All other fields are changed by the one coordinator, or by a process that
/// excludes all others.
#[repr(C)]
pub struct Switch {
    word: AtomicU64,
    /// The epoch of the step. 0: its set may be stored, but was not announced.
    epoch: AtomicU64,
    /// The requester and the reason of the switch under way. Only the coordinator uses them.
    started_by: AtomicU32,
    started_why: AtomicU32,
    /// The platform's time of the last request that changed the wanted protocol.
    asked_at: AtomicU64,
    /// The platform's times of the switch under way: its request, its start, and the start of its
    /// step. Only the coordinator uses them.
    started_asked_at: AtomicU64,
    began_at: AtomicU64,
    step_at: AtomicU64,
}

/// The result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// The partition has the protocol already, and no switch is under way.
    Nothing,
    /// The coordinator will begin the switch.
    Started,
    /// Another switch is under way. The coordinator completes it or takes it back, then begins this
    /// one.
    Queued,
}

/// The result of an advance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// There is nothing to do.
    Settled,
    /// Transactions have to pass a boundary first.
    Waits,
    /// A step was made.
    Stepped,
    /// A switch is complete.
    Done(Done),
}

/// A complete switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// The protocol before.
    pub from: ProtocolSet,
    /// The protocol now. It is the same as before if the switch was taken back.
    pub to: ProtocolSet,
    /// The role that wanted it.
    pub by: u32,
    /// The reason why it was wanted.
    pub why: Why,
    /// The times of its request, its start, its last step, and its completion.
    pub times: [u64; 4],
}

impl Switch {
    /// A partition made of the model checker's atomics.
    #[cfg(loom)]
    pub fn model(p: Protocol) -> Switch {
        let set = ProtocolSet::of(p);
        let empty = ProtocolSet::EMPTY;
        let (from, target, wanted) = (empty, empty, set);
        let v = SwitchView { set, from, target, wanted, step: Step::Settled, pinned: false, why: Why::Asked, by: 0 };
        Switch {
            word: AtomicU64::new(v.pack()),
            epoch: AtomicU64::new(0),
            started_by: AtomicU32::new(0),
            started_why: AtomicU32::new(0),
            asked_at: AtomicU64::new(0),
            started_asked_at: AtomicU64::new(0),
            began_at: AtomicU64::new(0),
            step_at: AtomicU64::new(0),
        }
    }

    /// As `advance`, but a step has an epoch from before its set was stored (a broken variant for a
    /// model).
    #[cfg(loom)]
    pub fn advance_announced(&self, epochs: &Epochs, passed: Passed) -> Event {
        let before = epochs.announce();
        let event = self.advance(epochs, passed, 0, false);
        if event == Event::Stepped {
            self.epoch.store(before, Ordering::SeqCst);
        }
        event
    }

    /// The state.
    pub fn view(&self) -> SwitchView {
        SwitchView::unpack(self.word.load(Ordering::SeqCst))
    }

    /// The protocols that transactions follow. Called after [`Epochs::enter`] (INV-FOLLOW).
    #[inline]
    pub fn set(&self) -> ProtocolSet {
        ProtocolSet::from_bits(self.word.load(Ordering::SeqCst) as u32 & ProtocolSet::MASK)
    }

    /// The epoch that the step under way waits for. `None`: there is no step, or it is not
    /// announced yet.
    pub fn waits_for(&self) -> Option<u64> {
        let v = self.view();
        let epoch = self.epoch.load(Ordering::SeqCst);
        // Read again: a step that ended meanwhile waits for no epoch, and the next step has
        // another.
        let still = self.view().is_step_of(v);
        (still && matches!(v.step, Step::Upgrading | Step::Degrading) && epoch != 0).then_some(epoch)
    }
    /// The time of the last request that changed the wanted protocol.
    pub fn asked_at(&self) -> u64 {
        self.asked_at.load(Ordering::Relaxed)
    }
    /// Times of the switch under way: its request, its start, and the start of its step.
    pub fn times(&self) -> [u64; 3] {
        [&self.started_asked_at, &self.began_at, &self.step_at].map(|t| t.load(Ordering::Relaxed))
    }
    /// The role that wanted the switch under way, and the reason.
    pub fn started(&self) -> (u32, Why) {
        let why = Why::from_bits(self.started_why.load(Ordering::Relaxed) as u64);
        (self.started_by.load(Ordering::Relaxed), why)
    }

    /// Changes the word to the result of `f`; if that is `None`, the word stays. Returns the former
    /// word, or as an error the word that stays.
    fn change(&self, f: impl Fn(SwitchView) -> Option<SwitchView>) -> Result<SwitchView, SwitchView> {
        let mut w = self.word.load(Ordering::SeqCst);
        loop {
            let old = SwitchView::unpack(w);
            let Some(new) = f(old) else { return Err(old) };
            match self.word.compare_exchange(w, new.pack(), Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return Ok(old),
                Err(now) => w = now,
            }
        }
    }

    /// Puts a set in use at once, which ends a switch under way. The caller excludes all
    /// transactions that follow the partition's protocols, except its own. `pinned`: `None` leaves
    /// it unchanged. Returns the former state.
    pub fn put(&self, set: ProtocolSet, pinned: Option<bool>) -> SwitchView {
        let put = |v: SwitchView| SwitchView { set, wanted: set, pinned: pinned.unwrap_or(v.pinned), ..v }.settled();
        let (Ok(old) | Err(old)) = self.change(|v| Some(put(v)));
        old
    }

    /// Changes the wanted protocol, at the time `now`. A request that changes nothing leaves the
    /// time of the first.
    fn want(&self, now: u64, f: impl Fn(SwitchView) -> Option<SwitchView>) -> Result<SwitchView, SwitchView> {
        self.change(|v| {
            let new = f(v)?;
            if new != v {
                // Stored before the word: a coordinator that finds the request finds its time, or
                // that of a simultaneous request.
                self.asked_at.store(now, Ordering::Relaxed);
            }
            Some(new)
        })
    }

    /// Requests a protocol. Never waits; the coordinator does the rest.
    pub fn ask(&self, p: Protocol, pin: bool, why: Why, by: u32, now: u64) -> Asked {
        let wanted = ProtocolSet::of(p);
        let ask = |v: SwitchView| SwitchView { wanted, why, by, pinned: v.pinned || pin, ..v };
        let (Ok(old) | Err(old)) = self.want(now, |v| Some(ask(v)));
        match old.step {
            Step::Settled if old.set == wanted => Asked::Nothing,
            Step::Settled => Asked::Started,
            _ if old.target == wanted => Asked::Started,
            _ => Asked::Queued,
        }
    }

    /// Requests a protocol for the coordinator. Returns false, and does nothing, if the protocol is
    /// pinned or a switch is requested or under way: requests of users have priority (INV-CHOICE).
    pub fn choose(&self, p: Protocol, why: Why, now: u64) -> bool {
        let wanted = ProtocolSet::of(p);
        let free = |v: &SwitchView| !v.pinned && !v.is_open();
        self.want(now, |v| free(&v).then_some(SwitchView { wanted, why, by: 0, ..v })).is_ok()
    }

    /// Takes back the coordinator's own switch that is under way. While it is an upgrade, or if
    /// both protocols rely on the same ([`ProtocolSet::relies_alike`]), the old protocol comes back
    /// without waiting. Otherwise it comes back as soon as the switch is complete. Returns false,
    /// and does nothing, if there is no such switch, or a session has asked for a protocol since.
    pub fn take_back(&self, now: u64) -> bool {
        let under_way = |v: &SwitchView| v.step != Step::Settled && v.wanted == v.target && v.target != v.from;
        let own = |v: &SwitchView| under_way(v) && v.by == 0 && !v.pinned;
        let back = |v: SwitchView| SwitchView { wanted: v.from, why: Why::TakenBack, ..v };
        self.want(now, |v| own(&v).then(|| back(v))).is_ok()
    }

    /// Releases the pin. Returns false if there was none.
    pub fn unpin(&self) -> bool {
        let (Ok(old) | Err(old)) = self.change(|v| Some(SwitchView { pinned: false, ..v }));
        old.pinned
    }

    /// Goes from `old` to `new`, unless the word has changed meanwhile. The next epoch is not
    /// announced yet: a coordinator that finds the step in this state announces it (again).
    fn step(&self, epochs: &Epochs, old: SwitchView, new: SwitchView, now: u64, at: AtStep) -> Event {
        at(StepEvent::Begin);
        // Stored before the word: a step must never be seen with the epoch of the step before it.
        if !faults::on(Fault::EpochNotReset) {
            self.epoch.store(0, Ordering::SeqCst);
        }
        let before = self.step_at.swap(now, Ordering::Relaxed);
        at(StepEvent::Epoch);
        if self.word.compare_exchange(old.pack(), new.pack(), Ordering::SeqCst, Ordering::SeqCst).is_err() {
            self.step_at.store(before, Ordering::Relaxed);
        } else if !faults::on(Fault::CoordinatorDies) && !faults::on(Fault::EpochNotReset) {
            at(StepEvent::Stored);
            let epoch = epochs.announce();
            at(StepEvent::Announced);
            self.epoch.store(epoch, Ordering::SeqCst);
        }
        Event::Stepped
    }

    /// Makes a step of the partition's switch if one can be made. `passed` is the result of an
    /// earlier look at all slots.
    ///
    /// There is one coordinator at a time. If it ends at any point, the next one goes on from the
    /// state that it has left.
    pub fn advance(&self, epochs: &Epochs, passed: Passed, now: u64, stop_all: bool) -> Event {
        self.advance_by(epochs, passed, now, stop_all, &|_| ())
    }

    /// As [`Self::advance`], and calls `at` at each event.
    pub fn advance_by(&self, epochs: &Epochs, passed: Passed, now: u64, stop_all: bool, at: AtStep) -> Event {
        let v = self.view();
        match v.step {
            Step::Settled if v.wanted == v.set => Event::Settled,
            Step::Settled => self.begin(epochs, v, now, stop_all, at),
            Step::Stopping => self.advance_stopped(epochs, v, passed, now, at),
            Step::Upgrading | Step::Degrading => {
                let epoch = self.epoch.load(Ordering::SeqCst);
                if epoch == 0 {
                    self.epoch.store(epochs.announce(), Ordering::SeqCst);
                    return Event::Waits;
                }
                let may = passed.has(epoch) || faults::on(Fault::StepsDoNotWait);
                let late = v.from.relies_alike(v.target) || faults::on(Fault::TakesBackLate);
                let may_go_back = v.step == Step::Upgrading || (late && v.target != v.from);
                match v.step {
                    // All running transactions follow the old protocol, or one that relies on the
                    // same: back to it, without waiting (INV-STEP).
                    _ if may_go_back && v.wanted == v.from => {
                        let back = SwitchView { set: v.from, target: v.from, step: Step::Degrading, ..v };
                        self.step(epochs, v, back, now, at)
                    }
                    Step::Upgrading if may => {
                        self.step(epochs, v, SwitchView { set: v.target, step: Step::Degrading, ..v }, now, at)
                    }
                    Step::Degrading if may => {
                        at(StepEvent::Finish);
                        self.finish(v, now)
                    }
                    _ => Event::Waits,
                }
            }
        }
    }

    fn begin(&self, epochs: &Epochs, v: SwitchView, now: u64, stop_all: bool, at: AtStep) -> Event {
        self.started_by.store(v.by, Ordering::Relaxed);
        self.started_why.store(v.why as u32, Ordering::Relaxed);
        self.started_asked_at.store(self.asked_at(), Ordering::Relaxed);
        self.began_at.store(now, Ordering::Relaxed);
        let (from, target) = (v.set, v.wanted);
        let (set, step) = match stop_all {
            true => (from, Step::Stopping),
            false if from.relies_alike(target) => (target, Step::Degrading),
            false => (from.union(target), Step::Upgrading),
        };
        if stop_all {
            epochs.stop();
        }
        self.step(epochs, v, SwitchView { set, from, target, step, ..v }, now, at)
    }

    fn advance_stopped(&self, epochs: &Epochs, v: SwitchView, passed: Passed, now: u64, at: AtStep) -> Event {
        if !epochs.is_stopped() {
            epochs.stop(); // The coordinator that began this has ended.
            return Event::Waits;
        }
        if !passed.is_quiet() {
            return Event::Waits;
        }
        self.step_at.store(now, Ordering::Relaxed);
        at(StepEvent::Finish);
        self.finish(v, now)
    }

    /// Completes the switch, unless a process that excluded all others has put another set in use
    /// since `v` was read. Transactions may run under that set alone, so it stays: the target would
    /// replace it without a step (INV-STEP).
    fn finish(&self, v: SwitchView, now: u64) -> Event {
        let done = self.done(v, now);
        let complete = |w: SwitchView| w.complete(v.from, v.target);
        match self.change(|w| (w.is_step_of(v) || faults::on(Fault::FinishesBlindly)).then_some(complete(w))) {
            Ok(_) => Event::Done(done),
            Err(_) => Event::Waits,
        }
    }

    /// The switch of `v`, which is complete.
    fn done(&self, v: SwitchView, now: u64) -> Done {
        let [asked, began, step] = self.times();
        let (by, why) = self.started();
        Done { from: v.from, to: v.target, by, why, times: [asked.min(began), began, step, now] }
    }

    /// The switch that is complete and not recorded, because the coordinator that completed it has
    /// ended. Called before [`Self::advance`], which may begin the next one.
    pub fn unrecorded(&self, now: u64) -> Option<Done> {
        let v = self.view();
        v.is_unrecorded().then(|| self.done(v, now))
    }
    /// Notes that the last switch is recorded.
    pub fn recorded(&self) {
        let _ = self.change(|v| v.is_unrecorded().then_some(v.settled()));
    }
}

#[cfg(all(test, not(loom)))]
#[path = "state_tests.rs"]
mod tests;
