"""What does the server report while the load runs: its queue, its batches, its CPU time? How is it
queried, and what is the machine that runs the load?
"""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import os
import platform
import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec

from wherry.bench.connection import Wire, tls_context
from wherry.core.api import ConfigError, KeptConnections, WherryError, advice


class Unreachable(WherryError):
    """Raised if the server does not answer."""


class NotThere(WherryError):
    """Raised if the server's answer is an error or is not JSON."""


@dataclass(frozen=True, slots=True)
class Address:
    url: str
    scheme: str
    host: str
    port: int
    #: Path and query, as they stand in a request; "" or "/..." .
    path: str
    uds: str | None = None

    @property
    def name(self) -> str:
        default = {"http": 80, "https": 443}.get(self.scheme)
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == default or self.uds else f"{host}:{self.port}"

    def wire(self, **more: Any) -> Wire:
        tls = self.scheme in ("https", "grpcs")
        return Wire(host=self.host, port=self.port, uds=self.uds, tls=tls, **more)


def address(url: str) -> Address:
    """Parse http[s]://, grpc[s]:// or http+unix:///path/of/the.sock. ConfigError for others."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"{url!r} is not a URL: {error}") from None
    scheme, _, unix = parts.scheme.partition("+")
    if scheme not in ("http", "https", "grpc", "grpcs") or unix not in ("", "unix"):
        raise ConfigError(f"{url!r}: expected http[s]://, grpc[s]:// or http+unix:// in front")
    if unix:
        return Address(url, scheme, "localhost", 0, "", unquote(parts.netloc + parts.path))
    if not parts.hostname:
        raise ConfigError(f"{url!r} names no host")
    path = parts.path + (f"?{parts.query}" if parts.query else "")
    defaults = {"http": 80, "https": 443, "grpc": 8001, "grpcs": 8001}
    return Address(url, scheme, parts.hostname, port or defaults[scheme], path)


@dataclass(slots=True)
class HttpControl:
    """Small requests to one server, each on its own connection. Blocks; any thread."""

    address: Address
    headers: Mapping[str, str] = field(default_factory=dict)
    ssl_ca: str | None = None
    insecure: bool = False
    #: Seconds to connect, and of silence before or within an answer.
    timeout: float = 5.0

    def json(self, path: str, *, method: str = "GET") -> Any:
        """The answer's JSON. Unreachable; NotThere for an error status, or if it is not JSON."""
        status, body = self._exchange(method, path)
        if status >= 300:
            raise NotThere(f"{method} {path} is {status}: {body[:200].decode(errors='replace')}")
        try:
            return msgspec.json.decode(body)
        except msgspec.DecodeError as error:
            raise NotThere(f"{method} {path}: {error}") from None

    def _exchange(self, method: str, path: str) -> tuple[int, bytes]:
        connection = self._connection()
        try:
            connection.request(method, path, headers=dict(self.headers))
            response = connection.getresponse()
            body = response.read(16 * 2**20)
        except (OSError, http.client.HTTPException) as error:
            why = str(error).strip() or type(error).__name__
            if isinstance(error, http.client.BadStatusLine) and not isinstance(error, OSError):
                why = f"{why[:80]!r} is not HTTP"
            raise Unreachable(f"{self.address.url}: {why}; {advice(error)}") from None
        finally:
            connection.close()
        return response.status, body

    def _connection(self) -> http.client.HTTPConnection:
        https = self.address.scheme == "https"
        tls = tls_context(self.ssl_ca, insecure=self.insecure) if https else None
        return KeptConnections(self.address.url, tls).new(self.timeout)


PROC = Path("/proc")


def process_tree(pid: int) -> list[int]:
    """A process and its living descendants; those that have ended are left out."""
    tree = [pid]
    for parent in tree:
        with contextlib.suppress(OSError):
            for task in (PROC / str(parent) / "task").iterdir():
                with contextlib.suppress(OSError):  # a thread that has just ended
                    tree += [int(child) for child in (task / "children").read_text().split()]
    return tree


