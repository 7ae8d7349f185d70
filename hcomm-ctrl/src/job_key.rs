//! The secret of a job, and what is derived from it.

use std::fmt;

use hmac::digest::CtOutput;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

use crate::codec::to_hex;
use crate::outside::Random;

/// Key that proves that a rank belongs to the job. `Debug` hides it.
#[derive(Clone, PartialEq, Eq)]
pub struct JobKey([u8; 32]);

impl JobKey {
    /// The key that a text stands for: the value of `HCOMM_JOB_KEY`, or the contents of a file.
    #[must_use]
    pub fn from_text(text: &str) -> Self {
        Self::hash(b"hcomm job key text", text.as_bytes())
    }

    /// A fresh random key.
    #[must_use]
    pub fn random(random: &dyn Random) -> Self {
        let mut bytes = [0; 32];
        random.fill(&mut bytes);
        Self(bytes)
    }

    /// The key that everybody knows. It keeps jobs apart by accident only, not by intent.
    #[must_use]
    pub fn public() -> Self {
        Self::hash(b"hcomm job key public", b"")
    }

    /// Whether this is the key that everybody knows.
    #[must_use]
    pub fn is_public(&self) -> bool {
        *self == Self::public()
    }

    pub(crate) const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    pub(crate) const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    fn hash(label: &[u8], bytes: &[u8]) -> Self {
        Self(
            Sha256::new()
                .chain_update(label)
                .chain_update([0])
                .chain_update(bytes)
                .finalize()
                .into(),
        )
    }
}

impl fmt::Debug for JobKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_public() {
            "JobKey(public)"
        } else {
            "JobKey(secret)"
        })
    }
}

/// Number of one communicator: drawn at random by its root, so that frames of another one, or of
/// an earlier one, are recognised.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SessionId(pub [u8; 16]);

impl SessionId {
    /// A fresh one.
    #[must_use]
    pub fn random(random: &dyn Random) -> Self {
        let mut bytes = [0; 16];
        random.fill(&mut bytes);
        Self(bytes)
    }

    /// A session that follows from this one by a name that all its ranks agree on: a part of the
    /// communicator, or its next generation.
    #[must_use]
    pub fn derive(&self, name: &str) -> Self {
        let digest: [u8; 32] = Sha256::new()
            .chain_update(b"hcomm session\0")
            .chain_update(self.0)
            .chain_update(name.as_bytes())
            .finalize()
            .into();
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&digest[..16]);
        Self(bytes)
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Enough to tell sessions apart in a log.
        f.write_str(&to_hex(&self.0[..6]))
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionId({self})")
    }
}

/// HMAC-SHA256 of parts under a key. The caller sees to it that the parts cannot be cut
/// differently: all but the last have a fixed length.
pub(crate) fn authenticate(key: &[u8; 32], parts: &[&[u8]]) -> CtOutput<Hmac<Sha256>> {
    // HMAC pads its key with zeros to a block.
    let mut block = [0; 64];
    block[..32].copy_from_slice(key);
    let mut mac = Hmac::<Sha256>::new(&block.into());
    for part in parts {
        mac.update(part);
    }
    mac.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_hidden_and_differ() {
        let key = JobKey::from_text("open sesame");
        assert_eq!(format!("{key:?}"), "JobKey(secret)");
        assert_ne!(key, JobKey::from_text("open sesame "));
        assert!(JobKey::public().is_public() && !JobKey::from_text("").is_public());
    }

    #[test]
    fn hmac_is_that_of_rfc_4231() {
        // Test case 1: its key of 20 bytes, padded with zeros, is the same HMAC key.
        let mut key = [0; 32];
        key[..20].fill(0x0b);
        let mac = authenticate(&key, &[b"Hi ", b"There"]).into_bytes();
        assert_eq!(
            to_hex(&mac),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"
        );
    }
}
