"""Tables of samples: hcomm against the best peer with its goals, and everything by section.

Samples are {"section|peer|what|ranks|bytes|unit": [[value, hand-over in ns], ..]}. The two cores
are near (they share a cache) or far at the time of a sample; only equal states are compared.
"""
import statistics
from collections import namedtuple

NEAR_NS = 80.0
FEW = 5  # cells with fewer samples are put in brackets
MARKS = ("<!-- peers:begin -->", "<!-- peers:end -->")
# Those of a run without the section p2p.
COLLECTIVE_MARKS = ("<!-- peers-collectives:begin -->", "<!-- peers-collectives:end -->")
# Those of a run with the section net alone.
NET_MARKS = ("<!-- peers-net:begin -->", "<!-- peers-net:end -->")
# Here ranks share cores or take long, and the state is not told apart.
ONE_STATE = ("coll4", "coll8", "start", "net", "rate")
RISING = ("GB/s", "Mmsg/s")

# A row of the table of goals. `peers` are keys of the peers' samples, `ours` peer and key of
# hcomm's, `floor` keys of the limits. The goal is a factor on the best peer, or with `of_floor` on
# the floor, plus so many microseconds; for a ratio it is the number itself. None: shown without a
# goal.
Goal = namedtuple("Goal", "title sizes unit peers ours floor factor of_floor plus",
                  defaults=(None, False, 0.0))

PUT = ("put/libc/untouched", "put/nt/untouched")
COPY = ("put/libc/copyout", "put/nt/copyout")
LAT = ("lat", "tag_lat", "ucp_am_lat")
BW = ("bw", "tag_bw/window", "ucp_am_bw/window")
RATE = ("rate64", "tag_bw/window/rate", "ucp_am_bw/window/rate")
ONE = ("rate/seq-in-cell", "rate/head-per-1")
LARGE = (1 << 10, 8 << 10, 64 << 10, 1 << 20)
MESSAGE = (8, 4 << 10, 64 << 10, 1 << 20)
STREAM = (64, 8 << 10, 1 << 20, 16 << 20)
OURS, USER = "hcomm/ours", "hcomm/user"

GOALS = (
    Goal("write + notify, half round trip", (8,), "us", ("putpp",), (OURS, "putpp"),
         ("pingpong/one-line",), 0.9),
    Goal("write + notify against the bare hand-over", (8,), "us", (), (OURS, "putpp"),
         ("pingpong/one-line",), 1.5, True, 0.02),
    Goal("write + notify, half round trip", LARGE, "us", ("putpp",), (OURS, "putpp"), PUT, 1.0),
    Goal("the same, payload is its own flag at the peer", (8, *LARGE), "us", ("ucp_put_lat",),
         (OURS, "putpp"), PUT),
    Goal("send/recv, half round trip", MESSAGE, "us", LAT, (USER, "lat"), COPY, 0.8),
    Goal("send/recv, our own memory", MESSAGE, "us", LAT, (OURS, "lat"), COPY),
    Goal("streamed send", STREAM, "GB/s", BW, (USER, "bw"), ("putbw/copyout/ring",), 1.25),
    Goal("streamed send, our own memory", STREAM, "GB/s", BW, (OURS, "bw"),
         ("putbw/copyout/ring",)),
    Goal("write + notify, the caller's memory", (8, *LARGE), "us", ("putpp",), (USER, "putpp"), PUT),
    Goal("streamed write", STREAM, "GB/s", ("putbw", "ucp_put_bw"), (OURS, "putbw"),
         ("putbw/untouched/one-buffer",), 1.0),
    Goal("messages one by one: send/recv", (64,), "Mmsg/s", ("rate1",), (USER, "rate1"), ONE, 2.0),
    Goal("messages one by one: write + notify", (64,), "Mmsg/s", ("rate1",), (OURS, "rate1"), ONE),
    Goal("messages batched: 64 writes, a notify", (64,), "Mmsg/s", RATE, (OURS, "rate64"),
         (*ONE, "rate/head-per-16", "rate/head-per-64"), 2.0),
    # A combination moves 3 bytes for 2 of a copy: 0.9 times a copy's bytes a second.
    Goal("local reduce ÷ local copy, fp32 sum", (64 << 10, 64 << 20), "ratio", (),
         (OURS, "local_reduce/local_copy"), (), 1.67),
    Goal("write + notify ÷ our own send/recv", (128 << 10,), "ratio", (),
         (OURS, "write_notify/send_recv"), ()),
    Goal("wake of a rank that sleeps ÷ bare futex wake", (8,), "ratio", (),
         (OURS, "wake/futex_wake"), (), 2.0),
)

Cell = namedtuple("Cell", "median low high count")


