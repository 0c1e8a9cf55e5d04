"""server/dashboard/requests.py: what is told of the last requests, and while who asks."""

from collections.abc import Iterator
from typing import Any

import pytest

import wherry
from tests.fakes import until
from tests.http_exchange import Client, served
from wherry.testing import GatedModel


@wherry.model(max_batch_size=4)
def shout(text: list[str]) -> list[str]:
    if "bad" in text:
        raise ValueError("no")
    return [one.upper() for one in text]


@wherry.model
def count(to: int) -> Iterator[int]:
    yield from range(to)


def call(client: Client, text: str, id: str) -> int:
    headers = {"x-request-id": id}
    return client.ask("POST", "/v2/models/shout/generate", {"text": text}, headers).status


def recent(client: Client, since: int = 0) -> dict[str, Any]:
    answer = client.get(f"/dashboard/requests?since={since}")
    assert (answer.status, answer.headers["cache-control"]) == (200, "no-store")
    found: dict[str, Any] = answer.json
    return found


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second is long for a test."""
    monkeypatch.setattr("wherry.server.dashboard.numbers.INTERVAL", 0.02)


def test_the_last_requests_have_their_ids_stages_and_batch_mates() -> None:
    gated = GatedModel(max_batch_size=8)
    with served(gated, recent_requests=True) as client:
        begun = []
        for id in ("first", "second", "third"):
            headers = {"x-request-id": id}
            body = {"text": id}
            begun.append(client.begin("POST", "/v2/models/gated/generate", body, headers))
            if id == "first":
                gated.wait_started()
        until(lambda: client.runtime.model("gated").runner.queued_requests == 2)
        gated.let_finish(2)
        for one in begun:
            one.answered.result(10)
        told = recent(client)

    assert told["keeps"] is True
    alone, together = told["batches"]
    assert [id for id, _, _ in alone["requests"]] == ["first"]
    assert [id for id, _, _ in together["requests"]] == ["second", "third"]
    assert (together["rows"], together["instance"], together["model"]) == (2, "gated_0", "gated")
    assert alone["number"] + 1 == together["number"]
    for batch in told["batches"]:
        for _, came, _ in batch["requests"]:
            assert came <= batch["started"]
        took = sum(batch[f"{part}_seconds"] for part in ("input", "infer", "output"))
        assert batch["started"] + took <= batch["ended"] + 0.001
    assert together["started"] >= alone["ended"] - 0.001


def test_the_first_request_of_a_model_that_is_loaded_later_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("wherry.server.dashboard.numbers.INTERVAL", 1000.0)
    with served(count, recent_requests=True) as client:
        client.runtime.load(shout)
        call(client, "a", "first of all")
        (batch,) = recent(client)["batches"]
        assert [id for id, _, _ in batch["requests"]] == ["first of all"]


def test_only_what_is_new_is_told_again() -> None:
    with served(shout, recent_requests=True) as client:
        call(client, "a", "one")
        (first,) = recent(client)["batches"]
        call(client, "b", "two")
        (second,) = recent(client, first["number"])["batches"]

    assert second["requests"][0][0] == "two"


def test_a_request_that_fails_is_there_with_its_error() -> None:
    with served(shout, recent_requests=True) as client:
        assert call(client, "bad", "wrong") == 500
        ran, failed = recent(client)["batches"]

    assert (ran["error"], failed["error"]) == ("", "ModelFailed")
    assert (ran["instance"], failed["instance"]) == ("shout_0", "")
    assert ran["requests"] == failed["requests"]


def test_unless_they_are_kept_they_are_recorded_only_while_somebody_asks_and_without_ids(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with served(shout) as client:
        statistics = client.runtime.model("shout").runner.statistics
        call(client, "a", "before")
        assert statistics.records is None
        assert recent(client)["batches"] == []
        call(client, "a", "secret")
        told = recent(client)
        monkeypatch.setattr("wherry.server.dashboard.requests.WATCHED", -1.0)
        recent(client)
        until(lambda: statistics.records is None)
        assert recent(client)["batches"] == []

    (batch,) = told["batches"]
    assert told["keeps"] is False
    assert [id for id, _, _ in batch["requests"]] == [""]


def test_requests_of_streams_are_there_too() -> None:
    with served(count, recent_requests=True) as client:
        client.ask("POST", "/v2/models/count/generate_stream", {"to": 3})
        until(lambda: recent(client)["batches"] != [])
        (batch,) = recent(client)["batches"]

    assert (batch["model"], len(batch["requests"])) == ("count", 1)
    assert batch["infer_seconds"] > 0


@pytest.mark.parametrize("since", ["-1", "x", "1.5", "%00", "9" * 30, "\u0663"])
def test_a_number_that_is_none_is_refused(since: str) -> None:
    with served(shout) as client:
        assert client.get(f"/dashboard/requests?since={since}").status == 400
