"""server/dashboard/: the numbers, and who watches them."""

import json
import threading
import time
from array import array
from base64 import b64decode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import wherry
from tests.fakes import TIMEOUT, no_new_threads, until
from tests.http_exchange import Client, MemoryExchange, served
from wherry.server.access.api_keys import ApiKeys, Restrictions
from wherry.server.dashboard import routes
from wherry.server.dashboard.numbers import ModelReader
from wherry.testing import GatedModel


@wherry.model(max_batch_size=4)
def shout(text: list[str]) -> list[str]:
    if "bad" in text:
        raise ValueError("cannot read /srv/secret/words.txt: <script>alert(1)</script> \ud800")
    return [one.upper() for one in text]


@wherry.model
def count(to: int) -> Iterator[int]:
    yield from range(to)


def shouted(client: Client, text: str = "a") -> int:
    return client.post("/v2/models/shout/generate", {"text": text}).status


def told(client: Client) -> dict[str, Any]:
    answer = client.get("/dashboard/numbers")
    assert (answer.status, answer.content_type) == (200, "application/json")
    assert answer.headers["cache-control"] == "no-store"
    numbers: dict[str, Any] = answer.json
    return numbers


def past(client: Client, model: str = "") -> dict[str, list[float]]:
    answer = client.get(f"/dashboard/history?model={model}&version=1")
    assert answer.status == 200
    figures = {name: array("f", b64decode(one)) for name, one in answer.json["figures"].items()}
    return {name: list(one) for name, one in figures.items()}


def watch(client: Client, **prepared: Any) -> MemoryExchange:
    def prepare(exchange: MemoryExchange) -> None:
        for name, value in prepared.items():
            setattr(exchange, name, value)

    return client.begin("GET", "/dashboard/events", prepare=prepare)


