"""Models with the worst habits that are allowed, for rows of every kind.

`Echo` writes into its inputs, keeps them, returns them, and changes later what it has kept and
returned. Its answer for a row that says n says 2 * n; a batch with a row that says BAD fails, and
one of several rows of which one says LARGE is too large for the memory.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pydantic
from PIL import Image

import wherry

BAD = 99
LARGE = 50


@dataclass
class Point:
    n: int
    more: list[int]


class Person(pydantic.BaseModel):
    n: int
    more: dict[str, list[int]]


@dataclass(frozen=True)
class Kind:
    """Rows of one kind: a row that says `n`, what it says, and how it is doubled in its column."""

    hint: Any
    row: Callable[[int], Any]
    says: Callable[[Any], int]
    double: Callable[[Any, int], None]


def _set(change: Callable[[Any], Any]) -> Callable[[Any, int], None]:
    """For rows that cannot be changed: put another one in the column."""

    def double(column: Any, row: int) -> None:
        column[row] = change(column[row])

    return double


def _double_array(column: Any, row: int) -> None:
    column[row] *= 2


def _double_dict(column: Any, row: int) -> None:
    value = column[row]
    value["n"] = 2 * value.pop("n")
    value["more"].append(2 * value["more"].pop())


def _double_list(column: Any, row: int) -> None:
    column[row].append([2 * column[row].pop()[0]])


def _double_point(column: Any, row: int) -> None:
    column[row].n *= 2
    column[row].more.append(2 * column[row].more.pop())


def _double_person(column: Any, row: int) -> None:
    column[row].n *= 2
    column[row].more["a"].append(2 * column[row].more["a"].pop())


def _double_image(column: Any, row: int) -> None:
    image = column[row]
    n = image.getpixel((0, 0))[0]
    image.thumbnail((2, 2))
    image.paste((2 * n, 0, 0), (0, 0, *image.size))


def _double_audio(column: Any, row: int) -> None:
    column[row].samples[:] *= 2


Vector = Annotated[np.ndarray, wherry.FP32[2000]]
Vectors = Annotated[list[np.ndarray], wherry.FP32[-1]]

KINDS = {
    "number": Kind(list[int], int, int, _set(lambda n: 2 * n)),
    "text": Kind(list[str], str, int, _set(lambda n: str(2 * int(n)))),
    "bytes": Kind(
        list[bytes], lambda n: b"%d" % n, int, _set(lambda n: b"%d" % (2 * int(n)))
    ),
    "array": Kind(
        Vector, lambda n: np.full(2000, n, np.float32), lambda a: int(a.max()), _double_array
    ),
    "arrays": Kind(
        Vectors, lambda n: np.full(2000 + n, n, np.float32), lambda a: int(a.max()), _double_array
    ),
    "dict": Kind(
        list[dict[str, Any]],
        lambda n: {"n": n, "more": [n]},
        lambda d: int(d["n"]) if d["more"] == [d["n"]] else -1,
        _double_dict,
    ),
    "list": Kind(list[list[Any]], lambda n: ["", [n]], lambda row: int(row[1][0]), _double_list),
    "dataclass": Kind(
        list[Point],
        lambda n: Point(n, [n]),
        lambda p: p.n if p.more == [p.n] else -1,
        _double_point,
    ),
    "pydantic": Kind(
        list[Person],
        lambda n: Person(n=n, more={"a": [n]}),
        lambda p: p.n if p.more == {"a": [p.n]} else -1,
        _double_person,
    ),
    "image": Kind(
        list[wherry.Image],
        lambda n: Image.new("RGB", (4, 4), (n, 0, 0)),
        lambda image: int(image.getpixel((0, 0))[0]),
        _double_image,
    ),
    "audio": Kind(
        list[wherry.Audio],
        lambda n: wherry.Audio(np.full(20, n / 1024, np.float32), 8000),
        lambda sound: round(float(sound.samples.max()) * 1024),
        _double_audio,
    ),
    "file": Kind(
        list[wherry.File],
        lambda n: wherry.File(b"%d" % n),
        lambda file: int(file.data),
        _set(lambda file: wherry.File(b"%d" % (2 * int(file.data)))),
    ),
}  # fmt: skip


class Echo(wherry.Model):
    """`form`: "plain", "async", "stream" or "async stream"; those that stream answer 2 * n and, in
    the same objects, 4 * n."""

    max_batch_size = 4
    max_queue_delay = 0.02

    def __init__(self, kind: str, form: str = "plain") -> None:
        self._settings = {"name": f"{kind}_{form.replace(' ', '_')}"}
        self._kind = KINDS[kind]
        self._kept: list[tuple[Any, int, int]] = []
        hint: Any = self._kind.hint
        streams: Any = {"stream": Iterator, "async stream": AsyncIterator}
        returned = streams[form][hint] if form in streams else hint

        def plain(x: Any) -> Any:
            return self._doubled(x)

        async def awaited(x: Any) -> Any:
            return self._doubled(x)

        def stream(x: Any) -> Any:
            yield from self._stream(x)

        async def async_stream(x: Any) -> Any:
            for one in self._stream(x):
                yield one

        call = {
            "plain": plain,
            "async": awaited,
            "stream": stream,
            "async stream": async_stream,
        }[form]
        call.__annotations__ = {"x": hint, "return": returned}
        self.execute = call  # type: ignore[method-assign]

    def _double(self, column: Any) -> None:
        for row in range(len(column)):
            self._kind.double(column, row)

    def _doubled(self, x: Any) -> Any:
        for column, row, said in self._kept:
            assert self._kind.says(column[row]) == said, "what the model has kept was changed"
            self._kind.double(column, row)
        self._double(x)
        says = [self._kind.says(row) for row in x]
        self._kept = [(x, row, said) for row, said in enumerate(says)]
        if 2 * BAD in says:
            raise ValueError("bad")
        if 2 * LARGE in says and len(says) > 1:
            raise MemoryError
        return x

    def _stream(self, x: Any) -> Iterator[Any]:
        x = self._doubled(x)
        self._kept = []
        yield x
        self._double(x)
        yield x
        self._double(x)
