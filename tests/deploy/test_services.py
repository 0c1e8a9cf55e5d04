"""deploy/systemd and deploy/compose: would systemd, compose, Prometheus and Grafana take them?"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from wherry.server.options import OPTIONS

yaml = pytest.importorskip("yaml")

DEPLOY = Path(__file__).parents[2] / "deploy"
UNIT = DEPLOY / "systemd" / "wherry.service"
COMPOSE = DEPLOY / "compose"


def read(name: str) -> Any:
    return yaml.safe_load((COMPOSE / name).read_text())


def test_systemd_knows_every_word_of_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze")
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/wherry/bin/wherry", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    told = [line for line in done.stderr.splitlines() if UNIT.name in line]
    assert (done.returncode, told) == (0, [])


def test_the_unit_gives_a_server_time_to_drain() -> None:
    seconds = re.search(r"^TimeoutStopSec=(\d+)$", UNIT.read_text(), re.M)
    assert seconds is not None
    assert int(seconds[1]) > OPTIONS["drain_timeout"].default


def test_each_service_finds_what_it_mounts_and_waits_for() -> None:
    made = read("compose.yaml")
    services = made["services"]
    for service in services.values():
        assert ":" in service["image"], "an image has a version"
        for mount in service["volumes"]:
            source = mount.split(":")[0]
            assert (
                (COMPOSE / source).exists()
                if source.startswith("./")
                else source in made["volumes"]
            )
        assert set(service.get("depends_on", {})) <= services.keys()
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
    settings = services["wherry"]["environment"]
    assert {name.removeprefix("WHERRY_").lower() for name in settings} <= OPTIONS.keys()
    grace = int(services["wherry"]["stop_grace_period"].removesuffix("s"))
    assert grace > OPTIONS["drain_timeout"].default


def test_prometheus_scrapes_the_port_that_the_server_has() -> None:
    port = read("compose.yaml")["services"]["wherry"]["environment"]["WHERRY_METRICS_PORT"]
    (job,) = read("prometheus.yml")["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"wherry:{port}"]}]
    if shutil.which("promtool") is None:
        pytest.skip("needs promtool")
    done = subprocess.run(
        ["promtool", "check", "config", "--syntax-only", str(COMPOSE / "prometheus.yml")],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_grafana_finds_prometheus_and_the_board() -> None:
    services = read("compose.yaml")["services"]
    (source,) = read("grafana/provisioning/datasources/prometheus.yaml")["datasources"]
    assert source["url"].removeprefix("http://").split(":")[0] in services
    (provider,) = read("grafana/provisioning/dashboards/wherry.yaml")["providers"]
    folder = provider["options"]["path"]
    assert f"boards:{folder}:ro" in services["grafana"]["volumes"]
    assert f"{folder}/board.json" in services["board"]["entrypoint"][-1]
    assert services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] == (
        f"{folder}/board.json"
    )
