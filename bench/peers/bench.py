#!/usr/bin/env python3
"""hcomm and other libraries side by side, in interleaved rounds; see README.md.

Called by `cargo xtask peers`, which builds hcomm and names it in $HCOMM."""
import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import unittest

import hosts
import jobs
import launch
import tables

SECTIONS = ("p2p", "coll2", "coll4", "coll8", "limits", "start", "net")
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PAGE = os.path.join(ROOT, "PERFORMANCE.md")


def main():
    parser = argparse.ArgumentParser(prog="cargo xtask peers", description=__doc__.splitlines()[0])
    parser.add_argument("sections", nargs="*", metavar="SECTION",
                        help="%s, or all [p2p]" % ", ".join(SECTIONS))
    parser.add_argument("--rounds", type=int, default=6, help="launches of each job [6]")
    parser.add_argument("--budget", type=float, default=1800, metavar="S",
                        help="no job starts after so many seconds [1800]")
    parser.add_argument("--only", default="", metavar="A,B", help="only these peers or jobs")
    parser.add_argument("--out", default="", metavar="FILE",
                        help="where the samples go [target/peers/latest.json]")
    parser.add_argument("--table", metavar="FILE", help="measure nothing, print FILE's tables")
    parser.add_argument("--write", action="store_true",
                        help="put the tables into PERFORMANCE.md, between the marks for runs with p2p, "
                             "of net alone, or for others")
    options = parser.parse_args()
    if options.sections == ["selftest"]:
        return selftest()
    sections = options.sections or ["p2p"]
    sections = list(SECTIONS) if "all" in sections else list(dict.fromkeys(sections))
    if unknown := set(sections) - set(SECTIONS):
        parser.error("no section is called %s" % ", ".join(sorted(unknown)))
    if options.rounds < 1 or options.budget <= 0:
        parser.error("--rounds and --budget must be positive")
    if options.table:
        with open(options.table) as file:
            data = json.load(file)
    else:
        out = options.out or os.path.join(ROOT, "target", "peers", "latest.json")
        data = measure(sections, options, out)
    # What is judged by goals, and by the mean of all points.
    has_p2p = "p2p" in sections
    parts = [tables.goals(data)] if has_p2p else []
    parts += [tables.net(data), tables.collectives(data), tables.sections(data, options.sections and sections)]
    print("\n".join((tables.head(data), *parts, tables.footnotes(data))))
    failed = [] if options.table else tables.unmeasured(data)
    if failed:
        print("error: no sample of " + ", ".join(failed), file=sys.stderr)
    if failed or data["meta"].get("interrupted"):
        return 1
    if options.write:
        marks = (tables.MARKS if has_p2p else tables.NET_MARKS if sections == ["net"]
                 else tables.COLLECTIVE_MARKS)
        tables.paste(PAGE, data, marks, *parts)
        say("written into " + PAGE)
    return 0


def measure(sections, options, out):
    """Runs the jobs in rounds and writes each round's samples to the file `out`."""
    wanted = {}
    only = set(filter(None, options.only.split(",")))
    for section in sections:
        for key, job in jobs.of(section).items():
            if not only or only & {key[0], key[0].split("/")[0], str(key[1])}:
                home = "limits" if key[0] == "limits" else section
                wanted[home, *map(str, key)] = job
    if not wanted:
        sys.exit("error: --only %s leaves no job" % options.only)
    data = dict(samples={}, errors={}, meta=machine(sections, options))
    good = data["meta"]["jobs"] = {" ".join(key): 0 for key in wanted}
    done, failed = dict.fromkeys(wanted, 0), dict.fromkeys(wanted, 0)
    begin = time.time()
    end = begin + options.budget
    two_hosts = hosts.Hosts() if "net" in sections else contextlib.nullcontext()
    with launch.Launcher() as launcher, two_hosts:
        try:
            for number in range(options.rounds):
                # Another order in each round: a job does not always meet its neighbour's state.
                order = random.Random(number).sample(list(wanted), len(wanted))
                for key in order:
                    hopeless = failed[key] >= 2 and failed[key] == done[key]
                    if hopeless or time.time() > end:
                        continue
                    samples, error = launcher.run(wanted[key], end)
                    done[key] += 1
                    good[" ".join(key)] += bool(samples)
                    if error:
                        failed[key] += 1
                        data["errors"][" ".join(key)] = error
                        if failed[key] == 1:
                            say("%s: %s" % (" ".join(key), error))
                        if error.startswith("missing"):
                            failed[key] = done[key] = 2
                    for s in samples:
                        name = "|".join(map(str, (*key[:2], s["k"], s["n"], s["size"], s["u"])))
                        data["samples"].setdefault(name, []).append([s["v"], s["pp"]])
                data["meta"].update(rounds=number + 1, seconds=round(time.time() - begin))
                save(data, out)
                say("round %d of %d, %d s" % (number + 1, options.rounds, time.time() - begin))
                if time.time() > end:
                    break
        except KeyboardInterrupt:
            say("interrupted")
            data["meta"]["interrupted"] = True
    save(data, out)
    say("samples: " + out)
    return data


def machine(sections, options):
    """What has to be known of where the numbers come from."""
    model, memory = "unknown processor", 0
    for path, name in (("/proc/cpuinfo", "model name"), ("/proc/meminfo", "MemTotal")):
        try:
            with open(path) as file:
                value = next(line.split(":")[1].strip() for line in file if line.startswith(name))
        except (OSError, StopIteration):
            continue
        if name == "MemTotal":
            memory = round(int(value.split()[0]) / (1 << 20))
        else:
            model = value
    git = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"],
                         capture_output=True, text=True, check=False)
    words = [*sections, "--rounds", str(options.rounds), "--budget", "%g" % options.budget]
    words += ["--only", options.only] if options.only else []
    return dict(date=time.strftime("%F %H:%M"), cpu=model, cores=len(os.sched_getaffinity(0)),
                memory_gib=memory, kernel=os.uname().release, version=git.stdout.strip(),
                command="cargo xtask peers " + " ".join(words), rounds=0, seconds=0)


def save(data, path):
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open(path + ".new", "w") as file:
        json.dump(data, file)
    os.replace(path + ".new", path)


def say(text):
    print("# " + text, file=sys.stderr, flush=True)


def selftest():
    folder = os.path.dirname(os.path.abspath(__file__))
    tests = unittest.defaultTestLoader.discover(folder, "*_test.py")
    done = unittest.TextTestRunner().run(tests)
    return 0 if done.wasSuccessful() and done.testsRun else 1


if __name__ == "__main__":
    # A polite end is an interrupt, too: what was started is ended.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # nobody reads on: no second complaint
        sys.exit(1)
