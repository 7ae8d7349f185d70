//! Whether all ranks can read memory that others lend: what each has found out at start-up, told to
//! all, so that all come to the same answer.

use std::sync::Arc;

use hcomm_data::Peers as _;
use hcomm_transport::{Paused, Phase, Watch};
use hcomm_types::{Deadline, Error, ErrorKind, Rank, Result};

use crate::joining::EAGER_RANKS;
use crate::membership::{Membership, Shared, lock};
use crate::mesh::LinkState;

impl Membership {
    /// Whether every rank can read memory of every other one while that lends it. The same answer on
    /// all ranks. The first call may wait until all have finished their start-up, in which they tell.
    ///
    /// # Errors
    /// `Timeout` or `PeerLost` if one does not.
    #[doc(hidden)] // for the layer above
    pub fn lends_all(&self) -> Result<bool> {
        let shared = &self.shared;
        if shared.lends_all.get().is_none() {
            let all = shared.ask_lends()?;
            let _ = shared.lends_all.set(all);
        }
        Ok(shared.lends_all.get().copied().unwrap_or(false))
    }
}

impl Shared {
    fn others(&self) -> Vec<Rank> {
        let all = (0..self.graph.size()).map(Rank);
        all.filter(|rank| *rank != self.rank).collect()
    }

    /// Whether ranks tell at all: those that make all channels at start-up, over mapped memory.
    fn may_lend(&self) -> bool {
        let size = self.graph.size();
        (2..=EAGER_RANKS).contains(&size) && self.has_mapped_all()
    }

    /// Tells the others, once all channels are there. Who is gone already need not know.
    pub(crate) fn tell_lends(&self) {
        let others = self.others();
        if !self.may_lend() || self.own_lends.get().is_some() {
            return;
        }
        let links: Option<Vec<_>> = others.iter().map(|peer| self.link(*peer).ok()).collect();
        let Some(links) = links else {
            return;
        };
        let can = links
            .iter()
            .all(|link| link.channel.transport().can_fetch());
        if self.own_lends.set(can).is_ok() {
            tracing::debug!(rank = %self.rank, can, "reading memory that others lend");
            lock(&self.mesh).tell_lends(can, &others);
        }
    }

    fn ask_lends(self: &Arc<Self>) -> Result<bool> {
        if self.graph.size() == 1 {
            return Ok(true);
        }
        let Some(&own) = self.own_lends.get().filter(|_| self.may_lend()) else {
            return Ok(false);
        };
        let others = self.others();
        let began = self.waiter.now();
        let deadline = Deadline::after(began, self.settings.connect_timeout());
        let mut phase = Phase::default();
        loop {
            if let Some(cause) = self.domain.aborted() {
                return Err(cause);
            }
            let now = self.waiter.now();
            let mut mesh = lock(&self.mesh);
            mesh.poll(now)?;
            let told: Vec<Option<bool>> = others.iter().map(|peer| mesh.lends(*peer)).collect();
            if told.iter().all(Option::is_some) {
                return Ok(own && told.iter().all(|can| *can == Some(true)));
            }
            let has_left = |peer: &&Rank| {
                mesh.lends(**peer).is_none() && *mesh.state(**peer) == LinkState::Closed
            };
            if let Some(peer) = others.iter().find(has_left) {
                return Err(Error::new(
                    ErrorKind::PeerLost,
                    format!("rank {peer} has left without finishing its start-up"),
                )
                .blame_rank(*peer));
            }
            if deadline.passed(now) {
                let silent = others.iter().zip(&told).filter(|(_, told)| told.is_none());
                let silent: Vec<Rank> = silent.map(|(peer, _)| *peer).collect();
                let error = Error::new(
                    ErrorKind::Timeout,
                    format!("ranks {silent:?} have not finished their start-up"),
                )
                .hint("look at the output of those ranks");
                return Err(silent.into_iter().fold(error, Error::blame_rank));
            }
            let mut interests = Vec::new();
            mesh.interests(&mut interests);
            let devices = self.endpoints.open();
            let paused = self.waiter.pause(
                &mut phase,
                &mut Watch {
                    until: deadline.earlier(mesh.next_wake()),
                    interests: &interests,
                    devices: &devices,
                    look: &mut || self.domain.aborted().is_some(),
                },
            );
            drop(interests);
            drop(mesh);
            for device in devices {
                device.progress()?;
            }
            if paused == Paused::Slept {
                self.health.check()?;
            }
        }
    }
}
