"""What has become of every request, and which of them should not have ended so?"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field

#: Seconds in which it is noticed that a process has ended.
NOTICED = 0.5
#: Of each reason so many requests are told of in detail.
SHOWN = 8
#: Of the faults that ended so many seconds before it, too.
BEFORE = 10.0


@dataclass(slots=True)
class Request:
    """One request and its outcome.

    answered  the right answer
    wrong     another one
    refused   an error, with its status and text
    broken    a stream that began and told that it broke
    cut       the connection ended before the end of the answer
    silent    a stream ended early and did not say so
    late      nothing came within the client's patience
    left      the client went away on purpose
    """

    number: int
    kind: str
    #: Seconds that the server was given; None: no deadline.
    timeout: float | None
    sent_at: float = field(default_factory=time.monotonic)
    #: When the first step of its sequence was sent; 0.0: it is not a step of one.
    since: float = 0.0
    ended_at: float = 0.0
    outcome: str = ""
    status: int | str = 0
    text: str = ""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that was done to a server, and until when it was being done."""

    kind: str
    began_at: float
    ended_at: float


@dataclass(slots=True)
class Ledger:
    """All requests to one server, and all that was done to it."""

    name: str
    requests: dict[int, Request] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    _next: int = 1

    def begin(self, kind: str, timeout: float | None = None, since: float = 0.0) -> Request:
        request = Request(self._next, kind, timeout, since=since)
        self._next += 1
        self.requests[request.number] = request
        return request

    def end(self, request: Request, outcome: str, status: int | str = 0, text: str = "") -> None:
        request.ended_at = time.monotonic()
        request.outcome, request.status, request.text = outcome, status, text

    def during(self, request: Request, *kinds: str) -> list[Fault]:
        """The faults of these kinds that may have touched a request."""
        return [
            fault
            for fault in self.faults
            if fault.kind in kinds
            and fault.began_at < request.ended_at
            and (request.since or request.sent_at) < fault.ended_at + NOTICED
        ]

    def counts(self) -> Counter[str]:
        return Counter(request.outcome for request in self.requests.values())

    def judge(self, runs: Counter[int]) -> tuple[Counter[str], list[str]]:
        """How many requests have ended as they should not, by the reason, with lines on the first;
        and under "excused: ..." how many could not be saved. `runs`: how often each was run."""
        found: Counter[str] = Counter()
        lines = []
        for request in self.requests.values():
            verdict = self._verdict(request, runs[request.number])
            if verdict:
                found[verdict] += 1
                if not verdict.startswith("excused") and found[verdict] <= SHOWN:
                    lines.append(self._line(verdict, request, runs[request.number]))
        return found, lines

    def _verdict(self, request: Request, runs: int) -> str:
        """ "": it has ended well."""
        if runs > 2:
            return "run more than twice"
        match request.outcome:
            case "answered" if runs or request.kind in UNNUMBERED:
                return ""
            case "answered":
                return "answered without a run"
            case "left":
                return ""
            case "wrong" | "silent" | "late":
                return request.outcome
            case "cut":
                return "excused: front killed" if self.during(request, "front killed") else "cut"
            case "refused" | "broken":
                return self._of_refused(request, runs)
        return "without an outcome"

    def _of_refused(self, request: Request, runs: int) -> str:
        status, text = request.status, request.text
        if not text:
            return "no reason"
        if status in (429, "RESOURCE_EXHAUSTED"):
            return "" if "too long for its timeout" in text else f"status {status}"
        if status in (504, "DEADLINE_EXCEEDED"):
            if request.timeout is None:
                return "a deadline that it had not"
            return "" if request.ended_at - request.sent_at >= request.timeout else "early"
        if (
            request.kind == "sequence"
            # As in one process: what knows nothing of the sequence wants it begun anew.
            and (status == 503 or (status == 400 and "START flag" in text))
            and self.during(request, "worker killed")
        ):
            return "excused: sequence"
        if status not in (503, "UNAVAILABLE"):
            return f"status {status}"
        if request.outcome == "broken":
            return "broken"
        if "front" in text and self.during(request, "front killed"):
            return "excused: front killed"
        if request.kind == "apart" and runs and self.during(request, "worker killed"):
            return "excused: worker killed"
        if request.kind == "health" and "being restarted" in text:
            return "excused: worker killed"  # it is so
        return "lost"

    def _line(self, verdict: str, request: Request, runs: int) -> str:
        since = request.since or request.sent_at
        touched = ", ".join(
            f"{fault.kind} {fault.began_at - since:+.1f}..{fault.ended_at - since:+.1f} s"
            for fault in self.faults
            if fault.began_at < request.ended_at and since - BEFORE < fault.ended_at
        )
        seconds = request.ended_at - request.sent_at
        return (
            f"{self.name}: {verdict}: {request.kind} {request.number}, {request.outcome}"
            f" {request.status} after {seconds:.2f} s, runs {runs}, [{touched}]: {request.text}"
        )


#: Kinds of requests that run no model.
UNNUMBERED = ("config", "metrics", "health")
