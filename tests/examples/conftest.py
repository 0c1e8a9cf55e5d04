"""What holds for examples: libuv's one pipe for signals is nobody's leak."""

import asyncio

import pytest
import uvloop


@pytest.fixture(autouse=True, scope="session")
def _uvloop_has_its_pipe() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.sleep(0))
