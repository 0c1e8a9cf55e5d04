"""A real Prometheus reads servers of ours, and answers every query of the board and the alerts."""

import http.client
import json
import math
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from urllib.request import urlopen

import numpy as np
import pytest
import yaml

import wherry
from tests.fakes import until
from tests.grafana import board, rules
from tests.prometheus import Prometheus, needs_prometheus
from wherry.core.observability.statistics import SECONDS_BUCKETS
from wherry.testing import GatedModel, local_server, running_server

pytestmark = [pytest.mark.slow, pytest.mark.full]

MODELS = str(Path(__file__).with_name("board_models.py"))

#: What NVIDIA's dcgm-exporter shows of a GPU, with its labels.
GPU_METRICS = "".join(
    f"# TYPE {name} gauge\n"
    f'{name}{{gpu="0",UUID="GPU-1",device="nvidia0",modelName="H100",Hostname="node"}} {value}\n'
    for name, value in (
        ("DCGM_FI_DEV_GPU_UTIL", 50),
        ("DCGM_FI_DEV_FB_USED", 1000),
        ("DCGM_FI_DEV_FB_FREE", 3000),
        ("DCGM_FI_DEV_GPU_TEMP", 60),
    )
)

#: Rates that stay 0 here, and why.
QUIET = {
    "wherry_rejected_predicted_late_total": "no model here is so late that it is foreseen",
    "wherry_batch_held_seconds_total": "no batch need wait, as no two callers come at once",
    "wherry_front_restarts_total": "no front ends",
}


class ResponsePart(NamedTuple):
    """A Prometheus that has read servers after traffic."""

    prometheus: Prometheus
    known_seconds: list[float]


@pytest.fixture(scope="module")
def told() -> Iterator[ResponsePart]:
    """A Prometheus that has seen all of the traffic. The servers have ended: queries are about the
    moment before."""
    needs_prometheus()
    with ExitStack() as outer, ExitStack() as stack:
        app = stack.enter_context(running_server(MODELS, "--cache-size", "4096"))
        fronts = stack.enter_context(running_server(MODELS, "--fronts", "2"))
        gated = GatedModel(name="gated")
        here = stack.enter_context(local_server(known, gated, max_in_flight=1))
        targets = {
            "app": app,  # in OpenMetrics, which Prometheus prefers
            "fronts": fronts,
            "here": here.url,
            "plain": stack.enter_context(page_of(lambda: plain_metrics(app))),
            "gpu": stack.enter_context(page_of(GPU_METRICS.encode)),
        }
        prometheus = outer.enter_context(Prometheus(targets, rules=rules()))
        until(lambda: all_read(prometheus))

        seconds = known_latencies()
        statistics = here.runtime.model("known").statistics
        for rounds in (1, 2):
            # A rate needs a scrape before what it counts.
            for url in (app, fronts):
                traffic(url, rounds)
            refuse_one(here, gated)
            with statistics.lock:
                statistics.request_seconds.observe(seconds)
            until(partial(seen, prometheus, rounds))
        stack.close()
        yield ResponsePart(prometheus, seconds)


@wherry.model(isolation="thread")
def known(text: str) -> str:
    return text


def traffic(url: str, rounds: int) -> None:
    """Requests to each model, one after the other: three to `shout`."""
    for texts in (["a"], ["b", "c", "d"], ["e"]):
        assert infer(url, "shout", texts) == 200
    assert infer(url, "shout", ["late"], timeout=1) == 504
    for number in range(20):  # more than the cache can hold, and the last of them again
        assert generate(url, "remembered", text="x" * number) == 200
    assert generate(url, "remembered", text="x" * 19) == 200
    assert generate(url, "count", stream=True, n=3) == 200
    assert generate(url, "chat", stream=True, n=5) == 200
    assert generate(url, "fragile", text="good") == 200
    assert generate(url, "fragile", text="bad") == 500
    for _ in range(2):  # what kills a worker, and is remembered
        assert generate(url, "fragile", text=f"die {rounds}") == 422


def infer(url: str, model: str, texts: list[str], **parameters: Any) -> int:
    tensor = {"name": "text", "datatype": "BYTES", "shape": [len(texts)], "data": texts}
    return post(url, f"/v2/models/{model}/infer", {"inputs": [tensor], "parameters": parameters})


