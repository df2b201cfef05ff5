//! Which tokens a text begins with.

use std::collections::HashMap;

use super::pieces::Seeded;

/// Texts by their beginnings.
#[derive(Debug)]
pub(super) struct Trie {
    /// Node that follows a node by a byte.
    edges: HashMap<u64, u32, Seeded>,
    /// Token that ends at each node.
    tokens: Vec<Option<u32>>,
}

impl Trie {
    pub(super) fn new() -> Self {
        Self { edges: HashMap::default(), tokens: vec![None] }
    }

    pub(super) fn insert(&mut self, text: &[u8], token: u32) {
        let mut node = 0;
        for byte in text {
            let new = self.tokens.len() as u32;
            node = *self.edges.entry(key(node, *byte)).or_insert(new);
            if node == new {
                self.tokens.push(None);
            }
        }
        if let Some(slot) = self.tokens.get_mut(node as usize) {
            *slot = Some(token);
        }
    }

    /// The tokens that `text` begins with, with their lengths, the shortest first.
    pub(super) fn prefixes<'a>(
        &'a self,
        text: &'a [u8],
    ) -> impl Iterator<Item = (usize, u32)> + 'a {
        let mut node = 0;
        let nodes = text.iter().map_while(move |byte| {
            node = *self.edges.get(&key(node, *byte))?;
            Some(node)
        });
        nodes.enumerate().filter_map(|(i, node)| Some((i + 1, (*self.tokens.get(node as usize)?)?)))
    }
}

fn key(node: u32, byte: u8) -> u64 {
    u64::from(node) << 8 | u64::from(byte)
}