def cells(data):
    """{(section, what, ranks, unit, state): {peer: {bytes: Cell}}}"""
    found = {}
    for name, samples in data["samples"].items():
        section, peer, what, ranks, size, unit = name.split("|")
        one = section in ONE_STATE or (section == "limits" and ranks == "1")
        groups = {"all": samples} if one else {
            "near": [s for s in samples if 0 < s[1] < NEAR_NS],
            "far": [s for s in samples if s[1] >= NEAR_NS],
        }
        for state, group in groups.items():
            if values := [value for value, _ in group]:
                cell = Cell(statistics.median(values), min(values), max(values), len(values))
                row = found.setdefault((section, what, int(ranks), unit, state), {})
                row.setdefault(peer, {})[int(size)] = cell
    return found


def best(candidates, unit):
    """The best (cell, peer) by its median, or None."""
    pick = max if unit in RISING else min
    return pick(candidates, key=lambda found: found[0].median, default=None)


def lookup(found, section, keys, unit, state, size, of=lambda peer: True):
    """All (cell, peer) of these keys, of 2 ranks or of one that works for itself."""
    return [(row[size], peer)
            for key in keys
            for ranks in (1, 2)
            for peer, row in found.get((section, key, ranks, unit, state), {}).items()
            if size in row and of(peer)]


def floor_of(found, goal, state, size):
    """The best the machine can do, in the goal's unit."""
    candidates = lookup(found, "limits", goal.floor, goal.unit, state, size)
    if goal.unit == "us":
        nanoseconds = lookup(found, "limits", goal.floor, "ns", state, size)
        candidates += [(Cell(*(x / 1e3 for x in cell[:3]), cell.count), peer)
                       for cell, peer in nanoseconds]
    floor = best(candidates, goal.unit)
    return floor and floor[0]


def is_hcomm(peer):
    return peer.split("/")[0] == "hcomm"


def judge(goal, peer, floor, ours):
    """The ratio to the best peer (or to the floor), and whether the goal is met; None: unknown."""
    against = floor if goal.of_floor else peer
    if goal.unit == "ratio" and ours:
        return None, None if goal.factor is None else ours.median <= goal.factor
    if not against or not ours:
        return None, None
    ratio = ours.median / against.median
    if goal.factor is None:
        return ratio, None
    limit = against.median * goal.factor + goal.plus
    met = ours.median >= limit if goal.unit in RISING else ours.median <= limit
    return ratio, met


def goals(data):
    """The table of goals: a line for each measure, size and state of the cores."""
    found, lines = cells(data), []
    for goal in GOALS:
        for size in goal.sizes:
            for state in ("near", "far"):
                others = lookup(found, "p2p", goal.peers, goal.unit, state, size,
                                lambda peer: not is_hcomm(peer))
                peer = best(others, goal.unit)
                mine = best(lookup(found, "p2p", goal.ours[1:], goal.unit, state, size,
                                   lambda peer: peer == goal.ours[0]), goal.unit)
                floor = floor_of(found, goal, state, size)
                if not mine and (goal.factor is None or not peer):
                    continue
                ours = mine and mine[0]
                ratio, met = judge(goal, peer and peer[0], floor, ours)
                counts = [cell.count for cell in (ours, floor if goal.of_floor else
                                                  peer and peer[0]) if cell]
                verdict = "" if met is None else "yes" if met else "no"
                if verdict and min(counts) < FEW:
                    verdict = "(%s)" % verdict
                lines.append((
                    goal.title, bytes_text(size), goal.unit, state,
                    "%s %s" % (value(peer[0]), peer[1]) if peer else "",
                    value(floor), value(ours), "%.2f" % ratio if ratio else "", wish(goal),
                    verdict))
    if not lines:
        return "No measure of the table of goals was taken.\n"
    return "### hcomm against the best peer\n\n" + markdown(
        ("measure", "size", "unit", "cores", "best peer", "floor", "hcomm", "ratio", "goal", "met"),
        lines)


# Rows of the table of two hosts: title, sizes, unit, key of the peers, of hcomm, of the floor, and
# what is wished against the best peer and against the floor.
NET_GOALS = (
    ("write + notify, half round trip", (8, 64 << 10, 1 << 20), "us", "lat", "putpp", "lat",
     0.85, 1.15),
    ("the same, who waits sleeps", (8, 64 << 10, 1 << 20), "us", None, "putpp-sleep", "lat-sleep",
     None, 1.15),
    ("streamed write", (64 << 10, 1 << 20, 16 << 20), "GB/s", "bw", "putbw", "stream",
     1.2, 0.95),
    ("all_reduce of 2 ranks", (8, 1 << 10, 8 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20), "us",
     "allreduce", "allreduce", None, 0.85, None),
)


