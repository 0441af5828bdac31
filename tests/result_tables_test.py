#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every table of figures in docs/ and README.md is what tools/result_tables.py writes, and the tool says so where one is not."""

import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import check_sources  # noqa: E402
import plot_steps  # noqa: E402
import rank_tables  # noqa: E402
import result_file  # noqa: E402
import result_tables  # noqa: E402
import table_definitions  # noqa: E402



def old_name(kind, name):
    return next(old for old, new in result_file.RENAMED[kind].items() if new == name)


OLD = {"machine": "NVIDIA H200", "commit": "0123abc", "date": "2026-11-24", "command": f"{old_name('programs', 'koho bench ops')} --only rows",
       "rows": [{"op": old_name("operators", "commit_sampled"), "case": old_name("cases", "commit_sampled"),
                 "shape": {old_name("sizes", "batch_slots"): 256, "tokens": 1}, "us": 0.91, "bytes": 125, "flops": 0,
                 "pct_of_bandwidth": 0.0, "pct_of_floor": 0.0}]}
TABLES = {"slots": table_definitions.Table((("h200", "operators"),), ("operator", "1 token"),
                                           table_definitions.by_tokens("commit_sampled", {"commit_sampled": "`commit_sampled`"}, (1,),
                                                                       table_definitions.microseconds), "µs")}
PAGE = "# Slots\n\n<!-- table: slots -->\n<!-- /table -->\n\nThe end.\n"


