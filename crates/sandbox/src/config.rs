//! What a cluster is asked to be, and the `my.cnf` of each node.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{Result, SandboxError};
use crate::record::{ClusterRecord, NodeRecord};
use crate::template::program;

/// In a node's directory: the process id of its server, by whomever it was started.
pub(crate) const PID_FILE: &str = "mysqld.pid";

/// The settings the quick start writes, each with its reason.
pub const QUICK_START: &[(&str, &str, &str)] = &[
    ("binlog_format", "ROW", "write sets are row events"),
    (
        "default_storage_engine",
        "InnoDB",
        "only InnoDB tables replicate",
    ),
    (
        "innodb_autoinc_lock_mode",
        "2",
        "nodes hand out interleaved numbers",
    ),
    (
        "transaction_isolation",
        "REPEATABLE-READ",
        "the level the anomaly table speaks of",
    ),
    (
        "innodb_snapshot_isolation",
        "ON",
        "a lost update becomes error 1020: retry like 1213",
    ),
    (
        "wsrep_sync_wait",
        "1",
        "current reads on every node (0: faster, may be old)",
    ),
    (
        "innodb_flush_log_at_trx_commit",
        "2",
        "durability comes from the provider's log",
    ),
    (
        "innodb_doublewrite",
        "ON",
        "the log repairs lost transactions, not torn pages",
    ),
    (
        "wsrep_ignore_apply_errors",
        "0",
        "DDL that fails on one node only must not be hidden",
    ),
    (
        "wsrep_mode",
        "REQUIRED_PRIMARY_KEY,STRICT_REPLICATION",
        "refuse what does not replicate well",
    ),
    (
        "wsrep_certify_nonPK",
        "ON",
        "rows without a primary key are certified by their content",
    ),
    ("wsrep_slave_FK_checks", "ON", "appliers check foreign keys"),
    ("wsrep_slave_UK_checks", "ON", "appliers check unique keys"),
    (
        "wsrep_retry_autocommit",
        "4",
        "single statements that lost are tried again by the server",
    ),
];

/// How a joiner gets a full copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SstMethod {
    /// `rsync`: fast, blocks the donor.
    Rsync,
    /// `mariabackup`: the donor stays writable.
    Mariabackup,
    /// `mysqldump`: logical copy.
    Mysqldump,
}

impl SstMethod {
    /// The server's name of the method.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Rsync => "rsync",
            Self::Mariabackup => "mariabackup",
            Self::Mysqldump => "mysqldump",
        }
    }

    /// Programs the method runs, with their Debian packages.
    pub(crate) fn programs(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Rsync => &[("rsync", "rsync"), ("lsof", "lsof")],
            Self::Mariabackup => &[
                ("mariabackup", "mariadb-backup"),
                ("socat", "socat"),
                ("lsof", "lsof"),
            ],
            Self::Mysqldump => &[("mariadb-dump", "mariadb-client")],
        }
    }

    /// Whether its copies can be encrypted on this machine.
    pub(crate) fn can_encrypt(self) -> bool {
        match self {
            Self::Rsync => program("stunnel", "stunnel4").is_ok(),
            Self::Mariabackup => true,
            Self::Mysqldump => false,
        }
    }

    /// What to do so that copies are encrypted.
    #[must_use]
    pub fn encrypt_advice(self) -> &'static str {
        match self {
            Self::Rsync => "install stunnel4",
            Self::Mariabackup => "start the cluster anew",
            Self::Mysqldump => "use --sst-method rsync or mariabackup",
        }
    }
}

impl FromStr for SstMethod {
    type Err = SandboxError;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "rsync" => Ok(Self::Rsync),
            "mariabackup" => Ok(Self::Mariabackup),
            "mysqldump" => Ok(Self::Mysqldump),
            other => Err(SandboxError::BadRequest(format!(
                "There is no state transfer method {other}. Choose rsync, mariabackup or mysqldump"
            ))),
        }
    }
}

/// One line of a server's settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// Name as in `my.cnf`.
    pub name: String,
    /// Value; none for a bare switch such as `skip-slave-start`.
    pub value: Option<String>,
}