def net(data):
    """The table of two hosts; empty if that was not measured."""
    found, lines = cells(data), []
    state = "all"

    def one(key, unit, size, of):
        return best(lookup(found, "net", (key,), unit, state, size, of), unit)

    for title, sizes, unit, theirs, ours, floor, of_peer, of_floor in NET_GOALS:
        for size in sizes:
            mine = one(ours, unit, size, is_hcomm)
            peer = theirs and one(theirs, unit, size, lambda p: not is_hcomm(p) and p != "sockets")
            bare = floor and one(floor, unit, size, lambda p: p == "sockets")
            if not mine:
                continue
            texts = []
            for other, factor in ((peer, of_peer), (bare, of_floor)):
                if not other or factor is None:
                    texts += ["", ""]
                    continue
                ratio = mine[0].median / other[0].median
                met = ratio >= factor if unit in RISING else ratio <= factor
                sign = "≥" if unit in RISING else "≤"
                texts += ["%.2f" % ratio, "%s %g: %s" % (sign, factor, "yes" if met else "no")]
            lines.append((title, bytes_text(size), unit,
                          "%s %s" % (value(peer[0]), peer[1]) if peer else "",
                          value(bare[0]) if bare else "", value(mine[0]), *texts))
    if not lines:
        return ""
    text = "### Two hosts: hcomm over tcp, the best peer, plain sockets\n\n" + markdown(
        ("measure", "size", "unit", "best peer", "sockets", "hcomm", "÷ peer", "goal", "÷ sockets",
         "goal"), lines)
    rate = {key: one(key, "GB/s", size, is_hcomm) for key, size in (("bw/one-by-one", 64), ("bw/batch-64", 64), ("bw/batch-1024", 1024))}
    peak = [one("putbw", "GB/s", size, is_hcomm) for size in (64 << 10, 1 << 20, 16 << 20)]
    peak = max((cell.median for cell, _ in filter(None, peak)), default=None)
    single, batch, kilo = (rate[key] and rate[key][0].median for key in rate)
    if single and batch:
        text += "\n64-byte writes in batches of 64 ÷ one by one: **%.1f** (goal ≥ 10.8).\n" % (
            batch / single)
    if kilo and peak:
        text += "1 KiB writes in batches of 1024 ÷ the fastest stream: **%.2f** (goal ≥ 0.85).\n" % (
            kilo / peak)
    return text


def wish(goal):
    if goal.factor is None:
        return ""
    sign = "≥" if goal.unit in RISING else "≤"
    if goal.unit == "ratio":
        return "%s %g" % (sign, goal.factor)
    text = "%s %g ×" % (sign, goal.factor) + (" floor" if goal.of_floor else "")
    return text + (" + %g ns" % (goal.plus * 1e3) if goal.plus else "")


def sections(data, wanted=()):
    """A table for each section and measure, with a row for each peer and state of the cores."""
    found, parts = cells(data), []
    measures = sorted({key[:4] for key in found}, key=lambda key: (key[0] == "limits", key[:3]))
    floors = {}
    for section, what, ranks, unit in measures:
        if wanted and section not in (*wanted, "limits"):
            continue
        rows = []
        for state in ("near", "far", "all"):
            row = found.get((section, what, ranks, unit, state), {})
            rows += [(peer, state, row[peer]) for peer in sorted(row, key=order)]
            if section != "limits":
                rows += ratios(row, state, unit)
        if section == "limits":  # many with one row each: together by their first word
            floors.setdefault((what.split("/")[0], unit), []).extend(
                ("%s, %d" % (what, ranks), state, by_size) for _, state, by_size in rows)
        else:
            title = "### %s: %s, %d ranks, %s" % (section, what, ranks, unit)
            parts.append(title + "\n\n" + by_sizes(("peer", "cores"), rows))
    for (group, unit), rows in floors.items():
        title = "### limits: %s, %s" % (group, unit)
        parts.append(title + "\n\n" + by_sizes(("what, processes", "cores"), rows))
    return "\n".join(parts)


