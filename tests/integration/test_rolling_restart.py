"""A successor takes over from a server under load, and nothing is lost between the two."""

import random
import signal
from pathlib import Path

import pytest

from benchmarks.restart_clients import Ledger
from benchmarks.restarts import rolling

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

#: Clients that must have been answered all along.
KINDS = ("keep-alive", "idle", "connection", "events", "pipelined", "grpc", "grpc-stream")


def test_nothing_is_lost_when_a_successor_listens_on_the_same_port(tmp_path: Path) -> None:
    ledger = Ledger()
    codes, _ = rolling(tmp_path, ledger, 1, signal.SIGTERM, random.Random(1))
    assert codes == [0, 0]
    assert ledger.lost() == 0, ledger.counts
    assert all(ledger.counts[kind, "answered"] for kind in KINDS)
