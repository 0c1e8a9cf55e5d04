"""Load processes: real ones, against a server in a thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import wherry
from wherry.bench.connection import Wire
from wherry.bench.figures import Table
from wherry.bench.inputs import encoded
from wherry.bench.load import LoadFailure, LoadProcesses, LoadProgress
from wherry.bench.plan import Closed, Plan
from wherry.testing import local_server

pytestmark = pytest.mark.slow


@wherry.model(max_batch_size=4)
def echo(text: list[str]) -> list[str]:
    return text


PATH = "/v2/models/echo/generate"
REQUESTS = [encoded("POST", PATH, "localhost", {}, b'{"text": "%d"}' % n) for n in (1, 2)]


@contextmanager
def wire() -> Iterator[Wire]:
    with local_server(echo) as server:
        yield Wire(port=int(server.url.rpartition(":")[2]))


def test_several_processes_share_a_plan_and_run_one_after_the_other() -> None:
    reports: list[LoadProgress] = []
    with wire() as where, LoadProcesses(2) as load:
        for requests in (20, 21):
            plan = Plan(load=Closed(callers=3), requests=requests)
            raw = load.run(plan, where, REQUESTS, on_progress=reports.append)
            assert len(raw.records) == requests
            assert raw.records.failures == 0
            assert len(raw.client) == 2
            assert min(Table.of(raw.records).intended) >= raw.began_at
        assert load.run(Plan(load=Closed(callers=1), requests=1), where, REQUESTS).client
    assert reports[-1].in_flight == 0


def test_an_interrupted_run_gives_what_there_is() -> None:
    with wire() as where, LoadProcesses(1) as load:
        reports: list[LoadProgress] = []
        raw = load.run(
            Plan(load=Closed(callers=2), duration=600),
            where,
            REQUESTS,
            on_progress=reports.append,
            interrupted=lambda: bool(reports) and reports[-1].answered > 0,
        )
        assert raw.interrupted
        assert len(raw.records) > 0
        assert raw.records.failures == 0
        # and they are ready for the next one
        assert len(load.run(Plan(load=Closed(callers=1), requests=5), where, REQUESTS).records) == 5


def test_a_load_process_that_dies_is_an_error_and_not_a_hang() -> None:
    with wire() as where, LoadProcesses(1) as load:
        (child,) = load._children

        def kill(progress: LoadProgress) -> None:
            if progress.answered:
                child.process.kill()

        with pytest.raises(LoadFailure, match="ended with code -9"):
            load.run(Plan(load=Closed(callers=1), duration=600), where, REQUESTS, on_progress=kill)


def test_our_own_mistake_in_a_load_process_comes_with_its_traceback() -> None:
    with LoadProcesses(1) as load, pytest.raises(LoadFailure, match="Traceback"):
        load.run(Plan(load=Closed(callers=1), requests=1), Wire(tls=True, ssl_ca="/no"), REQUESTS)
