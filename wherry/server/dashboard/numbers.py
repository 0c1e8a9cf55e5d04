"""What are the numbers of a server now, and what does it take to read them?

Each second the figures of all models are read and kept, whether or not anybody looks; what more
there is to know, and its JSON, is made for viewers only. Reading happens in the server's event
loop, a few models a turn, so that no request waits long for its turn; what is in files is read by a
thread, and only every few seconds.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from wherry.core.api import (
    BUCKETS,
    AllLoops,
    FrontFigures,
    FrontsSource,
    LoadedModel,
    Machine,
    ProcessFigures,
    Runtime,
    Use,
    in_thread,
    numbers,
    of_all_loops,
    process_figures,
)
from wherry.server.calls.client_text import encode_json, text_for_clients, without_paths
from wherry.server.dashboard.history import (
    MODEL_FIGURES,
    RECENT,
    STEP_FIGURES,
    TOTALS_EVERY,
    Ring,
    ServerPast,
    Timeline,
    Totals,
    figures_of,
    step_figures_of,
)
from wherry.server.v2.batching import beliefs
from wherry.server.v2.common import Common

known, significant = numbers.known, numbers.significant

#: Errors that are listed for each model.
MOST_ERRORS: Final = 16

#: Seconds from one explanation of the batcher to the next: it is half of the work.
EXPLAIN_EVERY: Final = 2.5

#: Of what the batcher explains, what is passed on as it is.
_EXPLAINED: Final = (
    "policy", "max_batch_rows", "fixed_seconds", "row_seconds", "predicted_wait_seconds",
    "held_seconds",
)  # fmt: skip


class ModelReader:
    """Reads the numbers of one loaded version, again and again. In the loop."""

    def __init__(
        self, loaded: LoadedModel, clock: Callable[[], float], timeline: Timeline | None = None
    ) -> None:
        self.loaded = loaded
        self._clock = clock
        self._readings = numbers.Readings()
        self._readings.begin(loaded.made_at)
        self._kind = _kind(loaded)
        self._counted_before: tuple[int, ...] = ()
        self._window = numbers.RateWindow(0.0, numbers.Reading(), numbers.Reading())
        self._read()
        names = STEP_FIGURES if self._kind == "steps" else MODEL_FIGURES
        self.ring = Ring(timeline or Timeline(), names)
        self.totals = Totals()
        #: The figures of this second; empty if they are to be read.
        self._latest: list[float] = []
        self._text = b""
        self._explained: Json = {}
        self._explain_at = 0.0
        self._seen: tuple[object, ...] = ()

    def keep(self, at: float, *, totals: bool) -> tuple[float, float]:
        """Read the figures, and keep them as those of this second. Returns the rates of requests
        and failures."""
        self._read()
        runner = self.loaded.runner
        if totals:
            self.totals.note(at, self._window.now)
        if self._readings.quiet and not self._window.now.gauges and not runner.residence():
            running = runner.running()
            if not running and not runner.queued_requests:
                self.ring.put(None)
                self._latest = []
                return 0.0, 0.0
        figures = self._latest = self._figures(runner.running())
        self.ring.put(figures)
        return figures[0], figures[2]

    def _read(self) -> None:
        counted, gauges = self.loaded.statistics, self.loaded.runner.gauges()
        seen = (
            counted.success.count, counted.fail.count, counted.execution_count, counted.responses,
            counted.worker_restarts, len(counted.worker_deaths),
        )  # fmt: skip
        if gauges or seen != self._counted_before:
            self._counted_before = seen
            latest = numbers.reading(counted, numbers.summed(gauges.values()))
        else:
            latest = self._window.now
        self._window = self._readings.add(self._clock(), latest)

    def _figures(self, running: list[tuple[str, int, float]]) -> list[float]:
        runner = self.loaded.runner
        state = runner.residence().get("state", "")
        figures = figures_of(self._window, runner.queued_requests, running, state)
        if self._kind == "steps":
            figures += step_figures_of(self._window, len(runner.instances))
        return figures

    def read(self, resident: Mapping[str, int], unix: float, *, again: bool = True) -> bytes:
        """The numbers now as JSON: the same as before if nothing has changed. `resident` are bytes
        of memory by instance, `unix` is the Unix time of 0 on the runtime's clock. `again`: unless
        `keep` has just read the counters."""
        if again:
            self._read()
            self._latest = []
        loaded, window = self.loaded, self._window
        runner, now = loaded.runner, window.now
        running = runner.running()
        residence = runner.residence()
        reason = loaded.not_ready_reason()
        seconds = round(window.seconds, 0 if window.seconds >= 1 else 2)
        seen = (
            reason, runner.queued_requests, running, resident, seconds, residence,
            [instance.name for instance in runner.instances],
        )  # fmt: skip
        if self._text and self._readings.quiet and seen == self._seen:
            return self._text
        self._seen = seen
        figures = dict(zip(self.ring.names, self._latest or self._figures(running), strict=True))
        model = numbers.ModelNumbers(
            loaded.name,
            loaded.version,
            "UNAVAILABLE" if reason else residence.get("state", "ready").upper(),
            without_paths(reason),
            self._kind,
            streams=loaded.signature.streams,
            max_batch_size=loaded.config.max_batch_size,
            window_seconds=seconds,
            requests_per_second=known(figures["requests_per_second"]),
            rows_per_second=known(figures["rows_per_second"]),
            batches_per_second=known(window.per_second("batches")),
            failures_per_second=known(figures["failures_per_second"]),
            responses_per_second=known(figures["responses_per_second"]),
            request_seconds=_quantiles(figures, "request_seconds"),
            queue_seconds=_quantiles(figures, "queue_seconds"),
            queued_requests=runner.queued_requests,
            running_batches=len(running),
            running_rows=sum(rows for _, rows, _ in running),
            totals=now.totals,
            batch_sizes=sorted((rows, count) for rows, (count, *_) in now.batch_sizes.items()),
            cut_reasons=now.cut_reasons,
            errors=self._errors(),
            batching=self._batching(window),
            instances=self._instances(running, resident, unix),
            next_try_seconds=runner.next_try(),
            residence=residence,
            generation=_generation(figures, now.gauges) if self._kind == "steps" else None,
        )
        self._text = encode_json(model)
        return self._text

    def _errors(self) -> list[numbers.LastError]:
        counted = self.loaded.statistics
        with counted.lock:
            errors = counted.failures.last(MOST_ERRORS)
        return [
            numbers.LastError(
                one.at, one.kind.__name__, text_for_clients(one.kind, one.text), one.times
            )
            for one in errors
        ]

    def _batching(self, window: numbers.RateWindow) -> Json:
        if self._kind != "batches":
            return {}
        if self._clock() < self._explain_at:
            return self._explained
        self._explain_at = self._clock() + EXPLAIN_EVERY
        explained = self.loaded.runner.explain()
        curve = [
            [one["rows"], significant(one["seconds"]), significant(one["error_seconds"])]
            for one in explained.get("curve", ())
        ]
        self._explained = {
            **{key: explained[key] for key in _EXPLAINED if key in explained},
            "curve": curve,
            "observed": window.observed(),
            "in_words": list(beliefs(explained)),
        }
        return self._explained

    def _instances(
        self, running: list[tuple[str, int, float]], resident: Mapping[str, int], unix: float
    ) -> list[numbers.InstanceNumbers]:
        rows: Counter[str] = Counter()
        since: dict[str, float] = {}
        for name, count, began in running:
            rows[name] += count
            since[name] = min(began, since.get(name, began))
        explained = []
        for instance in self.loaded.runner.instances:
            reason = instance.not_ready_reason()
            began_at = since.get(instance.name)
            state = "idle" if began_at is None else "running"
            explained.append(
                numbers.InstanceNumbers(
                    name=instance.name,
                    state="not ready" if reason else state,
                    reason=without_paths(reason),
                    device=str(instance.device),
                    pid=instance.pid,
                    resident_bytes=resident.get(instance.name),
                    running_rows=rows[instance.name],
                    running_since=None if began_at is None else unix + began_at,
                )
            )
        return explained


def _kind(loaded: LoadedModel) -> str:
    if loaded.is_pipeline:
        return "pipeline"
    return "batches" if "decisions" in loaded.runner.explain() else "steps"


def _quantiles(figures: Mapping[str, float], name: str) -> numbers.Quantiles:
    return numbers.Quantiles(*[known(figures[f"{name}.{one}"]) for one in numbers.QUANTILES])


def _generation(
    figures: Mapping[str, float], gauges: Mapping[str, float]
) -> numbers.GenerationNumbers:
    return numbers.GenerationNumbers(
        running=int(gauges.get("running", 0)),
        waiting=int(gauges.get("waiting", 0)),
        tokens_per_second=known(figures["generation.tokens_per_second"]),
        prompt_tokens_per_second=known(figures["generation.prompt_tokens_per_second"]),
        first_response_seconds=_quantiles(figures, "generation.first_response_seconds"),
        next_response_seconds=_quantiles(figures, "generation.next_response_seconds"),
        kv_cache_usage=known(figures["generation.kv_cache_usage"]),
        kv_blocks=gauges.get("kv_blocks"),
        kv_blocks_used=gauges.get("kv_blocks_used"),
        prefix_hit_share=known(figures["generation.prefix_hit_share"]),
        preemptions=int(gauges.get("preemptions_total", 0)),
    )


log = logging.getLogger("wherry")

Json = dict[str, Any]
Key = tuple[str, str]

#: Seconds of work in one turn of the loop.
TURN: Final = 0.0005
#: Seconds from one look at memory to the next.
FOOTPRINT_EVERY: Final = 10.0
#: Seconds for which a reading answers later requests, too.
FRESH: Final = 0.5
#: Seconds from one reading that is kept to the next.
INTERVAL: Final = 1.0


@dataclass(frozen=True, slots=True)
class Sample:
    """The numbers at one moment, each as JSON."""

    at: float = 0.0
    server: bytes = b"{}"
    models: Mapping[Key, bytes] = field(default_factory=dict)

    def whole(self) -> bytes:
        return _joined(self.at, self.server, self.models.values())

    def changes_since(self, before: Sample) -> bytes:
        changed = [text for key, text in self.models.items() if before.models.get(key) != text]
        gone = [key for key in before.models if key not in self.models]
        return _joined(self.at, self.server, changed, gone)


@dataclass(frozen=True, slots=True)
class Footprint:
    """What processes take, by files of the system."""

    #: By time.monotonic(), as the clock on the wall may be set.
    at: float = float("-inf")
    #: Bytes of memory by model and instance.
    resident: Mapping[Key, Mapping[str, int]] = field(default_factory=dict)
    process: ProcessFigures | None = None
    machine: Use = field(default_factory=Use)


class NumbersReader:
    """Reads the numbers of one server, once for all clients. In its event loop.

    `not_ready` gives the reasons of models that are not loaded.
    """

    def __init__(
        self,
        runtime: Runtime,
        common: Common,
        not_ready: Callable[[], Mapping[str, str]],
        draining: Callable[[], bool],
    ) -> None:
        self.fronts: FrontsSource | None = None
        self.viewers: Callable[[], int] = lambda: 0
        self.last = Sample()
        self.every_second: Callable[[], None] = lambda: None
        #: Called with each second's numbers while a client watches.
        self.watched: Callable[[Sample], None] = lambda _: None
        self._read_at = float("-inf")  # by time.monotonic()
        self._runtime = runtime
        self._common = common
        self._not_ready = not_ready
        self._draining = draining
        self._started_at = time.time()
        self._machine = Machine()
        self._footprint = Footprint()
        self._models: dict[Key, ModelReader] = {}
        self._stalls = numbers.Buckets((0,) * (len(BUCKETS) + 1), 0.0, BUCKETS)
        self._waiting: list[Callable[[Sample], None]] = []
        #: Whether models are being read, and if so whether to report them.
        self._works = self._reports = False
        self._timer: asyncio.TimerHandle | None = None
        self._past = ServerPast()

    def start(self) -> None:
        """Keep the figures of each second from now on. In the loop."""
        self._timer = asyncio.get_running_loop().call_later(INTERVAL, self._tick)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        self.start()
        self._past.is_due = True
        self.every_second()
        if self.viewers():
            self._waiting.append(self.watched)
        self._begin()

    def history(self, name: str, version: str) -> bytes:
        """The kept figures as JSON: of this model, or of the server if `name` is empty. Raises
        ModelNotFound."""
        if not name:
            rates = ("requests_per_second", "resident")
            recent = [(*key, one.ring.columns(RECENT, rates)) for key, one in self._models.items()]
            return self._past.encode(self._past.ring, b"[]", [one for one in recent if one[2]])
        loaded = self._runtime.model(name, version or None)
        reader = self._models.get((loaded.name, loaded.version))
        if reader is None:  # it was loaded within this second
            reader = ModelReader(loaded, self._runtime.clock, self._past.timeline)
        return self._past.encode(reader.ring, reader.totals.all())

    def read(self, done: Callable[[Sample], None]) -> None:
        """Call `done` with the numbers, which are FRESH or are read now."""
        if not self._works and time.monotonic() - self._read_at < FRESH:
            done(self.last)
            return
        self._waiting.append(done)
        self._begin()

    def _begin(self) -> None:
        if self._works:
            return
        self._works = True
        if not self._waiting:
            self._go_on(self._work())
        elif self.fronts is None:
            self._look_at_files()
        else:
            self.fronts.measure(self._look_at_files)

    def _look_at_files(self) -> None:
        if time.monotonic() - self._footprint.at < FOOTPRINT_EVERY:
            self._go_on(self._work())
            return
        models = self._runtime.models()
        try:
            looks = in_thread(lambda: _footprint(models, self._machine), "wherry-numbers")
        except RuntimeError:  # the system gives no thread: the last figures must do
            self._go_on(self._work())
        else:
            looks.add_done_callback(self._looked)

    def _looked(self, looked: asyncio.Future[Footprint]) -> None:
        self._footprint = looked.result()
        self._go_on(self._work())

    def _go_on(self, work: Iterator[Sample | None]) -> None:
        """Work until the turn is over."""
        until = time.perf_counter() + TURN
        try:
            for sample in work:
                if sample is not None:
                    self.last, self._read_at = sample, time.monotonic()
                    break
                if time.perf_counter() >= until:
                    asyncio.get_running_loop().call_soon(self._go_on, work)
                    return
        except Exception:  # a bug of ours, or of a model's own figures: watching goes on
            log.exception("the numbers cannot be read")
        self._works = False
        if self._reports:
            waiting, self._waiting = self._waiting, []
            for done in waiting:
                done(self.last)
        if self._waiting or self._past.is_due:
            self._begin()

    def _work(self) -> Iterator[Sample | None]:
        """Read one model after the other; the last is the sample, if a client waits for it."""
        runtime, resident = self._runtime, self._footprint.resident
        past, keeps = self._past, self._past.is_due
        reports = self._reports = bool(self._waiting)
        at = time.time()
        unix = at - runtime.clock()
        texts: dict[Key, bytes] = {}
        rates: list[tuple[float, float]] = []
        notes = keeps and past.timeline.count % TOTALS_EVERY == 0
        if keeps:
            past.begin_second(at)
        before, models = self._models, {}
        for loaded in runtime.models():
            key = loaded.name, loaded.version
            reader = before.get(key)
            if reader is None or reader.loaded is not loaded:
                reader = ModelReader(loaded, runtime.clock, past.timeline)
                reader.totals.note(at, numbers.Reading())
            models[key] = reader
            if keeps:
                rates.append(reader.keep(at, totals=notes))
            if reports:
                texts[key] = reader.read(resident.get(key, {}), unix, again=not keeps)
            yield None
        self._models = models
        if keeps:
            admission, stall = self._common.admission, self._common.loop_stall.longest_since_last()
            past.keep(rates, admission.in_flight, self._loops().refused, stall)
        if reports:
            known = {name for name, _ in texts}
            for name, reason in self._not_ready().items():
                if name not in known:
                    texts[name, ""] = encode_json(_unloaded(name, reason))
            yield Sample(at, encode_json(self._server()), dict(sorted(texts.items())))

    def _server(self) -> numbers.ServerNumbers:
        common, past, footprint = self._common, self._past, self._footprint
        admission, loops = common.admission, self._loops()
        before, self._stalls = self._stalls, loops.stalls
        counts = [max(0, grown) for grown in loops.stalls.since(before)]
        fronts = {} if self.fronts is None else self.fronts.figures
        process, machine = footprint.process, footprint.machine
        return numbers.ServerNumbers(
            name=common.name,
            version=common.version,
            started_at=self._started_at,
            draining=self._draining(),
            requests_in_flight=admission.in_flight,
            request_bytes=admission.held_bytes,
            refused=loops.refused,
            refused_per_second=past.newest("refused_per_second"),
            loop_stall=numbers.LoopStalls(
                significant(loops.longest_stall),
                known(numbers.quantiles(counts, BUCKETS)[-1]),
                past.newest("loop_stall_seconds"),
            ),
            viewers=self.viewers(),
            process=None
            if process is None
            else numbers.ProcessUse(
                past.newest("cpu_share"), process.resident_bytes, process.open_files
            ),
            machine=numbers.MachineUse(
                machine.cpu_utilization, machine.memory_used_bytes, machine.memory_total_bytes
            ),
            fronts=[_front(number, one) for number, one in sorted(fronts.items())],
        )

    def _loops(self) -> AllLoops:
        return of_all_loops(self._common.admission.refused, self._common.loop_stall, self.fronts)


def _footprint(models: Sequence[LoadedModel], machine: Machine) -> Footprint:
    resident = {
        (loaded.name, loaded.version): {
            instance.name: size
            for instance in loaded.runner.instances
            if (size := instance.rss_bytes)
        }
        for loaded in models
    }
    return Footprint(time.monotonic(), resident, process_figures(), machine.use())


def _joined(
    at: float, server: bytes, models: Iterable[bytes], gone: Sequence[Key] | None = None
) -> bytes:
    left = b"" if gone is None else b',"gone":%b' % encode_json(gone)
    return b'{"at":%.3f,"server":%b,"models":[%b]%b}' % (at, server, b",".join(models), left)


def _unloaded(name: str, reason: str) -> numbers.ModelHead:
    state = "LOADING" if reason == "loading" else "UNAVAILABLE"
    return numbers.ModelHead(name, "", state, without_paths(reason))


def _front(number: int, one: FrontFigures) -> numbers.FrontNumbers:
    return numbers.FrontNumbers(
        number=number,
        connections=one.connections,
        calls=one.calls,
        refused=one.refused,
        longest_stall_seconds=significant(one.longest_stall),
        cpu_seconds=significant(one.process.cpu_seconds),
        resident_bytes=one.process.resident_bytes,
    )
