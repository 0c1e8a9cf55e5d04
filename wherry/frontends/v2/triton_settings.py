"""How does Triton read the values of trace settings? For `--triton-strict`; the same over every
protocol (http_server.cc, HandleTrace; grpc_server.cc, RegisterTrace)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from wherry.frontends.v2.triton_words import ToldError
from wherry.frontends.v2.whole_numbers import number_before

TRACE_NUMBERS: Final = ("trace_rate", "trace_count", "log_frequency")
_INT32: Final = range(-(2**31), 2**31)
_UINT32: Final = 2**32
_LEVELS: Final = ("OFF", "TIMESTAMPS", "TENSORS")

_CODES: Final = {400: "INVALID_ARGUMENT", 500: "INTERNAL", 501: "UNIMPLEMENTED", 503: "UNAVAILABLE"}


class NotTaken(Exception):
    """What Triton says of a request, with the status of HTTP."""

    def __init__(self, status: int, text: str) -> None:
        self.told = ToldError(status, _CODES[status], text)


def taken_levels(levels: Sequence[str]) -> list[str]:
    """The levels that there are; others are not looked at."""
    known = [level for level in levels if level in _LEVELS]
    if "OFF" in known and len(levels) > 1:
        raise NotTaken(400, "Expect only one trace level 'OFF' is specified")
    return known


def taken_verbose_level(number: int) -> int:
    """A verbose level with its 32 bits; below 0 there are no verbose lines."""
    wrapped = number % _UINT32
    return wrapped if wrapped in _INT32 else 0


def taken_number(name: str, text: str) -> str:
    """What stoi reads, as the setting has it."""
    number, wrong = number_before(text), f"Unable to parse '{name}'"
    if number is None:
        raise NotTaken(400, f"{wrong}, got: {text}")
    least, most = (-1, _INT32.stop - 1) if name == "trace_count" else (0, 2**32 - 1)
    if number not in _INT32:
        span = f"[ {least}, {most} ]"
        text = f"{wrong}, value is out of range {span}, got: {text}"
        raise NotTaken(400, text)
    if name != "trace_count":
        return str(number % 2**32)
    if number < least:
        text = f"{wrong}. Expecting value >= {least}, got:{text}"
        raise NotTaken(400, text)
    return str(number)
