"""Sockets that systemd or a flag passes, and the frontends that get them."""

import pytest

from wherry.core.values.errors import ConfigError
from wherry.server.cli.serve import with_passed_sockets
from wherry.server.cli.settings import read_settings


def taken(environ: dict[str, str], **flags: object) -> tuple[int | None, int | None]:
    listen = with_passed_sockets(read_settings(flags, {}), environ, 7).options.listen
    return listen.fd, listen.grpc_fd


@pytest.mark.parametrize(
    ("count", "names", "expected"),
    [
        ("1", None, (3, None)),
        ("2", None, (3, 4)),
        ("2", "grpc:http", (4, 3)),
        ("1", "grpc", (None, 3)),
        ("1", "wherry.socket", (3, None)),
        ("2", "wherry.socket:http", (4, 3)),
        ("0", None, (None, None)),
    ],
)
def test_sockets_go_by_their_names_and_else_in_order(
    count: str, names: str | None, expected: tuple[int | None, int | None]
) -> None:
    environ = {"LISTEN_FDS": count, "LISTEN_PID": "7", "OTHER": "x"}
    if names is not None:
        environ["LISTEN_FDNAMES"] = names
    assert taken(environ) == expected
    assert environ == {"OTHER": "x"}  # children must not take them for theirs


def test_sockets_of_another_process_are_not_ours() -> None:
    environ = {"LISTEN_FDS": "1", "LISTEN_PID": "8"}
    assert taken(environ) == (None, None)
    assert environ == {}


def test_a_flag_takes_its_frontend_first() -> None:
    assert taken({"LISTEN_FDS": "1", "LISTEN_PID": "7"}, fd=9) == (9, 3)


@pytest.mark.parametrize(
    ("environ", "flags", "said"),
    [
        ({"LISTEN_FDS": "two", "LISTEN_PID": "7"}, {}, "LISTEN_FDS: 'two'"),
        ({"LISTEN_FDS": "-1", "LISTEN_PID": "7"}, {}, "LISTEN_FDS: '-1'"),
        ({"LISTEN_PID": "7"}, {}, "LISTEN_FDS: ''"),
        ({"LISTEN_FDS": "1", "LISTEN_PID": "me"}, {}, "LISTEN_PID: 'me'"),
        ({"LISTEN_FDS": "1"}, {}, "LISTEN_PID: ''"),
        ({"LISTEN_FDS": "3", "LISTEN_PID": "7"}, {}, "3 sockets"),
        ({"LISTEN_FDS": "999999999", "LISTEN_PID": "7"}, {}, "999999999 sockets"),
        ({"LISTEN_FDS": "2", "LISTEN_PID": "7", "LISTEN_FDNAMES": "http"}, {}, "1 names for 2"),
        (
            {"LISTEN_FDS": "2", "LISTEN_PID": "7", "LISTEN_FDNAMES": "http:http"},
            {},
            "http is given more than one",
        ),
        ({"LISTEN_FDS": "1", "LISTEN_PID": "7"}, {"uds": "/s"}, "choose one"),
    ],
)
def test_what_is_wrong_is_said(
    environ: dict[str, str], flags: dict[str, object], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        taken(environ, **flags)
    assert environ == {}
