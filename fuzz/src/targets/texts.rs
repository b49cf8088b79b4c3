//! Texts that people and tools write: options, addresses, state files.

use dromon_node::Position;
use dromon_node::grastate::{GraState, ViewState};
use dromon_node::options::{ClusterAddress, Env, Options, Phase};
use dromon_order::address::parse_address;
use dromon_witness::Given;

use super::Target;

fn text(data: &[u8]) -> String {
    String::from_utf8_lossy(data).into_owned()
}

fn env() -> Env {
    Env {
        node_address: "10.0.0.1".into(),
        data_dir: "/var/lib/mysql/".into(),
    }
}

/// `wsrep_provider_options`: what is shown can be given again and shows the same.
pub const OPTIONS: Target = Target {
    name: "options",
    run: |data| {
        let given = text(data);
        let mut options = Options::new(env());
        if options.parse_init(&given).is_ok() {
            let shown = options.to_string();
            let mut again = Options::new(env());
            if let Err(e) = again.parse_init(&shown) {
                panic!("what is shown is refused: {e}\n{shown}");
            }
            assert_eq!(again.to_string(), shown);
        }
        for connected in [false, true] {
            let mut options = Options::new(env());
            let before = options.to_string();
            let outcome = options.set(&given, Phase::Runtime { connected });
            if outcome.error.is_some() && outcome.changed.is_empty() && outcome.actions.is_empty() {
                assert_eq!(options.to_string(), before, "nothing was changed");
            }
        }
    },
    seeds: || {
        let some: [&[u8]; 8] = [
            b"",
            b"gcache.size=1G; gcs.fc_limit=16;gcs.fc_factor = 0.5",
            b"evs.suspect_timeout=PT5S;evs.keepalive_period=PT0.5S;pc.weight=3",
            b"gmcast.listen_addr=tcp://[::]:4567;base_port=4500;base_host=10.0.0.9",
            b"socket.ssl=yes;socket.ssl_cert=/etc/c.pem;dromon.secret_file=/etc/s",
            b"gmcast.peer_addr=tcp://a\\;b:4567;pc.bootstrap=1;evs.evict=",
            b"dromon.durability=memory;dromon.log_max=1T;cert.log_conflicts=on",
            b"repl.commit_order=3;protonet.version=0;gcs.sync_donor=NO",
        ];
        let mut seeds: Vec<Vec<u8>> = some.map(<[u8]>::to_vec).into();
        seeds.push(Options::new(env()).to_string().into_bytes());
        seeds
    },
};

/// `gcomm://…` and `host:port`.
pub const ADDRESSES: Target = Target {
    name: "addresses",
    run: |data| {
        let given = text(data);
        if let Ok(address) = ClusterAddress::parse(&given) {
            let _ = (address.founds(), address.resolve(4567));
        }
        if let Ok(at) = parse_address(&given, 4567) {
            assert_eq!(parse_address(&at.to_string(), 1), Ok(at));
        }
    },
    seeds: || {
        let some: [&[u8]; 9] = [
            b"gcomm://",
            b"gcomm://10.0.0.1,10.0.0.2:4568,[::1]:4567?pc.wait_prim=no&gmcast.segment=2",
            b"gcomm://db1.example.org,db2",
            b"dummy://",
            b"10.0.0.1:4567",
            b"[fe80::1]:1",
            b"tcp://0.0.0.0:4567",
            b"ssl://host",
            b"::1",
        ];
        some.map(<[u8]>::to_vec).into()
    },
};

/// `grastate.dat`, `gvwstate.dat`: what is read and written again reads the same.
pub const STATE_FILES: Target = Target {
    name: "state_files",
    run: |data| {
        let given = text(data);
        if let Ok(state) = GraState::parse(&given) {
            assert_eq!(GraState::parse(&state.to_string()), Ok(state));
        }
        if let Ok(view) = ViewState::parse(&given) {
            assert_eq!(ViewState::parse(&view.to_string()), Ok(view));
        }
    },
    seeds: || {
        let uuid = dromon_writeset::Uuid([5; 16]);
        let view = ViewState {
            my_uuid: uuid,
            view_id: (uuid, 7),
            bootstrap: false,
            members: vec![(uuid, 0), (dromon_writeset::Uuid([6; 16]), 2)],
        };
        let state = GraState {
            uuid,
            seqno: 99,
            safe_to_bootstrap: true,
        };
        vec![
            GraState::default().to_string().into_bytes(),
            state.to_string().into_bytes(),
            view.to_string().into_bytes(),
        ]
    },
};

/// The settings file of `dromon witness`: an error names a line that is there.
pub const WITNESS_FILE: Target = Target {
    name: "witness_file",
    run: |data| {
        let given = text(data);
        let file = std::path::Path::new("garb.cnf");
        match Given::parse(&given, file) {
            Ok(read) => drop(read.or(Given::default()).settle()),
            Err(e) => {
                let said = e.to_string();
                let line = (1..=given.lines().count())
                    .any(|n| said.starts_with(&format!("garb.cnf, line {n}: ")));
                assert!(line, "{said}");
            }
        }
    },
    seeds: || {
        let some: [&[u8]; 5] = [
            b"group = alpha\naddress = gcomm://10.0.0.1,10.0.0.2\nname=w\ndaemon = 1\n",
            b"# garbd\nGALERA_NODES=\"10.0.0.1:4567 10.0.0.2:4567\"\nGALERA_GROUP='alpha'\n",
            b"GALERA_OPTIONS=\"gmcast.listen_addr=tcp://0.0.0.0:4567\"\nLOG_FILE=/a\nWORK_DIR=/b",
            b"options=evs.suspect_timeout=PT5S\ndir=/var/lib/witness\nlog=/var/log/w\n",
            b"sst = x\n",
        ];
        some.map(<[u8]>::to_vec).into()
    },
};

/// The line of `mariadbd --wsrep-recover`: what is found reads the same when written.
pub const RECOVERED: Target = Target {
    name: "recovered",
    run: |data| {
        for line in text(data).lines() {
            if let Some(found) = Position::in_recovered_line(line) {
                let again = format!("WSREP: Recovered position: {found}");
                assert_eq!(Position::in_recovered_line(&again), Some(found));
            }
        }
    },
    seeds: || {
        let some: [&[u8]; 3] = [
            b"2026-11-21 22:17:25 0 [Note] WSREP: Recovered position: \
              4c23a442-2c81-445d-9638-2706ef389008:29768,0-1-5\n",
            b"Recovered position: 00000000-0000-0000-0000-000000000000:-1",
            b"[ERROR] mariadbd: unknown option\nRecovered position: x:y",
        ];
        some.map(<[u8]>::to_vec).into()
    },
};
