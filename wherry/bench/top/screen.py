"""What is on the screen of `wherry top`? (pure)"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from rich.cells import cell_len, chop_cells
from rich.text import Text

from wherry.core.api import duration, number, numbers
from wherry.server.api import printable

GAP: Final = 2
#: Characters of a text that are examined: a longer text is never shown whole.
MOST: Final = 1000


class Column(NamedTuple):
    """A column of a table: numbers end at its right side, words begin at its left."""

    head: str
    cells: Sequence[str]
    is_words: bool = False
    #: The style of each cell, or of all.
    styles: Sequence[str] = ()


def clean(text: str) -> str:
    """Untrusted text, in one line and without control characters."""
    return printable(text if len(text) <= MOST else text[:MOST] + "...")


def line(text: str, width: int, style: str = "") -> Text:
    """One line, cut off at the width."""
    made = Text(clean(text), style=style, no_wrap=True, end="")
    made.truncate(max(1, width), overflow="ellipsis")
    return made


def folded(text: str, width: int, style: str) -> list[Text]:
    """A text in at most three lines of full width."""
    pieces = chop_cells(clean(text), max(2, width))[:3]
    return [line(piece, width, style) for piece in pieces]


def flowing(parts: Iterable[tuple[str, str]], width: int) -> list[Text]:
    """Short texts with their styles behind each other, in as many lines as they need."""
    lines: list[Text] = []
    for text, style in parts:
        part = line(text, width, style)
        if lines and lines[-1].cell_len + GAP + part.cell_len <= width:
            lines[-1].append(" " * GAP)
            lines[-1].append_text(part)
        else:
            lines.append(Text(no_wrap=True, end="").append_text(part))
    return lines


def table(columns: Sequence[Column], first_to_go: Sequence[str], width: int) -> list[Text]:
    """Heads and rows. Columns go, those of least interest first, until the rest fits; the first
    column is cut off if it must be."""
    shown = {
        column.head: column._replace(cells=[clean(cell) for cell in column.cells])
        for column in columns
    }
    first, *_ = shown
    widths = {head: max(map(cell_len, [head, *one.cells])) for head, one in shown.items()}
    least = min(widths[first], max(8, width // 3))

    def rest() -> int:
        return sum(widths[head] + GAP for head in shown if head != first)

    for head in first_to_go:
        if least + rest() <= width:
            break
        shown.pop(head, None)
    widths[first] = max(1, min(widths[first], width - rest()))
    rows = len(shown[first].cells)
    return [_row(shown.values(), widths, width, row) for row in range(-1, rows)]


def _row(columns: Iterable[Column], widths: dict[str, int], width: int, row: int) -> Text:
    """The heads, if `row` is -1."""
    made = Text(no_wrap=True, end="")
    for place, column in enumerate(columns):
        style = "dim" if row < 0 else column.styles[row] if column.styles else ""
        cell = Text(column.head if row < 0 else column.cells[row], style=style)
        room = widths[column.head]
        cell.truncate(room, overflow="ellipsis")
        spare = " " * (room - cell.cell_len)
        made.append(" " * GAP if place else "")
        made.append_text(cell if column.is_words else Text(spare))
        made.append_text(Text(spare) if column.is_words else cell)
    made.rstrip()
    made.truncate(max(1, width), overflow="ellipsis")
    return made


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A server's numbers, and the previous ones (for what happened since)."""

    polled: numbers.Numbers
    before: numbers.Numbers | None = None

    def model_before(self, model: numbers.ModelNumbers) -> numbers.ModelNumbers | None:
        """The same model at the look before, unless it or the server was loaded anew since."""
        if self.before is None or self.before.server.started_at != self.polled.server.started_at:
            return None
        found = [one for one in self.before.models if _label(one) == _label(model)]
        if not found or found[0].totals.requests > model.totals.requests:
            return None
        return found[0]


def _label(model: numbers.ModelNumbers) -> tuple[str, str]:
    return model.name, model.version


#: By the key that is typed: what models are sorted by, and their place.
SORTS: Final[dict[str, tuple[str, Callable[[numbers.ModelNumbers], tuple[float | str, ...]]]]] = {
    "n": ("name", _label),
    "r": ("requests", lambda m: (-(m.requests_per_second or 0.0), *_label(m))),
    "l": ("latency", lambda m: (-(m.request_seconds.p99 or 0.0), *_label(m))),
    "w": ("waiting", lambda m: (-(m.queued_requests or 0.0), *_label(m))),
    "f": ("failures", lambda m: (-(m.failures_per_second or 0.0), -_failed(m), *_label(m))),
}
#: Columns that a narrow terminal does without.
FIRST_TO_GO: Final = (
    "memory", "restarts", "wait p95 ms", "left because", "p50 ms", "failed", "up", "rows/batch",
    "p99 ms", "failed/s", "state", "queue", "p95 ms",
)  # fmt: skip
FIRST_TO_GO_OF_LLM: Final = (
    "put back", "prefix known", "prompt tokens/s", "gap p95 ms", "first p50 ms", "gap p50 ms",
    "waiting", "running", "cache", "first p95 ms",
)  # fmt: skip
Lines = list[Text]


