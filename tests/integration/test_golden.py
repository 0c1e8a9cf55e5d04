"""A Triton repository and Triton's requests, unchanged: is each answer what the real Triton gave?

The requests, its answers and our reasons to answer otherwise are tests/golden/answers.json, which
`python -m tests.golden.record` writes.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.golden.calls import Address, send
from tests.golden.replay import judged, recorded
from tests.golden.table import PAGE, Comparison, compared, page, server

CASES = recorded()
GROUPS = tuple(dict.fromkeys(case["name"].split(": ")[0] for case in CASES))


@pytest.fixture(scope="module")
def address() -> Iterator[Address]:
    with server() as found:
        yield found


@pytest.mark.slow
@pytest.mark.timeout(300)  # the first one starts the server with all models
@pytest.mark.parametrize("group", GROUPS)
def test_a_client_of_triton_gets_the_answers_it_knows(address: Address, group: str) -> None:
    """In the order of the file: `control` loads and unloads, and comes last."""
    wrong = [
        f"{case['name']}: step {number}: {difference}"
        for case in CASES
        if case["name"].startswith(f"{group}: ")
        for number, step in enumerate(case["steps"])
        for difference in judged(step, send(address, step))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.fixture(scope="module")
def strict() -> Comparison:
    """A strict server of one process beside the recorded one."""
    with pytest.MonkeyPatch.context() as patched:
        patched.delenv("WHERRY_FRONTS", raising=False)
        return compared("--triton-strict")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_page_of_the_differences_is_true(
    monkeypatch: pytest.MonkeyPatch, strict: Comparison
) -> None:
    """`python -m tests.golden.table` writes it anew. It is about a server of one process."""
    monkeypatch.delenv("WHERRY_FRONTS", raising=False)
    assert page(compared(), strict) == PAGE.read_text()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_fronts_of_a_strict_server_answer_as_one_process_does(strict: Comparison) -> None:
    assert compared("--triton-strict", "--fronts=2").equal == strict.equal


def test_whoever_answers_otherwise_says_why() -> None:
    steps = [step for case in CASES for step in case["steps"]]
    assert len(steps) > 300
    for step in steps:
        assert step["answer"] is not None or step["otherwise"]["why"]
        if "otherwise" in step:
            assert step["otherwise"].keys() & {"status", "code", "except_for"}, step
