"""core/observability/metrics.py: what Prometheus sees."""

import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from prometheus_client.samples import Sample

import wherry
from tests.fakes import TIMEOUT
from tests.http_exchange import Client, app_loop, served
from wherry.core.models.settings import ModelSettings
from wherry.core.observability.custom_metrics import CustomMetrics, Kind
from wherry.server.http_app import HttpApp
from wherry.testing import local_server

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


@wherry.model(max_batch_size=8)
def shout(text: list[str]) -> list[str]:
    if "bad" in text:
        raise ValueError("a bad row")
    return [t.upper() for t in text]


@pytest.fixture
def client() -> Iterator[Client]:
    with served(shout) as client:
        yield client


def ask(client: Client, *texts: str) -> int:
    tensor = {"name": "text", "datatype": "BYTES", "shape": [len(texts)], "data": list(texts)}
    return client.post("/v2/models/shout/infer", {"inputs": [tensor]}).status


def scraped(client: Client, accept: str = "") -> dict[tuple[str, tuple[str, ...]], float]:
    """Every sample of this model by its name and its labels' values, sorted by label."""
    answer = client.get("/metrics", {"accept": accept} if accept else {})
    assert answer.status == 200
    parse = parse_openmetrics if "openmetrics" in answer.content_type else parse_text
    samples: list[Sample] = [s for family in parse(answer.body.decode()) for s in family.samples]
    values = {}
    for s in samples:
        if s.labels.get("model") == "shout" or not s.labels:
            # The parser of plain text adds a _total that Triton's names do not have.
            name = s.name.removesuffix("_total") if s.name.startswith("nv_") else s.name
            rest = sorted((k, v) for k, v in s.labels.items() if k not in ("model", "version"))
            values[name, tuple(v for _, v in rest)] = s.value
    return values


def test_all_series_are_there_with_zero_from_the_start(client: Client) -> None:
    values = scraped(client)

    for reason in ("REJECTED", "CANCELED", "BACKEND", "OTHER"):
        assert values["nv_inference_request_failure", (reason,)] == 0
        assert values["wherry_requests_total", (reason.lower(),)] == 0
    for awaited in ("callers", "turn", "delay"):
        assert values["wherry_batch_held_seconds_total", (awaited,)] == 0
    assert values["nv_model_load_time", ()] > 0
    for name in (
        "nv_inference_request_success",
        "nv_inference_count",
        "nv_inference_exec_count",
        "nv_inference_request_duration_us",
        "nv_inference_queue_duration_us",
        "nv_inference_compute_input_duration_us",
        "nv_inference_compute_infer_duration_us",
        "nv_inference_compute_output_duration_us",
        "nv_inference_pending_request_count",
        "wherry_queue_depth",
        "wherry_rejected_total",
        "wherry_worker_restarts_total",
        "wherry_request_seconds_count",
        "wherry_batch_size_count",
        "wherry_requests_in_flight",
        "wherry_requests_refused_total",
    ):
        assert values[name, ()] == 0, name
    assert values["wherry_model_ready", ()] == 1


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
def test_what_happened_is_counted(client: Client, accept: str) -> None:
    assert ask(client, "a") == 200
    assert ask(client, "b", "c", "d") == 200
    assert ask(client, "bad") == 500
    values = scraped(client, accept)

    assert values["nv_inference_request_success", ()] == 2
    assert values["nv_inference_count", ()] == 4
    assert values["nv_inference_exec_count", ()] == 3
    assert values["nv_inference_request_failure", ("BACKEND",)] == 1
    assert values["wherry_requests_total", ("success",)] == 2
    assert values["wherry_requests_total", ("backend",)] == 1
    assert values["wherry_request_seconds_count", ()] == 2
    assert values["wherry_request_seconds_sum", ()] > 0
    assert values["wherry_batch_size_count", ()] == 3
    assert values["wherry_batch_size_sum", ()] == 5
    assert values["wherry_batch_size_bucket", ("1.0",)] == 2
    assert values["wherry_batch_size_bucket", ("2.0",)] == 2
    assert values["wherry_batch_size_bucket", ("4.0",)] == 3
    assert values["wherry_batch_size_bucket", ("+Inf",)] == 3
    cuts = [v for (name, _), v in values.items() if name == "wherry_batch_cut_total"]
    assert sum(cuts) == 3


def test_a_scraper_may_have_openmetrics_and_a_browser_plain_text(client: Client) -> None:
    text, openmetrics = client.get("/metrics"), client.get("/metrics", {"accept": OPENMETRICS})

    assert text.content_type.startswith("text/plain; version=0.0.4")
    assert openmetrics.content_type.startswith("application/openmetrics-text")
    assert openmetrics.body.endswith(b"# EOF\n")


def test_tritons_counters_keep_their_name_and_their_type(client: Client) -> None:
    lines = client.get("/metrics").body.decode().splitlines()

    assert "# TYPE nv_inference_request_success counter" in lines
    assert "# TYPE nv_inference_pending_request_count gauge" in lines
    assert 'nv_inference_request_success{model="shout",version="1"} 0' in lines
    assert not [line for line in lines if line.endswith(".0")]


def test_the_machine_is_told_without_a_model(client: Client) -> None:
    values = scraped(client)
    assert 0 <= values["nv_cpu_utilization", ()] <= 1
    assert values["nv_cpu_memory_total_bytes", ()] > values["nv_cpu_memory_used_bytes", ()] > 0


