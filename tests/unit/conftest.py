"""What holds for unit tests: their event loops are in debug mode."""

import pytest


@pytest.fixture(autouse=True)
def _asyncio_debug_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls from the wrong thread and coroutines that nobody awaited become errors."""
    monkeypatch.setenv("PYTHONASYNCIODEBUG", "1")
