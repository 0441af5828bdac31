#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The files of deploy/: the Helm chart rendered and held to Kubernetes' schemas, compose, systemd, and modal_app.py imported by
the real modal package. KOHO_BINARY names the program. What lacks its tool is skipped, with a message; tests/deploy/packages.py
installs all but systemd. The metrics that they name: tests/server/prometheus_test.py."""

import itertools
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
import warnings

import packages

DEPLOY = packages.ROOT / "deploy"
CHART = DEPLOY / "kubernetes" / "koho"
MODEL = packages.ROOT / "models" / "tiny"
KOHO = os.environ.get("KOHO_BINARY", "")
HELM = shutil.which("helm") or shutil.which("helm", path=str(packages.FOLDER / "bin"))
PYTHONPATH = packages.use()


def module(name):
    """A package of tests/deploy/requirements.txt; without it the test is skipped."""
    try:
        return __import__(name)
    except ImportError as error:
        raise unittest.SkipTest(f"{name} is missing: tests/deploy/packages.py installs it") from error


def run(*command, **options):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, **options)


def serve_check(arguments, environment=None):
    """`koho serve --check` with the embedded model: whether these are flags of the server."""
    return run(KOHO, "serve", *arguments, "--check", env={"PATH": os.environ["PATH"], **(environment or {})})


@unittest.skipUnless(HELM, "helm is missing: tests/deploy/packages.py installs it")
class Chart(unittest.TestCase):
    # Values of a chart that a user would set.
    CASES = {
        "default": {},
        "cpu": {"gpus": 0, "model.volume.hostPath": "/models", "networkPolicy.enabled": "false"},
        "hpa": {"autoscaling.kind": "hpa", "apiKeysSecret": "keys", "gpus": 4},
        "keda": {"autoscaling.kind": "keda", "podMonitor.enabled": "true", "image.pullSecrets[0].name": "registry"},
        "one": {"gpus": 1, "replicas": 3, "model.volume.existingClaim": "weights", "flags": '{--max-num-seqs,256}',
                "podDisruptionBudget.enabled": "false"},
    }
    # Kinds of other projects, whose schemas Kubernetes does not have.
    FOREIGN = {"ScaledObject", "PodMonitor"}

    def render(self, values):
        flags = list(itertools.chain.from_iterable(("--set", f"{name}={value}") for name, value in values.items()))
        ran = run(HELM, "template", "prod", CHART, "--namespace", "serving", *flags)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        return [one for one in module("yaml").safe_load_all(ran.stdout) if one]

    def test_lint(self):
        ran = run(HELM, "lint", "--strict", CHART)
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)

    def test_every_rendering_is_valid_from_the_oldest_version_on(self):
        validate = module("kubernetes_validate")
        for name, values in self.CASES.items():
            found = self.render(values)
            self.assertGreaterEqual(len(found), 3, name)
            for one in found:
                if one["kind"] in self.FOREIGN:
                    continue
                for version in ("1.27.0", validate.latest_version()):
                    with self.subTest(case=name, kind=one["kind"], version=version):
                        validate.validate(one, version, strict=True)
        broken = next(one for one in self.render({}) if one["kind"] == "Deployment")
        broken["spec"]["template"]["spec"]["containers"][0]["livenessProbes"] = {}
        with self.assertRaises(validate.ValidationError):
            validate.validate(broken, "1.27.0", strict=True)

    def test_a_case_has_what_it_asks_for(self):
        kinds = {name: {one["kind"] for one in self.render(values)} for name, values in self.CASES.items()}
        self.assertIn("HorizontalPodAutoscaler", kinds["hpa"])
        self.assertLessEqual({"ScaledObject", "PodMonitor"}, kinds["keda"])
        self.assertNotIn("NetworkPolicy", kinds["cpu"])
        self.assertNotIn("PodDisruptionBudget", kinds["one"])
        self.assertIn("PersistentVolumeClaim", kinds["default"])
        for name in ("cpu", "one"):
            self.assertNotIn("PersistentVolumeClaim", kinds[name])
        ran = run(HELM, "template", CHART, "--set", "autoscaling.kind=magic")
        self.assertIn("autoscaling.kind must be none, keda or hpa", ran.stderr)

    def test_pods_are_restricted_and_their_flags_are_the_servers(self):
        for name, values in self.CASES.items():
            pod = next(one for one in self.render(values) if one["kind"] == "Deployment")["spec"]["template"]["spec"]
            container = pod["containers"][0]
            self.assertEqual(container["securityContext"], {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
                                                            "capabilities": {"drop": ["ALL"]}})
            self.assertTrue(pod["securityContext"]["runAsNonRoot"])
            self.assertGreater(pod["terminationGracePeriodSeconds"],
                               int(container["args"][container["args"].index("--shutdown-timeout") + 1]) + 5)
            gpus = values.get("gpus", 8)
            self.assertEqual(int(container["resources"]["limits"].get("nvidia.com/gpu", 0)), gpus, name)
            with tempfile.NamedTemporaryFile("w") as keys:
                keys.write("secret\n")
                keys.flush()
                # This machine has no GPU: the CPU instead of them, on as many ranks as the embedded model can have.
                given = {container["args"][0]: str(MODEL), "cuda": "cpu", "8": "2", "4": "2", "/etc/koho/keys": keys.name}
                ran = serve_check([given.get(one, one) for one in container["args"]])
            self.assertEqual(ran.returncode, 0, f"{name}: {ran.stderr}")


class OtherFiles(unittest.TestCase):
    def test_compose_names_files_that_exist(self):
        yaml = module("yaml")
        folder = DEPLOY / "compose"
        services = yaml.safe_load((folder / "compose.yaml").read_text())["services"]
        self.assertEqual(set(services), {"koho", "prometheus", "grafana"})
        koho = services["koho"]
        context = (folder / koho["build"]["context"]).resolve()
        self.assertEqual(context, packages.ROOT)
        self.assertTrue((context / koho["build"]["dockerfile"]).is_file())
        self.assertTrue(koho["read_only"])
        for name in ("prometheus", "grafana"):
            for volume in services[name]["volumes"]:
                self.assertTrue((folder / volume.split(":")[0]).is_file(), volume)
        targets = yaml.safe_load((folder / "prometheus.yaml").read_text())["scrape_configs"][0]["static_configs"][0]["targets"]
        self.assertEqual(targets, ["koho:8000"])
        for path in folder.glob("*.yaml"):
            self.assertTrue(yaml.safe_load(path.read_text()), path)

    @unittest.skipUnless(shutil.which("systemd-analyze"), "systemd-analyze is missing (Debian's package systemd)")
    def test_systemd_takes_the_unit(self):
        with tempfile.TemporaryDirectory() as folder:
            unit = pathlib.Path(folder) / "koho.service"
            text = (DEPLOY / "systemd" / "koho.service").read_text()
            self.assertEqual(text.count("/usr/local/bin/koho"), 1)
            unit.write_text(text.replace("/usr/local/bin/koho", KOHO))
            ran = run("systemd-analyze", "verify", "--man=no", unit)
            self.assertEqual((ran.returncode, ran.stdout + ran.stderr), (0, ""))
            unit.write_text(text.replace("RestartSec=2", "RestartSec=never"))
            self.assertIn("Failed to parse sec value", run("systemd-analyze", "verify", "--man=no", unit).stderr)

    def test_the_units_environment_is_the_servers(self):
        lines = (DEPLOY / "systemd" / "koho.env").read_text().splitlines()
        environment = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
        self.assertIn("KOHO_MODEL", environment)
        environment |= {"KOHO_MODEL": str(MODEL), "KOHO_DEVICE": "cpu"}
        ran = serve_check([environment["KOHO_MODEL"]], environment)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertNotEqual(serve_check([environment["KOHO_MODEL"]], environment | {"KOHO_PORT": "many"}).returncode, 0)


class Modal(unittest.TestCase):
    """modal_app.py by Modal's own package; its pipeline on the embedded model."""

    def load(self, machine):
        """The module for a row of MACHINES, and what its decorators told Modal, by function or class."""
        modal = module("modal")
        from modal._functions import _Function
        told = {}
        usual = _Function._from_local

        def watched(info, *arguments, **options):
            told[info.function_name] = options
            return usual(info, *arguments, **options)

        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        root = pathlib.Path(folder.name)
        shutil.copytree(DEPLOY, root / "deploy")
        (root / "build" / "dist").mkdir(parents=True)
        with unittest.mock.patch.object(_Function, "_from_local", staticmethod(watched)), unittest.mock.patch.dict(
                os.environ, {"KOHO_MODAL": machine}), unittest.mock.patch.object(sys, "path", [str(root / "deploy"), *sys.path]), \
                warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sys.modules.pop("modal_app", None)
            with self.assertRaisesRegex(SystemExit, "run.py --wheel"):
                import modal_app
            (root / "build" / "dist" / "koho-0.1.0-py3-none-any.whl").touch()
            sys.modules.pop("modal_app", None)
            import modal_app
            self.assertIsInstance(modal_app.app, modal.App)
        return modal_app, told

    def test_functions_gpus_volumes_timeouts_and_concurrency(self):
        for machine, ranks, context in (("B200:8", 8, 202752), ("H200:4", 4, 202752), ("H200", 1, 65536)):
            app, told = self.load(machine)
            self.assertEqual(set(told), {"download", "measure", "Koho.*"})
            for name, options in told.items():
                self.assertEqual(list(options["volumes"]), ["/models"], name)
                self.assertEqual(options["gpu"], None if name == "download" else machine, name)
            self.assertEqual({name: options["timeout"] for name, options in told.items()},
                             {"download": 4 * 3600, "measure": 3600, "Koho.*": 3600})
            server = told["Koho.*"]
            self.assertEqual((server["max_concurrent_inputs"], server["target_concurrent_inputs"]), (256, 128))
            self.assertEqual((server["startup_timeout"], server["scaledown_window"]), (1200, 900))
            self.assertEqual(app.MACHINE["tokens_per_s_min"], 3000.0 if machine == "B200:8" else 0.0)
            with unittest.mock.patch.dict(os.environ, {"KOHO_BINARY": KOHO}), unittest.mock.patch.object(
                    sys, "path", [str(DEPLOY), *sys.path]):
                command = app.serve_command(MODEL)
            self.assertEqual(int(command[command.index("--max-model-len") + 1]), context)
            self.assertEqual("--ranks" in command, ranks > 1)
            self.assertLess(int(command[command.index("--shutdown-timeout") + 1]), app.EXIT_GRACE_S)
            # The embedded model on this machine: no GPU, fewer ranks, a shorter context.
            ran = serve_check([{"cuda": "cpu", "8": "2", "4": "2", str(context): "4096"}.get(one, one) for one in command[2:]])
            self.assertEqual(ran.returncode, 0, ran.stderr)

    def test_the_server_of_a_container_starts_answers_and_drains(self):
        app, _ = self.load("H200")
        with unittest.mock.patch.object(app, "PORT", 18437):
            server = app.Server([KOHO, "serve", str(MODEL), "--device", "cpu", "--port", "18437", "--served-model-name", "llm"])
            server.start(60)
            answer = server.call("/v1/chat/completions", {"model": "llm", "temperature": 0, "messages": [
                {"role": "user", "content": "What is the capital of France?"}]})
            self.assertEqual(answer["choices"][0]["message"]["content"], "The capital of France is Paris.")
            self.assertIn("version", json.dumps(server.call("/server_info")))
            server.stop()
            self.assertEqual(server.process.returncode, 0)
            with self.assertRaisesRegex(RuntimeError, "exit code 3"):
                app.Server([KOHO, "serve", "/nowhere"]).start(60)

    def test_the_pipeline_runs_goes_on_and_fails_below_its_floor(self):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, DEPLOY / "pipeline.py", MODEL, "--record", f"{folder}/record.json", "--device", "cpu", "--requests", "4",
                       "--concurrency", "2", "--tokens", "8"]
            environment = os.environ | {"PYTHONPATH": PYTHONPATH}
            ran = run(*command, env=environment)
            self.assertEqual(ran.returncode, 0, ran.stderr)
            steps = json.loads(pathlib.Path(folder, "record.json").read_text())["steps"]
            self.assertEqual(list(steps), ["download", "check", "smoke", "bench"])
            self.assertTrue(all(step["ok"] and step["seconds"] >= 0 for step in steps.values()))
            self.assertEqual(len(steps["smoke"]["result"]["answers"]), 5)
            again = run(*command, env=environment)
            self.assertEqual(again.stdout.count("done before"), 4, again.stdout)
            os.unlink(f"{folder}/record.json")
            slow = run(*command, "--steps", "bench", "--tokens-per-s-min", "1e9", env=environment)
            self.assertEqual(slow.returncode, 1)
            self.assertIn("1000000000 are expected", slow.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
