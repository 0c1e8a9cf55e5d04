"""What the server says of itself, between two moments."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import Any

import pytest

from wherry.bench import observe
from wherry.bench.observe import Look, Observer, difference


def stats(requests: int, sizes: dict[int, int], queue_ns: int = 0, fail: int = 0) -> dict[str, Any]:
    def both(count: int, ns: int) -> dict[str, int]:
        return {"count": count, "ns": ns}

    return {
        "inference_count": sum(size * count for size, count in sizes.items()),
        "execution_count": sum(sizes.values()),
        "inference_stats": {
            "success": both(requests, 0),
            "fail": both(fail, 0),
            "queue": both(requests, queue_ns),
            "compute_input": both(requests, 0),
            "compute_infer": both(requests, 5_000_000 * requests),
            "compute_output": both(requests, 0),
        },
        "batch_stats": [
            {"batch_size": size, "compute_infer": both(count, 0)} for size, count in sizes.items()
        ],
    }


def test_only_what_happened_in_between_counts() -> None:
    side = difference(stats(10, {1: 10}), stats(30, {1: 10, 4: 5}, 40_000_000))
    assert side is not None
    assert (side.requests, side.rows, side.executions) == (20, 20, 5)
    assert side.batch_sizes == {4: 5}
    assert side.mean_batch_size == 4
    assert side.queue == pytest.approx(0.002)
    assert side.compute_infer == pytest.approx(0.005)


def test_a_server_that_began_anew_or_tells_something_else_is_unknown() -> None:
    assert difference(stats(30, {1: 30}), stats(10, {1: 10})) is None
    assert difference(None, stats(1, {1: 1})) is None
    assert difference({"x": 1}, stats(1, {1: 1})) is None


def test_the_looks_that_enclose_the_window_are_taken() -> None:
    looks = [Look(float(at), stats(10 * at, {1: 10 * at}), cpu_seconds=0.5 * at) for at in range(6)]
    observer = Observer(looks=looks)
    side = observer.server_side(1.1, 3.5)
    assert side is not None
    assert side.requests == 30  # from 1 to 4
    assert observer.server_cores(1.1, 3.5) == pytest.approx(0.5)


def test_a_look_that_is_answered_after_the_start_is_none_before_it() -> None:
    within = Look(1.0, stats(3, {1: 3}), answered_at=1.2)
    observer = Observer(looks=[Look(0.0, stats(0, {})), within, Look(2.0, stats(8, {1: 8}))])
    side = observer.server_side(1.1, 2.0)
    assert side is not None
    assert side.requests == 8


def test_looks_that_were_not_answered_are_passed_over() -> None:
    looks = [Look(0.0, stats(0, {})), Look(1.0, stats(8, {2: 4})), Look(2.0), Look(3.0)]
    observer = Observer(looks=looks)
    side = observer.server_side(0.0, 3.0)
    assert side is not None
    assert side.requests == 8
    assert observer.server_cores(0.0, 3.0) is None
    assert Observer(looks=[Look(0.0), Look(1.0)]).server_side(0, 1) is None


def test_a_look_is_taken_at_the_beginning_and_the_end_and_its_thread_is_gone() -> None:
    asked: list[int] = []

    def statistics() -> dict[str, Any]:
        asked.append(1)
        return stats(len(asked), {1: len(asked)})

    with Observer(statistics, lambda: 3.0) as observer:
        pass
    assert len(observer.looks) >= 2
    times = [point[0] for point in observer.over_time()]
    assert times == sorted(times)
    assert observer.over_time()[-1][1:] == (3.0, 1.0)


def test_this_process_has_used_some_cpu_and_a_gone_one_is_unknown() -> None:
    before = observe.cpu_seconds(os.getpid())
    sum(range(200_000))
    after = observe.cpu_seconds(os.getpid())
    assert before is not None
    assert after is not None
    assert 0 < before <= after
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert observe.cpu_seconds(gone.pid) is None


def test_whoever_listens_on_a_port_is_found() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
        assert observe.listener(port) is None  # bound, and nobody listens
        sock.listen()
        assert observe.listener(port) == os.getpid()
    assert observe.listener(port) is None


def test_only_loopback_is_here() -> None:
    assert observe.is_here("localhost")
    assert observe.is_here("127.0.0.2")
    assert not observe.is_here("10.0.0.1")


def test_the_machines_facts_name_what_a_figure_depends_on() -> None:
    facts = observe.facts()
    assert facts["cores"] == os.cpu_count()
    assert "wherry" in facts["versions"]
