"""Which arguments and which result do type checkers see in a call of a model?

By what the model's code takes and returns:

    def f(text: str, k: int = 1) -> Label             infer(text: str, k: int = 1) -> Label
    def f(text: list[str], k: list[int]) -> list[Label]     infer(...) -> Label

The type system cannot make T of list[T] and keep the names: of columns only the result is checked.
What may be passed in other types than the code takes (arrays, images, audio, files) is not checked
either. docs/decisions/0068-typed-calls.md says what else was tried. Nothing here runs.
"""

from __future__ import annotations

from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Sequence,
)
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from wherry.core.values.media import Audio, File
from wherry.core.values.request import SequenceStep

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
X = TypeVar("X")


class Array(Protocol):
    """numpy's, torch's or another library's; callers may pass lists."""

    @property
    def shape(self) -> Any: ...
    @property
    def dtype(self) -> Any: ...


class Picture(Protocol):
    """PIL's Image; callers may pass a file."""

    def getbands(self) -> tuple[str, ...]: ...


N = TypeVar("N", bound=Array)
F = TypeVar("F", bound=Array | Picture | Audio | File)

#: What code returns for columns; what it yields.
Rows = list[X] | Awaitable[list[X]]
Streams = Iterator[list[X]] | AsyncIterator[list[X]]
StreamsRow = Iterator[X] | AsyncIterator[X]
Soon = Coroutine[Any, Any, X]
Version = str | int | None


class Code(Protocol[P, R_co]):
    """A model by what its code takes and returns."""

    @property
    def execute(self) -> Callable[P, R_co]: ...


class OneRowCode(Protocol[P, R_co]):
    """A pipeline by what its code takes and returns."""

    @property
    def execute(self) -> Callable[P, R_co]: ...
    @property
    def takes_one_row(self) -> bool: ...


class Responses(Protocol[R_co]):
    """What a step of a StepModel returns for a request."""

    @property
    def responses(self) -> Sequence[R_co]: ...


class Steps(Protocol[P, R_co]):
    """A StepModel by what it starts with and answers."""

    @property
    def start(self) -> Callable[P, Any]: ...
    @property
    def step(self) -> Callable[[Any], Sequence[Responses[R_co]]]: ...


class Open(Protocol[R_co]):
    """A call whose inputs are not checked."""

    def __call__(
        self,
        *row: Any,
        version: Version = None,
        timeout: float | None = None,
        priority: int = 0,
        sequence_step: SequenceStep | None = None,
        **inputs: Any,
    ) -> R_co: ...


class OneRow(Protocol[P, R_co]):
    """A call of code that takes one row: its own parameters. With an option beside them, which
    they leave no place for, they are not checked."""

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...
    @overload
    def __call__(
        self, *args: Any, timeout: float | None, version: Version = None, **more: Any
    ) -> R_co: ...
    @overload
    def __call__(self, *args: Any, priority: int, version: Version = None, **more: Any) -> R_co: ...
    @overload
    def __call__(self, *args: Any, sequence_step: SequenceStep, **more: Any) -> R_co: ...
    @overload
    def __call__(self, *args: Any, version: str | int, **more: Any) -> R_co: ...


class Many(Protocol[R_co]):
    """A call of `map`."""

    def __call__(self, rows: Iterable[Any], *, version: Version = None) -> Iterator[R_co]: ...


class Infer(Protocol):
    """One row, and its result."""

    @overload
    def __get__(self, of: None, _: Any) -> Open[Any]: ...
    @overload
    def __get__(self, of: OneRowCode[Concatenate[F, ...], Soon[X]], _: Any) -> Open[X]: ...
    @overload
    def __get__(self, of: OneRowCode[Concatenate[F, ...], X], _: Any) -> Open[X]: ...
    @overload
    def __get__(self, of: OneRowCode[P, Soon[X]], _: Any) -> OneRow[P, X]: ...
    @overload
    def __get__(self, of: OneRowCode[P, X], _: Any) -> OneRow[P, X]: ...
    @overload
    def __get__(self, of: Code[Concatenate[list[Any], ...], Rows[X]], _: Any) -> Open[X]: ...
    @overload
    def __get__(self, of: Code[Concatenate[N, ...], Rows[X]], _: Any) -> Open[X]: ...
    @overload
    def __get__(self, of: Code[Concatenate[list[Any], ...], Any], _: Any) -> Open[Any]: ...
    @overload
    def __get__(self, of: Code[Concatenate[N, ...], Any], _: Any) -> Open[Any]: ...
    @overload
    def __get__(self, of: Code[Concatenate[F, ...], Soon[X]], _: Any) -> Open[X]: ...
    @overload
    def __get__(self, of: Code[Concatenate[F, ...], X], _: Any) -> Open[X]: ...
    @overload
    def __get__(self, of: Code[Concatenate[Any, F, ...], Soon[X]], _: Any) -> Open[X]: ...
    @overload
    def __get__(self, of: Code[Concatenate[Any, F, ...], X], _: Any) -> Open[X]: ...
    @overload
    def __get__(self, of: Code[P, Soon[X]], _: Any) -> OneRow[P, X]: ...
    @overload
    def __get__(self, of: Code[P, X], _: Any) -> OneRow[P, X]: ...


