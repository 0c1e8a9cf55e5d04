"""Where does a server answer otherwise than the recorded Triton?

python -m tests.golden.replay 127.0.0.1:8000 127.0.0.1:8001 [part of a case's name]
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import Any

from tests.golden.calls import Address, Answer, send
from tests.golden.compare import differences
from tests.golden.record import ANSWERS


def recorded() -> list[dict[str, Any]]:
    return list(json.loads(ANSWERS.read_text()))


def judged(step: dict[str, Any], ours: Answer) -> list[str]:
    """What is wrong with our answer; where we mean to differ, it is compared with that."""
    meant = step.get("otherwise", {})
    if step["answer"] is None and not meant:
        return ["Triton gave no answer: say in cases.py what ours must be"]
    if not meant or "except_for" in meant:
        found = differences(step["answer"], ours, shape_only=step.get("shape_only", False))
        return [d for d in found if not any(place in d for place in meant.get("except_for", ()))]
    expected = {key: value for key, value in meant.items() if key != "why"}
    return [
        f"{key}: {ours.get(key)!r}, meant: {value!r}"
        for key, value in expected.items()
        if ours.get(key) != value
    ]


def main() -> None:
    address, part = Address(*sys.argv[1:3]), " ".join(sys.argv[3:])
    counts: Counter[str] = Counter()
    for case in recorded():
        for step in case["steps"] if part in case["name"] else ():
            ours = send(address, step)
            wrong = judged(step, ours)
            meant = "meant: " + step["otherwise"]["why"] if "otherwise" in step else "equal"
            counts["different" if wrong else meant] += 1
            if wrong:
                lines = [f"{case['name']}: {step.get('http') or step['grpc']}", *wrong[:8]]
                lines += [f"theirs: {json.dumps(step['answer'])[:500]}"]
                lines += [f"ours:   {json.dumps(ours)[:500]}"]
                print("\n  ".join(lines))  # noqa: T201
    for what, count in counts.most_common():
        print(f"{count:4} {what}")  # noqa: T201


if __name__ == "__main__":
    main()
