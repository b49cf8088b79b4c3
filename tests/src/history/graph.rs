//! A directed graph whose edges have kinds; its cycles.

use std::collections::VecDeque;

/// Why one point in time lies before another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A transaction starts before it commits.
    Own,
    /// Overwrote: the next version of a list is the other's.
    WriteWrite,
    /// Saw the other's append.
    WriteRead,
    /// Did not see the other's append.
    ReadWrite,
    /// The client's next transaction.
    Session,
    /// Was over before the other began.
    RealTime,
}

/// Edges by start. Vertices are numbers from 0.
#[derive(Debug, Default)]
pub struct Graph {
    edges: Vec<Vec<(u32, Kind)>>,
}

impl Graph {
    /// A graph of `vertices` vertices without edges.
    pub fn new(vertices: usize) -> Self {
        Self {
            edges: vec![Vec::new(); vertices],
        }
    }

    /// Adds an edge.
    pub fn add(&mut self, from: usize, to: usize, kind: Kind) {
        let to = u32::try_from(to).expect("fewer than 2^32 vertices");
        self.edges[from].push((to, kind));
    }

    /// One shortest cycle of each strongly connected component that has one:
    /// the vertices in order, each with the kind of the edge that leaves it.
    /// Edges of kinds that `allowed` refuses do not count.
    pub fn cycles(&self, allowed: impl Fn(Kind) -> bool + Copy) -> Vec<Vec<(usize, Kind)>> {
        let component = self.components(allowed);
        let mut size = vec![0u32; self.edges.len()];
        for c in &component {
            size[*c as usize] += 1;
        }
        let mut members: Vec<Vec<usize>> = vec![Vec::new(); self.edges.len()];
        for (v, c) in component.iter().enumerate() {
            if size[*c as usize] > 1 {
                members[*c as usize].push(v);
            }
        }
        members
            .into_iter()
            .filter(|m| !m.is_empty())
            .filter_map(|m| {
                // The shortest of a few starts is short enough to be read.
                m.iter()
                    .take(50)
                    .filter_map(|&v| self.shortest(v, &component, allowed))
                    .min_by_key(Vec::len)
            })
            .collect()
    }

    /// The shortest way from `start` back to it within its component.
    fn shortest(
        &self,
        start: usize,
        component: &[u32],
        allowed: impl Fn(Kind) -> bool,
    ) -> Option<Vec<(usize, Kind)>> {
        let mut from: std::collections::HashMap<usize, (usize, Kind)> = Default::default();
        let mut queue = VecDeque::from([start]);
        while let Some(v) = queue.pop_front() {
            for &(to, kind) in &self.edges[v] {
                let to = to as usize;
                if !allowed(kind) || component[to] != component[start] {
                    continue;
                }
                if to == start {
                    let mut way = vec![(v, kind)];
                    let mut at = v;
                    while at != start {
                        let (before, kind) = from[&at];
                        way.push((before, kind));
                        at = before;
                    }
                    way.reverse();
                    return Some(way);
                }
                from.entry(to).or_insert_with(|| {
                    queue.push_back(to);
                    (v, kind)
                });
            }
        }
        None
    }

    /// Number of the strongly connected component of each vertex (Tarjan,
    /// without recursion: chains are as long as the history).
    fn components(&self, allowed: impl Fn(Kind) -> bool) -> Vec<u32> {
        const NONE: u32 = u32::MAX;
        let n = self.edges.len();
        let (mut index, mut low) = (vec![NONE; n], vec![0u32; n]);
        let mut component = vec![NONE; n];
        let (mut stack, mut path) = (Vec::new(), Vec::<(usize, usize)>::new());
        let (mut next, mut found) = (0u32, 0u32);
        for root in 0..n {
            if index[root] != NONE {
                continue;
            }
            path.push((root, 0));
            while let Some(&(v, at)) = path.last() {
                if at == 0 {
                    index[v] = next;
                    low[v] = next;
                    next += 1;
                    stack.push(v);
                }
                if let Some(&(to, kind)) = self.edges[v].get(at) {
                    path.last_mut().expect("just looked at").1 += 1;
                    let to = to as usize;
                    if !allowed(kind) {
                        continue;
                    }
                    if index[to] == NONE {
                        path.push((to, 0));
                    } else if component[to] == NONE {
                        low[v] = low[v].min(index[to]);
                    }
                    continue;
                }
                path.pop();
                if let Some(&(above, _)) = path.last() {
                    low[above] = low[above].min(low[v]);
                }
                if low[v] == index[v] {
                    while let Some(w) = stack.pop() {
                        component[w] = found;
                        if w == v {
                            break;
                        }
                    }
                    found += 1;
                }
            }
        }
        component
    }
}
