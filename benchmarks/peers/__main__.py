"""What does a request cost here, beside Triton, MOSEC and the least that Python can do?

    python -m benchmarks.peers [--cells hello,v2/alone/json] [--rounds 5] [--seconds 1]
        [--tree PATH]... [--triton COMMAND] [--mosec PYTHON] [--minimal] [--other NAME=COMMAND]...
        [--base NAME] [--json PATH] [--markdown PATH]

All servers run at once and are asked one after the other, in an order that is drawn for each round,
by wrk (HTTP) and h2load (gRPC). A figure is the CPU time of a server's whole process tree for each
request, user and system, in microseconds; `foreign` says how many cores other processes took
meanwhile. benchmarks/README.md has the peers' installation and the commands of the tables.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks import harness
from benchmarks.peers import clients, table
from benchmarks.peers.cells import GROUPS, Cell, Family, selected
from benchmarks.peers.servers import (
    Mosec,
    Peer,
    Running,
    Triton,
    Wherry,
    minimal,
    other,
)

Servers = dict[str, dict[Family, Running]]
#: What is kept of a run.
FIGURES = ("cpu_us", "requests", "rate", "p50_ms", "p99_ms", "errors", "foreign")


def main() -> None:
    parser = harness.arguments(__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.set_defaults(rounds=5, seconds=1.0)
    add = parser.add_argument
    add("--cells", default=",".join(GROUPS), help="beginnings of their names (%(default)s)")
    add("--tree", action="append", default=[], metavar="[NAME=]PATH", help="another wherry")
    add("--triton", metavar="COMMAND", help="starts tritonserver, see benchmarks/README.md")
    add("--mosec", metavar="PYTHON", help="the Python of an environment with mosec")
    add("--minimal", action="store_true", help="the least server, of this folder")
    add("--other", action="append", default=[], metavar="NAME=COMMAND", help="with {port} in it")
    add("--base", default="wherry", help="the peer that the others are compared with")
    add("--markdown", type=Path, help="write the table here, too")
    add("--lock", type=Path, help="a file that is locked for each cell: one measurement at a time")
    options = parser.parse_args()
    peers = chosen(options)
    if options.base not in [peer.name for peer in peers]:
        parser.error(f"--base {options.base}: no such peer")
    cells = selected(options.cells)
    families: list[Family] = list(dict.fromkeys(cell.family for cell in cells))
    results: list[table.CellResult] = []
    with contextlib.ExitStack() as stack:
        servers = {
            peer.name: stack.enter_context(peer.started(_wanted(peer, cells, families)))
            for peer in peers
        }
        for cell in cells:
            with locked(options.lock):
                results.append(measured(cell, peers, servers, options.rounds, options.seconds))
            lines = table.rows(results[-1], options.base)
            sys.stdout.write(table.markdown(lines) + "\n")
            sys.stdout.flush()
            write(options, peers, results)


def chosen(options: argparse.Namespace) -> list[Peer]:
    peers: list[Peer] = [Wherry("wherry", harness.ROOT)]
    for given in options.tree:
        name, _, path = given.rpartition("=")
        peers.append(Wherry(name or Path(path).name, Path(path)))
    if options.triton:
        peers.append(Triton(options.triton))
    if options.mosec:
        peers.append(Mosec(options.mosec))
    if options.minimal:
        peers.append(minimal())
    return peers + [other(given) for given in options.other]


def _wanted(peer: Peer, cells: Sequence[Cell], families: Sequence[Family]) -> list[Family]:
    """Only these families' servers are started."""
    able = {cell.family for cell in cells if peer.why_not(cell) is None}
    return [family for family in families if family in able]


@contextmanager
def locked(path: Path | None) -> Iterator[None]:
    if path is None:
        yield
        return
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def measured(
    cell: Cell, peers: Sequence[Peer], servers: Servers, rounds: int, seconds: float
) -> table.CellResult:
    """All runs of one cell: each round asks each peer once, after a second that is not counted."""
    found: dict[str, table.Measured] = {}
    able = []
    for peer in peers:
        why_not = peer.why_not(cell) or clients.missing(cell.protocol)
        found[peer.name] = {"why_not": why_not} if why_not else {"runs": []}
        if not why_not:
            able.append(peer)
    order = random.Random(cell.name)
    for number in range(-1, rounds):
        for peer in order.sample(able, len(able)):
            running = servers[peer.name][cell.family]
            run = one_run(peer, running, cell, seconds)
            if number >= 0:
                found[peer.name]["runs"].append(run)
    return {"cell": cell.name, "ideal": cell.ideal, "peers": found}


def one_run(peer: Peer, running: Running, cell: Cell, seconds: float) -> table.Run:
    url, request = running.url(peer, cell), peer.request(cell)
    load = harness.Load(running.pid)
    try:
        run = clients.run(cell.protocol, url, request, cell.callers, seconds)
    except RuntimeError as fault:
        raise RuntimeError(f"{peer.name}, {cell.name}: {fault}") from fault
    used = load.since()
    if not run["requests"]:
        raise SystemExit(f"{peer.name} answered nothing in {cell.name}: {url} {run}")
    cpu_us = used["cpu_seconds"] * 1e6 / run["requests"]
    figures = {**run, "cpu_us": cpu_us, "foreign": used["foreign"]}
    return {name: float(f"{figures[name]:.5g}") for name in FIGURES}


def write(
    options: argparse.Namespace, peers: Sequence[Peer], results: Sequence[table.CellResult]
) -> None:
    """After each cell, so that an interrupted command leaves what it has measured."""
    if options.json:
        versions = {peer.name: peer.version for peer in peers}
        record = json.dumps({**harness.facts(), "peers": versions}, indent=1).removesuffix("\n}")
        cells = ",\n".join(json.dumps(result) for result in results)
        options.json.write_text(f'{record},\n "cells": [\n{cells}\n]}}\n')
    if options.markdown:
        lines = [row for result in results for row in table.rows(result, options.base)]
        options.markdown.write_text(table.markdown(lines))


if __name__ == "__main__":
    main()
