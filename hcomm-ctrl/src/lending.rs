//! Whether all ranks can read memory that others lend: what each has found out at start-up, told to
//! all, so that all come to the same answer.

use hcomm_transport::Phase;
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
        if let Some(all) = shared.lends_all.get() {
            return Ok(*all);
        }
        let all = shared.ask_lends()?;
        Ok(*shared.lends_all.get_or_init(|| all))
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

    fn ask_lends(&self) -> Result<bool> {
        if self.graph.size() == 1 {
            return Ok(true);
        }
        let Some(&own) = self.own_lends.get().filter(|_| self.may_lend()) else {
            return Ok(false);
        };
        let deadline = Deadline::after(self.waiter.now(), self.settings.connect_timeout());
        let mut phase = Phase::default();
        loop {
            if let Some(theirs) = self.hear_lends(deadline)? {
                return Ok(own && theirs);
            }
            self.pause_for_peers(&mut phase, deadline)?;
        }
    }

    /// Whether all others can, once all have told.
    fn hear_lends(&self, deadline: Deadline) -> Result<Option<bool>> {
        if let Some(cause) = self.domain.aborted() {
            return Err(cause);
        }
        for device in self.endpoints.open() {
            device.progress()?;
        }
        let now = self.waiter.now();
        let mut mesh = lock(&self.mesh);
        mesh.poll(now)?;
        let (mut silent, mut all) = (Vec::new(), true);
        for peer in self.others() {
            match mesh.lends(peer) {
                Some(can) => all &= can,
                None if *mesh.state(peer) == LinkState::Closed => {
                    return Err(Error::new(
                        ErrorKind::PeerLost,
                        format!("rank {peer} has left without finishing its start-up"),
                    )
                    .blame_rank(peer));
                }
                None => silent.push(peer),
            }
        }
        if silent.is_empty() {
            return Ok(Some(all));
        }
        if !deadline.passed(now) {
            return Ok(None);
        }
        let error = Error::new(
            ErrorKind::Timeout,
            format!("ranks {silent:?} have not finished their start-up"),
        )
        .hint("look at the output of those ranks");
        Err(silent.into_iter().fold(error, Error::blame_rank))
    }
}
