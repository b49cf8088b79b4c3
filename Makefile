# make up      a running three-node cluster on this machine
# make down    stop it
# make check   format, lints, licences, unit tests: no servers
# make test    check, then the tests on real servers and the conformance list

TARGET   := $(or $(CARGO_TARGET_DIR),target)
PROVIDER ?= $(TARGET)/release/libdromon.so
DENY     := 0.20.2
# Seconds of load in each scenario on real servers.
STORM_SECONDS ?= 8

.PHONY: help up down build check format lint licences unit test storms conformance
help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

up:
	.ci/install-packages gcc libc6-dev mariadb-server mariadb-client mariadb-backup rsync socat lsof iproute2
	cargo build --locked --release -p dromon-provider -p dromon-cli
	$(TARGET)/release/dromon up $(UP)

down:
	$(TARGET)/release/dromon down $(DOWN)

build:
	cargo build --locked --release -p dromon-provider -p dromon-cli -p dromon-tests

check: format lint licences unit

format:
	cargo fmt --all --check

lint:
	cargo clippy --locked --workspace --all-targets -- -D warnings

licences:
	cargo deny --version 2>/dev/null | grep -qx 'cargo-deny $(DENY)' || cargo install --locked cargo-deny --version $(DENY)
	cargo deny --locked check licenses bans sources

unit:
	cargo test --locked --workspace --no-fail-fast

test: check storms conformance

storms: build
	$(TARGET)/release/storms --provider $(PROVIDER) --seconds $(STORM_SECONDS)

conformance: build
	tests/conformance/run --provider $(PROVIDER) --list tests/conformance/first.txt
