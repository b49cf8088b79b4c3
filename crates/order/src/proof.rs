//! The cluster's secret: both ends of a connection prove that they know it
//! before either says anything else.
//!
//! ```text
//!   who connects                         who accepts
//!   call      (nonce a)      ──────────>
//!                            <──────────  countercall (nonce b)
//!   proof     HMAC(connect)  ──────────>  checks it, or drops the connection
//!   checks it                <──────────  proof HMAC(accept)
//!   hello …                  ──────────>
//! ```
//!
//! The one who connects proves first: whoever finds the port learns a random
//! number and no more, not even something to try guesses at. Both nonces are
//! in both proofs, so neither can be recorded and used again; the role is, so
//! neither can be sent back to where it came from; and so is a number that
//! only the two ends of an encrypted channel share, so nobody between them can
//! pass proofs on. Pure: bytes in, bytes out; nonces come from outside.

use std::fmt;

use bytes::{BufMut, Bytes, BytesMut};
use hmac::{Hmac, Mac};
use sha2::Sha256;

use crate::wire::{self, Misbehaviour};

/// Least length of a secret, in bytes.
pub const SECRET_MIN: usize = 16;
/// Bytes of a nonce, of a proof, and of what a channel is known by.
pub const PROOF_LEN: usize = 32;

const KIND_CALL: u8 = 3;
const KIND_COUNTERCALL: u8 = 4;
const KIND_CONNECT: u8 = 5;
const KIND_ACCEPT: u8 = 6;
const KIND_NONE: u8 = 7;
const LABEL: &[u8] = b"dromon cluster secret 1";

/// Random bytes that are used once.
pub type Nonce = [u8; PROOF_LEN];

/// What all nodes of a cluster know and nobody else. Never shown.
#[derive(Clone)]
pub struct Secret(Box<[u8]>);

impl Secret {
    /// The secret in a file's content: white space around it does not count.
    /// `None` if it is shorter than [`SECRET_MIN`].
    pub fn new(content: &[u8]) -> Option<Secret> {
        let secret = content.trim_ascii();
        (secret.len() >= SECRET_MIN).then(|| Secret(secret.into()))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(not shown)")
    }
}

/// Why the other end did not prove anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ProofError {
    /// It began without a proof: it has no secret.
    Missing,
    /// It has no secret and does not want ours.
    NotAsked,
    /// Its proof does not fit: another secret, or another cluster name.
    Wrong,
    /// It sent what belongs nowhere.
    Malformed(Misbehaviour),
}

/// What a proof is about beside the secret.
#[derive(Clone, Debug)]
pub(crate) struct About {
    /// The cluster's name.
    pub cluster: String,
    /// What only the two ends of the encrypted channel know; none without one.
    pub channel: Option<[u8; PROOF_LEN]>,
}

/// The side that connected.
pub(crate) struct Connecting {
    secret: Secret,
    about: About,
    own: Nonce,
    theirs: Nonce,
}

impl Connecting {
    /// The first message, and who waits for the answer to it.
    pub fn new(secret: Secret, about: About, nonce: Nonce) -> (Connecting, Bytes) {
        let state = Connecting {
            secret,
            about,
            own: nonce,
            theirs: [0; PROOF_LEN],
        };
        (state, message(KIND_CALL, &nonce))
    }

    /// The own proof, in answer to the other end's countercall.
    pub fn prove(&mut self, countercall: &[u8]) -> Result<Bytes, ProofError> {
        if countercall == [KIND_NONE] {
            return Err(ProofError::NotAsked);
        }
        self.theirs = take(countercall, KIND_COUNTERCALL)?;
        let mac = mac(
            &self.secret,
            &self.about,
            KIND_CONNECT,
            &self.own,
            &self.theirs,
        );
        let proof: [u8; PROOF_LEN] = mac.finalize().into_bytes().into();
        Ok(message(KIND_CONNECT, &proof))
    }

