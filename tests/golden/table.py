"""Where does this server answer otherwise than the recorded Triton, and why?

    python -m tests.golden.table

replays every recorded request, with `--triton-errors` and without, and writes
docs/reference/triton-answers.md anew.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.golden.calls import Address, Answer, send
from tests.golden.compare import is_error
from tests.golden.record import REPOSITORY, models
from tests.golden.replay import recorded
from wherry.testing.servers import ServerProcess

PAGE = Path(__file__).parents[2] / "docs/reference/triton-answers.md"
HEAD = """\
# Triton's recorded answers

A tritonserver 2.51 was asked {total} questions, right and wrong, and its answers were recorded.
wherry serves the same repository; this page says where it answers otherwise, and a test holds it
(`python -m tests.golden.table` writes it anew). With `--triton-errors` an error has Triton's
status, gRPC code, Content-Type and sentence, for clients and scripts that look at them; which
requests are refused is the same.

| equal to Triton's | of | default | `--triton-errors` |
|---|---|---|---|
"""
REASONS = """
## Why an answer differs

| why | answers | for example | Triton | wherry | `--triton-errors` |
|---|---|---|---|---|---|
"""


@dataclass
class Comparison:
    """One server beside the recorded one."""

    equal: Counter[tuple[str, str]] = field(default_factory=Counter)
    answers: list[Answer] = field(default_factory=list)


def compared(*options: str) -> Comparison:
    found = Comparison()
    with server(*options) as address:
        for step in steps():
            ours, theirs = send(address, step), step["answer"]
            found.answers.append(ours)
            if theirs is None:
                continue
            kind, key = ("HTTP", "status") if "http" in step else ("gRPC", "code")
            same = ours.get(key) == theirs.get(key)
            found.equal[kind, "all"] += 1
            found.equal[kind, key] += same
            if is_error(theirs):
                found.equal[kind, "errors"] += 1
                same = same and type_of(ours) == type_of(theirs)
                found.equal[kind, f"{key} and Content-Type of errors"] += same
    return found


@contextmanager
def server(*options: str) -> Iterator[Address]:
    """This server with the repository that Triton had."""
    given = [
        "--model-control-mode=explicit", "--cache-size=1MiB", "--allow-client-shm",
        "--grpc-port=0", *(f"--load-model={name}" for name in models()), *options,
    ]  # fmt: skip
    with ServerProcess(str(REPOSITORY), *given, ready_timeout=250) as process:
        found = re.search(r'grpc=([^\s"]+)', process.log)
        assert found is not None, process.log
        yield Address(process.url.removeprefix("http://"), found[1])


def steps() -> list[dict[str, Any]]:
    return [step for case in recorded() for step in case["steps"]]


def type_of(answer: Answer) -> str | None:
    headers: dict[str, str] = answer.get("headers", {})
    return headers.get("Content-Type")


def page(default: Comparison, as_triton: Comparison) -> str:
    lines = [HEAD.format(total=len(steps()))]
    for kind, what, of in (
        ("HTTP", "status", "all"),
        ("HTTP", "status and Content-Type of errors", "errors"),
        ("gRPC", "code", "all"),
    ):
        counts = [one.equal[kind, what] for one in (default, as_triton)]
        cells = [f"{kind}: {what}", default.equal[kind, of], *counts]
        lines.append("| " + " | ".join(map(str, cells)) + " |\n")
    lines.append(REASONS)
    reasons: dict[str, list[int]] = {}
    for number, step in enumerate(steps()):
        if "otherwise" in step:
            reasons.setdefault(step["otherwise"]["why"], []).append(number)
    for why, numbers in sorted(reasons.items(), key=lambda reason: -len(reason[1])):
        step = steps()[numbers[0]]
        asked = step.get("http") or step["grpc"]
        told = [step["answer"], default.answers[numbers[0]], as_triton.answers[numbers[0]]]
        shown = " | ".join(brief(answer) for answer in told)
        lines.append(f"| {why} | {len(numbers)} | `{asked}` | {shown} |\n")
    return "".join(lines)


def brief(answer: Answer | None) -> str:
    """Its status or code."""
    return "none" if answer is None else str(answer.get("status", answer.get("code")))


if __name__ == "__main__":
    PAGE.write_text(page(compared(), compared("--triton-errors")))