def collectives(data):
    """hcomm's time over that of the best peer for every collective and size, and the geometric mean
    of all of them."""
    found, lines, points = cells(data), [], []
    for (section, what, ranks, unit, state), row in sorted(found.items(), key=lambda f: f[0][:3]):
        if not section.startswith("coll") or unit != "us":
            continue
        ours = row.get("hcomm/user", {})
        texts, mine = {}, []
        for size, cell in ours.items():
            others = [(row[peer][size], peer) for peer in row
                      if not is_hcomm(peer) and size in row[peer]]
            if other := best(others, unit):
                ratio = cell.median / other[0].median
                mine.append(ratio)
                few = cell.count < FEW or other[0].count < FEW
                texts[size] = ("(%.2f)" if few else "%.2f") % ratio
        if mine:
            points += mine
            name = "%s, %d" % (what, ranks)
            lines.append((name, state, "%.2f" % statistics.geometric_mean(mine), texts))
    if not points:
        return ""
    above = sum(point > 1 for point in points)
    return (
        "### collectives: time of hcomm over that of the best peer\n\n"
        + by_sizes(("operation, ranks", "cores", "mean"), lines)
        + "\nGeometric mean of %d points: **%.2f** (goal 0.6); %d of them above 1.\n"
        % (len(points), statistics.geometric_mean(points), above)
    )


def ratios(row, state, unit):
    """A row for each of hcomm's in `row`: its median over that of the best peer."""
    rows = []
    for peer in filter(is_hcomm, sorted(row)):
        line = {}
        for size, cell in row[peer].items():
            others = [(row[other][size], other) for other in row
                      if not is_hcomm(other) and size in row[other]]
            if found := best(others, unit):
                line[size] = "%.2f × %s" % (cell.median / found[0].median, found[1])
        if line:
            rows.append(("**%s**" % peer, state, line))
    return rows


def order(peer):
    return not is_hcomm(peer), peer


def by_sizes(head, rows):
    sizes = sorted({size for row in rows for size in row[-1]})
    lines = []
    for *names, by_size in rows:
        texts = (by_size.get(size, "") for size in sizes)
        lines.append((*names, *(text if isinstance(text, str) else spread(text) for text in texts)))
    return markdown((*head, *map(bytes_text, sizes)), lines)


def markdown(head, lines):
    rows = [head, ["---"] * len(head), *lines]
    return "".join("| " + " | ".join(row) + " |\n" for row in rows)


def number(x):
    return "%.3g" % x if x < 1000 else "%d" % round(x)


def value(cell):
    """The median and, in brackets, how many samples there were."""
    return "%s (%d)" % (number(cell.median), cell.count) if cell else ""


def spread(cell):
    text = "%s [%s-%s]" % tuple(map(number, cell[:3]))
    return text if cell.count >= FEW else "%s (%d)" % (text, cell.count)


def bytes_text(size):
    for unit, bits in (("MiB", 20), ("KiB", 10)):
        if size >= 1 << bits:
            return "%d %s" % (size >> bits, unit)
    return "%d B" % size


def head(data):
    """Where the numbers come from."""
    meta = data["meta"]
    if "cpu" not in meta:  # samples of another program
        return ""
    return (
        "`{command}`: up to {rounds} rounds in {seconds} s, {date}, hcomm {version}.\n"
        "{cores} cores of {cpu}, {memory_gib} GiB, Linux {kernel}.\n\n"
        "Medians of one run; the number of samples stands in parentheses, and a verdict in\n"
        "parentheses rests on fewer than {few}. *near*: a cache line goes from core to core in\n"
        "less than {near:g} ns, as measured beside each sample; *far*: it takes longer.\n"
    ).format(few=FEW, near=NEAR_NS, **meta)


def footnotes(data):
    """What could not be measured, with the reason; equal reasons of a peer together."""
    groups = {}
    for name, error in data["errors"].items():
        section, peer, *rest = name.split(" ")
        groups.setdefault((section, peer, error), []).append(" ".join(rest))
    lines = ["* %s %s (%s): %s\n" % (section, peer, ", ".join(names), error.replace("|", "/"))
             for (section, peer, error), names in groups.items()]
    late = sorted({" ".join(name.split(" ")[:2]) for name, launches in
                   data["meta"].get("jobs", {}).items()
                   if launches == 0 and name not in data["errors"]})
    if late:
        lines.append("* no time was left for some of: %s\n" % ", ".join(late))
    return "Failed at least once, or not reached:\n\n" + "".join(lines) if lines else ""


def unmeasured(data):
    """Jobs of hcomm that gave no sample."""
    return [name for name, launches in data["meta"].get("jobs", {}).items()
            if launches == 0 and is_hcomm(name.split(" ")[1])]


def paste(path, data, marks, *parts):
    """Puts the tables between two marks of a page."""
    with open(path) as file:
        before, begin, rest = file.read().partition(marks[0])
    _, end, after = rest.partition(marks[1])
    if not begin or not end:
        raise SystemExit("error: %s lacks %s and %s" % (path, *marks))
    text = "\n".join(filter(None, (head(data), *parts, footnotes(data))))
    with open(path, "w") as file:
        file.write(before + begin + "\n" + text.rstrip("\n") + "\n" + end + after)
