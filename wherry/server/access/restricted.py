"""Which parts of the server may a client use, beyond what a key lets it in for?

The parts are Triton's groups. A rule asks for a header with a value, as Triton's flags write it:
"model-repository,shared-memory:admin-key=secret". A group may also be switched off.
"""

from __future__ import annotations

import difflib
import hmac
from collections.abc import Mapping, Sequence
from typing import Final

from wherry.core.api import AccessDenied, ConfigError

GROUPS: Final = (
    "health",
    "metadata",
    "inference",
    "shared-memory",
    "model-config",
    "model-repository",
    "statistics",
    "trace",
    "logging",
    "metrics",  # ours: Triton has a port of its own for them
)


class Restrictions:
    """The operator's rules for each group; a group without a rule is open, or wants what
    `others` want."""

    def __init__(
        self,
        rules: Sequence[str] = (),
        off: Sequence[str] = (),
        *,
        others: Restrictions | None = None,
    ) -> None:
        own: dict[str, tuple[str, str]] = {}
        for rule in rules:
            names, colon, header = rule.partition(":")
            key, equals, value = header.partition("=")
            if not (colon and equals and key and value):
                raise ConfigError(
                    f"restricted API {rule!r}: write GROUP[,GROUP]:HEADER=VALUE, for example"
                    " model-repository:admin-key=secret"
                )
            for name in _groups(names):
                if name in own:
                    raise ConfigError(f"restricted API {name!r} is restricted twice")
                own[name] = (key, value)
        inherited = {} if others is None else others._required
        self._required: dict[str, tuple[str, str]] = {**inherited, **own}
        self._off = frozenset(name for names in off for name in _groups(names))

    def __bool__(self) -> bool:
        return bool(self._required or self._off)

    def is_off(self, group: str) -> bool:
        """Whether the group is switched off for all clients."""
        return group in self._off

    def header_of(self, group: str) -> str | None:
        """The name of the header that the group wants; None: it wants none."""
        return self._required[group][0] if group in self._required else None

    @property
    def headers(self) -> set[str]:
        """The names of the headers that any of the groups wants."""
        return {name for name, _ in self._required.values()}

    def check(
        self, group: str, headers: Mapping[str, str], *, what: str = "API", prefix: str = ""
    ) -> None:
        """AccessDenied unless these headers (names in lower case) may use the group.

        `prefix` stands before each header's name on the wire (gRPC: "triton-grpc-protocol-",
        and `what` is "protocol").
        """
        if group in self._off:
            raise AccessDenied(f"This {what} is switched off on this server ({group})")
        required = self._required.get(group)
        if required is None:
            return
        name, value = prefix + required[0], required[1]
        presented = headers.get(name.lower(), "")
        if not hmac.compare_digest(presented.encode("utf-8", "surrogateescape"), value.encode()):
            raise AccessDenied(f"This {what} is restricted, expecting header '{name}'")


def _groups(names: str) -> list[str]:
    """The groups of a comma-separated list; ConfigError for what is none."""
    found = [name.strip() for name in names.split(",")]
    for name in found:
        if name not in GROUPS:
            close = difflib.get_close_matches(name, GROUPS, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known are: {', '.join(GROUPS)}"
            raise ConfigError(f"restricted API: unknown group {name!r}; {hint}")
    return found
