//! The serialization graph and its cycles.

use std::collections::VecDeque;

/// Kinds of edges are bits, so that a search can be restricted to some.
pub(super) mod kind {
    pub const WW: u16 = 1;
    pub const WR: u16 = 1 << 1;
    pub const WR_PREDICATE: u16 = 1 << 2;
    pub const RW: u16 = 1 << 3;
    pub const RW_PREDICATE: u16 = 1 << 4;
    /// A transaction's snapshots precede its commit.
    pub const PROGRAM: u16 = 1 << 5;
    pub const SESSION: u16 = 1 << 6;
    pub const TIME: u16 = 1 << 7;
    pub const CSN: u16 = 1 << 8;
    pub const ANTI: u16 = RW | RW_PREDICATE;
    pub const DEPENDENCY: u16 = WW | WR | WR_PREDICATE | PROGRAM;
    pub const ORDER: u16 = SESSION | TIME | CSN;
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Edge {
    pub from: u32,
    pub to: u32,
    pub key: u32,
    pub kind: u16,
}

/// Edges grouped by their source.
pub(super) struct Graph {
    starts: Vec<u32>,
    edges: Vec<Edge>,
}

const UNVISITED: u32 = u32::MAX;
/// The number of edges that all searches for a short cycle may visit together.
const SEARCH_BUDGET: usize = 50_000_000;

impl Graph {
    pub fn new(nodes: usize, unsorted: &[Edge]) -> Self {
        let mut starts = vec![0_u32; nodes + 1];
        for edge in unsorted {
            starts[edge.from as usize + 1] += 1;
        }
        for node in 0..nodes {
            starts[node + 1] += starts[node];
        }
        let mut next = starts.clone();
        let mut edges = vec![Edge { from: 0, to: 0, key: 0, kind: 0 }; unsorted.len()];
        for edge in unsorted {
            let place = &mut next[edge.from as usize];
            edges[*place as usize] = *edge;
            *place += 1;
        }
        Self { starts, edges }
    }

    /// The same graph with every edge reversed.
    pub fn reversed(nodes: usize, edges: &[Edge]) -> Self {
        let turn = |edge: &Edge| Edge { from: edge.to, to: edge.from, ..*edge };
        Self::new(nodes, &edges.iter().map(turn).collect::<Vec<_>>())
    }

    fn nodes(&self) -> usize {
        self.starts.len() - 1
    }

    fn out(&self, node: u32) -> &[Edge] {
        &self.edges[self.starts[node as usize] as usize..self.starts[node as usize + 1] as usize]
    }

    /// Stores `stamp` in `marks` for all nodes that `start` reaches. Returns the number of edges
    /// visited.
    pub fn mark_reachable(&self, start: u32, marks: &mut [u32], stamp: u32) -> usize {
        let mut work = 0;
        let mut stack = vec![start];
        marks[start as usize] = stamp;
        while let Some(node) = stack.pop() {
            for edge in self.out(node) {
                work += 1;
                if marks[edge.to as usize] != stamp {
                    marks[edge.to as usize] = stamp;
                    stack.push(edge.to);
                }
            }
        }
        work
    }

    /// The strongly connected components with more than one node, over the edges whose kind is in
    /// `mask` (Tarjan's algorithm, without recursion).
    pub fn components(&self, mask: u16) -> Vec<Vec<u32>> {
        let nodes = self.nodes();
        let mut found = Vec::new();
        let mut number = vec![UNVISITED; nodes];
        let mut low = vec![0_u32; nodes];
        let mut on_stack = vec![false; nodes];
        let mut stack: Vec<u32> = Vec::new();
        let mut calls: Vec<(u32, u32)> = Vec::new();
        let mut counter = 0;
        for root in 0..nodes as u32 {
            if number[root as usize] != UNVISITED {
                continue;
            }
            calls.push((root, self.starts[root as usize]));
            while let Some((node, mut next)) = calls.pop() {
                let at = node as usize;
                if number[at] == UNVISITED {
                    number[at] = counter;
                    low[at] = counter;
                    counter += 1;
                    stack.push(node);
                    on_stack[at] = true;
                }
                let mut child = None;
                while next < self.starts[at + 1] && child.is_none() {
                    let edge = self.edges[next as usize];
                    next += 1;
                    if edge.kind & mask == 0 {
                        continue;
                    }
                    if number[edge.to as usize] == UNVISITED {
                        child = Some(edge.to);
                    } else if on_stack[edge.to as usize] {
                        low[at] = low[at].min(number[edge.to as usize]);
                    }
                }
                if let Some(child) = child {
                    calls.push((node, next));
                    calls.push((child, self.starts[child as usize]));
                    continue;
                }
                if let Some(&(parent, _)) = calls.last() {
                    low[parent as usize] = low[parent as usize].min(low[at]);
                }
                if low[at] == number[at] {
                    let from = stack.iter().rposition(|&other| other == node).unwrap_or(0);
                    let component = stack.split_off(from);
                    component.iter().for_each(|&member| on_stack[member as usize] = false);
                    if component.len() > 1 {
                        found.push(component);
                    }
                }
            }
        }
        found
    }
}

/// Searches each component for a short cycle that explains the anomaly.
pub(super) struct CycleSearch<'g> {
    graph: &'g Graph,
    member: Vec<bool>,
    parent: Vec<Option<Edge>>,
    touched: Vec<u32>,
    budget: usize,
}