def cpu_seconds(pid: int) -> float | None:
    """User and system time of a process and its descendants so far; None if it is gone.

    From the scheduler's own clock (nanoseconds) where it is there, else in ticks of 10 ms.
    """
    total = 0.0
    for member in process_tree(pid):
        used = _precise(member) or _ticks(member)
        if used is None and member == pid:
            return None
        total += used or 0.0
    return total


def _precise(pid: int) -> float | None:
    total = 0
    try:
        for task in (PROC / str(pid) / "task").iterdir():
            total += int((task / "schedstat").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None
    return total / 1e9


def _ticks(pid: int) -> float | None:
    try:
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / float(os.sysconf("SC_CLK_TCK"))


def listener(port: int) -> int | None:
    """The process that listens on this TCP port of this machine, if it may be seen."""
    inodes = set(_listening_inodes(port))
    if not inodes:
        return None
    # Workers may inherit the socket: the first of the family has them all below it.
    holders = [f for f in PROC.glob("[0-9]*") if not inodes.isdisjoint(_open_files(f))]
    return min((int(folder.name) for folder in holders), default=None)


def _open_files(process: Path) -> Iterator[str]:
    with contextlib.suppress(OSError):  # of another user, or ended
        for name in os.listdir(process / "fd"):
            with contextlib.suppress(OSError):  # closed in the meantime
                yield os.readlink(process / "fd" / name)


def _listening_inodes(port: int) -> Iterator[str]:
    for table in ("tcp", "tcp6"):
        try:
            lines = (PROC / "net" / table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                yield f"socket:[{fields[9]}]"


def is_here(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


def facts() -> dict[str, Any]:
    """The machine and the versions that the figures belong to."""
    versions = {}
    for package in ("wherry", "numpy", "uvloop", "httptools"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "system": platform.platform(),
        "python": platform.python_version(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "versions": versions,
    }


def _processor() -> str:
    try:
        for line in (PROC / "cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor()


#: Seconds between two looks.
EVERY = 0.5
#: Seconds for a look's answer: a server that stalls must not hold the report up.
OBSERVE_TIMEOUT = 1.0


class ServerSide(msgspec.Struct, kw_only=True):
    """The server's own account of the measured window. Durations are means, in seconds."""

    requests: int = 0
    failed: int = 0
    rows: int = 0
    executions: int = 0
    queue: float = 0.0
    compute_input: float = 0.0
    compute_infer: float = 0.0
    compute_output: float = 0.0
    mean_batch_size: float = 0.0
    #: Executions by their number of rows.
    batch_sizes: dict[int, int] = {}


@dataclass(slots=True)
class Look:
    """The server at one moment, from `at` to `answered_at`."""

    at: float
    stats: dict[str, Any] | None = None
    queued: float | None = None
    cpu_seconds: float | None = None
    answered_at: float = 0.0


@dataclass(slots=True)
class Observer:
    """Looks at a server now and then, from its own thread, inside its `with` block.

    `statistics` gives the model's entry of the V2 statistics, `queued` how many requests wait;
    each None where the server has no such page.
    """

    statistics: Callable[[], dict[str, Any] | None] = lambda: None
    queued: Callable[[], float | None] = lambda: None
    pid: int | None = None
    looks: list[Look] = field(default_factory=list)
    _ended: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Observer:
        self.look()
        self._thread = threading.Thread(target=self._watch, name="wherry-bench-observer")
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        if self.looks[-1].stats is not None or self.pid is not None:
            self.look()

    def look(self) -> None:
        """Query the server now. What it does not answer stays None."""
        queued = self.queued()  # first: it changes fastest
        look = Look(time.perf_counter(), queued=queued)
        look.stats = self.statistics()
        if self.pid is not None:
            look.cpu_seconds = cpu_seconds(self.pid)
        look.answered_at = time.perf_counter()
        self.looks.append(look)

    def _watch(self) -> None:
        while not self._ended.wait(EVERY):
            self.look()

    def server_side(self, start: float, stop: float) -> ServerSide | None:
        """The server's account of a window, as closely as the looks allow."""
        found = _enclosing([look for look in self.looks if look.stats is not None], start, stop)
        return difference(found[0].stats, found[1].stats) if found else None

    def server_cores(self, start: float, stop: float) -> float | None:
        """Cores that the server kept busy in the window; None if that is unknown."""
        known = [look for look in self.looks if look.cpu_seconds is not None]
        found = _enclosing(known, start, stop)
        if found is None:
            return None
        first, last = found
        used = (last.cpu_seconds or 0.0) - (first.cpu_seconds or 0.0)
        return used / (last.at - first.at) if used >= 0 else None  # less: a worker is gone

    def over_time(self) -> list[tuple[float, float | None, float | None]]:
        """(moment, requests waiting, mean batch size since the look before)."""
        points = []
        for before, look in zip([None, *self.looks], self.looks, strict=False):
            side = difference(before.stats, look.stats) if before is not None else None
            size = side.mean_batch_size if side is not None and side.executions else None
            points.append((look.at, look.queued, size))
        return points


def _enclosing(looks: list[Look], start: float, stop: float) -> tuple[Look, Look] | None:
    """The last look before the start and the first one after the stop, as far as there are."""
    if len(looks) < 2:
        return None
    times = [look.at for look in looks]
    ends = [max(look.at, look.answered_at) for look in looks]  # what came meanwhile may be in it
    first = max(0, bisect_right(ends, start) - 1)
    last = min(len(looks) - 1, bisect_left(times, stop))
    return (looks[first], looks[last]) if times[first] < times[last] else None


def over_http(
    control: HttpControl, stats_path: str, batching_path: str, pid: int | None
) -> Observer:
    """An observer of a server with these pages; a missing page is requested once."""
    control = dataclasses.replace(control, timeout=OBSERVE_TIMEOUT)
    missing: set[str] = set()

    def query(path: str) -> Any:
        if path in missing:
            return None
        try:
            return control.json(path)
        except NotThere:
            missing.add(path)
        except Unreachable:
            pass  # it may come back
        return None

    def statistics() -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = query(stats_path)["model_stats"][0]
        except (KeyError, IndexError, TypeError):
            return None
        return found

    def queued() -> float | None:
        try:
            return float(query(batching_path)["queued_requests"])
        except (KeyError, TypeError, ValueError):
            return None

    return Observer(statistics, queued, pid)


def difference(first: dict[str, Any] | None, last: dict[str, Any] | None) -> ServerSide | None:
    """The difference of two answers of the V2 statistics endpoint; None if one has no figures."""
    if first is None or last is None:
        return None
    try:
        both = {
            name: _both(first, last, name)
            for name in ("success", "fail", "queue", "compute_input", "compute_infer",
                         "compute_output")
        }  # fmt: skip
        before = {b["batch_size"]: b["compute_infer"]["count"] for b in first["batch_stats"]}
        sizes = {
            b["batch_size"]: b["compute_infer"]["count"] - before.get(b["batch_size"], 0)
            for b in last["batch_stats"]
        }
        executions = last["execution_count"] - first["execution_count"]
        rows = last["inference_count"] - first["inference_count"]
    except (KeyError, TypeError):
        return None
    if executions < 0 or rows < 0:
        return None  # it was started again in between
    in_batches = {int(size): count for size, count in sorted(sizes.items()) if count > 0}
    run = sum(in_batches.values())
    mean = sum(size * count for size, count in in_batches.items()) / run if run else 0.0
    return ServerSide(
        requests=both["success"][0],
        failed=both["fail"][0],
        rows=rows,
        executions=executions,
        queue=_mean(both["queue"]),
        compute_input=_mean(both["compute_input"]),
        compute_infer=_mean(both["compute_infer"]),
        compute_output=_mean(both["compute_output"]),
        mean_batch_size=mean or rows / max(1, executions),
        batch_sizes=in_batches,
    )


def _both(first: dict[str, Any], last: dict[str, Any], name: str) -> tuple[int, float]:
    now, then = last["inference_stats"][name], first["inference_stats"][name]
    return now["count"] - then["count"], (now["ns"] - then["ns"]) / 1e9


def _mean(total: tuple[int, float]) -> float:
    count, seconds = total
    return seconds / count if count else 0.0