def screen(
    at: Snapshot,
    *,
    url: str,
    width: int,
    height: int | None = None,
    sort: str = "n",
    trouble: str = "",
    keys: bool = False,
) -> Lines:
    """The lines, at most `height` of them; `trouble` is why there are no newer numbers."""
    width = max(1, width)
    top = [*header(at.polled, url, width), *folded(trouble, width, "bold red")]
    foot = flowing([(_keys(sort), "dim")], width) if keys else []
    models = sorted(at.polled.models, key=SORTS[sort][1])
    parts = [
        models_table(at, models, width),
        llm_table(models, width),
        errors(at.polled, models, width),
    ]
    room = None if height is None else max(1, height) - len(top) - len(foot)
    made = top + _fitted([part for part in parts if part], room, width) + foot
    return made if height is None else made[: max(1, height)]


def header(polled: numbers.Numbers, url: str, width: int) -> Lines:
    """What the server is, and what it and its machine use."""
    server = polled.server
    up = (
        ""
        if server.started_at is None
        else f"up {duration(max(0.0, polled.at - server.started_at))}"
    )
    stall = server.loop_stall.longest_seconds
    parts = [
        (f"{server.name} {server.version} at {url}", "bold"),
        ("draining" if server.draining else "", "bold red"),
        (up, ""),
        (f"{number(server.requests_in_flight)} in flight", ""),
        (f"{number(server.refused)} refused", "red" if server.refused else ""),
        ("" if stall is None else f"event loop stalls up to {duration(stall)}",
         "red" if (stall or 0) > 0.1 else ""),
    ]  # fmt: skip
    if (process := server.process) is not None:
        memory = "" if process.resident_bytes is None else size(process.resident_bytes)
        parts.append((_use("process", process.cpu_share, memory), ""))
    if (machine := server.machine) is not None:
        used, whole = machine.memory_used_bytes, machine.memory_total_bytes
        memory = "" if used is None or whole is None else f"{size(used)} of {size(whole)}"
        parts.append((_use("machine", machine.cpu_share, memory), ""))
    if server.fronts:
        connections = sum(one.connections + one.calls for one in server.fronts)
        parts.append((f"{len(server.fronts)} fronts, {number(connections)} connections", ""))
    windows = [one.window_seconds for one in polled.models if one.window_seconds is not None]
    if windows:
        parts.append((f"rates of the last {duration(max(windows))}", "dim"))
    return flowing([part for part in parts if part[0]], width)


def _use(name: str, cpu_share: float | None, memory: str) -> str:
    cpu = "" if cpu_share is None else f"{number(100 * cpu_share)} % CPU"
    texts = ", ".join(filter(None, (cpu, memory)))
    return texts and f"{name} {texts}"


def models_table(at: Snapshot, models: Sequence[numbers.ModelNumbers], width: int) -> Lines:
    if not models:
        return [line("no models", width, "dim")]
    cells: dict[str, list[str]] = {
        "requests/s": [_number(m.requests_per_second) for m in models],
        "failed/s": [_number(m.failures_per_second) for m in models],
        "failed": [number(_failed(m)) for m in models],
        **_times("", [m.request_seconds for m in models], " ms"),
        "queue": [_number(m.queued_requests) for m in models],
        "wait p95 ms": [ms(m.queue_seconds.p95) for m in models],
        "rows/batch": [_rows_of_a_batch(m, at.model_before(m)) for m in models],
        "left because": [_reasons(m, at.model_before(m)) for m in models],
        "up": [_up(m) for m in models],
        "restarts": [number(m.totals.worker_restarts) for m in models],
        "memory": [_memory(m) for m in models],
        "state": [m.state.lower().replace("_", " ") for m in models],
    }
    if all(m.state == "READY" for m in models):
        del cells["state"]
    if not any(m.totals.worker_restarts for m in models):
        del cells["restarts"]
    if not any(map(_failed, models)):
        del cells["failed"], cells["failed/s"]
    styles = ["red" if m.state == "UNAVAILABLE" else "" for m in models]
    columns = [Column("model", [_name(m) for m in models], True, styles)]
    for head, column in cells.items():
        failing = ["red" if m.failures_per_second else "" for m in models]
        of_cells = failing if head == "failed/s" else styles
        columns.append(Column(head, column, head in ("left because", "state"), of_cells))
    return table(columns, FIRST_TO_GO, width)