    /// Checks the other end's proof.
    pub fn check(&self, proof: &[u8]) -> Result<(), ProofError> {
        let proof = take(proof, KIND_ACCEPT)?;
        mac(
            &self.secret,
            &self.about,
            KIND_ACCEPT,
            &self.own,
            &self.theirs,
        )
        .verify_slice(&proof)
        .map_err(|_| ProofError::Wrong)
    }
}

/// The side that accepted.
pub(crate) struct Accepting {
    secret: Secret,
    about: About,
    own: Nonce,
    theirs: Nonce,
}

impl Accepting {
    /// Answers a call with a nonce.
    pub fn new(
        secret: Secret,
        about: About,
        nonce: Nonce,
        call: &[u8],
    ) -> Result<(Accepting, Bytes), ProofError> {
        if wire::is_hello(call) {
            return Err(ProofError::Missing);
        }
        let state = Accepting {
            theirs: take(call, KIND_CALL)?,
            secret,
            about,
            own: nonce,
        };
        Ok((state, message(KIND_COUNTERCALL, &nonce)))
    }

    /// Checks the other end's proof; the own one in answer to a good one.
    pub fn check(&self, proof: &[u8]) -> Result<Bytes, ProofError> {
        let proof = take(proof, KIND_CONNECT)?;
        let (a, b) = (&self.theirs, &self.own);
        mac(&self.secret, &self.about, KIND_CONNECT, a, b)
            .verify_slice(&proof)
            .map_err(|_| ProofError::Wrong)?;
        let own: [u8; PROOF_LEN] = mac(&self.secret, &self.about, KIND_ACCEPT, a, b)
            .finalize()
            .into_bytes()
            .into();
        Ok(message(KIND_ACCEPT, &own))
    }
}

/// Whether a first message asks for proofs.
pub(crate) fn is_call(body: &[u8]) -> bool {
    body.first() == Some(&KIND_CALL)
}

/// The answer of a node without a secret to a call.
pub(crate) fn no_secret() -> Bytes {
    message(KIND_NONE, &[])
}

fn message(kind: u8, content: &[u8]) -> Bytes {
    let mut b = BytesMut::with_capacity(1 + content.len());
    b.put_u8(kind);
    b.put_slice(content);
    wire::seal(b)
}

fn take(body: &[u8], kind: u8) -> Result<[u8; PROOF_LEN], ProofError> {
    let malformed = |what| ProofError::Malformed(Misbehaviour::GreetingMalformed(what));
    match body.split_first() {
        Some((k, rest)) if *k == kind => rest
            .try_into()
            .map_err(|_| malformed("a proof has the wrong length")),
        _ => Err(malformed("it is not the next step of proving the secret")),
    }
}

