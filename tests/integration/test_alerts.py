"""The alerts fire when they should, and not otherwise: promtool has the clock."""

import itertools
import json
import re
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.grafana import rules
from tests.http_exchange import served
from tests.prometheus import needs_prometheus
from wherry import model

pytestmark = pytest.mark.slow

AT = 'job="wherry", instance="a"'
OF = AT + ', model="m", version="1"'
#: A server that is well for an hour, in promtool's notation: first value + growth x minutes.
HEALTHY = {
    f"up{{{AT}}}": "1x60",
    f'wherry_info{{{AT}, version="0.1.0"}}': "1x60",
    f"wherry_model_ready{{{OF}}}": "1x60",
    f'wherry_requests_total{{{OF}, outcome="success"}}': "0+600x60",
    f'wherry_requests_total{{{OF}, outcome="backend"}}': "0+6x60",
    f"wherry_rejected_total{{{OF}}}": "0+6x60",
    f"wherry_requests_refused_total{{{AT}}}": "7x60",
    f'wherry_queue_seconds_bucket{{{OF}, le="1.0"}}': "0+600x60",
    f'wherry_queue_seconds_bucket{{{OF}, le="+Inf"}}': "0+600x60",
    f"wherry_worker_restarts_total{{{OF}}}": "0x40 1x20",
    f"wherry_poisoned_requests_total{{{OF}}}": "3x60",
    f'wherry_loop_stall_seconds_bucket{{{AT}, le="0.1"}}': "0+3000x60",
    f'wherry_loop_stall_seconds_bucket{{{AT}, le="+Inf"}}': "0+3000x60",
    f"wherry_memory_used_bytes{{{AT}}}": "89x60",
    f"wherry_memory_limit_bytes{{{AT}}}": "100x60",
    f"process_open_fds{{{AT}}}": "89x60",
    f"process_max_fds{{{AT}}}": "100x60",
    # Another program's server, which is none of ours.
    'up{job="other", instance="b"}': "0x60",
    'process_open_fds{job="other", instance="b"}': "100x60",
    'process_max_fds{job="other", instance="b"}': "100x60",
    f"wherry_front_restarts_total{{{AT}}}": "1x60",
    f'wherry_llm_kv_cache_usage_ratio{{{OF}, model_instance="m_0"}}': "1x60",
    f'wherry_llm_requests_waiting{{{OF}, model_instance="m_0"}}': "0x60",
    f'wherry_llm_preemptions_total{{{OF}, model_instance="m_0"}}': "0+1x60",
}


class Fault(NamedTuple):
    """What is otherwise, so that one alert fires with these labels and this summary."""

    changed: dict[str, str]
    labels: dict[str, str]
    summary: str
    severity: str = "warning"


SERVER = {"job": "wherry", "instance": "a"}
MODEL = {"model": "m", "version": "1"}
EVERYWHERE = {"job": "wherry", **MODEL}
OF_ONE = {**SERVER, **MODEL}
FAULTS = {
    "WherryAbsent": Fault(
        {name: f"{values.split('x')[0]}x40 _x20" for name, values in HEALTHY.items()}, {},
        "No wherry server is seen by Prometheus", "critical"),
    "WherryDown": Fault(
        {f"up{{{AT}}}": "1x40 0x20", f'wherry_info{{{AT}, version="0.1.0"}}': "1x40 stale",
         'wherry_info{job="wherry", instance="c", version="0.1.0"}': "1x60"}, SERVER,
        "wherry at a does not answer", "critical"),
    "WherryModelNotReady": Fault(
        {f"wherry_model_ready{{{OF}}}": "1x40 0x20"}, OF_ONE, "Model m:1 at a is not ready",
        "critical"),
    "WherryErrors": Fault(
        {f'wherry_requests_total{{{OF}, outcome="backend"}}': "0+6x40 440+200x20"}, EVERYWHERE,
        "Model m:1 fails 25% of its requests", "critical"),
    "WherryRejected": Fault(
        {f"wherry_rejected_total{{{OF}}}": "0+6x40 540+300x20"}, EVERYWHERE,
        "Model m:1 rejects 49.5% of its requests"),
    "WherryRefused": Fault(
        {f"wherry_requests_refused_total{{{AT}}}": "7x40 37+30x20"}, SERVER,
        "wherry at a refuses 500m requests a second"),
    "WherryQueueSlow": Fault(
        {f'wherry_queue_seconds_bucket{{{OF}, le="1.0"}}': "0+600x40 24540+540x20",
         f'wherry_queue_seconds_bucket{{{OF}, le="2.5"}}': "0+600x60"}, EVERYWHERE,
        "Requests of m:1 wait 2.35s for an instance (p99)"),
    "WherryWorkersRestart": Fault(
        {f"wherry_worker_restarts_total{{{OF}}}": "0x45 1+1x15"}, OF_ONE,
        "Workers of m:1 at a die again and again"),
    "WherryPoisonedRequests": Fault(
        {f"wherry_poisoned_requests_total{{{OF}}}": "3x50 4x10"}, OF_ONE,
        "Somebody sends m:1 what crashes it"),
    "WherryLoopStalls": Fault(
        {f'wherry_loop_stall_seconds_bucket{{{AT}, le="0.1"}}': "0+3000x40 122700+2700x20",
         f'wherry_loop_stall_seconds_bucket{{{AT}, le="0.25"}}': "0+3000x60"}, SERVER,
        "The event loop of a is late by 235ms (p99)"),
    "WherryMemory": Fault(
        {f"wherry_memory_used_bytes{{{AT}}}": "89x40 95x20"}, SERVER,
        "a has 95% of its memory in use"),
    "WherryDescriptors": Fault(
        {f"process_open_fds{{{AT}}}": "89x40 91x20"}, SERVER,
        "wherry at a has 91% of its descriptors open"),
    "WherryFrontsRestart": Fault(
        {f"wherry_front_restarts_total{{{AT}}}": "0x45 1+1x15"}, SERVER,
        "Fronts of a end again and again"),
    "WherryKeyValueCacheFull": Fault(
        {f'wherry_llm_requests_waiting{{{OF}, model_instance="m_0"}}': "0x40 1x20"},
        {**OF_ONE, "model_instance": "m_0"},
        "The key-value cache of m:1 at a is full"),
    "WherryPreemptions": Fault(
        {f'wherry_llm_preemptions_total{{{OF}, model_instance="m_0"}}': "0+1x40 100+60x20"}, OF_ONE,
        "m:1 at a puts 1 sequences a second back"),
}  # fmt: skip

