"""Tests of the tables: `bench.py selftest`."""
import os
import tempfile
import unittest

import tables


def data(samples, **rest):
    return dict(samples=samples, errors={}, meta={}, **rest)


def line(text, *words):
    """The one line of a table that has all these words."""
    found = [row for row in text.splitlines() if all(word in row for word in words)]
    assert len(found) == 1, (words, text)
    return [cell.strip() for cell in found[0].strip("|").split("|")]


PUT = {
    "p2p|a|putpp|2|8|us": [[0.10, 30]] * 5 + [[0.40, 170]] * 5,
    "p2p|b|putpp|2|8|us": [[0.12, 30]] * 5 + [[0.20, 170]] * 5,
    "p2p|hcomm/ours|putpp|2|8|us": [[0.05, 30]] * 5 + [[0.19, 170]] * 2,
    "limits|limits|pingpong/one-line|2|8|ns": [[30, 30]] * 5 + [[160, 170]] * 5,
}


class Net(unittest.TestCase):
    def test_hcomm_is_held_against_peer_and_sockets(self):
        samples = {
            "net|sockets|lat|2|8|us": [[2.0, 30]] * 5,
            "net|impi-tcp|lat|2|8|us": [[5.0, 30]] * 5,
            "net|hcomm/user|putpp|2|8|us": [[3.0, 30], [3.0, 170]] * 3,
            "net|sockets|stream|2|1048576|GB/s": [[4.0, 30]] * 5,
            "net|hcomm/user|putbw|2|1048576|GB/s": [[4.0, 30]] * 5,
            "net|hcomm/user|bw/one-by-one|2|64|GB/s": [[0.01, 30]],
            "net|hcomm/user|bw/batch-64|2|64|GB/s": [[0.2, 30]],
            "net|hcomm/user|bw/batch-1024|2|1024|GB/s": [[3.0, 30]],
        }
        text = tables.net(data(samples))
        self.assertEqual(line(text, "8 B")[-4:], ["0.60", "≤ 0.85: yes", "1.50", "≤ 1.15: no"])
        self.assertEqual(line(text, "1 MiB")[-4:], ["", "", "1.00", "≥ 0.95: yes"])
        self.assertIn("one by one: **20.0**", text)
        self.assertIn("fastest stream: **0.75**", text)
        self.assertEqual(tables.net(data({})), "")


class Collectives(unittest.TestCase):
    def test_the_mean_is_over_all_points_with_a_peer(self):
        samples = {
            "coll2|a|allreduce|2|8|us": [[1.0, 30]] * 5 + [[4.0, 170]] * 5,
            "coll2|b|allreduce|2|8|us": [[2.0, 30]] * 5,
            "coll2|hcomm/user|allreduce|2|8|us": [[0.5, 30]] * 5 + [[1.0, 170]] * 2,
            "coll4|a|bcast|4|64|us": [[1.0, -1]] * 5,
            "coll4|hcomm/user|bcast|4|64|us": [[2.0, -1]] * 5,
            "coll4|hcomm/user|bcast|4|128|us": [[9.0, -1]] * 5,
        }
        text = tables.collectives(data(samples))
        self.assertEqual(line(text, "allreduce, 2", "near")[2:], ["0.50", "0.50", ""])
        self.assertEqual(line(text, "allreduce, 2", "far")[2:], ["0.25", "(0.25)", ""])
        self.assertEqual(line(text, "bcast, 4")[2:], ["2.00", "", "2.00"])
        self.assertIn("Geometric mean of 3 points: **0.63** (goal 0.6); 1 of them above 1.", text)
        self.assertEqual(tables.collectives(data(PUT)), "")


