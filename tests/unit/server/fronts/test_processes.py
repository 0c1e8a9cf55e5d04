"""What is a front of the server told of the server's options?"""

import socket

from wherry.server.fronts.processes import Front, front_options
from wherry.server.options import Life, Listen, Options


def test_a_front_ends_as_its_server_does_and_says_nothing_to_the_servers_pipes() -> None:
    life = Life(drain_timeout=20.0, drain_notice=5.0, ready_fd=3, stop_fd=4)
    options = Options(listen=Listen(fronts=2), life=life)
    with socket.socket() as http:
        told = front_options(options, Front(0, http, None)).life
    assert told == Life(drain_timeout=20.0, drain_notice=5.0)
