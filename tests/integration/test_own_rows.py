"""Does an answer depend on the row's company, on where the model runs, or on a second try?

Models of every kind of rows with the worst habits (`tests.row_models`) run in every way; the oracle
is what they say of one row alone.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

import wherry
from tests.row_models import BAD, KINDS, LARGE, Echo, Kind

if sys.platform == "win32":
    pytest.skip("worker processes need a Unix system", allow_module_level=True)

ISOLATIONS = [
    pytest.param("thread", marks=pytest.mark.slow),
    pytest.param("process", marks=pytest.mark.full),
]
ROWS = [1, 2, BAD, 3, 5, LARGE, 4]
STREAMED = ["array", "dict", "list", "dataclass"]


@wherry.pipeline
async def twice(kind: str, n: int) -> list[int]:
    """What a model says of one object that two of its calls share, and one after them."""
    one = KINDS[kind].row(n)
    model = f"{kind}_plain"
    runtime = Current.runtime
    answers = await asyncio.gather(runtime.ainfer(model, one), runtime.ainfer(model, one))
    return [KINDS[kind].says(row) for row in (*answers, one)]


class Current:
    runtime: Any = None


@pytest.fixture(scope="module", params=ISOLATIONS)
def runtime(request: pytest.FixtureRequest) -> Iterator[wherry.Runtime]:
    forms = [Echo(kind, form) for kind in STREAMED for form in ("async", "stream", "async stream")]
    echoes = [Echo(kind) for kind in KINDS]
    with wherry.Runtime(*echoes, *forms, twice, isolation=request.param) as runtime:
        Current.runtime = runtime
        for kind in ("image", "audio"):  # threads and event loops that start when needed
            runtime.infer("twice", kind=kind, n=1)
        for kind in STREAMED:
            runtime.infer(f"{kind}_async", KINDS[kind].row(1))
            list(runtime.stream(f"{kind}_async_stream", KINDS[kind].row(1)))
        yield runtime


def alone(runtime: wherry.Runtime, model: str, kind: Kind, numbers: list[int]) -> list[Any]:
    """One after the other; what the caller gave and was given stays as it was."""
    given = [kind.row(n) for n in numbers]
    answers = [_answer(runtime, model, row) for row in given]
    assert [kind.says(row) for row in given] == numbers
    return answers


def at_once(runtime: wherry.Runtime, model: str, kind: Kind, numbers: list[int]) -> list[Any]:
    async def main() -> list[Any]:
        calls = [runtime.ainfer(model, row) for row in given]
        return list(await asyncio.gather(*calls, return_exceptions=True))

    given = [kind.row(n) for n in numbers]
    answers = asyncio.run(main())
    assert [kind.says(row) for row in given] == numbers
    return answers


def in_one_request(
    runtime: wherry.Runtime, model: str, kind: Kind, numbers: list[int]
) -> list[Any]:
    """More rows than a batch holds; a bad one would fail the request."""
    given = [kind.row(n) for n in numbers if n != BAD]
    if model.startswith("arrays"):  # a request of its own for each shape
        return at_once(runtime, model, kind, numbers)
    answers = iter(runtime.infer_batch(model, x=given)["output"])
    assert [kind.says(row) for row in given] == [n for n in numbers if n != BAD]
    return [ValueError() if n == BAD else next(answers) for n in numbers]


def mapped(runtime: wherry.Runtime, model: str, kind: Kind, numbers: list[int]) -> list[Any]:
    answers = runtime.map(model, in_one_object(kind, [n for n in numbers if n != BAD]))
    return [ValueError() if n == BAD else next(answers) for n in numbers]


def begun(runtime: wherry.Runtime, model: str, kind: Kind, numbers: list[int]) -> list[Any]:
    async def main() -> list[Any]:
        calls = []
        for row in in_one_object(kind, numbers):
            calls.append(asyncio.ensure_future(runtime.ainfer(model, row)))
            await asyncio.sleep(0)
        return list(await asyncio.gather(*calls, return_exceptions=True))

    return asyncio.run(main())


def in_one_object(kind: Kind, numbers: list[int]) -> Iterator[Any]:
    """Rows of which the next one stands where the one before did."""
    column = [kind.row(1)]
    for n in numbers:
        if kind in CHANGED:
            _set(column[0], kind.row(n))
        else:
            column = [kind.row(n)]
        yield column[0]


CHANGED = [KINDS["array"], KINDS["dict"], KINDS["list"]]


def _set(row: Any, to: Any) -> None:
    if isinstance(row, dict):
        row.update(to)
    else:
        row[:] = to


def _answer(runtime: wherry.Runtime, model: str, row: Any) -> Any:
    try:
        return runtime.infer(model, row)
    except wherry.ModelFailed as error:
        return error


@pytest.mark.parametrize("way", [alone, at_once, in_one_request, mapped, begun])
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_is_answered_as_if_it_were_alone(
    runtime: wherry.Runtime, kind: str, way: Callable[..., list[Any]]
) -> None:
    given: list[list[Any]] = [way(runtime, f"{kind}_plain", KINDS[kind], ROWS) for _ in range(3)]
    for answers in given:  # also the first ones, after the model has changed what it returned
        assert said(KINDS[kind], answers) == [2 * n if n != BAD else "bad" for n in ROWS]


def said(kind: Kind, answers: list[Any]) -> list[Any]:
    return ["bad" if isinstance(one, Exception) else kind.says(one) for one in answers]


@pytest.mark.parametrize("kind", KINDS)
def test_calls_of_a_pipeline_share_an_object_that_none_of_them_changes(
    runtime: wherry.Runtime, kind: str
) -> None:
    assert list(runtime.infer("twice", kind=kind, n=3)) == [6, 6, 3]


@pytest.mark.parametrize("kind", STREAMED)
@pytest.mark.parametrize("way", [alone, at_once])
def test_an_async_model_may_have_these_habits(
    runtime: wherry.Runtime, kind: str, way: Callable[..., list[Any]]
) -> None:
    given: list[list[Any]] = [way(runtime, f"{kind}_async", KINDS[kind], ROWS) for _ in range(3)]
    for answers in given:
        assert said(KINDS[kind], answers) == [2 * n if n != BAD else "bad" for n in ROWS]


@pytest.mark.parametrize("kind", STREAMED)
@pytest.mark.parametrize("form", ["stream", "async_stream"])
def test_a_generator_may_yield_one_object_again_and_again(
    runtime: wherry.Runtime, kind: str, form: str
) -> None:
    async def responses(row: Any) -> list[Any]:
        answers: AsyncIterator[Any] = runtime.astream(f"{kind}_{form}", row)
        return [answer async for answer in answers]

    async def main(rows: list[Any]) -> list[list[Any]]:
        return await asyncio.gather(*[responses(row) for row in rows])

    numbers = [1, 2, 3, 4]
    given = [KINDS[kind].row(n) for n in numbers]
    streams = [list(runtime.stream(f"{kind}_{form}", row)) for row in given]
    streams += asyncio.run(main(given))
    assert [said(KINDS[kind], one) for one in streams] == 2 * [[2 * n, 4 * n] for n in numbers]
    assert said(KINDS[kind], given) == numbers
