"""One launch at a time: starts programs, knows the state of the cores, leaves nothing behind."""
import contextlib
import ctypes
import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import time

PEERS = os.environ.get("PEERS", os.path.expanduser("~/.cache/hcomm-peers"))
BIN = PEERS + "/programs"

# What the peers leave in /dev/shm when they are ended in the middle.
SEGMENTS = ("vader_segment", "sm_segment", "ucx_shm", "mpich_shar", "Intel_MPI", "iox2_")


class Launcher:
    """Runs jobs one after the other, each until its time is over.

    A job is a dict: `cmds` is a list of (command, its own variables), `env` variables of all,
    `timeout` in seconds, `parse(text, job)` makes samples of what was printed, `prepare(folder)` is
    called before with the folder that is removed after.
    """

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="hcomm-peers-")
        # Orphans of a launcher become children of this process, which then can end them.
        pr_set_child_subreaper = 36
        ctypes.CDLL(None).prctl(pr_set_child_subreaper, 1, 0, 0, 0)

    def __enter__(self):
        self.group = _own_cgroup()
        return self

    def __exit__(self, *_):
        _end_children()
        if self.group:
            _leave_cgroup(*self.group)
        shutil.rmtree(self.folder, ignore_errors=True)

    def handover_ns(self):
        """Nanoseconds in which a cache line goes from core to core just now, -1 if unknown."""
        run = subprocess.run
        try:
            done = run([BIN + "/limits", "ppq"], capture_output=True, text=True, timeout=20)
            return float(done.stdout)
        except (OSError, ValueError, subprocess.TimeoutExpired):
            return -1.0

    def run(self, job, end):
        """Samples of a job, and what went wrong or ''. Waits until `end` for the lock."""
        for command, _ in job["cmds"]:
            if not shutil.which(command[0]):
                return [], "missing: %s is not installed" % os.path.basename(command[0])
        if not _lock(end):
            return [], "not run: another measurement held the lock"
        scratch = tempfile.mkdtemp(dir=self.folder)
        segments = _segments()
        try:
            return self._run(job, scratch)
        finally:
            _end_children()
            for name in _segments() - segments:
                with contextlib.suppress(OSError):
                    os.unlink("/dev/shm/" + name)
            shutil.rmtree(scratch, ignore_errors=True)
            _unlock()

    def _run(self, job, scratch):
        env = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                   TMPDIR=scratch, BENCH_PP=scratch + "/handover", STORE=scratch + "/store")
        env.update(job.get("env", {}))
        if "prepare" in job:
            job["prepare"](scratch)
        before = self.handover_ns()
        end = time.time() + job["timeout"]
        env["BENCH_T0"] = "%.6f" % time.time()
        files, processes, timed_out = [], [], False
        for number, (command, own) in enumerate(job["cmds"]):
            files += [open("%s/%s%d" % (scratch, kind, number), "w+") for kind in ("out", "err")]
            processes.append(subprocess.Popen(
                command, env=dict(env, **own), stdin=subprocess.DEVNULL, stdout=files[-2],
                stderr=files[-1], start_new_session=True))
        try:
            for process in processes:
                process.wait(max(0.1, end - time.time()))
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            _end(processes)
        ended = time.time()
        texts = []
        for file in files:
            file.seek(0)
            texts.append(file.read())
            file.close()
        out, err = "".join(texts[0::2]), "".join(texts[1::2])
        job["began"] = float(env["BENCH_T0"])
        try:
            samples = job["parse"](out, job)
        except (KeyError, TypeError, ValueError) as error:
            return [], "its output lacks something: %r" % error
        state = max(before, self.handover_ns()) if before >= 0 else -1.0
        for sample in samples:
            if (sample.get("pp") or -1) < 0:
                sample["pp"] = state
        codes = [process.returncode for process in processes if process.returncode]
        if timed_out:
            return samples, "not done after %d s" % job["timeout"]
        if codes or not samples:
            lines = (err.strip() or out.strip() or "printed nothing").splitlines()
            told = [line for line in lines if "error" in line.lower()][:2] or lines[-2:]
            status = ", ".join(map(str, codes)) or "0, no result"
            return samples, "exit status %s: %s" % (status, " / ".join(told)[:300])
        return samples, ""


def _end(processes):
    """Ends what still runs: launchers get the time to end their ranks."""
    for patience, number in ((5, signal.SIGTERM), (5, signal.SIGKILL)):
        left = [process for process in processes if process.poll() is None]
        for process in left:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, number)
        until = time.time() + patience
        for process in left:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, until - time.time()))


def _end_children():
    """Ends ranks that have lost their launcher: first they get a moment to end by themselves."""
    begin = time.time()
    while children := _children():
        for pid in children:
            if time.time() - begin > 1:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(OSError):
                os.waitpid(pid, os.WNOHANG)
        if time.time() - begin > 10:
            return
        time.sleep(0.01)


def _children():
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError, ValueError, IndexError):
            with open("/proc/%s/stat" % name) as file:
                parent = file.read().rpartition(")")[2].split()[1]
            if int(parent) == os.getpid():
                found.append(int(name))
    return found


def _segments():
    with contextlib.suppress(OSError):
        return {name for name in os.listdir("/dev/shm") if name.startswith(SEGMENTS)}
    return set()


_LOCK = []


def _lock(end):
    """One launch at a time on this machine, also beside another run of this program."""
    file = open(PEERS + "/bench.lock", "w")
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _LOCK.append(file)
            return True
        except OSError:
            if time.time() > end:
                file.close()
                return False
            time.sleep(0.05)


def _unlock():
    _LOCK.pop().close()


def _own_cgroup():
    """Gives the launches nearly all of the CPU against what else runs here, where that is allowed
    (cpu cgroups of version 1). Returns the new group and the one before."""
    try:
        with open("/proc/self/cgroup") as file:
            path = next(line.split(":", 2)[2].strip() for line in file if ":cpu:" in line)
        group = "/sys/fs/cgroup/cpu/hcomm-peers"
        os.makedirs(group, exist_ok=True)
        _write(group + "/cpu.shares", "262144")
        _write(group + "/cgroup.procs", str(os.getpid()))
        return group, "/sys/fs/cgroup/cpu" + path
    except (OSError, StopIteration):
        return None


def _leave_cgroup(group, before):
    with contextlib.suppress(OSError):
        _write(before + "/cgroup.procs", str(os.getpid()))
        os.rmdir(group)


def _write(path, text):
    with open(path, "w") as file:
        file.write(text)
