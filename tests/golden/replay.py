"""Where does a server answer otherwise than the recorded Triton?

python -m tests.golden.replay 127.0.0.1:8000 127.0.0.1:8001 [part of a case's name]
"""

from __future__ import annotations

import json
import sys
from typing import Any

from tests.golden.calls import Address, Answer, send
from tests.golden.compare import differences, is_error
from tests.golden.record import ANSWERS


def recorded() -> list[dict[str, Any]]:
    return list(json.loads(ANSWERS.read_text()))


def judged(step: dict[str, Any], ours: Answer) -> list[str]:
    """What is wrong with our answer; where we mean to differ, it is compared with that."""
    if step["answer"] is None and "otherwise" not in step:
        return ["Triton gave no answer: say in cases.py what ours must be"]
    if "otherwise" not in step:
        return differences(step["answer"], ours, shape_only=step.get("shape_only", False))
    expected = {k: v for k, v in step["otherwise"].items() if k != "why"}
    wrong = [f"{k}: {ours.get(k)!r}, meant: {v!r}" for k, v in expected.items() if ours.get(k) != v]
    good = expected.get("status") == 200 or expected.get("code") == "OK"
    return wrong if good or wrong or is_error(ours) else [f"no error: {ours}"]


def main() -> None:
    address, part = Address(*sys.argv[1:3]), " ".join(sys.argv[3:])
    steps = same = 0
    for case in recorded():
        if part not in case["name"]:
            continue
        for step in case["steps"]:
            ours = send(address, step)
            steps += 1
            wrong = judged(step, ours)
            same += not wrong
            if wrong:
                what = step.get("http") or step["grpc"]
                print(f"\n== {case['name']}: {what}", json.dumps(step.get("json", step.get("text", step.get("messages"))))[:300], sep="\n   ")  # noqa: T201, E501
                for line in wrong[:8]:
                    print(f"   - {line[:400]}")  # noqa: T201
                print(f"   theirs {json.dumps(step['answer'])[:500]}\n   ours   {json.dumps(ours)[:500]}")  # noqa: T201, E501
    print(f"\n{same} of {steps} steps")  # noqa: T201


if __name__ == "__main__":
    main()
