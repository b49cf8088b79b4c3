//! The secret and the certificates of a local cluster.
//!
//! ```text
//! DIR/tls/ca.pem   ca.key         the cluster's own authority
//! DIR/tls/db1.pem  db1.key  ...   a certificate for each node
//! DIR/tls/secret                  what all nodes know
//! ```

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::{IoContext, Result, SandboxError};
use crate::record::{ClusterRecord, random_hex};
use crate::template::program;
use crate::who::ServerUser;
use crate::witness;

/// Whoever connects is shown the certificate before he has proved anything: its
/// names say nothing of the cluster, nor which of its nodes this is.
const AUTHORITY: &str = "/CN=authority";
const MEMBER: &str = "/CN=member";
/// Days a certificate is valid: longer than anybody keeps a trial.
const DAYS: &str = "3650";

const OPENSSL_CNF: &str = "\
[req]
distinguished_name = name
prompt = no
[name]
[authority]
basicConstraints = critical,CA:TRUE
keyUsage = critical,keyCertSign,cRLSign
[node]
basicConstraints = critical,CA:FALSE
extendedKeyUsage = serverAuth,clientAuth
subjectAltName = IP:127.0.0.1
";

pub(crate) fn dir_of(cluster: &ClusterRecord) -> PathBuf {
    cluster.dir.join("tls")
}

/// The provider options of a node that is encrypted.
pub(crate) fn options(cluster: &ClusterRecord, node: &str) -> String {
    let dir = dir_of(cluster);
    let option = |name: &str, file: &str| {
        let path = dir.join(file).to_string_lossy().into_owned();
        format!(";{name}={}", path.replace('\\', "\\\\").replace(';', "\\;"))
    };
    let mut text = String::from(";socket.ssl=yes");
    text += &option("socket.ssl_ca", "ca.pem");
    text += &option("socket.ssl_cert", &format!("{node}.pem"));
    text += &option("socket.ssl_key", &format!("{node}.key"));
    if cluster.is_dromon() {
        text += &option("dromon.secret_file", "secret");
    }
    text
}

/// The section of a node's settings by which the server's scripts encrypt full
/// copies: both ends show a certificate of the cluster's authority.
pub(crate) fn copies(cluster: &ClusterRecord, node: &str) -> String {
    let dir = dir_of(cluster);
    let file = |name: String| dir.join(name).to_string_lossy().into_owned();
    format!(
        "\n[sst]\nssl-mode=VERIFY_CA\ntca={}\ntcert={}\ntkey={}\n",
        file("ca.pem".into()),
        file(format!("{node}.pem")),
        file(format!("{node}.key"))
    )
}

/// Makes the authority, a certificate for each node, and the secret.
pub(crate) fn make(cluster: &ClusterRecord, user: &ServerUser) -> Result<()> {
    let dir = dir_of(cluster);
    user.create_caller_dir(&dir)?;
    let cnf = dir.join("openssl.cnf");
    fs::write(&cnf, OPENSSL_CNF).at("write", &cnf)?;
    let (ca, key) = (dir.join("ca.pem"), dir.join("ca.key"));
    new_key(&key)?;
    let mut command = openssl(&["req", "-x509", "-new", "-days", DAYS, "-subj", AUTHORITY])?;
    command.args(["-extensions", "authority", "-config"]);
    run(command.arg(&cnf).arg("-key").arg(&key).arg("-out").arg(&ca))?;
    open_to_all(&ca)?;
    for node in &cluster.nodes {
        certify(cluster, &node.name, user)?;
    }
    if cluster.witness.is_some() {
        certify(cluster, witness::NAME, user)?;
    }
    let secret = dir.join("secret");
    fs::write(&secret, random_hex(32)? + "\n").at("write", &secret)?;
    hand_over(&secret, user)
}

