//! The C ABI of the wsrep provider interface, version 26.
