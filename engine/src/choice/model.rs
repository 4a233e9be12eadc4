//! The model: for each protocol a few small regression trees, whose sum predicts the cost of a load
//! under it.
//!
//! The file is JSON, made by `engine/model/train`. People can read and replace it:
//!
//! ```json
//! { "format": 2, "about": "...",
//!   "trees": { "occ": [ [ { "feature": "conflict_rate", "at": 0.1, "below": 1, "above": 2 },
//!                         { "log_cost": -0.2, "runs": 310 }, { "log_cost": 0.4, "runs": 95 } ],
//!                       [ { "log_cost": 0.1 } ] ],
//!              "2pl": [ ... ], "partcc": [ ... ] } }
//! ```
//!
//! A tree starts at its first node. `below` and `above` are the numbers of later nodes: the next
//! one if the feature is at most `at`, or larger. The sum of the `log_cost`s of a protocol's trees
//! is a natural logarithm. It is that of the cost of a transaction (see [`super::Load::cost_us`])
//! over the cost under the best protocol. The first tree predicts most of it, and each later one a
//! part of what those before it left. `runs` is the number of measured runs that came to a leaf. In
//! format 1 each protocol has one tree, without the outer list.
//!
//! A protocol without trees may have the costs of one that has trees: `"like": { "mocc": "occ" }`.
//! The model cannot tell the two apart, so it never prefers one to the other. The first of them is
//! chosen only as a trial, or by what a trial has taught.
//!
//! A file need not name all protocols. A protocol that it does not name is never chosen: see
//! [`Model::knows`].

use super::features::{FEATURES, NAMES};
use crate::protocol::{Protocol, ProtocolSet};
use serde::Deserialize;
use std::collections::BTreeMap;

/// The model that the extension ships.
pub const BUILT_IN: &str = include_str!("../../model/choice.json");
/// The largest number of nodes in a tree, and of trees for a protocol.
const NODES: usize = 1024;
const TREES: usize = 64;
/// Predictions beyond this, a factor of 4.5 over the best, are cut: the protocol is excluded
/// anyway.
const EXTREME: f64 = 1.5;

