"""How does the program that started a server learn that it is ready?"""

import asyncio
import os
import socket
from pathlib import Path

import pytest

import wherry
from tests.unit.server.asking import upper
from wherry.core.values.errors import ConfigError
from wherry.server.pipes import ReadyPipe, StopPipe, notify


def test_the_close_of_the_other_end_stops_a_server_and_what_is_written_does_not() -> None:
    read, write = os.pipe()

    async def use() -> None:
        ended = asyncio.Event()
        pipe = StopPipe(read)
        pipe.watch(asyncio.get_running_loop(), ended.set)
        os.write(write, b"hello")
        await asyncio.sleep(0)
        assert not ended.is_set()
        os.close(write)
        await ended.wait()
        pipe.close()

    asyncio.run(use())
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.close(read)


def test_a_server_drains_when_its_starter_has_gone() -> None:
    read, write = os.pipe()
    with wherry.Server(upper, port=0, stop_fd=read) as server:
        assert server.url
        os.close(write)
        assert server._thread is not None
        server._thread.join()
        assert server.runtime.models() == []


def test_what_cannot_be_watched_is_told() -> None:
    async def use() -> None:
        read, write = os.pipe()
        os.close(read)
        os.close(write)
        with pytest.raises(ConfigError, match=f"stop_fd {read}: Bad file descriptor"):
            StopPipe(read).watch(asyncio.get_running_loop(), lambda: None)

    asyncio.run(use())


def test_without_a_descriptor_nothing_is_watched() -> None:
    async def use() -> None:
        pipe = StopPipe(None)
        pipe.watch(asyncio.get_running_loop(), lambda: None)
        pipe.close()

    asyncio.run(use())


def test_it_gets_the_url_and_then_its_end() -> None:
    read, write = os.pipe()
    os.set_inheritable(write, True)
    pipe = ReadyPipe(write)
    pipe.keep()
    assert not os.get_inheritable(write)
    pipe.report("http://127.0.0.1:1")
    pipe.close()
    with os.fdopen(read) as reader:
        assert reader.read() == "http://127.0.0.1:1\n"


def test_a_reader_that_is_gone_is_no_reason_not_to_serve() -> None:
    read, write = os.pipe()
    os.close(read)
    ReadyPipe(write).report("http://127.0.0.1:1")
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.close(write)


def test_what_is_no_descriptor_is_told() -> None:
    read, write = os.pipe()
    os.close(read)
    os.close(write)
    with pytest.raises(ConfigError, match=f"ready_fd {write}: Bad file descriptor"):
        ReadyPipe(write).keep()


def test_without_a_descriptor_nothing_happens() -> None:
    pipe = ReadyPipe(None)
    pipe.keep()
    pipe.report("http://127.0.0.1:1")
    pipe.close()


@pytest.mark.parametrize("abstract", [False, True])
def test_a_service_manager_is_told_once_and_children_do_not_know_it(
    tmp_path: Path, abstract: bool
) -> None:
    address = f"\0{tmp_path}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.settimeout(10)
        environment = {"NOTIFY_SOCKET": address.replace("\0", "@")}
        notify("READY=1", environment)
        notify("READY=1", environment)
        assert manager.recv(100) == b"READY=1"
        assert environment == {}
        manager.setblocking(False)
        with pytest.raises(BlockingIOError):
            manager.recv(100)


def test_a_service_manager_that_is_gone_is_no_reason_not_to_serve(tmp_path: Path) -> None:
    notify("READY=1", {"NOTIFY_SOCKET": str(tmp_path / "gone")})
    notify("READY=1", {"NOTIFY_SOCKET": "vsock:2:1"})