def test_the_programs_own_metrics_and_its_process_are_shown_too(client: Client) -> None:
    assert b"process_cpu_seconds_total" in client.get("/metrics").body


def test_a_counter_of_a_models_own_is_one_whatever_its_name(client: Client) -> None:
    model: Any = client.runtime.model("shout").model
    model.custom_metrics = CustomMetrics()
    model.custom_metrics.measure("seen", "What was seen.", Kind.COUNTER, (), None, "add", 2.0)
    model.custom_metrics.measure("all_total", "All.", Kind.COUNTER, (), None, "add", 3.0)
    model.custom_metrics.measure("now", "What is.", Kind.GAUGE, (), None, "set", 1.0)

    lines = client.get("/metrics").body.decode().splitlines()
    assert {"# TYPE seen counter", "seen 2", "# TYPE now gauge"} <= set(lines)
    openmetrics = client.get("/metrics", {"accept": OPENMETRICS}).body.decode().splitlines()
    assert {"# TYPE all counter", "all_total 3.0"} <= set(openmetrics)


def test_histogram_buckets_only_grow(client: Client) -> None:
    for _ in range(5):
        ask(client, "a")
    for family in parse_text(client.get("/metrics").body.decode()):
        if family.type == "histogram":
            counts = [s.value for s in family.samples if s.name.endswith("_bucket")]
            assert counts == sorted(counts), family.name


@pytest.mark.slow
def test_prometheus_client_is_loaded_by_the_first_scrape_only() -> None:
    code = "import sys, wherry.server.http_app;sys.exit('prometheus_client' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


CACHE_OF_A_MODEL = (
    "nv_cache_num_hits_per_model",
    "nv_cache_hit_duration_per_model",
    "nv_cache_num_misses_per_model",
    "nv_cache_miss_duration_per_model",
)


def test_a_model_without_a_response_cache_has_no_numbers_of_it(client: Client) -> None:
    text = client.get("/metrics").body.decode()
    assert not [name for name in CACHE_OF_A_MODEL if name in text]


def test_the_response_cache_is_told_as_a_whole_and_by_model() -> None:
    cached: ModelSettings = {"response_cache": True}
    with (
        wherry.Runtime(shout, cache_bytes=10_000, overrides={"shout": cached}) as runtime,
        app_loop() as loop,
    ):
        client = Client(HttpApp(runtime), runtime, loop)
        before = scraped(client)
        assert [before[name, ()] for name in CACHE_OF_A_MODEL] == [0, 0, 0, 0]
        assert [ask(client, text) for text in ("a", "a", "b")] == [200, 200, 200]
        values = scraped(client)
    assert values["nv_cache_num_lookups", ()] == 3
    assert values["nv_cache_num_hits", ()] == 1
    assert values["nv_cache_num_misses", ()] == 2
    assert values["nv_cache_num_entries", ()] == 2
    assert 0 < values["nv_cache_util", ()] < 1
    assert values["nv_cache_num_hits_per_model", ()] == 1
    assert values["nv_cache_num_misses_per_model", ()] == 2


def test_what_the_batcher_has_learnt_is_shown(client: Client) -> None:
    before = scraped(client)
    assert before["wherry_max_batch_rows", ()] == 8
    assert before["wherry_batch_fixed_seconds", ()] == 0
    assert before["wherry_rejected_predicted_late_total", ()] == 0
    for _ in range(10):
        assert ask(client, "a") == 200
        assert ask(client, *"abcdefgh") == 200
    after = scraped(client)
    learnt = after["wherry_batch_fixed_seconds", ()] + after["wherry_batch_row_seconds", ()]
    assert 0 < learnt < 1
    full = after["wherry_batch_fixed_seconds", ()] + 8 * after["wherry_batch_row_seconds", ()]
    assert after["wherry_full_batch_row_seconds", ()] == pytest.approx(full / 8, rel=0.2)
    assert 0 <= after["wherry_returning_ratio", ()] <= 1
    assert after["wherry_predicted_wait_seconds", ()] == 0  # nobody waits


def test_metric_tags_of_a_repository_are_labels_of_tritons_metrics() -> None:
    class Shout(wherry.Model):
        def execute(self, text: str) -> str:
            return text.upper()

    made = Shout()
    made.metric_labels = {"_team": "blue"}
    with served(made) as client:
        text = client.get("/metrics").body.decode()
    counts = [one.labels for one in samples(text, "nv_inference_count")]
    assert counts == [{"model": "shout", "version": "1", "_team": "blue"}]


def samples(text: str, name: str) -> list[Sample]:
    return [s for family in parse_text(text) if family.name == name for s in family.samples]


def test_only_tritons_metrics_may_be_asked_for() -> None:
    counters = "counter_latencies=false"
    with (
        local_server(shout, metrics_compat="triton", metrics_config=(counters,)) as server,
        urllib.request.urlopen(f"{server.url}/metrics", timeout=TIMEOUT) as answer,
    ):
        text = answer.read().decode()
    names = {family.name for family in parse_text(text)}
    assert names
    assert "nv_inference_count" in names
    assert not any(name.startswith("wherry") for name in names)
    assert not any("_duration_us" in name for name in names)
