"""What do `wherry bench` and `wherry top` take? (Flags only: this is read for --help.)"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

EPILOG = """\
Seconds may be written 200ms, 5s or 2m; the values of a sweep 1,4,16 or 1..64 (doubling).
TARGET is a URL, or anything `wherry serve` takes: then the server is started (and, with --set,
restarted). Default: WHERRY_URL.
"""


_UNITS: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}


def seconds(text: str) -> float:
    """200ms, 5s, 2m, 1h, or a number of seconds. ValueError if it is not one, as from all below."""
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*(us|ms|s|m|h|)", text.strip())
    if match is None:
        raise ValueError(text)
    return float(match[1]) * _UNITS[match[2]]


def counts(text: str) -> list[int]:
    found: list[int] = []
    for part in text.split(","):
        low, dots, high = part.partition("..")
        value, most = int(low), int(high if dots else low)
        if value < 1 or most < 1:
            raise ValueError(text)
        while value < most:
            found.append(value)
            value *= 2
        found.append(most)
    return found


def _rates(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, _, shape = text.partition("=")
    return name, tuple(int(part) for part in shape.split(","))


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise ValueError(text)
    return name.strip(), value.strip()


def _share(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d*)?)\s*(%?)", text.strip())
    if match is None:
        raise ValueError(text)
    return float(match[1]) / (100 if match[2] else 1)


def _choices(text: str) -> tuple[str, list[Any]]:
    name, equals, values = text.partition("=")
    if not equals or not values:
        raise ValueError(text)
    return name.strip().replace("-", "_"), [_setting(part.strip()) for part in values.split(",")]


def _setting(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float, seconds):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


#: By its metavar, how a flag's text is read, and an example of one.
KINDS: Final[Mapping[str | None, tuple[Callable[[str], Any], str]]] = {
    "SECONDS": (seconds, "0.5, 200ms or 5s"),
    "N,..": (counts, "8, 1,4,16 or 1..64"),
    "R,..": (_rates, "100 or 50,100"),
    "NAME=N,..": (_shape, "pixels=3,224,224"),
    "NAME=V,..": (_choices, "max_batch_size=8,16,32"),
    "NAME:VALUE": (_header, "X-Tenant:blue"),
    "SHARE": (_share, "1% or 0.01"),
}


class Flag(NamedTuple):
    """A flag with a value, or a switch if it has neither `metavar` nor `more`."""

    name: str
    help: str
    metavar: str | None = None
    default: Any = None
    more: Mapping[str, Any] = {}
    #: Other spellings.
    also: tuple[str, ...] = ()

    def options(self) -> dict[str, Any]:
        if self.metavar is None and not self.more:
            return {"help": self.help, "action": "store_true"}
        metavar = {"metavar": self.metavar} if self.metavar else {}
        return {"help": self.help, "default": self.default, **metavar, **self.more}


INT: Final = {"type": int}
FLOAT: Final = {"type": float}
REPEATED: Final = {"action": "append"}
PROTOCOLS: Final = (
    "infer", "generate", "generate_stream", "chat", "completions", "embeddings", "http", "grpc"
)  # fmt: skip

GROUPS: Final = {
    "what is sent": (
        Flag("--model", "name, or name:version", "NAME"),
        Flag("--protocol", "default: from the URL's path or the server",
             more={"choices": PROTOCOLS}),
        Flag("--inputs", "rows: a JSONL or text file, file.py:function, or a folder or pattern of"
             " files, such as images", "PATH"),
        Flag("--rows", "rows per request [1]", "N,..", "1"),
        Flag("--length", "generated texts: 300, 100-800, 5-120w", "L"),
        Flag("--shape", "a row's shape, for generated tensors", "NAME=N,..", [], REPEATED),
        Flag("--json-tensors", "V2: send numbers as JSON, not as binary tensors"),
        Flag("--max-tokens", "OpenAI [128]", "N", 128, INT),
        Flag("--no-stream", "OpenAI: do not stream"),
        Flag("--method", "for a plain URL [GET, POST with a body]", "METHOD"),
        Flag("--body", "for a plain URL; @PATH reads it from a file", "TEXT"),
        Flag("--header", "an additional header", "NAME:VALUE", [], REPEATED),
        Flag("--api-key", "bearer key, or WHERRY_API_KEY", "KEY"),
        Flag("--ssl-ca", "CA certificates to trust", "PATH"),
        Flag("--insecure", "accept any certificate"),
    ),
    "load (closed: callers wait for their answers; open: a rate)": (
        Flag("--callers", "callers at once [1,4,16,64]", "N,.."),
        Flag("--think", "a caller's pause before its next request", "SECONDS"),
        Flag("--ramp", "callers join, or the rate grows, over this time", "SECONDS"),
        Flag("--rate", "requests/s, regardless of how long answers take", "R,.."),
        Flag("--arrivals", "[poisson]", None, "poisson", {"choices": ("poisson", "constant")}),
        Flag("--duration", "duration of each run [5s]", "SECONDS"),
        Flag("--requests", "stop after this many in total", "N", None, INT),
        Flag("--loops", "stop after this many per caller", "N", None, INT),
        Flag("--warmup", "not measured [1s, 0 with --requests or --loops]", "SECONDS"),
        Flag("--timeout", "timeout of a request [30s]", "SECONDS", "30s"),
        Flag("--repeat", "runs per point [1, or 10 per target with --compare]", "N", None,
             INT),
        Flag("--pause", "between two runs [0]", "SECONDS", "0"),
        Flag("--processes", "load processes [1]", "N", 1, INT),
        Flag("--connections", "maximum for an open load [1000]", "N", 1000, INT),
        Flag("--seed", "random seed [0]", "N", 0, INT),
    ),
    "the server, where TARGET is app.py": (
        Flag("--set", "a model setting to sweep: max_batch_size=8,32, max_queue_delay=0,5ms,"
             " instances=1,2", "NAME=V,..", [], REPEATED),
        Flag("--serve", "a flag for `wherry serve`: --serve=--isolation=thread", "FLAG", [],
             REPEATED),
    ),
    "thresholds (exit code 1 where one is missed), and search": (
        Flag("--p50", "p50 at most", "SECONDS", also=("--max-p50",)),
        Flag("--p95", "p95 at most", "SECONDS", also=("--max-p95",)),
        Flag("--p99", "p99 at most", "SECONDS", also=("--max-p99",)),
        Flag("--max-ttft", "streams: p95 of the first token at most", "SECONDS"),
        Flag("--min-rps", "requests/s at least", "N", 0.0, FLOAT),
        Flag("--max-errors", "failed requests at most [1%% with --find-max]", "SHARE"),
        Flag("--find-max", "the highest load that meets these thresholds",
             more={"nargs": "?", "const": "callers", "choices": ("callers", "rate")}),
    ),
    "other modes": (
        Flag("--compare", "two targets, measured alternately, or two reports: what differs beyond"
             " noise", more={"nargs": 2, "metavar": ("A", "B")}),
    ),
    "results (the table goes to stdout)": (
        Flag("--json", "the report, for --compare and programs", "PATH"),
        Flag("--html", "the report as one page with charts", "PATH"),
        Flag("--jsonl", "one line per request", "PATH"),
        Flag("--quiet", "no progress on stderr"),
    ),
}  # fmt: skip

#: Those that --help shows.
EVERYDAY: Final = (
    "--model", "--inputs", "--length", "--callers", "--rate", "--duration",
    "--requests", "--set", "--p95", "--min-rps", "--max-errors", "--find-max", "--compare",
    "--json", "--html",
)  # fmt: skip


def add_flags(to: argparse.ArgumentParser) -> None:
    to.add_argument(
        "target",
        nargs="?",
        metavar="TARGET",
        help="a URL, a model of a running server, app.py, or module:object",
    )
    for title, flags in GROUPS.items():
        group = to.add_argument_group(title)
        for flag in flags:
            group.add_argument(flag.name, *flag.also, **flag.options())


def add_commands(
    commands: Any,
    command: Callable[..., argparse.ArgumentParser],
    add_client: Callable[[argparse.ArgumentParser], None],
) -> None:
    """Add bench and top to the command line's `commands`. `add_client` adds the flags of a command
    that calls a running server."""
    top = command(
        commands,
        "top",
        "watch a running server in the terminal",
        "bench.top.command:top",
        "Keys: q quits; n, r, l, w, f sort by name, requests, latency, waiting, failures. Where"
        " stdout is not a terminal it prints the numbers once.",
    )
    top.add_argument("server", nargs="?", metavar="URL", help="the server, as --url")
    top.add_argument("--once", action="store_true", help="print the numbers once and exit")
    top.add_argument(
        "--json", action="store_true", help="print the server's answer; with --interval repeatedly"
    )
    top.add_argument("--interval", type=float, metavar="SECONDS", help="time between updates [1]")
    top.add_argument("--sort", choices="nrlwf", default="n", help="initial sort key [n]")
    add_client(top)
    bench = command(
        commands,
        "bench",
        "load-test a server or your own model",
        "bench.cli.command:bench",
        EPILOG,
        EVERYDAY,
    )
    add_flags(bench)