ALERTS: dict[str, Any] = {
    rule["alert"]: rule for rule in yaml.safe_load(rules())["groups"][0]["rules"]
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With the rules."""
    needs_prometheus("promtool")
    (tmp_path / "rules.yml").write_text(rules())
    return tmp_path


def promtool(folder: Path, *words: str, text: str | None = None) -> str:
    """What it says, which must be good."""
    done = subprocess.run(
        ["promtool", *words], input=text, capture_output=True, text=True, check=False,
        cwd=folder, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def check(folder: Path, changed: dict[str, str], fires: dict[int, str | None]) -> None:
    """Have promtool see that at these minutes this alert fires and no other."""
    expected = []
    for minute, alert in itertools.product(fires, ALERTS):
        rule, fault = ALERTS[alert], FAULTS[alert]
        told = {
            "exp_labels": {"severity": fault.severity, **fault.labels},
            "exp_annotations": {**rule["annotations"], "summary": fault.summary},
        }
        expected.append({
            "eval_time": f"{minute}m", "alertname": alert,
            "exp_alerts": [told] if alert == fires[minute] else [],
        })  # fmt: skip
    series = {**HEALTHY, **changed}
    given = [{"series": name, "values": values} for name, values in series.items()]
    asked = {
        "rule_files": ["rules.yml"],
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": given, "alert_rule_test": expected}],
    }
    (folder / "test.json").write_text(json.dumps(asked))  # JSON is YAML
    promtool(folder, "test", "rules", "test.json")


def test_the_rules_are_valid(folder: Path) -> None:
    assert f"{len(ALERTS)} rules found" in promtool(folder, "check", "rules", "rules.yml")


def test_the_configuration_in_the_docs_is_valid_and_names_every_alert(folder: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/monitoring.md").read_text()
    (block,) = re.findall(r"^```yaml\n(.*?)^```", page, re.M | re.S)
    (folder / "prometheus.yml").write_text(block)
    (folder / "key.txt").write_text("secret\n")
    assert "SUCCESS" in promtool(folder, "check", "config", "prometheus.yml")
    told = re.findall(r"^\| `(Wherry\w+)` \| (\w+) \|", page, re.M)
    assert told == [(name, rule["labels"]["severity"]) for name, rule in ALERTS.items()]


def test_no_alert_fires_while_all_is_well(folder: Path) -> None:
    check(folder, {}, {3: None, 55: None})


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_fires_once_its_fault_has_lasted_and_no_other_does(
    alert: str, folder: Path
) -> None:
    """Each fault begins after minute 40; what counts restarts has no need to wait."""
    waits = {41: None} if "for" in ALERTS[alert] else {}
    check(folder, FAULTS[alert].changed, {39: None, **waits, 55: alert})


@model
def quiet(text: str) -> str:
    return text


def test_promtool_has_nothing_to_say_of_our_metrics(folder: Path) -> None:
    with served(quiet) as client:
        text = client.get("/metrics").body.decode()
    ours = [line for line in text.splitlines() if "wherry_" in line]
    assert len(ours) > 100
    assert promtool(folder, "check", "metrics", text="\n".join(ours) + "\n") == ""


def test_promtool_can_read_all_metrics_and_misses_only_suffixes_that_triton_has_not(
    folder: Path,
) -> None:
    with served(quiet) as client:
        text = client.get("/metrics").body.decode()
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False,
        timeout=60,
    )  # fmt: skip
    said = (done.stdout + done.stderr).splitlines()
    assert said
    assert [line for line in said if not line.startswith("nv_")] == []
