"""What does HAProxy's agent check learn of this server?"""

import socket
import threading

import pytest

import wherry
from tests.fakes import TIMEOUT, Gate, gated, until
from tests.unit.server.asking import upper
from wherry.core.observability.load_meter import LoadReport
from wherry.server.agent_check import agent_line, expected_seconds
from wherry.testing import local_server

#: A row alone takes 20 ms, a full batch 50 ms.
IDLE = LoadReport(one_seconds=0.02, full_seconds=0.05)


@pytest.mark.parametrize(
    ("load", "row_seconds", "weight"),
    [
        (LoadReport(), 0.02, 100),  # nothing has run yet
        (LoadReport(), 0.0, 100),
        (IDLE, 0.02, 100),
        (IDLE, 1.0, 100),  # better than good is good
        (IDLE, 0.01, 12),
        (IDLE, 0.004, 1),  # five times slower
        (IDLE, 0.00001, 1),  # a little is sent, by which it is seen to be better again
        (LoadReport(one_seconds=0.02, full_seconds=0.05, wait_seconds=0.05), 0.02, 100),
        (LoadReport(one_seconds=0.02, full_seconds=0.05, wait_seconds=0.1), 0.02, 50),
        (LoadReport(one_seconds=0.02, full_seconds=0.05, wait_seconds=60.0), 0.02, 1),
        (IDLE, 1e300, 100),
        (LoadReport(requests_per_second=30.0, errors_per_second=10.0), 0.02, 42),
        (LoadReport(errors_per_second=10.0), 0.02, 1),
        (LoadReport(one_seconds=1e-9, full_seconds=1e-9, wait_seconds=1e300), 0.02, 1),
    ],
)
def test_the_weight_falls_with_what_a_row_takes_and_waits_and_with_failures(
    load: LoadReport, row_seconds: float, weight: int
) -> None:
    line = agent_line(load, draining=False, not_ready={}, row_seconds=row_seconds)
    assert line == f"up ready {weight}%"


@pytest.mark.parametrize(
    ("draining", "not_ready", "line"),
    [
        (True, {}, "drain"),
        (True, {"m": "stuck"}, "drain"),
        (False, {"m": "stuck"}, "down #m: stuck"),
        (False, {"a": "loading", "b": "1 of\n2"}, "down #a: loading; b: 1 of 2"),
    ],
)
def test_one_that_cannot_answer_says_so(
    draining: bool, not_ready: dict[str, str], line: str
) -> None:
    assert agent_line(IDLE, draining=draining, not_ready=not_ready, row_seconds=0.02) == line


@pytest.mark.parametrize(
    ("sent", "seconds"),
    [
        (b"20ms\n", 0.02),
        (b"1.5 s\r\n", 1.5),
        (b"", None),
        (b"20\n", None),
        (b"-1ms\n", None),
        (b"0ms\n", 0.0),
        (b"GET / HTTP/1.1\r\n", None),
        (b"\xff\x00\n", None),
    ],
)
def test_agent_send_says_what_a_row_takes_on_a_good_host(
    sent: bytes, seconds: float | None
) -> None:
    assert expected_seconds(sent) == seconds


def check(address: str, sent: bytes = b"") -> str:
    """What HAProxy reads up to the end."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), TIMEOUT) as connection:
        connection.sendall(sent)
        data = b""
        while part := connection.recv(4096):
            data += part
    return data.decode()


def test_a_server_answers_with_and_without_agent_send() -> None:
    with local_server(upper, agent_port=0) as server:
        assert check(server.agent_address) == "up ready 100%\n"
        with wherry.Client(server.url) as client:
            client.infer("upper", text="a")
        # The load is read anew after a moment.
        until(lambda: check(server.agent_address, b"0.000001ms\n") == "up ready 1%\n")
        # What was said last holds for a check whose text is late.
        assert check(server.agent_address) == "up ready 1%\n"
        assert check(server.agent_address, b"9s\n") == "up ready 100%\n"
        assert check(server.agent_address, b"x" * 100_000) == "up ready 100%\n"
    with pytest.raises(OSError, match="refused"):
        check(server.agent_address)


def test_while_it_drains_it_says_so_to_the_last_answer() -> None:
    gate = Gate()
    model = gated(gate)
    with local_server(model, agent_port=0) as server, wherry.Client(server.url) as client:
        asks = threading.Thread(target=client.infer, args=(model.name, "a"))
        asks.start()
        gate.started()
        ends = threading.Thread(target=server.stop)
        ends.start()
        until(lambda: check(server.agent_address, b"20ms\n") == "drain\n")
        gate.open()
        ends.join()
        asks.join()
