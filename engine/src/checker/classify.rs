//! Completes the graph, finds its cycles, and classifies them by Adya's definitions.

use super::build::{may_meet, Ambiguous, Builder, Node, Part};
use super::graph::{kind, CycleSearch, Edge, Graph};
use super::history::{Level, Status, Transaction};
use super::index::{Index, NONE};
use super::verdict::{AnomalyKind, Verdict};
use super::Options;
use hashbrown::{HashMap, HashSet};

/// The number of edges that the search for the right stretch of an ambiguous read may visit.
const AMBIGUOUS_BUDGET: usize = 100_000_000;
/// The largest number of rounds: excluding a stretch of one read may decide another read.
const AMBIGUOUS_ROUNDS: usize = 20;

/// Adds the edges between consecutive transactions that the options ask for.
pub(super) fn order_edges(builder: &mut Builder<'_, '_>) {
    let transactions = &builder.index.history.transactions;
    let committed: Vec<u32> =
        (0..transactions.len() as u32).filter(|&txn| transactions[txn as usize].status == Status::Committed).collect();
    if builder.options.session {
        let mut latest: HashMap<u64, u32> = HashMap::new();
        for &txn in &committed {
            let Some(client) = transactions[txn as usize].client else {
                continue;
            };
            if let Some(before) = latest.insert(client, txn) {
                builder.edge(before, builder.first[txn as usize], kind::SESSION, NONE);
            }
        }
    }
    if builder.options.csn_order {
        let csn = |txn: u32| transactions[txn as usize].csn;
        let mut ordered: Vec<u32> = committed.iter().copied().filter(|&txn| csn(txn).is_some()).collect();
        ordered.sort_by_key(|&txn| csn(txn));
        for pair in ordered.windows(2) {
            builder.edge(pair[0], pair[1], kind::CSN, NONE);
        }
    }
    if builder.options.real_time {
        time_edges(builder, transactions, &committed);
    }
}

/// Adds a chain of moments, one after each commit. A transaction that begins later follows the
/// moment.
fn time_edges(builder: &mut Builder<'_, '_>, transactions: &[Transaction], committed: &[u32]) {
    let mut commits: Vec<(u64, u32)> =
        committed.iter().filter_map(|&txn| transactions[txn as usize].commit.map(|time| (time, txn))).collect();
    commits.sort_unstable();
    let base = builder.nodes.len() as u32;
    for (number, &(_, txn)) in commits.iter().enumerate() {
        let moment = base + number as u32;
        builder.nodes.push(Node { txn, part: Part::Moment });
        builder.edge(txn, moment, kind::TIME, NONE);
        if number > 0 {
            builder.edge(moment - 1, moment, kind::TIME, NONE);
        }
    }
    for (txn, transaction) in transactions.iter().enumerate() {
        let Some(begin) = transaction.begin.filter(|_| builder.index.effective[txn]) else {
            continue;
        };
        let before = commits.partition_point(|&(time, _)| time < begin) as u32;
        if before > 0 {
            builder.edge(base + before - 1, builder.first[txn], kind::TIME, NONE);
        }
    }
}

/// Resolves reads of absence that fit several stretches. Stretches that contradict the rest of the
/// graph are excluded. Those that remain bound the reader on both sides.
pub(super) fn resolve_ambiguous(builder: &mut Builder<'_, '_>) {
    let mut open = std::mem::take(&mut builder.ambiguous);
    open.iter_mut().for_each(|read| rule_out_by_time(builder, read));
    let mut work = 0;
    for _ in 0..AMBIGUOUS_ROUNDS {
        let mut changed = false;
        let nodes = builder.nodes.len();
        let forward = Graph::new(nodes, &builder.edges);
        let backward = Graph::reversed(nodes, &builder.edges);
        let (mut after_marks, mut before_marks) = (vec![0_u32; nodes], vec![0_u32; nodes]);
        for (number, read) in open.iter_mut().enumerate() {
            if read.stretches.len() < 2 || work > AMBIGUOUS_BUDGET {
                continue;
            }
            // What the graph contradicts a snapshot may do then.
            if !builder.options.prefixes && builder.nodes[read.node as usize].part != Part::Commit {
                continue;
            }
            let stamp = number as u32 + 1;
            work += forward.mark_reachable(read.node, &mut after_marks, stamp);
            work += backward.mark_reachable(read.node, &mut before_marks, stamp);
            let possible: Vec<(u32, u32)> = read
                .stretches
                .iter()
                .copied()
                .filter(|&(after, before)| {
                    (after == NONE || after_marks[after as usize] != stamp)
                        && (before == NONE || before_marks[before as usize] != stamp)
                })
                .collect();
            if possible.len() == read.stretches.len() {
                continue;
            }
            changed = true;
            // If no stretch fits, any choice shows the contradiction as a cycle.
            let chosen = if possible.is_empty() { vec![read.stretches[0]] } else { possible };
            narrow(builder, read, chosen);
        }
        if !changed {
            break;
        }
    }
    builder.verdict.ambiguous_reads += open.iter().filter(|read| read.stretches.len() > 1).count();
}

