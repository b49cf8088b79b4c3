//! The node's threads at work, without a server: toy databases play the
//! server's part (contract B and C), engines talk through memory.
//!
//! Every test has a limit and prints what everybody was doing when it fails.
//! `TOY_LOG=1` prints the nodes' log lines as they come.

mod alone;
mod bf_abort;
mod bulk;
mod bypass;
mod chain;
mod chunks;
mod closed;
mod ddl_crash;
mod disks;
mod edits;
mod ends;
mod flow;
mod halves;
mod lags;
mod last_one;
mod left;
mod listed;
mod load;
mod marks;
mod membership;
mod mended;
mod net;
mod one_name;
mod one_node;
mod opened;
mod outvoted_away;
mod own_log;
mod paces;
mod partition;
mod pauses;
mod queued;
mod refusals;
mod retention;
mod rng;
mod shelved;
mod signs;
mod silent;
mod stands;
mod stopping;
mod storm;
mod streaming;
mod three_nodes;
mod thrown;
mod told_to_stop;
mod toy;
mod upgrades;
mod votes;
mod weights;
mod whole;
mod witness;

mod world;
