//! Both ends of the border: a toy provider behind the real exported symbols, and a
//! pretended server in C manner (garbage memory, raw pointers, callbacks).

// Each test binary uses its part of this.
#![allow(dead_code)]

pub mod server;
pub mod toy;
