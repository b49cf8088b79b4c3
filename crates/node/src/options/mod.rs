//! Provider options: every name, its type, its value.
