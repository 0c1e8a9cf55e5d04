"""Which requests of a Python model have not had their last response?"""

from __future__ import annotations

from itertools import count

from wherry.values.request import InferRequest


class OpenRequests:
    """Requests without their last response, by the numbers that identify them to the process.

    For the thread that serves the process; `executing` and `number_of` for any thread.
    """

    __slots__ = ("_between", "_next", "_numbers", "_requests")

    def __init__(self) -> None:
        self._next = count(1)
        self._requests: dict[int, InferRequest] = {}
        self._numbers: dict[InferRequest, int] = {}
        #: Numbers of requests to be run again, between two runs.
        self._between: set[int] = set()

    def __repr__(self) -> str:
        return f"<OpenRequests: {len(self._requests)}, of them {len(self._between)} between runs>"

    def executing(self) -> list[InferRequest]:
        """The requests in the process: all but those between two runs."""
        return [one for number, one in list(self._requests.items()) if number not in self._between]

    def all(self) -> list[tuple[int, InferRequest]]:
        return list(self._requests.items())

    def get(self, number: int) -> InferRequest | None:
        """The request with this number; None after its last response."""
        return self._requests.get(number)

    def number_of(self, request: InferRequest) -> int | None:
        return self._numbers.get(request)

    def open(self, request: InferRequest) -> int:
        """The number of a request about to run. It is the same in each run, as response senders may
        be held. Forgets settled requests that were to run again."""
        if self._between:
            for number in [n for n in self._between if self._requests[n].reply.settled]:
                self.forget(number)
        number = self._numbers.get(request) or next(self._next)
        self._between.discard(number)
        self._requests[number] = request
        self._numbers[request] = number
        return number

    def put_back(self, number: int) -> None:
        """Note that execute() has returned this request to be run again."""
        self._between.add(number)

    def forget(self, number: int) -> bool:
        """Forget a request after its last response, or when another instance runs it. False: it was
        forgotten before."""
        request = self._requests.pop(number, None)
        if request is None:
            return False
        self._numbers.pop(request, None)
        self._between.discard(number)
        return True

    def forget_put_back(self) -> None:
        """Forget the requests to be run again."""
        for number in list(self._between):
            self.forget(number)
