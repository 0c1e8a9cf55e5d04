"""Which arguments and which result do type checkers see in a call of a model?

By what the model's code takes and returns:

    def f(text: str, k: int = 1) -> Label             infer(text: str, k: int = 1) -> Label
    def f(text: list[str], k: list[int]) -> list[Label]     infer(str, int) -> Label

The type system makes T of list[T] by position, and cannot keep the names meanwhile: of columns the
types by name are checked and the names are not. What may be passed in other types than the code
takes is checked less: arrays not at all, images, audio and files in columns only for what they may
be. What else was tried: docs/decisions/0068-typed-calls.md. Nothing here runs.
"""

from __future__ import annotations

from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from os import PathLike
from typing import Any, BinaryIO, Concatenate, ParamSpec, Protocol, TypeVar, overload

from wherry.core.values.media import Audio, File
from wherry.core.values.request import SequenceStep

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
X = TypeVar("X")
A_contra = TypeVar("A_contra", contravariant=True)
B_contra = TypeVar("B_contra", contravariant=True)
C_contra = TypeVar("C_contra", contravariant=True)


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
M = TypeVar("M", bound=Picture | Audio | File | bytes)
F = TypeVar("F", bound=Array | Picture | Audio | File)
FileLike = bytes | bytearray | memoryview | PathLike[str] | BinaryIO | Array

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


class Code1(Protocol[A, R_co]):
    """A model whose code takes one column; so on for two and three."""

    @property
    def execute(self) -> Callable[[list[A]], R_co]: ...


class Code2(Protocol[A, B, R_co]):
    @property
    def execute(self) -> Callable[[list[A], list[B]], R_co]: ...


class Code3(Protocol[A, B, C, R_co]):
    @property
    def execute(self) -> Callable[[list[A], list[B], list[C]], R_co]: ...


class OneRowCode(Protocol[P, R_co]):
    @property
    def execute(self) -> Callable[P, R_co]: ...
    @property
    def takes_one_row(self) -> bool: ...


class Responses(Protocol[R_co]):
    """What a step of a StepModel returns for a request."""

    @property
    def responses(self) -> Sequence[R_co]: ...


class Steps(Protocol[P, R_co]):
    @property
    def start(self) -> Callable[P, Any]: ...
    @property
    def step(self) -> Callable[[Any], Sequence[Responses[R_co]]]: ...


class One(Protocol[A_contra, R_co]):
    def __call__(
        self,
        row: A_contra = ...,
        /,
        *,
        version: Version = None,
        timeout: float | None = None,
        priority: int = 0,
        sequence_step: SequenceStep | None = None,
        **inputs: A_contra,
    ) -> R_co: ...


class Two(Protocol[A_contra, B_contra, R_co]):
    def __call__(
        self,
        first: A_contra | FileLike = ...,
        second: B_contra | FileLike = ...,
        /,
        *,
        version: Version = None,
        timeout: float | None = None,
        priority: int = 0,
        sequence_step: SequenceStep | None = None,
        **inputs: A_contra | B_contra | FileLike,
    ) -> R_co: ...


class Three(Protocol[A_contra, B_contra, C_contra, R_co]):
    def __call__(
        self,
        first: A_contra | FileLike = ...,
        second: B_contra | FileLike = ...,
        third: C_contra | FileLike = ...,
        /,
        *,
        version: Version = None,
        timeout: float | None = None,
        priority: int = 0,
        sequence_step: SequenceStep | None = None,
        **inputs: A_contra | B_contra | C_contra | FileLike,
    ) -> R_co: ...


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


class MapOne(Protocol[A_contra, R_co]):
    def __call__(
        self, rows: Iterable[A_contra | Mapping[str, A_contra]], *, version: Version = None
    ) -> R_co: ...


class MapOpen(Protocol[R_co]):
    def __call__(self, rows: Iterable[Any], *, version: Version = None) -> R_co: ...