def events(exchange: MemoryExchange) -> list[tuple[str, dict[str, Any]]]:
    found = []
    for chunk in exchange.chunks:
        kind, data = chunk.decode().removesuffix("\n\n").split("\n")
        found.append((kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second is long for a test."""
    monkeypatch.setattr("wherry.server.dashboard.numbers.INTERVAL", 0.02)
    monkeypatch.setattr("wherry.server.dashboard.numbers.FRESH", 0.0)


def test_numbers_tell_of_the_server_and_of_each_model() -> None:
    with served(shout, count) as client:
        assert [shouted(client, text) for text in ("a", "b", "bad")] == [200, 200, 500]
        numbers = told(client)

    assert [model["name"] for model in numbers["models"]] == ["count", "shout"]
    model = numbers["models"][1]
    assert (model["state"], model["kind"], model["max_batch_size"]) == ("READY", "batches", 4)
    assert model["totals"]["requests"] == model["totals"]["rows"] == 2
    assert model["totals"]["failures"] == {"BACKEND": 1}
    assert model["batch_sizes"] == [[1, 3]]
    assert sum(model["cut_reasons"].values()) == 3
    assert model["requests_per_second"] > model["failures_per_second"] > 0
    assert 0 < model["request_seconds"]["p50"] <= model["request_seconds"]["p99"]
    assert [one[::2] for one in model["batching"]["observed"]] == [[1, 3]]
    assert model["batching"]["curve"][0][0] == 1
    (instance,) = model["instances"]
    assert (instance["name"], instance["state"], instance["device"]) == ("shout_0", "idle", "cpu")
    server = numbers["server"]
    assert (server["draining"], server["viewers"], server["fronts"]) == (False, 0, [])
    assert server["process"]["resident_bytes"] > 10**6
    assert server["machine"]["memory_total_bytes"] > 10**6


def test_errors_are_told_with_their_text_but_without_paths() -> None:
    with served(shout) as client:
        shouted(client, "bad")
        (error,) = told(client)["models"][0]["errors"]

    assert (error["kind"], error["count"]) == ("ModelFailed", 1)
    assert "words.txt" in error["message"]
    assert "secret" not in error["message"]
    assert "alert(1)" in error["message"]


def test_a_model_that_is_not_loaded_is_there_with_its_reason() -> None:
    may_load = threading.Event()

    class Late(wherry.Model):
        name = "late"

        def load(self, device: wherry.Device) -> None:
            assert may_load.wait(TIMEOUT)

        def execute(self, text: list[str]) -> list[str]:
            return text

    with served(shout) as client, ThreadPoolExecutor(1) as pool:
        loads = pool.submit(client.runtime.load, Late())
        until(lambda: "late" in client.runtime.not_ready())
        late, ready = told(client)["models"]
        may_load.set()
        loads.result(TIMEOUT)

    assert late == {
        "name": "late",
        "version": "",
        "state": "LOADING",
        "reason": "loading",
        "kind": "",
    }
    assert ready["name"] == "shout"


def test_a_batch_that_runs_and_one_that_waits_are_seen() -> None:
    gated = GatedModel()
    with served(gated) as client:
        body = {"text": "a"}
        first = client.begin("POST", "/v2/models/gated/generate", body)
        gated.wait_started()
        second = client.begin("POST", "/v2/models/gated/generate", body)
        until(lambda: client.runtime.model("gated").runner.queued_requests == 1)
        (model,) = told(client)["models"]
        gated.let_finish()
        gated.let_finish()
        first.answered.result(TIMEOUT)
        second.answered.result(TIMEOUT)

    assert (model["running_batches"], model["queued_requests"]) == (1, 1)
    assert model["instances"][0]["state"] == "running"
    assert model["instances"][0]["running_rows"] == 1


def test_who_watches_gets_everything_and_then_what_changes() -> None:
    with served(shout, count) as client:
        exchange = watch(client)
        until(lambda: len(exchange.chunks) > 3)
        shouted(client)
        until(lambda: any(b'"rows":1' in chunk for chunk in exchange.chunks))
        client.call(exchange.leave)

    assert exchange.content_type.startswith("text/event-stream")
    assert exchange.headers["cache-control"] == "no-store"
    kinds = [kind for kind, _ in events(exchange)]
    assert kinds == ["whole", *["changes"] * (len(kinds) - 1)]
    (_, whole), *changes = events(exchange)
    assert [model["name"] for model in whole["models"]] == ["count", "shout"]
    assert all(change["gone"] == [] for _, change in changes)


def test_a_model_of_which_nothing_changes_is_not_encoded_again() -> None:
    now = [1000.0]
    with served(shout) as client:
        numbers = ModelReader(client.runtime.model("shout"), lambda: now[0])
        texts = []
        for _ in range(10):
            texts.append(numbers.read({}, 0.0))
            now[0] += 1.0
        shouted(client)
        changed = numbers.read({}, 0.0)

    assert texts[0] != texts[1] != texts[5]  # until the window has its length
    assert texts[6] is texts[7] is texts[9]
    assert changed != texts[9]


def test_a_model_that_is_unloaded_is_told_as_gone() -> None:
    with served(shout, count) as client:
        exchange = watch(client)
        until(lambda: len(exchange.chunks) > 0)
        client.runtime.unload("count")
        until(lambda: any(change.get("gone") for _, change in events(exchange)))
        client.call(exchange.leave)

    gone = [change["gone"] for _, change in events(exchange) if change.get("gone")]
    assert gone == [[["count", "1"]]]


def test_a_viewer_that_does_not_read_gets_nothing_and_then_everything() -> None:
    with served(shout) as client:
        slow, quick = watch(client), watch(client)
        until(lambda: len(slow.chunks) > 1)
        client.call(lambda: setattr(slow, "congested", True))
        before, seen = len(slow.chunks), len(quick.chunks)
        until(lambda: len(quick.chunks) > seen + 5)
        assert len(slow.chunks) == before
        client.call(lambda: setattr(slow, "congested", False))
        until(lambda: len(slow.chunks) > before)
        client.call(slow.leave)
        client.call(quick.leave)

    assert events(slow)[before][0] == "whole"


def test_without_viewers_figures_are_kept_and_no_text_is_made() -> None:
    with served(shout) as client:
        exchange = watch(client)
        until(lambda: len(exchange.chunks) > 1)
        client.call(exchange.leave)
        sample = client.call(lambda: client.app._dashboard.numbers.last)
        assert shouted(client) == 200
        until(lambda: max(past(client, "shout").get("requests_per_second", [0.0])) > 0)
        assert client.call(lambda: client.app._dashboard.numbers.last) is sample


def test_streams_end_when_the_server_drains() -> None:
    with served(shout) as client:
        exchange = watch(client)
        until(lambda: len(exchange.chunks) > 1)
        client.call(client.app.drain)
        exchange.answered.result(TIMEOUT)
        late = watch(client)
        late.answered.result(TIMEOUT)

    assert events(exchange)[-1][1]["server"]["draining"] is True


def test_too_many_viewers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "MOST_VIEWERS", 1)
    with served(shout) as client:
        first = watch(client)
        assert client.app.watchers == 1
        second = watch(client)
        assert second.status == 429
        assert "no more may" in second.error
        client.call(first.leave)
        third = watch(client)
        until(lambda: third.status == 200)
        client.call(third.leave)


def test_head_has_an_end() -> None:
    with served(shout) as client:
        assert client.ask("HEAD", "/dashboard/events").status == 200
        assert client.ask("HEAD", "/dashboard/numbers").status == 200


def test_numbers_are_statistics_and_want_a_key() -> None:
    off = Restrictions(off=["statistics"])
    with served(shout, restrictions=off) as client:
        assert client.get("/dashboard/numbers").status == 403
        assert client.get("/dashboard/events").status == 403
        assert client.get("/").status == 200
    with served(shout, keys=ApiKeys(["key-of-the-test"])) as client:
        assert client.get("/dashboard/numbers").status == 401
        assert client.get("/dashboard/events").status == 401
        key = {"authorization": "Bearer key-of-the-test"}
        assert client.get("/dashboard/numbers", key).status == 200


def test_those_who_ask_at_the_same_time_get_one_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wherry.server.dashboard.numbers.FRESH", 60.0)
    with served(shout) as client:
        answers = [client.begin("GET", "/dashboard/numbers") for _ in range(8)]
        for answer in answers:
            answer.answered.result(TIMEOUT)

    assert len({answer.json["at"] for answer in answers}) == 1


def test_a_turn_of_the_loop_is_not_held_by_many_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wherry.server.dashboard.numbers.TURN", 0.0)
    with served(shout, count) as client:
        assert len(told(client)["models"]) == 2


def test_a_reading_that_fails_leaves_the_last_one(caplog: pytest.LogCaptureFixture) -> None:
    with served(shout) as client:
        before = told(client)
        runner = client.runtime.model("shout").runner
        runner.running = lambda: 1 / 0  # type: ignore[assignment,method-assign,return-value]
        assert told(client) == before
        del runner.running
    assert "the numbers cannot be read" in caplog.text


def test_numbers_are_told_where_the_system_gives_no_thread() -> None:
    with served(shout) as client:
        with no_new_threads():
            assert [one["name"] for one in told(client)["models"]] == ["shout"]
        assert told(client)["server"]["process"] is not None


def test_numbers_stay_fresh_when_the_clock_on_the_wall_is_set_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with served(shout) as client:
        before = told(client)["at"]
        monkeypatch.setattr(time, "time", lambda: before - 3600.0)
        assert told(client)["at"] < before


def test_what_was_is_there_for_a_viewer_that_comes_later() -> None:
    with served(shout, count) as client:
        assert [shouted(client, text) for text in ("a", "b", "bad")] == [200, 200, 500]
        until(lambda: max(past(client, "shout").get("failures_per_second", [0.0])) > 0)
        figures = past(client, "shout")
        server = client.get("/dashboard/history").json
        assert past(client, "count") == {}

    assert max(figures["requests_per_second"]) > max(figures["failures_per_second"]) > 0
    ((name, version, recent),) = server["models"]
    assert (name, version, list(recent)) == ("shout", "1", ["requests_per_second", "resident"])
    assert max(array("f", b64decode(server["figures"]["requests_per_second"]))) > 0
    assert len(b64decode(server["at"])) // 8 == len(b64decode(server["figures"]["cpu_share"])) // 4


def test_every_figure_that_is_kept_has_the_name_that_the_numbers_call_it_by() -> None:
    with served(shout) as client:
        shouted(client)
        (model,) = told(client)["models"]
        until(lambda: past(client, "shout") != {})
        figures = past(client, "shout")

    for name in figures.keys() - {"resident"}:
        found = model
        for part in name.split("."):
            found = found[part]
        assert found is None or isinstance(found, int | float)


def test_a_model_that_is_not_there_has_no_past() -> None:
    with served(shout) as client:
        assert client.get("/dashboard/history?model=shout&version=9").status == 404
        assert client.get("/dashboard/history?model=%00&version=1").status == 404
        assert client.get("/dashboard/history?").status == 200
        assert client.get("/dashboard/history?model=shout").status == 200