impl Setting {
    /// A setting with a value.
    #[must_use]
    pub fn new(name: &str, value: &str) -> Self {
        Self {
            name: name.to_string(),
            value: Some(value.to_string()),
        }
    }
}

impl FromStr for Setting {
    type Err = SandboxError;

    /// Accepts `name=value`, `name`, and both with leading dashes.
    fn from_str(text: &str) -> Result<Self> {
        let bare = text.trim_start_matches('-');
        let (name, value) = match bare.split_once('=') {
            Some((name, value)) => (name.trim(), Some(value.trim().to_string())),
            None => (bare.trim(), None),
        };
        let known = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-' || c == '.';
        if name.is_empty() || !name.chars().all(known) || text.contains('\n') {
            return Err(SandboxError::BadRequest(format!(
                "{text:?} is not a server setting. Write name=value, for instance innodb_buffer_pool_size=1G"
            )));
        }
        Ok(Self {
            name: name.to_string(),
            value,
        })
    }
}

/// Settings that would break what the sandbox relies on, with what to use
/// instead.
const OWNED: &[(&str, &str)] = &[
    ("bind_address", "sandboxes listen on 127.0.0.1 only"),
    ("datadir", "use --dir"),
    ("log_error", "use --dir"),
    ("pid_file", "use --dir"),
    ("port", "use --port"),
    ("socket", "use --dir"),
    ("user", "servers started by root run as user mysql"),
    (
        "wsrep_cluster_address",
        "the nodes of the directory form the cluster",
    ),
    (
        "wsrep_new_cluster",
        "dromon up finds out which node founds it",
    ),
    ("wsrep_node_address", "use --port"),
    ("wsrep_node_name", "nodes are named db1, db2 and so on"),
    ("wsrep_provider", "use --provider"),
    (
        "wsrep_recover",
        "a server with it tells its position and ends; dromon up does that by itself",
    ),
    ("wsrep_sst_auth", "the sandbox has its own user"),
    ("wsrep_sst_method", "use --sst-method"),
    ("wsrep_sst_receive_address", "use --port"),
    (
        "wsrep_start_position",
        "each node has a position of its own",
    ),
];

/// What the server lets stand before the name of a setting.
const PREFIXES: &[&str] = &[
    "loose_", "maximum_", "autoset_", "enable_", "disable_", "skip_",
];

/// The setting that the server takes `name` for.
pub(crate) fn plain(name: &str) -> String {
    let name = name.replace('-', "_").to_lowercase();
    let mut rest = name.as_str();
    while let Some(after) = PREFIXES.iter().find_map(|p| rest.strip_prefix(p)) {
        rest = after;
    }
    rest.to_owned()
}

/// Where a server puts what is its own; by an absolute path all nodes would have one place for it.
const ONE_EACH: &[&str] = &["log_bin", "log_bin_index", "relay_log", "relay_log_index"];

/// Why the sandbox must set itself what `name` is, or is the beginning of: a `my.cnf` may have a name short, as
/// long as it is that of one setting only.
fn owned(name: &str) -> Option<(&'static str, &'static str)> {
    let named = |(owned, _): &&(&str, &str)| !name.is_empty() && owned.starts_with(name);
    let exact = OWNED.iter().find(|(owned, _)| *owned == name);
    let short = ("wsrep_provider_options", "write its name in full");
    let is_short = name.len() > "wsrep_provider".len() && name.len() < short.0.len();
    match exact.or_else(|| OWNED.iter().find(named)) {
        None if is_short && short.0.starts_with(name) => Some(short),
        found => found.copied(),
    }
}

