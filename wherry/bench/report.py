"""What is kept of a measurement: the report as JSON, a page and JSONL?

`SCHEMA` changes when a reader of the JSON would have to.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from wherry.bench.figures import Figures, Interval, Table
from wherry.bench.observe import ServerSide
from wherry.bench.plan import Load
from wherry.core.api import ConfigError

SCHEMA: Final = 1


class ClientSide(msgspec.Struct, kw_only=True):
    processes: int
    #: Cores that the load processes kept busy, and the busiest one's share of a core.
    cores: float
    busiest: float


class Point(msgspec.Struct, kw_only=True):
    """A run: a load and its result."""

    #: What differs between the report's points, by name: callers, rate, rows, max_batch_size ...
    settings: dict[str, Any]
    repeat: int = 0
    load: Load
    rows: int = 1
    figures: Figures
    timeline: list[Interval]
    server: ServerSide | None = None
    #: Cores that the server kept busy, if it is on this machine.
    server_cores: float | None = None
    client: ClientSide
    #: One message for each kind of error.
    samples: dict[str, str] = {}
    notes: list[str] = []
    interrupted: bool = False
    #: Why it ended before its time.
    stopped: str = ""
    #: Seconds at its end in which requests failed and none was answered, if that is much of it.
    silent_end: float = 0.0

    @property
    def label(self) -> str:
        return label_of(self.settings)


class TargetFacts(msgspec.Struct, kw_only=True):
    protocol: str
    url: str
    model: str | None = None
    #: Where the inputs came from.
    inputs: str = ""


class SearchResult(msgspec.Struct, kw_only=True):
    """The objective of a `--find-max`, and the load found."""

    by: str
    objective: str
    found: float | None = None
    #: The server's settings it was found with.
    settings: dict[str, Any] = {}


class Report(msgspec.Struct, kw_only=True):
    schema: int = SCHEMA
    tool: str = "wherry bench"
    version: str = ""
    started: str = ""
    command: list[str] = []
    machine: dict[str, Any] = {}
    target: TargetFacts
    points: list[Point] = []
    searches: list[SearchResult] = []
    interrupted: bool = False


def encode(report: Report) -> bytes:
    return msgspec.json.format(msgspec.json.encode(report), indent=1)


def read(path: str) -> Report:
    """A report from its JSON. ConfigError if it is not one, or of another schema."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"report {path}: {error.strerror}") from None
    try:
        schema = msgspec.json.decode(content)["schema"]
        if schema != SCHEMA:
            raise ConfigError(
                f"report {path} has schema {schema}; this wherry reads schema {SCHEMA}"
            )
        return msgspec.json.decode(content, type=Report)
    except (msgspec.DecodeError, KeyError, TypeError) as error:
        raise ConfigError(f"report {path}: not one of wherry bench: {error}") from None


def shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def label_of(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name} {shown(value)}" for name, value in settings.items())


def number(value: float) -> str:
    """Three significant digits, with commas between thousands."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value else "0"


def page(report: Report) -> str:
    """One HTML page that needs no network. No text of a server can end the script in it."""
    template = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    data = msgspec.json.encode(report).decode().replace("<", "\\u003c")
    return template.replace("__REPORT__", data, 1)


# JSONL: one line for each request


def jsonl(table: Table, begin: float, point: dict[str, Any]) -> Iterator[bytes]:
    """Each request with its times in seconds from the run's beginning, in order of its end."""
    for n in range(len(table.ended)):
        outcome = table.outcomes[table.outcome[n]]
        yield msgspec.json.encode(
            {
                **point,
                "intended": round(float(table.intended[n] - begin), 7),
                "sent": round(float(table.sent[n] - begin), 7),
                "first": round(float(table.first[n] - begin), 7),
                "ended": round(float(table.ended[n] - begin), 7),
                "latency": round(float(table.ended[n] - table.intended[n]), 7),
                "outcome": outcome,
                "rows": int(table.rows[n]),
                "tokens_in": int(table.tokens_in[n]),
                "tokens_out": int(table.tokens_out[n]),
            }
        )
