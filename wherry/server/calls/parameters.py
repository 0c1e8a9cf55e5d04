"""Which parameters may a request have, and which of them are for the server, not the model?

Values as JSON and protobuf agree on them: str, int, bool, float. The server's are Triton's:
`priority`, `timeout`, `sequence_id`, `sequence_start`, `sequence_end`, `binary_data_output`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from wherry.core.api import ConfigError, InvalidRequest, SequenceStep, Tag
from wherry.server.calls.terms import as_sent

Parameters = dict[str, Any]

#: What the server itself acts on: the model does not get them.
OF_THE_SERVER: Final = frozenset(
    (
        "binary_data_output",
        "priority",
        "sequence_end",
        "sequence_id",
        "sequence_start",
        "timeout",
    )
)
#: Triton's own names: a client may not use them.
_RESERVED_PREFIX: Final = "triton_"
#: What a whole number of Triton's can be: an id, a priority.
_LARGEST: Final = 2**64 - 1
#: Of one request; as many as a gRPC message may have.
MAX_PARAMETERS: Final = 1024


class InvalidParameter(InvalidRequest):
    """A parameter's value is of no type that parameters have."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"parameter '{name}' has invalid type. It should be either 'int', 'bool', 'string' or"
            " 'double'."
        )


def checked_parameters(parameters: Parameters) -> Parameters:
    """A request's parameters as they are; InvalidRequest for keys and types that may not be."""
    if len(parameters) > MAX_PARAMETERS:
        raise InvalidRequest(f"the request has more than {MAX_PARAMETERS} parameters")
    for name, value in parameters.items():
        if name.startswith(_RESERVED_PREFIX):
            raise InvalidRequest(
                "parameter keys starting with 'triton_' are reserved for Triton usage and should"
                " not be specified",
                more=f": '{name}'",
            )
        if type(value) is int:
            if not -(2**63) <= value <= _LARGEST:
                raise InvalidRequest(f"parameter '{name}' is a number of more than 64 bits")
        elif type(value) not in (str, bool, float):
            raise InvalidParameter(name)
    priority = parameters.get("priority", 0)
    if type(priority) is not int or not 0 <= priority <= _LARGEST:
        raise InvalidRequest("parameter 'priority' must be a whole number from 0 up", tag=Tag.JSON)
    return parameters


def check_window(parameters: Mapping[str, Any], what: str) -> None:
    """InvalidRequest if a tensor's place in a shared memory region is not a number of bytes, even
    if no region is named; `what` begins the error ("input 'x'")."""
    for name in ("shared_memory_offset", "shared_memory_byte_size"):
        value = parameters.get(name, 0)
        if type(value) is not int or not 0 <= value <= _LARGEST:
            raise InvalidRequest(
                f"{what}: parameter '{name}' must be a whole number of bytes from 0 up",
                tag=Tag.JSON,
            )


def has_window(parameters: Mapping[str, Any], tensor: str) -> bool:
    """Whether a tensor of a gRPC call is in shared memory. InvalidRequest for a place in no
    region."""
    if "shared_memory_region" in parameters:
        return True
    for name in ("shared_memory_offset", "shared_memory_byte_size"):
        if name in parameters:
            raise InvalidRequest(
                f"'{name}' can not be specified without 'shared_memory_region' parameter for"
                f" tensor '{tensor}'"
            )
    return False


def for_the_model(parameters: Mapping[str, Any]) -> Parameters | None:
    """The parameters that the model's code gets; None if there are none."""
    return {k: v for k, v in parameters.items() if k not in OF_THE_SERVER} or None


def sequence_of(parameters: Mapping[str, Any]) -> SequenceStep | None:
    """The place of a request in its sequence; None if it names none (0 and "" are not ids)."""
    value = parameters.get("sequence_id", 0)
    if type(value) is not str and (type(value) is not int or not 0 <= value <= _LARGEST):
        raise InvalidRequest(
            "parameter 'sequence_id' must be a string or a whole number of at most 64 bits",
            tag=Tag.JSON,
        )
    flags = [parameters.get(name, False) for name in ("sequence_start", "sequence_end")]
    for name, flag in zip(("sequence_start", "sequence_end"), flags, strict=True):
        if type(flag) is not bool:
            raise InvalidRequest(f"parameter '{name}' must be a bool", tag=Tag.JSON)
    return SequenceStep(value, *flags) if value else None


@dataclass(frozen=True, slots=True)
class Forwarding:
    """Which headers become parameters of a request over HTTP, and over gRPC; None: none."""

    http: HeaderForwarding | None = None
    grpc: HeaderForwarding | None = None


class HeaderForwarding:
    """Gives models the headers that an operator's pattern matches, as string parameters.

    The pattern is one of `re`. It is looked for anywhere in a header's name, whatever its
    case. The parameter is called like the header, with the capitals that the client wrote, as far
    as they are known: HTTP/2 has none.
    """

    def __init__(self, pattern: str) -> None:
        try:
            self._search = re.compile(pattern, re.IGNORECASE).search
        except (re.error, OverflowError) as error:
            raise ConfigError(f"header forward pattern {pattern!r}: {error}") from None

    def of(self, headers: Mapping[str, str]) -> dict[str, str]:
        """The parameters that these headers become. Those of a request's body win over them."""
        found = ((as_sent(name), value) for name, value in headers.items())
        return {name: value for name, value in found if self._search(name)}
