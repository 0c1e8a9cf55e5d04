"""Which models of a runtime are loaded now, where not all of them fit on their device?

A model that sleeps is ready to its callers: its requests wait in its queue, and the first of them
wakes it. `DeviceTurns` decides which model sleeps for which, and when; here it is done.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from math import inf
from typing import Any, Final

from wherry.core.instances.device_errors import out_of_memory
from wherry.core.instances.instance_slots import Maker, shortage
from wherry.core.instances.runner import InstanceRunner, Runner
from wherry.core.models.model import Model
from wherry.core.observability.machine import Machine, cache_folder, gpus
from wherry.core.observability.statistics import ModelStatistics
from wherry.core.residency.footprints import Footprints, MemoryUse
from wherry.core.residency.policy import ArrivalRate, DeviceTurns, ModelView, State, Swaps
from wherry.core.values.errors import LoadFailed, ModelNotReady, WherryError, WorkerDied
from wherry.core.values.request import InferRequest

log = logging.getLogger("wherry")

#: The share of a GPU's free memory that models may take if no budget is set.
GPU_SHARE: Final = 0.9
#: Seconds between two looks: while a model waits for room, and otherwise.
OFTEN, SELDOM = 0.02, 1.0
#: Seconds for which refused callers are expected, from the time at which they can retry.
COME_BACK: Final = 5.0
#: Seconds after which a model that could not be loaded is tried again, and the most of them.
FIRST_RETRY, LAST_RETRY = 1.0, 60.0


class Activity:
    """What a model has had to do, from looks at its counters."""

    def __init__(self, now: float) -> None:
        self.arrivals = ArrivalRate(now)
        #: When something was last seen to run, or to have run.
        self.ran_at = -inf
        self._came = self._ended = 0

    def look(self, statistics: ModelStatistics, waits: int, now: float, *, running: bool) -> None:
        ended = statistics.success.count + statistics.fail.count
        if ended + waits > self._came:
            self.arrivals.arrived(now, ended + waits - self._came)
        if running or ended != self._ended:
            self.ran_at = now
        self._came, self._ended = ended + waits, ended


class LoadFailures:
    def __init__(self) -> None:
        self.count = 0
        self.last: WherryError | None = None
        self.retry_at = 0.0

    def failed(self, error: WherryError, now: float) -> float:
        """Returns the seconds until the next try."""
        delay = min(LAST_RETRY, FIRST_RETRY * 2.0 ** min(10, self.count))
        self.count, self.last, self.retry_at = self.count + 1, error, now + delay
        return delay


class SwapTimes:
    """How long a model took to wake and to sleep the last time, and all its wakes."""

    def __init__(self) -> None:
        self.wake_seconds = self.sleep_seconds = 0.0
        #: From host memory; 0: it has not been there.
        self.copy_seconds = 0.0
        self.wakes, self.waking_seconds = 0, 0.0

    def woke(self, seconds: float, *, by_copy: bool) -> None:
        if by_copy:
            self.copy_seconds = seconds
        else:
            self.wake_seconds = seconds
        self.wakes += 1
        self.waking_seconds += seconds


class Resident:
    def __init__(
        self,
        runner: InstanceRunner[Any],
        name: str,
        device: str,
        memory: MemoryUse,
        now: float,
        *,
        always: bool,
    ) -> None:
        """`name`: to the policy. `always`: it never sleeps."""
        self.runner, self.config, self.device = runner, runner.config, device
        self.name, self.memory, self.always = name, memory, always
        self.state: State = "ready" if always else "asleep"
        #: When it became ready, or began to wake.
        self.awake_since = 0.0
        self.swaps = SwapTimes()
        #: Callers that wait for it to be awake without a request.
        self.waiters = 0
        #: When it could be ready at the soonest, and until when refused callers are expected back.
        self.ready_at = self.expected_until = 0.0
        #: Since when requests wait for it.
        self.waits_since: float | None = None
        self.why = self.slept_for = ""
        self.failures = LoadFailures()
        #: Another one wakes at the same time: a rise of the device's memory is not its own alone.
        self.wakes_beside = False
        #: It could not be loaded beside others: it is tried once more with nothing beside it.
        self.takes_all = False
        self.activity = Activity(now)
        #: Bytes of its device that it keeps while its weights are in host memory.
        self.kept = 0

    def footprint(self, most: int) -> int:
        """Bytes that it takes, as far as is known; else all that it may have, as it does if it was
        seen to take more."""
        known = self.memory.known
        if self.always:
            return known
        return most if self.takes_all or not known else max(self.memory.declared, min(known, most))

    @property
    def wake_seconds(self) -> float:
        """The next wake is expected to take this; 0: not known."""
        by_copy = self.runner.on_host or self.state != "asleep"
        return (by_copy and self.swaps.copy_seconds) or self.swaps.wake_seconds

    def held(self) -> int:
        """Bytes that its workers, or all users of its device, hold."""
        workers = sum(one.rss_bytes or 0 for one in self.runner.instances)
        return workers if workers and self.device == "cpu" else _held(self.device)

    def view(self, most: int, now: float) -> ModelView:
        runner, activity = self.runner, self.activity
        waits, running = runner.queued_requests, runner.is_running()
        activity.look(runner.statistics.fold(), waits, now, running=running)
        queued = waits + self.waiters + (now < self.expected_until)
        if now < self.failures.retry_at:
            queued = 0
        if not queued:
            self.waits_since = None
        elif self.waits_since is None:
            self.waits_since = now
        load = runner.load()
        ran = max((now - since for _, _, since in runner.running()), default=0.0)
        return ModelView(
            name=self.name,
            footprint=max(0, self.footprint(most) - self.kept),
            state=self.state,
            wake_seconds=self.wake_seconds,
            sleep_seconds=self.swaps.sleep_seconds,
            queued=queued,
            oldest_wait=0.0 if self.waits_since is None else now - self.waits_since,
            work_seconds=max(load.free_after, ran) + load.waiting_seconds(load.queued_rows),
            arrival_rate=activity.arrivals.rate(now),
            last_arrival=now - activity.arrivals.last_at,
            running=running,
            last_ran=now - activity.ran_at,
            always=self.always,
            priority=self.config.resource_priority,
            awake_since=self.awake_since,
        )

    def refusal(self, request: InferRequest, now: float) -> WherryError | None:
        """Why a request that comes now is refused: it cannot be ready before its deadline."""
        if request.deadline is None or request.deadline >= self.ready_at or not self.wake_seconds:
            return None
        error = ModelNotReady(
            f"model {self.config.name!r} sleeps, and could be ready in about"
            f" {self.ready_at - now:.1f} s, too long for this request's timeout"
            f" ({request.deadline - now:.3f} s): come back then, or allow more time"
        )
        error.retry_after = max(1.0, self.ready_at - now)
        return error

    def measure(self, rise: int) -> None:
        """Measure what it takes now; `rise`: by how much its load has raised what the device, or
        this process, holds, to which others may have contributed."""
        workers = sum(one.worker.held_bytes for one in self.runner.instances if one.worker)
        seen = workers if self.device == "cpu" else 0
        self.memory.see(max(seen, 0 if self.memory.declared else rise))

    def explain(self) -> dict[str, Any]:
        return {
            "device": self.device,
            "state": "resting" if self.state == "asleep" and self.runner.on_host else self.state,
            "resident": "always" if self.always else "when asked",
            #: None: not known before its first load.
            "footprint_bytes": self.memory.known or None,
            "wakes": self.swaps.wakes,
            "waking_seconds": round(self.swaps.waking_seconds, 3),
            "why": self.why,
            "slept_for": self.slept_for,
        }


class Residency:
    """Wakes models and puts them to sleep. Safe from any thread.

    `budgets` are bytes by device ("cpu", "cuda:0"). Without one, models on a GPU may take GPU_SHARE
    of what is free at the start, and on the CPU any number of bytes.
    """

    def __init__(self, budgets: Mapping[str, int], clock: Callable[[], float]) -> None:
        self._budgets = dict(budgets)
        self._footprints = Footprints(cache_folder() / "footprints.json")
        self._clock = clock
        self._changed = threading.Condition()
        self._residents: dict[Runner, Resident] = {}
        self._turns: dict[str, DeviceTurns] = {}
        self._budget_of: dict[str, int] = {}
        self._thread: threading.Thread | None = None
        self._closed = False
        self._is_due = False

    # Which models

    def add(self, runner: Runner, model: Model) -> bool:
        """Manage a model that is about to be loaded. True: it sleeps now, and is not to be started.
        Raises LoadFailed if it can never fit."""
        if not isinstance(runner, InstanceRunner):
            return False
        config = runner.config
        devices = [
            one.device for one in runner.life.slots.makers.values() if isinstance(one, Maker)
        ]
        names = {str(one) for one in devices}
        if len(names) != 1:
            return False  # it has several devices, and stays on them
        (device,) = names
        chosen = config.resident or ("when asked" if device in self._budgets else "always")
        if chosen == "always" and device not in self._budgets:
            return False
        memory = self._footprints.of(model, config, device, len(devices))
        always = chosen == "always" or config.sequence is not None
        with self._changed:
            if device not in self._turns:
                self._budget_of[device] = self._find_budget(device)
                self._turns[device] = DeviceTurns(self._budget_of[device])
            budget = self._budget_of[device]
            if memory.declared > budget:
                raise LoadFailed(
                    f"model {config.name!r}: its memory, {memory.declared:,} bytes on {device},"
                    f" is more than the device's budget of {budget:,} bytes (--device-memory)"
                )
            name = f"{config.name}:{config.version}"
            while any(one.name == name for one in self._residents.values()):
                name += "'"  # it is about to take the place of that one
            resident = Resident(runner, name, device, memory, self._clock(), always=always)
            self._residents[runner] = resident
            runner.residence = resident.explain
            if always:
                return False
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(
                    target=self._run, name="wherry-residency", daemon=True
                )
                self._thread.start()
        runner.life.sleep()
        runner.check_while_asleep(partial(self._refusal, resident))
        runner.sleep_if_idle()
        return True

    def loaded(self, runner: Runner) -> None:
        """A model that was not put to sleep is loaded."""
        with self._changed:
            resident = self._residents.get(runner)
        if resident is not None:
            resident.measure(0)

    def remove(self, runner: Runner) -> None:
        """The model is closed, or was not loaded."""
        with self._changed:
            self._residents.pop(runner, None)
            self._changed.notify_all()

    def wake(self, runner: Runner) -> None:
        """Load a model that sleeps, when there is room. Blocks. Raises why it cannot be loaded."""
        with self._changed:
            resident = self._residents.get(runner)
            if resident is None or resident.always:
                return
            resident.waiters += 1
            resident.failures.retry_at = 0.0
            failures = resident.failures.count
            self._is_due = True
            self._changed.notify_all()
            try:
                self._changed.wait_for(
                    lambda: (
                        resident.state == "ready"
                        or resident.failures.count > failures
                        or runner not in self._residents
                        or self._closed
                    )
                )
            finally:
                resident.waiters -= 1
            if resident.failures.count > failures and resident.failures.last is not None:
                raise resident.failures.last
            if resident.state != "ready":
                raise ModelNotReady(f"model {resident.config.name!r} was unloaded before it woke")

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _find_budget(self, device: str) -> int:
        if device in self._budgets:
            return self._budgets[device]
        gpu = _gpu(device)
        if gpu is not None and gpu.memory_total_bytes is not None:
            return int((gpu.memory_total_bytes - (gpu.memory_used_bytes or 0)) * GPU_SHARE)
        return 1 << 62

    # The thread that decides

    def _refusal(self, resident: Resident, request: InferRequest) -> WherryError | None:
        """A request has come to a model that sleeps or wakes: the error if it is refused."""
        with self._changed:
            now = self._clock()
            error = resident.refusal(request, now)
            if error is not None:  # for callers that come back
                resident.expected_until = max(
                    resident.expected_until, resident.ready_at + COME_BACK
                )
            elif resident.waits_since is not None or now < resident.failures.retry_at:
                return None  # others wait already
            self._is_due = True
            self._changed.notify_all()
            return error

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    return
                self._is_due = False
                try:
                    wait = self._look(self._clock())
                except Exception:  # our own bug: the models go on as they are
                    log.exception("internal error", extra={"of": "residency"})
                    wait = SELDOM
                self._changed.wait_for(lambda: self._is_due or self._closed, wait)

    def _look(self, now: float) -> float:
        """Decide for every device, and begin what was decided. Returns the seconds until the next
        look."""
        wait = SELDOM
        for device, turns in self._turns.items():
            here = [one for one in self._residents.values() if one.device == device]
            self._rest(here, now)
            turns.budget_bytes = self._budget_of[device] - sum(one.kept for one in here)
            fixed = sum(one.footprint(0) for one in here if one.always)
            most = max(0, turns.budget_bytes - fixed)
            self._refuse_too_large(here, most)
            views = [one.view(most, now) for one in here]
            decision = turns.decide(views, now)
            for one, view in zip(here, views, strict=True):
                one.ready_at = now + turns.refused(view, now)
            if decision.look_again_at is not None:
                wait = min(wait, decision.look_again_at - now)
            if any(one.waits_since is not None and one.state == "asleep" for one in here):
                wait = min(wait, OFTEN)
            self._begin(decision, {one.name: one for one in here}, now)
        return max(wait, OFTEN)

    def _refuse_too_large(self, here: Iterable[Resident], most: int) -> None:
        for one in here:
            if one.state == "asleep" and one.memory.declared > most and one.waits_since is not None:
                text = (
                    f"model {one.config.name!r}: its memory, {one.memory.declared:,} bytes on"
                    f" {one.device}, is more than models that always stay there leave of it,"
                    f" {most:,} bytes (--device-memory)"
                )
                self._refuse(one, LoadFailed(text))

    def _rest(self, here: Iterable[Resident], now: float) -> None:
        """Measure what awake models take; those without a request go back to sleep quietly."""
        for one in here:
            if one.state == "ready":
                one.measure(0)
            elif one.state == "asleep" and now >= one.failures.retry_at and not one.waiters:
                one.runner.sleep_if_idle()

    def _begin(self, decision: Swaps, here: Mapping[str, Resident], now: float) -> None:
        for name, why in decision.why.items():
            here[name].why = why
        for name in decision.sleep:
            one = here[name]
            one.slept_for = ", ".join(n for n in decision.why if n != name and here[n].waits_since)
            self._start(one, "stopping", self._put_to_sleep)
        for name in decision.wake:
            resident = here[name]
            if resident.state == "stopping":
                if resident.runner.stay():
                    resident.state = "ready"
                continue
            waking = [one for one in here.values() if one.state == "waking"]
            for one in (resident, *waking):
                one.wakes_beside = bool(waking)
            self._start(resident, "waking", self._wake)
            resident.awake_since = now

    def _start(self, resident: Resident, state: State, act: Callable[[Resident], None]) -> None:
        threading.Thread(
            target=act, args=(resident,), name=f"wherry-{state}-{resident.name}", daemon=True
        ).start()  # it changes no state before the lock is released
        resident.state = state

    # What takes time, each in a thread of its own

    def _put_to_sleep(self, resident: Resident) -> None:
        before, offload = resident.held(), _may_offload(resident)
        if not resident.runner.fall_asleep(offload=offload):
            return  # it is ready again
        resident.swaps.sleep_seconds = resident.runner.life.unload_seconds
        resident.kept = 0
        if resident.runner.on_host and not resident.memory.declared:
            freed = max(0, before - resident.held())
            resident.kept = max(0, resident.memory.known - freed)
        self._footprints.keep(resident.memory)
        self._became(resident, "asleep")
        log.info("model sleeps", extra=_fields(resident, "why", resident.why))

    def _wake(self, resident: Resident) -> None:
        began, before = self._clock(), _held(resident.device)
        by_copy = bool(resident.runner.on_host)
        try:
            resident.runner.wake()
        except WherryError as error:
            self._could_not_wake(resident, error)
            return
        except Exception as error:  # noqa: BLE001 - the system, as when it has no thread left
            failed = LoadFailed(f"model {resident.config.name!r} could not be loaded: {error}")
            failed.__cause__ = error
            self._could_not_wake(resident, failed)
            return
        resident.swaps.woke(self._clock() - began, by_copy=by_copy)
        resident.failures, resident.takes_all = LoadFailures(), False
        in_worker = any(one.worker is not None for one in resident.runner.instances)
        is_apart = in_worker and resident.device == "cpu"
        rise = (
            0 if is_apart or by_copy or resident.wakes_beside else _held(resident.device) - before
        )
        resident.measure(rise)
        self._footprints.keep(resident.memory)
        self._became(resident, "ready")
        log.info("model is awake", extra=_fields(resident, "seconds", resident.wake_seconds))

    def _could_not_wake(self, resident: Resident, error: WherryError) -> None:
        """Once more with nothing beside it, if memory was short or its worker died; else its
        callers get the error, and it is tried again later."""
        resident.runner.fall_asleep()
        resident.kept = 0
        cause = error.__cause__ or error
        lacks = out_of_memory(cause) or shortage(cause) or isinstance(cause, WorkerDied)
        if lacks and not resident.takes_all and not resident.runner.life.closing:
            resident.takes_all = True
            log.warning("model could not wake, making room", extra=_fields(resident, "why", error))
        else:
            self._refuse(resident, error)
        self._became(resident, "asleep")

    def _refuse(self, resident: Resident, error: WherryError) -> None:
        resident.takes_all = False
        delay = resident.failures.failed(error, self._clock())
        resident.waits_since = None
        resident.runner.cannot_wake(error, delay)
        log.error("model could not wake", extra=_fields(resident, "why", error))

    def _became(self, resident: Resident, state: State) -> None:
        with self._changed:
            resident.state = state
            if state == "ready":
                resident.awake_since = self._clock()
            self._is_due = True
            self._changed.notify_all()


def _fields(resident: Resident, what: str, value: object) -> dict[str, str]:
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    return {"model": resident.config.name, "device": resident.device, what: text}


def _may_offload(resident: Resident) -> bool:
    """Whether its weights may take host memory while it sleeps: up to half of what is free."""
    use = Machine().use()
    free = (use.limit_bytes or 0) - (use.limit_used_bytes or 0)
    return resident.config.offload and resident.memory.known <= free // 2


def _held(device: str) -> int:
    """Bytes that a GPU's memory, or this process, holds."""
    if device == "cpu":
        try:
            with open("/proc/self/statm", encoding="ascii") as file:
                return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except OSError:
            return 0
    gpu = _gpu(device)
    return 0 if gpu is None else gpu.memory_used_bytes or 0


def _gpu(device: str) -> Any:
    """The figures of this GPU; None of the CPU, or if there is none of that number."""
    kind, _, number = device.partition(":")
    found = list(gpus()) if kind == "cuda" else []
    return found[int(number or 0)] if int(number or 0) < len(found) else None
