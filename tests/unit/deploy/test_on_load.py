"""How many replicas Ray Serve runs, and which one gets a request."""

import asyncio
import importlib.util
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from wherry.core.observability.load_meter import LoadReport
from wherry.deploy.on_load import answer_seconds, replicas_needed, routing_stats


def context(*busy: float, requests: float = 0, replicas: int | None = None) -> Any:
    """What Ray Serve's controller knows, of replicas that are so busy."""
    return SimpleNamespace(
        aggregated_metrics={"utilisation": dict(enumerate(busy))} if busy else {},
        current_num_replicas=len(busy) if replicas is None else replicas,
        target_num_replicas=len(busy) if replicas is None else replicas,
        total_num_requests=requests,
        config=SimpleNamespace(get_target_ongoing_requests=lambda: 32),
    )


@pytest.mark.parametrize(
    ("known", "needed"),
    [
        (context(0.19, 0.19, 0.19, requests=90), 1),  # 90 at once, but slow to come
        (context(0.7, 0.7, 0.7), 3.0),
        (context(0.5, 0.9), 2.0),
        (context(1.0, requests=300), 300 / 32),  # a burst: at once, not by 1.4 each time
        (context(0.9, 0.9, requests=40), 2.571429),
        (context(0.0, 0.0), 0),
        (context(0.0, requests=1), 1),  # not to zero while one is there
        (context(0.6, replicas=3), 2.571429),  # two have not told yet: as the one that has
        (context(replicas=2, requests=50), 2),
    ],
)
def test_as_many_replicas_as_full_batches_need(known: Any, needed: float) -> None:
    assert replicas_needed(known)[0] == pytest.approx(needed, abs=1e-6)


def told(**values: float) -> dict[str, float]:
    return routing_stats(LoadReport(**values))  # type: ignore[arg-type]


def test_a_slow_replica_answers_later_with_fewer_requests() -> None:
    fast = told(answer_seconds=0.005, one_seconds=0.005, row_seconds=0.0004)
    slow = told(answer_seconds=0.025, one_seconds=0.025, row_seconds=0.002)
    assert answer_seconds(fast, 40) < answer_seconds(slow, 2)
    assert answer_seconds(fast, 60) > answer_seconds(slow, 0)


def test_what_was_sent_since_counts_and_what_was_answered_since() -> None:
    busy = told(answer_seconds=0.1, one_seconds=0.01, row_seconds=0.002, queued_rows=30)
    assert answer_seconds(busy, 30) == pytest.approx(0.1)
    assert answer_seconds(busy, 40) == pytest.approx(0.12)
    assert answer_seconds(busy, 0) == pytest.approx(0.04)
    assert answer_seconds({**busy, "answer_seconds": 0.02}, 0) == 0.01  # never less than one row


def test_a_hung_replica_comes_last_whatever_it_was_sent() -> None:
    hung = told(answer_seconds=9.0, row_seconds=0.001, running_rows=8)
    assert answer_seconds(hung, 8) > answer_seconds(told(row_seconds=0.001), 500)


def test_a_replica_that_fails_fast_does_not_attract_requests() -> None:
    good = told(answer_seconds=0.05, row_seconds=0.002, requests_per_second=90)
    bad = told(answer_seconds=0.002, row_seconds=0.0001, errors_per_second=800)
    assert answer_seconds(bad, 0) > answer_seconds(good, 10)
    half = told(answer_seconds=0.02, requests_per_second=50, errors_per_second=50)
    assert answer_seconds(half, 0) == pytest.approx(0.04)


def test_a_replica_that_has_told_nothing_is_tried() -> None:
    assert answer_seconds({}, 7) == 0.0


class _Router:
    """What the router uses of Ray's."""

    _replica_queue_len_cache: dict[str, int]

    @property
    def replica_queue_len_cache(self) -> dict[str, int]:
        return self._replica_queue_len_cache


@pytest.fixture
def _ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray, or a stand-in where it is not installed."""
    if importlib.util.find_spec("ray") is not None:
        return
    of_ray = ModuleType("ray.serve.request_router")
    for name in ("FIFOMixin", "MultiplexMixin", "PendingRequest", "RunningReplica"):
        setattr(of_ray, name, type(name, (), {}))
    setattr(of_ray, "RequestRouter", _Router)  # noqa: B010 - mypy knows no such name in a module
    for name in ("ray", "ray.serve"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, of_ray.__name__, of_ray)
    monkeypatch.delitem(sys.modules, "wherry.deploy.ray_router", raising=False)


@pytest.mark.usefixtures("_ray")
def test_the_router_ranks_each_replica_alone() -> None:
    from wherry.deploy.ray_router import FirstAnswer

    stats = {"a": told(answer_seconds=0.3), "b": told(answer_seconds=0.1), "c": {}}
    replicas = [SimpleNamespace(replica_id=name, routing_stats=stats[name]) for name in "abc"]
    router = object.__new__(FirstAnswer)
    router._replica_queue_len_cache = {"a": 0, "c": 5}
    ranks = asyncio.run(router.choose_replicas(replicas))
    assert [[one.replica_id for one in rank] for rank in ranks] == [["c"], ["b"], ["a"]]