fn narrow(builder: &mut Builder<'_, '_>, read: &mut Ambiguous, chosen: Vec<(u32, u32)>) {
    read.stretches = chosen;
    if let (Some(first), Some(last)) = (read.stretches.first(), read.stretches.last()) {
        builder.absent_edges(read.node, read.key, first.0, last.1);
    }
}

fn rule_out_by_time(builder: &mut Builder<'_, '_>, read: &mut Ambiguous) {
    let transactions = &builder.index.history.transactions;
    let reader = &transactions[builder.nodes[read.node as usize].txn as usize];
    let chosen: Vec<(u32, u32)> =
        read.stretches.iter().copied().filter(|&stretch| may_meet(transactions, reader, stretch)).collect();
    if !chosen.is_empty() && chosen.len() < read.stretches.len() {
        narrow(builder, read, chosen);
    }
}

/// Reports all cycles that the options forbid.
pub(super) fn cycles(index: &Index<'_>, nodes: &[Node], edges: &[Edge], options: &Options, verdict: &mut Verdict) {
    if options.prefixes {
        return search(index, nodes, edges, options, verdict);
    }
    // No cycle has anti-dependencies both of snapshots and of others.
    let (of_snapshots, of_others) = (|e: &Edge| starts_at_snapshot(nodes, e), |e: &Edge| !starts_at_snapshot(nodes, e));
    let without = |is_left_out: &dyn Fn(&Edge) -> bool| -> Vec<Edge> {
        edges.iter().filter(|e| e.kind & kind::ANTI == 0 || !is_left_out(e)).copied().collect()
    };
    search(index, nodes, &without(&of_snapshots), options, verdict);
    if verdict.accepts() {
        search(index, nodes, &without(&of_others), options, verdict);
    }
}

fn starts_at_snapshot(nodes: &[Node], edge: &Edge) -> bool {
    matches!(nodes[edge.from as usize].part, Part::Snapshot | Part::Statement(_))
}

/// Searches for cycles with more and more kinds of edges, so that each is reported as the worst
/// anomaly that it is.
fn search(index: &Index<'_>, nodes: &[Node], edges: &[Edge], options: &Options, verdict: &mut Verdict) {
    let graph = Graph::new(nodes.len(), edges);
    let mut search = CycleSearch::new(&graph);
    let mut reported: HashSet<u32> = HashSet::new();
    let tiers = [
        kind::WW | kind::PROGRAM,
        kind::DEPENDENCY,
        kind::DEPENDENCY | kind::ANTI,
        kind::DEPENDENCY | kind::ANTI | kind::ORDER,
    ];
    for mask in tiers {
        for component in graph.components(mask) {
            if component.iter().any(|node| reported.contains(node)) {
                continue;
            }
            let cycle = search.find(&component, mask);
            reported.extend(component);
            let name = classify(nodes, &cycle);
            let mut txns: Vec<u64> = Vec::new();
            for edge in &cycle {
                let node = nodes[edge.from as usize];
                let id = index.id(node.txn);
                if node.part != Part::Moment && txns.last() != Some(&id) {
                    txns.push(id);
                }
            }
            let text = explain(index, nodes, &cycle);
            verdict.report(options.limit, name, txns, text);
        }
    }
}

