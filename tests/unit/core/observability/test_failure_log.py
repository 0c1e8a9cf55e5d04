"""What does the log say of a model's own errors?"""

import logging
import sys
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import msgspec
import pytest

import wherry
from tests.costs import assert_linear
from tests.fakes import ManualClock
from wherry.core.observability.logging import MOST_TRACEBACK, Cause, FailureLog, cause_of


def text_of(raises: Callable[[], Any]) -> str:
    try:
        raises()
    except BaseException as error:  # noqa: BLE001 - whatever a model may raise
        return "".join(traceback.format_exception(error))
    raise AssertionError("it did not raise")


def here(message: str = "x") -> None:
    raise ValueError(message)


def in_a_library() -> None:
    msgspec.json.decode(b"{")


def chained() -> None:
    try:
        here("cause")
    except ValueError as error:
        raise RuntimeError("outer") from error


def deep(left: int = 10_000) -> None:
    deep(left - 1)


def test_the_cause_is_the_type_and_the_users_innermost_line() -> None:
    cause = cause_of(text_of(here))
    assert cause.error == "ValueError"
    assert cause.place.startswith(f'File "{__file__}", line ')
    assert cause.place.endswith("in here")


@pytest.mark.parametrize("raises", [here, in_a_library, chained, deep, lambda: sys.exit(3)])
def test_the_same_cause_has_the_same_name(raises: Callable[[], None]) -> None:
    assert cause_of(text_of(raises)) == cause_of(text_of(raises))
    assert __file__ in cause_of(text_of(raises)).place


def test_what_a_client_has_written_into_the_message_names_no_cause() -> None:
    forged = 'x\n  File "/evil.py", line 1, in evil\nEvilError: x'
    assert cause_of(text_of(lambda: here(forged))) == Cause(
        "ValueError", cause_of(text_of(lambda: here())).place
    )


@pytest.mark.parametrize(
    "piece", ["\n", "a", "a\n", " \n", '  File "', '  File "a", line 1\n', "Traceback (\n", ":"]
)
def test_the_cause_of_any_text_is_found_in_linear_time(piece: str) -> None:
    assert_linear(cause_of, lambda n: piece * n)


def test_a_million_failures_are_a_line_for_each_cause(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    failures = FailureLog("m", "1", clock)
    traces = [text_of(here), text_of(in_a_library)]
    for n in range(20_000):
        clock.now += 0.001
        failures.log(f"model 'm' failed: {n}", traces[n % 2], request_id=f"r{n}", instance="m_0")
    assert [record.getMessage() for record in caplog.records] == ["model failed"] * 2
    first: Any = caplog.records[0]
    assert (first.model, first.version, first.instance, first.request_id) == ("m", "1", "m_0", "r0")
    assert "in here" in first.traceback
    clock.now += 60.0
    failures.log("again", traces[0])
    assert caplog.records[2].__dict__["like_it_before"] == "9999"
    failures.close()
    assert caplog.records[3].__dict__["like_it"] == "9999"


def test_a_text_of_any_length_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    failures = FailureLog("m", "1", ManualClock())
    failures.log("x" * 10**6, text_of(lambda: here("y" * 10**6)))
    (record,) = caplog.records
    assert len(record.__dict__["traceback"]) < MOST_TRACEBACK + 100
    assert len(record.__dict__["why"]) < 1200
    assert record.levelno == logging.ERROR


# Every kind of model


def buggy(text: str) -> str:
    raise KeyError(text)


class Batches(wherry.Model):
    name = "m"
    max_batch_size = 4

    def execute(self, text: list[str]) -> list[str]:
        return [buggy(row) for row in text]


class Costs(wherry.Model):
    name = "m"

    def cost(self, text: str) -> float:
        return float(buggy(text))

    def execute(self, text: str) -> str:
        return text


class Streams(wherry.Model):
    name = "m"

    def execute(self, text: str) -> Iterator[str]:
        yield text
        yield buggy(text)


class Steps(wherry.StepModel):
    name = "m"
    max_batch_size = 4

    def start(self, text: str) -> str:
        return text

    def step(self, active: list[str]) -> list[wherry.Step[str]]:
        return [wherry.Step([buggy(one)]) for one in active]


@wherry.pipeline(name="m")
async def pipeline(text: str) -> str:
    return buggy(text)


@wherry.pipeline(name="m")
async def streaming_pipeline(text: str) -> AsyncIterator[str]:
    yield text
    yield buggy(text)


def ask(client: wherry.Client, streams: bool) -> None:
    if streams:
        list(client.stream("m", text="a"))
    else:
        client.infer("m", text="a")


@pytest.mark.parametrize(
    "model", [Batches(), Costs(), Streams(), Steps(), pipeline, streaming_pipeline]
)
def test_the_traceback_of_any_model_is_logged_once_and_callers_do_not_get_it(
    caplog: pytest.LogCaptureFixture, model: Any
) -> None:
    with wherry.Server(model, port=0) as server, wherry.Client(server.url) as client:
        for _ in range(3):
            with pytest.raises(wherry.WherryError, match="KeyError: 'a'") as told:
                ask(client, server.runtime.model("m").signature.streams)
            assert "in buggy" not in str(told.value)
    (failed, more) = [r for r in caplog.records if r.getMessage().startswith("model failed")]
    assert "in buggy" in failed.__dict__["traceback"]
    assert failed.__dict__["model"] == "m"
    assert more.__dict__["like_it"] == "2"


def test_what_the_caller_is_to_blame_for_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    class Picky(wherry.Model):
        name = "m"

        def execute(self, text: str) -> str:
            raise wherry.InvalidRequest("say please")

    with (
        wherry.Server(Picky(), port=0) as server,
        wherry.Client(server.url) as client,
        pytest.raises(wherry.InvalidRequest),
    ):
        client.infer("m", text="a")
    assert "model failed" not in caplog.text