def llm_table(models: Iterable[numbers.ModelNumbers], width: int) -> Lines:
    polled = [(m, m.generation) for m in models if m.generation is not None]
    if not polled:
        return []

    def column(of: Callable[[numbers.GenerationNumbers], str]) -> list[str]:
        return [of(generation) for _, generation in polled]

    cells = {
        "tokens/s": column(lambda g: _number(g.tokens_per_second)),
        "prompt tokens/s": column(lambda g: _number(g.prompt_tokens_per_second)),
        "running": column(lambda g: _number(g.running)),
        "waiting": column(lambda g: _number(g.waiting)),
        "first p50 ms": column(lambda g: ms(g.first_response_seconds.p50)),
        "first p95 ms": column(lambda g: ms(g.first_response_seconds.p95)),
        "gap p50 ms": column(lambda g: ms(g.next_response_seconds.p50)),
        "gap p95 ms": column(lambda g: ms(g.next_response_seconds.p95)),
        "cache": column(lambda g: _percent(g.kv_cache_usage)),
        "prefix known": column(lambda g: _percent(g.prefix_hit_share)),
        "put back": column(lambda g: _number(g.preemptions)),
    }
    columns = [Column("language model", [_name(m) for m, _ in polled], True)]
    columns += [Column(head, column) for head, column in cells.items()]
    return table(columns, FIRST_TO_GO_OF_LLM, width)


def errors(polled: numbers.Numbers, models: Iterable[numbers.ModelNumbers], width: int) -> Lines:
    """What is wrong, and the last errors, the latest first."""
    models = list(models)
    lines = [
        line(f"{_name(m)} is {m.state.lower()}: {m.reason}", width, "red")
        for m in models
        if m.state != "READY" and m.reason
    ]
    lines += [
        line(f"{one.name}: {one.reason}", width, "red")
        for m in models
        for one in m.instances
        if one.reason
    ]
    found = [(one, m) for m in models for one in m.errors]
    for one, m in sorted(found, key=lambda pair: -pair[0].at):
        ago = duration(max(0.0, polled.at - one.at))
        times = f" x{number(one.count)}" if one.count > 1 else ""
        lines.append(line(f"{ago} ago  {_name(m)}  {one.kind}{times}: {one.message}", width))
    return [line("errors", width, "dim"), *lines] if lines else []


def ms(seconds: float | None) -> str:
    return "-" if seconds is None else number(1e3 * seconds)


def size(count: float) -> str:
    for unit, one in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= one:
            return f"{number(count / one)} {unit}"
    return f"{number(count)} B"


def _fitted(parts: Sequence[Lines], room: int | None, width: int) -> Lines:
    """All parts with an empty line before each. If there is too little room, the first keeps a
    half of it at least, and the others share what it leaves."""
    whole = [text for part in parts for text in (Text(), *part)]
    if room is None or len(whole) <= room:
        return whole
    made: Lines = []
    for place, part in enumerate(parts):
        left = room - len(made)
        others = sum(len(one) + 1 for one in parts[place + 1 :])
        share = left if not others else max(left - others, (left + 1) // 2)
        if share >= 3:
            made += [Text(), *_cut(part, share - 1, width)]
    return made


def _cut(lines: Lines, room: int, width: int) -> Lines:
    if len(lines) <= room:
        return lines
    return [*lines[: room - 1], line(f"and {len(lines) - room + 1} more", width, "dim")]


def _keys(sort: str) -> str:
    others = "  ".join(f"{key} {what}" for key, (what, _) in SORTS.items())
    return f"q quit  by: {others}  (now by {SORTS[sort][0]})"


def _name(model: numbers.ModelNumbers) -> str:
    return f"{model.name}:{model.version}".rstrip(":")


def _number(value: float | None) -> str:
    return "-" if value is None else number(value)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{number(100 * share)} %"


def _failed(model: numbers.ModelNumbers) -> float:
    return sum(model.totals.failures.values())


def _times(before: str, times: Sequence[numbers.Quantiles], after: str) -> dict[str, list[str]]:
    return {
        f"{before}{share}{after}": [ms(getattr(one, share)) for one in times]
        for share in ("p50", "p95", "p99")
    }


def _rows_of_a_batch(model: numbers.ModelNumbers, before: numbers.ModelNumbers | None) -> str:
    """The mean since the look before; if nothing ran, since the load."""
    sizes = dict(model.batch_sizes)
    if before is not None:
        earlier = dict(before.batch_sizes)
        since = {rows: count - earlier.get(rows, 0) for rows, count in sizes.items()}
        sizes = since if any(since.values()) else sizes
    batches = sum(sizes.values())
    return number(sum(rows * n for rows, n in sizes.items()) / batches) if batches else "-"


def _reasons(model: numbers.ModelNumbers, before: numbers.ModelNumbers | None) -> str:
    """The two reasons for which most batches left, since the look before or the load."""
    counts = model.cut_reasons
    if before is not None:
        since = {why: n - before.cut_reasons.get(why, 0) for why, n in counts.items()}
        counts = since if any(since.values()) else counts
    whole = sum(counts.values())
    most = sorted(counts.items(), key=lambda one: -one[1])[:2]
    return ", ".join(f"{why} {number(100 * n / whole)} %" for why, n in most if n) or "-"


def _up(model: numbers.ModelNumbers) -> str:
    if not model.instances:
        return "-"
    return f"{sum(i.state != 'not ready' for i in model.instances)}/{len(model.instances)}"


def _memory(model: numbers.ModelNumbers) -> str:
    known = [i.resident_bytes for i in model.instances if i.resident_bytes is not None]
    return size(sum(known)) if known else "-"