impl<'g> CycleSearch<'g> {
    pub fn new(graph: &'g Graph) -> Self {
        let nodes = graph.nodes();
        Self {
            graph,
            member: vec![false; nodes],
            parent: vec![None; nodes],
            touched: Vec::new(),
            budget: SEARCH_BUDGET,
        }
    }

    /// A shortest cycle with one anti-dependency if there is one, else a shortest one of any kind.
    /// In a huge component it is the shortest of those tried.
    pub fn find(&mut self, component: &[u32], mask: u16) -> Vec<Edge> {
        component.iter().for_each(|&node| self.member[node as usize] = true);
        let mut best: Option<Vec<Edge>> = None;
        let graph = self.graph;
        if mask & kind::ANTI != 0 {
            for &node in component {
                if self.budget < SEARCH_BUDGET / 2 {
                    break;
                }
                for &edge in graph.out(node).iter().filter(|edge| edge.kind & kind::ANTI & mask != 0) {
                    if self.member[edge.to as usize] {
                        self.close(edge, mask & !kind::ANTI, &mut best);
                    }
                }
            }
        }
        let single = best.is_some();
        for &node in component {
            if single {
                break;
            }
            for &edge in graph.out(node).iter().filter(|edge| edge.kind & mask != 0) {
                if self.member[edge.to as usize] {
                    self.close(edge, mask, &mut best);
                }
            }
        }
        component.iter().for_each(|&node| self.member[node as usize] = false);
        best.unwrap_or_default()
    }

    /// Completes `edge` to a cycle over edges in `mask`, if that is shorter than `best`.
    fn close(&mut self, edge: Edge, mask: u16, best: &mut Option<Vec<Edge>>) {
        let bound = best.as_ref().map_or(usize::MAX, Vec::len);
        let single = mask & kind::ANTI == 0;
        let spent = if single { self.budget < SEARCH_BUDGET / 2 } else { self.budget == 0 };
        // Within a component the first edge tried without `single` closes, so a cycle is found.
        if bound <= 2 || (spent && (single || best.is_some())) {
            return;
        }
        let mut queue = VecDeque::from([edge.to]);
        self.touched.push(edge.to);
        self.parent[edge.to as usize] = Some(edge);
        'search: while let Some(node) = queue.pop_front() {
            for &next in self.graph.out(node) {
                self.budget = self.budget.saturating_sub(1);
                let to = next.to as usize;
                if next.kind & mask == 0 || !self.member[to] || self.parent[to].is_some() {
                    continue;
                }
                self.parent[to] = Some(next);
                self.touched.push(next.to);
                if next.to == edge.from {
                    break 'search;
                }
                queue.push_back(next.to);
            }
        }
        if let Some(cycle) = self.path_to(edge) {
            if cycle.len() < bound {
                *best = Some(cycle);
            }
        }
        for node in self.touched.drain(..) {
            self.parent[node as usize] = None;
        }
    }

    fn path_to(&self, first: Edge) -> Option<Vec<Edge>> {
        let mut cycle = Vec::new();
        let mut edge = self.parent[first.from as usize]?;
        while edge != first {
            cycle.push(edge);
            edge = self.parent[edge.from as usize]?;
        }
        cycle.push(first);
        cycle.reverse();
        Some(cycle)
    }
}
