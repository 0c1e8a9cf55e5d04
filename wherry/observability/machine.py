"""How busy is the machine that the server runs on: its processors and its memory?

From /proc, without waiting: what was used since the question before this one. Elsewhere than on
Linux nothing is known.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath


@dataclass(frozen=True, slots=True)
class Use:
    """What is known of the machine; None: nothing."""

    #: 0 to 1, of all processors, since the last question (the first time: since the start).
    cpu_utilization: float | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None


class Machine:
    """Reads files: not for an event loop. One scraper at a time: each question begins a span."""

    def __init__(self, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> None:
        self._proc = proc
        self._cgroups = cgroups
        self._busy, self._total = 0, 0

    def use(self) -> Use:
        total, available = self._memory()
        return Use(
            cpu_utilization=self._cpu_utilization(),
            memory_total_bytes=total,
            memory_used_bytes=None if total is None or available is None else total - available,
        )

    def available_bytes(self) -> int | None:
        """Memory that programs may still take, the cache of files among it; None: not known."""
        return self._memory()[1]

    def memory_limit_bytes(self) -> int | None:
        """What this process and its children may take: the machine's memory, or less if a control
        group of theirs says so; None: not known."""
        total = self._memory()[0]
        limits = [*self._group_limits(), *([] if total is None else [total])]
        return min(limits, default=None)

    def _group_limits(self) -> Iterator[int]:
        """Memory limits of this process's control groups, outer ones too (v1 and v2)."""
        for line in self._lines("self/cgroup"):
            _, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if controllers and "memory" not in controllers.split(","):
                continue
            root = self._cgroups / "memory" if controllers else self._cgroups
            file = "memory.limit_in_bytes" if controllers else "memory.max"
            group = PurePosixPath(path)
            # A container sees its own group as the root, whatever the path says.
            for folder in (group, *group.parents):
                text = _text(root / str(folder).lstrip("/") / file).strip()
                if text.isdigit():
                    yield int(text)

    def _cpu_utilization(self) -> float | None:
        # cpu  user nice system idle iowait irq softirq steal guest guest_nice: guest is in user.
        line = self._lines("stat")[:1]
        try:
            ticks = [int(number) for number in line[0].split()[1:9]]
            total, idle = sum(ticks), ticks[3] + ticks[4]
        except (IndexError, ValueError):
            return None
        busy = total - idle
        busy_since, total_since = busy - self._busy, total - self._total
        self._busy, self._total = busy, total
        if total_since <= 0:
            return 0.0
        return min(1.0, max(0.0, busy_since / total_since))

    def _memory(self) -> tuple[int | None, int | None]:
        """Total and available, in bytes."""
        found: dict[str, int] = {}
        for line in self._lines("meminfo"):
            name, _, rest = line.partition(":")
            number = rest.split()
            if number and number[0].isdigit():
                found[name] = int(number[0]) * 1024
        return found.get("MemTotal"), found.get("MemAvailable")

    def _lines(self, file: str) -> list[str]:
        return _text(self._proc / file).splitlines()


def _text(path: Path) -> str:
    """A file's text; "" if there is none."""
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
