"""Where does this server answer otherwise than the recorded Triton, and why?

    python -m tests.golden.table

replays every recorded request, with `--triton-strict` and without, and writes
docs/reference/triton-answers.md anew.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.golden.calls import Address, Answer, send
from tests.golden.record import REPOSITORY, models
from tests.golden.replay import recorded
from wherry.testing.servers import ServerProcess

PAGE = Path(__file__).parents[2] / "docs/reference/triton-answers.md"
HEAD = """\
# Triton's recorded answers

A tritonserver 2.51 was asked {total} questions, right and wrong, and its answers were recorded
(`tests/golden/answers.json`). wherry serves the same repository and is asked the same; this page
says where it answers otherwise. `python -m tests.golden.table` writes it, and a test fails when it
is not true any more.

Without an option each difference is meant: the answer is better, and the table says how. With
`--triton-strict` statuses, words, the order of members and Content-Types are Triton's as well, for
clients and scripts that look at them.

| equal to Triton's | of | default | `--triton-strict` |
|---|---|---|---|
"""
REASONS = """
The text is that of an error; "to the letter" is status, type, coding, and the body with the order
of its members. Times, counts and random numbers are not compared.

## Why an answer differs

| why | answers | for example | Triton | wherry | strict |
|---|---|---|---|---|---|
"""
TAIL = """
## What `--triton-strict` does not do

- Pages that Triton does not have stay, but for `/` and `GET /v2/models`: `/v1/...`, the board, and
  `/metrics` on the port of HTTP.
- Tracebacks of a model's code stay in the log.
- A timeout counts from the request's arrival here, and not in a queue only.
- A shape whose size overflows is refused: a large one ends Triton. So is a window in shared memory
  whose end overflows.
- Of several faults of one infer request Triton's first is told, that of its core too; those of
  regions, of texts' bytes and of the model's own code come after them.
- A model whose load failed leaves the server ready, as it was no part of it before: Triton's
  `/v2/health/ready` is 400 from then on.
- Reflection answers over gRPC, and a shared memory region's name has at most 255 characters.
- A Python model's `request.flags()` are 0 for a request without a sequence's id; Triton's are those
  that were sent.
- The server tells its own version and extensions.
- Of a member of JSON that is said twice the last holds; Triton takes the first. JSON that is no
  UTF-8 is refused, and lists and objects are at most 100 deep.
- A name with a zero byte is another name; Triton's ends there. A model `..` is not found.
- Heads may have 64 KiB: Triton closes the connection after 8. A body over `--max-body-size` is 413;
  a Triton of that version has no such limit, later ones say 400.
- An output that is asked for twice is given once, as in 2.51; later ones say 400.
- Settings of which one is wrong stay all as they were; Triton keeps those before it. A key of
  shared memory may be registered under several names.
- Lines of the log name files of wherry, and other events than a start's and a model's are wherry's.
  `log_file` is told without its folder, and a verbose level of the command line is 1.
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
            status, text = ours.get(key) == theirs.get(key), text_of(ours) == text_of(theirs)
            loose = bool(step.get("shape_only")) and status
            found.equal[kind, "all"] += 1
            found.equal[kind, "status"] += status
            found.equal[kind, "status and text"] += status and text
            unordered = kind == "gRPC"  # maps of messages have no order
            exact = written(ours, unordered) == written(theirs, unordered)
            found.equal[kind, "to the letter"] += loose or exact
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


def written(answer: Answer, unordered: bool) -> str:
    return json.dumps(answer, sort_keys=unordered)


def text_of(answer: Answer) -> Any:
    """What an error says; None for an answer that is none."""
    if "status" not in answer:
        return answer.get("error") or None
    told = answer.get("json")
    return told.get("error") if isinstance(told, dict) else None


def page(default: Comparison, strict: Comparison) -> str:
    lines = [HEAD.format(total=len(steps()))]
    for kind in ("HTTP", "gRPC"):
        for what in ("status", "status and text", "to the letter"):
            counts = [one.equal[kind, what] for one in (default, strict)]
            cells = [f"{kind}: {what}", default.equal[kind, "all"], *counts]
            lines.append("| " + " | ".join(map(str, cells)) + " |\n")
    lines.append(REASONS)
    reasons: dict[str, list[int]] = {}
    for number, step in enumerate(steps()):
        if "otherwise" in step:
            reasons.setdefault(step["otherwise"]["why"], []).append(number)
    for why, numbers in sorted(reasons.items(), key=lambda reason: -len(reason[1])):
        step = steps()[numbers[0]]
        asked = step.get("http") or step["grpc"]
        told = [step["answer"], default.answers[numbers[0]], strict.answers[numbers[0]]]
        shown = " | ".join(brief(answer) for answer in told)
        lines.append(f"| {why} | {len(numbers)} | `{asked}` | {shown} |\n")
    lines.append(TAIL)
    return "".join(lines)


def brief(answer: Answer | None) -> str:
    """Status and text, as far as a cell holds them."""
    if answer is None:
        return "none"
    status, text = answer.get("status", answer.get("code")), text_of(answer)
    if not text:
        return str(status)
    text = re.sub(r"[|`\x00-\x1f]", " ", str(text))
    return f"{status} `{text if len(text) <= 90 else text[:87] + '...'}`"


if __name__ == "__main__":
    PAGE.write_text(page(compared(), compared("--triton-strict")))