fn classify(nodes: &[Node], cycle: &[Edge]) -> AnomalyKind {
    let kinds = cycle.iter().fold(0, |kinds, edge| kinds | edge.kind);
    let anti: Vec<&Edge> = cycle.iter().filter(|edge| edge.kind & kind::ANTI != 0).collect();
    let keys: HashSet<u32> = cycle.iter().filter(|edge| edge.key != NONE).map(|edge| edge.key).collect();
    if kinds & kind::TIME != 0 {
        AnomalyKind::RealTimeOrder
    } else if kinds & kind::SESSION != 0 {
        AnomalyKind::SessionOrder
    } else if kinds & kind::CSN != 0 {
        AnomalyKind::CsnOrder
    } else if anti.is_empty() && kinds & (kind::WR | kind::WR_PREDICATE) == 0 {
        AnomalyKind::G0
    } else if anti.is_empty() {
        AnomalyKind::G1c
    } else if anti.iter().any(|edge| starts_at_snapshot(nodes, edge)) {
        AnomalyKind::FracturedSnapshot
    } else if keys.len() == 1 && kinds & !(kind::WW | kind::RW) == 0 {
        AnomalyKind::LostUpdate
    } else if anti.len() == 1 {
        AnomalyKind::GSingle
    } else if kinds & kind::RW_PREDICATE != 0 {
        AnomalyKind::G2
    } else {
        AnomalyKind::G2Item
    }
}

fn explain(index: &Index<'_>, nodes: &[Node], cycle: &[Edge]) -> String {
    let mut lines = Vec::new();
    let mut waiting: Option<u32> = None;
    for edge in cycle {
        // A chain of moments is one step: committed before the other began.
        if nodes[edge.to as usize].part == Part::Moment {
            if nodes[edge.from as usize].part != Part::Moment {
                waiting = Some(edge.from);
            }
            continue;
        }
        let from = waiting.take().unwrap_or(edge.from);
        lines.push(explain_edge(index, nodes, &Edge { from, ..*edge }));
    }
    lines.join("\n")
}

fn describe_node(index: &Index<'_>, node: Node) -> String {
    let transaction = &index.history.transactions[node.txn as usize];
    let csn = transaction.csn.map_or(String::new(), |csn| format!(", CSN {csn}"));
    let part = match (node.part, transaction.level) {
        (Part::Snapshot, _) => " snapshot".to_owned(),
        (Part::Statement(number), _) => format!(" statement {number}"),
        (Part::Commit, Level::Snapshot | Level::ReadCommitted) => " commit".to_owned(),
        (Part::Commit | Part::Moment, _) => String::new(),
    };
    format!("T{}{part} ({}{csn})", transaction.id, transaction.level)
}

fn explain_edge(index: &Index<'_>, nodes: &[Node], edge: &Edge) -> String {
    let (from, to) = (nodes[edge.from as usize], nodes[edge.to as usize]);
    let (one, other) = (index.id(from.txn), index.id(to.txn));
    let key = if edge.key == NONE { String::new() } else { index.describe(edge.key) };
    let (name, reason) = match edge.kind {
        kind::WW => ("ww", format!("T{other} replaced the version of {key} that T{one} wrote")),
        kind::WR => ("wr", format!("T{other} read the version of {key} that T{one} wrote")),
        kind::WR_PREDICATE => ("wr predicate", format!("T{other} no longer saw {key} after T{one}")),
        kind::RW => ("rw", format!("T{other} replaced the version of {key} that T{one} read")),
        kind::RW_PREDICATE => ("rw predicate", format!("T{one} did not see {key} yet, which T{other} put there")),
        kind::PROGRAM => ("program", format!("T{one} goes on")),
        kind::SESSION => ("session", format!("T{other} followed T{one} in its session")),
        kind::TIME => ("real time", format!("T{one} committed before T{other} began")),
        _ => ("csn", format!("T{one} has the smaller CSN")),
    };
    format!("{} --{name}--> {}: {reason}", describe_node(index, from), describe_node(index, to))
}
