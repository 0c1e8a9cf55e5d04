"""Which requests does a Python model have that have not had their last response?"""

from __future__ import annotations

from itertools import count

from wherry.values.request import InferRequest


class OpenRequests:
    """Requests without their last response, by the numbers under which the process knows them.

    For the thread that serves the process; `executing` and `number_of` may be asked by any thread.
    """

    __slots__ = ("_between", "_next", "_numbers", "_requests")

    def __init__(self) -> None:
        self._next = count(1)
        self._requests: dict[int, InferRequest] = {}
        self._numbers: dict[InferRequest, int] = {}
        #: Numbers of those that execute() has given back, and is to get again.
        self._between: set[int] = set()

    def __repr__(self) -> str:
        return f"<OpenRequests: {len(self._requests)}, of them {len(self._between)} between runs>"

    def executing(self) -> list[InferRequest]:
        """The requests that the process has: those that are not between two runs."""
        return [one for number, one in list(self._requests.items()) if number not in self._between]

    def all(self) -> list[tuple[int, InferRequest]]:
        return list(self._requests.items())

    def get(self, number: int) -> InferRequest | None:
        """The request of a number; None if it has had its last response."""
        return self._requests.get(number)

    def number_of(self, request: InferRequest) -> int | None:
        return self._numbers.get(request)

    def open(self, request: InferRequest) -> int:
        """The number of a request that is about to run: of one that runs again the same as before,
        as response senders of it may be held. Forgets settled requests that were to run again."""
        for number in [n for n in self._between if self._requests[n].reply.settled]:
            self.forget(number)
        number = self._numbers.get(request) or next(self._next)
        self._between.discard(number)
        self._requests[number] = request
        self._numbers[request] = number
        return number

    def put_back(self, number: int) -> None:
        """execute() has given this request back, and is to get it again."""
        self._between.add(number)

    def forget(self, number: int) -> None:
        """This request has had its last response, or another instance runs it."""
        self._numbers.pop(self._requests.pop(number), None)
        self._between.discard(number)

    def forget_put_back(self) -> None:
        """Forget the requests that were to run again."""
        for number in list(self._between):
            self.forget(number)
