"""What does the command line of `wherry bench` request? (ConfigError names the wrong flag.)"""

from __future__ import annotations

import argparse
import itertools
import os
from dataclasses import dataclass
from typing import Any

import msgspec

from wherry.bench.cli.flags import GROUPS, KINDS, REPEATED
from wherry.bench.inputs import lengths
from wherry.bench.objective import Objective
from wherry.bench.plan import Closed, Load, Plan, Rate
from wherry.bench.targets import Sending
from wherry.core.api import ConfigError
from wherry.server.api import PREFIX

DEFAULT_CALLERS = (1, 4, 16, 64)
DEFAULT_DURATION = 5.0
DEFAULT_WARMUP = 1.0


@dataclass(frozen=True, slots=True)
class BenchOptions:
    sending: Sending
    #: What all runs share; its load is one caller, which a search for the highest load multiplies.
    plan: Plan
    #: The loads to try, each with what differs from the others.
    loads: list[tuple[dict[str, Any], Load]]
    rows: list[int]
    settings: list[dict[str, Any]]
    objective: Objective
    #: Seconds between two runs.
    pause: float

    @classmethod
    def of(cls, args: argparse.Namespace) -> BenchOptions:
        args = _read(args)
        for name in ("repeat", "processes", "connections"):
            if (count := getattr(args, name)) is not None and count < 1:
                raise ConfigError(f"--{name} must be at least 1")
        sending, plan, objective = _sending(args), _plan(args), _objective(args)
        loads, sweep = _loads(args, plan.load), _sweep(args.set)
        found = cls(sending, plan, loads, args.rows, sweep, objective, args.pause)
        for _, load in found.loads:
            found.plan_of(load)
        return found

    def plan_of(self, load: Load) -> Plan:
        """The plan with this load. ConfigError if it cannot be carried out."""
        return msgspec.structs.replace(self.plan, load=load).check()


def _read(args: argparse.Namespace) -> argparse.Namespace:
    values = vars(args).copy()
    for flag in itertools.chain.from_iterable(GROUPS.values()):
        if flag.metavar not in KINDS:
            continue
        read, example = KINDS[flag.metavar]
        name = flag.name.removeprefix("--").replace("-", "_")
        texts = values[name] if flag.more == REPEATED else [values[name]]
        found = []
        for text in texts:
            try:
                found.append(None if text is None else read(text))
            except ValueError:
                raise ConfigError(f"{flag.name} {text!r}: write for example {example}") from None
        values[name] = found if flag.more == REPEATED else found[0]
    return argparse.Namespace(**values)


def _sending(args: argparse.Namespace) -> Sending:
    of_the_server = (f.partition("=")[2] for f in args.serve if f.startswith("--api-key="))
    of_the_shell = os.environ.get(f"{PREFIX}API_KEY", "").partition(",")[0]
    return Sending(
        protocol=args.protocol,
        model=args.model,
        inputs=args.inputs,
        text=lengths(args.length) if args.length else None,
        shapes=dict(args.shape),
        binary=not args.json_tensors,
        stream=not args.no_stream,
        max_tokens=args.max_tokens,
        method=args.method,
        headers=dict(args.header),
        body=args.body,
        api_key=args.api_key or next(of_the_server, of_the_shell) or None,
        ssl_ca=args.ssl_ca,
        insecure=args.insecure,
        seed=args.seed,
    )


def _plan(args: argparse.Namespace) -> Plan:
    counted = args.requests is not None or args.loops is not None
    duration, warmup = args.duration, args.warmup
    if duration is None and not counted:
        duration = DEFAULT_DURATION
    if warmup is None:
        warmup = 0.0 if counted else min(DEFAULT_WARMUP, (duration or 0.0) / 5)
    return Plan(
        load=Closed(callers=1, think=args.think or 0.0, loops=args.loops),
        duration=duration,
        requests=args.requests,
        warmup=warmup,
        timeout=args.timeout,
        connections=args.connections,
        seed=args.seed,
    )


def _loads(args: argparse.Namespace, caller: Load) -> list[tuple[dict[str, Any], Load]]:
    ramp = args.ramp or 0.0
    if args.rate:
        if args.callers:
            raise ConfigError("--callers and --rate are two kinds of load: choose one")
        if args.loops is not None or args.think:
            raise ConfigError("--loops and --think are for callers, not for --rate")
        return [({"rate": r}, Rate(rate=r, arrivals=args.arrivals, ramp=ramp)) for r in args.rate]
    return [
        ({"callers": n}, msgspec.structs.replace(caller, callers=n, ramp=ramp))
        for n in args.callers or DEFAULT_CALLERS
    ]


def _objective(args: argparse.Namespace) -> Objective:
    limits = {
        name: limit for name in ("p50", "p95", "p99") if (limit := getattr(args, name)) is not None
    }
    if not args.min_rps >= 0:
        raise ConfigError(f"--min-rps {args.min_rps:g}: it is a number of requests/s")
    if args.find_max and not limits and args.max_ttft is None:
        raise ConfigError("--find-max needs a target, for example --p95 200ms")
    errors = args.max_errors
    if errors is None:
        errors = 0.01 if args.find_max else 1.0
    return Objective(limits, errors, rate=args.min_rps, first_token=args.max_ttft)


def _sweep(settings: list[tuple[str, list[Any]]]) -> list[dict[str, Any]]:
    choices = dict(settings)
    return [
        dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())
    ]
