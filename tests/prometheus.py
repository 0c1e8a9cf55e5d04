"""How does a test have a real Prometheus read its servers? Debian: package `prometheus`."""

import json
import os
import re
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

from tests.fakes import until

#: Seconds between two scrapes, and for one: a busy machine is slow, and what it missed is lost.
INTERVAL = 1


def needs_prometheus(program: str = "prometheus") -> str:
    """Where the program is; skips the test without it."""
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"needs {program} (Debian: prometheus)")
    return found


class Reading(NamedTuple):
    """What Prometheus answers for one series now."""

    labels: dict[str, str]
    value: float


class Prometheus:
    """A Prometheus on a free port that reads `targets`, URLs by the name of their job. Each series
    has the label `namespace` besides, as Kubernetes gives it. `rules` is a rule file's text."""

    def __init__(self, targets: Mapping[str, str], *, rules: str) -> None:
        self._targets = targets
        self._rules = rules
        #: The moment that queries are about, as Unix time; None: now.
        self.at: float | None = None

    def __enter__(self) -> "Prometheus":
        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name)
        every = f"{INTERVAL}s"
        config = {
            "global": {
                "scrape_interval": every,
                "scrape_timeout": every,
                "evaluation_interval": every,
            },
            "rule_files": ["rules.yml"],
            "scrape_configs": [
                {
                    "job_name": job,
                    "static_configs": [
                        {"targets": [urlsplit(url).netloc], "labels": {"namespace": "models"}}
                    ],
                }
                for job, url in self._targets.items()
            ],
        }
        (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
        (folder / "rules.yml").write_text(self._rules)
        self._log = folder / "log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    needs_prometheus(), f"--config.file={folder}/prometheus.yml",
                    f"--storage.tsdb.path={folder}/data", "--web.listen-address=127.0.0.1:0",
                ],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder,
                env={"PATH": os.environ["PATH"]},
            )  # fmt: skip
        try:
            until(lambda: self._port() is not None or self._process.poll() is not None)
            assert self._process.poll() is None, self._log.read_text()
            self._url = f"http://127.0.0.1:{self._port()}"
            until(self._is_ready)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._folder.cleanup()

    def query(self, expr: str) -> list[Reading]:
        """What an expression is at the moment `at`. AssertionError with Prometheus' words if it is
        wrong."""
        moment = {} if self.at is None else {"time": f"{self.at:.3f}"}
        told = self._ask("query", query=expr, **moment)
        assert told["resultType"] == "vector", told
        return [Reading(one["metric"], float(one["value"][1])) for one in told["result"]]

    def series(self, selector: str) -> list[dict[str, str]]:
        """The labels of each series that matches."""
        found: list[dict[str, str]] = self._ask("series", **{"match[]": selector})
        return found

    def rules(self) -> list[dict[str, Any]]:
        """Each rule with its state."""
        groups = self._ask("rules")["groups"]
        return [rule for group in groups for rule in group["rules"]]

    def _ask(self, what: str, **asked: str) -> Any:
        url = f"{self._url}/api/v1/{what}?{urllib.parse.urlencode(asked)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                told = json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(f"{asked}: {error.read().decode()}") from None
        assert not told.get("warnings"), told
        return told["data"]

    def _port(self) -> str | None:
        listens = re.search(r'msg="Listening on" address=127\.0\.0\.1:(\d+)', self._log.read_text())
        return listens and listens[1]

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._url}/-/ready", timeout=5):
                return True
        except OSError:
            return False