/// Everything with a fixed or a stated length, so that no two meanings give
/// the same bytes.
fn mac(secret: &Secret, about: &About, role: u8, a: &Nonce, b: &Nonce) -> Hmac<Sha256> {
    let mut mac = <Hmac<Sha256> as Mac>::new_from_slice(&secret.0)
        .unwrap_or_else(|_| unreachable!("a key of this function may have any length"));
    mac.update(LABEL);
    mac.update(&[role]);
    mac.update(a);
    mac.update(b);
    match &about.channel {
        Some(channel) => {
            mac.update(&[1]);
            mac.update(channel);
        }
        None => mac.update(&[0]),
    }
    mac.update(about.cluster.as_bytes());
    mac
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(text: &str) -> Secret {
        Secret::new(text.as_bytes()).unwrap()
    }

    fn about(cluster: &str, channel: Option<u8>) -> About {
        About {
            cluster: cluster.to_owned(),
            channel: channel.map(|n| [n; PROOF_LEN]),
        }
    }

    fn body(message: &Bytes) -> Bytes {
        let mut buf = BytesMut::from(&message[..]);
        wire::read_greeting(&mut buf).unwrap().unwrap()
    }

    /// Both ends to the end; what either says of the other.
    fn talk(
        one: (Secret, About),
        other: (Secret, About),
    ) -> (Result<(), ProofError>, Result<(), ProofError>) {
        let (mut c, call) = Connecting::new(one.0, one.1, [1; 32]);
        let (a, counter) = Accepting::new(other.0, other.1, [2; 32], &body(&call)).unwrap();
        let proof = c.prove(&body(&counter)).unwrap();
        match a.check(&body(&proof)) {
            Ok(own) => (c.check(&body(&own)), Ok(())),
            Err(e) => (Err(ProofError::Wrong), Err(e)),
        }
    }

    const KEY: &str = "0123456789abcdef";

    #[test]
    fn the_same_secret_name_and_channel_prove_and_nothing_else_does() {
        let good = || (secret(KEY), about("a", None));
        assert_eq!(talk(good(), good()), (Ok(()), Ok(())));
        let on = |n| (secret(KEY), about("a", Some(n)));
        assert_eq!(talk(on(7), on(7)), (Ok(()), Ok(())));
        for (one, other) in [
            (good(), (secret("0123456789abcdeg"), about("a", None))),
            (good(), (secret(KEY), about("b", None))),
            (on(7), on(8)),
            (on(0), good()),
        ] {
            assert_eq!(talk(one, other).1, Err(ProofError::Wrong));
        }
    }

    #[test]
    fn what_was_heard_once_does_not_prove_again() {
        let (mut c, call) = Connecting::new(secret(KEY), about("a", None), [1; 32]);
        let accept = |nonce| {
            let about = about("a", None);
            Accepting::new(secret(KEY), about, [nonce; 32], &body(&call)).unwrap()
        };
        let (a, counter) = accept(2);
        let heard = c.prove(&body(&counter)).unwrap();
        let answer = a.check(&body(&heard)).unwrap();
        assert_eq!(c.check(&body(&answer)), Ok(()));
        // To another connection, whose nonce is another.
        let (again, _) = accept(3);
        assert_eq!(again.check(&body(&heard)), Err(ProofError::Wrong));
        // The accepting side's old answer to a fresh call.
        let (mut fresh, _) = Connecting::new(secret(KEY), about("a", None), [9; 32]);
        fresh.prove(&body(&counter)).unwrap();
        assert_eq!(fresh.check(&body(&answer)), Err(ProofError::Wrong));
        // Back to where it came from, under the other role.
        let mut mirrored = BytesMut::from(&body(&heard)[..]);
        mirrored[0] = KIND_ACCEPT;
        assert_eq!(c.check(&mirrored), Err(ProofError::Wrong));
    }

    #[test]
    fn steps_out_of_turn_are_named() {
        let (mut c, call) = Connecting::new(secret(KEY), about("a", None), [1; 32]);
        assert_eq!(
            c.prove(&body(&no_secret())).err(),
            Some(ProofError::NotAsked)
        );
        assert!(matches!(
            c.prove(&body(&call)),
            Err(ProofError::Malformed(_))
        ));
        assert!(is_call(&body(&call)));
        let hello = crate::wire::Hello::new(
            crate::wire::Purpose::Request,
            crate::wire::Identity::default(),
        );
        let accept = |b: &[u8]| Accepting::new(secret(KEY), about("a", None), [2; 32], b);
        assert_eq!(
            accept(&body(&hello.encode())).err(),
            Some(ProofError::Missing)
        );
        for bad in [&[][..], &[KIND_CALL], &[9; 33]] {
            assert!(matches!(accept(bad), Err(ProofError::Malformed(_))));
        }
    }

    #[test]
    fn short_secrets_are_none_and_white_space_around_does_not_count() {
        assert!(Secret::new(b"fifteen bytes..").is_none());
        assert!(Secret::new(b"  fifteen bytes.. \n").is_none());
        let with = Secret::new(b"sixteen bytes...\n").unwrap();
        let without = Secret::new(b"sixteen bytes...").unwrap();
        assert_eq!(with.0, without.0);
        assert_eq!(format!("{with:?}"), "Secret(not shown)");
    }
}
