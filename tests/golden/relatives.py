"""Which relatives of the recorded requests does a strict server answer otherwise than Triton?

    python -m tests.golden.relatives --tritonserver "tritonserver --cache-directory /x/caches" \\
        --seed 7 --count 1000

changes recorded requests at random, asks both servers and prints what differs, a group for each
pair of answers. What is worth a question of its own belongs into edges.py.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import random
import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from google.protobuf.json_format import ParseError

from tests.golden import calls
from tests.golden.calls import Address, Answer, Request, parsed, send
from tests.golden.record import tritonserver
from tests.golden.replay import recorded
from tests.golden.table import server, text_of, written

log = logging.getLogger("golden_relatives")

#: What ends Triton, never answers, counts, or changes which models there are.
_LEFT_OUT = re.compile(
    r"faulty|caller|/load|/unload|ModelLoad|ModelUnload|stats|Statistics|index"
    r"|/config|ModelConfig|ServerMetadata|/v2\""
)
_VALUES: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 2, 1.5, 2**64, "", "x", "1", "INT32", "FP32",
    "BYTES", [], {}, [1], [1, 1], [1, 4], [0], ["x"], {"x": 1},
)  # fmt: skip
_MEMBERS = (
    "id", "parameters", "outputs", "priority", "timeout", "sequence_id", "sequence_start", "x",
    "binary_data", "binary_data_size", "binary_data_output", "classification", "triton_x", "shape",
    "shared_memory_region", "shared_memory_offset", "shared_memory_byte_size", "name", "data",
)  # fmt: skip
_KINDS = ("int64_param", "bool_param", "string_param", "double_param", "uint64_param")
_HEADERS = (
    ("Accept-Encoding", ("gzip", "deflate", "gzip;q=0.5, deflate", "identity", "x")),
    ("Inference-Header-Content-Length", ("0", "1", "10", "99999", "x", "-5", "")),
    ("Content-Type", ("text/plain", "application/octet-stream", "application/json")),
)
_PATHS = ("/versions/1", "/versions/2", "/versions/x", "/versions/0", "/", "?x=1", "x", "%20")


def relatives(seed: int, count: int) -> Iterator[Request]:
    """Requests that are not recorded, each a recorded one with one to three changes."""
    chance = random.Random(seed)
    steps = [
        {k: v for k, v in step.items() if k not in ("answer", "otherwise")}
        for case in recorded()
        for step in case["steps"]
        if step["answer"] is not None and not step.get("shape_only")
    ]
    steps = [step for step in steps if not _LEFT_OUT.search(json.dumps(step))]
    while count:
        made = copy.deepcopy(chance.choice(steps))
        for _ in range(chance.choice((1, 1, 1, 2, 3))):
            _change(chance, made)
        if _can_be_sent(made):
            count -= 1
            yield made


def _can_be_sent(request: Request) -> bool:
    if "http" in request:
        return True
    try:
        return all(parsed(request["grpc"], one) is not None for one in request.get("messages", ()))
    except (ParseError, ValueError, TypeError, AttributeError):
        return False


def _change(chance: random.Random, request: Request) -> None:
    if "http" not in request:
        for message in request.get("messages", ()):
            _change_within(chance, message, over_grpc=True)
        return
    what = chance.random()
    if what < 0.08:
        name, values = chance.choice(_HEADERS)
        request.setdefault("headers", {})[name] = chance.choice(values)
    elif what < 0.14:
        verb, path = request["http"].split(" ", 1)
        place = chance.choice(
            [found.start() for found in re.finditer("/", path) if found.start()] + [len(path)]
        )
        request["http"] = f"{verb} {path[:place]}{chance.choice(_PATHS)}{path[place:]}"
    elif what < 0.2 and "json" in request:
        text = json.dumps(request.pop("json"))
        place = chance.randrange(len(text))
        request["text"] = text[:place] + chance.choice(("", ",", '"', "}", "]")) + text[place + 1 :]
    elif "json" in request:
        _change_within(chance, request["json"], over_grpc=False)
    elif "text" in request:
        try:
            told = json.loads(request["text"])
        except ValueError:
            return
        _change_within(chance, told, over_grpc=False)
        request["text"] = json.dumps(told)


def _change_within(chance: random.Random, value: Any, *, over_grpc: bool) -> None:
    """Change one member of a JSON value, however deep."""
    owners = [one for one in _owners(value) if one]
    if not owners:
        return
    owner = chance.choice(owners)
    place: Any = chance.choice([*owner] if isinstance(owner, dict) else range(len(owner)))
    what = chance.random()
    if what < 0.2:
        del owner[place]
    elif what < 0.35 and isinstance(owner, list):
        owner.append(copy.deepcopy(owner[place]))
    elif what < 0.5 and isinstance(owner, dict):
        new: Any = copy.deepcopy(chance.choice(_VALUES))
        if over_grpc:
            new = {chance.choice(_KINDS): new}
        owner[chance.choice(_MEMBERS)] = new
    elif what < 0.65 and type(owner[place]) is int:
        owner[place] += chance.choice((-1, 1))
    elif what < 0.7 and isinstance(owner[place], str):
        owner[place] = owner[place].swapcase()
    else:
        owner[place] = copy.deepcopy(chance.choice(_VALUES))


def _owners(value: Any) -> Iterator[Any]:
    """The objects and arrays within a value, itself among them."""
    if isinstance(value, dict | list):
        yield value
        for member in value.values() if isinstance(value, dict) else value:
            yield from _owners(member)


def asked(address: Address, request: Request) -> Answer:
    """The answer, without what differs by nature: a traceback."""
    try:
        answer = send(address, request)
    except (OSError, ValueError, KeyError, AssertionError) as error:
        return {"none": type(error).__name__}
    told = answer.get("json", answer)
    if isinstance(told, dict) and isinstance(told.get("error"), str):
        told["error"] = told["error"].partition("\n\nAt:\n")[0]
    return answer


def lives(address: Address) -> bool:
    return asked(address, {"http": "GET /v2/health/live"}) == {
        "status": 200, "headers": {"Content-Type": "text/plain"},
    }  # fmt: skip


def kind_of(answer: Answer) -> str:
    """What an answer says, without its names and numbers."""
    text = re.sub(r"'[^']*'", "'..'", str(text_of(answer) or ""))
    return f"{answer.get('status', answer.get('code'))} {re.sub(r'[0-9]+', '9', text)[:150]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tritonserver", required=True, help="the command, with its own options")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument(
        "--patience", type=float, default=5.0, help="seconds after which there is no answer"
    )
    options = parser.parse_args()
    calls.PATIENCE = options.patience  # Triton never answers some questions
    found: dict[tuple[str, str], list[tuple[Request, Answer, Answer]]] = {}
    waiting = relatives(options.seed, options.count)
    with server("--triton-strict") as ours, suppress(KeyboardInterrupt):
        ended = True
        while ended:
            ended = False
            with tritonserver(shlex.split(options.tritonserver)) as theirs:
                for request in waiting:
                    their, our = asked(theirs, request), asked(ours, request)
                    unordered = "grpc" in request
                    if written(their, unordered) != written(our, unordered):
                        kinds = kind_of(their), kind_of(our)
                        found.setdefault(kinds, []).append((request, their, our))
                    if not lives(theirs):
                        log.warning("ends Triton: %s", json.dumps(request))
                        ended = True
                        break
    show(found, options.count)


def show(found: dict[tuple[str, str], list[tuple[Request, Answer, Answer]]], count: int) -> None:
    """Print the groups, the largest first, with two requests of each."""
    for number, ((their_kind, our_kind), all_of_them) in enumerate(
        sorted(found.items(), key=lambda item: -len(item[1]))
    ):
        print(f"{number}: {len(all_of_them)}\n  T {their_kind}\n  W {our_kind}")  # noqa: T201
        for request, their, our in all_of_them[:2]:
            print(f"  {json.dumps(request)}")  # noqa: T201
            print(f"    T {json.dumps(their)[:300]}\n    W {json.dumps(our)[:300]}")  # noqa: T201
    print(f"{sum(map(len, found.values()))} of {count} differ")  # noqa: T201


if __name__ == "__main__":
    main()
