"""How does a server learn that the program that started it has ended?"""

import asyncio
import os

import pytest

import wherry
from tests.unit.server.asking import upper
from wherry.core.values.errors import ConfigError
from wherry.server.stop_pipe import StopPipe


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


def test_what_is_no_descriptor_is_told() -> None:
    async def use() -> None:
        read, write = os.pipe()
        os.close(read)
        os.close(write)
        with pytest.raises(ConfigError, match=f"stop_fd {read}: Bad file descriptor"):
            StopPipe(read).watch(asyncio.get_running_loop(), lambda: None)

    asyncio.run(use())


def test_without_a_descriptor_nothing_happens() -> None:
    async def use() -> None:
        pipe = StopPipe(None)
        pipe.watch(asyncio.get_running_loop(), lambda: None)
        pipe.close()

    asyncio.run(use())