class Goals(unittest.TestCase):
    def test_each_state_has_its_own_best_peer(self):
        text = tables.goals(data(PUT))
        near = line(text, "half round trip", "8 B", "near")[4:]
        self.assertEqual(near, ["0.1 (5) a", "0.03 (5)", "0.05 (5)", "0.50", "≤ 0.9 ×", "yes"])
        far = line(text, "half round trip", "8 B", "far")[4:]
        self.assertEqual(far, ["0.2 (5) b", "0.16 (5)", "0.19 (2)", "0.95", "≤ 0.9 ×", "(no)"])

    def test_a_goal_on_the_floor_adds_its_constant(self):
        text = tables.goals(data(PUT))
        self.assertEqual(line(text, "bare hand-over", "near")[-3:],
                         ["1.67", "≤ 1.5 × floor + 20 ns", "yes"])
        slow = dict(PUT, **{"p2p|hcomm/ours|putpp|2|8|us": [[0.066, 30]] * 5})
        self.assertEqual(line(tables.goals(data(slow)), "bare hand-over", "near")[-1], "no")

    def test_bandwidth_has_to_be_higher(self):
        samples = {
            "p2p|a|bw|2|64|GB/s": [[1, 30]] * 5,
            "p2p|b|tag_bw/window|2|64|GB/s": [[2, 30]] * 5,
            "p2p|hcomm/user|bw|2|64|GB/s": [[2.4, 30]] * 5,
        }
        near = line(tables.goals(data(samples)), "| streamed send |", "64 B")
        self.assertEqual(near[4:], ["2 (5) b", "", "2.4 (5)", "1.20", "≥ 1.25 ×", "no"])

    def test_a_ratio_is_its_own_goal(self):
        samples = {"p2p|hcomm/ours|local_reduce/local_copy|1|65536|ratio": [[1.7, 30]] * 5}
        near = line(tables.goals(data(samples)), "local reduce", "64 KiB", "near")
        self.assertEqual(near[4:], ["", "", "1.7 (5)", "", "≤ 1.67", "no"])

    def test_states_are_never_mixed(self):
        samples = {
            "p2p|a|putpp|2|8|us": [[0.1, 30]],
            "p2p|hcomm/ours|putpp|2|8|us": [[0.2, 170], [0.2, -1]],
        }
        text = tables.goals(data(samples))
        self.assertEqual(line(text, "half round trip", "near")[6:], ["", "", "≤ 0.9 ×", ""])
        self.assertEqual(line(text, "half round trip", "far")[4:],
                         ["", "", "0.2 (1)", "", "≤ 0.9 ×", ""])

    def test_hcomm_is_not_its_own_peer(self):
        samples = {"p2p|hcomm/user|putpp|2|8|us": [[1, 30]], **PUT}
        samples["p2p|hcomm/user|putpp|2|8|us"] = [[0.01, 30]] * 5
        self.assertIn("0.1 (5) a", line(tables.goals(data(samples)), "half round trip", "near"))


class Sections(unittest.TestCase):
    def test_ratios_to_the_best_peer_stand_below(self):
        text = tables.sections(data(PUT))
        self.assertEqual(line(text, "**hcomm/ours**", "near")[2], "0.50 × a")
        self.assertEqual(line(text, "| hcomm/ours | far")[2], "0.19 [0.19-0.19] (2)")

    def test_many_ranks_have_one_state(self):
        samples = {"coll4|a|bcast|4|1024|us": [[1, 30], [3, 170]]}
        self.assertEqual(line(tables.sections(data(samples)), "| a |"),
                         ["a", "all", "2 [1-3] (2)"])


class Run(unittest.TestCase):
    def test_failures_are_told(self):
        run = data(PUT)
        run["errors"] = {"p2p hcomm/ours lat 8": "exit status 2", "p2p impi lat": "missing"}
        run["meta"]["jobs"] = {"p2p hcomm/ours lat 8": 0, "p2p impi lat": 0,
                               "p2p hcomm/ours putpp 8": 5, "coll2 hcomm/user bcast 8": 0}
        self.assertEqual(tables.unmeasured(run),
                         ["p2p hcomm/ours lat 8", "coll2 hcomm/user bcast 8"])
        self.assertIn("* p2p impi (lat): missing", tables.footnotes(run))
        self.assertIn("no time was left for some of: coll2 hcomm/user", tables.footnotes(run))

    def test_only_the_text_between_the_marks_changes(self):
        with tempfile.TemporaryDirectory() as folder:
            page = os.path.join(folder, "page.md")
            for _ in range(2):
                if not os.path.exists(page):
                    with open(page, "w") as file:
                        file.write("a\n%s\nold\n%s\nb\n" % tables.MARKS)
                tables.paste(page, data(PUT), tables.MARKS, "new\n")
                with open(page) as file:
                    self.assertEqual(file.read(), "a\n%s\nnew\n%s\nb\n" % tables.MARKS)
            with open(page, "w") as file:
                file.write("no marks\n")
            self.assertRaises(SystemExit, tables.paste, page, data(PUT),
                              tables.COLLECTIVE_MARKS, "new\n")


if __name__ == "__main__":
    unittest.main()
