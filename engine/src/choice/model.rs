//! The model: for each protocol a small regression tree that predicts the cost of a load under it.
//!
//! The file is JSON, made by `bench/train`, for people to read and to replace:
//!
//! ```json
//! { "format": 1, "about": "...",
//!   "trees": { "occ": [ { "feature": "conflict_rate", "at": 0.1, "below": 1, "above": 2 },
//!                       { "log_cost": -0.2, "runs": 310 }, { "log_cost": 0.4, "runs": 95 } ],
//!              "2pl": [ ... ], "partcc": [ ... ] } }
//! ```
//!
//! A tree starts at its first node. `below` and `above` are numbers of nodes further down: where to go if the
//! feature is at most `at`, or larger. `log_cost` is the natural logarithm of the cost of a transaction (see
//! [`super::Load::cost_us`]) over the cost under the best protocol, and `runs` how many measured runs it is the
//! mean of.

use super::features::{FEATURES, NAMES};
use crate::protocol::Protocol;
use serde::Deserialize;
use std::collections::BTreeMap;

/// What the extension ships.
pub const BUILT_IN: &str = include_str!("model.json");
/// Nodes of a tree, at most.
const NODES: usize = 1024;
/// Predictions beyond this (a factor of 4.5 over the best) are cut: the protocol is out of the question anyway.
const EXTREME: f64 = 1.5;

#[derive(Deserialize)]
struct File {
    format: u32,
    #[serde(default)]
    about: String,
    trees: BTreeMap<String, Vec<FileNode>>,
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

/// A model.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// In the order of [`Protocol::ALL`].
    trees: [Vec<Node>; 3],
    /// What the file says about itself.
    pub about: String,
}

fn node(tree: &str, no: usize, len: usize, n: FileNode) -> Result<Node, String> {
    let here = |what: &str| format!("node {no} of the tree \"{tree}\" {what}");
    match n {
        FileNode::Leaf { log_cost, .. } if log_cost.is_finite() => Ok(Node::Leaf(log_cost.clamp(-EXTREME, EXTREME))),
        FileNode::Leaf { .. } => Err(here("has no finite log_cost")),
        FileNode::Split { feature, at, below, above } => {
            let Some(f) = NAMES.iter().position(|n| *n == feature) else {
                return Err(here(&format!("names an unknown feature \"{feature}\"; there are {}", NAMES.join(", "))));
            };
            if !at.is_finite() {
                return Err(here("has no finite threshold"));
            }
            // Forward only: so every look ends.
            if below <= no || above <= no || below >= len || above >= len {
                return Err(here(&format!("does not lead to later nodes: {below}, {above} of {len}")));
            }
            Ok(Node::Split { feature: f, at, below, above })
        }
    }
}

impl Model {
    /// Reads a file's text.
    pub fn parse(text: &str) -> Result<Model, String> {
        let f: File = serde_json::from_str(text).map_err(|e| format!("it is not a model: {e}"))?;
        if f.format != 1 {
            return Err(format!("its format is {}, not 1", f.format));
        }
        let mut all = f.trees;
        let mut trees: [Vec<Node>; 3] = Default::default();
        for (to, p) in trees.iter_mut().zip(Protocol::ALL) {
            let name = p.name();
            let nodes = all.remove(name).ok_or_else(|| format!("it has no tree \"{name}\""))?;
            let len = nodes.len();
            if len == 0 || len > NODES {
                return Err(format!("the tree \"{name}\" has {len} nodes, not 1 to {NODES}"));
            }
            *to = nodes.into_iter().enumerate().map(|(i, n)| node(name, i, len, n)).collect::<Result<_, _>>()?;
        }
        match all.keys().next() {
            Some(name) => Err(format!("it has a tree for an unknown protocol \"{name}\"")),
            None => Ok(Model { trees, about: f.about }),
        }
    }

    /// The built-in one.
    pub fn built_in() -> Model {
        Model::parse(BUILT_IN).expect("a test reads it")
    }

    /// Logarithms of the predicted costs under each protocol, in the order of [`Protocol::ALL`].
    pub fn predict(&self, features: &[f64; FEATURES]) -> [f64; 3] {
        std::array::from_fn(|i| {
            let tree = &self.trees[i];
            let mut at = 0;
            loop {
                match tree[at] {
                    Node::Leaf(cost) => return cost,
                    Node::Split { feature, at: t, below, above } => {
                        at = if features[feature] <= t { below } else { above };
                    }
                }
            }
        })
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
        assert_eq!(m.predict(&f), [0.5, -0.25, 0.5]);
        f[1] = 5.1;
        assert_eq!(m.predict(&f), [0.5, EXTREME, 0.5]);
    }

    #[test]
    fn wrong_files_say_what_is_wrong() {
        let wrong = |occ: &str, text: &str| {
            let e = with(occ).unwrap_err();
            assert!(e.contains(text), "{e}");
        };
        wrong("[]", "has 0 nodes");
        wrong(
            r#"[{"feature": "colour", "at": 5, "below": 1, "above": 1}, {"log_cost": 1}]"#,
            "unknown feature \"colour\"",
        );
        wrong(r#"[{"feature": "records", "at": 5, "below": 0, "above": 1}, {"log_cost": 1}]"#, "later nodes");
        wrong(r#"[{"feature": "records", "at": 5, "below": 1, "above": 7}, {"log_cost": 1}]"#, "later nodes");
        wrong(r#"[{"at": 5}]"#, "not a model");
        wrong(r#"[{"log_cost": 1e999}]"#, "");
        assert!(Model::parse(r#"{"format": 2, "trees": {}}"#).unwrap_err().contains("format is 2"));
        assert!(Model::parse(r#"{"format": 1, "trees": {}}"#).unwrap_err().contains("no tree \"partcc\""));
        assert!(Model::parse("hello").unwrap_err().contains("not a model"));
    }
}