/// Takes `wsrep_provider_options` out of the settings (the sandbox adds the
/// addresses to it) and refuses those it must set itself, and values that a `my.cnf`
/// would cut.
///
/// # Errors
/// [`SandboxError::BadRequest`] names the setting and what to use instead.
pub fn split_settings(settings: &[Setting]) -> Result<(Vec<Setting>, Option<String>)> {
    let mut kept = Vec::new();
    let mut options = None;
    for setting in settings {
        let name = plain(&setting.name);
        if let Some((owned, instead)) = owned(&name) {
            let meant = match owned == name {
                true => String::new(),
                false => format!(", which the server may take for {owned},"),
            };
            return Err(SandboxError::BadRequest(format!(
                "The setting {}{meant} cannot be given to a local cluster: {instead}",
                setting.name
            )));
        }
        let value = setting.value.as_deref().unwrap_or_default();
        if ONE_EACH.contains(&name.as_str()) && value.trim_matches(['"', '\'']).starts_with('/') {
            return Err(SandboxError::BadRequest(format!(
                "The value of {} is an absolute path, and all nodes would write there, each over the others' files. Give a name \
                 alone, for instance {0}=binlog: each node then has it in its own data directory",
                setting.name
            )));
        }
        if name == "wsrep_provider_options" {
            options = Some(value.trim_matches('"').to_string());
        } else if setting.value.as_deref().is_some_and(has_comment) {
            return Err(SandboxError::BadRequest(format!(
                "The value of {} has a # in it: in a my.cnf a comment begins there. Put the whole value in quotes: {0}=\"…\" (and those in ' ' for the shell)",
                setting.name
            )));
        } else {
            kept.push(setting.clone());
        }
    }
    Ok((kept, options))
}

/// What a cluster is asked to be.
#[derive(Debug, Clone)]
pub struct ClusterSpec {
    /// Where everything lies. Created if missing.
    pub dir: PathBuf,
    /// How many nodes are prepared (they need not all be started).
    pub nodes: usize,
    /// The provider library.
    pub provider: PathBuf,
    /// How joiners get a full copy.
    pub sst_method: SstMethod,
    /// `wsrep_slave_threads`.
    pub appliers: usize,
    /// `wsrep_provider_options` besides the addresses, `k=v;k=v`.
    pub provider_options: String,
    /// Connections between nodes are encrypted and need a secret, both made
    /// for the cluster.
    pub tls: bool,
    /// Further settings; they win over the quick start's.
    pub settings: Vec<Setting>,
    /// First port; none: free ones are looked for.
    pub port: Option<u16>,
    /// Where the search for free ports starts; none: at the usual place.
    pub port_hint: Option<u16>,
    /// A witness beside the nodes: the `dromon` program that runs it.
    pub witness: Option<PathBuf>,
}

impl ClusterSpec {
    /// Three nodes, rsync, eight appliers.
    #[must_use]
    pub fn new(dir: &Path, provider: &Path) -> Self {
        Self {
            dir: dir.to_path_buf(),
            nodes: 3,
            provider: provider.to_path_buf(),
            sst_method: SstMethod::Rsync,
            appliers: 8,
            provider_options: String::new(),
            tls: false,
            settings: Vec::new(),
            port: None,
            port_hint: None,
            witness: None,
        }
    }

    /// Adds a server setting.
    #[must_use]
    pub fn set(mut self, name: &str, value: &str) -> Self {
        self.settings.push(Setting::new(name, value));
        self
    }
}

/// The first character of a path that a `my.cnf`, or a script of the server's, takes for something
/// else: `wsrep_sst_rsync` cuts the path of its stunnel's settings at a blank.
pub(crate) fn unfit(path: &Path) -> Option<char> {
    let text = path.to_string_lossy();
    text.chars()
        .find(|c| c.is_control() || c.is_whitespace() || ['#', '\'', '"', '\\'].contains(c))
}

/// Whether a `my.cnf` takes a part of the value for a comment: as the server does, which knows
/// escapes only within quotes.
fn has_comment(value: &str) -> bool {
    let (mut quote, mut escaped) = (None, false);
    for c in value.chars() {
        match c {
            '\'' | '"' if !escaped && quote.is_none() => quote = Some(c),
            '\'' | '"' if !escaped && quote == Some(c) => quote = None,
            '#' if quote.is_none() => return true,
            _ => {}
        }
        escaped = quote.is_some() && c == '\\' && !escaped;
    }
    false
}

