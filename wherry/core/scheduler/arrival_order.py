"""Which answers may leave now, if they are to leave in the order in which the requests came?

An error leaves at once and holds up no answer; only answers are kept in order.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

Request = TypeVar("Request", bound=Hashable)
Answer = TypeVar("Answer")


class ArrivalOrder(Generic[Request, Answer]):
    """Requests that were admitted and have not left yet. Pure; the caller holds a lock."""

    def __init__(self) -> None:
        #: In order of arrival; with their answers, as far as they are there.
        self._here: dict[Request, list[Answer]] = {}

    def __len__(self) -> int:
        return len(self._here)

    def arrived(self, request: Request) -> None:
        self._here[request] = []

    def answered(self, request: Request, answer: Answer) -> list[tuple[Request, Answer]]:
        """The answers that may leave now, in their order; maybe not this one yet."""
        if request not in self._here:
            return [(request, answer)]
        self._here[request].append(answer)
        return self._first()

    def left(self, request: Request) -> list[tuple[Request, Answer]]:
        """Forget a request that needs no answer. Returns the answers that waited for it."""
        self._here.pop(request, None)
        return self._first()

    def _first(self) -> list[tuple[Request, Answer]]:
        leaving: list[tuple[Request, Answer]] = []
        for request, answers in self._here.items():
            if not answers:
                break
            leaving.append((request, answers[0]))
        for request, _ in leaving:
            del self._here[request]
        return leaving
