#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""/metrics of a running `koho serve` and the files of deploy/compose that read it: every metric and label that the dashboard
and the alerts name is there, and Prometheus' own programs (Debian's package prometheus, where installed) read all of them.

    tests/server/prometheus_test.py --koho build/koho [unittest's arguments]
"""

import concurrent.futures
import contextlib
import importlib.util
import json
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.parse
import urllib.request

import serve_process

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
COMPOSE = ROOT / "deploy" / "compose"
PROMTOOL, PROMETHEUS = shutil.which("promtool"), shutil.which("prometheus")
MISSING = "Prometheus is not installed: apt-get install prometheus"
METRIC = re.compile(r"\b(?:vllm:|koho_)[a-z0-9_]+")
# vLLM's own names break this rule; koho's do not.
COLON = "metric names should not contain ':'"


def fetch(url, body=None):
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, {"Content-Type": "application/json"}), timeout=120) as answer:
        return answer.read().decode()


def dashboard_queries():
    """Expressions of the panels, with $model and $__rate_interval as Grafana fills them in."""
    panels = json.loads((COMPOSE / "grafana.json").read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel.get("targets", [])]
    return [query.replace("$model", ".*").replace("$__rate_interval", "4s") for query in queries]


def rule_queries():
    """Expressions of the alerts (a block `expr: >` goes on in more deeply indented lines)."""
    text = (COMPOSE / "rules.yaml").read_text()
    return [" ".join(part.split()) for part in re.findall(r"expr: >?(.+?)\n        (?:for|annotations):", text, re.DOTALL)]


def unknown(query, page):
    """Metrics of a query that the page lacks, and labels that it gives none of them."""
    labels = {}
    for name, text in re.findall(r"^([a-z0-9:_]+)\{(.*)\} ", page, re.MULTILINE):
        labels.setdefault(name, set()).update(re.findall(r'(\w+)="', text))
    names = METRIC.findall(query)
    wanted = set(re.findall(r'(\w+)=~?"', query)) | {label for group in re.findall(r"by \(([^)]*)\)", query) for label in group.split(", ")}
    given = set().union({"instance", "job"}, *(labels.get(name, set()) for name in names))
    return [name for name in names if name not in labels] + sorted(wanted - given)


class Metrics(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        context = contextlib.ExitStack()
        cls.addClassCleanup(context.close)
        cls.url = context.enter_context(serve_process.server(KOHO, str(ROOT / "models/tiny")))
        cls.ask(2)
        cls.page = fetch(cls.url + "/metrics")

    @classmethod
    def ask(cls, tokens):
        fetch(cls.url + "/v1/completions", {"prompt": f"Once {tokens}", "max_tokens": tokens, "ignore_eos": True})

    def test_the_deployed_files_name_metrics_that_are_served(self):
        """Every one in the whole of the dashboard and the chart: the variables' queries, too."""
        served = set(re.findall(r"^([a-zA-Z_:][\w:]*)", self.page, re.MULTILINE))
        asked = set(METRIC.findall((COMPOSE / "grafana.json").read_text()))
        self.assertGreater(len(asked), 5)
        self.assertLessEqual(asked, served)
        chart = "\n".join(path.read_text() for path in (ROOT / "deploy/kubernetes/koho/templates").iterdir())
        self.assertLessEqual(set(re.findall(r"\b(vllm:\w+)", chart)), served)

    def test_dashboard_and_alerts_name_what_the_server_has(self):
        queries = dashboard_queries() + rule_queries()
        self.assertGreater(len(queries), 25)
        self.assertEqual({query: unknown(query, self.page) for query in queries if unknown(query, self.page)}, {})
        self.assertEqual(unknown('sum by (le, nothing) (rate(koho_none{model_name="a"}[1m]))', self.page),
                         ["koho_none", "le", "model_name", "nothing"])

    @unittest.skipUnless(importlib.util.find_spec("grafana_foundation_sdk"), "pip install grafana-foundation-sdk")
    def test_grafana_has_every_field_of_the_dashboard(self):
        from grafana_foundation_sdk.cog.encoder import JSONEncoder
        from grafana_foundation_sdk.models.dashboard import Dashboard

        def lost(before, after):
            if isinstance(before, dict):
                return [key for key, value in before.items() if key not in after or lost(value, after[key])]
            if isinstance(before, list):
                return [one for one, other in zip(before, after, strict=True) if lost(one, other)]
            return before != after
        dashboard = json.loads((COMPOSE / "grafana.json").read_text())
        self.assertFalse(lost(dashboard, json.loads(JSONEncoder().encode(Dashboard.from_json(dashboard)))))
        self.assertTrue(lost({"panels": [{"titel": 1}]}, {"panels": [{}]}))

    @unittest.skipUnless(PROMTOOL, MISSING)
    def test_promtool_has_nothing_against_the_metrics(self):
        result = subprocess.run([PROMTOOL, "check", "metrics"], input=self.page, capture_output=True, text=True, check=False)
        complaints = [line for line in (result.stdout + result.stderr).splitlines() if not (line.startswith("vllm:") and line.endswith(COLON))]
        self.assertEqual(complaints, [])

    @unittest.skipUnless(PROMTOOL, MISSING)
    def test_promtool_accepts_the_configuration_and_the_alerts_fire(self):
        with tempfile.TemporaryDirectory() as folder:
            for file in (COMPOSE / "prometheus.yaml", COMPOSE / "rules.yaml", ROOT / "tests/server/prometheus_rules.yaml"):
                shutil.copy(file, folder)
            for command in (["check", "config", "prometheus.yaml"], ["test", "rules", "prometheus_rules.yaml"]):
                result = subprocess.run([PROMTOOL, *command], cwd=folder, capture_output=True, text=True, check=False)
                self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    @unittest.skipUnless(PROMETHEUS, MISSING)
    def test_a_real_prometheus_answers_every_query(self):
        """With deploy/compose's own configuration, but for the address and the interval."""
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(COMPOSE / "rules.yaml", folder)
            config = (COMPOSE / "prometheus.yaml").read_text()
            self.assertIn("koho:8000", config)
            config = config.replace("koho:8000", self.url.removeprefix("http://")).replace("scrape_interval: 5s", "scrape_interval: 1s")
            (pathlib.Path(folder) / "prometheus.yaml").write_text(config)
            address = f"127.0.0.1:{serve_process.free_port()}"
            command = [PROMETHEUS, "--config.file=prometheus.yaml", f"--web.listen-address={address}", "--storage.tsdb.path=data"]
            with serve_process.running(f"http://{address}", "/-/ready", command, cwd=folder) as url:
                self.answer_queries(url + "/api/v1/")

    def answer_queries(self, api):
        def ask(query):
            return json.loads(fetch(api + "query?" + urllib.parse.urlencode({"query": query})))["data"]["result"]

        def silent():
            answers = {query: ask(query) for query in dashboard_queries()}
            return [query for query, rows in answers.items() if not rows or all(math.isnan(float(row["value"][1])) for row in rows)]
        end = time.monotonic() + 120
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            while (left := silent()) and time.monotonic() < end:
                list(pool.map(self.ask, [20] * 6))
        self.assertEqual(left, [])
        tokens = float(ask("vllm:generation_tokens_total")[0]["value"][1])
        self.assertGreaterEqual(tokens, 2)
        rules = json.loads(fetch(api + "rules"))["data"]["groups"][0]["rules"]
        self.assertEqual(len(rules), len(rule_queries()))
        self.assertEqual([rule["name"] for rule in rules if rule["health"] == "err"], [])
        targets = json.loads(fetch(api + "targets"))["data"]["activeTargets"]
        self.assertEqual([(target["health"], target["lastError"]) for target in targets], [("up", "")])


if __name__ == "__main__":
    KOHO = os.path.abspath(sys.argv[sys.argv.index("--koho") + 1])
    del sys.argv[sys.argv.index("--koho"):sys.argv.index("--koho") + 2]
    unittest.main()