/// Makes a new key and certificate for a node, in place of those it has.
pub(crate) fn certify(cluster: &ClusterRecord, node: &str, user: &ServerUser) -> Result<()> {
    let dir = dir_of(cluster);
    let file = |end: &str| dir.join(format!("{node}.{end}"));
    let (key, request, certificate) = (file("key"), file("csr"), file("pem"));
    new_key(&key)?;
    let cnf = dir.join("openssl.cnf");
    let mut command = openssl(&["req", "-new", "-subj", MEMBER])?;
    command.arg("-config").arg(&cnf).arg("-key").arg(&key);
    run(command.arg("-out").arg(&request))?;
    let serial = format!("0x{}", random_hex(8)?);
    let mut command = openssl(&["x509", "-req", "-days", DAYS, "-set_serial", &serial])?;
    command.args(["-extensions", "node", "-extfile"]).arg(&cnf);
    command.arg("-CA").arg(dir.join("ca.pem"));
    command.arg("-CAkey").arg(dir.join("ca.key"));
    run(command
        .arg("-in")
        .arg(&request)
        .arg("-out")
        .arg(&certificate))?;
    open_to_all(&certificate)?;
    fs::remove_file(&request).at("remove", &request)?;
    hand_over(&key, user)
}

/// A private key that only the caller can read.
fn new_key(path: &Path) -> Result<()> {
    let curve = "ec_paramgen_curve:P-256";
    let mut command = openssl(&["genpkey", "-algorithm", "EC", "-pkeyopt", curve])?;
    run(command.arg("-out").arg(path))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).at("set the mode of", path)
}

/// A certificate is no secret, and the servers' user reads it, whatever the umask says.
fn open_to_all(path: &Path) -> Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(0o644)).at("set the mode of", path)
}

fn hand_over(path: &Path, user: &ServerUser) -> Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).at("set the mode of", path)?;
    user.own(path)
}

fn openssl(args: &[&str]) -> Result<Command> {
    let mut command = Command::new(program("openssl", "openssl")?);
    command.args(args).stdin(Stdio::null());
    Ok(command)
}

fn run(command: &mut Command) -> Result<()> {
    let shown = command.get_program().to_owned();
    let out = command.output().at("run", Path::new(&shown))?;
    if out.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&out.stderr);
    Err(SandboxError::BadRequest(format!(
        "openssl could not make a certificate: {}. Nothing was started. Run the same command again, which begins anew, or leave encryption out (dromon up --no-tls)",
        said.trim()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::sample;

    #[test]
    fn the_authority_signs_each_node_and_the_secret_is_closed() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mut cluster = sample();
        cluster.dir = dir.path().to_path_buf();
        cluster.provider = PathBuf::from("/x/libdromon.so");
        let Ok(user) = ServerUser::find() else {
            panic!("the servers' user is missing: install mariadb-server");
        };
        make(&cluster, &user).expect("made");
        let tls = dir_of(&cluster);
        for node in &cluster.nodes {
            let mut command =
                openssl(&["verify", "-purpose", "sslclient", "-CAfile"]).expect("there");
            command.arg(tls.join("ca.pem"));
            run(command.arg(tls.join(format!("{}.pem", node.name)))).expect("it is signed");
        }
        let names = cluster.nodes.iter().map(|n| n.name.as_str());
        let names: Vec<&str> = names.chain([&*cluster.name, &*cluster.id]).collect();
        for file in ["ca.pem", "db1.pem", "db2.pem"] {
            let mut command = openssl(&["x509", "-outform", "DER", "-in"]).expect("there");
            let shown = command.arg(tls.join(file)).output().expect("it runs");
            assert!(shown.status.success() && shown.stdout.len() > 200);
            for name in &names {
                let has = shown.stdout.windows(name.len());
                assert!(
                    has.into_iter().all(|w| w != name.as_bytes()),
                    "{file} says {name}"
                );
            }
        }
        for file in ["secret", "ca.key", "db1.key"] {
            let mode = fs::metadata(tls.join(file))
                .expect("there")
                .permissions()
                .mode();
            assert_eq!(mode & 0o777, 0o600, "{file}");
        }
        assert_eq!(fs::metadata(tls.join("secret")).expect("there").len(), 65);
        let before = fs::read(tls.join("db1.pem")).expect("there");
        certify(&cluster, &cluster.nodes[0].name, &user).expect("again");
        assert_ne!(before, fs::read(tls.join("db1.pem")).expect("there"));
        let text = options(&cluster, &cluster.nodes[1].name);
        assert!(text.contains("/tls/db2.key;dromon.secret_file="), "{text}");
        cluster.provider = PathBuf::from("/x/libgalera_smm.so");
        assert!(!options(&cluster, &cluster.nodes[1].name).contains("dromon."));
    }
}