#[derive(Deserialize)]
struct File {
    format: u32,
    #[serde(default)]
    about: String,
    trees: BTreeMap<String, FileTrees>,
    #[serde(default)]
    like: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum FileTrees {
    /// Format 2.
    Several(Vec<Vec<FileNode>>),
    /// Format 1.
    One(Vec<FileNode>),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum FileNode {
    #[serde(rename_all = "snake_case")]
    Split { feature: String, at: f64, below: usize, above: usize },
    Leaf {
        log_cost: f64,
        #[serde(default)]
        #[allow(dead_code)]
        runs: u64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Node {
    Split { feature: usize, at: f64, below: usize, above: usize },
    Leaf(f64),
}

type Tree = Vec<Node>;

/// A model.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// Trees in the order of [`Protocol::ALL`]. Empty for a protocol that the file does not name.
    trees: [Vec<Tree>; Protocol::COUNT],
    /// The protocol whose trees also stand for this one, by its place in [`Protocol::ALL`].
    like: [Option<usize>; Protocol::COUNT],
    /// The file's description of itself.
    pub about: String,
}

fn node(tree: &str, no: usize, len: usize, n: FileNode) -> Result<Node, String> {
    let here = |what: &str| format!("node {no} of the tree \"{tree}\" {what}");
    match n {
        FileNode::Leaf { log_cost, .. } if log_cost.is_finite() => Ok(Node::Leaf(log_cost)),
        FileNode::Leaf { .. } => Err(here("has no finite log_cost")),
        FileNode::Split { feature, at, below, above } => {
            let Some(f) = NAMES.iter().position(|n| *n == feature) else {
                return Err(here(&format!("names an unknown feature \"{feature}\"; there are {}", NAMES.join(", "))));
            };
            if !at.is_finite() {
                return Err(here("has no finite threshold"));
            }
            // Only forward, so that every search ends.
            if below <= no || above <= no || below >= len || above >= len {
                return Err(here(&format!("does not lead to later nodes: {below}, {above} of {len}")));
            }
            Ok(Node::Split { feature: f, at, below, above })
        }
    }
}

/// The trees of a protocol.
fn several(name: &str, trees: FileTrees, format: u32) -> Result<Vec<Tree>, String> {
    let trees = match (trees, format) {
        (FileTrees::One(nodes), 1) => vec![nodes],
        (FileTrees::Several(trees), 2) => trees,
        _ => return Err(format!("\"{name}\" is not what format {format} has: 1 has a tree, 2 a list of trees")),
    };
    if trees.is_empty() || trees.len() > TREES {
        return Err(format!("\"{name}\" has {} trees, not 1 to {TREES}", trees.len()));
    }
    let tree = |nodes: Vec<FileNode>| {
        let len = nodes.len();
        if len == 0 || len > NODES {
            return Err(format!("the tree \"{name}\" has {len} nodes, not 1 to {NODES}"));
        }
        nodes.into_iter().enumerate().map(|(i, n)| node(name, i, len, n)).collect()
    };
    trees.into_iter().map(tree).collect()
}

/// Whose trees stand for which protocol that has none.
fn alike(
    of: &BTreeMap<String, String>,
    trees: &[Vec<Tree>; Protocol::COUNT],
) -> Result<[Option<usize>; Protocol::COUNT], String> {
    let place = |name: &str| {
        let found = Protocol::ALL.into_iter().find(|p| p.name() == name).map(Protocol::index);
        found.ok_or_else(|| format!("\"like\" names an unknown protocol \"{name}\""))
    };
    let mut like = [None; Protocol::COUNT];
    for (name, other) in of {
        let (p, other_place) = (place(name)?, place(other)?);
        if !trees[p].is_empty() {
            return Err(format!("\"{name}\" is like another protocol, and has trees of its own"));
        }
        if trees[other_place].is_empty() {
            return Err(format!("\"{name}\" is like \"{other}\", which has no trees"));
        }
        like[p] = Some(other_place);
    }
    Ok(like)
}

/// A tree's prediction for a load.
fn leaf(tree: &Tree, features: &[f64; FEATURES]) -> f64 {
    let mut at = 0;
    loop {
        match tree[at] {
            Node::Leaf(cost) => return cost,
            Node::Split { feature, at: t, below, above } => at = if features[feature] <= t { below } else { above },
        }
    }
}

impl Model {
    /// Parses the text of a file.
    pub fn parse(text: &str) -> Result<Model, String> {
        let f: File = serde_json::from_str(text).map_err(|e| format!("it is not a model: {e}"))?;
        if !matches!(f.format, 1 | 2) {
            return Err(format!("its format is {}, not 1 or 2", f.format));
        }
        let mut all = f.trees;
        let mut trees: [Vec<Tree>; Protocol::COUNT] = Default::default();
        for (to, p) in trees.iter_mut().zip(Protocol::ALL) {
            if let Some(found) = all.remove(p.name()) {
                *to = several(p.name(), found, f.format)?;
            }
        }
        let like = alike(&f.like, &trees)?;
        let m = Model { trees, like, about: f.about };
        match all.keys().next() {
            Some(name) => Err(format!("it has a tree for an unknown protocol \"{name}\"")),
            None if m.knows() == ProtocolSet::EMPTY => Err("it has no trees".to_owned()),
            None => Ok(m),
        }
    }

    /// The built-in model.
    pub fn built_in() -> Model {
        Model::parse(BUILT_IN).expect("a test reads it")
    }

    /// The protocols that the file names.
    pub fn knows(&self) -> ProtocolSet {
        Protocol::ALL
            .into_iter()
            .filter(|p| !self.trees[p.index()].is_empty())
            .collect::<ProtocolSet>()
            .union(self.borrows())
    }

    /// Those of them that have the costs of another one.
    pub fn borrows(&self) -> ProtocolSet {
        Protocol::ALL.into_iter().filter(|p| self.like[p.index()].is_some()).collect()
    }

    /// Does the first protocol have the costs of the second one?
    pub fn is_like(&self, p: Protocol, other: Protocol) -> bool {
        self.like[p.index()] == Some(other.index())
    }

    /// The logarithms of the predicted costs under each protocol, in the order of
    /// [`Protocol::ALL`]. A protocol that the model does not know ([`Self::knows`]) gets the
    /// largest cost.
    pub fn predict(&self, features: &[f64; FEATURES]) -> [f64; Protocol::COUNT] {
        let cost = |i: usize| {
            if self.trees[i].is_empty() {
                return EXTREME;
            }
            let sum: f64 = self.trees[i].iter().map(|t| leaf(t, features)).sum();
            sum.clamp(-EXTREME, EXTREME)
        };
        let own: [f64; Protocol::COUNT] = std::array::from_fn(cost);
        std::array::from_fn(|i| own[self.like[i].unwrap_or(i)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_model_can_be_read() {
        let m = Model::built_in();
        assert!(m.predict(&[0.0; FEATURES]).iter().all(|c| c.abs() <= EXTREME));
        assert!(!m.about.is_empty());
    }

    #[test]
    fn trees_are_added() {
        let several = |format: u32, occ: &str| {
            let leaf = r#"[[{"log_cost": 0.5}]]"#;
            Model::parse(&format!(
                r#"{{"format": {format}, "trees": {{"occ": {occ}, "2pl": {leaf}, "partcc": {leaf}}}}}"#
            ))
        };
        let split =
            r#"[{"feature": "read_share", "at": 0.5, "below": 1, "above": 2}, {"log_cost": 0.25}, {"log_cost": -1}]"#;
        let m = several(2, &format!(r#"[[{{"log_cost": 0.5}}], {split}, [{{"log_cost": -0.125}}]]"#)).unwrap();
        let mut f = [0.0; FEATURES];
        assert_eq!(m.predict(&f)[..3], [0.5, 0.625, 0.5]);
        f[0] = 1.0;
        assert_eq!(m.predict(&f)[..3], [0.5, -0.625, 0.5]);
        let wrong = |format: u32, occ: &str, text: &str| {
            let e = several(format, occ).unwrap_err();
            assert!(e.contains(text), "{e}");
        };
        wrong(2, "[]", "\"occ\" has 0 trees, not 1 to 64");
        wrong(2, &format!("[{}]", vec![r#"[{"log_cost": 0}]"#; 65].join(",")), "has 65 trees");
        wrong(2, &format!("[{split}, []]"), "has 0 nodes");
        wrong(2, split, "is not what format 2 has");
        wrong(1, &format!("[{split}]"), "is not what format 1 has");
    }

    fn with(occ: &str) -> Result<Model, String> {
        let leaf = r#"[{"log_cost": 0.5, "runs": 1}]"#;
        Model::parse(&format!(r#"{{"format": 1, "trees": {{"occ": {occ}, "2pl": {leaf}, "partcc": {leaf}}}}}"#))
    }

    #[test]
    fn trees_are_followed() {
        let m =
            with(r#"[{"feature": "records", "at": 5, "below": 1, "above": 2}, {"log_cost": -0.25}, {"log_cost": 9}]"#)
                .unwrap();
        let mut f = [0.0; FEATURES];
        f[1] = 5.0;
        assert_eq!(m.predict(&f)[..3], [0.5, -0.25, 0.5]);
        f[1] = 5.1;
        assert_eq!(m.predict(&f)[..3], [0.5, EXTREME, 0.5]);
    }

    #[test]
    fn a_protocol_that_is_not_named_is_out_of_the_question() {
        let m = Model::parse(r#"{"format": 1, "trees": {"occ": [{"log_cost": 0.5}]}}"#).unwrap();
        assert_eq!(m.knows(), ProtocolSet::of(Protocol::Occ));
        assert_eq!(m.predict(&[0.0; FEATURES])[..3], [EXTREME, 0.5, EXTREME]);
    }

    #[test]
    fn a_protocol_may_have_the_costs_of_another_one() {
        let file = |like: &str| {
            let trees = r#"{"occ": [{"log_cost": 0.5}], "2pl": [{"log_cost": 0.25}]}"#;
            Model::parse(&format!(r#"{{"format": 1, "trees": {trees}, "like": {like}}}"#))
        };
        let m = file(r#"{"mocc": "occ"}"#).unwrap();
        assert_eq!(m.predict(&[0.0; FEATURES])[..4], [EXTREME, 0.5, 0.25, 0.5]);
        assert!(m.knows().has(Protocol::Mocc) && m.borrows() == ProtocolSet::of(Protocol::Mocc));
        assert!(m.is_like(Protocol::Mocc, Protocol::Occ) && !m.is_like(Protocol::Mocc, Protocol::TwoPhase));
        assert!(!m.is_like(Protocol::Occ, Protocol::Mocc) && !m.is_like(Protocol::Occ, Protocol::Occ));
        let none = file("{}").unwrap();
        assert!(!none.knows().has(Protocol::Mocc) && none.borrows() == ProtocolSet::EMPTY);
        let wrong = |like: &str, text: &str| {
            let e = file(like).unwrap_err();
            assert!(e.contains(text), "{e}");
        };
        wrong(r#"{"mocc": "tea"}"#, "unknown protocol \"tea\"");
        wrong(r#"{"tea": "occ"}"#, "unknown protocol \"tea\"");
        wrong(r#"{"occ": "2pl"}"#, "has trees of its own");
        wrong(r#"{"mocc": "partcc"}"#, "\"partcc\", which has no trees");
        wrong(r#"{"mocc": "mocc"}"#, "which has no trees");
        assert!(Model::built_in().is_like(Protocol::Mocc, Protocol::Occ));
    }

    #[test]
    fn wrong_files_say_what_is_wrong() {
        let wrong = |occ: &str, text: &str| {
            let e = with(occ).unwrap_err();
            assert!(e.contains(text), "{e}");
        };
        wrong("[]", "is not what format 1 has");
        wrong(
            r#"[{"feature": "colour", "at": 5, "below": 1, "above": 1}, {"log_cost": 1}]"#,
            "unknown feature \"colour\"",
        );
        wrong(r#"[{"feature": "records", "at": 5, "below": 0, "above": 1}, {"log_cost": 1}]"#, "later nodes");
        wrong(r#"[{"feature": "records", "at": 5, "below": 1, "above": 7}, {"log_cost": 1}]"#, "later nodes");
        wrong(r#"[{"at": 5}]"#, "not a model");
        wrong(r#"[{"log_cost": 1e999}]"#, "");
        assert!(Model::parse(r#"{"format": 3, "trees": {}}"#).unwrap_err().contains("format is 3"));
        assert!(Model::parse(r#"{"format": 1, "trees": {}}"#).unwrap_err().contains("no trees"));
        let stranger = r#"{"format": 1, "trees": {"ssn": [{"log_cost": 0}]}}"#;
        assert!(Model::parse(stranger).unwrap_err().contains("unknown protocol \"ssn\""));
        assert!(Model::parse("hello").unwrap_err().contains("not a model"));
    }
}