/// The text of a node's `my.cnf`.
pub(crate) fn my_cnf(cluster: &ClusterRecord, node: &NodeRecord) -> String {
    let ports = node.ports;
    let mut text = String::from(
        "# Written by dromon, anew at each `dromon up`: what is changed here is lost. Instead: dromon up -- name=value\n[mariadb]\n",
    );
    let mut line = |name: &str, value: &str| {
        writeln!(text, "{name}={value}").expect("writing to a String cannot fail");
    };
    line("datadir", &node.data_dir.to_string_lossy());
    line("socket", &node.socket.to_string_lossy());
    line("pid_file", &node.dir.join(PID_FILE).to_string_lossy());
    line("log_error", &node.log.to_string_lossy());
    line("tmpdir", &node.dir.join("tmp").to_string_lossy());
    line("bind_address", "127.0.0.1");
    line("port", &ports.sql.to_string());
    line("skip_name_resolve", "ON");
    for (name, value, _) in QUICK_START {
        line(name, value);
    }
    line("wsrep_on", "ON");
    line("wsrep_provider", &cluster.provider_copy.to_string_lossy());
    line("wsrep_cluster_name", &cluster.name);
    line("wsrep_cluster_address", &cluster.address());
    line("wsrep_node_name", &node.name);
    let address = node.address();
    line("wsrep_node_address", &format!("{address}:{}", ports.group));
    line(
        "wsrep_node_incoming_address",
        &format!("127.0.0.1:{}", ports.sql),
    );
    line("wsrep_slave_threads", &cluster.appliers.to_string());
    line("wsrep_sst_method", cluster.sst_method.name());
    line(
        "wsrep_sst_auth",
        &format!("{}:{}", cluster.user, cluster.password),
    );
    // mysqldump connects to the joiner as a client; the others to a port of their own.
    let sst_port = if cluster.sst_method == SstMethod::Mysqldump {
        ports.sql
    } else {
        ports.sst
    };
    line(
        "wsrep_sst_receive_address",
        &format!("{address}:{sst_port}"),
    );
    let mut options = format!(
        "gmcast.listen_addr=tcp://{address}:{};ist.recv_addr={address}:{}",
        ports.group, ports.ist
    );
    if cluster.tls {
        options += &crate::secure::options(cluster, &node.name);
    }
    if !cluster.provider_options.is_empty() {
        options.push(';');
        options.push_str(&cluster.provider_options);
    }
    line("wsrep_provider_options", &format!("\"{options}\""));
    text.extend(cluster.settings.iter().map(|setting| match &setting.value {
        Some(value) => format!("{}={value}\n", setting.name),
        None => format!("{}\n", setting.name),
    }));
    if cluster.copies_encrypted() {
        text += &crate::secure::copies(cluster, &node.name);
    }
    text
}

