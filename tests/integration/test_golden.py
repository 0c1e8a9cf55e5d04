"""A Triton repository and Triton's requests, unchanged: is each answer what the real Triton gave?

The requests, its answers and our reasons to answer otherwise are tests/golden/answers.json, which
`python -m tests.golden.record` writes.
"""

from __future__ import annotations

from functools import cache

import pytest

from tests.golden.compare import is_error
from tests.golden.replay import judged, recorded
from tests.golden.table import PAGE, Comparison, compared, page

CASES = recorded()
GROUPS = tuple(dict.fromkeys(case["name"].split(": ")[0] for case in CASES))


#: A replay costs 20 CPU-seconds: `make test` has the first.
WAYS = {
    "one process": (),
    "two fronts, Triton's errors": ("--fronts=2", "--triton-errors"),
    "two fronts": ("--fronts=2",),
}


@cache
def answered(way: str) -> Comparison:
    """The answers of a server, in the order of the file: `control` loads and unloads, and comes
    last."""
    return compared(*WAYS[way])


@pytest.mark.slow
@pytest.mark.timeout(300)  # the first one asks the server everything
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("group", GROUPS)
def test_a_client_of_triton_gets_the_answers_it_knows(group: str, way: str) -> None:
    answers = iter(answered(way).answers)
    told = [(case, step, next(answers)) for case in CASES for step in case["steps"]]
    wrong = [
        f"{case['name']}: {step.get('http') or step['grpc']}: {difference}"
        for case, step, answer in told
        if case["name"].startswith(f"{group}: ")
        and not ("errors" in way and ("otherwise" in step or is_error(step["answer"])))
        for difference in judged(step, answer)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_page_of_the_differences_is_true() -> None:
    """`python -m tests.golden.table` writes it anew."""
    one, as_triton = map(answered, list(WAYS)[:2])
    assert page(one, as_triton) == PAGE.read_text()


def test_whoever_answers_otherwise_says_why() -> None:
    steps = [step for case in CASES for step in case["steps"]]
    assert len(steps) > 300
    for step in steps:
        assert step["answer"] is not None or step["otherwise"]["why"]
        if "otherwise" in step:
            assert step["otherwise"].keys() & {"status", "code", "except_for"}, step
