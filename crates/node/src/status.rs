//! Status variables under the names that tools read.
