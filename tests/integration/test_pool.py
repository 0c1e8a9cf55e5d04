"""A front that keeps its owners as processes of this machine: `wherry serve --on local`."""

import os
import signal
from pathlib import Path

import pytest

from tests.fakes import until
from tests.integration.pools import APP, callers, hello, owners
from wherry.testing import ServerProcess

pytestmark = pytest.mark.slow


def pool(folder: Path, replicas: str, *flags: str, app: str = APP) -> ServerProcess:
    (folder / "app.py").write_text(app)
    return ServerProcess("app.py", "--on", "local", "--replicas", replicas, *flags, cwd=str(folder))


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_an_owner_that_is_killed_is_replaced_and_no_request_is_lost(tmp_path: Path) -> None:
    with pool(tmp_path, "2") as front:
        first = owners(front.url, 2)
        with callers(front.url, 8) as seen:
            until(lambda: seen.total() > 100)
            os.kill(min(first), signal.SIGKILL)
            until(lambda: "replica serves  replica=2" in front.log)
            second = owners(front.url, 2)
            until(lambda: seen.total() > 200)
        assert seen == {(200, ""): seen.total()}
        assert first & second == {max(first)}
        assert front.stop() == 0
        until(lambda: all(map(is_gone, first | second)))


def test_a_roll_replaces_every_owner_and_no_request_is_lost(tmp_path: Path) -> None:
    with pool(tmp_path, "2") as front:
        first = owners(front.url, 2)
        with callers(front.url, 8) as seen:
            front.send(signal.SIGUSR1)
            until(lambda: front.log.count("replica is gone") == 2)
            second = owners(front.url, 2)
        assert seen == {(200, ""): seen.total()}
        assert not first & second


def test_a_replica_is_added_while_rows_wait_for_too_long(tmp_path: Path) -> None:
    with pool(tmp_path, "1..2", "--target-wait", "0.05") as front:
        with callers(front.url, 8, "slow") as seen:
            until(lambda: "replica serves  replica=1" in front.log)
        assert seen == {(200, ""): seen.total()}
        assert "replicas wanted" in front.log


def test_a_model_that_cannot_be_loaded_ends_the_front_with_the_reason(tmp_path: Path) -> None:
    broken = APP + "\nraise RuntimeError('no weights')\n"
    front = pool(tmp_path, "1", app=broken).start()
    try:
        assert front.wait() == 3
        assert "no replica could be started" in front.log
        assert "no weights" in front.log
    finally:
        front.stop()


def test_owners_end_with_their_front_even_if_it_is_killed(tmp_path: Path) -> None:
    with pool(tmp_path, "2") as front:
        pids = owners(front.url, 2)
        front.stop(signal.SIGKILL)
        until(lambda: all(map(is_gone, pids)))


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--on", "mars"], "'mars' is none of local, ray and ray://HOST"),
        (["--on", "local", "--replicas", "8..1"], "8..1"),
        (["--on", "local", "--fronts", "2"], "one front"),
        (["--on", "ray", "--replica-resource", "num_gpus"], "not NAME=VALUE"),
    ],
)
def test_what_a_pool_cannot_be_is_told(tmp_path: Path, flags: list[str], says: str) -> None:
    (tmp_path / "app.py").write_text(APP)
    front = ServerProcess("app.py", *flags, cwd=str(tmp_path)).start()
    try:
        assert front.wait() == 2
        assert says in front.log
    finally:
        front.stop()


def test_a_pool_answers_while_its_owners_are_few(tmp_path: Path) -> None:
    with pool(tmp_path, "1") as front:
        assert hello(front.url)[0] == 200
        assert hello(front.url, "nope")[0] == 404
