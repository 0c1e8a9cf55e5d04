"""Which open sockets were passed to this process, and which frontend gets each?

systemd passes them as descriptors from 3 up (sd_listen_fds(3)): LISTEN_FDS says how many,
LISTEN_PID to which process, LISTEN_FDNAMES what they are called.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import replace
from typing import Final

from wherry.cli.settings import Settings
from wherry.values.errors import ConfigError

FIRST: Final = 3
#: The setting of each name, in the order in which sockets of other names are taken.
ROLES: Final = {"http": "fd", "grpc": "grpc_fd"}


def with_passed_sockets(
    settings: Settings, environ: MutableMapping[str, str], pid: int
) -> Settings:
    """The settings with the descriptors that `environ` passes to the process `pid`.

    The variables are taken out of `environ`: they are not for our children. ConfigError if they
    are wrong, or if a frontend would get two addresses.
    """
    passed = _passed(environ, pid)
    listen = settings.options.listen
    taken = {role for role, key in ROLES.items() if getattr(listen, key) is not None}
    given: dict[str, int] = {}
    for fd, name in passed.items():
        if name in ROLES:
            if name in taken or name in given:
                raise ConfigError(f"LISTEN_FDNAMES: {name} is given more than one socket")
            given[name] = fd
    for fd, name in passed.items():
        if name not in ROLES:
            free = [role for role in ROLES if role not in taken and role not in given]
            if not free:
                raise ConfigError(
                    f"LISTEN_FDS: {len(passed)} sockets, more than can be served; one is for HTTP,"
                    " one for gRPC"
                )
            given[free[0]] = fd
    listen = replace(
        listen, fd=given.get("http", listen.fd), grpc_fd=given.get("grpc", listen.grpc_fd)
    )
    if listen.fd is not None and listen.uds is not None:
        raise ConfigError("uds and a passed socket: choose one, both are HTTP's address")
    return replace(settings, options=replace(settings.options, listen=listen))


def _passed(environ: MutableMapping[str, str], pid: int) -> dict[int, str]:
    """The name of each descriptor; empty if none are for this process."""
    count = environ.pop("LISTEN_FDS", "")
    listener = environ.pop("LISTEN_PID", "")
    names = environ.pop("LISTEN_FDNAMES", "")
    if not count and not listener:
        return {}
    if _number(listener, "LISTEN_PID") != pid:
        return {}
    how_many = _number(count, "LISTEN_FDS")
    if how_many > len(ROLES):
        raise ConfigError(
            f"LISTEN_FDS: {how_many} sockets are more than can be served: one HTTP, one gRPC"
        )
    fds = range(FIRST, FIRST + how_many)
    called = names.split(":") if names else [""] * len(fds)
    if len(called) != len(fds):
        raise ConfigError(f"LISTEN_FDNAMES: {len(called)} names for {len(fds)} sockets")
    return dict(zip(fds, called, strict=True))


def _number(text: str, variable: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 9):
        raise ConfigError(f"{variable}: {text!r} is not a number")
    return int(text)
