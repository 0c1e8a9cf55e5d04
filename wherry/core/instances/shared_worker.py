"""What does a worker process do that several instances share?

    python -m wherry.core.instances.shared_worker NAME TURNS CONTROL RUNNING PARENT

CONTROL is the socket by which instances come, each with its descriptors, and that ends once the
last has left. RUNNING is memory with a byte for each. For TURNS seconds one runs at a time.

Each instance has a thread, which does what a worker process of its own would.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import logging
import mmap
import os
import socket
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from types import MappingProxyType

from wherry.core.instances.model_errors import model_errors
from wherry.core.instances.source import received
from wherry.core.instances.worker import Surroundings, end_with, run_instance, set_up
from wherry.core.instances.worker_protocol import Start
from wherry.core.observability.otel.providers import WorkerSpans
from wherry.core.workers.shared_process import JOIN

#: Seconds after which others no longer wait for the one whose turn it is: it may hang.
_TURN = 5.0


def main() -> None:
    turns = float(sys.argv[2])
    control, running, parent = map(int, sys.argv[3:])
    gc.freeze()  # as in a worker of one instance
    end_with(parent)
    faulthandler.enable()
    shared = _Shared(mmap.mmap(running, 0), time.monotonic() + turns)
    os.close(running)
    instances: list[threading.Thread] = []
    with socket.socket(fileno=control) as joins:
        joins.set_inheritable(False)
        while True:
            message, files, _, _ = socket.recv_fds(joins, JOIN.size, 4)
            if not message:
                break
            instances = [one for one in instances if one.is_alive()]
            place, instance = JOIN.unpack(message)
            instance = instance.rstrip(b"\0").decode(errors="replace")
            thread = threading.Thread(
                target=_run,
                args=(files, instance, _Place(shared, place)),
                name=instance,
                daemon=True,  # one that hangs must not keep the process
            )
            thread.start()
            instances.append(thread)
    for thread in instances:
        thread.join(1.0)
    if any(thread.is_alive() for thread in instances):
        os._exit(1)  # the parent has ended
    shared.spans.close()


def _run(files: list[int], instance: str, place: _Place) -> None:
    source, target, life, slab = files
    os.set_inheritable(life, False)
    place.begin(instance)
    try:
        run_instance(source, target, slab, place)
    except (EOFError, ConnectionError):
        pass  # the parent has given it up, or has ended
    except model_errors():  # of its `unload`; else the parent is waiting, and ends the process
        logging.getLogger("wherry").exception("worker failed", extra={"worker": instance})
    with socket.socket(fileno=life) as end, suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)  # a fork of this process may hold it open


class _ThreadFields(threading.local):
    """Which instance's thread this is, for the log."""

    fields: Mapping[str, str] = MappingProxyType({})


class _Shared:
    """What all instances of this process have in common."""

    def __init__(self, running: mmap.mmap, turns_until: float) -> None:
        self.running = running
        self.turns_until = turns_until
        self.turn = threading.Lock()
        #: Since when one has it.
        self.turn_since = 0.0
        self.imports = threading.Lock()
        self.spans = WorkerSpans()
        self.is_set_up = False
        self.origin = _ThreadFields()


class _Place(Surroundings):
    """An instance's place in this process. Entered while the model's code runs."""

    is_shared = True

    def __init__(self, shared: _Shared, place: int) -> None:
        self._shared = shared
        self._place = place
        self._has_turn = False
        self._most_seconds = _TURN
        self.spans = shared.spans
        self.imports = shared.imports
        self.running = self

    def begin(self, instance: str) -> None:
        self._shared.origin.fields = {"instance": instance}

    def set_up(self, start: Start) -> None:
        shared = self._shared
        shared.origin.fields = {**shared.origin.fields, "model": start.config.name}
        limit = start.config.execution_timeout
        self._most_seconds = _TURN if limit is None else min(_TURN, limit / 2)
        if shared.is_set_up:  # others may have added to the path
            known = set(sys.path)
            sys.path += [one for one in map(received, start.path) if one not in known]
            set_up(start)
            return
        super().set_up(start)
        logging.getLogger().handlers[0].addFilter(self._add_origin)
        shared.is_set_up = True

    def give_back(self) -> None:
        """Return to the system and the device what the model had allocated."""
        gc.collect()
        cuda = getattr(sys.modules.get("torch"), "cuda", None)
        if cuda is not None and cuda.is_initialized():
            cuda.empty_cache()
        with suppress(OSError, AttributeError):  # glibc has it
            ctypes.CDLL(None).malloc_trim(0)

    def _add_origin(self, record: logging.LogRecord) -> bool:
        for name, value in self._shared.origin.fields.items():
            record.__dict__.setdefault(name, value)
        return True

    def __enter__(self) -> None:
        shared, now = self._shared, time.monotonic()
        self._has_turn = now < shared.turns_until and self._wait_for_turn(now)
        shared.running[self._place] = 1

    def _wait_for_turn(self, now: float) -> bool:
        shared = self._shared
        if not shared.turn.acquire(blocking=False):
            left = max(0.0, shared.turn_since + self._most_seconds - now)
            if not shared.turn.acquire(timeout=left):
                return False
        shared.turn_since = time.monotonic()
        return True

    def __exit__(self, *_: object) -> None:
        self._shared.running[self._place] = 0
        if self._has_turn:
            self._shared.turn.release()


if __name__ == "__main__":
    main()
