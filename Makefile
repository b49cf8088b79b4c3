# make up      a running three-node cluster on this machine
# make down    stop it
# make check   format, lints, licences, unit tests, models, simulation: no cluster, but its packages
# make build   the library and the programs, target/release/storms among them
# make test    check, then scenarios on real servers in short form and the conformance list
# make test-11.8   the library under MariaDB 11.8: Debian 13 in a folder, root, 600 MB
# make sim     the simulation alone; SEEDS=200
# make models  the small models alone
# make torture rounds of faults on real servers, root, hours: docs/torture.md; ROUNDS=20
# make conformance-safety   MariaDB's tests that restart, kill, cut off or vote; ROUNDS=1
# make conformance-all      MariaDB's five galera suites, the big tests too, against what the peer passes; two hours
# make fuzz    every parser under libFuzzer; SECONDS=60 for each

TARGET   := $(or $(CARGO_TARGET_DIR),target)
PROVIDER ?= $(TARGET)/release/libdromon.so
DENY     := 0.20.2
# Seconds of load in each scenario on real servers; scenarios beside each other.
STORM_SECONDS ?= 8
STORM_LANES ?= 2
# Unit tests beside each other: those of the node mostly wait.
TEST_THREADS ?= $(shell expr 5 \* $$(nproc))
# Runs of the simulation.
SEEDS ?= 200
# For make torture: rounds of each fault, seconds of list-append, entries to feed again,
# scenarios beside each other, whom to measure beside.
ROUNDS ?= 20
TORTURE_SECONDS ?= 600
ENTRIES ?= 100000
LANES ?= 3
PEER ?= /usr/lib/galera/libgalera_smm.so
# Debian packages of a cluster on this machine, and of all tests.
PACKAGES_UP   := gcc libc6-dev mariadb-server mariadb-client mariadb-backup rsync socat lsof iproute2 openssl stunnel4
PACKAGES_TEST := $(PACKAGES_UP) git ca-certificates mariadb-test mariadb-test-data galera-4 \
                 galera-arbitrator-4 sysbench procps e2fsprogs mount util-linux perl-base

.PHONY: help up down build server packages check format lint licences unit models sim fuzz test test-11.8 storms torture conformance conformance-safety conformance-all
# Targets share the build directory and the machine's ports: one after the other, whatever -j says.
.NOTPARALLEL:
help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

up: server
	cargo build --locked --release -p dromon-provider -p dromon-cli
	$(TARGET)/release/dromon up $(UP)

down:
	$(TARGET)/release/dromon down $(DOWN)

build:
	cargo build --locked --release -p dromon-provider -p dromon-cli -p dromon-tests

# What a cluster takes, and so do the unit tests of what starts one: they make system tables, and a
# server that fails.
server:
	.ci/install-packages $(PACKAGES_UP)

packages:
	.ci/install-packages $(PACKAGES_TEST)

check: server format lint licences unit models sim

format:
	cargo fmt --all --check

lint:
	cargo clippy --locked --workspace --all-targets -- -D warnings

# Not optimised it is there sooner, and takes two seconds.
licences:
	cargo deny --version 2>/dev/null | grep -qx 'cargo-deny $(DENY)' || \
	  CARGO_PROFILE_DEV_DEBUG=0 cargo install --debug --locked cargo-deny --version $(DENY)
	cargo deny --locked check licenses bans sources

unit:
	RUST_TEST_THREADS=$(TEST_THREADS) cargo test --locked --workspace --exclude dromon-sim --exclude dromon-models --no-fail-fast

# Every order of events in the small models, and their planted faults.
models:
	cargo run --locked -p dromon-models

# Its tests too are optimised: as a debug build they take many times as long.
sim:
	cargo test --locked --release -p dromon-sim --no-fail-fast
	cargo run --locked --release -p dromon-sim -- --seeds $(SEEDS)

# Seconds for each target.
SECONDS ?= 60
fuzz:
	.ci/install-packages g++
	fuzz/run $(SECONDS)

test: packages check storms conformance

# The library alone; Debian 13 comes with the test.
test-11.8:
	cargo build --locked --release -p dromon-provider
	tests/mariadb-11.8/run --provider $(PROVIDER)

storms: build
	$(TARGET)/release/storms --provider $(PROVIDER) --seconds $(STORM_SECONDS) --lanes $(STORM_LANES) \
	  --least-cert-failures 100 --least-bf-aborts 100 --least-replays 10
	$(TARGET)/release/storms --provider $(PROVIDER) --seconds $(STORM_SECONDS) --lanes $(STORM_LANES) --rounds 1 \
	  --least-cert-failures 50 --least-bf-aborts 50 --least-replays 5 \
	  --set log_bin=binlog --set sync_binlog=1 \
	  --provider-options dromon.auto_stream_size=128 ranges unique_keys no_primary_key kills limits kill_all kill_joining \
	  join_rsync
	$(TARGET)/release/storms --provider $(PROVIDER) --seconds $(STORM_SECONDS) --lanes $(STORM_LANES) --rounds 1 --streaming \
	  ranges unique_keys isolation desync kills kill_all kill_leader join_rsync join_mariabackup
	$(TARGET)/release/storms --provider $(PROVIDER) --seconds 4 --lanes $(STORM_LANES) --rounds 1 --peer $(PEER) control_kill_all control_lost_update
	$(TARGET)/release/storms --provider $(PROVIDER) --seconds 4 --lanes $(STORM_LANES) --rounds 1 relay_kills relay_answers relay_group \
	  replica_follows replica_differs replica_ways replica_lists replica_events cut_kinds

torture: packages build
	$(TARGET)/release/storms --provider $(PROVIDER) --torture --control --rounds $(ROUNDS) --seconds $(TORTURE_SECONDS) --lanes $(LANES) \
	  --entries $(ENTRIES) --peer $(PEER) --report docs/torture-report.txt

conformance: build
	failed=0; \
	tests/conformance/run --provider $(PROVIDER) --list tests/conformance/first.txt || failed=1; \
	tests/conformance/run --provider $(PROVIDER) --suite galera_sr --list tests/conformance/first-sr.txt || failed=1; \
	exit $$failed

# Tests that restart, kill, cut off, bootstrap or vote, ROUNDS times; 25 minutes for each round.
conformance-safety: ROUNDS = 1
conformance-safety: packages build
	tests/conformance/run --provider $(PROVIDER) --big --minutes 6 --rounds $(ROUNDS) --list tests/conformance/second.txt
	tests/conformance/run --provider $(PROVIDER) --big --minutes 6 --rounds $(ROUNDS) --suite galera_3nodes \
	  --list tests/conformance/second-3nodes.txt

# The whole suites: what the peer passes (peer-10.11.tsv) passes, or is in exceptions.txt with the reason.
SUITES ?= galera galera_sr galera_3nodes galera_3nodes_sr wsrep
conformance-all: packages build
	failed=0; for suite in $(SUITES); do \
	  tests/conformance/run --provider $(PROVIDER) --big --minutes 6 --suite $$suite \
	    --peer tests/conformance/peer-10.11.tsv || failed=1; \
	done; exit $$failed
