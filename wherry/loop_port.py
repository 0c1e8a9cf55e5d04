"""How does one event loop reach the runtime, with one wake-up for many requests?"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from wherry.loaded_model import LoadedModel
from wherry.request import InferRequest


class LoopPort:
    """One event loop's way into the runtime.

    Requests of one turn of the loop are submitted together at its end, so that an idle instance
    gets all of them as one batch and not the first one alone; outcomes that other threads bring
    share one wake-up of the loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._requests: dict[LoadedModel, list[InferRequest]] = {}
        self._calls: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._awake = False

    def submit(self, model: LoadedModel, request: InferRequest) -> None:
        """In the loop's thread."""
        if not self._requests:
            self._loop.call_soon(self._flush)
        waiting = self._requests.get(model)
        if waiting is None:
            waiting = self._requests[model] = []
        waiting.append(request)

    def call(self, callback: Callable[[Any], None], argument: Any) -> None:
        """Have `callback(argument)` called in the loop. Any thread."""
        self._calls.append((callback, argument))
        if not self._awake:
            self._awake = True
            try:
                self._loop.call_soon_threadsafe(self._drain)
            except RuntimeError:  # the loop is closed: nobody is left to be told
                self._calls.clear()

    def _flush(self) -> None:
        requests, self._requests = self._requests, {}
        for model, waiting in requests.items():
            model.submit(waiting)

    def _drain(self) -> None:
        # First, so that whoever appends after the last popleft() wakes the loop again.
        self._awake = False
        calls = self._calls
        try:
            while calls:
                callback, argument = calls.popleft()
                callback(argument)
        finally:
            if calls:  # one raised: the others must be told all the same
                self._loop.call_soon(self._drain)
