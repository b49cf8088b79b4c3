//! libdromon.so: the wsrep provider that MariaDB loads.