def generate(url: str, model: str, *, stream: bool = False, **inputs: Any) -> int:
    return post(url, f"/v2/models/{model}/generate{'_stream' * stream}", inputs)


def post(url: str, path: str, body: dict[str, Any]) -> int:
    """The status of the answer, which is read to its end."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    try:
        connection.request("POST", path, json.dumps(body))
        answer = connection.getresponse()
        answer.read()
        return answer.status
    finally:
        connection.close()


def refuse_one(server: wherry.Server, gated: GatedModel) -> None:
    """Send two requests where only one may be in flight."""
    first = threading.Thread(target=infer, args=(server.url, "gated", ["first"]))
    first.start()
    try:
        gated.wait_started()
        assert infer(server.url, "gated", ["second"]) == 429
    finally:
        gated.let_finish()
        first.join()


def all_read(prometheus: Prometheus) -> bool:
    """Whether Prometheus has just read every server; queries are about this moment."""
    prometheus.at = time.time()
    return [one.value for one in prometheus.query("up")] == [1.0] * 5


def seen(prometheus: Prometheus, rounds: int) -> bool:
    """Whether Prometheus has read all that so many rounds have brought about."""
    if not all_read(prometheus):
        return False
    least = {
        'wherry_requests_total{model="shout", outcome="success"}': (3, 3),
        'wherry_stream_responses_total{model="chat"}': (5, 3),
        'wherry_worker_restarts_total{model="fragile"}': (1, 3),
        'wherry_poisoned_requests_total{model="fragile"}': (1, 3),  # by the last request
        "wherry_requests_refused_total": (1, 1),
        'wherry_request_seconds_count{model="known"}': (len(known_latencies()), 1),
        'wherry_worker_rss_bytes{model="fragile"}': (1, 3),  # its worker is back
    }
    return all(
        sum(one.value >= many * rounds for one in prometheus.query(expr)) >= jobs
        for expr, (many, jobs) in least.items()
    )


def known_latencies() -> list[float]:
    """Of a thousand requests, in seconds: most of them quick, some of them slow."""
    return [float(one) for one in np.random.default_rng(7).lognormal(np.log(0.02), 1.2, 1000)]


def plain_metrics(url: str) -> bytes:
    """The metrics in Prometheus's own text format."""
    with urlopen(f"{url}/metrics", timeout=10) as answer:
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        body: bytes = answer.read()
    return body


@contextmanager
def page_of(text: Callable[[], bytes]) -> Iterator[str]:
    """A server that answers every GET with this text in Prometheus's text format."""

    class Page(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = text()
            self.send_response(200)
            self.send_header("content-type", "text/plain; version=0.0.4")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


# What the board and the alerts ask.


def panels() -> Iterator[dict[str, Any]]:
    for panel in board()["panels"]:
        yield from panel["panels"] if panel["type"] == "row" else [panel]


def opened(expr: str, **chosen: str) -> str:
    """A query as Grafana sends it, with these values of its variables, else with all."""
    values = dict.fromkeys(("job", "instance", "model", "version"), ".*")
    for name, value in {**values, **chosen, "__rate_interval": "1m"}.items():
        expr = expr.replace(f"${name}", value)
    assert "$" not in expr
    return expr


class Names(NamedTuple):
    """The metrics and the labels that an expression names."""

    metrics: set[str]
    labels: set[str]


def names_of(expr: str) -> Names:
    labels = set(re.findall(r'(\w+)\s*(?:=~|!=|!~|=)\s*"', expr))
    rest = re.sub(r"\{[^}]*\}|\[[^]]*\]", " ", expr)
    grouped = r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)"
    for group in re.findall(grouped, rest):
        labels |= set(filter(None, re.split(r"[,\s]+", group)))
    rest = re.sub(grouped, " ", rest)
    words = set(re.findall(r"\b[a-zA-Z_]\w*\b(?!\s*\()", rest))
    return Names(words - {"and", "or", "unless", "bool", "e"}, labels - {"__name__"})


