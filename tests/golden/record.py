"""What does a real Triton answer to every request of cases.py?

    python -m tests.golden.record --tritonserver "tritonserver --cache-directory /x/caches"

writes answers.json anew; the command gets this folder's repository and its ports. With `--new` only
cases that are not recorded are asked.
"""

from __future__ import annotations

import argparse
import http.client
import json
import logging
import shlex
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from tests.golden.calls import Address, Answer, send
from tests.golden.cases import RULES, cases

log = logging.getLogger("record_golden")

HERE = Path(__file__).parent
REPOSITORY = HERE / "repository"
ANSWERS = HERE / "answers.json"
NOT_AT_THE_START = {"broken", "extra", "member", "of_member"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tritonserver", required=True, help="the command, with its own options")
    parser.add_argument("--new", action="store_true", help="keep the answers that there are")
    options = parser.parse_args()
    kept = {}
    if options.new:
        kept = {case["name"]: case for case in json.loads(ANSWERS.read_text())}
    with tritonserver(shlex.split(options.tritonserver)) as address:
        recorded = [
            kept.get(case["name"])
            or {**case, "steps": [with_answer(address, step) for step in case["steps"]]}
            for case in cases()
        ]
    lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in recorded)
    lines = lines.replace(f"{HERE.parents[1]}/", "")  # in tracebacks: whose machine it was
    ANSWERS.write_text(f"[\n{lines}\n]\n")


def models() -> list[str]:
    return sorted(f.name for f in REPOSITORY.iterdir() if f.name not in NOT_AT_THE_START)


@contextmanager
def tritonserver(command: list[str]) -> Iterator[Address]:
    web, rpc, metrics = free_ports(3)
    options = [
        f"--model-repository={REPOSITORY}", f"--http-port={web}", f"--grpc-port={rpc}",
        f"--metrics-port={metrics}", "--model-control-mode=explicit",
        "--cache-config=local,size=1048576", *(f"--load-model={name}" for name in models()),
    ]  # fmt: skip
    process = subprocess.Popen([*command, *options], stderr=subprocess.DEVNULL)
    try:
        address = Address(f"127.0.0.1:{web}", f"127.0.0.1:{rpc}")
        with grpc.insecure_channel(address.grpc) as channel:
            grpc.channel_ready_future(channel).result(timeout=120)
        yield address
    finally:
        process.terminate()
        process.wait(60)


def free_ports(number: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    try:
        return [s.getsockname()[1] for s in sockets]
    finally:
        for s in sockets:
            s.close()


def with_answer(address: Address, step: dict[str, Any]) -> dict[str, Any]:
    theirs = answer(address, step)
    made = {**step, "answer": theirs}
    if "otherwise" not in step and theirs is not None:
        rule = next((ours for applies, ours in RULES if applies(step, theirs)), None)
        if rule is not None:
            made["otherwise"] = rule
    return made


def answer(address: Address, step: dict[str, Any]) -> Answer | None:
    """None for what must not be sent to Triton, and for what it does not answer."""
    if step.get("not_sent"):
        return None
    try:
        return send(address, step)
    except (OSError, http.client.HTTPException) as e:
        log.warning("no answer (%r) to %s", e, step)
        return None


if __name__ == "__main__":
    main()
