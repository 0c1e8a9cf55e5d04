"""What the loops make once for the whole process is not a leak of the first test that runs one."""

import asyncio

import pytest
import uvloop


@pytest.fixture(scope="session", autouse=True)
def _process_wide_pipe_of_libuv() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.sleep(0))
