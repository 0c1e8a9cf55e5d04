"""How does an answer report to a load balancer how busy the server is?

As ORCA has it (xds.data.orca.v3.OrcaLoadReport), which Envoy and gRPC's clients read: by header
over HTTP, in the trailers over gRPC. Triton and vLLM use the same request header.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping
from functools import partial
from struct import Struct
from typing import Final

import msgspec

from wherry.core.api import LoadReport, numbers

#: The header by which a client requests the report: json, text or bin.
FORMAT_HEADER: Final = "endpoint-load-metrics-format"
HEADER: Final = "endpoint-load-metrics"

Numbers = dict[str, float]
Pairs = tuple[tuple[str, str], ...]

#: Number of each field of the message, and of the map of named metrics.
_FIELDS: Final = {"rps_fractional": 6, "eps": 7, "application_utilization": 9}
_NAMED: Final = 8
_DOUBLE: Final = Struct("<Bd")


class LoadReports:
    """Reports `load()` to clients that request it, and in the form `always` to all."""

    def __init__(self, load: Callable[[], LoadReport | None], always: str = "") -> None:
        self.always = always
        self._load = load

    def requested_by(self, headers: Mapping[str, str]) -> Callable[[], Pairs] | None:
        """What gives the headers of the answer to a request with these; None: it has no report."""
        form = FORMS.get(headers.get(FORMAT_HEADER, self.always).strip().lower())
        if form is None:
            return None
        self._load()  # queries an owner now: its report is here before the answer is
        return partial(self._pairs, form)

    def _pairs(self, form: Callable[[Numbers, Numbers], Pairs]) -> Pairs:
        load = self._load()
        return () if load is None else form(*_numbers(load))


def _numbers(load: LoadReport) -> tuple[Numbers, Numbers]:
    """The fields of the message, and its named metrics."""
    fields = {
        "application_utilization": load.utilisation,
        "rps_fractional": load.requests_per_second,
        "eps": load.errors_per_second,
    }
    named = {
        "queued_rows": load.queued_rows,
        "running_rows": load.running_rows,
        "free_slots": load.free_slots,
        "predicted_wait_seconds": load.wait_seconds,
        "predicted_answer_seconds": load.answer_seconds,
    }
    if load.kv_cache_tokens:  # Triton's names
        named["kv_cache_utilization"] = load.kv_cache_usage
        named["max_token_capacity"] = load.kv_cache_tokens
    return {name: numbers.significant(value) for name, value in fields.items()}, {
        name: value if isinstance(value, int) else numbers.significant(value)
        for name, value in named.items()
    }


def _json(fields: Numbers, named: Numbers) -> Pairs:
    return ((HEADER, "JSON " + msgspec.json.encode({**fields, "named_metrics": named}).decode()),)


def _text(fields: Numbers, named: Numbers) -> Pairs:
    every = {**fields, **{f"named_metrics.{name}": value for name, value in named.items()}}
    return ((HEADER, "TEXT " + ", ".join(f"{name}={value}" for name, value in every.items())),)


def _binary(fields: Numbers, named: Numbers) -> Pairs:
    message = b"".join(_double(_FIELDS[name], value) for name, value in fields.items())
    for name, value in named.items():
        entry = _bytes(1, name.encode()) + _double(2, value)
        message += _bytes(_NAMED, entry)
    return ((f"{HEADER}-bin", b64encode(message).decode()),)


def _double(number: int, value: float) -> bytes:
    return _DOUBLE.pack(number << 3 | 1, value)


def _bytes(number: int, value: bytes) -> bytes:
    assert len(value) < 128  # a length of one byte
    return bytes((number << 3 | 2, len(value))) + value


FORMS: Final[Mapping[str, Callable[[Numbers, Numbers], Pairs]]] = {
    "json": _json,
    "text": _text,
    "bin": _binary,
}
