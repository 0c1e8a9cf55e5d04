"""A step model in a worker process, without a runner: what is handed out for each request."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

import pytest

import wherry
from tests.fakes import TIMEOUT
from tests.worker_models import Spelled
from wherry.core.instances.step_instance import StepInstance, StepProcess
from wherry.core.instances.worker_protocol import Share, Stepped
from wherry.core.models.model import Device
from wherry.core.workers.loop import WorkerLoop

if sys.platform == "win32":
    pytest.skip("worker processes need a Unix system", allow_module_level=True)

pytestmark = pytest.mark.slow


class Served:
    """An instance that a thread serves, and the shares that it hands out."""

    def __init__(self) -> None:
        self.loop = WorkerLoop("io")
        model = Spelled()
        self.instance = StepProcess(
            "Spelled_0", Device(), model, model.config(), lambda: self.loop.calls()
        )
        self.shares: SimpleQueue[Share] = SimpleQueue()
        self.instance.hand_out = self._hand_out
        self.instance.load()
        self.ends: SimpleQueue[Any] = SimpleQueue()
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def _serve(self) -> None:
        try:
            self.ends.put(self.instance.serve())  # type: ignore[func-returns-value]
        except wherry.WorkerDied as died:
            self.ends.put(died)

    def _hand_out(self, _: StepInstance, progress: Stepped) -> None:
        for share in progress.shares:
            self.shares.put(share)

    def until_done(self, *keys: int) -> dict[int, str]:
        """What each of these requests is given until its end."""
        given = dict.fromkeys(keys, "")
        left = set(keys)
        while left:
            share = self.shares.get(timeout=TIMEOUT)
            if share.key in given:
                given[share.key] += "".join(one["output"][0] for one in share.responses)
                if share.done or share.failure:
                    left.discard(share.key)
        return given

    def close(self) -> None:
        self.instance.stop()
        self.thread.join()
        self.instance.unload()
        self.loop.close()


@pytest.fixture
def served() -> Iterator[Served]:
    served = Served()
    yield served
    served.close()


def test_requests_join_at_any_time_and_get_their_own_shares(served: Served) -> None:
    served.instance.join(1, {"text": ["three"]})
    served.instance.join(2, {"text": ["ab"]})

    assert served.until_done(1, 2) == {1: "three", 2: "ab"}
    served.instance.join(3, {"text": ["again"]})
    assert served.until_done(3) == {3: "again"}


def test_a_request_that_leaves_behind_a_large_one_leaves(served: Served) -> None:
    """The large one is encoded in another thread; what was posted after it comes after it."""
    served.instance.join(1, {"text": ["x" * 3_000_000]})
    served.instance.leave(1)
    served.instance.join(2, {"text": ["ab"]})

    assert served.until_done(2) == {2: "ab"}


def test_a_request_that_cannot_be_sent_fails_alone(served: Served) -> None:
    served.instance.join(1, {"text": ["half a character: \ud800"]})
    served.instance.join(2, {"text": ["ab"]})
    refused = served.shares.get(timeout=TIMEOUT)

    assert refused.failure is not None
    assert (refused.key, refused.failure.error) == (1, "InvalidRequest")
    assert served.until_done(2) == {2: "ab"}


def test_a_death_ends_the_service_with_its_cause(served: Served) -> None:
    pid = served.instance.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)

    died = served.ends.get(timeout=TIMEOUT)
    assert str(died) == f"worker Spelled_0 (pid {pid}) was killed by SIGKILL"