class Tables(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.results = pathlib.Path(self.folder.name)
        self.record("2026-11-24-h200-operators-0123abc.json", OLD)

    def record(self, name, data):
        (self.results / name).write_text(json.dumps(data))

    def written(self, text=PAGE):
        return result_tables.rewrite(text, TABLES, result_file.newest(self.results), {})

    def faults(self, text, page="README.md"):
        return result_tables.check_page(page, text, TABLES, result_file.newest(self.results), {}, set())

    def test_a_table_has_its_machine_commit_date_and_command(self):
        text, faults = self.written()
        self.assertEqual(faults, [])
        self.assertIn("| `commit_sampled` | 0.9 |", text)
        self.assertIn("µs. Measured on NVIDIA H200, 0123abc, 2026-11-24: `koho bench ops --only rows`.", text)
        self.assertTrue(text.endswith("The end.\n"))

    def test_a_written_page_is_fresh_and_stays_as_it_is(self):
        text, _ = self.written()
        self.assertEqual(self.written(text)[0], text)
        self.assertEqual(self.faults(text), [])

    def test_an_edited_cell_is_stale(self):
        text, _ = self.written()
        self.assertEqual(self.faults(text.replace("0.9", "0.8")), ["a table is stale: run tools/result_tables.py"])

    def test_a_newer_result_makes_a_page_stale(self):
        text, _ = self.written()
        rows = [{**OLD["rows"][0], "us": 0.7}]
        self.record("2026-11-25-h200-operators-0456def.json", {**OLD, "date": "2026-11-25", "commit": "0456def", "rows": rows})
        self.assertEqual(len(self.faults(text)), 1)
        self.assertIn("| `commit_sampled` | 0.7 |", self.written(text)[0])

    def test_unknown_names_and_lone_markers_are_refused(self):
        self.assertIn("no table is called other", self.faults(PAGE.replace("slots", "other"))[0])
        self.assertIn("lacks its other one", self.faults("<!-- table: slots -->\n| a |\n")[0])

    def test_figures_typed_into_a_table_are_refused(self):
        for row in ("| decode | 4.3 ms |", "| read | 4.45 TB/s |", "| a step | 12 µs, p99 20 |", "| hits | 87 % |", "| weights | 352 GB |",
                    "| KV cache | 512 MB |", "| loading | 13 s |"):
            self.assertEqual(len(self.faults(f"| what | figure |\n|---|---|\n{row}\n")), 1, row)
        self.assertEqual(len(self.faults("| tokens | µs |\n|---|---|\n| 1 | 2.5 |\n")), 1)
        self.assertEqual(self.faults("| flag | default |\n|---|---|\n| `--port` | 8000 |\n"), [])
        self.assertEqual(self.faults("A step takes 4.3 ms (0123abc).\n"), [])

    def test_a_result_that_nothing_reads_is_named(self):
        self.record("2026-11-23-h200-operators-0000aaa.json", {**OLD, "date": "2026-11-23"})
        self.record("2026-11-24-h200-forms-0000bbb.json", OLD)
        self.assertEqual(result_tables.unread(TABLES, self.results),
                         ["2026-11-23-h200-operators-0000aaa.json", "2026-11-24-h200-forms-0000bbb.json"])

    def test_a_page_names_recorded_files_only(self):
        self.assertIn("which is not there", self.faults("See `bench/results/2026-11-20-h200-gone.json`.\n")[0])


class Kept(unittest.TestCase):
    def test_every_table_of_the_tree_is_fresh(self):
        ran = subprocess.run([sys.executable, ROOT / "tools" / "result_tables.py", "--check"], capture_output=True, text=True, check=False)
        self.assertEqual(ran.returncode, 0, ran.stdout)

    def test_every_definition_can_be_written(self):
        results, peers = result_file.newest(), {name: record for (_, name), record in result_file.newest(result_file.PEERS).items()}
        for name, table in table_definitions.TABLES.items():
            with self.subTest(name):
                records = result_tables.records_of(table, results, peers)
                if table.optional and not records:
                    continue  # what no GPU has written yet
                rows = table.rows(*records)
                self.assertTrue(rows)
                self.assertEqual({len(row) for row in rows}, {len(table.columns)})

    def test_a_peer_without_its_conditions_is_refused(self):
        path = next(iter(result_file.PEERS.glob("*.json")))
        record = json.loads(path.read_text())
        self.assertEqual(check_sources.check_peer(path.name, json.dumps(record)), [])
        self.assertEqual(check_sources.check_peer(path.name, json.dumps({**record, "conditions": ""})), ["conditions must be a string"])
        self.assertEqual(len(check_sources.check_peer(path.name, json.dumps({**record, "rows": [{"what": "a step", "unit": "ms"}]}))), 1)

    def test_the_plot_is_fresh_and_follows_its_figures(self):
        ran = subprocess.run([sys.executable, ROOT / "tools" / "plot_steps.py", "--check"], capture_output=True, text=True, check=False)
        self.assertEqual(ran.returncode, 0, ran.stdout)
        latency = result_file.newest()["h200", "air-latency"]
        peer = next(iter(result_file.newest(result_file.PEERS).values()))
        before = plot_steps.draw(latency, peer)
        table_definitions.steps_of(latency)[1]["us"] += 1000.0
        self.assertNotEqual(plot_steps.draw(latency, peer), before)


class Ranks(unittest.TestCase):
    """Tables whose files only GPUs can write: the rows that gpu_check_ranks.py's steps record become cells."""

    def rows(self, name, file, rows):
        record = result_file.Record(pathlib.Path(file), "h100", file, {"machine": "NVIDIA H100", "rows": rows})
        return table_definitions.TABLES[name].rows(record)

    def test_faults_executors_servers_loads_and_widths(self):
        times = {"kill": {"noticed_s": 0.02, "ready_s": 2.5}}
        self.assertEqual(self.rows("faults", "2on1-faults", [{"times": times, "faults": 0}]),
                         [["2 on one GPU", "H100", "0.02 + 2.50", "", "", "", "", "0"]])
        both = [{"shape": {"batch": 64}, "form": form, "us": us} for form, us in (("thread", 20_000), ("process", 20_100))]
        self.assertEqual(self.rows("executors", "executors", both), [["NVIDIA H100", "64", "20.0", "20.1", "+0.50 %"]])
        self.assertEqual(self.rows("servers", "2gpus-server-64-greedy", [{"concurrency": 64, "tok_per_s": 3210.4, "first_token_ms": 99.6}]),
                         [["2", "NVIDIA H100", "64", "greedy", "3,210", "100"]])
        steps = result_file.Record(pathlib.Path("x"), "h200", "2gpus-steps-sliced", {
            "machine": "NVIDIA H200", "ranks": 2, "layers": 51, "experts": "sliced",
            "rows": [{"op": "step_decode", "shape": {"batch": 16, "tokens": 16, "context": 1060}, "us": 15_140},
                     {"op": "step_prefill", "shape": {"batch": 1, "tokens": 1024, "context": 1024}, "us": 45_200}]})
        self.assertEqual(table_definitions.TABLES["gpu-steps"].rows(steps), [["2 x H200", "51", "16", "", "15.1"],
                                                                              ["2 x H200", "51", "prompt of 1,024", "", "45.2"]])
        loads = [{"op": "load", "rank": rank, "bytes": 45_400_000_000, "us": us} for rank, us in ((0, 1_700_000), (1, 1_900_000))]
        self.assertEqual(self.rows("rank-loading", "2gpus-loading", [*loads, {"op": "ready", "us": 2_000_000}]),
                         [["2", "NVIDIA H100", "90.8", "1.90", "2.0"]])
        self.assertEqual(self.rows("rank-loading", "rank8-loading", [{"op": "load", "bytes": 45_400_000_000, "us": 1_700_000},
                                                                    {"op": "ready", "us": 1_800_000}]),
                         [["one of 8", "NVIDIA H100", "45.4", "1.70", "1.8"]])
        widths = {"experts": "whole", "chunk": 512, "deterministic": False, "distance": 0.1, "bound": 0.2, "same_best_token": 0.5}
        self.assertEqual(self.rows("rank-widths", "true-widths-8on1", [widths]),
                         [["8 on one GPU", "NVIDIA H100", "whole", "512", "no", "0.100", "0.200", "50.0 %"]])
        soak = {"op": "soak", "device": "NVIDIA H100", "requests": 100_020, "seconds": 612.3, "left": 1_500, "limited": 40, "resident_mb": [1500.1, 1501.0],
                "gpu_mb": [6291.46, 6291.46], "threads": 30, "unaccounted": 0}
        self.assertEqual(self.rows("soak", "soak", [soak]),
                         [["`koho serve`, NVIDIA H100", "100,020", "612", "1,500", "40", "1500.1 · 1501.0", "6291.46 · 6291.46", "30", "0"]])
        self.assertIn(("h100", "soak"), table_definitions.TABLES["soak"].optional)


class ExpertsChoice(unittest.TestCase):
    def test_the_cut_of_the_experts_is_the_faster_one_of_the_recorded_steps(self):
        """Of each number of ranks with both cuts recorded at the newest date: sliced up to what choose_experts.cpp says, whole beyond. Within 1 % either
        is right: cards differ by more."""
        source = (ROOT / "src" / "model" / "choose_experts.cpp").read_text()
        limits = {int(ranks): int(count) for ranks, count in re.findall(r"SlicedUpTo\{\.ranks = (\d+), \.sequences = (\d+)\}", source)}
        self.assertEqual(set(limits), {4, 8})
        recorded = result_file.newest()
        files = [recorded[key] for key in rank_tables.RANK_FILES if key in recorded]
        newest = max(file.data["date"] for file in files)
        steps = rank_tables.rank_steps([file for file in files if file.data["date"] == newest])
        compared = 0
        for (ranks, gpu), cuts in steps.items():
            for kind, count in cuts["whole"]:
                if kind == "decode" and (kind, count) in cuts["sliced"]:
                    whole, sliced = (rank_tables.alone_us(cuts[cut][kind, count]) for cut in ("whole", "sliced"))
                    if abs(sliced - whole) > 0.01 * whole:
                        self.assertEqual(sliced < whole, count <= limits[ranks], f"{ranks} ranks, {gpu}, {count} sequences")
                    compared += 1
        self.assertGreaterEqual(compared, 8)


if __name__ == "__main__":
    unittest.main()
