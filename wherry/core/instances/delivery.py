"""How does a request get its outcome: counted before it leaves, and in which order?"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from operator import itemgetter
from typing import Generic, TypeVar

from wherry.core.observability.statistics import ModelStatistics
from wherry.core.values.errors import WherryError
from wherry.core.values.reply import Reply, ReplyLoop, notify
from wherry.core.values.request import InferRequest, InferResponse

RequestT = TypeVar("RequestT", bound=Hashable)
AnswerT = TypeVar("AnswerT")


log = logging.getLogger("wherry")
Answer = tuple[InferRequest, InferResponse]


class ArrivalOrder(Generic[RequestT, AnswerT]):
    """Requests that were admitted and have not left yet. An error leaves at once and holds up no
    answer; only answers are kept in order. Pure."""

    def __init__(self) -> None:
        #: In order of arrival, with their answers so far.
        self._here: dict[RequestT, list[AnswerT]] = {}

    def __len__(self) -> int:
        return len(self._here)

    def arrived(self, request: RequestT) -> None:
        self._here[request] = []

    def answered(self, request: RequestT, answer: AnswerT) -> list[tuple[RequestT, AnswerT]]:
        """The answers that may leave now, in their order; maybe not this one yet."""
        if request not in self._here:
            return [(request, answer)]
        self._here[request].append(answer)
        return self._first()

    def left(self, request: RequestT) -> list[tuple[RequestT, AnswerT]]:
        """Forget a request that needs no answer. Returns the answers that waited for it."""
        self._here.pop(request, None)
        return self._first()

    def _first(self) -> list[tuple[RequestT, AnswerT]]:
        leaving: list[tuple[RequestT, AnswerT]] = []
        for request, answers in self._here.items():
            if not answers:
                break
            leaving.append((request, answers[0]))
        for request, _ in leaving:
            del self._here[request]
        return leaving


class Delivery:
    """Delivers one model's outcomes to its callers. Safe from any thread; hold no lock: replies are
    delivered in this thread, or in another one that delivers at the same time.

    Every outcome is counted before it leaves, so that a client finds it in the statistics that it
    reads next. With `in_order`, answers leave in the order in which their requests `arrived`; an
    error waits for no other request.
    """

    def __init__(
        self,
        model: str,
        statistics: ModelStatistics,
        clock: Callable[[], float],
        *,
        in_order: bool = False,
    ) -> None:
        self._model = model
        self._statistics = statistics
        self._clock = clock
        #: Does anything depend on the order in which requests `arrived`?
        self.in_order = in_order
        self._order: ArrivalOrder[InferRequest, InferResponse] | None
        self._order = ArrivalOrder() if in_order else None
        self._lock = threading.Lock()
        #: Answers that are due, and whether a thread is delivering them.
        self._leaving: deque[Answer] = deque()
        self._delivers = False

    def arrived(self, requests: Sequence[InferRequest]) -> None:
        """Requests have come: answers to later ones wait for their outcomes."""
        if self._order is not None:
            with self._lock:
                for request in requests:
                    if not request.reply.settled:
                        self._order.arrived(request)

    def answer(self, answers: Sequence[Answer]) -> None:
        """Give these requests, which the caller has claimed, their responses."""
        self._statistics.succeeded(map(itemgetter(0), answers), self._clock())
        if self._order is None:
            self._deliver(answers)
            return
        with self._lock:
            for request, answer in answers:
                self._leaving += self._order.answered(request, answer)
        self._deliver_due()

    def fail(self, request: InferRequest, error: WherryError) -> None:
        if request.whole is None:
            self._statistics.failed(error, self._clock() - request.enqueued_at)
            if (records := self._statistics.records) is not None:
                records.failed(request, type(error).__name__)
        request.reply.deliver(error)
        if self._order is not None:
            with self._lock:
                self._leaving += self._order.left(request)
            self._deliver_due()

    def _deliver(self, answers: Sequence[Answer]) -> None:
        """Deliver answers; those that one event loop awaits by one call into it."""
        of_loops: dict[ReplyLoop, list[Reply[InferResponse]]] = {}
        for request, answer in answers:
            reply = request.reply
            if reply.loop is not None:
                reply.outcome = answer
                of_loops.setdefault(reply.loop, []).append(reply)
                continue
            try:
                reply.deliver(answer)
            except Exception:  # our own bug: the other requests must be answered
                log.exception("internal error", extra={"model": self._model})
        for loop, replies in of_loops.items():
            loop.call(notify, replies)

    def _deliver_due(self) -> None:
        """Deliver what is due, unless another thread does: it goes on until nothing is left."""
        with self._lock:
            if self._delivers:
                return
            self._delivers = True
        while True:
            with self._lock:
                if not self._leaving:
                    self._delivers = False
                    return
                one = self._leaving.popleft()
            try:
                self._deliver([one])
            except BaseException:
                self._delivers = False
                raise