class AsyncInfer(Protocol):
    """One row, and its result in asyncio."""

    @overload
    def __get__(self, of: None, _: Any) -> Open[Soon[Any]]: ...
    @overload
    def __get__(self, of: OneRowCode[Concatenate[F, ...], Soon[X]], _: Any) -> Open[Soon[X]]: ...
    @overload
    def __get__(self, of: OneRowCode[Concatenate[F, ...], X], _: Any) -> Open[Soon[X]]: ...
    @overload
    def __get__(self, of: OneRowCode[P, Soon[X]], _: Any) -> OneRow[P, Soon[X]]: ...
    @overload
    def __get__(self, of: OneRowCode[P, X], _: Any) -> OneRow[P, Soon[X]]: ...
    @overload
    def __get__(self, of: Code[Concatenate[list[Any], ...], Rows[X]], _: Any) -> Open[Soon[X]]: ...
    @overload
    def __get__(self, of: Code[Concatenate[N, ...], Rows[X]], _: Any) -> Open[Soon[X]]: ...
    @overload
    def __get__(self, of: Code[Concatenate[list[Any], ...], Any], _: Any) -> Open[Soon[Any]]: ...
    @overload
    def __get__(self, of: Code[Concatenate[N, ...], Any], _: Any) -> Open[Soon[Any]]: ...
    @overload
    def __get__(self, of: Code[Concatenate[F, ...], Soon[X]], _: Any) -> Open[Soon[X]]: ...
    @overload
    def __get__(self, of: Code[Concatenate[F, ...], X], _: Any) -> Open[Soon[X]]: ...
    @overload
    def __get__(self, of: Code[Concatenate[Any, F, ...], Soon[X]], _: Any) -> Open[Soon[X]]: ...
    @overload
    def __get__(self, of: Code[Concatenate[Any, F, ...], X], _: Any) -> Open[Soon[X]]: ...
    @overload
    def __get__(self, of: Code[P, Soon[X]], _: Any) -> OneRow[P, Soon[X]]: ...
    @overload
    def __get__(self, of: Code[P, X], _: Any) -> OneRow[P, Soon[X]]: ...


class Map(Protocol):
    """Many rows, and their results."""

    @overload
    def __get__(self, of: None, _: Any) -> Many[Any]: ...
    @overload
    def __get__(self, of: OneRowCode[..., Soon[X]], _: Any) -> Many[X]: ...
    @overload
    def __get__(self, of: Code[Concatenate[list[Any], ...], Rows[X]], _: Any) -> Many[X]: ...
    @overload
    def __get__(self, of: Code[Concatenate[N, ...], Rows[X]], _: Any) -> Many[X]: ...
    @overload
    def __get__(self, of: Code[Concatenate[list[Any], ...], Any], _: Any) -> Many[Any]: ...
    @overload
    def __get__(self, of: Code[Concatenate[N, ...], Any], _: Any) -> Many[Any]: ...
    @overload
    def __get__(self, of: Code[..., Soon[X]], _: Any) -> Many[X]: ...
    @overload
    def __get__(self, of: Code[..., X], _: Any) -> Many[X]: ...


class Stream(Protocol):
    """One row, and its responses."""

    @overload
    def __get__(self, of: None, _: Any) -> Open[Iterator[Any]]: ...
    @overload
    def __get__(self, of: Steps[P, X], _: Any) -> OneRow[P, Iterator[X]]: ...
    @overload
    def __get__(
        self, of: Code[Concatenate[list[Any], ...], Streams[X]], _: Any
    ) -> Open[Iterator[X]]: ...
    @overload
    def __get__(self, of: Code[Concatenate[N, ...], Streams[X]], _: Any) -> Open[Iterator[X]]: ...
    @overload
    def __get__(
        self, of: Code[Concatenate[F, ...], StreamsRow[X]], _: Any
    ) -> Open[Iterator[X]]: ...
    @overload
    def __get__(self, of: Code[P, StreamsRow[X]], _: Any) -> OneRow[P, Iterator[X]]: ...


class AsyncStream(Protocol):
    """One row, and its responses in asyncio."""

    @overload
    def __get__(self, of: None, _: Any) -> Open[AsyncIterator[Any]]: ...
    @overload
    def __get__(self, of: Steps[P, X], _: Any) -> OneRow[P, AsyncIterator[X]]: ...
    @overload
    def __get__(
        self, of: Code[Concatenate[list[Any], ...], Streams[X]], _: Any
    ) -> Open[AsyncIterator[X]]: ...
    @overload
    def __get__(
        self, of: Code[Concatenate[N, ...], Streams[X]], _: Any
    ) -> Open[AsyncIterator[X]]: ...
    @overload
    def __get__(
        self, of: Code[Concatenate[F, ...], StreamsRow[X]], _: Any
    ) -> Open[AsyncIterator[X]]: ...
    @overload
    def __get__(self, of: Code[P, StreamsRow[X]], _: Any) -> OneRow[P, AsyncIterator[X]]: ...
