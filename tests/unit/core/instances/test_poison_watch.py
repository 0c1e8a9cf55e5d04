"""Are equal requests found to be equal, and no others?"""

from typing import Any

import numpy as np
import pytest

from wherry.core.instances.poison_watch import PoisonWatch, digest_of, sketch_of
from wherry.core.values.errors import WorkerDied
from wherry.core.values.reply import Reply
from wherry.core.values.request import InferRequest

DIED = WorkerDied("was killed by SIGABRT")


def request(column: Any, name: str = "x", **parameters: Any) -> InferRequest:
    return InferRequest({name: column}, 1, Reply(lambda _: None), parameters=parameters or None)


def key(one: InferRequest) -> tuple[Any, ...]:
    return sketch_of(one), digest_of(one)


NAN = float("nan")


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.arange(24.0).reshape(1, 2, 12),
        lambda: np.arange(24.0).reshape(1, 12, 2).transpose(0, 2, 1),
        lambda: np.array([[NAN, 0.0]]),
        lambda: np.zeros((1, 0)),
        lambda: [np.array(3.0)],
        lambda: np.array([[True]]),
        lambda: np.array([[1.0]], dtype=np.float16),
        lambda: ["text"],
        lambda: [b"\xff\x00"],
        lambda: ["\ud800"],
        lambda: [[b"a", b"b"]],
        lambda: [{"a": [1, NAN, None, 10**30]}],
        lambda: [None],
        lambda: [object],
        lambda: [np.arange(3), np.arange(4)],
        list,
    ],
)
def test_equal_requests_have_equal_keys(make: Any) -> None:
    assert key(request(make())) == key(request(make()))


def test_other_requests_have_others() -> None:
    columns: list[Any] = [
        np.zeros((1, 1000)),
        np.zeros((1000, 1)),
        np.zeros((1, 1000), dtype=np.int64),
        np.eye(1, 1000, 501),
        np.eye(1, 1000, 502),
        ["a"],
        [b"a"],
        ["b"],
        ["a" * 1000],
        ["a" * 500 + "b" + "a" * 499],
        ["a", ""],
        ["", "a"],
        [{"a": 1}],
        [{"a": 2}],
        [["a", "b"]],
        [["ab"]],
    ]
    keys = [key(request(column)) for column in columns]
    keys += [key(request(["a"], "y")), key(request(["a"], temperature=1))]
    assert len(set(keys)) == len(keys)


def test_a_request_is_compared_in_full_only_if_its_sketch_is_a_known_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watch = PoisonWatch("m", lambda: 0.0)
    assert not watch.active
    for _ in range(2):
        watch.died([request(np.zeros((1, 1000)))], 0, DIED)
    assert watch.active
    assert watch.refusal(request(np.zeros((1, 1000)))) is not None
    assert watch.refusal(request(np.eye(1, 1000, 501))) is None
    monkeypatch.setattr("wherry.core.instances.poison_watch.digest_of", None)  # it would raise
    assert watch.refusal(request(np.ones((1, 1000)))) is None
    assert watch.refusal(request(["a"])) is None


def test_nothing_is_compared_any_more_when_the_time_is_over() -> None:
    now = 0.0
    watch = PoisonWatch("m", lambda: now)
    for _ in range(2):
        watch.died([request(["a"])], 0, DIED)
    now = 59.0
    assert watch.refusal(request(["a"])) is not None
    now = 700.0
    assert watch.refusal(request(["a"])) is None
    assert not watch.active