/// The text of a node's `client.cnf`, for `mariadb --defaults-file=`.
pub(crate) fn client_cnf(cluster: &ClusterRecord, node: &NodeRecord) -> String {
    format!(
        "[client]\nsocket={}\nuser={}\npassword={}\n",
        node.socket.display(),
        cluster.user,
        cluster.password
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::sample;

    #[test]
    fn settings_are_read_with_and_without_dashes() {
        let parse = |text: &str| text.parse::<Setting>().expect("a setting");
        assert_eq!(
            parse("--wsrep-sync-wait=7"),
            Setting::new("wsrep-sync-wait", "7")
        );
        assert_eq!(
            parse("max_connections = 50"),
            Setting::new("max_connections", "50")
        );
        assert_eq!(parse("skip-slave-start").value, None);
        for bad in ["", "--", "=3", "a b=3", "x=1\nuser=root"] {
            assert!(bad.parse::<Setting>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn owned_settings_are_refused_and_provider_options_set_apart() {
        let parse = |list: &[&str]| -> Vec<Setting> {
            list.iter().map(|t| t.parse().expect("a setting")).collect()
        };
        let given = parse(&[
            "max_connections=9",
            "--wsrep-provider-options=\"gcs.fc_limit=7\"",
        ]);
        let (kept, options) = split_settings(&given).expect("allowed");
        assert_eq!(kept, vec![Setting::new("max_connections", "9")]);
        assert_eq!(options.as_deref(), Some("gcs.fc_limit=7"));
        let error = split_settings(&parse(&["--datadir=/x"]))
            .expect_err("ours")
            .to_string();
        assert_eq!(
            error,
            "The setting datadir cannot be given to a local cluster: use --dir"
        );
        // In each node's my.cnf, and kept there, these would found two clusters, or skip what was committed.
        for (given, reason) in [
            ("wsrep-new-cluster", "finds out which node founds it"),
            ("--wsrep_start_position=a:7", "a position of its own"),
            ("wsrep-recover", "does that by itself"),
            ("loose-wsrep_new_cluster", "finds out which node founds it"),
            ("--loose-Skip_bind-address", "127.0.0.1 only"),
        ] {
            let error = split_settings(&parse(&[given])).expect_err(given);
            assert!(error.to_string().ends_with(reason), "{error}");
        }
        // A my.cnf may have names short.
        for (short, owned) in [
            ("datad=/x", "datadir"),
            ("loose-sock=/x", "socket"),
            ("log-err=/x", "log_error"),
            ("wsrep_provider_o=x", "wsrep_provider_options"),
        ] {
            let error = split_settings(&parse(&[short])).expect_err(short);
            let words = format!("which the server may take for {owned},");
            assert!(error.to_string().contains(&words), "{error}");
        }
        for other in [
            "wsrep_on=ON",
            "log_bin=b",
            "skip-name-resolve",
            "userstat=1",
        ] {
            assert!(split_settings(&parse(&[other])).is_ok(), "{other}");
        }
    }

    #[test]
    fn no_two_nodes_are_given_one_binary_log() {
        let split = |text: &str| split_settings(&[text.parse().expect("a setting")]);
        for one in ["log_bin=/var/tmp/b", "--Log-Bin='/b'", "relay-log=\"/r\""] {
            let error = split(one).expect_err(one).to_string();
            assert!(error.contains("absolute path"), "{error}");
        }
        for each in ["log_bin=binlog", "log_bin", "log_bin=../b", "tmpdir=/x"] {
            assert!(split(each).is_ok(), "{each}");
        }
    }

    #[test]
    fn a_value_that_would_be_cut_is_refused() {
        let split = |value: &str| split_settings(&[Setting::new("init_connect", value)]);
        for cut in ["SET x=1 # y", "#", r##""a"#b"##, r##""a\"b"#c"##, "'a'#"] {
            let error = split(cut).expect_err(cut).to_string();
            assert!(error.contains("init_connect") && error.contains("quotes"));
        }
        for whole in [
            "SET x=1",
            r##""SET x='#'""##,
            "'a#b'",
            r##"a"#"b"##,
            r##""a\"#b""##,
        ] {
            assert!(split(whole).is_ok(), "{whole}");
        }
    }

    #[test]
    fn copies_are_encrypted_where_the_links_are_and_the_scripts_can() {
        let mut cluster = sample();
        cluster.settings = vec![Setting::new("max_connections", "9")];
        cluster.choose_copies(SstMethod::Mariabackup);
        assert!(!my_cnf(&cluster, &cluster.nodes[0]).contains("[sst]"));
        cluster.tls = true;
        let text = my_cnf(&cluster, &cluster.nodes[1]);
        assert!(
            text.ends_with(
                "max_connections=9\n\n[sst]\nssl-mode=VERIFY_CA\ntca=/c/tls/ca.pem\n\
                 tcert=/c/tls/db2.pem\ntkey=/c/tls/db2.key\n"
            ),
            "{text}"
        );
        cluster.choose_copies(SstMethod::Mysqldump);
        assert!(!my_cnf(&cluster, &cluster.nodes[0]).contains("[sst]"));
    }

    #[test]
    fn a_node_in_a_network_of_its_own_is_named_by_its_address() {
        let mut cluster = sample();
        cluster.nodes[1].network = Some(crate::record::NodeNetwork {
            address: [10, 1, 1, 2].into(),
            namespace: "/proc/77/ns/net".into(),
        });
        let text = my_cnf(&cluster, &cluster.nodes[1]);
        assert!(text.contains("wsrep_cluster_address=gcomm://127.0.0.1:23307,10.1.1.2:23317\n"));
        assert!(text.contains("gmcast.listen_addr=tcp://10.1.1.2:23317;ist.recv_addr=10.1.1.2:"));
        assert!(text.contains("wsrep_sst_receive_address=10.1.1.2:23319\n"));
        assert!(text.contains("bind_address=127.0.0.1\n"));
    }

    #[test]
    fn the_documentation_recommends_what_the_quick_start_sets() {
        let page = include_str!("../../../docs/first-cluster.md");
        let from = page.find("**The recommended settings**");
        let list = &page[from.expect("a list of them")..];
        let lines = list.lines().skip_while(|l| !l.starts_with("    "));
        let lines = lines.take_while(|l| l.starts_with("    "));
        let said: Vec<_> = lines
            .map(|l| {
                let (setting, why) = l.trim().split_once(" # ").expect("a reason");
                let (name, value) = setting.trim().split_once('=').expect("a value");
                (name, value, why)
            })
            .collect();
        assert_eq!(said, QUICK_START);
    }

    /// What a unit and its drop-in come to: a list that is emptied begins anew.
    fn lines_of<'a>(unit: &[&'a str], name: &str) -> Vec<&'a str> {
        let values = unit
            .iter()
            .filter_map(|l| l.strip_prefix(name)?.strip_prefix('='));
        values.fold(Vec::new(), |mut list, value| {
            match value {
                "" => list.clear(),
                value => list.push(value),
            }
            list
        })
    }

    #[test]
    fn the_drop_in_of_the_documentation_leaves_no_units_question() {
        let page = include_str!("../../../docs/first-cluster.md");
        let at = page.find("/etc/systemd/system/mariadb.service.d/dromon.conf");
        let lines = page[at.expect("it is named")..].lines().skip(1);
        let lines = lines.skip_while(|l| !l.starts_with("    "));
        let drop_in: Vec<&str> = lines
            .take_while(|l| l.starts_with("    "))
            .map(str::trim)
            .collect();
        let founds = "$_WSREP_NEW_CLUSTER";
        let ask = "/bin/sh -c \"VAR=`/usr/bin/galera_recovery`\"";
        let before = format!("ExecStartPre={ask}");
        let within = format!("ExecStart={ask}");
        // The two shapes that packages of 10.11 have: asked before, and asked by the line itself.
        for own in [
            &[
                "ExecStartPre=/usr/bin/install -m 755 -o mysql -g root -d /var/run/mysqld",
                &before,
                "ExecStart=/usr/sbin/mariadbd $MYSQLD_OPTS",
            ][..],
            &[&within],
        ] {
            let unit = [own, &drop_in].concat();
            let pre = lines_of(&unit, "ExecStartPre");
            let start = lines_of(&unit, "ExecStart");
            assert!(
                pre.iter()
                    .chain(&start)
                    .all(|l| !l.contains("galera_recovery")),
                "{pre:?} {start:?}"
            );
            assert_eq!(pre.len(), 1);
            assert!(pre[0].starts_with("+/usr/bin/install ") && pre[0].ends_with("/run/mysqld"));
            assert_eq!(start.len(), 1, "a service of this kind has one");
            assert!(start[0].contains("exec /usr/sbin/mariadbd") && start[0].contains(founds));
        }
        let readme = include_str!("../../../README.md");
        assert!(readme.contains("the drop-in of [docs/first-cluster.md]"));
    }

    #[test]
    fn my_cnf_keeps_to_loopback_and_lets_the_callers_settings_win() {
        let mut cluster = sample();
        cluster.settings = vec![
            Setting::new("wsrep_sync_wait", "7"),
            "skip-slave-start".parse().expect("a switch"),
        ];
        cluster.provider_options = "gcache.size=1G".into();
        let node = &cluster.nodes[1];
        let text = my_cnf(&cluster, node);
        assert!(text.contains("bind_address=127.0.0.1\n"));
        assert!(text.contains("wsrep_cluster_address=gcomm://127.0.0.1:23307,127.0.0.1:23317\n"));
        assert!(text.contains("wsrep_node_address=127.0.0.1:23317\n"));
        assert!(text.contains(";gcache.size=1G\"\n"));
        assert!(text.contains("\nskip-slave-start\n"));
        let quick = text
            .find("wsrep_sync_wait=1\n")
            .expect("the quick start's line");
        let own = text.find("wsrep_sync_wait=7\n").expect("the caller's line");
        assert!(quick < own, "the server takes the last line");
    }
}