QUERIES = {
    f"{panel['title']} {target['refId']}": (target["expr"], target["legendFormat"])
    for panel in panels()
    for target in panel["targets"]
}
ALERTS = {rule["alert"]: rule for rule in yaml.safe_load(rules())["groups"][0]["rules"]}


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_of_the_board_has_data(name: str, told: ResponsePart) -> None:
    expr, legend = QUERIES[name]
    asked = opened(expr)
    read = told.prometheus.query(asked)

    values = [one.value for one in read]
    assert values, f"no data: {asked}"
    assert not any(math.isnan(value) for value in values), read
    quiet = names_of(asked).metrics & QUIET.keys()
    if re.search(r"\b(rate|increase|histogram_quantile)\(", asked) and not quiet:
        assert max(values) > 0, f"nothing moves: {asked}"
    wanted = set(re.findall(r"{{(\w+)}}", legend))
    for one in read:
        assert wanted <= one.labels.keys(), f"{legend} of {one.labels}"
    series = re.sub(r"{{(\w+)}}", lambda name: "{" + name[1] + "}", legend)
    names = [series.format(**one.labels) for one in read]
    assert len(set(names)) == len(names), f"two lines have the same name: {names}"


@pytest.mark.parametrize("alert", ALERTS)
def test_the_condition_of_an_alert_can_be_asked(alert: str, told: ResponsePart) -> None:
    assert told.prometheus.query(ALERTS[alert]["expr"]) is not None


@pytest.mark.parametrize("name", [*QUERIES, *ALERTS])
def test_what_a_query_names_exists(name: str, told: ResponsePart) -> None:
    expr = opened(QUERIES[name][0]) if name in QUERIES else ALERTS[name]["expr"]
    named = names_of(expr)
    assert named.metrics
    labels: set[str] = set()
    for metric in named.metrics:
        series = told.prometheus.series(metric)
        assert series, f"there is no {metric}"
        labels.update(*series)
    assert named.labels <= labels, f"{named.labels - labels} of {expr}"


def test_prometheus_evaluates_every_alert(told: ResponsePart) -> None:
    until(lambda: all(rule["health"] != "unknown" for rule in told.prometheus.rules()))
    told_of = {
        rule["name"]: (rule["health"], rule.get("lastError")) for rule in told.prometheus.rules()
    }
    assert told_of == dict.fromkeys(ALERTS, ("ok", None))


def test_each_variable_has_values(told: ResponsePart) -> None:
    for variable in board()["templating"]["list"]:
        if variable["type"] == "query":
            series, label = re.fullmatch(
                r"label_values\((.*), (\w+)\)", variable["query"]["query"]
            ).groups()  # type: ignore[union-attr]
            values = {one[label] for one in told.prometheus.series(opened(series))}
            assert values, variable
            # A job that is none of ours is not offered.
            assert label != "job" or values == {"app", "fronts", "here", "plain"}


def test_a_chosen_model_is_alone(told: ResponsePart) -> None:
    expr, _ = QUERIES["Requests of each model A"]
    read = told.prometheus.query(opened(expr, model="shout|count", job="app"))
    assert {one.labels["model"] for one in read} == {"shout", "count"}


@pytest.mark.parametrize(("letter", "share"), [("A", 0.5), ("B", 0.95), ("C", 0.99)])
def test_quantiles_are_those_of_what_was_observed_but_for_the_width_of_a_bucket(
    letter: str, share: float, told: ResponsePart
) -> None:
    expr, _ = QUERIES[f"Latency {letter}"]
    (read,) = told.prometheus.query(opened(expr, job="here", model="known"))

    true = float(np.quantile(told.known_seconds, share))
    bounds = [0.0, *SECONDS_BUCKETS]
    above = next(i for i, bound in enumerate(bounds) if bound >= true)
    # A quantile at a bound is rounded.
    assert bounds[above - 1] * 0.999 <= read.value <= bounds[above] * 1.001


def test_openmetrics_and_plain_text_tell_the_same(told: ResponsePart) -> None:
    """The same series; what counts requests has the same values, the rest is of another moment."""

    def of(job: str) -> dict[tuple[Any, ...], float]:
        read = told.prometheus.query(f'{{__name__=~"wherry_.*|nv_.*", job="{job}"}}')
        return {
            tuple(sorted((k, v) for k, v in one.labels.items() if k not in ("job", "instance"))): (
                one.value
            )
            for one in read
            if one.labels["__name__"] != "wherry_worker_rss_bytes"  # of a worker that is there
        }

    app, plain = of("app"), of("plain")
    assert app.keys() == plain.keys()
    assert len(app) > 500
    counts = [key for key in app if ("__name__", "wherry_requests_total") in key]
    assert len(counts) == 25
    assert [app[key] for key in counts] == [plain[key] for key in counts]
