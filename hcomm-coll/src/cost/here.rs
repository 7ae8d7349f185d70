//! The costs of a communicator: the tuning file of rank 0, or built-in numbers; and where its ranks
//! run.

use hcomm_ctrl::Membership;
use hcomm_topo::Layer;
use hcomm_types::{Error, ErrorKind, Rank, Result};

use super::choose::Chooser;
use super::machine::Machine;
use super::site::{Reach, Site};

impl Chooser {
    /// For the ranks of a communicator. The same on all of them.
    ///
    /// # Errors
    /// `InvalidArgument` if the tuning file of rank 0 cannot be read or is none.
    pub(crate) fn of(membership: &Membership) -> Result<Self> {
        let machine = match membership.tuning() {
            None => Machine::built_in(),
            Some(tuning) => {
                let refuse = |words: &str| {
                    Error::new(
                        ErrorKind::InvalidArgument,
                        format!("HCOMM_TUNING={} of rank 0: {words}", tuning.path),
                    )
                    .blame_rank(Rank(0))
                    .hint("`hcomm tune -o FILE` writes one; without it built-in numbers hold")
                };
                let text = tuning.text.as_ref().map_err(|words| refuse(words))?;
                Machine::from_json(text).map_err(|error| refuse(error.detail()))?
            }
        };
        Ok(Self::new(machine, site(membership)))
    }
}

fn site(membership: &Membership) -> Site {
    let graph = membership.graph();
    let of_rank = |rank| {
        graph
            .instance_of(Layer::HOST, rank)
            .map_or(0, |host| host.id.0)
    };
    let hosts: Vec<u32> = (0..graph.size()).map(Rank).map(of_rank).collect();
    // One pair of each kind stands for all.
    let reach = |near: bool| {
        if membership.maps_all() {
            return Reach::Mapped;
        }
        let of_first = |rank: &Rank| (hosts[rank.index()] == hosts[0]) == near;
        let peer = (1..graph.size()).map(Rank).find(of_first);
        let link = peer.and_then(|peer| graph.links(Rank(0), peer).into_iter().next());
        link.map_or(Reach::Mapped, |link| Reach::Wire {
            latency_ns: link.latency_ns,
            // A rate that is not known counts as 1 GB/s.
            byte_ps: 1_000_000_000_000_u64
                .checked_div(link.bytes_per_s)
                .unwrap_or(1000),
        })
    };
    Site {
        cores: membership.host_cores(),
        near: reach(true),
        far: reach(false),
        hosts: (graph.instances(Layer::HOST).len() > 1).then(|| hosts.clone().into()),
    }
}