class Infer(Protocol):
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
    def __get__(self, of: Code[Concatenate[list[N], ...], Rows[X]], _: Any) -> Open[X]: ...
    @overload
    def __get__(self, of: Code3[A, B, C, Rows[X]], _: Any) -> Three[A, B, C, X]: ...
    @overload
    def __get__(self, of: Code2[A, B, Rows[X]], _: Any) -> Two[A, B, X]: ...
    @overload
    def __get__(self, of: Code1[M, Rows[X]], _: Any) -> One[M | FileLike, X]: ...
    @overload
    def __get__(self, of: Code1[A, Rows[X]], _: Any) -> One[A, X]: ...
    @overload
    def __get__(self, of: Code[Concatenate[list[Any], ...], Rows[X]], _: Any) -> Open[X]: ...
    @overload
    def __get__(self, of: Code[Concatenate[N, ...], Rows[X]], _: Any) -> Open[X]: ...
    @overload
    def __get__(self, of: Code[Concatenate[list[N], ...], Any], _: Any) -> Open[Any]: ...
    @overload
    def __get__(self, of: Code1[M, Any], _: Any) -> One[M | FileLike, Any]: ...
    @overload
    def __get__(self, of: Code1[A, Any], _: Any) -> One[A, Any]: ...
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
    def __get__(self, of: Code[Concatenate[list[N], ...], Rows[X]], _: Any) -> Open[Soon[X]]: ...
    @overload
    def __get__(self, of: Code3[A, B, C, Rows[X]], _: Any) -> Three[A, B, C, Soon[X]]: ...
    @overload
    def __get__(self, of: Code2[A, B, Rows[X]], _: Any) -> Two[A, B, Soon[X]]: ...
    @overload
    def __get__(self, of: Code1[M, Rows[X]], _: Any) -> One[M | FileLike, Soon[X]]: ...
    @overload
    def __get__(self, of: Code1[A, Rows[X]], _: Any) -> One[A, Soon[X]]: ...
    @overload
    def __get__(self, of: Code[Concatenate[list[Any], ...], Rows[X]], _: Any) -> Open[Soon[X]]: ...
    @overload
    def __get__(self, of: Code[Concatenate[N, ...], Rows[X]], _: Any) -> Open[Soon[X]]: ...
    @overload
    def __get__(self, of: Code[Concatenate[list[N], ...], Any], _: Any) -> Open[Soon[Any]]: ...
    @overload
    def __get__(self, of: Code1[M, Any], _: Any) -> One[M | FileLike, Soon[Any]]: ...
    @overload
    def __get__(self, of: Code1[A, Any], _: Any) -> One[A, Soon[Any]]: ...
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
    @overload
    def __get__(self, of: None, _: Any) -> MapOpen[Iterator[Any]]: ...
    @overload
    def __get__(self, of: OneRowCode[[A], Soon[X]], _: Any) -> MapOne[A, Iterator[X]]: ...
    @overload
    def __get__(self, of: OneRowCode[..., Soon[X]], _: Any) -> MapOpen[Iterator[X]]: ...
    @overload
    def __get__(
        self, of: Code[Concatenate[list[N], ...], Rows[X]], _: Any
    ) -> MapOpen[Iterator[X]]: ...
    @overload
    def __get__(self, of: Code2[A, B, Rows[X]], _: Any) -> MapOpen[Iterator[X]]: ...
    @overload
    def __get__(self, of: Code1[M, Rows[X]], _: Any) -> MapOne[M | FileLike, Iterator[X]]: ...
    @overload
    def __get__(self, of: Code1[A, Rows[X]], _: Any) -> MapOne[A, Iterator[X]]: ...
    @overload
    def __get__(
        self, of: Code[Concatenate[list[Any], ...], Rows[X]], _: Any
    ) -> MapOpen[Iterator[X]]: ...
    @overload
    def __get__(self, of: Code[Concatenate[N, ...], Rows[X]], _: Any) -> MapOpen[Iterator[X]]: ...
    @overload
    def __get__(
        self, of: Code[Concatenate[list[Any], ...], Any], _: Any
    ) -> MapOpen[Iterator[Any]]: ...
    @overload
    def __get__(self, of: Code[Concatenate[N, ...], Any], _: Any) -> MapOpen[Iterator[Any]]: ...
    @overload
    def __get__(self, of: Code[Concatenate[F, ...], Soon[X]], _: Any) -> MapOpen[Iterator[X]]: ...
    @overload
    def __get__(self, of: Code[Concatenate[F, ...], X], _: Any) -> MapOpen[Iterator[X]]: ...
    @overload
    def __get__(self, of: Code[[A], Soon[X]], _: Any) -> MapOne[A, Iterator[X]]: ...
    @overload
    def __get__(self, of: Code[[A], X], _: Any) -> MapOne[A, Iterator[X]]: ...
    @overload
    def __get__(self, of: Code[..., Soon[X]], _: Any) -> MapOpen[Iterator[X]]: ...
    @overload
    def __get__(self, of: Code[..., X], _: Any) -> MapOpen[Iterator[X]]: ...


class Stream(Protocol):
    @overload
    def __get__(self, of: None, _: Any) -> Open[Iterator[Any]]: ...
    @overload
    def __get__(self, of: Steps[P, X], _: Any) -> OneRow[P, Iterator[X]]: ...
    @overload
    def __get__(
        self, of: OneRowCode[Concatenate[F, ...], StreamsRow[X]], _: Any
    ) -> Open[Iterator[X]]: ...
    @overload
    def __get__(self, of: OneRowCode[P, StreamsRow[X]], _: Any) -> OneRow[P, Iterator[X]]: ...
    @overload
    def __get__(
        self, of: Code[Concatenate[list[N], ...], Streams[X]], _: Any
    ) -> Open[Iterator[X]]: ...
    @overload
    def __get__(self, of: Code2[A, B, Streams[X]], _: Any) -> Two[A, B, Iterator[X]]: ...
    @overload
    def __get__(self, of: Code1[M, Streams[X]], _: Any) -> One[M | FileLike, Iterator[X]]: ...
    @overload
    def __get__(self, of: Code1[A, Streams[X]], _: Any) -> One[A, Iterator[X]]: ...
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
    @overload
    def __get__(self, of: None, _: Any) -> Open[AsyncIterator[Any]]: ...
    @overload
    def __get__(self, of: Steps[P, X], _: Any) -> OneRow[P, AsyncIterator[X]]: ...
    @overload
    def __get__(
        self, of: OneRowCode[Concatenate[F, ...], StreamsRow[X]], _: Any
    ) -> Open[AsyncIterator[X]]: ...
    @overload
    def __get__(self, of: OneRowCode[P, StreamsRow[X]], _: Any) -> OneRow[P, AsyncIterator[X]]: ...
    @overload
    def __get__(
        self, of: Code[Concatenate[list[N], ...], Streams[X]], _: Any
    ) -> Open[AsyncIterator[X]]: ...
    @overload
    def __get__(self, of: Code2[A, B, Streams[X]], _: Any) -> Two[A, B, AsyncIterator[X]]: ...
    @overload
    def __get__(self, of: Code1[M, Streams[X]], _: Any) -> One[M | FileLike, AsyncIterator[X]]: ...
    @overload
    def __get__(self, of: Code1[A, Streams[X]], _: Any) -> One[A, AsyncIterator[X]]: ...
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
