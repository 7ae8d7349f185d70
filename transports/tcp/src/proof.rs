//! How two ends prove to each other that each has the other's blob.
//!
//! The layer above carries the blobs over a link on which both sides have proven that they know the
//! key of the job; it does not hide them. Each blob holds a fresh secret. From both blobs both ends
//! make the key of the channel, and each shows it by a MAC over the other's nonce. So who was not
//! handed both blobs cannot connect, and what was heard on one connection opens no other. Whoever can
//! read the control links can: what follows the greeting is neither hidden nor signed.

use hmac::digest::CtOutput;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use crate::wire::{ChannelBlob, Nonce, Proof};

/// The key of one channel.
#[derive(Clone)]
pub(crate) struct Key([u8; 32]);

impl core::fmt::Debug for Key {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Key(secret)")
    }
}

/// Who proves, and when.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Turn {
    /// The end that dials, with its first words.
    Hello = 1,
    /// The end that was dialled.
    Welcome = 2,
    /// The end that dials, after it has heard the other's nonce.
    Confirm = 3,
}

impl Key {
    /// That of the channel between the end that dials and the one that is dialled.
    pub(crate) fn of(dials: &ChannelBlob, dialled: &ChannelBlob) -> Self {
        let mut secrets = [0; 64];
        secrets[..32].copy_from_slice(&dials.secret);
        secrets[32..].copy_from_slice(&dialled.secret);
        let parts = [dials.encode(), dialled.encode()];
        Self(
            mac(&secrets, &[b"hcomm tcp 1", &parts[0], &parts[1]])
                .into_bytes()
                .into(),
        )
    }

    /// The proof of one turn.
    pub(crate) fn prove(&self, turn: Turn, dials: &Nonce, dialled: &Nonce) -> Proof {
        self.mac(turn, dials, dialled).into_bytes().into()
    }

    /// Whether a proof is right, in a time that does not tell how much of it is.
    pub(crate) fn accepts(
        &self,
        turn: Turn,
        dials: &Nonce,
        dialled: &Nonce,
        proof: &Proof,
    ) -> bool {
        self.mac(turn, dials, dialled) == CtOutput::new((*proof).into())
    }

    fn mac(&self, turn: Turn, dials: &Nonce, dialled: &Nonce) -> CtOutput<Hmac<Sha256>> {
        let mut key = [0; 64];
        key[..32].copy_from_slice(&self.0);
        mac(&key, &[&[turn as u8], dials, dialled])
    }
}

fn mac(key: &[u8; 64], parts: &[&[u8]]) -> CtOutput<Hmac<Sha256>> {
    let mut mac = Hmac::<Sha256>::new(&(*key).into());
    for part in parts {
        mac.update(part);
    }
    mac.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Identity;

    fn blob(channel: u64, secret: u8) -> ChannelBlob {
        ChannelBlob {
            identity: Identity {
                device: [1; 16],
                channel,
            },
            secret: [secret; 32],
            notifies: 1,
            ip: "127.0.0.1".parse().unwrap(),
            port: 80,
        }
    }

    #[test]
    fn a_proof_holds_for_one_channel_turn_and_pair_of_nonces() {
        let (one, two) = (blob(1, 1), blob(2, 2));
        let (here, there) = ([7; 16], [8; 16]);
        let key = Key::of(&one, &two);
        let proof = key.prove(Turn::Welcome, &here, &there);
        assert!(Key::of(&one, &two).accepts(Turn::Welcome, &here, &there, &proof));
        assert!(!key.accepts(Turn::Confirm, &here, &there, &proof));
        assert!(!key.accepts(Turn::Welcome, &there, &here, &proof));
        for other in [
            Key::of(&two, &one),
            Key::of(&blob(1, 3), &two),
            Key::of(&one, &blob(3, 2)),
        ] {
            assert!(!other.accepts(Turn::Welcome, &here, &there, &proof));
        }
        assert_eq!(format!("{key:?}"), "Key(secret)");
    }
}
