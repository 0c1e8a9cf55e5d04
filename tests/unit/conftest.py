"""What holds for unit tests: their event loops are in debug mode."""

import asyncio
import logging

import pytest
import uvloop


@pytest.fixture(autouse=True, scope="session")
def _uvloop_has_its_pipe() -> None:
    """libuv makes one pipe for signals in the process's life, with the first loop: no leak."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.sleep(0))


@pytest.fixture(autouse=True)
def _asyncio_debug_mode(monkeypatch: pytest.MonkeyPatch, _the_log_stays_as_it_is: None) -> None:
    """Calls from the wrong thread and coroutines that nobody awaited become errors.

    That a turn of a loop took long is what a busy machine does: no record among a test's.
    """
    monkeypatch.setenv("PYTHONASYNCIODEBUG", "1")
    logging.getLogger("asyncio").addFilter(_is_error)  # a level empties all loggers' caches


def _is_error(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.ERROR
