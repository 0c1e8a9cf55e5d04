"""In what do two answers differ, as far as a client can care?

Not told: the order of members and of streams' requests, the words of an error, the Content-Type
of an error, times and counts of the statistics.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

from tests.golden.calls import Answer


def differences(theirs: Answer, ours: Answer, *, shape_only: bool = False) -> list[str]:
    """One line for each; none: a client cannot tell the servers apart."""
    theirs, ours = without_error_texts(theirs), without_error_texts(ours)
    return list(compared("", by_request(theirs), by_request(ours), shape_only))


def is_error(answer: Answer) -> bool:
    """An error that says something, and not the server's death."""
    if "status" in answer:
        return 400 <= answer["status"] < 600 and bool(answer.get("json", {}).get("error"))
    return answer["code"] not in ("OK", "UNAVAILABLE") and bool(answer["error"])


def without_error_texts(answer: Answer) -> Answer:
    answer = dict(answer)
    if answer.get("status", 0) >= 400:
        answer.pop("headers")
    for member in ("error", "json", "events", "messages"):
        if member in answer:
            answer[member] = told(answer[member])
    if "error" in answer:
        answer["error"] = "some text"
    return answer


def told(value: Any) -> Any:
    """`value` with "some text" in place of each error's."""
    if isinstance(value, list):
        return [told(v) for v in value]
    if isinstance(value, dict):
        errors = ("error", "error_message", "reason")
        return {k: "some text" if k in errors and v else told(v) for k, v in value.items()}
    return value


def by_request(answer: Answer) -> Answer:
    """The messages of a stream, those of each request together: others may come in between."""
    if len(answer.get("messages", ())) < 2:
        return answer
    groups: dict[str, list[Any]] = {}
    for message in answer["messages"]:
        identity = message.get("infer_response", {}).get("id", "")
        groups.setdefault(identity, []).append(message)
    return {**answer, "messages": groups}


def named(values: list[Any]) -> Any:
    """Outputs, models of an index or of statistics: what has a name has no order."""
    if not values or not all(isinstance(v, dict) and "name" in v for v in values):
        return values
    found = {f"{v['name']} {v.get('version', '')}": v for v in values}
    return found if len(found) == len(values) else values


def compared(place: str, theirs: Any, ours: Any, shape_only: bool) -> Iterator[str]:
    if isinstance(theirs, list) and isinstance(ours, list):
        theirs, ours = named(theirs), named(ours)
        if shape_only and isinstance(theirs, list) and isinstance(ours, list):
            theirs, ours = (x[: min(1, len(theirs), len(ours))] for x in (theirs, ours))
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for key in sorted(theirs.keys() | ours.keys()):
            if key not in ours:
                yield f"{place}.{key}: missing, should be {theirs[key]!r}"
            elif key not in theirs:
                yield f"{place}.{key}: too much: {ours[key]!r}"
            else:
                yield from compared(f"{place}.{key}", theirs[key], ours[key], shape_only)
    elif isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        for i, (their, our) in enumerate(zip(theirs, ours, strict=True)):
            yield from compared(f"{place}[{i}]", their, our, shape_only)
    elif not same(theirs, ours, shape_only):
        yield f"{place}: {ours!r}, should be {theirs!r}"


def same(theirs: Any, ours: Any, shape_only: bool) -> bool:
    if isinstance(theirs, bool) or isinstance(ours, bool) or type(theirs) is not type(ours):
        numbers = isinstance(theirs, float | int) and isinstance(ours, float | int)
        return theirs is ours or (numbers and not isinstance(theirs, bool) and theirs == ours)
    if isinstance(theirs, float):
        both_nan = math.isnan(theirs) and math.isnan(ours)
        return shape_only or both_nan or math.isclose(theirs, ours, rel_tol=1e-6)
    if shape_only and (isinstance(theirs, int) or re.fullmatch(r"\d+", str(theirs))):
        return True
    return bool(theirs == ours)
