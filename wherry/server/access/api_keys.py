"""Which of the server's keys does a client have, and which groups of APIs may it use?

A key is written `KEY`, or `NAME: KEY`: the name may appear in logs. In a file each has a line of
its own; empty lines and those that begin with # are ignored.
"""

from __future__ import annotations

import difflib
import hmac
import logging
import re
import stat
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
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
    """The operator's rules for each of Triton's groups; a group without a rule is open, or has
    the rule of `others`.

    A rule requires a header with a value, as Triton's flags write it:
    "model-repository,shared-memory:admin-key=secret". A group may also be switched off.
    """

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
        return group in self._off

    def header_of(self, group: str) -> str | None:
        """The name of the header that the group requires; None if it requires none."""
        return self._required[group][0] if group in self._required else None

    @property
    def headers(self) -> set[str]:
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
    """The groups of a comma-separated list; ConfigError for an unknown one."""
    found = [name.strip() for name in names.split(",")]
    for name in found:
        if name not in GROUPS:
            close = difflib.get_close_matches(name, GROUPS, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known are: {', '.join(GROUPS)}"
            raise ConfigError(f"restricted API: unknown group {name!r}; {hint}")
    return found


log = logging.getLogger("wherry")

#: The least length of an operator's key; a shorter one can be guessed.
MIN_KEY_CHARS: Final = 16

_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
#: Visible ASCII: what a header can hold. A colon ends a name, "=" stands at the end (base64).
_SECRET: Final = re.compile(r"[!-9;<>-~]+=*")


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key, and what it is called; "" if it has no name."""

    name: str
    secret: str = field(repr=False)


class ApiKeys:
    """The keys of one server, whatever the protocol: headers and metadata look alike."""

    REFUSAL = "a valid API key is needed: send 'Authorization: Bearer KEY' or 'X-API-Key: KEY'"

    def __init__(self, keys: Sequence[str] = ()) -> None:
        self._keys: list[tuple[str, bytes]] = []
        self.use(keys)

    def use(self, keys: Sequence[str]) -> None:
        """Parse the keys, which are those from now on. ConfigError, without a change, for one that
        cannot be sent or is there twice. Any thread."""
        parsed = [parse_key(key, f"API key {n}") for n, key in enumerate(keys, 1)]
        if twice := twice_there(parsed):
            raise ConfigError(f"API keys: {twice}")
        self._keys = [(k.name or f"key {n}", k.secret.encode()) for n, k in enumerate(parsed, 1)]

    def __bool__(self) -> bool:
        return bool(self._keys)

    def __repr__(self) -> str:
        return f"<ApiKeys: {', '.join(name for name, _ in self._keys)}>"

    def name_of(self, headers: Mapping[str, str]) -> str | None:
        """The name of the key that the client has sent, "key N" if it has none; None if it is not
        one of ours. Names of headers are in lower case."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        presented = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        # All of them, each in constant time: the time taken reveals nothing about a key.
        sent = presented.encode("utf-8", "surrogateescape")
        matches = [name for name, key in self._keys if hmac.compare_digest(sent, key)]
        return matches[0] if matches else None


def parse_key(text: str, where: str, *, shortest: int = 1) -> ApiKey:
    """`KEY` or `NAME: KEY`. The ConfigError begins with `where` and never shows the text."""
    name, colon, secret = text.strip(" \t").partition(":")
    if not colon:
        name, secret = "", name
    secret = secret.strip(" \t")
    if (name and not _NAME.fullmatch(name)) or (colon and not name):
        raise ConfigError(
            f"{where}: the name before the colon has 1 to 64 letters, digits, '.', '_' and '-'"
        )
    if not _SECRET.fullmatch(secret):
        raise ConfigError(
            f"{where}: a key is one word of visible ASCII characters without ':', and with '=' at"
            " its end only; write KEY or NAME: KEY, and comments on lines that begin with #"
        )
    if len(secret) < shortest:
        raise ConfigError(
            f"{where}: the key has {len(secret)} characters, of at least {shortest}; make one"
            " with: python -c 'import secrets; print(secrets.token_urlsafe(32))'"
        )
    return ApiKey(name, secret)


def keys_of(path: str | Path) -> list[str]:
    """The keys of a file, each as KEY or NAME: KEY. ConfigError if it has none."""
    where, path = f"api_key_file {path}", Path(path)
    try:
        text = path.read_text(encoding="utf-8")
        open_to_all = path.stat().st_mode & stat.S_IROTH
    except OSError as error:
        raise ConfigError(f"{where}: {error.strerror or 'it cannot be read'}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{where}: it is not UTF-8 text (byte {error.start})") from None
    if open_to_all:
        log.warning("every user of this machine can read the keys", extra={"api_key_file": path})
    return parse_key_file(text, where)


def parse_key_file(text: str, where: str) -> list[str]:
    """The keys of a file, as they are written there. ConfigError names a line that is wrong."""
    lines: dict[int, str] = {}
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
        line = line.removesuffix("\r").strip(" \t")
        if line and not line.startswith("#"):
            parse_key(line, f"{where} line {number}", shortest=MIN_KEY_CHARS)
            lines[number] = line
    if not lines:
        # The operator meant to require keys: an empty file must not open the server to all clients.
        raise ConfigError(f"{where} holds no key")
    return list(lines.values())


def twice_there(keys: Sequence[ApiKey]) -> str:
    """Return the name or key that is there more than once; "" if none is."""
    names = Counter(key.name for key in keys if key.name)
    if names and (most := names.most_common(1)[0])[1] > 1:
        return f"the name {most[0]!r} is there {most[1]} times; each key needs its own name"
    secrets = [key.secret for key in keys]
    for number, secret in enumerate(secrets, 1):
        if secrets.index(secret) != number - 1:
            return f"key {number} is the same as key {secrets.index(secret) + 1}"
    return ""
