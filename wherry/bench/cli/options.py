"""What does the command line of `wherry bench` ask for? (ConfigError says which flag is wrong.)"""

from __future__ import annotations

import argparse
import itertools
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from wherry.bench.inputs import lengths
from wherry.bench.objective import Objective
from wherry.bench.plan import Bursts, Closed, Load, Plan, Rate, Replay
from wherry.bench.targets import Sending
from wherry.core.api import ConfigError
from wherry.server.api import PREFIX

DEFAULT_CALLERS = "1,4,16,64"
DEFAULT_DURATION = 5.0
DEFAULT_WARMUP = 1.0


@dataclass(frozen=True, slots=True)
class BenchOptions:
    sending: Sending
    #: What all runs share; its load is one caller, as a search for the most of them multiplies it.
    plan: Plan
    #: The loads to try, each with what differs from the others.
    loads: list[tuple[dict[str, Any], Load]]
    rows: list[int]
    settings: list[dict[str, Any]]
    objective: Objective

    @classmethod
    def of(cls, args: argparse.Namespace) -> BenchOptions:
        """Read the flags. ConfigError names the one that is wrong."""
        for name in ("repeat", "processes", "connections"):
            if (count := getattr(args, name)) is not None and count < 1:
                raise ConfigError(f"--{name} must be at least 1")
        sending, plan = _sending(args), _plan(args)
        sweep, objective = _sweep(args.set), _objective(args)
        rows = counts_of("--rows", args.rows)
        found = cls(sending, plan, _loads(args, plan.load), rows, sweep, objective)
        for _, load in found.loads:
            found.plan_of(load)
        return found

    def plan_of(self, load: Load) -> Plan:
        """The plan with this load. ConfigError if it cannot be carried out."""
        return msgspec.structs.replace(self.plan, load=load).check()


def _sending(args: argparse.Namespace) -> Sending:
    of_the_server = (f.partition("=")[2] for f in args.serve if f.startswith("--api-key="))
    of_the_shell = os.environ.get(f"{PREFIX}API_KEY", "").partition(",")[0]
    return Sending(
        protocol=args.protocol,
        model=args.model,
        inputs=args.inputs,
        text=lengths(args.length) if args.length else None,
        shapes=dict(shape_of(text) for text in args.shape),
        binary=not args.json_tensors,
        stream=not args.no_stream,
        max_tokens=args.max_tokens,
        method=args.method,
        headers=dict(_header(text) for text in args.header),
        body=args.body,
        api_key=args.api_key or next(of_the_server, of_the_shell) or None,
        ssl_ca=args.ssl_ca,
        insecure=args.insecure,
        seed=args.seed,
    )


def _plan(args: argparse.Namespace) -> Plan:
    counted = args.requests is not None or args.loops is not None or args.replay
    duration = seconds_of("--duration", args.duration)
    if duration is None and not counted:
        duration = DEFAULT_DURATION
    warmup = seconds_of("--warmup", args.warmup)
    if warmup is None:
        warmup = 0.0 if counted else min(DEFAULT_WARMUP, (duration or 0.0) / 5)
    think = seconds_of("--think", args.think) or 0.0
    return Plan(
        load=Closed(callers=1, think=think, loops=args.loops),
        duration=duration,
        requests=args.requests,
        warmup=warmup,
        timeout=seconds_of("--timeout", args.timeout) or 0.0,
        connections=args.connections,
        seed=args.seed,
    )


_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}


def seconds(text: str) -> float:
    """200ms, 5s, 2m, 1h, or a number of seconds. ValueError if it is none."""
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*(us|ms|s|m|h|)", text.strip())
    if match is None:
        raise ValueError(text)
    return float(match[1]) * _UNITS[match[2]]


