//! How somebody shows to know a password: as a client in three ways, as a server in the first.
//!
//! ```text
//! mysql_native_password
//!   stored   h = SHA1(SHA1(password)), shown as * and 40 hexadecimal digits
//!   salt     20 bytes without a zero, new for each connection
//!   reply    SHA1(password) XOR SHA1(salt, h); nothing for no password
//! ed25519 (MariaDB)
//!   salt     32 bytes
//!   reply    a signature of the salt by the key that SHA512(password) is
//! caching_sha2_password (MySQL 8)
//!   salt     20 bytes
//!   reply    SHA256(password) XOR SHA256(SHA256(SHA256(password)), salt); nothing for no password.
//!            A server that has not seen this account of late then wants the password itself
//! ```
//!
//! Who sees a salt and its reply can try passwords; of the first way, who sees the stored form and one
//! exchange can log in. TLS is to keep both from being seen.

use std::fmt;
use std::str::FromStr;

use ed25519_dalek::VerifyingKey;
use ed25519_dalek::hazmat::{ExpandedSecretKey, raw_sign};
use sha1::{Digest, Sha1};
use sha2::{Sha256, Sha512};

/// Bytes of a salt.
pub const SALT_LEN: usize = 20;

fn sha1(parts: &[&[u8]]) -> [u8; 20] {
    let mut hash = Sha1::new();
    for part in parts {
        hash.update(part);
    }
    hash.finalize().into()
}

/// What a client sends who knows the password.
pub fn native_reply(password: &[u8], salt: &[u8; SALT_LEN]) -> Vec<u8> {
    if password.is_empty() {
        return Vec::new();
    }
    let one = sha1(&[password]);
    let mask = sha1(&[salt, &sha1(&[&one])]);
    one.iter().zip(mask).map(|(a, b)| a ^ b).collect()
}

/// The same for `ed25519`. Source: RFC 8032, with the password in the place of the 32 secret bytes.
pub fn ed25519_reply(password: &[u8], salt: &[u8]) -> Vec<u8> {
    let secret: [u8; 64] = Sha512::digest(password).into();
    let key = ExpandedSecretKey::from_bytes(&secret);
    let public = VerifyingKey::from(&key);
    raw_sign::<Sha512>(&key, salt, &public).to_bytes().to_vec()
}

/// The same for `caching_sha2_password`.
pub fn sha2_reply(password: &[u8], salt: &[u8]) -> Vec<u8> {
    if password.is_empty() {
        return Vec::new();
    }
    let one = Sha256::digest(password);
    let two = Sha256::digest(one);
    let mask = Sha256::new()
        .chain_update(two)
        .chain_update(salt)
        .finalize();
    one.iter().zip(mask).map(|(a, b)| a ^ b).collect()
}

/// What a server keeps of a password.
#[derive(Clone, PartialEq, Eq)]
pub enum PasswordHash {
    /// No password is needed.
    Empty,
    /// Its double SHA-1.
    Native([u8; 20]),
}

impl PasswordHash {
    /// Of a password.
    pub fn of(password: &[u8]) -> PasswordHash {
        match password.is_empty() {
            true => PasswordHash::Empty,
            false => PasswordHash::Native(sha1(&[&sha1(&[password])])),
        }
    }

    /// Whether the reply is that of someone who knows the password.
    pub fn admits(&self, reply: &[u8], salt: &[u8; SALT_LEN]) -> bool {
        match self {
            PasswordHash::Empty => reply.is_empty(),
            PasswordHash::Native(two) => {
                if reply.len() != two.len() {
                    return false;
                }
                let mask = sha1(&[salt, two]);
                let one: Vec<u8> = reply.iter().zip(mask).map(|(a, b)| a ^ b).collect();
                let again = sha1(&[&one]);
                let differences = again.iter().zip(two).map(|(a, b)| a ^ b);
                // All bytes, whichever differs first.
                differences.fold(0, |all, byte| all | byte) == 0
            }
        }
    }
}

impl fmt::Debug for PasswordHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(a password)")
    }
}

impl FromStr for PasswordHash {
    type Err = &'static str;

    /// `*` and 40 hexadecimal digits, as in `mysql.global_priv`; anything else is the password.
    fn from_str(text: &str) -> Result<PasswordHash, &'static str> {
        let hex = match text.strip_prefix('*') {
            Some(hex) if hex.len() == 40 => hex,
            _ => return Ok(PasswordHash::of(text.as_bytes())),
        };
        let mut out = [0; 20];
        for (n, byte) in out.iter_mut().enumerate() {
            *byte = hex
                .get(2 * n..2 * n + 2)
                .filter(|d| d.bytes().all(|b| b.is_ascii_hexdigit()))
                .and_then(|digits| u8::from_str_radix(digits, 16).ok())
                .ok_or("a password of * and 40 characters must have hexadecimal digits there")?;
        }
        Ok(PasswordHash::Native(out))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn who_knows_it_gets_in(password: Vec<u8>, other: Vec<u8>, salt: [u8; 20], flip in 0usize..160) {
            let hash = PasswordHash::of(&password);
            let reply = native_reply(&password, &salt);
            prop_assert!(hash.admits(&reply, &salt));
            prop_assert_eq!(hash.admits(&native_reply(&other, &salt), &salt), password == other);
            if !reply.is_empty() {
                let mut bad = reply.clone();
                bad[flip / 8] ^= 1 << (flip % 8);
                prop_assert!(!hash.admits(&bad, &salt));
                prop_assert!(!hash.admits(&reply[1..], &salt));
                prop_assert!(!hash.admits(&[], &salt));
            }
        }

        /// Another library's replies are the same.
        #[test]
        fn as_another_library_does(password in "[a-z]{1,12}", salt: [u8; 20], long: [u8; 32]) {
            use mysql_common::scramble::{create_response_for_ed25519, scramble_native, scramble_sha256};
            let password = password.as_bytes();
            let theirs = scramble_native(&salt, password);
            prop_assert_eq!(theirs.map(|r| r.to_vec()), Some(native_reply(password, &salt)));
            let theirs = scramble_sha256(&salt, password);
            prop_assert_eq!(theirs.map(|r| r.to_vec()), Some(sha2_reply(password, &salt)));
            let theirs = create_response_for_ed25519(password, &long);
            prop_assert_eq!(theirs.to_vec(), ed25519_reply(password, &long));
        }
    }

    #[test]
    fn as_a_server_stores_it() {
        let hash: PasswordHash = "*2470C0C06DEE42FD1618BB99005ADCA2EC9D1E19"
            .parse()
            .expect("a hash");
        assert!(hash == PasswordHash::of(b"password"));
        assert!(
            "*2470C0C06DEE42FD1618BB99005ADCA2EC9D1E1x"
                .parse::<PasswordHash>()
                .is_err()
        );
        assert!("*short".parse::<PasswordHash>() == Ok(PasswordHash::of(b"*short")));
        assert_eq!(format!("{hash:?}"), "(a password)");
    }
}
