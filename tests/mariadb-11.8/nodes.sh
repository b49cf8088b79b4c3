# Servers in the folder: how to make, start, ask and stop them. Sourced by `checks`.
#
# Node N has its data in /srv/nN, its log in /srv/nN.err, SQL on port 3300+N, the
# cluster's port on 4100+N and state transfers on 4200+N, all on 127.0.0.1 of a
# network of their own.

readonly start_seconds=60 stop_seconds=40 query_seconds=20
cluster_address=gcomm://127.0.0.1:4101,127.0.0.1:4102,127.0.0.1:4103

# One empty data directory; the nodes get copies.
make_data() {
  timeout 60 mariadb-install-db --no-defaults --datadir=/srv/empty --user=mysql --skip-test-db \
    --skip-name-resolve --auth-root-authentication-method=normal \
    --innodb-log-file-size=32M >/srv/install.log 2>&1
}

make_node() { # N
  local n=$1
  rm -rf "/srv/n$n"
  cp -a /srv/empty "/srv/n$n"
  cat >"/srv/n$n.cnf" <<CNF
[mariadb]
datadir=/srv/n$n
socket=/srv/n$n.sock
pid_file=/srv/n$n.pid
log_error=/srv/n$n.err
bind_address=127.0.0.1
port=330$n
skip_name_resolve
binlog_format=ROW
innodb_autoinc_lock_mode=2
innodb_flush_log_at_trx_commit=2
innodb_buffer_pool_size=64M
innodb_log_file_size=32M
wsrep_on=ON
wsrep_provider=/mnt/libdromon.so
wsrep_cluster_name=trixie
wsrep_cluster_address=$cluster_address
wsrep_node_name=n$n
wsrep_node_address=127.0.0.1:410$n
wsrep_node_incoming_address=127.0.0.1:330$n
wsrep_slave_threads=4
wsrep_sst_method=rsync
wsrep_sst_auth=root:
wsrep_sst_receive_address=127.0.0.1:420$n
wsrep_provider_options="gmcast.listen_addr=tcp://127.0.0.1:410$n;gcs.fc_limit=77"
CNF
}

# Its pid comes to stand in /srv/nN.run, its exit code in /srv/nN.exit.
start() { # N [ARGUMENT ...]
  local n=$1
  shift
  rm -f "/srv/n$n.run" "/srv/n$n.exit"
  (
    cd / || exit
    setpriv --reuid=mysql --regid=mysql --init-groups \
      mariadbd --defaults-file="/srv/n$n.cnf" "$@" >>"/srv/n$n.out" 2>&1 </dev/null &
    echo $! >"/srv/n$n.run"
    code=0
    wait $! || code=$?
    echo $code >"/srv/n$n.exit"
  ) 2>/dev/null &
  within 10 test -s "/srv/n$n.run"
}

pid() { cat "/srv/n$1.run"; }

alive() { [ ! -e "/srv/n$1.exit" ]; }

# The server's exit code (128 + the signal it died of), or "still running" after the limit.
ended() { # N
  within $stop_seconds test -s "/srv/n$1.exit" || { echo "still running"; return; }
  cat "/srv/n$1.exit"
}

stop() { # N
  kill -TERM "$(pid "$1")"
  ended "$1"
}

# The answer, or the text of the error. Never hangs.
sql() { # N STATEMENTS
  timeout $query_seconds mariadb --no-defaults -uroot -S "/srv/n$1.sock" -D "${db:-}" -N -B \
    --default-character-set=utf8mb4 --connect-timeout=5 -e "$2" 2>&1 | grep -vx -e '--------------' -e ''
}

# "ok", or the number of the error.
code() { # N STATEMENTS
  local out
  if out=$(timeout $query_seconds mariadb --no-defaults -uroot -S "/srv/n$1.sock" -D "${db:-}" -N -B -e "$2" 2>&1); then
    echo ok
  else
    sed -n 's/^ERROR \([0-9]*\).*/\1/p' <<<"$out" | grep . || echo "no answer: $out"
  fi
}

status() { # N NAME
  sql "$1" "SELECT variable_value FROM information_schema.global_status WHERE variable_name='$2'"
}

# Until the command succeeds, at most so many seconds.
within() { # SECONDS COMMAND ...
  local until=$((SECONDS + $1))
  shift
  until "$@"; do
    [ $SECONDS -lt $until ] || return 1
    sleep 0.2
  done
}

is_synced() { # N SIZE
  [ "$(sql "$1" "SELECT GROUP_CONCAT(variable_value ORDER BY variable_name) FROM information_schema.global_status
    WHERE variable_name IN ('wsrep_cluster_size','wsrep_cluster_status','wsrep_local_state_comment','wsrep_ready')")" = "$2,Primary,Synced,ON" ]
}

synced() { # N SIZE: "Synced", or why not
  local n=$1 until=$((SECONDS + start_seconds))
  until is_synced "$n" "$2"; do
    alive "$n" || { echo "server ended: $(grep -F '[ERROR]' "/srv/n$n.err" | tail -n 3)"; return; }
    [ $SECONDS -lt $until ] || { echo "not synced with $2 nodes after $start_seconds s: $(sql "$n" "SHOW STATUS LIKE 'wsrep_local_state_comment'")"; return; }
    sleep 0.2
  done
  echo Synced
}

# Where the storage engine of a stopped node stands. Empty: it could not be read.
recovered() { # N
  rm -f "/srv/n$1.recover"
  timeout 60 setpriv --reuid=mysql --regid=mysql --init-groups \
    mariadbd --defaults-file="/srv/n$1.cnf" --log-error="/srv/n$1.recover" --wsrep-recover >/dev/null 2>&1
  sed -n 's/.*WSREP: Recovered position: *//p' "/srv/n$1.recover" | tail -n 1
}

position() { # N: of a running node
  sql "$1" "SELECT CONCAT(u.variable_value, ':', s.variable_value) FROM information_schema.global_status u
    JOIN information_schema.global_status s WHERE u.variable_name='wsrep_cluster_state_uuid' AND s.variable_name='wsrep_last_committed'"
}

# Names and checksums of all tables of the database t, as of now.
tables() { # N
  local list
  list=$(sql "$1" "SET wsrep_sync_wait=15; SELECT GROUP_CONCAT(CONCAT('t.', table_name) ORDER BY table_name)
    FROM information_schema.tables WHERE table_schema='t' AND table_type='BASE TABLE'")
  sql "$1" "SET wsrep_sync_wait=15; SELECT 'now' FROM DUAL; CHECKSUM TABLE $list"
}