def seconds_of(flag: str, text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return seconds(text)
    except ValueError:
        raise ConfigError(f"{flag} {text!r}: write seconds, for example 0.5, 200ms or 5s") from None


def counts(text: str) -> list[int]:
    """1,4,16 or 1..64: doubling from the one to the other. ValueError if it is neither."""
    found: list[int] = []
    for part in text.split(","):
        low, dots, high = part.partition("..")
        if not dots:
            found.append(int(part))
            continue
        value = int(low)
        if value < 1:
            raise ValueError(part)
        while value < int(high):
            found.append(value)
            value *= 2
        found.append(int(high))
    if any(value < 1 for value in found):
        raise ValueError(text)
    return found


def counts_of(flag: str, text: str) -> list[int]:
    try:
        return counts(text)
    except ValueError:
        raise ConfigError(f"{flag} {text!r}: write for example 8, 1,4,16 or 1..64") from None


def _loads(args: argparse.Namespace, caller: Load) -> list[tuple[dict[str, Any], Load]]:
    ramp = seconds_of("--ramp", args.ramp) or 0.0
    kinds = [f"--{name}" for name in ("rate", "burst", "replay") if getattr(args, name)]
    if args.callers and kinds:
        raise ConfigError(f"--callers and {kinds[0]} are two kinds of load: choose one")
    if len(kinds) > 1:
        raise ConfigError(f"{' and '.join(kinds)} are two kinds of load: choose one")
    if kinds and (args.loops is not None or args.think):
        raise ConfigError(f"--loops and --think are for callers, not for {kinds[0]}")
    if args.rate:
        try:
            rates = [float(part) for part in args.rate.split(",")]
        except ValueError:
            raise ConfigError(f"--rate {args.rate!r}: write for example 100 or 50,100") from None
        return [({"rate": r}, Rate(rate=r, arrivals=args.arrivals, ramp=ramp)) for r in rates]
    if args.burst:
        size, slash, every = args.burst.partition("/")
        if not slash or not size.isdigit():
            raise ConfigError(f"--burst {args.burst!r}: write for example 50/2s")
        load = Bursts(size=int(size), every=seconds_of("--burst", every) or 0.0)
        return [({"burst": args.burst}, load)]
    if args.replay:
        return [({"replay": Path(args.replay).name}, replay(args.replay, args.speed))]
    callers = counts_of("--callers", args.callers or DEFAULT_CALLERS)
    return [
        ({"callers": n}, msgspec.structs.replace(caller, callers=n, ramp=ramp)) for n in callers
    ]


def replay(path: str, speed: float = 1.0) -> Replay:
    """The moments of a trace: a number a line, or a JSON object with `intended`, `timestamp` or
    `at` (our own JSONL is one). The first is the beginning."""
    if not speed > 0:
        raise ConfigError(f"--speed must be above 0, not {speed:g}")
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--replay {path}: {error}") from None
    moments = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            value = msgspec.json.decode(line)
            if isinstance(value, dict):
                value = next(value[k] for k in ("intended", "timestamp", "at") if k in value)
            moments.append(float(value))
        except (msgspec.DecodeError, StopIteration, TypeError, ValueError):
            raise ConfigError(
                f"--replay {path}, line {number}: expected a number of seconds, or an object with"
                " `intended`, `timestamp` or `at`"
            ) from None
    moments.sort()
    return Replay(moments=tuple((m - moments[0]) / speed for m in moments))


def _objective(args: argparse.Namespace) -> Objective:
    limits = {
        name: limit
        for name in ("p50", "p95", "p99")
        if (limit := seconds_of(f"--{name}", getattr(args, name))) is not None
    }
    more = {"rate": args.min_rps, "first_token": seconds_of("--max-ttft", args.max_ttft)}
    if not args.min_rps >= 0:
        raise ConfigError(f"--min-rps {args.min_rps:g}: it is a number of requests/s")
    if args.find_max and not limits and args.max_ttft is None:
        raise ConfigError("--find-max needs a target, for example --p95 200ms")
    if args.max_errors is None:
        return Objective(limits, 0.01 if args.find_max else 1.0, **more)
    match = re.fullmatch(r"(\d+(?:\.\d*)?)\s*(%?)", args.max_errors.strip())
    if match is None:
        raise ConfigError(f"--max-errors {args.max_errors!r}: write for example 1% or 0.01")
    return Objective(limits, float(match[1]) / (100 if match[2] else 1), **more)


def shape_of(text: str) -> tuple[str, tuple[int, ...]]:
    name, _, shape = text.partition("=")
    try:
        return name, tuple(int(part) for part in shape.split(","))
    except ValueError:
        raise ConfigError(f"--shape {text!r}: write for example pixels=3,224,224") from None


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise ConfigError(f"--header {text!r}: write NAME:VALUE")
    return name.strip(), value.strip()


def _sweep(texts: list[str]) -> list[dict[str, Any]]:
    """Every combination of the settings to sweep."""
    choices: dict[str, list[Any]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals or not values:
            raise ConfigError(f"--set {text!r}: write for example max_batch_size=8,16,32")
        choices[name.strip().replace("-", "_")] = [_setting(part) for part in values.split(",")]
    return [
        dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())
    ]


def _setting(text: str) -> Any:
    """A number, true or false, seconds with a unit, or a word."""
    text = text.strip()
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float, seconds):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
