//! Random statements of one session against a map.

use crate::client::{Client, Mood};
use crate::world::{initial_keys, World, PARTITIONS, SHARED, WIDTH};
use mixedcc_engine::checker::{check, Options, Recorder};
use mixedcc_engine::{Policy, Protocol, ProtocolSet};
use proptest::prelude::*;
use std::collections::BTreeMap;

#[derive(Clone, Debug)]
enum Step {
    Get(i64),
    Scan(u32),
    Update(i64, bool),
    Insert(i64),
    Delete(i64, bool),
    Move(i64, i64, bool),
    Savepoint,
    EndSavepoint(bool),
    Commit,
    Abort,
    Vacuum,
}

fn key() -> impl Strategy<Value = i64> {
    (0..PARTITIONS as i64, 0..SHARED).prop_map(|(p, i)| p * WIDTH + i)
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => key().prop_map(Step::Get),
        1 => (0..PARTITIONS).prop_map(Step::Scan),
        4 => (key(), any::<bool>()).prop_map(|(k, b)| Step::Update(k, b)),
        3 => key().prop_map(Step::Insert),
        3 => (key(), any::<bool>()).prop_map(|(k, b)| Step::Delete(k, b)),
        2 => (key(), key(), any::<bool>()).prop_map(|(a, b, c)| Step::Move(a, b, c)),
        2 => Just(Step::Savepoint),
        2 => any::<bool>().prop_map(Step::EndSavepoint),
        1 => Just(Step::Commit),
        1 => Just(Step::Abort),
        1 => Just(Step::Vacuum),
    ]
}

fn set() -> impl Strategy<Value = ProtocolSet> {
    (0..Protocol::COUNT, 0..Protocol::COUNT)
        .prop_map(|(a, b)| ProtocolSet::mediated(Protocol::ALL[a], Protocol::ALL[b]))
}

fn mood() -> impl Strategy<Value = Mood> {
    prop_oneof![2 => Just(Mood::Serializable), 1 => Just(Mood::ReadCommitted), 1 => Just(Mood::RepeatableRead)]
}

type Rows = BTreeMap<i64, i64>;

/// Does a step in both; the stack holds the rows at each open savepoint.
fn both(c: &mut Client, rows: &mut Rows, stack: &mut Vec<Rows>, s: &Step) {
    let fine = "nobody is in the way";
    match *s {
        Step::Get(k) => assert_eq!(c.get(k).expect(fine).map(|r| r.value), rows.get(&k).copied()),
        Step::Scan(p) => {
            let got: Rows = c.scan(p).expect(fine).into_iter().map(|r| (r.key, r.value)).collect();
            let low = p as i64 * WIDTH;
            let want: Rows = rows.range(low..low + WIDTH).map(|(&k, &v)| (k, v)).collect();
            assert_eq!(got, want);
        }
        Step::Update(k, b) => {
            let old = rows.get_mut(&k).map(|v| *v += 1);
            assert_eq!(c.update(k, b).expect(fine), old.is_some());
        }
        Step::Insert(k) => {
            assert_eq!(c.insert(k).expect(fine), !rows.contains_key(&k));
            rows.entry(k).or_insert(0);
        }
        Step::Delete(k, b) => assert_eq!(c.delete(k, b, false).expect(fine), rows.remove(&k).is_some()),
        Step::Move(a, b, at_once) => {
            let moves = !rows.contains_key(&b) && rows.remove(&a).is_some();
            assert_eq!(c.relocate(a, b, at_once).expect(fine), moves);
            if moves {
                rows.insert(b, 0);
            }
        }
        Step::Savepoint if stack.len() < 4 => {
            c.savepoint();
            stack.push(rows.clone());
        }
        Step::EndSavepoint(keep) => {
            c.end_savepoint(keep);
            if let (Some(old), false) = (stack.pop(), keep) {
                *rows = old;
            }
        }
        _ => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn one_session_is_a_map(
        sets in prop::collection::vec(set(), 4),
        moods in prop::collection::vec(mood(), 1..8),
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let w = World::new(&sets, Policy::NoWait, 2);
        let recorder = Recorder::new();
        let mut c = Client::new(&w, 0, recorder.session(), 1);
        let mut committed: Rows = initial_keys().map(|k| (k, 100)).collect();
        let mut moods = moods.into_iter().cycle();
        let (mut rows, mut stack) = (committed.clone(), Vec::new());
        c.begin(moods.next().expect("endless"));
        for s in steps.iter().chain([&Step::Commit]) {
            both(&mut c, &mut rows, &mut stack, s);
            match s {
                Step::Commit => {
                    while !stack.is_empty() {
                        both(&mut c, &mut rows, &mut stack, &Step::EndSavepoint(true));
                    }
                    c.commit().expect("nobody is in the way");
                    committed = rows.clone();
                    c.begin(moods.next().expect("endless"));
                }
                Step::Abort => {
                    stack.clear();
                    c.abort();
                    rows = committed.clone();
                    c.begin(moods.next().expect("endless"));
                }
                Step::Vacuum => {
                    w.vacuum(&c.p, 1);
                }
                _ => {}
            }
        }
        c.abort();
        let mut h = recorder.history();
        h.initial.extend(initial_keys().map(|k| (crate::world::checked(k), 0)));
        let v = check(&h, &Options::strict());
        prop_assert!(v.accepts(), "{}", v);
    }
}
